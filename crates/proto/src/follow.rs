//! When a file that is followed is to be sent, and when it has ended: decisions from looks at it.
//!
//! Nothing here looks at a file or reads a clock: looks, events and time come in, a [`FollowStep`] leaves. One [`Followed`] is kept for each file
//! that has not ended.

use std::time::{Duration, Instant};

use crate::file::FileTime;

/// How long a file that was closed by its writer must stay as it is. Reason: a writer that appends by opening anew does so at once; what is left of the second that
/// the last byte has is for reading and sending it.
pub const CLOSE_GRACE: Duration = Duration::from_millis(250);

/// How long a writer must have paused before the part of a block that it has written is sent. Reason: half of the second that the last byte has.
pub const PAUSE: Duration = Duration::from_millis(500);

/// How long a file must stay as it is to have ended, unless an idle time is given. Reason: what other tools that follow
/// files wait; a capture that writes once a second does not end by chance.
pub const IDLE_DEFAULT: Duration = Duration::from_secs(10);

/// How long a file must stay as it is to have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndRule {
    /// Whoever has it open.
    pub idle: Duration,
    /// Once every writer that was noticed has closed it.
    pub closed: Duration,
}

impl EndRule {
    /// The rule where nothing is given: a close ends a file sooner than silence does.
    pub const DEFAULT: Self = Self { idle: IDLE_DEFAULT, closed: CLOSE_GRACE };

    /// The rule where an idle time is given: it holds for files that were closed too, since their writer may open them
    /// again.
    pub const fn after(idle: Duration) -> Self {
        Self { idle, closed: idle }
    }
}

/// What was seen of a file at one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Size in bytes.
    pub size: u64,
    /// Modification time.
    pub mtime: FileTime,
    /// Inode.
    pub inode: u64,
}

/// How a file came to be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It was there, and was last changed so long ago: it may be one that an earlier run has sent.
    There(Duration),
    /// It was named, and was last changed so long ago.
    Named(Duration),
    /// It has appeared.
    Appeared,
}

/// Why a file counts as ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileEnd {
    /// Its writer has closed it.
    Closed,
    /// It has stayed as it is for the idle time.
    Idle,
    /// There is a marker.
    Marked,
}

/// What to do about a followed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowStep {
    /// Nothing is to be sent.
    Wait,
    /// What it has in whole blocks is to be sent, if that is more than before.
    Grow,
    /// Its writer pauses: the part of a block that it has written is to be sent too.
    Pause,
    /// It is whole.
    End(FileEnd),
}

/// A file that has not ended.
#[derive(Clone, Debug)]
pub struct Followed {
    look: Look,
    changed_at: Instant,
    closed_at: Option<Instant>,
    is_marked: bool,
    /// It has appeared, was named, or was seen growing: one that was only there may be an old one.
    is_live: bool,
}

impl Followed {
    /// A file at its first look.
    pub fn new(now: Instant, look: Look, found: Found) -> Self {
        let (is_live, age) = match found {
            Found::There(age) => (false, age),
            Found::Named(age) => (true, age),
            Found::Appeared => (true, Duration::ZERO),
        };
        let changed_at = now.checked_sub(age).unwrap_or(now);
        Self { look, changed_at, closed_at: None, is_marked: false, is_live }
    }

    /// What was seen of it last.
    pub fn look(&self) -> Look {
        self.look
    }

    /// It was looked at again. What was closed and changes is open again.
    pub fn handle_look(&mut self, now: Instant, look: Look) {
        if look != self.look {
            (self.look, self.changed_at, self.closed_at, self.is_live) = (look, now, None, true);
        }
    }

    /// It is open: it was written to, or a writer is known to have it. Whoever had closed it, that was not the end.
    pub fn handle_open(&mut self) {
        (self.closed_at, self.is_live) = (None, true);
    }

    /// Its writer has closed it, or it was moved here; the caller has looked at it since.
    pub fn handle_closed(&mut self, now: Instant) {
        self.closed_at = Some(now);
    }

    /// There is a marker.
    pub fn handle_marked(&mut self) {
        self.is_marked = true;
    }

