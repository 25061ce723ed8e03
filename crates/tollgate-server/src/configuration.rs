//! `tollgate config check | show | docs`.

use crate::cli::{ConfigCommand, Format};
use crate::{CANNOT, NO, print};
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;
use tollgate_policy::config::{self, Config, Diagnostic, Loaded, Place};

pub(crate) fn run(command: &ConfigCommand) -> ExitCode {
    match command {
        ConfigCommand::Check { file, format } => check(file, *format),
        ConfigCommand::Show { file } => printed(file.as_deref(), Loaded::show),
        ConfigCommand::Docs { file } => printed(Some(file), |loaded| loaded.config.as_ref().map(Config::to_markdown)),
    }
}

/// Loads what `serve` would go by.
pub(crate) fn load(file: Option<&Path>) -> Loaded {
    Config::load(file, config::environment())
}

/// Tells what is wrong, on standard error, and the code to end with.
pub(crate) fn refused(loaded: &Loaded) -> ExitCode {
    for diagnostic in &loaded.diagnostics {
        eprintln!("{diagnostic}");
    }
    ExitCode::from(CANNOT)
}

#[derive(Serialize)]
struct Checked<'a> {
    errors: usize,
    warnings: usize,
    problems: Vec<Told<'a>>,
}

#[derive(Serialize)]
struct Told<'a> {
    severity: &'static str,
    file: Option<&'a str>,
    line: Option<usize>,
    column: Option<usize>,
    variable: Option<&'a str>,
    message: &'a str,
}

impl<'a> Told<'a> {
    fn new(diagnostic: &'a Diagnostic) -> Self {
        let severity = if diagnostic.is_error() { "error" } else { "warning" };
        let message = &diagnostic.message;
        let nowhere = Self { severity, file: None, line: None, column: None, variable: None, message };
        match &diagnostic.place {
            Place::Nowhere => nowhere,
            Place::File { file, line, column } => {
                Self { file: Some(file), line: Some(*line), column: Some(*column), ..nowhere }
            }
            Place::Variable(name) => Self { variable: Some(name), ..nowhere },
        }
    }
}

fn check(file: &Path, format: Format) -> ExitCode {
    let loaded = load(Some(file));
    let errors = loaded.diagnostics.iter().filter(|diagnostic| diagnostic.is_error()).count();
    let warnings = loaded.diagnostics.len() - errors;
    match format {
        Format::Json => {
            let problems = loaded.diagnostics.iter().map(Told::new).collect();
            let checked = Checked { errors, warnings, problems };
            // Structs of text and numbers always have a JSON form.
            print(format_args!("{}\n", serde_json::to_string_pretty(&checked).unwrap_or_default()));
        }
        Format::Text => {
            for diagnostic in &loaded.diagnostics {
                print(format_args!("{diagnostic}\n"));
            }
            let (file, policies) =
                (file.display(), loaded.config.as_ref().map_or(0, |config| config.policies.iter().len()));
            print(match (errors, warnings) {
                (0, 0) => format!("{file}: {}, nothing to complain of\n", many(policies, "policy", "policies")),
                (0, _) => format!(
                    "{file}: {}, {}\n",
                    many(policies, "policy", "policies"),
                    many(warnings, "warning", "warnings")
                ),
                _ => {
                    format!("{file}: {}, {}\n", many(errors, "error", "errors"), many(warnings, "warning", "warnings"))
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

pub(crate) fn many(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// Prints what becomes of a configuration that is right; what is doubtful goes to standard error.
fn printed(file: Option<&Path>, text: impl Fn(&Loaded) -> Option<String>) -> ExitCode {
    let loaded = load(file);
    let Some(text) = text(&loaded) else {
        let code = refused(&loaded);
        return if loaded.unreadable { code } else { ExitCode::from(NO) };
    };
    for diagnostic in &loaded.diagnostics {
        eprintln!("{diagnostic}");
    }
    print(text);
    ExitCode::SUCCESS
}
