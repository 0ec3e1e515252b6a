//! Rate limiter of the agent's log: escapes lines, shortens them, and applies a budget for each peer and kind.
//!
//! Counts lines by cause and kind, one minute at a time. Leaves out lines above the budget, and logs their number. Does
//! not interpret the lines. Time is an argument. Lines that the budgets allow leave as events of `tracing`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::file::plain;
use tracing::{Level, Span, debug, info, warn};

use crate::identity::Fingerprint;

/// Subject of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Failed handshakes and refused peers.
    Refusals,
    /// Sessions: their start, outages and end, and breaches of the protocol by their peers.
    Sessions,
    /// Files that arrived or were up to date, and notices.
    Files,
    /// Files that failed.
    Failures,
    /// Lanes, decisions, and lines above the budget of other kinds, all at the level of debugging.
    Details,
}

/// Cause of a line: one peer, or all unidentified peers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Cause {
    Strangers,
    Peer(Fingerprint),
    /// Peers without separate budgets, when there are [`PEERS_MAX`] budgets.
    OtherPeers,
}

/// Duration of a budget.
const MINUTE: Duration = Duration::from_secs(60);

/// Maximum number of budgets in a minute, one for each peer and kind. Reason: each takes some 100 bytes, and with
/// `--authorize-any` a host can connect with any number of keys.
const PEERS_MAX: usize = 256;

/// Time after which the same refusal is logged again. Reason: the lanes of one session arrive within a few round trips.
const REFUSAL_LASTS: Duration = Duration::from_secs(5);

/// Maximum length of a line, in characters. Reason: the longest line of the agent is a refusal, with the reason why the
/// list is not in use.
const LINE_CHARS_MAX: usize = 1000;

/// Maximum length of a text that a peer chose, in characters. The end is kept too, because it has the cause of an
/// error.
const PEER_CHARS_MAX: usize = 200;

impl Kind {
    /// Maximum number of lines in a minute, for one cause. Reason: 20 refusals inform an operator as well as 500. A
    /// spool of 100 files a second has a line for each file. All kinds together are some 2 MB a minute.
    const fn lines_max(self) -> u32 {
        match self {
            Self::Refusals => 20,
            Self::Sessions => 200,
            Self::Failures => 600,
            Self::Files | Self::Details => 6000,
        }
    }

    /// Returns the name of the kind for summaries.
    const fn name(self) -> &'static str {
        match self {
            Self::Refusals => "handshakes and refusals",
            Self::Sessions => "sessions",
            Self::Files => "files",
            Self::Failures => "files that failed",
            Self::Details => "details",
        }
    }
}

/// Origin of a line: the peer that pays for it, and the span with the fields that it gets.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) cause: Cause,
    pub(super) span: Span,
}

impl Origin {
    /// Returns the origin of lines about unidentified peers.
    pub(super) fn strangers() -> Self {
        Self { cause: Cause::Strangers, span: Span::none() }
    }
}

/// Logs the lines that budgets allow.
#[derive(Default)]
pub(super) struct Limiter {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Start of the present minute.
    minute: Option<Instant>,
    counts: HashMap<(Cause, Kind), Counts>,
    /// Last refusal. Every lane of a session gets the same refusal, and one line is enough.
    refusal: Option<(Fingerprint, String, Instant)>,
}

#[derive(Default)]
struct Counts {
    lines: u32,
    left_out: u64,
}

impl Limiter {
    /// Logs a line for every operator. Above the budget the line becomes a detail, which counts in the budget of
    /// details.
    pub(super) fn line(&self, of: &Origin, (kind, level): (Kind, Level), line: &str, now: Instant) {
        self.tick(now);
        let is_within = self.state.lock().takes(of.cause, kind);
        match is_within {
            true => emit(&of.span, kind, level, line),
            false => self.detail(of, line, now),
        }
    }

    /// Logs a line for the search of a problem.
    pub(super) fn detail(&self, of: &Origin, line: &str, now: Instant) {
        self.tick(now);
        let is_within = self.state.lock().takes(of.cause, Kind::Details);
        if is_within {
            emit(&of.span, Kind::Details, Level::DEBUG, line);
        }
    }

