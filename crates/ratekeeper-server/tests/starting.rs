//! Starting: the printed text and the errors.

mod support;

use std::net::TcpListener;
use std::process::Command;
use support::{Server, config_file, exit_output, failed_start, pipe, ratekeeper};

/// Two tables have room for a million keys each, in 72 MB each, which the system hands out as they
/// are used.
#[test]
fn memory_for_keys_is_not_used_before_there_are_keys() {
    let server = Server::start();
    let used = server.memory("RssAnon:");
    assert!(used < 20 << 20, "{used} bytes at rest");
}

#[test]
fn it_prints_its_addresses_and_three_commands_to_try() {
    let server = Server::start();
    let (address, admin) = (server.address, server.admin);
    assert_ne!(address.port(), 0);
    let version = env!("CARGO_PKG_VERSION");
    assert!(server.welcome.starts_with(&format!(
        "ratekeeper {version}: HTTP listening on http://{address}\nLive page: http://{admin}/ (metrics: /metrics)\nPolicies: 100 a minute per \
         address, burst 20 (no policies are configured); store: up to 1000000 keys in memory\n"
    )));
    let lines: Vec<_> = server
        .welcome
        .lines()
        .filter(|line| line.starts_with("  "))
        .collect();
    assert_eq!(lines.len(), 3);
    assert!(
        lines
            .iter()
            .all(|line| line.contains(&format!("http://{address}/v1/")))
    );
}

