//! Log of an agent on stderr, for the journal of the service manager: text for people, or one JSON object per line.
//!
//! Takes the events of Sterna from `tracing`. Refuses those of libraries: nobody has checked them for secrets. Reads
//! the clock for the time in a JSON object; a service manager adds the time to text.

use std::collections::HashMap;
use std::fmt;

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Map, Value};
use sterna_proto::file::plain;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::flags::LogFormat;
use crate::output::say;

/// Sends the log of this process to stderr, from now on. Errors: it has a log already, which is our bug.
pub fn start(format: LogFormat, level: LevelFilter) -> Result<(), Error> {
    tracing::subscriber::set_global_default(Lines::new(format, level, is_journal(), say))
        .map_err(|e| Error::new(ErrorKind::Internal, Scope::Service, Phase::Prepare, "start the log").caused_by(e))
}

/// Returns true if stderr leads to the journal of systemd. Source: `JOURNAL_STREAM` in systemd.exec(5), which has the
/// device and the inode of that stream.
fn is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    rustix::fs::fstat(std::io::stderr()).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Writes each event as a line, with the fields of the span that the event names as its parent.
///
/// A subscriber without the current span of each thread: sessions have no thread of their own. The registry of
/// `tracing-subscriber` has that, and panics when more than 4,096 threads open spans; an agent can have more lanes.
struct Lines<W> {
    format: LogFormat,
    level: LevelFilter,
    /// True if each line begins with its priority (sd-daemon(3)), which the journal removes.
    has_priorities: bool,
    write: W,
    spans: Mutex<Spans>,
}

/// Open spans, by number.
#[derive(Default)]
struct Spans {
    opened: u64,
    open: HashMap<u64, OpenSpan>,
}

struct OpenSpan {
    fields: Fields,
    handles: usize,
}

impl<W: Fn(&str)> Lines<W> {
    fn new(format: LogFormat, level: LevelFilter, has_priorities: bool, write: W) -> Self {
        Self { format, level, has_priorities, write, spans: Mutex::default() }
    }

    fn spans(&self) -> MutexGuard<'_, Spans> {
        self.spans.lock()
    }
}

