//! The files in docs/deploy and the Dockerfile, tested as far as this machine has the tools.

use crate::{RunningServer, TempDir, plain, run_program};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn shipped(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Whether the machine has a program that `make tools` does not install; prints that the test is
/// skipped if not.
fn has(program: &str) -> bool {
    let has = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output()
        .unwrap()
        .status
        .success();
    if !has {
        eprintln!("not checked: {program} is not installed");
    }
    has
}

#[test]
fn systemd_accepts_the_unit_and_finds_little_exposure() {
    if !has("systemd-analyze") {
        return;
    }
    let dir = TempDir::new("unit");
    // The program must exist, and is not installed here.
    let unit = shipped("docs/deploy/ratekeeper.service").replace(
        "/usr/local/bin/ratekeeper",
        env!("CARGO_BIN_EXE_ratekeeper"),
    );
    let file = dir.file("ratekeeper.service");
    fs::write(&file, unit).unwrap();
    let (success, output) = run_program("systemd-analyze", &["verify", &file]);
    assert!(
        success && !output.contains("ratekeeper.service:"),
        "{output}"
    );
    let (success, output) = run_program(
        "systemd-analyze",
        &[
            "security",
            "--offline=true",
            "--threshold=20",
            "--no-pager",
            &file,
        ],
    );
    assert!(
        success && output.contains("Overall exposure level"),
        "{output}"
    );
}

#[test]
fn the_units_stop_waits_for_the_drain() {
    let unit = shipped("docs/deploy/ratekeeper.service");
    let of = |key: &str| {
        unit.lines()
            .find_map(|line| line.strip_prefix(key))
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        (of("Type="), of("ExecReload=")),
        ("notify".to_owned(), "/bin/kill -HUP $MAINPID".to_owned())
    );
    let seconds: u64 = of("TimeoutStopSec=").trim_end_matches('s').parse().unwrap();
    let gateway = crate::config::Config::default().gateway;
    assert!(seconds > (gateway.drain_delay + gateway.drain_timeout).as_secs());
}

/// The files that the Dockerfile copies out of the repository.
fn copied() -> Vec<String> {
    let file = shipped("Dockerfile");
    let lines = file
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
        .filter(|line| !line.starts_with("--from"));
    let sources = |line: &str| {
        let words: Vec<String> = line.split(' ').map(ToOwned::to_owned).collect();
        words[..words.len() - 1].to_vec()
    };
    lines.flat_map(sources).collect()
}

#[test]
fn the_image_is_built_from_existing_files() {
    let copied = copied();
    assert!(copied.len() > 5, "{copied:?}");
    let ignored = shipped(".dockerignore");
    for source in &copied {
        assert!(root().join(source).exists(), "{source} is not there");
        let top = source.split('/').next().unwrap();
        let sent = ignored
            .lines()
            .any(|line| line == format!("!{source}") || line == format!("!{top}"));
        assert!(sent, "{source} is not sent to the build");
    }
    // Cargo requires every member, whichever package is built.
    let manifest = shipped("Cargo.toml");
    let members = manifest
        .lines()
        .find_map(|line| line.strip_prefix("members = ["))
        .unwrap();
    for member in members
        .trim_end_matches(']')
        .split(", ")
        .map(|member| member.trim_matches('"'))
    {
        assert!(
            copied
                .iter()
                .any(|source| member.starts_with(source.as_str())),
            "{member} is not copied"
        );
    }
    let (_, version) = run_program("cargo", &["--version"]);
    let version = version
        .split(' ')
        .nth(1)
        .unwrap()
        .rsplit_once('.')
        .unwrap()
        .0
        .to_owned();
    let file = shipped("Dockerfile");
    assert!(file.contains("cargo build --profile dist --locked -p ratekeeper-server"));
    let image = file
        .lines()
        .find_map(|line| line.strip_prefix("FROM rust:"))
        .unwrap();
    let number = |text: &str| {
        text.split(['.', '-'])
            .nth(1)
            .unwrap()
            .parse::<u32>()
            .unwrap()
    };
    assert!(
        number(image) >= 88,
        "{image} is older than the crates want; here is {version}"
    );
}

/// The image's root directory, created by the image's own script, has all files that the binary
/// needs. The test runs the binary in it as an unprivileged user.
#[test]
fn the_binary_runs_with_only_its_image() {
    let dir = TempDir::new("image");
    let image = dir.file("root");
    let script = root().join("scripts/image").display().to_string();
    let (success, output) = run_program(&script, &[env!("CARGO_BIN_EXE_ratekeeper"), &image]);
    assert!(success, "{output}");
    let config = Path::new(&image).join("etc/ratekeeper");
    fs::create_dir_all(&config).unwrap();
    fs::copy(
        root().join("docs/deploy/container.toml"),
        config.join("ratekeeper.toml"),
    )
    .unwrap();
    let inside = |arguments: &[&str]| {
        let mut command = Command::new("chroot");
        command
            .args(["--userspec=65532:65532", &image, "/usr/bin/ratekeeper"])
            .args(arguments)
            .env_clear();
        command
    };
    let trial = inside(&["version"]).output();
    if !trial.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("not checked: requires root ({trial:?})");
        return;
    }
    let ports = ["HTTP", "GRPC", "RESP"].map(|name| {
        (
            format!("RATEKEEPER_SERVER__{name}"),
            "127.0.0.1:0".to_owned(),
        )
    });
    let admin = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let environment: Vec<_> = ports
        .into_iter()
        .chain([("RATEKEEPER_SERVER__ADMIN".to_owned(), admin.to_string())])
        .collect();
    let file = shipped("Dockerfile");
    let words = |key: &str| -> Vec<String> {
        let line = file
            .lines()
            .find_map(|line| line.split_once(key))
            .unwrap()
            .1;
        serde_json::from_str(line).unwrap()
    };
    let probe = words("HEALTHCHECK --interval=10s --timeout=5s --start-period=5s CMD ");
    let probe: Vec<&str> = probe.iter().skip(1).map(String::as_str).collect();
    let is_ready = || {
        inside(&probe)
            .envs(environment.clone())
            .output()
            .unwrap()
            .status
            .success()
    };
    assert!(!is_ready());
    let command = words("\nCMD ")
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    let mut command = inside(&command.iter().map(String::as_str).collect::<Vec<_>>());
    command.envs(environment.clone());
    let server = RunningServer::run(command);
    assert!(is_ready());
    server.signal("TERM");
    assert!(server.ended().0.success());
}

