//! States of files and jobs, with their edges.
//!
//! A job has entries: one destination each, with one file (a pair of source and destination) for every replica. Of an
//! entry at most one file waits or is under way at a time; the others are in reserve. The state of a job follows from
//! the outcomes of its entries. Refuses to store states: the store keeps them, and asks here what may follow.

/// State of a file: a transfer from one source to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileState {
    /// Waits for its turn.
    Waiting,
    /// Another replica of the entry goes first, or an earlier hop. A replica comes back when its turn comes.
    Reserved,
    /// An operator has banned an endpoint, and the file waits for the end of the ban.
    Held,
    /// Under way.
    Active,
    /// Has arrived, and is verified as the job asked.
    Finished,
    /// Has failed, and is not tried again.
    Failed,
    /// Was cancelled.
    Cancelled,
}

/// Names and edges of the states: name in the store and the API, and the states that may follow.
const FILE_STATES: [(FileState, &str, &[FileState]); 7] = {
    use FileState::{Active, Cancelled, Failed, Finished, Held, Reserved, Waiting};
    [
        // A file fails while it waits when its time in the queue is over. It goes back to the reserve when its source
        // has had an obstacle for long, and another replica takes its place.
        (Waiting, "waiting", &[Active, Held, Reserved, Failed, Cancelled]),
        (Reserved, "reserved", &[Waiting, Cancelled]),
        (Held, "held", &[Waiting, Reserved, Failed, Cancelled]),
        // It waits again after a failed attempt, or when its worker is lost.
        (Active, "active", &[Waiting, Finished, Failed, Cancelled]),
        (Finished, "finished", &[]),
        (Failed, "failed", &[]),
        (Cancelled, "cancelled", &[]),
    ]
};

impl FileState {
    /// Every state.
    pub const ALL: [Self; 7] =
        [Self::Waiting, Self::Reserved, Self::Held, Self::Active, Self::Finished, Self::Failed, Self::Cancelled];

    /// Returns the name in the store and the API; never changed.
    pub fn name(self) -> &'static str {
        FILE_STATES[self as usize].1
    }

    /// Returns the state of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Returns the states that may follow.
    pub fn next(self) -> &'static [Self] {
        FILE_STATES[self as usize].2
    }

    /// Returns true if no state follows.
    pub fn is_final(self) -> bool {
        self.next().is_empty()
    }
}

/// Kind of a job: what its entries have to do with each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// Nothing.
    #[default]
    Files,
    /// They are the hops of one file, in order.
    Hops,
    /// They share sessions, whatever their size (session reuse).
    Reuse,
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobState {
    /// Files are still being added.
    Open,
    /// No file is or was under way.
    Waiting,
    /// Files are under way, or some have ended.
    Active,
    /// All entries have arrived.
    Finished,
    /// Some entries have arrived, some have failed.
    PartlyFinished,
    /// No entry has arrived, and some have failed. A job of hops: a hop has failed.
    Failed,
    /// No entry has arrived, and the others were cancelled. A job of hops: a hop was cancelled.
    Cancelled,
}

impl JobState {
    /// Every state.
    pub const ALL: [Self; 7] =
        [Self::Open, Self::Waiting, Self::Active, Self::Finished, Self::PartlyFinished, Self::Failed, Self::Cancelled];

    /// Returns the name in the store and the API; never changed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Waiting => "waiting",
            Self::Active => "active",
            Self::Finished => "finished",
            Self::PartlyFinished => "partly_finished",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns the state of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Returns true if no state follows.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Finished | Self::PartlyFinished | Self::Failed | Self::Cancelled)
    }
}

/// Numbers of the entries of a job, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// All.
    pub all: u64,
    /// Arrived.
    pub finished: u64,
    /// Every replica has failed.
    pub failed: u64,
    /// Cancelled.
    pub cancelled: u64,
    /// Files that are under way.
    pub active: u64,
    /// More entries can still be added.
    pub is_open: bool,
    /// Prefixes whose files are still being listed. The files found so far can run.
    pub listing: u64,
}

