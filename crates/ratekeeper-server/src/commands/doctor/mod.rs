//! `ratekeeper doctor`: finds common mistakes and says how to fix each.

mod redis;
mod settings;
mod target;

use crate::cli::{DoctorArgs, Format};
use crate::commands::config as config_command;
use crate::commands::config::Mode;
use crate::commands::terminal::{self, escape};
use crate::config::Config;
use crate::{EXIT_CANNOT_RUN, EXIT_FAILURE, print};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use target::DoctorTarget;

/// Path of a running server's findings.
pub(crate) const PATH: &str = "/admin/doctor";

/// Path of the readiness probe.
const READY_PATH: &str = "/readyz";

/// A probable mistake.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Finding {
    /// Identifier for programs.
    pub(crate) code: String,
    /// The problem and, after a semicolon, how to fix it.
    pub(crate) message: String,
    /// Whether it may be intended. Notes do not change the exit code.
    #[serde(default)]
    pub(crate) note: bool,
}

impl Finding {
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            message: message.into(),
            note: false,
        }
    }

    pub(crate) fn note(code: &str, message: impl Into<String>) -> Self {
        Self {
            note: true,
            ..Self::new(code, message)
        }
    }
}

/// Findings of a running server.
#[derive(Serialize, Deserialize)]
pub(crate) struct Findings {
    pub(crate) findings: Vec<Finding>,
}

/// The output of `doctor`.
#[derive(Serialize)]
struct Report {
    findings: Vec<Finding>,
    /// Checks that could not run, and why.
    skipped: Vec<String>,
}

pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    let loaded = config_command::load(args.config.as_deref());
    if loaded.unreadable {
        return config_command::print_errors(&loaded);
    }
    let target = DoctorTarget::of(args, loaded.config.as_ref());
    if args.probe {
        return probe(target);
    }
    let mut report = Report {
        findings: Vec::new(),
        skipped: Vec::new(),
    };
    report.findings.extend(
        loaded
            .diagnostics
            .iter()
            .map(|diagnostic| Finding::new("config", diagnostic.to_string())),
    );
    if let Some(config) = &loaded.config {
        let warnings = config_command::warnings(&[], config, Mode::guess(config));
        report.findings.extend(
            warnings
                .into_iter()
                .map(|warning| Finding::note("config", warning.message)),
        );
        report
            .findings
            .extend(settings::check(args.config.as_deref(), config));
        report.findings.extend(redis_findings(config));
    }
    let mut cannot_run = false;
    match target.and_then(|target| target.findings()) {
        Ok(found) => report.findings.extend(found.findings),
        Err(error) => {
            cannot_run = args.url.is_some();
            report.skipped.push(error);
        }
    }
    match args.format {
        Format::Json => print(terminal::json(&report)),
        Format::Text => print_text(&report),
    }
    if cannot_run {
        ExitCode::from(EXIT_CANNOT_RUN)
    } else if mistakes(&report) == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_FAILURE)
    }
}

/// Number of findings other than notes.
fn mistakes(report: &Report) -> usize {
    report
        .findings
        .iter()
        .filter(|finding| !finding.note)
        .count()
}

fn print_text(report: &Report) {
    for Finding {
        code,
        message,
        note,
    } in &report.findings
    {
        let note = if *note { " (a note)" } else { "" };
        print(format_args!(
            "{}{note}: {}\n",
            escape(code),
            escape(message)
        ));
    }
    for reason in &report.skipped {
        print(format_args!("skipped: {}\n", escape(reason)));
    }
    print(match mistakes(report) {
        0 => "OK\n".to_owned(),
        count => format!("{}\n", config_command::plural(count, "finding", "findings")),
    });
}

/// Checks only that the server is running and ready, for frequent health checks.
fn probe(target: Result<DoctorTarget, String>) -> ExitCode {
    match target.and_then(|target| target.get(READY_PATH)) {
        Ok((200, _)) => ExitCode::SUCCESS,
        Ok((_, body)) => {
            body.lines().for_each(|line| eprintln!("{}", escape(line)));
            ExitCode::from(EXIT_FAILURE)
        }
        Err(error) => {
            eprintln!("{}", escape(&error));
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

fn redis_findings(config: &Config) -> Vec<Finding> {
    let Some(redis) = &config.store.redis else {
        return Vec::new();
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(redis::check(config, redis)),
        Err(error) => vec![Finding::new(
            "system",
            format!("cannot check Redis: {error}; try again later"),
        )],
    }
}
