//! Connection and server commands that Redis clients expect.

use super::Step;
use super::parse::{Arguments, integer};
use super::quoted::QuotedBytes;
use super::reply::{Protocol, Reply};
use std::fmt::Write;
use std::sync::Arc;

/// The Redis version in `HELLO` and `INFO`; `INFO` also has our own version.
const REDIS_VERSION: &str = "7.2.4";

/// A command: its name, its arity as in Redis (negative: a minimum), and the position of its key.
pub(super) struct Command {
    pub(super) name: &'static str,
    arity: i64,
    key: i64,
    summary: &'static str,
}

const fn command(name: &'static str, arity: i64, key: i64, summary: &'static str) -> Command {
    Command {
        name,
        arity,
        key,
        summary,
    }
}

const COMMANDS: [Command; 19] = [
    command("auth", -2, 0, "Authenticates with admin_token."),
    command("cl.throttle", -5, 1, "Rate limits a key, as redis-cell."),
    command("client", -2, 0, "Connection name."),
    command("command", -1, 0, "Lists commands."),
    command("discard", 1, 0, "Discards queued commands."),
    command("echo", 2, 0, "Returns its argument."),
    command("exec", 1, 0, "Runs queued commands."),
    command("hello", -1, 0, "Selects RESP2 or RESP3."),
    command("info", -1, 0, "Server information."),
    command("multi", 1, 0, "Queues commands until EXEC or DISCARD."),
    command("ping", -1, 0, "Health check."),
    command("quit", -1, 0, "Closes the connection."),
    command("reset", 1, 0, "Resets the connection state only."),
    command("select", 2, 0, "Database 0 only."),
    command(
        "ratekeeper.check",
        -3,
        2,
        "Charges a policy's key if allowed.",
    ),
    command("ratekeeper.peek", -3, 2, "Checks without charging."),
    command(
        "ratekeeper.reset",
        3,
        2,
        "Refills a policy's key (operators).",
    ),
    command("unwatch", 1, 0, "No-op."),
    command("watch", -2, 0, "Not supported."),
];

/// Checks a password.
pub(crate) type Password = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// The state of a connection that its client has set.
#[derive(Default)]
pub(crate) struct Client {
    /// The check of `AUTH`; `None` without a password.
    pub(crate) password: Option<Password>,
    /// Whether the client has sent the password.
    pub(crate) is_authenticated: bool,
    pub(crate) id: i64,
    pub(crate) protocol: Protocol,
    pub(crate) name: Vec<u8>,
}

impl Client {
    /// Runs a command other than `CL.THROTTLE` and those of transactions.
    pub(super) fn run(
        &mut self,
        known: &Command,
        arguments: Arguments<'_>,
        out: &mut Vec<u8>,
    ) -> Step {
        let mut reply = Reply::new(out, self.protocol);
        let count = arguments.len() as i64;
        let first = arguments.get(1);
        match known.name {
            "ping" => match (first, count) {
                (None, _) => reply.status("PONG"),
                (Some(text), 2) => reply.bulk(text),
                _ => wrong_arity("ping", &mut reply),
            },
            "echo" => reply.bulk(first.unwrap_or_default()),
            "hello" => self.hello(arguments, out),
            "auth" => self.auth(arguments, &mut reply),
            "client" => self.client(arguments, out),
            "command" => command_info(arguments, &mut reply),
            "info" => reply.text(&self.info()),
            "select" => match first.and_then(integer) {
                Some(0) => reply.ok(),
                Some(_) => reply.error("ERR DB index is out of range"),
                None => reply.error("ERR value is not an integer or out of range"),
            },
            "reset" => {
                reply.status("RESET");
                *self = Self {
                    id: self.id,
                    password: self.password.take(),
                    ..Self::default()
                };
            }
            "quit" => {
                reply.ok();
                return Step::Close;
            }
            "ratekeeper.check" | "ratekeeper.peek" if count > 4 => {
                wrong_arity(known.name, &mut reply);
            }
            "ratekeeper.check" => return Step::Policy(Verb::Check),
            "ratekeeper.peek" => return Step::Policy(Verb::Peek),
            "ratekeeper.reset" => return Step::Policy(Verb::Reset),
            "unwatch" => reply.ok(),
            _ => return UnsupportedCommand::Unknown(arguments).reply(&mut reply),
        }
        Step::Next
    }

