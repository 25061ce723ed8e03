//! `ratekeeper config check | show | docs`.

use crate::cli::{ConfigCommand, Format};
use crate::config::{self, Config, Diagnostic, LoadedConfig, Location};
use crate::envoy;
use crate::envoy::config::{ConfigError, EnvoyConfig};
use crate::run::serve::Start;
use crate::{EXIT_CANNOT_RUN, EXIT_FAILURE, print};
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
        ConfigCommand::Show { file } => print_loaded(file.as_deref(), LoadedConfig::show),
        ConfigCommand::Docs { file } => print_loaded(Some(file), |loaded| {
            loaded.config.as_ref().map(Config::to_markdown)
        }),
    }
}

/// Loads the configuration as `serve` does: file, environment and defaults.
pub(crate) fn load(file: Option<&Path>) -> LoadedConfig {
    Config::load(file, config::environment())
}

/// Prints the diagnostics to standard error, and returns the exit code.
pub(crate) fn print_errors(loaded: &LoadedConfig) -> ExitCode {
    for diagnostic in &loaded.diagnostics {
        eprintln!("{diagnostic}");
    }
    ExitCode::from(EXIT_CANNOT_RUN)
}

#[derive(Serialize)]
struct CheckReport<'a> {
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
        let without_location = Self {
            severity,
            file: None,
            line: None,
            column: None,
            variable: None,
            message,
        };
        match &diagnostic.location {
            Location::Nowhere => without_location,
            Location::File { file, line, column } => Self {
                file: Some(file),
                line: Some(*line),
                column: Some(*column),
                ..without_location
            },
            Location::Variable(name) => Self {
                variable: Some(name),
                ..without_location
            },
        }
    }
}

/// An error in a file of Envoy's limits.
impl<'a> From<&'a ConfigError> for FindingReport<'a> {
    fn from(error: &'a ConfigError) -> Self {
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let (line, column) = error
            .location
            .map(|(line, column)| (number(line), number(column)))
            .unzip();
        Self {
            severity: "error",
            file: Some(&error.file),
            line,
            column,
            variable: None,
            message: &error.message,
        }
    }
}

/// Checks the file, and the directory with Envoy's limits that the file or a flag names, as `serve`
/// does.
fn check(file: Option<&Path>, envoy_config: Option<&Path>, format: Format) -> ExitCode {
    let mut loaded = load(file);
    if let Some(config) = &mut loaded.config {
        if let Some(path) = envoy_config {
            config.envoy.config = Some(path.to_owned());
        }
        loaded.diagnostics = warnings_in_any_mode(&loaded.diagnostics, config);
    }
    let configured = loaded
        .config
        .as_ref()
        .and_then(|config| config.envoy.config.as_deref());
    let directory = configured.or(envoy_config).map(envoy::config::directory);
    let envoy = directory.as_deref().map(envoy::config::load).transpose();
    let envoy_errors = envoy.as_ref().err().map_or(&[][..], Vec::as_slice);
    let errors = loaded
        .diagnostics
        .iter()
        .filter(|diagnostic| diagnostic.is_error())
        .count();
    let warnings = loaded.diagnostics.len() - errors;
    let errors = errors + envoy_errors.len();
    match format {
        Format::Json => {
            let problems = loaded
                .diagnostics
                .iter()
                .map(FindingReport::new)
                .chain(envoy_errors.iter().map(FindingReport::from))
                .collect();
            let report = CheckReport {
                errors,
                warnings,
                problems,
            };
            // Structs of text and numbers always serialize.
            print(format_args!(
                "{}\n",
                serde_json::to_string_pretty(&report).unwrap_or_default()
            ));
        }
        Format::Text => {
            for diagnostic in &loaded.diagnostics {
                print(format_args!("{diagnostic}\n"));
            }
            for error in envoy_errors {
                print(format_args!("{error}\n"));
            }
            let name = file
                .or(directory.as_deref())
                .unwrap_or(Path::new("ratekeeper.toml"))
                .display();
            let policies = file
                .and(loaded.config.as_ref())
                .map(|config| policy_count(&config.policies));
            let limits = envoy.iter().flatten().map(envoy_count);
            let contents = policies
                .into_iter()
                .chain(limits)
                .collect::<Vec<_>>()
                .join(", ");
            print(match (errors, warnings) {
                (0, 0) => format!("{name}: {contents}, OK\n"),
                (0, _) => format!(
                    "{name}: {contents}, {}\n",
                    plural(warnings, "warning", "warnings")
                ),
                _ => {
                    format!(
                        "{name}: {}, {}\n",
                        plural(errors, "error", "errors"),
                        plural(warnings, "warning", "warnings")
                    )
                }
            });
        }
    }
    match errors {
        _ if loaded.unreadable => ExitCode::from(EXIT_CANNOT_RUN),
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_FAILURE),
    }
}