    /// Logs a refusal of `peer`; as a detail, if the same refusal was just logged.
    pub(super) fn refusal(&self, of: &Origin, peer: Fingerprint, (reason, line): (String, &str), now: Instant) {
        let mut state = self.state.lock();
        let is_known = state.refusal.as_ref().is_some_and(|(who, why, at)| {
            (*who, why) == (peer, &reason) && now.saturating_duration_since(*at) < REFUSAL_LASTS
        });
        if !is_known {
            state.refusal = Some((peer, reason, now));
        }
        drop(state);
        match is_known {
            true => self.detail(of, line, now),
            false => self.line(of, (Kind::Refusals, Level::WARN), line, now),
        }
    }

    /// Logs the number of lines that the last minute left out, once.
    pub(super) fn tick(&self, now: Instant) {
        let mut state = self.state.lock();
        if state.minute.is_some_and(|minute| now.saturating_duration_since(minute) < MINUTE) {
            return;
        }
        state.minute = Some(now);
        let counts = std::mem::take(&mut state.counts);
        drop(state);
        let mut lines: Vec<(Kind, String)> = counts.iter().filter_map(|(of, counts)| summary(*of, counts)).collect();
        lines.sort_unstable_by(|a, b| a.1.cmp(&b.1));
        for (kind, line) in &lines {
            let level = if *kind == Kind::Details { Level::DEBUG } else { Level::WARN };
            emit(&Span::none(), *kind, level, line);
        }
    }
}

/// Logs a line that no peer can cause, without a budget.
pub(super) fn warn_operator(line: &str) {
    emit(&Span::none(), Kind::Refusals, Level::WARN, line);
}

/// Sends a line to the log of the process. Escapes and shortens it, so that no subscriber has to.
fn emit(span: &Span, kind: Kind, level: Level, line: &str) {
    let (kind, line) = (kind.name(), shown(line));
    match level {
        Level::ERROR | Level::WARN => warn!(parent: span, kind, "{line}"),
        Level::INFO => info!(parent: span, kind, "{line}"),
        Level::DEBUG | Level::TRACE => debug!(parent: span, kind, "{line}"),
    }
}

impl State {
    /// Counts a line. Returns true if the budget allows it.
    fn takes(&mut self, cause: Cause, kind: Kind) -> bool {
        let is_new = !self.counts.contains_key(&(cause, kind));
        let is_full = self.counts.len() >= PEERS_MAX;
        let cause = if is_new && is_full && cause != Cause::Strangers { Cause::OtherPeers } else { cause };
        let counts = self.counts.entry((cause, kind)).or_default();
        if counts.lines < kind.lines_max() {
            counts.lines += 1;
            return true;
        }
        counts.left_out += 1;
        false
    }
}

/// Returns the line about lines that were left out, with their kind.
fn summary((cause, kind): (Cause, Kind), counts: &Counts) -> Option<(Kind, String)> {
    let about = match cause {
        Cause::Strangers => "strangers".to_owned(),
        Cause::Peer(peer) => peer.short(),
        Cause::OtherPeers => "other peers".to_owned(),
    };
    let more = counts.left_out;
    (more > 0).then(|| (kind, format!("{more} more lines of {about} ({}) were not shown", kind.name())))
}

/// Shortens a text that a peer chose: keeps the beginning and the end of a long one.
pub(super) fn cut(text: &str) -> String {
    cut_to(PEER_CHARS_MAX, text)
}

fn cut_to(chars_max: usize, text: &str) -> String {
    let count = text.chars().count();
    if count <= chars_max {
        return text.to_owned();
    }
    let (front, back) = (chars_max * 2 / 3, chars_max / 3);
    let start: String = text.chars().take(front).collect();
    let end: String = text.chars().skip(count - back).collect();
    format!("{start} … {end}")
}

