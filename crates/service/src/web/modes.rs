//! Ways to move the bytes of a file between two storages, and the ways that work for a pair of them.
//!
//! A storage that is asked for a copy that it cannot make costs a request, and some seconds if it tries to reach the
//! other one. Kept in memory. A service of several nodes would keep it in the store, with the other statistics of a
//! link.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time after which a way that did not work is tried again. Reason: an update or a mended certificate is noticed within
/// an hour.
const FORGET_AFTER: Duration = Duration::from_secs(3600);

/// Maximum number of pairs. Reason: some MB of memory.
const PAIRS_MAX: usize = 20_000;

/// Way to move the bytes. The first two can be left out for a pair of storages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mode {
    /// The destination reads from the source.
    Pull,
    /// The source writes to the destination.
    Push,
    /// This worker reads from the source and writes to the destination.
    Streamed,
    /// This worker writes a file of this host to the destination.
    Put,
}

impl Mode {
    /// Order in which they are tried between storages. Reason: a pull fails at once if the source is missing, and
    /// leaves nothing there.
    const ALL: [Self; 3] = [Self::Pull, Self::Push, Self::Streamed];

    /// Returns the name, in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
            Self::Streamed => "streamed",
            Self::Put => "put",
        }
    }
}

/// Origins of a source and a destination.
pub(super) type Pair = (String, String);

/// Ways that did not work, by pair, each with the time.
#[derive(Debug, Default)]
pub(super) struct Modes(Mutex<HashMap<Pair, [Option<Instant>; 2]>>);

impl Modes {
    /// Returns the ways to try, in their order. The last is always there: it needs no storage that copies.
    pub fn order(&self, pair: &Pair, now: Instant) -> Vec<Mode> {
        let failed = self.0.lock().get(pair).copied().unwrap_or_default();
        let is_open = |mode: &Mode| {
            let failed = failed.get(*mode as usize).copied().flatten();
            failed.is_none_or(|at| now.saturating_duration_since(at) >= FORGET_AFTER)
        };
        Mode::ALL.into_iter().filter(is_open).collect()
    }

    /// Returns the ways to try by which no bytes go through this worker. A way that did not work is tried again if no
    /// other one is left.
    pub fn third_party(&self, pair: &Pair, now: Instant) -> Vec<Mode> {
        let without = |modes: Vec<Mode>| modes.into_iter().filter(|mode| *mode != Mode::Streamed).collect::<Vec<_>>();
        let open = without(self.order(pair, now));
        if open.is_empty() { without(Mode::ALL.to_vec()) } else { open }
    }

    /// Records that a way works for a pair, and that these do not.
    pub fn handle_worked(&self, pair: &Pair, mode: Mode, refused: &[Mode], now: Instant) {
        let mut pairs = self.0.lock();
        if refused.is_empty() && !pairs.contains_key(pair) {
            return;
        }
        if pairs.len() >= PAIRS_MAX && !pairs.contains_key(pair) {
            pairs.clear();
        }
        let failed = pairs.entry(pair.clone()).or_default();
        let times = std::iter::once((mode, None)).chain(refused.iter().map(|mode| (*mode, Some(now))));
        for (mode, time) in times {
            // The last way has no place: it is always tried.
            failed.get_mut(mode as usize).into_iter().for_each(|place| *place = time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_that_fails_is_left_out_for_an_hour_and_for_its_pair() {
        let (modes, start) = (Modes::default(), Instant::now());
        let pair = ("https://a".to_owned(), "https://b".to_owned());
        let back = ("https://b".to_owned(), "https://a".to_owned());
        assert_eq!(modes.order(&pair, start), Mode::ALL);
        modes.handle_worked(&pair, Mode::Push, &[Mode::Pull], start);
        assert_eq!(modes.order(&pair, start), [Mode::Push, Mode::Streamed]);
        assert_eq!(modes.third_party(&pair, start), [Mode::Push]);
        modes.handle_worked(&pair, Mode::Streamed, &[Mode::Push], start);
        assert_eq!(modes.order(&pair, start), [Mode::Streamed]);
        assert_eq!(modes.third_party(&pair, start), [Mode::Pull, Mode::Push], "there is no other way");
        assert_eq!(modes.order(&back, start), Mode::ALL);
        assert_eq!(modes.order(&pair, start + FORGET_AFTER), Mode::ALL);
        modes.handle_worked(&pair, Mode::Push, &[], start + FORGET_AFTER);
        assert_eq!(modes.order(&pair, start), [Mode::Push, Mode::Streamed]);
    }

    #[test]
    fn many_pairs_take_little_memory() {
        let (modes, now) = (Modes::default(), Instant::now());
        for number in 0..2 * PAIRS_MAX {
            modes.handle_worked(&(number.to_string(), String::new()), Mode::Push, &[Mode::Pull], now);
        }
        assert!(modes.0.lock().len() <= PAIRS_MAX);
    }
}
