//! Log of an agent: start of each session, each file, and the outcome.
//!
//! The lines are events of `tracing`, in the span of their session. Does not write to a file or terminal: the
//! subscriber of the process does. Reads the clock itself: a session lasts from its start to its last event.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::path_cache::DataDirection;
use sterna_proto::quantity::readable_time;
use sterna_proto::session::{
    ActiveEnd, FileOutcome, Hello, LaneId, PassiveAgent, Probe, Query, Request, SessionId, Target, number_of_name,
};
use sterna_proto::{BitRate, ByteCount, EntryKind, FileEntry};
use tracing::{Level, error_span};

use super::limiter::{Cause, Kind, Limiter, Origin, cut, shown};
use crate::identity::Fingerprint;
use crate::session::{Observer, Progress, SessionEvent};

/// Name of a root without a name. Reason: only the operator may see its directory, and `/` would look like the root of
/// the file system.
pub(super) const ONLY_ROOT: &str = "the agent's root";

/// Maximum number of sources in the first line of a pull. Reason: the line stays readable, and each file has its own
/// line later.
const SOURCES_NAMED: usize = 3;

/// Logs the events of a session, and counts them for the last line.
pub(super) struct SessionLog {
    log: Arc<Limiter>,
    /// Peer of the session, and the span whose fields all its lines get.
    origin: Origin,
    is_dry_run: bool,
    /// Paths of the files of a numbered copy.
    names: Vec<Vec<u8>>,
    linger: Duration,
    started: Instant,
    totals: Mutex<Totals>,
}

#[derive(Default)]
struct Totals {
    copied: u64,
    copied_bytes: u64,
    up_to_date: u64,
    failed: u64,
    /// Time from the start to the last event.
    elapsed: Duration,
    /// Reason of the early end of the session, if it ended early.
    aborted: Option<String>,
    /// Outage: no lane is up.
    outage: Option<Outage>,
    /// Reason of the end of the last lane.
    last_down: String,
    is_logged: bool,
}

/// Time without a lane of a session that is not over.
#[derive(Clone, Copy)]
struct Outage {
    since: Instant,
    is_logged: bool,
}

/// Time without a lane after which an outage is logged. Reason: a tick may fall between the end of the last lane and
/// the end of the session.
const OUTAGE_LOGGED_AFTER: Duration = Duration::from_millis(700);