/// Returns a line as it may appear in a log: on one line, without control characters, and not long.
pub(super) fn shown(line: &str) -> String {
    cut_to(LINE_CHARS_MAX, &plain(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::captured::Captured;

    const REFUSALS: (Kind, Level) = (Kind::Refusals, Level::WARN);
    const SESSIONS: (Kind, Level) = (Kind::Sessions, Level::INFO);
    const FILES: (Kind, Level) = (Kind::Files, Level::INFO);
    const FAILURES: (Kind, Level) = (Kind::Failures, Level::WARN);

    fn peer(number: u16) -> Origin {
        let mut key = [0; 32];
        key[..2].copy_from_slice(&number.to_be_bytes());
        Origin { cause: Cause::Peer(Fingerprint(key)), span: Span::none() }
    }

    fn logged(lines: &Captured) -> Vec<String> {
        lines.all().into_iter().filter(|line| !line.starts_with('(')).collect()
    }

    #[test]
    fn the_refusal_of_every_lane_of_a_session_is_one_line() {
        let (lines, limiter, now) = (Captured::start(), Limiter::default(), Instant::now());
        let (one, other) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
        let refuse = |peer, reason: &str, after| {
            limiter.refusal(&Origin::strangers(), peer, (reason.to_owned(), reason), now + after);
            lines.all().pop().unwrap()
        };
        assert_eq!([refuse(one, "x", Duration::ZERO), refuse(one, "x", REFUSAL_LASTS / 2)], ["x", "(x)"]);
        assert_eq!(refuse(one, "x", REFUSAL_LASTS), "x", "it is still so, and reported again");
        assert_eq!([refuse(one, "y", REFUSAL_LASTS), refuse(other, "y", REFUSAL_LASTS)], ["y", "y"]);
    }

    #[test]
    fn strangers_and_peers_fill_their_own_budgets_and_how_much_was_left_out_is_reported() {
        let (lines, limiter, now) = (Captured::start(), Limiter::default(), Instant::now());
        for line in 0..1000 {
            let now = now + Duration::from_millis(line);
            limiter.line(&Origin::strangers(), REFUSALS, "garbage", now);
            limiter.line(&peer(1), FAILURES, "failed", now);
        }
        assert_eq!(logged(&lines).len(), 20 + 600);
        limiter.line(&peer(2), FAILURES, "another peer", now + Duration::from_secs(2));
        assert_eq!(logged(&lines).last().unwrap(), "another peer");
        // The summary is also logged when no more lines arrive.
        limiter.tick(now + MINUTE);
        limiter.tick(now + MINUTE * 2);
        let summaries = [
            "400 more lines of SHA256:AAEAAAAAAAAA (files that failed) were not shown",
            "980 more lines of strangers (handshakes and refusals) were not shown",
        ];
        assert_eq!(logged(&lines)[621..], summaries);
    }

    #[test]
    fn details_have_a_budget_too_and_keys_that_are_made_at_will_share_one() {
        let (lines, limiter, now) = (Captured::start(), Limiter::default(), Instant::now());
        for number in 0..1000 {
            for _ in 0..30 {
                limiter.line(&peer(number), SESSIONS, "begins", now);
            }
        }
        assert_eq!(logged(&lines).len(), PEERS_MAX * 30 + 200, "the last 744 are others");
        for _ in 0..20_000 {
            limiter.detail(&Origin::strangers(), "knocked", now);
        }
        let knocks = lines.all().iter().filter(|line| *line == "(knocked)").count();
        assert_eq!(knocks, 6000);
    }

    #[test]
    fn a_line_holds_nothing_that_drives_a_terminal_and_is_not_long() {
        let (lines, limiter, now) = (Captured::start(), Limiter::default(), Instant::now());
        limiter.line(&peer(1), FILES, "a\u{85}b\u{9b}31m\u{202e}c\u{2066}d\u{200f}e\u{61c}f\ng\u{1b}[2J", now);
        let said = logged(&lines).pop().unwrap();
        assert_eq!(said, r"a\u{85}b\u{9b}31m\u{202e}c\u{2066}d\u{200f}e\u{61c}f\ng\u{1b}[2J");
        limiter.line(&peer(1), FILES, &"x".repeat(100_000), now);
        assert!(logged(&lines).pop().unwrap().chars().count() <= LINE_CHARS_MAX + 3);
        let text = format!("failed {}: no space left", "x".repeat(4000));
        assert!(cut(&text).starts_with("failed xxx") && cut(&text).ends_with("xxx: no space left"));
        assert!(cut(&text).chars().count() <= PEER_CHARS_MAX + 3);
    }
}
