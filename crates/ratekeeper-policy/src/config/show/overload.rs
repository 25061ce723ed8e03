//! `config show` of adaptive limits and `[shed]`.

use super::{Writer, inline, text};
use crate::config::IdentityConfig;
use crate::config::time::duration_text;
use crate::overload::{AdaptiveLimit, Shed};

impl Writer<'_> {
    /// Writes `[shed]`, unless it is off.
    pub(super) fn shed(&mut self, shed: Option<&Shed>, identity: &IdentityConfig) {
        let Some(Shed {
            default,
            cpu,
            memory,
            rest,
            spare,
            patience,
        }) = shed
        else {
            return;
        };
        self.table("[shed]", "shed");
        self.line("default", text(default));
        self.optional("header", identity.class.as_ref().map(text));
        self.optional("cpu", cpu.map(|share| share.to_string()));
        self.optional("memory", memory.map(|share| share.to_string()));
        self.line("rest", text(duration_text(*rest)));
        self.optional("spare", spare.map(text));
        self.optional("start_header", identity.start.as_ref().map(text));
        self.optional(
            "patience",
            patience.map(|patience| text(duration_text(patience))),
        );
    }
}

/// The value of `adaptive`.
pub(super) fn adaptive(limit: &AdaptiveLimit) -> String {
    let AdaptiveLimit {
        min,
        max,
        start,
        control,
        queue,
    } = limit;
    let numbers = [("min", min), ("max", max), ("start", start)];
    let mut keys: Vec<_> = numbers
        .map(|(name, number)| (name.to_owned(), number.to_string()))
        .into();
    keys.push(("control".to_owned(), text(control.name())));
    keys.extend(
        control
            .drops_after()
            .map(|after| ("timeout".to_owned(), text(duration_text(after)))),
    );
    if limit.has_queue() {
        let waits = [
            ("queue_interval", queue.interval),
            ("queue_target", queue.target),
        ];
        keys.push(("queue".to_owned(), queue.max_waiting.to_string()));
        keys.extend(waits.map(|(name, wait)| (name.to_owned(), text(duration_text(wait)))));
    }
    inline(keys)
}