impl SessionLog {
    /// Starts the log of a session that starts now, and writes its first line.
    pub(super) fn start(
        log: &Arc<Limiter>,
        (peer, session): (&Fingerprint, &SessionId),
        from: SocketAddr,
        hello: &Hello,
        linger: Duration,
    ) -> Self {
        let request = &hello.request;
        let name: String = session.0[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        let on_behalf_of = hello.grant.as_ref().map(|grant| grant.grant.service).or(hello.on_behalf_of);
        let on_behalf_of = on_behalf_of.map(|key| Fingerprint(key).short());
        // The level of errors: a subscriber that shows only warnings needs the fields too.
        let span = error_span!(
            "session",
            session = name,
            peer = peer.short(),
            on_behalf_of,
            from = %from,
            request = request_name(request),
            path = shown(&place(request)),
        );
        let origin = Origin { cause: Cause::Peer(*peer), span };
        let behind = on_behalf_of.map(|key| format!(" for {key}")).unwrap_or_default();
        let line = format!("{}, by {}{behind} at {from}", described(request), peer.short());
        log.line(&origin, (Kind::Sessions, Level::INFO), &line, Instant::now());
        let is_dry_run = match request {
            Request::Push { dry_run, .. } | Request::Pull { dry_run, .. } => *dry_run,
            Request::ThirdParty(copy) => copy.dry_run,
            Request::Query(_) | Request::Probe(_) => false,
        };
        let names = match request {
            Request::Push { targets, .. } => paths_of(targets),
            Request::Pull { sources, numbered: true, .. } => sources.clone(),
            _ => Vec::new(),
        };
        let (log, started, totals) = (Arc::clone(log), Instant::now(), Mutex::default());
        Self { log, origin, is_dry_run, names, linger, started, totals }
    }

    /// Gives the paths of the files of a numbered copy that this agent runs for others.
    pub(super) fn with_names(self, names: Vec<Vec<u8>>) -> Self {
        Self { names, ..self }
    }

    /// Returns the path of a file for people: that at this agent, if the name of the file is only its number.
    fn name_of(&self, entry: &FileEntry) -> String {
        let path = number_of_name(&entry.path).and_then(|number| self.names.get(number));
        cut(&path.map_or_else(|| entry.path.to_string(), |path| String::from_utf8_lossy(path).into_owned()))
    }

    /// Logs that a lane has joined.
    pub(super) fn lane_up(&self, lane: LaneId, how: impl std::fmt::Display) {
        self.detail(&format!("lane {} is up: {how}", lane.0));
    }

    /// Logs that a lane has ended.
    pub(super) fn lane_down(&self, lane: LaneId, reason: String) {
        let reason = cut(&reason);
        self.detail(&format!("lane {} is down: {reason}", lane.0));
        self.totals.lock().last_down = reason;
    }

    /// Logs a detail of this session.
    pub(super) fn detail(&self, text: &str) {
        self.log.detail(&self.origin, text, Instant::now());
    }

    /// Records the number of lanes at a tick. Logs an outage once, and its end once.
    pub(super) fn handle_lanes(&self, lanes: u32, now: Instant) {
        let mut totals = self.totals.lock();
        let line = match (lanes, totals.outage) {
            (0, outage) => {
                let Outage { since, is_logged } = outage.unwrap_or(Outage { since: now, is_logged: false });
                let is_long = now.saturating_duration_since(since) >= OUTAGE_LOGGED_AFTER;
                totals.outage = Some(Outage { since, is_logged: is_long });
                (is_long && !is_logged).then(|| {
                    let (reason, patience) = (&totals.last_down, readable_time(self.linger));
                    (Level::WARN, format!("no lane is left ({reason}); waiting up to {patience} for its client"))
                })
            }
            (_, outage) => {
                totals.outage = None;
                outage.is_some_and(|outage| outage.is_logged).then(|| (Level::INFO, "its client is back".to_owned()))
            }
        };
        drop(totals);
        line.iter().for_each(|(level, line)| self.line(Kind::Sessions, *level, line));
    }

    /// Returns the number of files that the session has published here.
    pub(super) fn published(&self) -> u64 {
        self.totals.lock().copied
    }

    /// Writes the last line, once. `cut` is the reason if the agent ends a session that is not over.
    pub(super) fn end(&self, progress: &Progress, cut: Option<&str>) {
        let mut totals = self.totals.lock();
        if std::mem::replace(&mut totals.is_logged, true) {
            return;
        }
        if cut.is_some() {
            totals.elapsed = self.started.elapsed();
        }
        let brought = totals.copied_bytes.saturating_sub(progress.counters.bytes_held + progress.counters.bytes_holes);
        let goodput = BitRate::mean(ByteCount(brought), totals.elapsed);
        // A client may leave before its last message arrives.
        let is_whole = progress.manifest_complete && progress.counters.bytes_done >= progress.counters.bytes_known;
        let (level, mut line, unfinished) = match totals.aborted.as_deref().or(cut.filter(|_| !is_whole)) {
            None => (Level::INFO, "over: ".to_owned(), 0),
            Some(reason) => {
                let whole = totals.copied_bytes + progress.counters.bytes_up_to_date;
                let unfinished = progress.counters.bytes_done.saturating_sub(whole);
                (Level::WARN, format!("ended early: {reason}; until then "), unfinished)
            }
        };
        let files = |count: u64| if count == 1 { "1 file".to_owned() } else { format!("{count} files") };
        let (copied, bytes) = (files(totals.copied), ByteCount(totals.copied_bytes));
        let seconds = totals.elapsed.as_secs_f64();
        // Writing to a string cannot fail.
        let _ = match (totals.copied, self.is_dry_run) {
            (0, _) => write!(line, "nothing copied in {seconds:.1} s"),
            (_, true) => write!(line, "would copy {copied}, {bytes}"),
            (_, false) => write!(line, "{copied}, {bytes} in {seconds:.1} s ({goodput} goodput)"),
        };
        for (count, what) in [(totals.up_to_date, "up to date"), (totals.failed, "failed")] {
            if count > 0 {
                let _ = write!(line, ", {count} {what}");
            }
        }
        drop(totals);
        if unfinished > 0 {
            let _ = write!(line, ", and {} of files that are not whole yet", ByteCount(unfinished));
        }
        self.line(Kind::Sessions, level, &line);
    }

    fn line(&self, kind: Kind, level: Level, line: &str) {
        self.log.line(&self.origin, (kind, level), line, Instant::now());
    }
}

impl Totals {
    /// Counts an outcome; returns its line.
    fn count(&mut self, (entry, path): (&FileEntry, &str), outcome: &FileOutcome, is_dry_run: bool) -> (Kind, String) {
        let is_file = u64::from(entry.kind == EntryKind::File);
        match outcome {
            FileOutcome::Done(_) => {
                self.copied += is_file;
                self.copied_bytes += entry.size;
                (Kind::Files, format!("{} {path}", if is_dry_run { "would copy" } else { "done" }))
            }
            FileOutcome::Skipped => {
                self.up_to_date += is_file;
                (Kind::Files, format!("up to date {path}"))
            }
            FileOutcome::Failed(error) => {
                self.failed += 1;
                (Kind::Failures, format!("failed {path}: {}", cut(&error.chain())))
            }
        }
    }
}

impl Observer for SessionLog {
    fn session_event(&self, event: SessionEvent) {
        let mut totals = self.totals.lock();
        totals.elapsed = self.started.elapsed();
        let (kind, line) = match event {
            SessionEvent::Settled { entry, outcome } => {
                totals.count((&entry, &self.name_of(&entry)), &outcome, self.is_dry_run)
            }
            SessionEvent::Notice(text) => (Kind::Files, cut(&text)),
            SessionEvent::Decision { subject, rationale } => {
                drop(totals);
                return self.detail(&format!("{subject}: {rationale}"));
            }
            SessionEvent::Unreadable(error) | SessionEvent::Left(error) => {
                totals.failed += 1;
                (Kind::Failures, cut(&error.chain()))
            }
            // The error becomes the reason in the last line.
            SessionEvent::Aborted(error) => {
                totals.aborted = Some(cut(&error.chain()));
                return;
            }
        };
        drop(totals);
        let level = if kind == Kind::Failures { Level::WARN } else { Level::INFO };
        self.line(kind, level, &line);
    }
}

fn quoted(path: &[u8]) -> String {
    match path.iter().all(|&b| b == b'/') {
        true => ONLY_ROOT.to_owned(),
        false => cut(&format!("{:?}", String::from_utf8_lossy(path))),
    }
}

pub(super) fn paths_of(targets: &[Target]) -> Vec<Vec<u8>> {
    targets.iter().map(|target| target.path.clone()).collect()
}

fn first_of(sources: &[Vec<u8>], name: fn(&[u8]) -> String) -> String {
    let first: Vec<_> = sources.iter().take(SOURCES_NAMED).map(|source| name(source)).collect();
    let rest = match sources.len().saturating_sub(SOURCES_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{rest}", first.join(", "))
}

/// Returns the request in one word for the field of a span.
fn request_name(request: &Request) -> &'static str {
    match request {
        Request::Push { .. } => "push",
        Request::Pull { .. } => "pull",
        Request::ThirdParty(_) => "third-party",
        Request::Query(Query::List { .. }) => "list",
        Request::Query(Query::Delete { .. }) => "delete",
        Request::Query(Query::Rename { .. }) => "rename",
        Request::Probe(_) => "probe",
    }
}

/// Returns the place at this agent that a request is about.
fn place(request: &Request) -> String {
    let bare = |path: &[u8]| cut(&String::from_utf8_lossy(path));
    match request {
        Request::Push { destination, targets, .. } => bare(targets.first().map_or(destination, |target| &target.path)),
        Request::Pull { sources, .. } => first_of(sources, bare),
        Request::ThirdParty(copy) => match copy.active {
            ActiveEnd::Source => first_of(&copy.sources, bare),
            ActiveEnd::Destination => bare(&copy.destination),
        },
        Request::Query(Query::List { paths, .. } | Query::Delete { paths, .. }) => first_of(paths, bare),
        Request::Query(Query::Rename { from, .. }) => bare(from),
        Request::Probe(_) => String::new(),
    }
}

fn described(request: &Request) -> String {
    let (words, dry_run) = match request {
        Request::Push { dry_run, targets, .. } if !targets.is_empty() => {
            (format!("push to {}", first_of(&paths_of(targets), quoted)), dry_run)
        }
        Request::Push { destination, dry_run, .. } => (format!("push to {}", quoted(destination)), dry_run),
        Request::Pull { sources, dry_run, .. } => (format!("pull of {}", first_of(sources, quoted)), dry_run),
        Request::ThirdParty(copy) => {
            let PassiveAgent { host, port, .. } = &copy.passive;
            let sources = first_of(&copy.sources, quoted);
            let words = match copy.active {
                ActiveEnd::Source => format!("third-party push of {sources} to {host}:{port}"),
                ActiveEnd::Destination => {
                    format!("third-party pull of {sources} from {host}:{port} to {}", quoted(&copy.destination))
                }
            };
            (words, &copy.dry_run)
        }
        Request::Query(query) => {
            let words = match query {
                Query::List { paths, .. } => format!("list of {}", first_of(paths, quoted)),
                Query::Delete { paths, .. } => format!("deletion of {}", first_of(paths, quoted)),
                Query::Rename { from, to, .. } => format!("rename of {} to {}", quoted(from), quoted(to)),
            };
            (words, &false)
        }
        Request::Probe(Probe { direction, bytes }) => {
            let way = match direction {
                DataDirection::Out => "to",
                DataDirection::In => "from",
            };
            (format!("probe with {} {way} this agent", ByteCount(*bytes)), &false)
        }
    };
    if *dry_run { format!("dry run of a {words}") } else { words }
}

#[cfg(test)]
mod tests {
    use sterna_proto::compress::CompressionPolicy;
    use sterna_proto::{Checks, Error, ErrorKind, FileDigests, FileTime, Phase, RelPath, Scope};

