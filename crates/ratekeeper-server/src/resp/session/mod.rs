//! The commands of a client, from bytes to bytes. It does no I/O, so tests can split the input
//! anywhere.

mod batch;
mod commands;
mod parse;
mod quoted;
mod reply;
mod throttle;
mod transaction;

pub(crate) use commands::{Password, Verb};
pub(crate) use parse::{Arguments, MAX_COMMAND_BYTES, integer};
pub(crate) use quoted::QuotedBytes;
pub(crate) use reply::Reply;
pub(crate) use throttle::{Totals, fields, seconds, signed};

use batch::Batch;
use commands::Client;
use parse::Parser;
use ratekeeper::{Clock, Timestamp, keyed::KeyedGcra};
use transaction::Transaction;

/// Replies are sent once they have this size: a short command may have a long reply.
const MAX_OUTPUT_BYTES: usize = 64 * 1024;

/// The reply to an HTTP request before the connection is closed: the body of a request that a web
/// page causes must not run as commands.
const HTTP: &str = "ERR Protocol error: this is an HTTP request, and this port speaks RESP; send it to the HTTP listener";

/// The state of a client's connection.
pub(crate) struct Session {
    parser: Parser,
    client: Client,
    transaction: Transaction,
}

/// The next step for the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Run the next command.
    Next,
    /// Send the replies, then continue.
    Send,
    /// Read more: the rest is not a complete command.
    Read,
    /// Send the replies and close.
    Close,
    /// Decide by a policy; [`arguments`](Session::arguments) returns the command, and
    /// [`policy_done`](Session::policy_done) must follow.
    Policy(Verb),
}

impl Session {
    /// A session of a new connection. `password` checks `AUTH`.
    pub(crate) fn new(id: i64, password: Option<Password>) -> Self {
        let client = Client {
            id,
            password,
            ..Client::default()
        };
        Self {
            parser: Parser::default(),
            client,
            transaction: Transaction::default(),
        }
    }

    /// Whether the client has sent the password.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.client.is_authenticated
    }

    /// Runs the commands at the start of `input`, all as of `now`. Returns their length and the
    /// next step. Bytes that are not consumed must be in the input of the next call.
    pub(crate) fn run<C: Clock>(
        &mut self,
        input: &[u8],
        gcra: &KeyedGcra<C>,
        now: Timestamp,
        totals: &mut Totals,
        out: &mut Vec<u8>,
    ) -> (usize, Step) {
        let mut consumed = 0;
        loop {
            if self.transaction.is_running() {
                let (commands, at) = self.transaction.take();
                let (length, step) = self.run_commands(&commands[at..], gcra, now, totals, out);
                self.transaction.restore(commands);
                self.transaction.advance(length);
                if step != Step::Read {
                    return (consumed, step);
                }
                self.transaction = Transaction::default();
            }
            let (read, step) = self.run_commands(&input[consumed..], gcra, now, totals, out);
            consumed += read;
            if step != Step::Next {
                return (consumed, step);
            }
        }
    }

    /// Runs commands until another step is next: after `EXEC` the queued ones.
    fn run_commands<C: Clock>(
        &mut self,
        input: &[u8],
        gcra: &KeyedGcra<C>,
        now: Timestamp,
        totals: &mut Totals,
        out: &mut Vec<u8>,
    ) -> (usize, Step) {
        let was_running = self.transaction.is_running();
        let mut consumed = 0;
        loop {
            let mut rest = &input[consumed..];
            // The fast path, unless the next command is partly parsed.
            while self.parser.is_fresh() && !self.transaction.is_queuing() {
                let batch = Batch::read(rest);
                if batch.len == 0 {
                    break;
                }
                if batch.len > 1 {
                    gcra.prefetch(batch.calls().map(|call| call.key));
                }
                let mut reply = Reply::new(out, self.client.protocol);
                for call in batch.calls() {
                    throttle::decide(call, gcra, now, totals, &mut reply);
                }
                consumed += batch.length;
                if out.len() >= MAX_OUTPUT_BYTES {
                    return (consumed, Step::Send);
                }
                rest = &input[consumed..];
            }
            let length = match self.parser.read(rest) {
                Ok(Some(length)) => length,
                Ok(None) => return (consumed, Step::Read),
                Err(error) => {
                    self.reply(out).error(error);
                    return (input.len(), Step::Close);
                }
            };
            let arguments = self.parser.arguments(rest);
            let step = match arguments.get(0) {
                Some(name)
                    if name.eq_ignore_ascii_case(b"cl.throttle")
                        && !self.transaction.is_queuing() =>
                {
                    let mut reply = Reply::new(out, self.client.protocol);
                    throttle::throttle(arguments, gcra, now, totals, &mut reply);
                    Step::Next
                }
                Some(_) if self.parser.is_http_request(rest) => {
                    self.reply(out).error(HTTP);
                    Step::Close
                }
                Some(_) => self
                    .transaction
                    .run(&mut self.client, arguments, &rest[..length], out),
                None => Step::Next,
            };
            match step {
                // The arguments are still needed.
                Step::Policy(_) => return (consumed, step),
                _ => self.parser.consumed(),
            }
            consumed += length;
            match step {
                Step::Next if self.transaction.is_running() != was_running => {
                    return (consumed, step);
                }
                Step::Next if out.len() < MAX_OUTPUT_BYTES => {}
                Step::Next => return (consumed, Step::Send),
                other => return (consumed, other),
            }
        }
    }

    /// The command for a policy, and its length in the bytes not consumed: 0 if a transaction
    /// queued it.
    pub(crate) fn arguments<'a>(&'a self, input: &'a [u8]) -> (Arguments<'a>, usize) {
        if self.transaction.is_running() {
            (self.parser.arguments(self.transaction.rest()), 0)
        } else {
            (self.parser.arguments(input), self.parser.length())
        }
    }

    /// Continues after the reply to a policy command.
    pub(crate) fn policy_done(&mut self) {
        if self.transaction.is_running() {
            self.transaction.advance(self.parser.length());
        }
        self.parser.consumed();
    }

    pub(crate) fn reply<'a>(&self, out: &'a mut Vec<u8>) -> Reply<'a> {
        Reply::new(out, self.client.protocol)
    }
}
