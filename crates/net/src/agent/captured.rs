//! Captures the log of the code that a test runs on its own thread.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

/// Log since [`Captured::start`], until it is dropped.
pub(super) struct Captured {
    capture: Capture,
    _guard: DefaultGuard,
}

/// Fields of a span or an event, by name.
pub(super) type Fields = BTreeMap<&'static str, String>;

impl Captured {
    /// Captures what this thread logs from now on.
    pub(super) fn start() -> Self {
        let capture = Capture::default();
        let guard = tracing::subscriber::set_default(capture.clone());
        Self { capture, _guard: guard }
    }

    /// Returns all lines. Those of a session begin with its name; details stand in parentheses.
    pub(super) fn all(&self) -> Vec<String> {
        self.capture.lines.lock().clone()
    }

    /// Returns the fields of each span.
    pub(super) fn spans(&self) -> Vec<Fields> {
        self.capture.spans.lock().clone()
    }
}

#[derive(Clone, Default)]
struct Capture {
    lines: Arc<Mutex<Vec<String>>>,
    /// Spans; the number of the first is 1.
    spans: Arc<Mutex<Vec<Fields>>>,
}

struct Recorder<'a>(&'a mut Fields);

impl Visit for Recorder<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Subscriber for Capture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("sterna")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = Fields::new();
        attributes.record(&mut Recorder(&mut fields));
        let mut spans = self.spans.lock();
        spans.push(fields);
        Id::from_u64(spans.len() as u64)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = event.parent().map_or_else(Fields::new, |id| {
            let index = id.into_u64() as usize - 1;
            self.spans.lock()[index].clone()
        });
        event.record(&mut Recorder(&mut fields));
        let session = fields.get("session").map(|session| format!("session {session}: "));
        let line = format!("{}{}", session.unwrap_or_default(), fields["message"]);
        let is_detail = *event.metadata().level() > Level::INFO;
        self.lines.lock().push(if is_detail { format!("({line})") } else { line });
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
