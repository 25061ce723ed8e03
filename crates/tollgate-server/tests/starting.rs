//! Starting: what is printed, what is refused and how.

mod support;

use std::net::TcpListener;
use std::process::Command;
use support::{Server, config_file, refused, told, tollgate};

#[test]
fn it_prints_where_it_listens_and_three_lines_to_try() {
    let server = Server::start();
    let address = server.address;
    assert_ne!(address.port(), 0);
    let version = env!("CARGO_PKG_VERSION");
    assert!(server.welcome.starts_with(&format!("tollgate {version} serves HTTP on http://{address}\n")));
    let lines: Vec<_> = server.welcome.lines().filter(|line| line.starts_with("  ")).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line.contains(&format!("http://{address}/v1/throttle"))));
}

#[test]
fn the_lines_to_try_limit_whoever_tries_them() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("skipped: there is no curl here");
        return;
    }
    let server = Server::start();
    let tried = server.welcome.lines().filter(|line| line.starts_with("  ")).map(|line| {
        let output = Command::new("sh").arg("-c").arg(line).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    });
    let tried: Vec<_> = tried.collect();
    assert!(tried[0].starts_with(r#"{"allowed":true,"limit":5,"remaining":4,"used":1,"#), "{}", tried[0]);
    let allowed: Vec<_> = tried[1].lines().map(|line| line.starts_with(r#"{"allowed":true,"#)).collect();
    assert_eq!(allowed, [true, true, true, true, false, false], "{}", tried[1]);
    assert!(tried[2].starts_with("HTTP/1.1 429 Too Many Requests"), "{}", tried[2]);
    assert!(tried[2].contains("\nretry-after: "), "{}", tried[2]);
}

/// `tollgate --config F` and `tollgate serve --config F` are the same.
#[test]
fn no_command_means_serve() {
    let mut command = tollgate();
    command.arg("--config").arg(config_file("[server]\nhttp = \"127.0.0.1:0\"\n"));
    assert_eq!(Server::run(command).request("GET", "/readyz", "").status(), 200);
}

#[test]
fn it_says_its_version() {
    for word in ["version", "--version"] {
        let output = tollgate().arg(word).output().unwrap();
        assert!(output.status.success());
        assert_eq!(output.stdout, format!("tollgate {}\n", env!("CARGO_PKG_VERSION")).as_bytes());
    }
}

#[test]
fn a_wrong_command_line_is_code_2_with_the_usage() {
    for args in [&["serf"][..], &["serve", "--confg", "x"], &["serve", "--config"], &["version", "extra"]] {
        let (code, text) = told(&tollgate().args(args).output().unwrap());
        assert_eq!(code, Some(2), "{text}");
        assert!(text.starts_with("error: "), "{text}");
    }
}

#[test]
fn an_unreadable_config_is_code_2() {
    let (code, text) = told(&tollgate().args(["serve", "--config", "/no/such/file.toml"]).output().unwrap());
    assert_eq!(code, Some(2));
    assert_eq!(
        text,
        "tollgate: cannot read the config file /no/such/file.toml: No such file or directory (os error 2); give \
         --config a readable TOML file\n"
    );
}

#[test]
fn a_wrong_config_is_code_2_with_file_line_and_key() {
    for (config, problem) in [
        (
            "[server]\nhttp = \"127.0.0.1:0\"\nport = 1\n",
            ", line 3: unknown key `port`, expected one of `http`, `grpc`, `resp`, `admin`\n",
        ),
        ("[limits]\n", ", line 1: unknown key `limits`, expected `server`\n"),
        (
            "[server]\nhttp = \"localhost:8080\"\n",
            ", line 2: \"localhost:8080\" is not an address; write an IP address and a port, as in \"127.0.0.1:8080\" \
             or \"[::1]:8080\"\n",
        ),
        ("[server]\nhttp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:65536\"\n", ", line 3: \"127.0.0.1:65536\" is not"),
        ("[server]\nhttp = 8080\n", ", line 2: invalid type: integer `8080`, expected an address as text"),
        ("[server\n", ", line 1: "),
    ] {
        let (code, text) = refused(config);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.starts_with("tollgate: /") && text.contains(&format!(".toml{problem}")), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn an_address_in_use_is_code_2() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (code, text) = refused(&format!("[server]\nhttp = \"{address}\"\n"));
    assert_eq!(code, Some(2));
    assert_eq!(
        text,
        format!(
            "tollgate: cannot listen on {address}: Address already in use (os error 98); stop the program that listens \
             there, or choose another port (http under [server] in the file of --config)\n"
        )
    );
}

/// Two servers on one port would each admit the whole limit.
#[test]
fn a_second_server_on_the_same_address_is_code_2() {
    let server = Server::start();
    let (code, text) = refused(&format!("[server]\nhttp = \"{}\"\n", server.address));
    assert_eq!(code, Some(2));
    assert!(text.contains("Address already in use"), "{text}");
}

#[test]
fn an_address_of_another_machine_is_code_2() {
    let (code, text) = refused("[server]\nhttp = \"192.0.2.1:0\"\n");
    assert_eq!(code, Some(2));
    assert!(text.contains("cannot listen on 192.0.2.1:0: ") && text.contains("that this machine has"), "{text}");
}

#[test]
fn listeners_of_later_versions_are_accepted_and_said_not_to_be_served() {
    let all = "http = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:8081\"\nresp = \"127.0.0.1:6380\"\nadmin = \"[::1]:9090\"\n";
    let server = Server::with_config(&format!("[server]\n{all}"));
    server.signal("TERM");
    let (_, log) = server.ended();
    for (key, address) in [("grpc", "127.0.0.1:8081"), ("resp", "127.0.0.1:6380"), ("admin", "[::1]:9090")] {
        let line = format!("WARN server.{key} is set to {address}, but this version serves HTTP only\n");
        assert!(log.contains(&line), "{log}");
    }
}