    use super::*;
    use crate::agent::captured::Captured;

    fn started() -> SessionLog {
        let log = Arc::new(Limiter::default());
        let sources = ["a/x", "b", "c", "d", "e"].map(|path| path.as_bytes().to_vec()).to_vec();
        let compress = CompressionPolicy::Never;
        let request = Request::Pull { sources, dry_run: false, compress, on_demand: false, numbered: false };
        let (peer, session) = (Fingerprint([0; 32]), SessionId([0xa5; 16]));
        let hello = Hello { on_behalf_of: Some([0xff; 32]), ..Hello::new(session, request) };
        SessionLog::start(&log, (&peer, &session), "127.0.0.1:5".parse().unwrap(), &hello, Duration::from_secs(600))
    }

    fn settled(path: &str, outcome: FileOutcome) -> SessionEvent {
        let (path, mtime) = (RelPath::new(path.as_bytes()).unwrap(), FileTime { seconds: 1, nanoseconds: 0 });
        let (kind, size) = (EntryKind::File, 3000);
        let entry =
            FileEntry { path, kind, size, mtime, mode: 0o644, allocated: size, inode: 1, version: 1, growth: None };
        SessionEvent::Settled { entry, outcome }
    }

    #[test]
    fn a_session_has_a_first_and_a_last_line_and_its_lanes_are_details() {
        let lines = Captured::start();
        let session = started();
        session.lane_up(LaneId(0), "tcp");
        session.session_event(settled("f", FileOutcome::Done(FileDigests::of(b"", Checks::NONE))));
        session.session_event(settled("g", FileOutcome::Skipped));
        session.lane_down(LaneId(0), "reset".to_owned());
        session.end(&Progress::default(), None);
        session.end(&Progress::default(), None);
        let said = lines.all();
        let expected = [
            "session a5a5a5a5: pull of \"a/x\", \"b\", \"c\" and 2 more, by SHA256:AAAAAAAAAAAA for SHA256://////////// at 127.0.0.1:5",
            "(session a5a5a5a5: lane 0 is up: tcp)",
            "session a5a5a5a5: done f",
            "session a5a5a5a5: up to date g",
            "(session a5a5a5a5: lane 0 is down: reset)",
        ];
        assert_eq!(said[..5], expected);
        assert!(said[5].starts_with("session a5a5a5a5: over: 1 file, 3.00 kB in "), "{said:?}");
        assert!(said[5].ends_with(" goodput), 1 up to date") && said.len() == 6, "{said:?}");
        let fields = lines.spans()[0].clone().into_iter().collect::<Vec<_>>();
        let expected = [
            ("from", "127.0.0.1:5"),
            ("on_behalf_of", "SHA256:////////////"),
            ("path", "a/x, b, c and 2 more"),
            ("peer", "SHA256:AAAAAAAAAAAA"),
            ("request", "pull"),
            ("session", "a5a5a5a5"),
        ];
        assert_eq!(fields, expected.map(|(name, value)| (name, value.to_owned())));
    }

