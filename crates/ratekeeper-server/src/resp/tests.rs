//! Sessions without a socket: the replies to some bytes, however they are split.

use super::connection::IDLE_TIMEOUT;
use super::session::{MAX_COMMAND_BYTES, Password, Session, Step, Totals};
use super::{Options, RespServer, serve};
use crate::app::App;
use crate::config::{Config, KeyDisplay};
use crate::store::AnyStore;
use proptest::prelude::*;
use ratekeeper::{Clock, ManualClock, MemoryStore, keyed::KeyedGcra};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

struct Server {
    gcra: KeyedGcra<ManualClock>,
    clock: ManualClock,
    password: Option<Password>,
}

/// The result of some bytes.
#[derive(PartialEq, Debug)]
struct SessionResult {
    out: String,
    closed: bool,
    totals: Totals,
}

impl Server {
    fn new() -> Self {
        let clock = ManualClock::new();
        Self {
            gcra: KeyedGcra::builder()
                .max_keys(1_000)
                .clock(clock.clone())
                .build(),
            clock,
            password: None,
        }
    }

    /// A session with a password.
    fn with_password(password: &'static [u8]) -> Self {
        Self {
            password: Some(Arc::new(move |given: &[u8]| given == password)),
            ..Self::new()
        }
    }

    /// Whether a client that sends these bytes is authenticated then.
    fn authenticates(&self, bytes: &[u8]) -> bool {
        let mut session = Session::new(7, self.password.clone());
        session.run(
            bytes,
            &self.gcra,
            self.clock.now(),
            &mut Totals::default(),
            &mut Vec::new(),
        );
        session.is_authenticated()
    }

    /// Runs all pieces on one connection. A policy command is recorded and not decided.
    fn pieces<'a>(&self, pieces: impl IntoIterator<Item = &'a [u8]>) -> SessionResult {
        let (mut session, mut begun, mut out) = (
            Session::new(7, self.password.clone()),
            Vec::new(),
            Vec::new(),
        );
        let (mut totals, mut closed) = (Totals::default(), false);
        for piece in pieces {
            begun.extend_from_slice(piece);
            loop {
                let mut sent = Vec::new();
                let (consumed, step) =
                    session.run(&begun, &self.gcra, self.clock.now(), &mut totals, &mut sent);
                begun.drain(..consumed);
                out.append(&mut sent);
                match step {
                    Step::Next | Step::Send => {}
                    Step::Read => break,
                    Step::Close => {
                        closed = true;
                        break;
                    }
                    Step::Policy(verb) => {
                        let (arguments, length) = session.arguments(&begun);
                        let words: Vec<_> = arguments.iter().map(String::from_utf8_lossy).collect();
                        out.extend_from_slice(format!("{verb:?} {words:?}\r\n").as_bytes());
                        session.policy_done();
                        begun.drain(..length);
                    }
                }
            }
            if closed {
                break;
            }
            assert!(
                begun.len() <= MAX_COMMAND_BYTES,
                "{} bytes are kept",
                begun.len()
            );
        }
        SessionResult {
            out: String::from_utf8_lossy(&out).into_owned(),
            closed,
            totals,
        }
    }

    fn bytes(&self, bytes: &[u8]) -> SessionResult {
        self.pieces([bytes])
    }

    /// Inline commands and their expected replies.
    #[track_caller]
    fn says(&self, lines: &str, answer: &str) {
        let answered = self.bytes(lines.as_bytes());
        assert_eq!(answered.out, answer.replace('\n', "\r\n"), "{lines:?}");
    }
}

