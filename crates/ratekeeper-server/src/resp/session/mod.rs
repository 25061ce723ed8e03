//! One client's commands: bytes in, bytes out. It does no I/O and knows nothing but limits, so that
//! it can be tried with anything, in any pieces.

mod batch;
mod commands;
mod parse;
mod quoted;
mod reply;
mod throttle;
mod transaction;

pub(crate) use commands::{Password, Verb};
pub(crate) use parse::{Arguments, LONGEST_COMMAND, integer};
pub(crate) use quoted::QuotedBytes;
pub(crate) use reply::Reply;
pub(crate) use throttle::{Totals, figures, seconds, signed};

use batch::Batch;
use commands::Client;
use parse::Parser;
use ratekeeper::{Clock, Timestamp, keyed::KeyedGcra};
use transaction::Transaction;

/// Answers are sent once there are so many bytes of them: a few letters may ask for much.
const ENOUGH: usize = 64 * 1024;

/// What a client of HTTP is told before its connection is closed: a web page that makes a browser
/// send a request here must not have its body run as commands.
const HTTP: &str = "ERR Protocol error: this is a request of HTTP, and this port speaks RESP; send it to the HTTP listener";

/// What one client has said so far.
pub(crate) struct Session {
    parser: Parser,
    client: Client,
    transaction: Transaction,
}

/// What is to be done after some commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Answer the next.
    Next,
    /// Send the answers, then go on.
    Send,
    /// Read more: the rest is not a whole command.
    Read,
    /// Send the answers and close.
    Close,
    /// Ask a policy; [`arguments`](Session::arguments) has the command,
    /// [`answered`](Session::answered) goes on.
    Policy(Verb),
}

impl Session {
    /// A client that has not said anything. Where there is a password, `AUTH` checks it.
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

    /// Answers the commands at the start of `input`, all as of `now`: how many bytes they had, and
    /// what is next. What is not consumed must be there again at the next call.
    pub(crate) fn run<C: Clock>(
        &mut self,
        input: &[u8],
        arrivals: &KeyedGcra<C>,
        now: Timestamp,
        totals: &mut Totals,
        out: &mut Vec<u8>,
    ) -> (usize, Step) {
        let mut consumed = 0;
        loop {
            if self.transaction.is_running() {
                let (commands, at) = self.transaction.lend();
                let (ran, step) = self.run_commands(&commands[at..], arrivals, now, totals, out);
                self.transaction.take_back(commands);
                self.transaction.ran(ran);
                if step != Step::Read {
                    return (consumed, step);
                }
                self.transaction = Transaction::default();
            }
            let (read, step) = self.run_commands(&input[consumed..], arrivals, now, totals, out);
            consumed += read;
            if step != Step::Next {
                return (consumed, step);
            }
        }
    }

    /// Answers commands until there is something else to do: after `EXEC` the queued ones are next.
    fn run_commands<C: Clock>(
        &mut self,
        input: &[u8],
        arrivals: &KeyedGcra<C>,
        now: Timestamp,
        totals: &mut Totals,
        out: &mut Vec<u8>,
    ) -> (usize, Step) {
        let was_running = self.transaction.is_running();
        let mut consumed = 0;
        loop {
            let mut rest = &input[consumed..];
            // Nothing of a command was read before: it may be one of many that are written as
            // nearly all are.
            while self.parser.is_fresh() && !self.transaction.is_queuing() {
                let batch = Batch::read(rest);
                if batch.many == 0 {
                    break;
                }
                if batch.many > 1 {
                    // What is known of their keys is fetched for all at once.
                    arrivals.warm(batch.calls().map(|call| call.key));
                }
                let mut reply = Reply::new(out, self.client.protocol);
                for call in batch.calls() {
                    throttle::decide(call, arrivals, now, totals, &mut reply);
                }
                consumed += batch.length;
                if out.len() >= ENOUGH {
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
                    throttle::throttle(arguments, arrivals, now, totals, &mut reply);
                    Step::Next
                }
                Some(_) if self.parser.is_http_request(rest) => {
                    self.reply(out).error(HTTP);
                    Step::Close
                }
                Some(_) => {
                    self.transaction
                        .answer(&mut self.client, arguments, &rest[..length], out)
                }
                None => Step::Next,
            };
            match step {
                // Its arguments are still needed.
                Step::Policy(_) => return (consumed, step),
                _ => self.parser.consumed(),
            }
            consumed += length;
            match step {
                Step::Next if self.transaction.is_running() != was_running => {
                    return (consumed, step);
                }
                Step::Next if out.len() < ENOUGH => {}
                Step::Next => return (consumed, Step::Send),
                other => return (consumed, other),
            }
        }
    }

    /// The command that a policy is to be asked about, and how many of the bytes that were not
    /// consumed it has: none if it was queued by a transaction.
    pub(crate) fn arguments<'a>(&'a self, input: &'a [u8]) -> (Arguments<'a>, usize) {
        match self.transaction.is_running() {
            true => (self.parser.arguments(self.transaction.rest()), 0),
            false => (self.parser.arguments(input), self.parser.length()),
        }
    }

    /// A policy was asked.
    pub(crate) fn answered(&mut self) {
        if self.transaction.is_running() {
            self.transaction.ran(self.parser.length());
        }
        self.parser.consumed();
    }

    pub(crate) fn reply<'a>(&self, out: &'a mut Vec<u8>) -> Reply<'a> {
        Reply::new(out, self.client.protocol)
    }
}
