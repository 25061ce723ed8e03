//! `MULTI`, `EXEC` and `DISCARD`: raw commands are queued, and run in order by `EXEC`.

use super::Step;
use super::commands::{self, Client};
use super::parse::Arguments;
use super::reply::Reply;

/// Size limit of the queued commands of a connection.
pub(super) const MAX_QUEUED_BYTES: usize = 256 * 1024;

const NESTED: &str = "ERR MULTI calls can not be nested";
const EXEC_ALONE: &str = "ERR EXEC without MULTI";
const DISCARD_ALONE: &str = "ERR DISCARD without MULTI";
const ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";
const WATCH_INSIDE: &str = "ERR WATCH inside MULTI is not allowed";
const WATCH: &str = "ERR WATCH is not supported, since there are no values; send MULTI without it";

/// The transaction of a connection, if there is one.
#[derive(Default)]
pub(super) struct Transaction {
    state: State,
    /// The queued commands, as the client sent them.
    commands: Vec<u8>,
    count: usize,
    /// Number of these bytes that have run.
    at: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    None,
    Queuing,
    /// A command could not be queued, so none will run.
    Failed,
    Running,
}

impl Transaction {
    /// Whether commands are queued rather than run.
    #[inline]
    pub(super) fn is_queuing(&self) -> bool {
        matches!(self.state, State::Queuing | State::Failed)
    }

    /// Whether the queued commands are running.
    #[inline]
    pub(super) fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// The queued commands that have not run.
    pub(super) fn rest(&self) -> &[u8] {
        &self.commands[self.at..]
    }

    /// Takes the queued commands to run them, with the offset of the next one.
    pub(super) fn take(&mut self) -> (Vec<u8>, usize) {
        (std::mem::take(&mut self.commands), self.at)
    }

    /// Returns the commands after [`take`](Self::take).
    pub(super) fn restore(&mut self, commands: Vec<u8>) {
        self.commands = commands;
    }

    /// Advances past commands that have run.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// Handles a command with its bytes `raw`: begins or ends a transaction, queues the command, or
    /// lets the client run it.
    #[cold]
    pub(super) fn run(
        &mut self,
        client: &mut Client,
        arguments: Arguments<'_>,
        raw: &[u8],
        out: &mut Vec<u8>,
    ) -> Step {
        let command = match commands::find(arguments) {
            Ok(command) => command,
            Err(error) => {
                if self.is_queuing() {
                    self.fail();
                }
                return error.reply(&mut Reply::new(out, client.protocol));
            }
        };
        let mut reply = Reply::new(out, client.protocol);
        match (command.name, self.state) {
            ("multi", State::None) => {
                self.state = State::Queuing;
                reply.ok();
            }
            ("multi", _) => reply.error(NESTED),
            ("exec", State::Queuing) => {
                reply.array(self.count);
                self.state = State::Running;
            }
            ("exec", State::Failed) => {
                *self = Self::default();
                reply.error(ABORTED);
            }
            ("exec", _) => reply.error(EXEC_ALONE),
            ("discard", State::Queuing | State::Failed) => {
                *self = Self::default();
                reply.ok();
            }
            ("discard", _) => reply.error(DISCARD_ALONE),
            ("watch", State::None) => reply.error(WATCH),
            ("watch", _) => reply.error(WATCH_INSIDE),
            ("reset" | "quit", State::Queuing | State::Failed) => {
                *self = Self::default();
                return client.run(command, arguments, out);
            }
            (_, State::Queuing | State::Failed) => self.queue(raw, &mut reply),
            (_, State::None | State::Running) => return client.run(command, arguments, out),
        }
        Step::Next
    }

    fn queue(&mut self, raw: &[u8], reply: &mut Reply<'_>) {
        if self.commands.len() + raw.len() > MAX_QUEUED_BYTES {
            self.fail();
            let limit = MAX_QUEUED_BYTES / 1024;
            return reply.error(format_args!(
                "ERR a transaction may have at most {limit} KiB; send several"
            ));
        }
        if self.state == State::Queuing {
            self.commands.extend_from_slice(raw);
            self.count += 1;
        }
        reply.status("QUEUED");
    }

    fn fail(&mut self) {
        *self = Self {
            state: State::Failed,
            ..Self::default()
        };
    }
}
