//! `ratekeeper doctor`: the usual mistakes, each in a sentence with how to mend it.

mod ask;
mod redis;
mod settings;

use crate::cli::{DoctorArgs, Format};
use crate::commands::config as config_command;
use crate::commands::config::Mode;
use crate::commands::terminal::{self, escape};
use crate::{CANNOT, NO, print};
use ask::DoctorTarget;
use ratekeeper_policy::config::Config;
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

/// Where a running server tells what it finds, and whether it serves.
pub(crate) const PATH: &str = "/admin/doctor";
const READY: &str = "/readyz";

/// A mistake, or what looks like one.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Finding {
    /// A name for programs.
    pub(crate) code: String,
    /// What is wrong and where; and behind a semicolon how to mend it.
    pub(crate) says: String,
    /// Whether it may well be meant: it is told, and nobody fails by it.
    #[serde(default)]
    pub(crate) note: bool,
}

impl Finding {
    pub(crate) fn new(code: &str, says: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            says: says.into(),
            note: false,
        }
    }

    pub(crate) fn note(code: &str, says: impl Into<String>) -> Self {
        Self {
            note: true,
            ..Self::new(code, says)
        }
    }
}

/// What a running server found.
#[derive(Serialize, Deserialize)]
pub(crate) struct Findings {
    pub(crate) findings: Vec<Finding>,
}

/// All of it.
#[derive(Serialize)]
struct Report {
    findings: Vec<Finding>,
    /// What could not be looked at, and why.
    not_looked_at: Vec<String>,
}

pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    let loaded = config_command::load(args.config.as_deref());
    if loaded.unreadable {
        return config_command::refused(&loaded);
    }
    let site = DoctorTarget::of(args, loaded.config.as_ref());
    if args.probe {
        return probe(site);
    }
    let mut report = Report {
        findings: Vec::new(),
        not_looked_at: Vec::new(),
    };
    report.findings.extend(
        loaded
            .diagnostics
            .iter()
            .map(|found| Finding::new("config", found.to_string())),
    );
    if let Some(config) = &loaded.config {
        let found = config_command::warnings(&[], config, Mode::made_for(config));
        report.findings.extend(
            found
                .into_iter()
                .map(|found| Finding::note("config", found.message)),
        );
        report
            .findings
            .extend(settings::look(args.config.as_deref(), config));
        report.findings.extend(of_redis(config));
    }
    let mut cannot = false;
    match site.and_then(|site| site.findings()) {
        Ok(found) => report.findings.extend(found.findings),
        Err(why) => {
            cannot = args.url.is_some();
            report.not_looked_at.push(why);
        }
    }
    match args.format {
        Format::Json => print(terminal::json(&report)),
        Format::Text => show(&report),
    }
    match mistakes(&report) == 0 {
        _ if cannot => ExitCode::from(CANNOT),
        true => ExitCode::SUCCESS,
        false => ExitCode::from(NO),
    }
}

/// How many findings are more than notes.
fn mistakes(report: &Report) -> usize {
    report
        .findings
        .iter()
        .filter(|finding| !finding.note)
        .count()
}

fn show(report: &Report) {
    for Finding { code, says, note } in &report.findings {
        let note = if *note { " (a note)" } else { "" };
        print(format_args!("{}{note}: {}\n", escape(code), escape(says)));
    }
    for why in &report.not_looked_at {
        print(format_args!("not looked at: {}\n", escape(why)));
    }
    print(match mistakes(report) {
        0 => "nothing to complain of\n".to_owned(),
        many => format!("{}\n", config_command::many(many, "finding", "findings")),
    });
}

/// Only whether a server is there and ready, for those who ask every few seconds.
fn probe(site: Result<DoctorTarget, String>) -> ExitCode {
    match site.and_then(|site| site.get(READY)) {
        Ok((200, _)) => ExitCode::SUCCESS,
        Ok((_, said)) => {
            said.lines().for_each(|line| eprintln!("{}", escape(line)));
            ExitCode::from(NO)
        }
        Err(why) => {
            eprintln!("{}", escape(&why));
            ExitCode::from(NO)
        }
    }
}

fn of_redis(config: &Config) -> Vec<Finding> {
    let Some(redis) = &config.store.redis else {
        return Vec::new();
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(redis::look(config, redis)),
        Err(error) => vec![Finding::new(
            "system",
            format!("nothing can be asked of Redis: {error}; try again later"),
        )],
    }
}