impl Entries {
    /// Returns the state of the job.
    pub fn state(&self, kind: JobKind) -> JobState {
        let ended = self.finished + self.failed + self.cancelled;
        if kind == JobKind::Hops && !self.is_open {
            // The hops after the first one that fails cannot run.
            match (self.failed > 0, self.cancelled > 0) {
                (true, _) => return JobState::Failed,
                (false, true) => return JobState::Cancelled,
                (false, false) => {}
            }
        }
        match (self.is_open, ended >= self.all && self.listing == 0) {
            (true, _) => JobState::Open,
            (false, false) if self.active == 0 && ended == 0 => JobState::Waiting,
            (false, false) => JobState::Active,
            (false, true) if self.finished == self.all => JobState::Finished,
            (false, true) if self.failed > 0 && self.finished > 0 => JobState::PartlyFinished,
            (false, true) if self.failed > 0 => JobState::Failed,
            // Some have arrived before the others were cancelled.
            (false, true) => JobState::Cancelled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_its_place_in_the_table_and_one_name() {
        for (place, state) in FileState::ALL.into_iter().enumerate() {
            assert_eq!((FILE_STATES[place].0, state as usize), (state, place));
            assert_eq!(FileState::by_name(state.name()), Some(state));
        }
        for state in JobState::ALL {
            assert_eq!(JobState::by_name(state.name()), Some(state));
        }
        assert_eq!(FileState::by_name("SUBMITTED"), None);
    }

    #[test]
    fn every_state_can_end_and_nothing_leaves_an_end() {
        for state in FileState::ALL {
            let mut reached = vec![state];
            let mut at = 0;
            while at < reached.len() {
                let next = reached[at].next().iter().filter(|next| !reached.contains(next)).copied();
                reached.extend(next.collect::<Vec<_>>());
                at += 1;
            }
            assert!(reached.contains(&FileState::Cancelled) || state.is_final(), "{state:?}");
            assert!(!state.next().contains(&state), "{state:?} follows itself");
        }
        let ends: Vec<FileState> = FileState::ALL.into_iter().filter(|state| state.is_final()).collect();
        assert_eq!(ends, [FileState::Finished, FileState::Failed, FileState::Cancelled]);
    }

    #[test]
    fn the_state_of_a_job_follows_from_its_entries() {
        use JobState::{Active, Cancelled, Failed, Finished, Open, PartlyFinished, Waiting};
        // All, finished, failed, cancelled, under way; state of a job of files, and of one of hops.
        for (all, finished, failed, cancelled, active, of_files, of_hops) in [
            (2, 0, 0, 0, 0, Waiting, Waiting),
            (2, 0, 0, 0, 1, Active, Active),
            (2, 1, 0, 0, 0, Active, Active),
            (2, 2, 0, 0, 0, Finished, Finished),
            (2, 1, 1, 0, 0, PartlyFinished, Failed),
            (2, 0, 2, 0, 0, Failed, Failed),
            (2, 0, 1, 0, 0, Active, Failed),
            (2, 0, 1, 1, 0, Failed, Failed),
            (2, 0, 0, 2, 0, Cancelled, Cancelled),
            (2, 1, 0, 1, 0, Cancelled, Cancelled),
            (2, 0, 0, 1, 0, Active, Cancelled),
            (3, 1, 1, 1, 0, PartlyFinished, Failed),
        ] {
            let entries = Entries { all, finished, failed, cancelled, active, ..Entries::default() };
            assert_eq!(entries.state(JobKind::Files), of_files, "{entries:?}");
            assert_eq!(entries.state(JobKind::Hops), of_hops, "{entries:?}, hops");
            assert_eq!(Entries { is_open: true, ..entries }.state(JobKind::Files), Open, "{entries:?}, open");
            let is_idle = active == 0 && finished + failed + cancelled == 0;
            let of_listed = Entries { listing: 1, ..entries }.state(JobKind::Files);
            assert_eq!(of_listed, if is_idle { Waiting } else { Active }, "{entries:?}, a prefix is being listed");
        }
    }
}
