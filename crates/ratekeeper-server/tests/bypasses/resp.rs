//! Bypasses of a limit over RESP: commands that reset a key, or make a browser do so. A new one is
//! a line of [`ATTEMPTS`].

use crate::support::{Server, config_file, ratekeeper};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const CONFIG: &str = "[server]\nhttp = \"127.0.0.1:0\"\nadmin_token = \"0123456789abcdef\"\n\
                      [[policy]]\nname = \"user\"\nkey = \"user\"\nlimit = \"1/d\"\n";

/// The bytes sent on a connection of its own. None of them may make the key `ann` allowed again.
const ATTEMPTS: &[&str] = &[
    "RATEKEEPER.RESET user ann\r\n",
    "ratekeeper.reset user ann\r\n",
    "*3\r\n$16\r\nRATEKEEPER.RESET\r\n$4\r\nuser\r\n$3\r\nann\r\n",
    "RESET\r\n",
    "RESET\r\nRATEKEEPER.RESET user ann\r\n",
    "AUTH default any\r\nRATEKEEPER.RESET user ann\r\n",
    "AUTH \"\"\r\nRATEKEEPER.RESET user ann\r\n",
    "AUTH 0123456789abcdeg\r\nRATEKEEPER.RESET user ann\r\n",
    "AUTH 0123456789abcdef0\r\nRATEKEEPER.RESET user ann\r\n",
    "AUTH admin 0123456789abcdef\r\nRATEKEEPER.RESET user ann\r\n",
    "HELLO 3 AUTH default any\r\nRATEKEEPER.RESET user ann\r\n",
    "HELLO 3 AUTH default 0123456789abcdef NOPE x\r\nRATEKEEPER.RESET user ann\r\n",
    "AUTH 0123456789abcdef\r\nRESET\r\nRATEKEEPER.RESET user ann\r\n",
    // A web page makes a browser that knows the token send these.
    "POST / HTTP/1.1\r\nHost: x\r\n\r\nAUTH 0123456789abcdef\r\nRATEKEEPER.RESET user ann\r\n",
    "PUT / HTTP/1.1\r\nX: 1\r\n\r\nAUTH 0123456789abcdef\r\nRATEKEEPER.RESET user ann\r\n",
    "GET / HTTP/1.1\r\nX: 1\r\n\r\nAUTH 0123456789abcdef\r\nRATEKEEPER.RESET user ann\r\n",
    "Host: x\r\nAUTH 0123456789abcdef\r\nRATEKEEPER.RESET user ann\r\n",
];

/// Everything that the server answers.
fn answers(at: SocketAddr, bytes: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    // The server may close before it has read all of it.
    let _ = stream.write_all(bytes.as_bytes());
    let _ = stream.write_all(b"QUIT\r\n");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn resp_stops_every_bypass() {
    let mut command = ratekeeper();
    command
        .arg("serve")
        .arg("--config")
        .arg(config_file(CONFIG))
        .env("RATEKEEPER_SERVER__RESP", "127.0.0.1:0");
    let server = Server::run(command);
    let at = server.resp();
    let passes = || answers(at, "RATEKEEPER.CHECK user ann\r\n").starts_with("*5\r\n:0\r\n");
    assert!(passes() && !passes());
    for attempt in ATTEMPTS {
        let answer = answers(at, attempt);
        assert!(
            !passes(),
            "{attempt:?} is answered with {answer:?}, and the key is allowed again"
        );
    }
    assert!(
        answers(at, "AUTH 0123456789abcdef\r\nRATEKEEPER.RESET user ann\r\n")
            .starts_with("+OK\r\n+OK\r\n")
    );
    assert!(passes());
}
