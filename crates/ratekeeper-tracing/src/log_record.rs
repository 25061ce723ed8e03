//! Records of the `log` crate. All of a level come through one callsite; their origin is in their
//! fields.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use tracing_core::field::{Field, FieldSet, Visit};
use tracing_core::metadata::Kind;
use tracing_core::{Event, Metadata};

/// Whether this event was made from a log record by `tracing_log`.
pub(crate) fn is_log_record(metadata: &Metadata<'_>) -> bool {
    metadata.target() == "log" && metadata.fields().field("log.target").is_some()
}

/// The key of the record's origin: no callsite has the same.
pub(crate) fn key(event: &Event<'_>) -> u64 {
    let mut hash = OriginHash(DefaultHasher::new());
    event.metadata().level().hash(&mut hash.0);
    event.record(&mut hash);
    hash.0.finish() | 1 << 63
}

struct OriginHash(DefaultHasher);

impl Visit for OriginHash {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name().starts_with("log.") {
            value.hash(&mut self.0);
        }
    }

    fn record_u64(&mut self, _field: &Field, value: u64) {
        value.hash(&mut self.0);
    }

    fn record_debug(&mut self, _message: &Field, _value: &dyn Debug) {}
}

/// The origin of a log record.
#[derive(Default)]
pub(crate) struct Origin {
    target: String,
    module: Option<String>,
    file: Option<String>,
    line: Option<u32>,
}

impl Origin {
    pub(crate) fn of(event: &Event<'_>) -> Self {
        let mut origin = Self::default();
        event.record(&mut origin);
        origin
    }

    /// The metadata that the record would have had as an event.
    pub(crate) fn metadata(&self, event: &Event<'_>) -> Metadata<'_> {
        let fields = FieldSet::new(&["message"], event.metadata().callsite());
        let (module, file) = (self.module.as_deref(), self.file.as_deref());
        Metadata::new(
            "log record",
            &self.target,
            *event.metadata().level(),
            file,
            self.line,
            module,
            fields,
            Kind::EVENT,
        )
    }
}

impl Visit for Origin {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "log.target" => self.target = value.to_owned(),
            "log.module_path" => self.module = Some(value.to_owned()),
            "log.file" => self.file = Some(value.to_owned()),
            _ => {}
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "log.line" {
            self.line = value.try_into().ok();
        }
    }

    fn record_debug(&mut self, _message: &Field, _value: &dyn Debug) {}
}