    #[test]
    fn the_files_of_a_numbered_copy_are_logged_by_their_paths() {
        let lines = Captured::start();
        let session = started().with_names(vec![b"day/x".to_vec(), b"day/y".to_vec()]);
        let done = || FileOutcome::Done(FileDigests::of(b"x", Checks::NONE));
        for name in ["1", "2", "x"] {
            session.session_event(settled(name, done()));
        }
        let expected = ["day/y", "2", "x"].map(|name| format!("session a5a5a5a5: done {name}"));
        assert_eq!(lines.all()[1..], expected);
    }

    #[test]
    fn a_session_that_is_cut_says_why_and_how_far_it_came() {
        let lines = Captured::start();
        let session = started();
        let stopped = Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "stopped");
        session.session_event(SessionEvent::Unreadable(Error::protocol("x")));
        session.session_event(SessionEvent::Aborted(stopped));
        let counters = sterna_proto::Counters { bytes_done: 7000, ..Default::default() };
        session.end(&Progress { counters, ..Progress::default() }, None);
        let said = lines.all();
        assert_eq!((said.len(), &*said[1]), (3, "session a5a5a5a5: x"));
        assert!(
            said[2].starts_with("session a5a5a5a5: ended early: stopped; until then nothing copied in "),
            "{said:?}"
        );
        assert!(said[2].ends_with(" s, 1 failed, and 7.00 kB of files that are not whole yet"), "{said:?}");