fn manifests(name: &str) -> Vec<(String, Value)> {
    let text = shipped(name);
    let parts = text.split("\n---\n").map(|part| {
        (
            part.to_owned(),
            serde_saphyr::from_str::<Value>(part).unwrap(),
        )
    });
    parts.collect()
}

/// Every value of a manifest by its path.
fn leaves(value: &Value, path: &str, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(entries) => entries
            .iter()
            .for_each(|(key, value)| leaves(value, &format!("{path}.{key}"), found)),
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(at, value)| leaves(value, &format!("{path}[{at}]"), found));
        }
        value => {
            found.insert(path.to_owned(), value.clone());
        }
    }
}

/// kubectl parses each object into its type, without a cluster, and drops unknown fields.
#[test]
fn kubectl_knows_every_field_of_the_manifests() {
    if !has("kubectl") {
        return;
    }
    let dir = TempDir::new("kubectl");
    for (text, manifest) in manifests("docs/deploy/kubernetes.yaml") {
        let kind = manifest["kind"].as_str().unwrap();
        let file = dir.file("manifest.yaml");
        fs::write(&file, text).unwrap();
        let arguments = match kind {
            "Deployment" => ["set", "image", "ratekeeper=another"],
            "Service" => ["set", "selector", "app.kubernetes.io/name=ratekeeper"],
            _ => ["annotate", "a=b", "--overwrite"],
        };
        let (success, output) = run_program(
            "kubectl",
            &[&arguments[..], &["--local", "-o", "json", "-f", &file]].concat(),
        );
        assert!(success, "{kind}: {output}");
        let known: Value = serde_json::from_str(&output).unwrap();
        let mut written = BTreeMap::new();
        let mut kept = BTreeMap::new();
        leaves(&manifest, "", &mut written);
        leaves(&known, "", &mut kept);
        // The command must change something, or it prints nothing.
        written.retain(|path, _| !path.ends_with(".image"));
        for (path, value) in written {
            assert_eq!(kept.get(&path), Some(&value), "{kind}{path}");
        }
    }
}

#[test]
fn the_manifests_fit_together_and_to_the_server() {
    let all: BTreeMap<String, Value> = manifests("docs/deploy/kubernetes.yaml")
        .into_iter()
        .map(|(_, manifest)| (manifest["kind"].as_str().unwrap().to_owned(), manifest))
        .collect();
    let config = all["ConfigMap"]["data"]["ratekeeper.toml"]
        .as_str()
        .unwrap();
    let loaded = crate::config::Config::parse("ratekeeper.toml", config, []);
    assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
    let server = loaded.config.unwrap().server;
    let pod = &all["Deployment"]["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let port = |name: &str| {
        let ports = container["ports"].as_array().unwrap();
        ports
            .iter()
            .find(|port| port["name"] == name)
            .map(|port| port["containerPort"].as_u64().unwrap())
    };
    for (name, listener) in [
        ("http", server.http),
        ("grpc", server.grpc),
        ("admin", server.admin),
    ] {
        assert_eq!(
            listener
                .and_then(|at| at.tcp())
                .map(|at| u64::from(at.port())),
            port(name),
            "{name}"
        );
    }
    for probe in ["livenessProbe", "readinessProbe"] {
        assert!(port(container[probe]["httpGet"]["port"].as_str().unwrap()).is_some());
    }
    for published in all["Service"]["spec"]["ports"].as_array().unwrap() {
        assert!(port(published["targetPort"].as_str().unwrap()).is_some());
    }
    let labels = &all["Deployment"]["spec"]["template"]["metadata"]["labels"];
    for selector in [
        &all["Deployment"]["spec"]["selector"]["matchLabels"],
        &all["Service"]["spec"]["selector"],
        &all["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        &manifests("docs/deploy/kubernetes-monitor.yaml")[0].1["spec"]["selector"]["matchLabels"],
    ] {
        assert_eq!(selector, labels);
    }
    // Requests in flight have ten seconds after the pause.
    let pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        .as_u64()
        .unwrap();
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > pause + 10);
    // The configuration is valid here too.
    let dir = TempDir::new("manifest");
    fs::write(dir.file("ratekeeper.toml"), config).unwrap();
    let output = plain()
        .args(["config", "check", &dir.file("ratekeeper.toml")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}