    /// `HELLO [version [AUTH user password] [SETNAME name]]`: an error in it changes nothing.
    fn hello(&mut self, arguments: Arguments<'_>, out: &mut Vec<u8>) {
        let mut reply = Reply::new(out, self.protocol);
        let protocol = match arguments.get(1).map(integer) {
            None => self.protocol,
            Some(Some(2)) => Protocol::Resp2,
            Some(Some(3)) => Protocol::Resp3,
            Some(Some(_)) => return reply.error("NOPROTO unsupported protocol version"),
            Some(None) => {
                return reply.error("ERR Protocol version is not an integer or out of range");
            }
        };
        let mut at = 2;
        let mut name = None;
        let mut authenticates = false;
        while let Some(option) = arguments.get(at) {
            match (arguments.get(at + 1), arguments.get(at + 2)) {
                (Some(user), Some(password)) if option.eq_ignore_ascii_case(b"AUTH") => {
                    if !self.accepts(user, password) {
                        return reply.error(WRONG_PASSWORD);
                    }
                    authenticates = self.password.is_some();
                    at += 3;
                }
                (Some(new_name), _) if option.eq_ignore_ascii_case(b"SETNAME") => {
                    if !is_name(new_name) {
                        return reply.error(INVALID_NAME);
                    }
                    name = Some(new_name);
                    at += 2;
                }
                _ => {
                    return reply.error(format_args!(
                        "ERR Syntax error in HELLO option '{}'",
                        QuotedBytes(option)
                    ));
                }
            }
        }
        if let Some(name) = name {
            self.name = name.to_vec();
        }
        self.is_authenticated |= authenticates;
        self.protocol = protocol;
        let mut reply = Reply::new(out, protocol);
        reply.map(7);
        for (key, value) in [("server", "ratekeeper"), ("version", REDIS_VERSION)] {
            reply.bulk(key);
            reply.bulk(value);
        }
        for (key, value) in [("proto", protocol.number()), ("id", self.id)] {
            reply.bulk(key);
            reply.integer(value);
        }
        for (key, value) in [("mode", "standalone"), ("role", "master")] {
            reply.bulk(key);
            reply.bulk(value);
        }
        reply.bulk("modules");
        reply.array(0);
    }

    /// `AUTH password` or `AUTH user password`. Without a configured password any is accepted for
    /// the default user, as in Redis.
    fn auth(&mut self, arguments: Arguments<'_>, reply: &mut Reply<'_>) {
        let (user, password) = match (arguments.get(1), arguments.get(2), arguments.len()) {
            (Some(_), None, 2) if self.password.is_none() => return reply.error(NO_PASSWORD),
            (Some(password), None, 2) => (DEFAULT_USER, password),
            (Some(user), Some(password), 3) => (user, password),
            _ => return reply.error("ERR syntax error"),
        };
        if !self.accepts(user, password) {
            return reply.error(WRONG_PASSWORD);
        }
        self.is_authenticated |= self.password.is_some();
        reply.ok();
    }

    /// Whether the credentials are valid. Only the default user exists.
    fn accepts(&self, user: &[u8], password: &[u8]) -> bool {
        user == DEFAULT_USER
            && self
                .password
                .as_ref()
                .is_none_or(|is_password| is_password(password))
    }

    fn client(&mut self, arguments: Arguments<'_>, out: &mut Vec<u8>) {
        let mut reply = Reply::new(out, self.protocol);
        let subcommand = arguments.get(1).unwrap_or_default().to_ascii_lowercase();
        let expected = match &*subcommand {
            b"setname" | b"no-evict" | b"no-touch" => 3,
            b"setinfo" => 4,
            b"getname" | b"id" | b"info" => 2,
            _ => arguments.len(),
        };
        if arguments.len() != expected {
            let name = String::from_utf8_lossy(&subcommand).into_owned();
            return wrong_arity(&format!("client|{name}"), &mut reply);
        }
        let first = arguments.get(2).unwrap_or_default();
        match &*subcommand {
            b"setname" if is_name(first) => {
                self.name = first.to_vec();
                reply.ok();
            }
            b"setname" => reply.error(INVALID_NAME),
            b"getname" if self.name.is_empty() => reply.null(),
            b"getname" => reply.bulk(&self.name),
            b"id" => reply.integer(self.id),
            b"setinfo" => reply.ok(),
            b"no-evict" | b"no-touch" if is_switch(first) => reply.ok(),
            b"no-evict" | b"no-touch" => reply.error("ERR syntax error"),
            // Only this connection: others are not shown.
            b"info" | b"list" => {
                let name = String::from_utf8_lossy(&self.name);
                let text = format!(
                    "id={} name={name} db=0 resp={}\n",
                    self.id,
                    self.protocol.number()
                );
                reply.text(&text);
            }
            other => {
                let name = QuotedBytes(other);
                reply.error(format_args!(
                    "ERR unknown subcommand '{name}'. Try CLIENT HELP."
                ));
            }
        }
    }

    fn info(&self) -> String {
        let mut text = String::from("# Server\r\n");
        let version = env!("CARGO_PKG_VERSION");
        for (name, value) in [
            ("redis_version", REDIS_VERSION),
            ("redis_mode", "standalone"),
            ("server_name", "ratekeeper"),
            ("ratekeeper_version", version),
        ] {
            // Writing to a string cannot fail.
            let _ = write!(text, "{name}:{value}\r\n");
        }
        // Clients wait for `loading:0`, and look for replicas and cluster nodes.
        text.push_str("\r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n");
        text.push_str("\r\n# Cluster\r\ncluster_enabled:0\r\n");
        text
    }
}