/// A command as an array of bulk strings.
fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn words(line: &str) -> Vec<u8> {
    command(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

/// (milliseconds that pass, the call, limited, limit, remaining, retry_after, reset_after): calculated
/// by hand from TAT = max(now, TAT) + quantity · T, tolerance = limit · T.
#[test]
fn five_numbers_match_redis_cell() {
    let server = Server::new();
    for (pass, call, expected) in [
        // A limit of 5, one a second.
        (0, "a 4 1 1 6", [1, 5, 5, -1, 0]),
        (0, "a 4 1 1", [0, 5, 4, -1, 1]),
        (0, "a 4 1 1 3", [0, 5, 1, -1, 4]),
        (0, "a 4 1 1", [0, 5, 0, -1, 5]),
        (0, "a 4 1 1", [1, 5, 0, 1, 5]),
        (0, "a 4 1 1 5", [1, 5, 0, 5, 5]),
        (0, "a 4 1 1 0", [0, 5, 0, -1, 5]),
        // 1.5 s later 1.5 are refilled; seconds are rounded up.
        (1_500, "a 4 1 1 0", [0, 5, 1, -1, 4]),
        (0, "a 4 1 1", [0, 5, 0, -1, 5]),
        (0, "a 4 1 1", [1, 5, 0, 1, 5]),
        (60_000, "a 4 1 1 0", [0, 5, 5, -1, 0]),
        // Another key is another state; the numbers of redis-cell's manual.
        (0, "b 15 30 60 1", [0, 16, 15, -1, 2]),
        (0, "b 15 30 60 1", [0, 16, 14, -1, 4]),
        // The arrival time stays when the numbers change: 4 s ahead, of which 1/s with a limit of 3
        // allow none.
        (0, "b 2 1 1 0", [1, 3, 0, 1, 4]),
        (0, "b 2 1 1 1", [1, 3, 0, 2, 4]),
        (0, "b 9 1 1 1", [0, 10, 5, -1, 5]),
        // Intervals below a microsecond, and below a nanosecond.
        (0, "c 9 10000000 1", [0, 10, 9, -1, 0]),
        (0, "c2 99 1000000000 1 40", [0, 100, 60, -1, 0]),
        (0, "c3 9 9223372036854775807 1", [0, 10, 9, -1, 0]),
        // Numbers as large as there are: what takes longer than 142 years is not counted.
        (
            0,
            "d 9223372036854775807 9223372036854775807 9223372036854775807",
            [0, i64::MAX, 4_503_599_626, -1, 1],
        ),
        (
            0,
            "e 9223372036854775807 1000000000 1 9223372036854775807",
            [1, i64::MAX, 4_503_599_627_370_496_000, -1, 0],
        ),
        (0, "f 0 1 4000000000", [0, 1, 0, -1, 4_000_000_000]),
        (
            0,
            "f 0 1 4000000000",
            [1, 1, 0, 4_000_000_000, 4_000_000_000],
        ),
    ] {
        server.clock.advance(Duration::from_millis(pass));
        let expected = expected.map(|number: i64| format!(":{number}\n")).concat();
        server.says(
            &format!("CL.THROTTLE {call}\r\n"),
            &format!("*5\n{expected}"),
        );
    }
}

#[test]
fn less_than_a_millisecond_is_zero_seconds() {
    let server = Server::new();
    server.says("cl.throttle a 0 1 1\n", "*5\n:0\n:1\n:0\n:-1\n:1\n");
    server.clock.advance(Duration::from_nanos(999_000_001));
    server.says("cl.throttle a 0 1 1\n", "*5\n:1\n:1\n:0\n:0\n:0\n");
    server.clock.advance(Duration::from_nanos(999_999));
    server.says("cl.throttle a 0 1 1\n", "*5\n:0\n:1\n:0\n:-1\n:1\n");
}

#[test]
fn an_invalid_call_gets_an_error() {
    let server = Server::new();
    let usage = "-ERR usage: CL.THROTTLE <key> <max_burst> <count per period> <period in seconds> [<quantity>]\n";
    for (call, expected) in [
        ("", usage),
        (" a", usage),
        (" a 1 1", usage),
        (" a 1 1 1 1 1", usage),
        (" a x 1 1", "-ERR couldn't parse as integer: x\n"),
        (" a 1 1.5 1", "-ERR couldn't parse as integer: 1.5\n"),
        (" a 1 1 \"\"", "-ERR couldn't parse as integer: \n"),
        (
            " a 1 1 1 9223372036854775808",
            "-ERR couldn't parse as integer: 9223372036854775808\n",
        ),
        (
            " a \"1\\r\\n+OK\" 1 1",
            "-ERR couldn't parse as integer: 1\\r\\n+OK\n",
        ),
        (" a -1 1 1", "-ERR max_burst must not be negative\n"),
        (
            " a 1 1 1 -9223372036854775808",
            "-ERR quantity must not be negative\n",
        ),
        (" a 1 -1 1", "-ERR count must not be negative\n"),
        (" a 1 0 1", "-ERR count must be more than zero\n"),
        (" a 1 1 0", "-ERR period must be more than zero\n"),
        (
            " a 1 1 9223372036854775807",
            "-ERR period / count is longer than 142 years; use a shorter period\n",
        ),
    ] {
        server.says(&format!("CL.THROTTLE{call}\r\n"), expected);
    }
    assert_eq!(
        server.bytes(b"CL.THROTTLE a x 1 1\r\n").totals,
        Totals::default()
    );
}

#[test]
fn calls_that_charge_are_counted() {
    let calls = "CL.THROTTLE a 0 1 1\r\n".repeat(3) + "CL.THROTTLE a 0 1 1 0\r\n";
    assert_eq!(
        Server::new().bytes(calls.as_bytes()).totals,
        Totals {
            allowed: 1,
            denied: 2
        }
    );
}

#[test]
fn connection_commands_of_clients_are_supported() {
    let server = Server::new();
    let hello = |kind: &str, proto: u8| {
        let fields = "$6\nserver\n$10\nratekeeper\n$7\nversion\n$5\n7.2.4\n$5\nproto\n:P\n$2\nid\n:7\n$4\nmode\n$10\nstandalone\n\
                      $4\nrole\n$6\nmaster\n$7\nmodules\n*0\n";
        format!("{kind}{}", fields.replace(":P", &format!(":{proto}")))
    };
    for (said, expected) in [
        ("PING\r\n", "+PONG\n".to_owned()),
        ("ping \"a b\"\r\n", "$3\na b\n".into()),
        ("PING a b\r\n", "-ERR wrong number of arguments for 'ping' command\n".into()),
        ("ECHO x\r\n", "$1\nx\n".into()),
        ("ECHO\r\n", "-ERR wrong number of arguments for 'echo' command\n".into()),
        ("SELECT 0\r\nSELECT 1\r\nSELECT x\r\n", "+OK\n-ERR DB index is out of range\n-ERR value is not an integer or out of range\n".into()),
        ("HELLO\r\n", hello("*14\n", 2)),
        ("HELLO 2\r\n", hello("*14\n", 2)),
        ("HELLO 3\r\nCLIENT GETNAME\r\n", hello("%7\n", 3) + "_\n"),
        ("HELLO 3 AUTH default x SETNAME me\r\nCLIENT GETNAME\r\n", hello("%7\n", 3) + "$2\nme\n"),
        ("HELLO 4\r\n", "-NOPROTO unsupported protocol version\n".into()),
        ("HELLO x\r\n", "-ERR Protocol version is not an integer or out of range\n".into()),
        ("HELLO 3 AUTH me x\r\nCLIENT GETNAME\r\n", "-WRONGPASS invalid username-password pair or user is disabled.\n$-1\n".into()),
        ("HELLO 3 SETNAME\r\n", "-ERR Syntax error in HELLO option 'SETNAME'\n".into()),
        ("AUTH x\r\n", "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?\n".into()),
        ("AUTH default x\r\n", "+OK\n".into()),
        ("AUTH me x\r\n", "-WRONGPASS invalid username-password pair or user is disabled.\n".into()),
        ("CLIENT ID\r\n", ":7\n".into()),
        ("CLIENT SETNAME me\r\nCLIENT GETNAME\r\nRESET\r\nCLIENT GETNAME\r\n", "+OK\n$2\nme\n+RESET\n$-1\n".into()),
        ("CLIENT SETNAME \"a b\"\r\n", "-ERR Client names cannot contain spaces, newlines or special characters.\n".into()),
        ("CLIENT SETINFO LIB-NAME redis-py\r\n", "+OK\n".into()),
        ("CLIENT NO-EVICT on\r\nCLIENT NO-TOUCH off\r\n", "+OK\n+OK\n".into()),
        ("CLIENT SETNAME\r\n", "-ERR wrong number of arguments for 'client|setname' command\n".into()),
        ("CLIENT LIST\r\n", "$23\nid=7 name= db=0 resp=2\n\n".into()),
        ("CLIENT X\r\n", "-ERR unknown subcommand 'x'. Try CLIENT HELP.\n".into()),
        ("COMMAND COUNT\r\n", ":19\n".into()),
        ("COMMAND INFO cl.throttle nope\r\n", "*2\n*10\n$11\ncl.throttle\n:-5\n*1\n+fast\n:1\n:1\n:1\n*0\n*0\n*0\n*0\n$-1\n".into()),
        ("COMMAND DOCS ping\r\n", "*2\n$4\nping\n*2\n$7\nsummary\n$13\nHealth check.\n".into()),
        ("GET a\r\n", "-ERR unknown command 'GET', with args beginning with: 'a' \n".into()),
        ("FOO\r\n", "-ERR unknown command 'FOO', with args beginning with: \n".into()),
        ("RATEKEEPER.CHECK api me 2\r\n", "Check [\"RATEKEEPER.CHECK\", \"api\", \"me\", \"2\"]\n".into()),
        ("RATEKEEPER.PEEK api\r\n", "-ERR wrong number of arguments for 'ratekeeper.peek' command\n".into()),
        ("RATEKEEPER.RESET api me 2\r\n", "-ERR wrong number of arguments for 'ratekeeper.reset' command\n".into()),
    ] {
        let answered = server.bytes(said.as_bytes());
        assert_eq!(answered.out.replace("\r\n", "\n"), expected, "{said:?}");
        assert!(!answered.closed, "{said:?}");
    }
    let quit = server.bytes(b"QUIT\r\nPING\r\n");
    assert_eq!((quit.out.as_str(), quit.closed), ("+OK\r\n", true));
}

#[test]
fn auth_and_hello_check_the_password_and_reset_clears_it() {
    let (open, server) = (Server::new(), Server::with_password(b"s3cret"));
    for (lines, expected, is_authenticated) in [
        ("AUTH s3cret\r\n", "+OK\n", true),
        ("AUTH default s3cret\r\n", "+OK\n", true),
        ("AUTH s3cret\r\nRESET\r\n", "+OK\n+RESET\n", false),
        // Only a RESET ends it.
        (
            "AUTH s3cret\r\nAUTH wrong\r\n",
            "+OK\n-WRONGPASS invalid username-password pair or user is disabled.\n",
            true,
        ),
        (
            "AUTH wrong\r\n",
            "-WRONGPASS invalid username-password pair or user is disabled.\n",
            false,
        ),
        (
            "AUTH me s3cret\r\n",
            "-WRONGPASS invalid username-password pair or user is disabled.\n",
            false,
        ),
        ("AUTH default s3cret x\r\n", "-ERR syntax error\n", false),
        (
            "HELLO 3 AUTH default wrong\r\n",
            "-WRONGPASS invalid username-password pair or user is disabled.\n",
            false,
        ),
        (
            "HELLO 3 AUTH default s3cret NOPE x\r\n",
            "-ERR Syntax error in HELLO option 'NOPE'\n",
            false,
        ),
        ("PING\r\n", "+PONG\n", false),
    ] {
        server.says(lines, expected);
        assert_eq!(
            server.authenticates(lines.as_bytes()),
            is_authenticated,
            "{lines:?}"
        );
    }
    assert!(server.authenticates(b"HELLO 3 AUTH default s3cret\r\n"));
    for any in [
        "AUTH default s3cret\r\n",
        "HELLO 3 AUTH default s3cret\r\n",
        "AUTH s3cret\r\n",
    ] {
        assert!(
            !open.authenticates(any.as_bytes()),
            "nobody is an operator by a password that there is not: {any:?}"
        );
    }
}

/// A web page makes a browser send what it likes in the body of a request to this port.
#[test]
fn an_http_request_gets_an_error_and_runs_no_command() {
    let server = Server::new();
    let body = "CL.THROTTLE k 1 1 60\r\nRATEKEEPER.CHECK api me\r\n";
    let heads = [
        "POST / HTTP/1.1\r\n",
        "post /x\r\n",
        "POST\r\n",
        "Host: example.com\r\n",
        "HOST: x\r\n",
        "*1\r\n$4\r\nPOST\r\n",
        "*2\r\n$5\r\nHost:\r\n$1\r\nx\r\n",
        "GET / HTTP/1.1\r\n",
        "GET /a?b HTTP/1.0\n",
        "PUT http://127.0.0.1:6380/ HTTP/1.1\r\n",
        "OPTIONS * HTTP/1.1\r\n",
        "PRI * HTTP/2.0\r\n",
        "ECHO /x HTTP/1.1\r\n",
    ];
    for head in heads {
        let answered = server.bytes(format!("{head}{body}").as_bytes());
        assert!(
            answered.closed
                && answered
                    .out
                    .starts_with("-ERR Protocol error: this is an HTTP request"),
            "{head:?}"
        );
        assert_eq!(
            (answered.out.lines().count(), answered.totals),
            (1, Totals::default()),
            "{head:?}"
        );
    }
    // Words of HTTP can still be keys.
    server.says("ECHO HTTP/1.1\r\n", "$8\nHTTP/1.1\n");
    server.says(
        "RATEKEEPER.CHECK api HTTP/1.1\r\n",
        "Check [\"RATEKEEPER.CHECK\", \"api\", \"HTTP/1.1\"]\n",
    );
    assert!(!server.bytes(&words("CL.THROTTLE POST 1 1 60")).closed);
}

#[test]
fn empty_commands_are_ignored() {
    let server = Server::new();
    assert_eq!(
        server
            .bytes(b"\r\n\n*0\r\n*-1\r\n  \r\n*1\r\n$4\r\nPING\r\n")
            .out,
        "+PONG\r\n"
    );
}

#[test]
fn a_protocol_error_closes_the_connection() {
    let server = Server::new();
    let long = [b"PING ".to_vec(), vec![b'x'; 70_000]].concat();
    let many = words(&"a ".repeat(1024));
    let big = [
        b"*9\r\n".to_vec(),
        format!("$65536\r\n{}\r\n", "x".repeat(65_536))
            .repeat(2)
            .into_bytes(),
    ]
    .concat();
    for (bytes, expected) in [
        (&b"*x\r\n"[..], "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*1\r$", "invalid multibulk length"),
        (b"*1048577\r\n", "invalid multibulk length"),
        (
            b"*99999999999999999999999999999999999999",
            "invalid multibulk length",
        ),
        (&many, "invalid multibulk length"),
        (b"*1\r\n+OK\r\n", "expected '$', got '+'"),
        (b"*1\r\n\r\n", "expected '$', got '\\r'"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$536870912\r\n", "invalid bulk length"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$9223372036854775808\r\n", "invalid bulk length"),
        (b"*1\r\n$4\r\nPINGPING", "a bulk string must end with CRLF"),
        (b"*1\r\n$4\r\nPINGx", "a bulk string must end with CRLF"),
        (&big, "a command may have at most 131072 bytes"),
        (&long, "too big inline request"),
        (b"PING \"a\r\n", "unbalanced quotes in request"),
        (b"PING \"a\"b\r\n", "unbalanced quotes in request"),
        (b"PING a\"b\r\n", "unbalanced quotes in request"),
    ] {
        let answered = server.bytes(&[b"PING\r\n", bytes].concat());
        assert_eq!(
            answered.out,
            format!("+PONG\r\n-ERR Protocol error: {expected}\r\n"),
            "{:.40?}",
            bytes.escape_ascii()
        );
        assert!(answered.closed);
    }
}

#[test]
fn an_incomplete_command_waits_for_the_rest() {
    let server = Server::new();
    let whole = words("CL.THROTTLE key 15 30 60");
    for end in 0..whole.len() {
        let answered = server.bytes(&whole[..end]);
        assert_eq!(
            (answered.out.as_str(), answered.closed),
            ("", false),
            "{end} bytes"
        );
    }
    assert!(server.bytes(&whole).out.starts_with("*5\r\n:0\r\n"));
}

#[test]
fn quoted_words_are_parsed_as_in_redis_cli() {
    let server = Server::new();
    let answered = server.bytes(b"ECHO \"a\\x00\\n\\\"'\\q\"\r\nECHO '\\'\\n\"'\r\n");
    assert_eq!(answered.out, "$6\r\na\0\n\"'q\r\n$4\r\n'\\n\"\r\n");
}

/// Valid, almost valid and invalid commands.
fn traffic() -> impl Strategy<Value = Vec<u8>> {
    let throttle = (0_u8..3, 0_i64..4, -1_i64..4, -1_i64..4, -1_i64..4).prop_map(
        |(key, burst, count, period, quantity)| {
            words(&format!(
                "CL.THROTTLE k{key} {burst} {count} {period} {quantity}"
            ))
        },
    );
    let known = prop::sample::select(vec![
        "PING",
        "HELLO 3",
        "HELLO 2",
        "CLIENT ID",
        "COMMAND",
        "RESET",
        "GET a",
        "RATEKEEPER.CHECK a b",
        "INFO",
        "MULTI",
        "MULTI",
        "EXEC",
        "EXEC",
        "DISCARD",
    ]);
    let line = known
        .clone()
        .prop_map(|line| format!("{line}\r\n").into_bytes());
    let quoted = Just(b"ECHO \"a\\x41 b\" \r\nECHO 'c'\n".to_vec());
    let odd = prop::collection::vec(prop::sample::select(b"*$1234\r\n-+:x \"'".to_vec()), 0..12);
    let some = prop_oneof![
        8 => throttle,
        4 => known.prop_map(words),
        3 => line,
        1 => quoted,
        1 => Just(b"\r\n*0\r\n".to_vec()),
        1 => odd,
    ];
    prop::collection::vec(some, 0..12).prop_map(|all| all.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_split_of_the_bytes_gives_the_same_replies(
        bytes in traffic(),
        mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let whole = Server::new().bytes(&bytes);
        let mut cuts: Vec<usize> = cuts.drain(..).map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        prop_assert_eq!(&Server::new().pieces(pieces), &whole);
        prop_assert_eq!(&Server::new().pieces(bytes.chunks(1)), &whole);
    }

    #[test]
    fn arbitrary_bytes_get_a_reply_or_wait(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        Server::new().bytes(&bytes);
    }
}

#[test]
fn output_of_pipelined_commands_is_bounded() {
    let server = Server::new();
    let many = b"COMMAND\r\n".repeat(1_000);
    let mut session = Session::new(1, None);
    let mut out = Vec::new();
    let (consumed, step) = session.run(
        &many,
        &server.gcra,
        server.clock.now(),
        &mut Totals::default(),
        &mut out,
    );
    assert_eq!(step, Step::Send);
    assert!(
        consumed < many.len() && out.len() < 80_000,
        "{consumed} {}",
        out.len()
    );
}

#[test]
fn a_transaction_queues_commands_and_runs_them_at_exec() {
    let server = Server::new();
    let one = |key: &str| format!("CL.THROTTLE {key} 0 1 60\r\n");
    let allowed = "*5\n:0\n:1\n:0\n:-1\n:60\n";
    for (said, answer) in [
        ("MULTI\r\nEXEC\r\n".to_owned(), "+OK\n*0\n".to_owned()),
        // Replies are in order, errors too, and those to later commands follow.
        (
            format!(
                "MULTI\r\n{}RATEKEEPER.CHECK api me\r\nCL.THROTTLE a x 1 60\r\nECHO \"a b\"\r\nRATEKEEPER.PEEK api me\r\nEXEC\r\n{}PING\r\n",
                one("a"),
                one("b")
            ),
            format!(
                "+OK\n+QUEUED\n+QUEUED\n+QUEUED\n+QUEUED\n+QUEUED\n*5\n{allowed}Check [\"RATEKEEPER.CHECK\", \"api\", \"me\"]\n\
                 -ERR couldn't parse as integer: x\n$3\na b\nPeek [\"RATEKEEPER.PEEK\", \"api\", \"me\"]\n{allowed}+PONG\n"
            ),
        ),
        // A command that cannot be queued has its error at once, and nothing runs.
        (
            format!("MULTI\r\n{}GET x\r\n{}EXEC\r\n{}", one("c"), one("c"), one("c")),
            format!(
                "+OK\n+QUEUED\n-ERR unknown command 'GET', with args beginning with: 'x' \n+QUEUED\n\
                 -EXECABORT Transaction discarded because of previous errors.\n{allowed}"
            ),
        ),
        (
            "MULTI\r\nCL.THROTTLE d 0 1\r\nRATEKEEPER.CHECK\r\nEXEC\r\nEXEC\r\n".to_owned(),
            "+OK\n-ERR wrong number of arguments for 'cl.throttle' command\n\
             -ERR wrong number of arguments for 'ratekeeper.check' command\n\
             -EXECABORT Transaction discarded because of previous errors.\n-ERR EXEC without MULTI\n"
                .to_owned(),
        ),
        (
            format!("MULTI\r\n{}DISCARD\r\n{}DISCARD\r\n", one("e"), one("e")),
            format!("+OK\n+QUEUED\n+OK\n{allowed}-ERR DISCARD without MULTI\n"),
        ),
        // As in Redis, neither ends the transaction.
        (
            "MULTI\r\nMULTI\r\nWATCH a\r\nPING\r\nEXEC\r\n".to_owned(),
            "+OK\n-ERR MULTI calls can not be nested\n-ERR WATCH inside MULTI is not allowed\n+QUEUED\n*1\n+PONG\n"
                .to_owned(),
        ),
        (
            "WATCH a\r\nUNWATCH\r\nWATCH\r\n".to_owned(),
            "-ERR WATCH is not supported, since there are no values; send MULTI without it\n+OK\n\
             -ERR wrong number of arguments for 'watch' command\n"
                .to_owned(),
        ),
        (
            format!("MULTI\r\n{}RESET\r\n{}EXEC\r\n", one("f"), one("f")),
            format!("+OK\n+QUEUED\n+RESET\n{allowed}-ERR EXEC without MULTI\n"),
        ),
        // The protocol may change in between.
        (
            "MULTI\r\nCLIENT GETNAME\r\nHELLO 3 AUTH x\r\nEXEC\r\n".to_owned(),
            "+OK\n+QUEUED\n+QUEUED\n*2\n$-1\n-ERR Syntax error in HELLO option 'AUTH'\n".to_owned(),
        ),
    ] {
        let answered = server.bytes(said.as_bytes());
        assert_eq!(answered.out.replace("\r\n", "\n"), answer, "{said:?}");
        assert!(!answered.closed, "{said:?}");
    }
    let quit = server.bytes(b"MULTI\r\nPING\r\nQUIT\r\nEXEC\r\n");
    assert_eq!(
        (quit.out.as_str(), quit.closed),
        ("+OK\r\n+QUEUED\r\n+OK\r\n", true)
    );
    // An HTTP request cannot use it either.
    let http = server.bytes(b"MULTI\r\nPOST / HTTP/1.1\r\n\r\nEXEC\r\n");
    assert!(
        http.closed
            && http
                .out
                .starts_with("+OK\r\n-ERR Protocol error: this is an HTTP request"),
        "{http:?}"
    );
}

#[test]
fn queued_calls_are_decided_and_counted_like_others() {
    let calls = words("CL.THROTTLE a 99 1 60").repeat(1_000);
    let plain = Server::new().bytes(&calls);
    let queued = Server::new().bytes(&[words("MULTI"), calls, words("EXEC")].concat());
    let head = format!("+OK\r\n{}*1000\r\n", "+QUEUED\r\n".repeat(1_000));
    assert!(
        queued
            .out
            .strip_prefix(&head)
            .is_some_and(|answers| answers == plain.out)
    );
    assert_eq!((queued.totals.allowed, queued.totals.denied), (100, 900));
    assert_eq!(queued.totals, plain.totals);
}

#[test]
fn a_transaction_is_bounded() {
    let server = Server::new();
    let echo = words(&format!("ECHO {}", "x".repeat(60_000)));
    // Four fit in 256 KiB, the fifth does not, and none runs; then commands are queued again.
    let answered =
        server.bytes(&[words("MULTI"), echo.repeat(6), words("EXEC"), words("PING")].concat());
    assert_eq!(
        answered.out.replace("\r\n", "\n"),
        "+OK\n+QUEUED\n+QUEUED\n+QUEUED\n+QUEUED\n-ERR a transaction may have at most 256 KiB; send several\n+QUEUED\n\
         -EXECABORT Transaction discarded because of previous errors.\n+PONG\n"
    );
    // Its replies are sent as they grow.
    let mut session = Session::new(1, None);
    let many = [
        &b"MULTI\r\n"[..],
        &b"COMMAND\r\n".repeat(1_000),
        b"EXEC\r\nPING\r\n",
    ]
    .concat();
    let (mut rest, mut sent) = (&many[..], 0);
    let last = loop {
        let mut out = Vec::new();
        let (consumed, step) = session.run(
            rest,
            &server.gcra,
            server.clock.now(),
            &mut Totals::default(),
            &mut out,
        );
        rest = &rest[consumed..];
        assert!(out.len() < 80_000, "{} bytes at once", out.len());
        sent += 1;
        if step == Step::Read {
            break out;
        }
        assert_eq!(step, Step::Send);
    };
    assert!(sent > 10 && last.ends_with(b"+PONG\r\n"), "{sent}");
}

/// Calls get the same replies from the batch and from the parser, whatever surrounds them.
#[test]
fn batched_calls_get_the_same_replies_as_others() {
    let long = "k".repeat(100);
    let calls = [
        "a 4 1 1",
        "a 4 1 1 1",
        "a 4 1 1 0",
        "a 4 1 60 9",
        "a 0 1 1",
        "a 4 0 1",
        "a 4 1 0",
        "a -1 1 1",
        "a +4 1 1",
        "a 04 1 1",
        "a 999999999 999999999 999999999 999999999",
        "a 1000000000 1 1",
        "a 4 1 1 -1",
        "a 4 1 1 x",
        "a 4 1",
        "a 4 1 1 1 1",
    ];
    let calls = calls
        .iter()
        .map(|call| (*call).to_owned())
        .chain([format!("{long} 4 1 1"), format!("{} 4 1 1", &long[..99])]);
    for call in calls {
        let replies = |name: &str| {
            let (server, call) = (Server::new(), words(&format!("{name} {call}")));
            let ping = words("PING");
            server.bytes(&[&call[..], &call, &ping, &call, &call, &call].concat())
        };
        let by_the_parser = replies("Cl.Throttle");
        assert_eq!(replies("CL.THROTTLE"), by_the_parser, "{call}");
        assert_eq!(replies("cl.throttle"), by_the_parser, "{call}");
        let (server, bytes) = (
            Server::new(),
            words(&format!("CL.THROTTLE {call}")).repeat(20),
        );
        let in_one_go = server.bytes(&bytes);
        let (server, (first, second)) = (Server::new(), bytes.split_at(bytes.len() / 2 + 3));
        assert_eq!(server.pieces([first, second]), in_one_go, "{call}");
    }
}

/// For keys that are new, known or denied, and for invalid calls.
#[test]
fn a_call_allocates_nothing() {
    let server = Server::new();
    let (mut session, mut out) = (Session::new(1, None), Vec::with_capacity(100_000));
    let batch: Vec<u8> = (0..64)
        .flat_map(|key| words(&format!("CL.THROTTLE key:{} 2 30 60 1", key % 16)))
        .collect();
    let mixed: Vec<u8> = (0..64)
        .flat_map(|key| words(&format!("Cl.Throttle key:{} 2 30 60", key % 16)))
        .collect();
    let wrong = words("CL.THROTTLE a b c d");
    let mut run = |bytes: &[u8], out: &mut Vec<u8>| {
        out.clear();
        session.run(
            bytes,
            &server.gcra,
            server.clock.now(),
            &mut Totals::default(),
            out,
        )
    };
    // The first command that is not batched allocates the list of arguments.
    run(&words("Cl.Throttle key:0 2 30 60 1"), &mut out);
    let allocated = allocation_counter::measure(|| {
        assert_eq!(run(&batch, &mut out), (batch.len(), Step::Read));
        assert_eq!(run(&mixed, &mut out), (mixed.len(), Step::Read));
        assert_eq!(run(&wrong, &mut out).1, Step::Read);
    });
    assert_eq!(allocated.count_total, 0);
    assert!(
        allocation_counter::measure(|| drop(std::hint::black_box(Box::new(7_u64)))).count_total > 0
    );
}

/// A worker with its address and the sender that stops it.
async fn worker(
    max_clients: usize,
) -> (SocketAddr, ManualClock, watch::Sender<bool>, JoinHandle<()>) {
    let Server { gcra, clock, .. } = Server::new();
    let store = MemoryStore::builder()
        .max_keys(10)
        .clock(clock.clone())
        .build();
    let app = Arc::new(App::new(&Config::default(), AnyStore::Memory(store)).unwrap());
    let bound = crate::net::listen::bind(&"127.0.0.1:0".parse().unwrap(), 1)
        .unwrap()
        .remove(0);
    let (at, (stop, stopped)) = (
        bound.address().unwrap().tcp().unwrap(),
        watch::channel(false),
    );
    let listener = bound.listener().unwrap();
    let served = tokio::spawn(serve(
        listener,
        None,
        max_clients,
        Arc::new(RespServer::new(
            app,
            gcra,
            Options {
                token: None,
                keys: KeyDisplay::Fingerprint,
            },
        )),
        stopped,
    ));
    (at, clock, stop, served)
}

async fn pinged(at: SocketAddr) -> TcpStream {
    let mut client = TcpStream::connect(at).await.unwrap();
    client.write_all(b"PING\r\n").await.unwrap();
    let mut answer = [0; 7];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
    client
}

#[tokio::test]
async fn one_client_too_many_gets_an_error() {
    let (at, _, stop, served) = worker(1).await;
    let mut first = pinged(at).await;
    let (mut second, mut answer) = (TcpStream::connect(at).await.unwrap(), String::new());
    second.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "-ERR max number of clients reached\r\n");
    stop.send_replace(true);
    served.await.unwrap();
    assert_eq!(first.read(&mut [0]).await.unwrap(), 0);
}

/// Tokio's clock is paused: it advances to the next timer once all tasks wait.
#[tokio::test(start_paused = true)]
async fn an_idle_client_is_disconnected() {
    let (at, clock, _stop, _served) = worker(1).await;
    let mut client = pinged(at).await;
    clock.advance(IDLE_TIMEOUT);
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}
