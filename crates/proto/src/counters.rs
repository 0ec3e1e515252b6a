//! Counters of a session, and their sums over the sessions of one copy.

/// Files, bytes and blocks of a session, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Files in the manifest so far.
    pub files_known: u64,
    /// Bytes of these files.
    pub bytes_known: u64,
    /// File bytes at the receiver, as far as this end knows.
    pub bytes_done: u64,
    /// Part of `bytes_done` that an earlier run left, in files that this session completes.
    pub bytes_held: u64,
    /// Part of `bytes_done` in files that were up to date.
    pub bytes_up_to_date: u64,
    /// Bytes of holes, which are reported and not carried. At a sender this may be ahead of `bytes_done` by what is in flight.
    pub bytes_holes: u64,
    /// File bytes that lanes carried, including repeated blocks.
    pub bytes_carried: u64,
    /// Size of `bytes_carried` on the lanes: smaller where blocks were compressed.
    pub bytes_encoded: u64,
    /// Blocks that were sent or requested again.
    pub blocks_again: u64,
}

impl Counters {
    /// File bytes that lanes have brought to the receiver: the numerator of goodput.
    pub fn bytes_brought(&self) -> u64 {
        self.bytes_done.saturating_sub(self.bytes_held + self.bytes_up_to_date + self.bytes_holes)
    }
}

/// Counters of the earlier sessions of a copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Earlier {
    /// Sums over these sessions.
    pub counters: Counters,
    /// Bytes of unfinished files at the receiver when the last of them ended. The next session finds these bytes there, and they do not
    /// count as held.
    pub unsettled_bytes: u64,
}

impl Earlier {
    /// Returns the counters of a session that follows, with those of the sessions before it.
    ///
    /// The manifest, and with it `files_known`, `bytes_known`, `bytes_done` and `bytes_up_to_date`, starts anew with each session.
    pub fn and(&self, now: &Counters) -> Counters {
        let Self { counters: earlier, unsettled_bytes } = self;
        Counters {
            bytes_held: earlier.bytes_held.saturating_add(now.bytes_held.saturating_sub(*unsettled_bytes)),
            bytes_holes: earlier.bytes_holes.saturating_add(now.bytes_holes),
            bytes_carried: earlier.bytes_carried.saturating_add(now.bytes_carried),
            bytes_encoded: earlier.bytes_encoded.saturating_add(now.bytes_encoded),
            blocks_again: earlier.blocks_again.saturating_add(now.blocks_again),
            ..*now
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_session_of_the_copy_left_does_not_count_as_held() {
        let first =
            Counters { bytes_done: 70, bytes_held: 20, bytes_carried: 50, blocks_again: 1, ..Counters::default() };
        let earlier = Earlier { counters: first, unsettled_bytes: 70 };
        let second =
            Counters { bytes_known: 100, bytes_done: 100, bytes_held: 70, bytes_carried: 30, ..Counters::default() };
        let both = earlier.and(&second);
        assert_eq!((both.bytes_done, both.bytes_held, both.bytes_carried, both.blocks_again), (100, 20, 80, 1));
        assert_eq!((both.bytes_brought(), Counters::default().bytes_brought()), (80, 0));
    }
}
