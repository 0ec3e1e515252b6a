//! Counters of a session, and their sums over the sessions of one copy.

/// Files, bytes and blocks of a session, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Files in the manifest so far.
    pub files_known: u64,
    /// Bytes of these files.
    pub bytes_known: u64,
    /// File bytes at the receiver, as reported to this end.
    pub bytes_done: u64,
    /// Part of `bytes_done` that an earlier run left, in files that this session completes.
    pub bytes_held: u64,
    /// Part of `bytes_done` in files that were up to date.
    pub bytes_up_to_date: u64,
    /// Bytes of holes, which are reported and not carried. At a sender this may be ahead of `bytes_done` by what is in
    /// flight.
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
    /// Bytes of unfinished files at the receiver when the last of them ended. The next session finds these bytes
    /// there, and they do not count as held.
    pub unsettled_bytes: u64,
    /// Bytes of the files that these sessions copied.
    pub copied_bytes: u64,
    /// True if the next session offers settled files again, and finds them up to date. Otherwise it leaves them out.
    pub are_found_again: bool,
}

impl Earlier {
    /// Returns the counters of a session that follows, with those of the sessions before it.
    ///
    /// [`Counters::bytes_brought`] of the result is the sum over all sessions. The manifest starts anew with each
    /// session: `files_known` is that of the session, and `bytes_known` is at least `bytes_done`.
    pub fn and(&self, now: &Counters) -> Counters {
        let Self { counters: earlier, unsettled_bytes, copied_bytes, are_found_again } = self;
        let brought = earlier.bytes_brought().saturating_add(now.bytes_brought());
        let bytes_held = earlier.bytes_held.saturating_add(now.bytes_held.saturating_sub(*unsettled_bytes));
        let bytes_up_to_date = match are_found_again {
            true => earlier.bytes_up_to_date.max(now.bytes_up_to_date.saturating_sub(*copied_bytes)),
            false => earlier.bytes_up_to_date.saturating_add(now.bytes_up_to_date),
        };
        let bytes_holes = earlier.bytes_holes.saturating_add(now.bytes_holes);
        // Holes that are ahead of the data in flight are not done yet.
        let holes_done = now.bytes_holes.min(now.bytes_done.saturating_sub(now.bytes_held + now.bytes_up_to_date));
        let parts = [brought, bytes_held, bytes_up_to_date, earlier.bytes_holes, holes_done];
        let bytes_done = parts.into_iter().fold(0, u64::saturating_add);
        Counters {
            files_known: now.files_known,
            bytes_known: bytes_done.saturating_add(now.bytes_known.saturating_sub(now.bytes_done)),
            bytes_done,
            bytes_held,
            bytes_up_to_date,
            bytes_holes,
            bytes_carried: earlier.bytes_carried.saturating_add(now.bytes_carried),
            bytes_encoded: earlier.bytes_encoded.saturating_add(now.bytes_encoded),
            blocks_again: earlier.blocks_again.saturating_add(now.blocks_again),
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
        let earlier = Earlier { counters: first, unsettled_bytes: 70, ..Earlier::default() };
        let second =
            Counters { bytes_known: 100, bytes_done: 100, bytes_held: 70, bytes_carried: 30, ..Counters::default() };
        let both = earlier.and(&second);
        assert_eq!((both.bytes_done, both.bytes_held, both.bytes_carried, both.blocks_again), (100, 20, 80, 1));
        assert_eq!((both.bytes_brought(), Counters::default().bytes_brought()), (80, 0));
    }

    #[test]
    fn files_that_an_earlier_session_settled_keep_their_part_of_the_progress() {
        // A file of 1000 bytes, 900 of them holes, was copied; 10 of the 40 bytes of another have arrived.
        let first = Counters {
            bytes_known: 1040,
            bytes_done: 1010,
            bytes_holes: 900,
            bytes_carried: 110,
            ..Counters::default()
        };
        let earlier = Earlier { counters: first, unsettled_bytes: 10, copied_bytes: 1000, are_found_again: false };
        // A push leaves the first file out, and a pull finds it up to date.
        let push = Counters { bytes_known: 40, bytes_done: 25, bytes_held: 10, ..Counters::default() };
        let pull = Counters { bytes_known: 1040, bytes_done: 1025, bytes_up_to_date: 1000, ..push };
        for (earlier, now) in [(earlier, push), (Earlier { are_found_again: true, ..earlier }, pull)] {
            let both = earlier.and(&now);
            assert_eq!((both.bytes_known, both.bytes_done, both.bytes_brought()), (1040, 1025, 125));
            assert_eq!((both.bytes_held, both.bytes_up_to_date), (0, 0));
            let begun = earlier.and(&Counters::default());
            assert_eq!((begun.bytes_known, begun.bytes_done), (1010, 1010), "nothing is lost when a session begins");
        }
    }
}