impl<W: Fn(&str) + 'static> Subscriber for Lines<W> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("sterna") && *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let mut spans = self.spans();
        spans.opened += 1;
        let number = spans.opened;
        spans.open.insert(number, OpenSpan { fields, handles: 1 });
        Id::from_u64(number)
    }

    fn clone_span(&self, id: &Id) -> Id {
        if let Some(span) = self.spans().open.get_mut(&id.into_u64()) {
            span.handles += 1;
        }
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let (mut spans, number) = (self.spans(), id.into_u64());
        let Some(span) = spans.open.get_mut(&number) else { return false };
        span.handles -= 1;
        span.handles == 0 && spans.open.remove(&number).is_some()
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        if let Some(span) = self.spans().open.get_mut(&id.into_u64()) {
            values.record(&mut span.fields);
        }
    }

    fn event(&self, event: &Event<'_>) {
        let of_span = event.parent().and_then(|id| Some(self.spans().open.get(&id.into_u64())?.fields.clone()));
        let mut fields = of_span.unwrap_or_default();
        event.record(&mut fields);
        let line = match self.format {
            LogFormat::Text => fields.text(),
            LogFormat::Json => fields.json(event.metadata(), OffsetDateTime::now_utc()),
        };
        let priority = if self.has_priorities { priority(*event.metadata().level()) } else { "" };
        (self.write)(&format!("{priority}{line}"));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Returns the prefix of a line that gives it a priority in the journal (sd-daemon(3)).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// Fields of a span or an event. Texts hold no control characters.
#[derive(Clone, Default)]
struct Fields(Map<String, Value>);

impl Fields {
    /// Returns the line for people: the message, after the name of its session if there is one.
    fn text(&self) -> String {
        let field = |name: &str| self.0.get(name).and_then(Value::as_str);
        let message = field("message").unwrap_or_default();
        field("session").map_or_else(|| message.to_owned(), |session| format!("session {session}: {message}"))
    }

    /// Returns the line for programs: all fields, the level and the time.
    fn json(mut self, metadata: &Metadata<'_>, now: OffsetDateTime) -> String {
        let level = metadata.level().as_str().to_ascii_lowercase();
        let now = now.replace_millisecond(now.millisecond()).unwrap_or(now);
        self.0.insert("level".to_owned(), level.into());
        // A year has four digits, which the format requires, for the next 8,000 years.
        self.0.insert("time".to_owned(), now.format(&Rfc3339).unwrap_or_default().into());
        Value::Object(self.0).to_string()
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), plain(value).into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing::{Dispatch, debug, error_span, info, warn};

    use super::*;

    /// Returns the lines that `run` logs.
    fn logged(format: LogFormat, level: LevelFilter, run: impl FnOnce()) -> Vec<String> {
        logged_to(false, format, level, run)
    }

    fn logged_to(has_priorities: bool, format: LogFormat, level: LevelFilter, run: impl FnOnce()) -> Vec<String> {
        let written = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&written);
        let write = move |line: &str| lines.lock().push(line.to_owned());
        tracing::subscriber::with_default(Lines::new(format, level, has_priorities, write), run);
        written.lock().clone()
    }

    fn session() {
        let span = error_span!("session", session = "a5a5a5a5", peer = "SHA256:x", path = "in/\u{9b}31m\u{202e}");
        info!(parent: &span, kind = "files", "done f");
        warn!(parent: &span, kind = "files that failed", "failed g\n");
        debug!(parent: &span, "lane 0 is up");
        info!("no session");
        info!(target: "noq", "a library");
    }

    #[test]
    fn a_line_of_text_begins_with_its_session() {
        let all = ["session a5a5a5a5: done f", r"session a5a5a5a5: failed g\n", "session a5a5a5a5: lane 0 is up"];
        assert_eq!(logged(LogFormat::Text, LevelFilter::DEBUG, session), [&all[..], &["no session"]].concat());
        assert_eq!(logged(LogFormat::Text, LevelFilter::WARN, session), all[1..2]);
        assert_eq!(logged(LogFormat::Text, LevelFilter::ERROR, session), [""; 0]);
    }

    #[test]
    fn a_span_lasts_as_long_as_its_last_handle() {
        let ignore: fn(&str) = |_| {};
        let dispatch = Dispatch::new(Lines::new(LogFormat::Text, LevelFilter::INFO, false, ignore));
        let open = || dispatch.downcast_ref::<Lines<fn(&str)>>().unwrap().spans().open.len();
        tracing::dispatcher::with_default(&dispatch, || {
            let span = error_span!("session", session = "a5a5a5a5");
            let other = span.clone();
            drop(span);
            assert_eq!(open(), 1);
            drop(other);
            assert_eq!(open(), 0);
        });
    }

    #[test]
    fn a_line_in_the_journal_begins_with_its_priority() {
        let lines = logged_to(true, LogFormat::Text, LevelFilter::DEBUG, session);
        let begins: Vec<&str> = lines.iter().map(|line| &line[..4]).collect();
        assert_eq!(begins, ["<6>s", "<4>s", "<7>s", "<6>n"]);
    }

    #[test]
    fn a_json_line_has_the_fields_of_its_session_and_no_control_characters() {
        let lines = logged(LogFormat::Json, LevelFilter::WARN, session);
        let mut line: Value = serde_json::from_str(&lines[0]).unwrap();
        let time = line["time"].take();
        let form: String = time.as_str().unwrap().chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert!(form.starts_with("0000-00-00T00:00:00") && form.ends_with("0Z") && form.len() <= 24, "{time}");
        let expected = serde_json::json!({
            "level": "warn",
            "kind": "files that failed",
            "message": r"failed g\n",
            "path": r"in/\u{9b}31m\u{202e}",
            "peer": "SHA256:x",
            "session": "a5a5a5a5",
            "time": null,
        });
        assert_eq!((line, lines.len()), (expected, 1));
    }
}
