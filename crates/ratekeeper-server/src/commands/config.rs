//! `ratekeeper config check | show | docs`.

use crate::cli::{ConfigCommand, Format};
use crate::envoy;
use crate::envoy::config::{ConfigError, EnvoyConfig};
use crate::run::serve::Start;
use crate::{CANNOT, NO, print};
use ratekeeper_policy::config::{self, Config, Diagnostic, LoadedConfig, Location};
use ratekeeper_policy::{Count, Policies, PolicyLimit};
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(command: &ConfigCommand) -> ExitCode {
    match command {
        ConfigCommand::Check {
            file,
            envoy_config,
            format,
        } => check(file.as_deref(), envoy_config.as_deref(), *format),
        ConfigCommand::Show { file } => printed(file.as_deref(), LoadedConfig::show),
        ConfigCommand::Docs { file } => printed(Some(file), |loaded| {
            loaded.config.as_ref().map(Config::to_markdown)
        }),
    }
}

/// Loads what `serve` would go by.
pub(crate) fn load(file: Option<&Path>) -> LoadedConfig {
    Config::load(file, config::environment())
}

/// Tells what is wrong, on standard error, and the code to end with.
pub(crate) fn refused(loaded: &LoadedConfig) -> ExitCode {
    for diagnostic in &loaded.diagnostics {
        eprintln!("{diagnostic}");
    }
    ExitCode::from(CANNOT)
}

#[derive(Serialize)]
struct CheckedFile<'a> {
    errors: usize,
    warnings: usize,
    problems: Vec<FindingReport<'a>>,
}

#[derive(Serialize)]
struct FindingReport<'a> {
    severity: &'static str,
    file: Option<&'a str>,
    line: Option<usize>,
    column: Option<usize>,
    variable: Option<&'a str>,
    message: &'a str,
}

impl<'a> FindingReport<'a> {
    fn new(diagnostic: &'a Diagnostic) -> Self {
        let severity = if diagnostic.is_error() {
            "error"
        } else {
            "warning"
        };
        let message = &diagnostic.message;
        let nowhere = Self {
            severity,
            file: None,
            line: None,
            column: None,
            variable: None,
            message,
        };
        match &diagnostic.location {
            Location::Nowhere => nowhere,
            Location::File { file, line, column } => Self {
                file: Some(file),
                line: Some(*line),
                column: Some(*column),
                ..nowhere
            },
            Location::Variable(name) => Self {
                variable: Some(name),
                ..nowhere
            },
        }
    }
}

/// What is wrong with a file of Envoy's limits.
impl<'a> From<&'a ConfigError> for FindingReport<'a> {
    fn from(wrong: &'a ConfigError) -> Self {
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let (line, column) = wrong
            .location
            .map(|(line, column)| (number(line), number(column)))
            .unzip();
        let (file, message) = (Some(&*wrong.file), &*wrong.message);
        Self {
            severity: "error",
            file,
            line,
            column,
            variable: None,
            message,
        }
    }
}

/// `serve` would go by the same: the file, and the directory with the limits of Envoy that it
/// names, or that a flag names.
fn check(file: Option<&Path>, envoy_config: Option<&Path>, format: Format) -> ExitCode {
    let mut loaded = load(file);
    if let Some(config) = &mut loaded.config {
        if let Some(path) = envoy_config {
            config.envoy.config = Some(path.to_owned());
        }
        loaded.diagnostics = warnings_in_any_mode(&loaded.diagnostics, config);
    }
    let named = loaded
        .config
        .as_ref()
        .and_then(|config| config.envoy.config.as_deref());
    let directory = named.or(envoy_config).map(envoy::config::directory);
    let envoy = directory.as_deref().map(envoy::config::load).transpose();
    let wrong = envoy.as_ref().err().map_or(&[][..], Vec::as_slice);
    let errors = loaded
        .diagnostics
        .iter()
        .filter(|diagnostic| diagnostic.is_error())
        .count();
    let (errors, warnings) = (errors + wrong.len(), loaded.diagnostics.len() - errors);
    match format {
        Format::Json => {
            let problems = loaded
                .diagnostics
                .iter()
                .map(FindingReport::new)
                .chain(wrong.iter().map(FindingReport::from))
                .collect();
            let checked = CheckedFile {
                errors,
                warnings,
                problems,
            };
            // Structs of text and numbers always have a JSON form.
            print(format_args!(
                "{}\n",
                serde_json::to_string_pretty(&checked).unwrap_or_default()
            ));
        }
        Format::Text => {
            for diagnostic in &loaded.diagnostics {
                print(format_args!("{diagnostic}\n"));
            }
            for wrong in wrong {
                print(format_args!("{wrong}\n"));
            }
            let shown = file
                .or(directory.as_deref())
                .unwrap_or(Path::new("ratekeeper.toml"))
                .display();
            let policies = file
                .and(loaded.config.as_ref())
                .map(|config| counted(&config.policies));
            let limits = envoy.iter().flatten().map(for_envoy);
            let said = policies
                .into_iter()
                .chain(limits)
                .collect::<Vec<_>>()
                .join(", ");
            print(match (errors, warnings) {
                (0, 0) => format!("{shown}: {said}, nothing to complain of\n"),
                (0, _) => format!(
                    "{shown}: {said}, {}\n",
                    many(warnings, "warning", "warnings")
                ),
                _ => {
                    format!(
                        "{shown}: {}, {}\n",
                        many(errors, "error", "errors"),
                        many(warnings, "warning", "warnings")
                    )
                }
            });
        }
    }
    match errors {
        _ if loaded.unreadable => ExitCode::from(CANNOT),
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(NO),
    }
}