    /// What to do about it now.
    pub fn step(&self, now: Instant, rule: EndRule) -> FollowStep {
        let unchanged_for = |since: Instant, time: Duration| now.saturating_duration_since(since) >= time;
        if self.is_marked {
            return FollowStep::End(FileEnd::Marked);
        }
        if self.closed_at.is_some_and(|at| unchanged_for(at.max(self.changed_at), rule.closed)) {
            return FollowStep::End(FileEnd::Closed);
        }
        if unchanged_for(self.changed_at, rule.idle) {
            return FollowStep::End(FileEnd::Idle);
        }
        match (self.is_live, unchanged_for(self.changed_at, PAUSE)) {
            (false, _) => FollowStep::Wait,
            (true, false) => FollowStep::Grow,
            (true, true) => FollowStep::Pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = IDLE_DEFAULT;
    const RULE: EndRule = EndRule::DEFAULT;

    fn look(size: u64) -> Look {
        Look { size, mtime: FileTime { seconds: size as i64, nanoseconds: 0 }, inode: 1 }
    }

    #[test]
    fn a_file_ends_when_it_was_closed_and_stays_as_it_is() {
        let start = Instant::now();
        let mut file = Followed::new(start, look(0), Found::Appeared);
        file.handle_look(start, look(5));
        assert_eq!(file.step(start, RULE), FollowStep::Grow);
        file.handle_closed(start);
        assert_eq!(file.step(start, RULE), FollowStep::Grow, "another may open it");
        assert_eq!(file.step(start + CLOSE_GRACE, RULE), FollowStep::End(FileEnd::Closed));
        // Opened again, and it still looks as it did.
        file.handle_open();
        assert_eq!(file.step(start + CLOSE_GRACE, RULE), FollowStep::Grow);
        file.handle_closed(start + CLOSE_GRACE);
        assert_eq!(file.step(start + CLOSE_GRACE * 2, RULE), FollowStep::End(FileEnd::Closed));
        // Opened again and written to.
        file.handle_look(start + CLOSE_GRACE, look(6));
        assert_eq!(file.step(start + CLOSE_GRACE + PAUSE, RULE), FollowStep::Pause);
        assert_eq!(file.step(start + CLOSE_GRACE + IDLE, RULE), FollowStep::End(FileEnd::Idle));
    }

    #[test]
    fn a_close_does_not_shorten_an_idle_time_that_was_given() {
        let (start, rule) = (Instant::now(), EndRule::after(IDLE));
        let mut file = Followed::new(start, look(5), Found::Appeared);
        file.handle_closed(start);
        assert_eq!(file.step(start + IDLE - Duration::from_millis(1), rule), FollowStep::Pause);
        assert_eq!(file.step(start + IDLE, rule), FollowStep::End(FileEnd::Closed));
        // One that is closed late, unchanged.
        file.handle_closed(start + IDLE / 2);
        assert_eq!(file.step(start + IDLE, rule), FollowStep::End(FileEnd::Idle));
        file.handle_marked();
        assert_eq!(file.step(start, rule), FollowStep::End(FileEnd::Marked));
    }

    #[test]
    fn a_pause_is_no_end_and_a_marker_is_one_at_once() {
        let start = Instant::now();
        let mut file = Followed::new(start, look(1), Found::Appeared);
        assert_eq!(file.step(start + PAUSE, RULE), FollowStep::Pause);
        file.handle_look(start + PAUSE, look(2));
        assert_eq!(file.step(start + PAUSE, RULE), FollowStep::Grow);
        file.handle_marked();
        assert_eq!(file.step(start + PAUSE, RULE), FollowStep::End(FileEnd::Marked));
    }

    #[test]
    fn a_file_that_was_there_is_old_until_it_grows() {
        let start = Instant::now() + IDLE;
        let old = Followed::new(start, look(1), Found::There(IDLE));
        assert_eq!(old.step(start, RULE), FollowStep::End(FileEnd::Idle));
        // Sent by an earlier run perhaps, and about to be found up to date: it is not sent as a growing one.
        let mut young = Followed::new(start, look(1), Found::There(IDLE / 2));
        assert_eq!(young.step(start, RULE), FollowStep::Wait);
        assert_eq!(young.step(start + IDLE / 2, RULE), FollowStep::End(FileEnd::Idle));
        let named = Followed::new(start, look(1), Found::Named(IDLE / 2));
        assert_eq!(named.step(start, RULE), FollowStep::Pause);
        young.handle_look(start + IDLE / 4, look(2));
        assert_eq!(young.step(start + IDLE / 4, RULE), FollowStep::Grow);
    }
}
