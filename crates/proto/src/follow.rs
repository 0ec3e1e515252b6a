//! Decisions for a followed file: when to send it, and when it has ended.
//!
//! Turns observations of a file into a [`FollowStep`]. One [`Followed`] is kept for each file that has not ended.
//! Refuses to look at a file or read a clock. Observations, events and time come in as arguments.

use std::time::{Duration, Instant};

use crate::file::FileTime;

/// Time that a closed file must stay unchanged to count as ended. Reason: a writer that appends by reopening does so at
/// once. The rest of the one-second budget for the last byte is for reading and sending it.
pub const CLOSE_GRACE: Duration = Duration::from_millis(250);

/// Pause of a writer after which the incomplete block is sent. Reason: half of the one-second budget for the last byte.
pub const PAUSE: Duration = Duration::from_millis(500);

/// Time that a file must stay unchanged to count as ended, unless the user gives an idle time. Reason: other tools that
/// follow files wait as long, and a capture that writes once a second does not end by chance.
pub const IDLE_DEFAULT: Duration = Duration::from_secs(10);

/// Time that a file must stay unchanged to count as ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndRule {
    /// Time for any file, open or closed.
    pub idle: Duration,
    /// Time after every known writer has closed the file.
    pub closed: Duration,
}

impl EndRule {
    /// Default rule: a closed file ends sooner than a silent one.
    pub const DEFAULT: Self = Self { idle: IDLE_DEFAULT, closed: CLOSE_GRACE };

    /// Returns the rule for a given idle time. The idle time also holds for closed files, because their writer may
    /// reopen them.
    pub const fn after(idle: Duration) -> Self {
        Self { idle, closed: idle }
    }
}

/// Observation of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Size in bytes.
    pub size: u64,
    /// Modification time.
    pub mtime: FileTime,
    /// Inode.
    pub inode: u64,
}

/// Way in which a file came to be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The file existed and was last changed this long ago. An earlier run may have sent it.
    There(Duration),
    /// The user named the file; it was last changed this long ago.
    Named(Duration),
    /// The file has appeared.
    Appeared,
}

/// Reason why a file counts as ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileEnd {
    /// The writer has closed the file.
    Closed,
    /// The file has not changed for the idle time.
    Idle,
    /// The marker of the file exists.
    Marked,
}

/// Action for a followed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowStep {
    /// Send nothing.
    Wait,
    /// Send the complete blocks of the file, if there are new ones.
    Grow,
    /// The writer pauses: also send the incomplete block.
    Pause,
    /// The file is complete.
    End(FileEnd),
}

/// A followed file that has not ended.
#[derive(Clone, Debug)]
pub struct Followed {
    look: Look,
    changed_at: Instant,
    closed_at: Option<Instant>,
    is_marked: bool,
    /// True if it has appeared, was named, or was seen growing. A file that only existed may be an old one.
    is_live: bool,
}

impl Followed {
    /// Returns the state after the first observation.
    pub fn new(now: Instant, look: Look, found: Found) -> Self {
        let (is_live, age) = match found {
            Found::There(age) => (false, age),
            Found::Named(age) => (true, age),
            Found::Appeared => (true, Duration::ZERO),
        };
        let changed_at = now.checked_sub(age).unwrap_or(now);
        Self { look, changed_at, closed_at: None, is_marked: false, is_live }
    }

    /// Returns the last observation.
    pub fn look(&self) -> Look {
        self.look
    }

    /// Records a new observation. A closed file that changes counts as open again.
    pub fn handle_look(&mut self, now: Instant, look: Look) {
        if look != self.look {
            (self.look, self.changed_at, self.closed_at, self.is_live) = (look, now, None, true);
        }
    }

    /// Records that the file is open: it was written to, or a writer has it open. An earlier close does not count.
    pub fn handle_open(&mut self) {
        (self.closed_at, self.is_live) = (None, true);
    }

    /// Records that its writer has closed it, or that it was moved here. The caller must have observed it since.
    pub fn handle_closed(&mut self, now: Instant) {
        self.closed_at = Some(now);
    }

    /// Records that its marker exists.
    pub fn handle_marked(&mut self) {
        self.is_marked = true;
    }

    /// Returns the action at time `now`.
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
        // Reopened, with no visible change.
        file.handle_open();
        assert_eq!(file.step(start + CLOSE_GRACE, RULE), FollowStep::Grow);
        file.handle_closed(start + CLOSE_GRACE);
        assert_eq!(file.step(start + CLOSE_GRACE * 2, RULE), FollowStep::End(FileEnd::Closed));
        // Reopened and written to.
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
        // A file that is closed late and unchanged.
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
        // An earlier run may have sent this file, and it may prove up to date: it is not sent as a growing file.
        let mut young = Followed::new(start, look(1), Found::There(IDLE / 2));
        assert_eq!(young.step(start, RULE), FollowStep::Wait);
        assert_eq!(young.step(start + IDLE / 2, RULE), FollowStep::End(FileEnd::Idle));
        let named = Followed::new(start, look(1), Found::Named(IDLE / 2));
        assert_eq!(named.step(start, RULE), FollowStep::Pause);
        young.handle_look(start + IDLE / 4, look(2));
        assert_eq!(young.step(start + IDLE / 4, RULE), FollowStep::Grow);
    }
}