fn for_envoy(config: &EnvoyConfig) -> String {
    let (limits, domains) = (config.rules.len(), config.domains.len());
    format!(
        "{} of Envoy in {}",
        many(limits, "limit", "limits"),
        many(domains, "domain", "domains")
    )
}

pub(crate) fn many(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// How many policies there are; the built-in one was not written by anybody, and whoever emptied a
/// file wants to know.
pub(crate) fn counted(policies: &Policies) -> String {
    match policies.iter().eq(Policies::built_in().iter()) {
        true => "no policies, so the built-in one applies (100/min burst 20 for each address)"
            .to_owned(),
        false => many(policies.iter().len(), "policy", "policies"),
    }
}

/// How a configuration is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// `ratekeeper serve`
    Serve,
    /// `ratekeeper proxy`
    Proxy,
}

impl Mode {
    pub(crate) fn of(start: &Start) -> Self {
        if start.gateway {
            Self::Proxy
        } else {
            Self::Serve
        }
    }

    /// The mode that a configuration is probably made for: one that names upstreams is for the
    /// gateway.
    pub(crate) fn made_for(config: &Config) -> Self {
        if config.gateway.upstreams.is_empty() {
            Self::Serve
        } else {
            Self::Proxy
        }
    }

    const ALL: [Self; 2] = [Self::Serve, Self::Proxy];
}

/// Everything that is doubtful about a configuration: what its file says, and what does not go with
/// how it is used. `serve`, `proxy` and a reload show these, and `config check` those of
/// [both](warnings_in_any_mode).
pub(crate) fn warnings(loaded: &[Diagnostic], config: &Config, mode: Mode) -> Vec<Diagnostic> {
    let own = match mode {
        Mode::Serve => unheard(&config.policies),
        Mode::Proxy => config.identity.unprovided(&config.policies),
    };
    let grpc = unused_grpc(config, mode);
    let own = own
        .into_iter()
        .chain(grpc)
        .map(|message| Diagnostic::warning(Location::Nowhere, message));
    loaded.iter().cloned().chain(own).collect()
}

/// What `serve` or `proxy` would warn about: a file does not say which of them it is for.
fn warnings_in_any_mode(loaded: &[Diagnostic], config: &Config) -> Vec<Diagnostic> {
    let mut all = loaded.to_vec();
    for mode in Mode::ALL {
        for warning in warnings(&[], config, mode) {
            if !all.contains(&warning) {
                all.push(warning);
            }
        }
    }
    all
}

/// An address for Envoy's rate limit service that is set, and is not listened on.
fn unused_grpc(config: &Config, mode: Mode) -> Option<String> {
    let address = config.server.grpc.as_ref()?;
    let is_served = mode == Mode::Serve && config.envoy.config.is_some();
    if is_served || config.server.grpc == Config::default().server.grpc {
        return None;
    }
    Some(match config.envoy.config {
        None => format!(
            "server.grpc is set to {address}, but nobody listens there without `config` in [envoy] (ratekeeper serve)"
        ),
        Some(_) => format!(
            "server.grpc is set to {address}, but `ratekeeper proxy` does not listen there; Envoy's rate limit service is part of \
             `ratekeeper serve`"
        ),
    })
}

/// A warning as the log has it, which has a word for its severity.
pub(crate) fn for_log(warning: &Diagnostic) -> String {
    match warning.location {
        Location::Nowhere => warning.message.clone(),
        _ => warning.to_string(),
    }
}

/// What policies ask for and `POST /v1/check` cannot give: nobody tells it how a request ended.
fn unheard(policies: &Policies) -> Vec<String> {
    let mut told = Vec::new();
    for policy in policies.iter() {
        let name = policy.name();
        let only = match policy.counts() {
            Count::All => None,
            Count::Failures => Some("failures"),
            Count::Successes => Some("successes"),
        };
        told.extend(only.map(|only| {
            format!("the policy `{name}` counts {only} only, but POST /v1/check does not hear how a request ends: there every request counts; ask POST /v1/reserve, and tell POST /v1/settle")
        }));
        let permits = policies
            .limits_of(policy)
            .find(|limit| matches!(limit, PolicyLimit::Concurrent(_)));
        told.extend(permits.map(|limit| {
            format!("the policy `{name}` has `{limit}`, but POST /v1/check does not hear how a request ends: there it turns nobody away; ask POST /v1/reserve, and tell POST /v1/settle")
        }));
        told.extend(policy.is_adaptive().then(|| {
            format!("the policy `{name}` is `adaptive`, but `ratekeeper serve` sees no request to its end: there it turns nobody away; stand in front of the service with `ratekeeper proxy`")
        }));
    }
    told
}

/// Prints what becomes of a configuration that is right; what is doubtful goes to standard error.
fn printed(file: Option<&Path>, text: impl Fn(&LoadedConfig) -> Option<String>) -> ExitCode {
    let loaded = load(file);
    let Some(text) = text(&loaded) else {
        let code = refused(&loaded);
        return if loaded.unreadable {
            code
        } else {
            ExitCode::from(NO)
        };
    };
    for diagnostic in &loaded.diagnostics {
        eprintln!("{diagnostic}");
    }
    print(text);
    ExitCode::SUCCESS
}
