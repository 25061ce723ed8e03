//! What clients say on connecting, and what else they expect of a server that speaks RESP.

use super::Step;
use super::parse::{Arguments, integer};
use super::quoted::QuotedBytes;
use super::reply::{Protocol, Reply};
use std::fmt::Write;
use std::sync::Arc;

/// Whose commands clients may expect to be spoken here; our own version is told beside it.
const COMPATIBLE: &str = "7.2.4";

/// A command: its name, how many arguments it has (fewer than none: at least so many), and where
/// its key is.
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
    command(
        "auth",
        -2,
        0,
        "Sends the admin_token, which RATEKEEPER.RESET needs where one is set.",
    ),
    command(
        "cl.throttle",
        -5,
        1,
        "Charges a key by the numbers given, as redis-cell does.",
    ),
    command("client", -2, 0, "What this connection is called."),
    command("command", -1, 0, "This list."),
    command("discard", 1, 0, "Forgets the commands since MULTI."),
    command("echo", 2, 0, "Returns what was said."),
    command(
        "exec",
        1,
        0,
        "Runs the commands since MULTI, one after the other.",
    ),
    command("hello", -1, 0, "Chooses between RESP2 and RESP3."),
    command("info", -1, 0, "What runs here."),
    command(
        "multi",
        1,
        0,
        "Queues the commands that follow, until EXEC or DISCARD.",
    ),
    command("ping", -1, 0, "Whether it runs."),
    command("quit", -1, 0, "Closes the connection."),
    command("reset", 1, 0, "Resets this connection, and no limit."),
    command("select", 2, 0, "There is one database, 0."),
    command(
        "ratekeeper.check",
        -3,
        2,
        "Charges a key of a policy, if it passes.",
    ),
    command(
        "ratekeeper.peek",
        -3,
        2,
        "Says whether a key of a policy would pass.",
    ),
    command(
        "ratekeeper.reset",
        3,
        2,
        "Makes the limits of a key of a policy full again; for operators.",
    ),
    command("unwatch", 1, 0, "Nothing is watched."),
    command("watch", -2, 0, "Not supported."),
];

/// Whether that is the password.
pub(crate) type Password = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// A client's connection, as far as it has said anything.
#[derive(Default)]
pub(crate) struct Client {
    /// What `AUTH` checks; None where there is no password.
    pub(crate) password: Option<Password>,
    /// Whether the client has sent the password.
    pub(crate) is_authenticated: bool,
    pub(crate) id: i64,
    pub(crate) protocol: Protocol,
    pub(crate) name: Vec<u8>,
}

impl Client {
    /// Answers one command that has nothing to do with limits.
    pub(super) fn answer(
        &mut self,
        known: &Command,
        arguments: Arguments<'_>,
        out: &mut Vec<u8>,
    ) -> Step {
        let mut reply = Reply::new(out, self.protocol);
        let many = arguments.len() as i64;
        let first = arguments.get(1);
        match known.name {
            "ping" => match (first, many) {
                (None, _) => reply.status("PONG"),
                (Some(said), 2) => reply.bulk(said),
                _ => wrong_number("ping", &mut reply),
            },
            "echo" => reply.bulk(first.unwrap_or_default()),
            "hello" => self.hello(arguments, out),
            "auth" => self.auth(arguments, &mut reply),
            "client" => self.client(arguments, out),
            "command" => listed(arguments, &mut reply),
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
            "ratekeeper.check" | "ratekeeper.peek" if many > 4 => {
                wrong_number(known.name, &mut reply);
            }
            "ratekeeper.check" => return Step::Policy(Verb::Check),
            "ratekeeper.peek" => return Step::Policy(Verb::Peek),
            "ratekeeper.reset" => return Step::Policy(Verb::Reset),
            // Nothing is watched.
            "unwatch" => reply.ok(),
            _ => return UnsupportedCommand::Unknown(arguments).answer(&mut reply),
        }
        Step::Next
    }

