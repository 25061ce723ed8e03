//! `make bench`: measures the cost of a decision, ours and the peers', in the same run.
//!
//! Without arguments every group runs; with names, those groups. See bench/README.md.

mod bare_server;
mod cpu_time;
mod go;
mod groups;
mod harness;
mod instructions;
mod keys;
mod peers;
mod policies;
mod programs;
mod quick;
mod report;
#[allow(unreachable_pub, reason = "shared with another program")]
mod web;

use groups::{GROUPS, envoy, keyed, middleware, resp};
use report::Report;
use std::process::ExitCode;

const USAGE: &str = "usage: ratekeeper-bench [GROUP…] [--save] | --quick | --list | --instructions";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["--help" | "-h"] => println!("{USAGE}"),
        ["--list"] => GROUPS
            .iter()
            .for_each(|group| println!("{}: {}", group.name, group.about)),
        ["--instructions"] => return instructions::report(),
        [instructions::CHILD, case, calls] => return instructions::run(case, calls),
        [keyed::CHILD, competitor, kind, keys] => return keyed::child(competitor, kind, keys),
        [envoy::CHILD] => return envoy::child(),
        [resp::CHILD] => return resp::child(),
        [middleware::NO_SOCKET, competitor, requests] => {
            return middleware::no_socket(competitor, requests);
        }
        ["--quick"] => {
            harness::set_quick();
            return run(&quick::GROUPS, false);
        }
        [ref names @ .., "--save"] => return run(names, true),
        ref names => return run(names, false),
    }
    ExitCode::SUCCESS
}

/// Runs groups and prints their tables; `save` stores the data of the plots in the docs.
fn run(names: &[&str], save: bool) -> ExitCode {
    if let Some(unknown) = names
        .iter()
        .find(|name| !GROUPS.iter().any(|group| group.name == **name))
    {
        eprintln!("unknown group {unknown:?}; --list shows all groups\n{USAGE}");
        return ExitCode::from(2);
    }
    let mut report = Report::default();
    for group in GROUPS
        .iter()
        .filter(|group| names.is_empty() || names.contains(&group.name))
    {
        println!("## {}: {}\n", group.name, group.about);
        report.add((group.run)(group.name));
    }
    report.print_goals();
    let plotted = if save {
        report.save()
    } else {
        report.write_quick()
    };
    let written = plotted.and_then(|mut paths| {
        paths.push(report.write()?);
        Ok(paths)
    });
    match written {
        Ok(paths) => {
            paths
                .iter()
                .for_each(|path| println!("written: {}", path.display()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot write the results: {error}");
            ExitCode::FAILURE
        }
    }
}