#[test]
fn the_commands_to_try_are_limited() {
    let server = Server::start();
    let tried = server
        .welcome
        .lines()
        .filter(|line| line.starts_with("  "))
        .map(|line| {
            let output = Command::new("sh").arg("-c").arg(line).output().unwrap();
            assert!(output.status.success(), "{line}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        });
    let tried: Vec<_> = tried.collect();
    assert!(
        tried[0]
            .starts_with(r#"{"allowed":true,"source":"memory","reason":"limits","policy":null"#),
        "{}",
        tried[0]
    );
    let statuses: Vec<_> = tried[1].split_whitespace().collect();
    assert_eq!(statuses.len(), 30, "{}", tried[1]);
    // More than the remaining nineteen may be allowed, depending on how long thirty curls take.
    assert!(
        statuses[..19].iter().all(|status| *status == "200"),
        "{}",
        tried[1]
    );
    assert!(
        tried[2].starts_with(r#"{"allowed":true,"limit":5,"remaining":4,"used":1,"#),
        "{}",
        tried[2]
    );
}

/// `ratekeeper --config F` and `ratekeeper serve --config F` are the same.
#[test]
fn no_command_means_serve() {
    let mut command = ratekeeper();
    command
        .arg("--config")
        .arg(config_file("[server]\nhttp = \"127.0.0.1:0\"\n"));
    assert_eq!(
        Server::run(command).request("GET", "/readyz", "").status(),
        200
    );
}

#[test]
fn it_prints_its_version() {
    for word in ["version", "--version"] {
        let output = ratekeeper().arg(word).output().unwrap();
        assert!(output.status.success());
        assert_eq!(
            output.stdout,
            format!("ratekeeper {}\n", env!("CARGO_PKG_VERSION")).as_bytes()
        );
    }
}

#[test]
fn an_invalid_command_line_exits_with_2_and_the_usage() {
    for args in [
        &["serf"][..],
        &["serve", "--confg", "x"],
        &["serve", "--config"],
        &["version", "extra"],
    ] {
        let (code, text) = exit_output(&ratekeeper().args(args).output().unwrap());
        assert_eq!(code, Some(2), "{text}");
        assert!(text.starts_with("error: "), "{text}");
    }
}

/// Reading a pipe may block for ever, and a reload finds nothing in it.
#[test]
fn a_config_that_is_not_a_regular_file_is_rejected() {
    let pipe = pipe();
    for (file, kind) in [
        (pipe.to_str().unwrap(), "a pipe"),
        ("/dev/zero", "a device"),
        ("/tmp", "a directory"),
    ] {
        for command in [
            &["serve", "--config"][..],
            &["config", "check"],
            &["proxy", "--config"],
        ] {
            let output = ratekeeper().args(command).arg(file).output().unwrap();
            // The findings of `config check` are its output.
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert_eq!(output.status.code(), Some(2), "{text}");
            let message = format!("error: cannot read {file}: it is {kind}; name a regular file\n");
            assert!(text.starts_with(&message), "{command:?}: {text}");
        }
    }
}

#[test]
fn an_unreadable_config_exits_with_2() {
    let (code, text) = exit_output(
        &ratekeeper()
            .args(["serve", "--config", "/no/such/file.toml"])
            .output()
            .unwrap(),
    );
    assert_eq!(code, Some(2));
    assert_eq!(
        text,
        "error: cannot read /no/such/file.toml: No such file or directory (os error 2)\n"
    );
}

#[test]
fn an_invalid_config_exits_with_2_and_a_line_for_each_error() {
    let (code, text) = failed_start("[server]\nhttp = \"localhost:8080\"\nport = 1\n[limits]\n");
    assert_eq!(code, Some(2), "{text}");
    let lines: Vec<_> = text
        .lines()
        .map(|line| line.split_once(".toml:").unwrap().1)
        .collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("2:8: error: "), "{text}");
    assert!(
        lines[1].starts_with("3:1: error: unknown key `port` in [server]"),
        "{text}"
    );
    assert!(
        lines[2].starts_with("4:2: error: unknown key `limits`"),
        "{text}"
    );
}

#[test]
fn an_address_in_use_exits_with_2() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (code, text) = failed_start(&format!("[server]\nhttp = \"{address}\"\n"));
    assert_eq!(code, Some(2));
    assert_eq!(
        text,
        format!(
            "ratekeeper: cannot listen on {address}: Address already in use (os error 98); stop the program that listens \
             there, or choose another port (http under [server] in the file of --config, or RATEKEEPER_SERVER__HTTP)\n"
        )
    );
}

/// Two servers on one port would each allow the whole limit.
#[test]
fn a_second_server_on_the_same_address_exits_with_2() {
    let server = Server::start();
    let (code, text) = failed_start(&format!("[server]\nhttp = \"{}\"\n", server.address));
    assert_eq!(code, Some(2));
    assert!(text.contains("Address already in use"), "{text}");
}

#[test]
fn an_address_of_another_machine_exits_with_2() {
    let (code, text) = failed_start("[server]\nhttp = \"192.0.2.1:0\"\n");
    assert_eq!(code, Some(2));
    assert!(
        text.contains("cannot listen on 192.0.2.1:0: ") && text.contains("of this machine"),
        "{text}"
    );
}

#[test]
fn a_listener_that_is_not_used_is_a_warning() {
    let server =
        Server::with_config("[server]\nhttp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:8082\"\n");
    server.signal("TERM");
    let (_, log) = server.ended();
    let line = "WARN server.grpc is set to 127.0.0.1:8082, but nothing listens there unless `config` in [envoy] is set (ratekeeper serve)\n";
    assert!(log.contains(line), "{log}");
}

#[test]
fn one_listener_can_be_off_but_not_all() {
    let mut command = ratekeeper();
    command
        .env("RATEKEEPER_SERVER__ADMIN", "off")
        .env("RATEKEEPER_SERVER__HTTP", "127.0.0.1:0");
    let server = Server::run(command);
    assert!(!server.welcome.contains("Metrics"), "{}", server.welcome);
    let mut command = ratekeeper();
    command
        .env("RATEKEEPER_SERVER__ADMIN", "off")
        .env("RATEKEEPER_SERVER__HTTP", "off");
    let (code, text) = exit_output(&command.output().unwrap());
    assert_eq!(
        (code, &*text),
        (
            Some(2),
            "ratekeeper: every listener is off; set http under [server] to an address\n"
        )
    );
}