fn envoy_count(config: &EnvoyConfig) -> String {
    format!(
        "{} in {}",
        plural(config.rules.len(), "Envoy limit", "Envoy limits"),
        plural(config.domains.len(), "domain", "domains")
    )
}

/// A number with its noun.
pub(crate) fn plural(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// The number of policies, or that there are none and the built-in policy applies.
pub(crate) fn policy_count(policies: &Policies) -> String {
    if policies.iter().eq(Policies::built_in().iter()) {
        "no policies; the built-in policy applies (100/min burst 20 per address)".to_owned()
    } else {
        plural(policies.iter().len(), "policy", "policies")
    }
}

/// The command that uses a configuration.
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

    /// Guesses the mode of a configuration: one with upstreams is for the gateway.
    pub(crate) fn guess(config: &Config) -> Self {
        if config.gateway.all_upstreams().next().is_none() {
            Self::Serve
        } else {
            Self::Proxy
        }
    }

    const ALL: [Self; 2] = [Self::Serve, Self::Proxy];
}

/// Warnings about a configuration: those of its file, and those about settings that do not fit the
/// mode. `serve`, `proxy` and a reload show these, `config check` those of
/// [both modes](warnings_in_any_mode).
pub(crate) fn warnings(loaded: &[Diagnostic], config: &Config, mode: Mode) -> Vec<Diagnostic> {
    let of_mode = match mode {
        Mode::Serve => unsupported_by_serve(&config.policies),
        Mode::Proxy => config.identity.unprovided(&config.policies),
    };
    let grpc = unused_grpc(config, mode);
    let of_mode = of_mode
        .into_iter()
        .chain(grpc)
        .map(|message| Diagnostic::warning(Location::Nowhere, message));
    loaded.iter().cloned().chain(of_mode).collect()
}

/// Warnings of `serve` and of `proxy`, because a file does not say which of them will use it.
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

/// A warning if the address of Envoy's rate limit service is set and nothing listens there.
fn unused_grpc(config: &Config, mode: Mode) -> Option<String> {
    let address = config.server.grpc.as_ref()?;
    let is_served = mode == Mode::Serve && config.envoy.config.is_some();
    if is_served || config.server.grpc == Config::default().server.grpc {
        return None;
    }
    Some(match config.envoy.config {
        None => format!(
            "server.grpc is set to {address}, but nothing listens there unless `config` in [envoy] \
             is set (ratekeeper serve)"
        ),
        Some(_) => format!(
            "server.grpc is set to {address}, but `ratekeeper proxy` does not listen there; \
             Envoy's rate limit service is part of `ratekeeper serve`"
        ),
    })
}

/// The text of a warning for the log, which has a field for the severity.
pub(crate) fn for_log(warning: &Diagnostic) -> String {
    match warning.location {
        Location::Nowhere => warning.message.clone(),
        _ => warning.to_string(),
    }
}

/// Warnings about policies that `POST /v1/check` cannot apply, because it does not learn how a
/// request ends.
fn unsupported_by_serve(policies: &Policies) -> Vec<String> {
    let mut warnings = Vec::new();
    for policy in policies.iter() {
        let name = policy.name();
        let only = match policy.counts() {
            Count::All => None,
            Count::Failures => Some("failures"),
            Count::Successes => Some("successes"),
        };
        warnings.extend(only.map(|only| {
            format!(
                "the policy `{name}` counts {only} only, but POST /v1/check does not learn how \
                 requests end and counts all of them; use /v1/reserve and /v1/settle"
            )
        }));
        let permits = policies
            .limits_of(policy)
            .find(|limit| matches!(limit, PolicyLimit::Concurrent(_)));
        warnings.extend(permits.map(|limit| {
            format!(
                "the policy `{name}` has `{limit}`, but POST /v1/check does not learn how requests \
                 end, so it denies nothing there; use /v1/reserve and /v1/settle"
            )
        }));
        warnings.extend(policy.is_adaptive().then(|| {
            format!(
                "the policy `{name}` is `adaptive`, but `ratekeeper serve` does not learn how \
                 requests end, so it denies nothing there; use `ratekeeper proxy`"
            )
        }));
    }
    warnings
}

/// Prints text made from a valid configuration; warnings go to standard error.
fn print_loaded(file: Option<&Path>, text: impl Fn(&LoadedConfig) -> Option<String>) -> ExitCode {
    let loaded = load(file);
    let Some(text) = text(&loaded) else {
        let code = print_errors(&loaded);
        return if loaded.unreadable {
            code
        } else {
            ExitCode::from(EXIT_FAILURE)
        };
    };
    for diagnostic in &loaded.diagnostics {
        eprintln!("{diagnostic}");
    }
    print(text);
    ExitCode::SUCCESS
}
