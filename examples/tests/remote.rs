//! The example of a remote tollgate: without one it says so and goes on.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

/// Cargo builds examples before tests, next to them, and does not say where.
fn example() -> Command {
    let test = std::env::current_exe().unwrap();
    let program: PathBuf = test.ancestors().nth(2).unwrap().join("examples").join("remote");
    assert!(program.exists(), "{} is not there; `cargo test -p tollgate-examples` builds it", program.display());
    Command::new(program)
}

#[test]
fn without_a_tollgate_it_goes_on() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = example().arg(format!("http://{nobody}")).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{told}");
    assert!(told.contains("decided by local_share") && told.contains("see that it runs"), "{told}");
}

#[test]
fn a_wrong_address_is_told_in_a_sentence() {
    let output = example().arg("127.0.0.1:8080").output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("write it like http://127.0.0.1:8080"));
}