/// The operation of a policy command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    Check,
    Peek,
    Reset,
}

const DEFAULT_USER: &[u8] = b"default";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const INVALID_NAME: &str =
    "ERR Client names cannot contain spaces, newlines or special characters.";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are you sure \
                           your configuration is correct?";

fn is_name(name: &[u8]) -> bool {
    name.len() <= 128 && name.iter().all(u8::is_ascii_graphic)
}

fn is_switch(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"on") || word.eq_ignore_ascii_case(b"off")
}

/// `COMMAND`, `COMMAND COUNT`, `COMMAND LIST`, `COMMAND INFO …`, `COMMAND DOCS …`.
fn command_info(arguments: Arguments<'_>, reply: &mut Reply<'_>) {
    let find = |name: &[u8]| {
        COMMANDS
            .iter()
            .find(|known| known.name.as_bytes().eq_ignore_ascii_case(name))
    };
    let Some(subcommand) = arguments.get(1) else {
        reply.array(COMMANDS.len());
        return COMMANDS.iter().for_each(|command| info(command, reply));
    };
    let requested = || arguments.iter().skip(2).map(find);
    match &*subcommand.to_ascii_lowercase() {
        b"count" => reply.integer(COMMANDS.len() as i64),
        b"list" => {
            reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| reply.bulk(command.name));
        }
        b"info" if arguments.len() == 2 => {
            reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| info(command, reply));
        }
        b"info" => {
            reply.array(arguments.len() - 2);
            for command in requested() {
                match command {
                    Some(command) => info(command, reply),
                    None => reply.null(),
                }
            }
        }
        b"docs" if arguments.len() == 2 => {
            reply.map(COMMANDS.len());
            COMMANDS.iter().for_each(|command| docs(command, reply));
        }
        b"docs" => {
            reply.map(requested().flatten().count());
            requested()
                .flatten()
                .for_each(|command| docs(command, reply));
        }
        other => {
            let name = QuotedBytes(other);
            reply.error(format_args!(
                "ERR unknown subcommand '{name}'. Try COMMAND HELP."
            ));
        }
    }
}

fn info(command: &Command, reply: &mut Reply<'_>) {
    reply.array(10);
    reply.bulk(command.name);
    reply.integer(command.arity);
    reply.array(1);
    reply.status("fast");
    reply.integer(command.key);
    reply.integer(command.key);
    reply.integer(i64::from(command.key > 0));
    // Categories, tips, key specifications, subcommands.
    (0..4).for_each(|_| reply.array(0));
}

fn docs(command: &Command, reply: &mut Reply<'_>) {
    reply.bulk(command.name);
    reply.map(1);
    reply.bulk("summary");
    reply.bulk(command.summary);
}

fn wrong_arity(name: &str, reply: &mut Reply<'_>) {
    reply.error(format_args!(
        "ERR wrong number of arguments for '{}' command",
        QuotedBytes(name.as_bytes())
    ));
}

/// The reason why a command is rejected.
pub(super) enum UnsupportedCommand<'a> {
    /// It is the beginning of an HTTP request.
    Http,
    Unknown(Arguments<'a>),
    WrongArity(&'static Command),
}

/// Finds the command, and checks its arity.
pub(super) fn find(arguments: Arguments<'_>) -> Result<&'static Command, UnsupportedCommand<'_>> {
    let name = arguments.get(0).unwrap_or_default();
    // As in Redis: HTTP requests begin with these words.
    if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") {
        return Err(UnsupportedCommand::Http);
    }
    let known = COMMANDS
        .iter()
        .find(|known| known.name.as_bytes().eq_ignore_ascii_case(name));
    let known = known.ok_or(UnsupportedCommand::Unknown(arguments))?;
    let count = arguments.len() as i64;
    if known.arity > 0 && count != known.arity || count < -known.arity {
        Err(UnsupportedCommand::WrongArity(known))
    } else {
        Ok(known)
    }
}

impl UnsupportedCommand<'_> {
    /// Replies with the error of Redis.
    pub(super) fn reply(&self, reply: &mut Reply<'_>) -> Step {
        match self {
            Self::Http => {
                reply.error(super::HTTP);
                return Step::Close;
            }
            Self::WrongArity(command) => wrong_arity(command.name, reply),
            Self::Unknown(arguments) => {
                const MAX_BYTES: usize = 128;
                let mut beginning = String::new();
                for argument in arguments.iter().skip(1) {
                    let Some(left @ 1..) = MAX_BYTES.checked_sub(beginning.len()) else {
                        break;
                    };
                    let _ = write!(
                        beginning,
                        "'{}' ",
                        QuotedBytes(&argument[..argument.len().min(left)])
                    );
                }
                let name = QuotedBytes(arguments.get(0).unwrap_or_default());
                reply.error(format_args!(
                    "ERR unknown command '{name}', with args beginning with: {beginning}"
                ));
            }
        }
        Step::Next
    }
}