        let lines = Captured::start();
        started().end(&Progress::default(), Some("the agent is stopping"));
        let said = lines.all();
        assert!(said[1].starts_with("session a5a5a5a5: ended early: the agent is stopping; until then "), "{said:?}");
    }

    #[test]
    fn a_peer_that_fails_every_file_with_many_words_fills_no_log() {
        let lines = Captured::start();
        let session = started();
        for index in 0..5000 {
            let words = Error::new(ErrorKind::Io, Scope::Destination, Phase::Transfer, "x".repeat(10_000));
            session.session_event(settled(&format!("{index}{}", "d/".repeat(1000) + "f"), FileOutcome::Failed(words)));
        }
        let bytes: usize = lines.all().iter().filter(|line| !line.starts_with('(')).map(String::len).sum();
        assert!(bytes < 600 * 500, "{bytes} bytes");
    }

    #[test]
    fn an_outage_is_reported_once_and_so_is_its_end() {
        let lines = Captured::start();
        let session = started();
        session.lane_down(LaneId(3), "reset".to_owned());
        let start = Instant::now();
        for (tick, lanes) in (0u32..).zip([1, 0, 0, 1, 0, 0, 0, 0, 0, 2, 2]) {
            session.handle_lanes(lanes, start + tick * Duration::from_millis(250));
        }
        let said = lines.all();
        let outage = "session a5a5a5a5: no lane is left (reset); waiting up to 10 min for its client";
        assert_eq!(said[2..], [outage, "session a5a5a5a5: its client is back"]);
    }
}
