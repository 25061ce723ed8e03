//! The commands and bodies of docs/operations.md work as written.

use crate::support::{Server, config_file, ratekeeper};
use crate::{TOKEN, get, post_with};
use std::process::Command;

const GUIDE: &str = include_str!("../../../../docs/operations.md");

/// The chapter under test.
fn chapter() -> &'static str {
    let (_, rest) = GUIDE
        .split_once("\n## The admin API and `ratekeeper admin`\n")
        .expect("the chapter");
    rest.split("\n## ").next().unwrap_or(rest)
}

fn blocks(fence: &str) -> impl Iterator<Item = &'static str> {
    chapter()
        .split(fence)
        .skip(1)
        .filter_map(|rest| rest.split("\n```").next())
}

fn serve(more: &str) -> Server {
    let policies = blocks("```toml\n").next().unwrap();
    let mut command = ratekeeper();
    command.env("RATEKEEPER_SERVER__HTTP", "127.0.0.1:0");
    command
        .args(["serve", "--config"])
        .arg(config_file(&format!("{more}\n{policies}\n")));
    Server::run(command)
}

#[test]
fn every_command_works() {
    let node = serve("");
    let mut commands = 0;
    for line in blocks("```sh\n")
        .flat_map(str::lines)
        .filter(|line| line.starts_with("ratekeeper admin "))
    {
        let script = format!("ratekeeper() {{ \"$RATEKEEPER\" \"$@\" --url \"$ADMIN\"; }}\n{line}");
        let output = Command::new("sh")
            .args(["-c", &script])
            .env("RATEKEEPER", env!("CARGO_BIN_EXE_ratekeeper"))
            .env("ADMIN", format!("http://{}", node.admin))
            .output()
            .unwrap();
        assert!(
            output.status.success() && !output.stdout.is_empty(),
            "{line}: {output:?}"
        );
        commands += 1;
    }
    assert!(commands >= 13, "{commands}");
}

#[test]
fn every_body_is_accepted() {
    let settings = blocks("```toml\n").nth(1).unwrap();
    let file = config_file("").with_extension("jsonl");
    let settings = settings.replace("/var/log/ratekeeper/audit.jsonl", file.to_str().unwrap());
    let settings = settings.replace("at least sixteen bytes", TOKEN);
    let node = serve(&settings);
    let mut sent = 0;
    for line in chapter()
        .lines()
        .filter(|line| line.starts_with("| `POST /admin/"))
    {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let path = cells
            .next()
            .unwrap()
            .trim_matches('`')
            .strip_prefix("POST ")
            .unwrap();
        let body = cells
            .next()
            .unwrap()
            .strip_prefix('`')
            .and_then(|rest| rest.split_once('`'))
            .map_or("", |(body, _)| body);
        let answer = post_with(
            &node,
            path,
            &format!("Authorization: Bearer {TOKEN}\r\n"),
            body,
        );
        assert_eq!(answer.status(), 200, "{line}: {answer:?}");
        sent += 1;
    }
    assert_eq!(sent, 8);
    for line in chapter()
        .lines()
        .filter_map(|line| line.strip_prefix("| `GET "))
    {
        let path = line.split('`').next().unwrap();
        if path != "/admin/stream" {
            get(&node, path);
        }
    }
}
