//! docs/getting-started.md: each line to type is typed, and prints what the page says.

use crate::support::{Server, ratekeeper, service};
use std::process::Command;

const PAGE: &str = include_str!("../../../../docs/getting-started.md");

/// A line to type, and what it prints.
struct CommandLine {
    command: &'static str,
    output: String,
}

/// The lines that follow a `$`.
fn lines() -> Vec<CommandLine> {
    let mut lines: Vec<CommandLine> = Vec::new();
    let mut is_output = false;
    for line in PAGE.lines() {
        let code = line.strip_prefix("    ");
        if let Some(command) = code.and_then(|code| code.strip_prefix("$ ")) {
            lines.push(CommandLine {
                command,
                output: String::new(),
            });
            is_output = true;
        } else if let (Some(code), Some(last), true) = (code, lines.last_mut(), is_output) {
            last.output.push_str(code.trim());
        } else {
            is_output = false;
        }
    }
    lines
}

/// Starts the server that a command starts, on a free port.
fn start(command: &str) -> Server {
    let mut shell = Command::new("sh");
    let program = ratekeeper();
    let command = command.replacen("ratekeeper", &program.get_program().to_string_lossy(), 1);
    shell.arg("-c").arg(format!("exec {command}"));
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.env("RATEKEEPER_SERVER__HTTP", "127.0.0.1:0");
    Server::run(shell)
}

fn printed(command: &str) -> String {
    let output = Command::new("sh").arg("-c").arg(command).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Types the lines in order, each once, and returns those that print something else.
fn typed() -> Vec<String> {
    let upstream = service().to_string();
    let mut server = start("ratekeeper");
    let mut wrong = Vec::new();
    for CommandLine { command, output } in lines() {
        let here = command.replace("127.0.0.1:3000", &upstream);
        if command.starts_with("ratekeeper proxy ") {
            server = start(&here);
            continue;
        }
        let here = here.replace("127.0.0.1:8080", &server.address.to_string());
        let printed_output = printed(&here);
        if printed_output != output {
            wrong.push(format!("{command}\n{printed_output}\nis not\n{output}"));
        }
    }
    wrong
}

#[test]
fn every_line_prints_what_the_page_says() {
    let commands: Vec<&str> = lines().iter().map(|line| line.command).collect();
    assert!(
        commands.len() >= 3 && commands.iter().any(|line| line.contains("proxy")),
        "{commands:?}"
    );
    // A slow machine takes so long that a token comes back meanwhile.
    let mut wrong = Vec::new();
    for _ in 0..10 {
        wrong = typed();
        if wrong.is_empty() {
            return;
        }
    }
    panic!("{}", wrong.join("\n\n"));
}