    /// `HELLO [version [AUTH user password] [SETNAME name]]`: nothing changes if any of it is
    /// wrong.
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
        let (mut at, mut name, mut authenticates) = (2, None, false);
        while let Some(option) = arguments.get(at) {
            match (arguments.get(at + 1), arguments.get(at + 2)) {
                (Some(user), Some(password)) if option.eq_ignore_ascii_case(b"AUTH") => {
                    if !self.accepts(user, password) {
                        return reply.error(WRONG_PASSWORD);
                    }
                    (authenticates, at) = (self.password.is_some(), at + 3);
                }
                (Some(wanted), _) if option.eq_ignore_ascii_case(b"SETNAME") => {
                    if !is_name(wanted) {
                        return reply.error(WRONG_NAME);
                    }
                    (name, at) = (Some(wanted), at + 2);
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
        for (key, value) in [("server", "ratekeeper"), ("version", COMPATIBLE)] {
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

    /// `AUTH password` or `AUTH user password`. Without a password it is as in Redis: its default
    /// user may send any.
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

    /// Whether a user may log in so. There is one, the default user.
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
        let wanted = match &*subcommand {
            b"setname" | b"no-evict" | b"no-touch" => 3,
            b"setinfo" => 4,
            b"getname" | b"id" | b"info" => 2,
            _ => arguments.len(),
        };
        if arguments.len() != wanted {
            let name = String::from_utf8_lossy(&subcommand).into_owned();
            return wrong_number(&format!("client|{name}"), &mut reply);
        }
        let first = arguments.get(2).unwrap_or_default();
        match &*subcommand {
            b"setname" if is_name(first) => {
                self.name = first.to_vec();
                reply.ok();
            }
            b"setname" => reply.error(WRONG_NAME),
            b"getname" if self.name.is_empty() => reply.null(),
            b"getname" => reply.bulk(&self.name),
            b"id" => reply.integer(self.id),
            b"setinfo" => reply.ok(),
            b"no-evict" | b"no-touch" if is_switch(first) => reply.ok(),
            b"no-evict" | b"no-touch" => reply.error("ERR syntax error"),
            // Of others a client is told nothing.
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
            ("redis_version", COMPATIBLE),
            ("redis_mode", "standalone"),
            ("server_name", "ratekeeper"),
            ("ratekeeper_version", version),
        ] {
            // Writing to a string cannot fail.
            let _ = write!(text, "{name}:{value}\r\n");
        }
        // What clients wait for before they send anything, and where they look for other nodes.
        text.push_str("\r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n");
        text.push_str("\r\n# Cluster\r\ncluster_enabled:0\r\n");
        text
    }
}

/// What is asked of a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    Check,
    Peek,
    Reset,
}

const DEFAULT_USER: &[u8] = b"default";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const WRONG_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are you sure \
                           your configuration is correct?";

fn is_name(name: &[u8]) -> bool {
    name.len() <= 128 && name.iter().all(u8::is_ascii_graphic)
}

fn is_switch(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"on") || word.eq_ignore_ascii_case(b"off")
}

/// `COMMAND`, `COMMAND COUNT`, `COMMAND LIST`, `COMMAND INFO …`, `COMMAND DOCS …`.
fn listed(arguments: Arguments<'_>, reply: &mut Reply<'_>) {
    let find = |name: &[u8]| {
        COMMANDS
            .iter()
            .find(|known| known.name.as_bytes().eq_ignore_ascii_case(name))
    };
    let Some(subcommand) = arguments.get(1) else {
        reply.array(COMMANDS.len());
        return COMMANDS.iter().for_each(|command| info(command, reply));
    };
    let asked = || arguments.iter().skip(2).map(find);
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
            for command in asked() {
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
            reply.map(asked().flatten().count());
            asked().flatten().for_each(|command| docs(command, reply));
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

fn wrong_number(name: &str, reply: &mut Reply<'_>) {
    reply.error(format_args!(
        "ERR wrong number of arguments for '{}' command",
        QuotedBytes(name.as_bytes())
    ));
}

/// Why a command is not run.
pub(super) enum UnsupportedCommand<'a> {
    /// It is the beginning of a request of HTTP.
    Http,
    Unknown(Arguments<'a>),
    WrongNumber(&'static Command),
}

/// The command that the arguments name, if they can be its own.
pub(super) fn find(arguments: Arguments<'_>) -> Result<&'static Command, UnsupportedCommand<'_>> {
    let name = arguments.get(0).unwrap_or_default();
    // As Redis does: no command has these names, and requests of HTTP begin with them.
    if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") {
        return Err(UnsupportedCommand::Http);
    }
    let known = COMMANDS
        .iter()
        .find(|known| known.name.as_bytes().eq_ignore_ascii_case(name));
    let known = known.ok_or(UnsupportedCommand::Unknown(arguments))?;
    let many = arguments.len() as i64;
    match known.arity > 0 && many != known.arity || many < -known.arity {
        true => Err(UnsupportedCommand::WrongNumber(known)),
        false => Ok(known),
    }
}

impl UnsupportedCommand<'_> {
    /// In Redis's words.
    pub(super) fn answer(&self, reply: &mut Reply<'_>) -> Step {
        match self {
            Self::Http => {
                reply.error(super::HTTP);
                return Step::Close;
            }
            Self::WrongNumber(command) => wrong_number(command.name, reply),
            Self::Unknown(arguments) => {
                const LONGEST: usize = 128;
                let mut beginning = String::new();
                for argument in arguments.iter().skip(1) {
                    let Some(room @ 1..) = LONGEST.checked_sub(beginning.len()) else {
                        break;
                    };
                    let _ = write!(
                        beginning,
                        "'{}' ",
                        QuotedBytes(&argument[..argument.len().min(room)])
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
