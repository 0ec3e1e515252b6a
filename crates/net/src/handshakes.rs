//! Lanes between their ClientHello and their hello: a bounded number, for a bounded time, and random eviction when it is full.
//!
//! What it does: counts lanes until their hello is admitted (TCP: from the ClientHello, QUIC: from the first bytes of the
//! control stream, and before that in a table of its own for each socket). When one more than the limit begins, [`Crowd`]
//! chooses which one ends. A lane that takes too long is ended too.
//! What it refuses to do: shake hands, read a clock, or know who a peer is.
//!
//! The arithmetic: an honest lane needs one round trip here, 0.7 s at 660 ms with its computing. Beside strangers that send
//! a ClientHello each and then nothing, from as many prefixes as they like, `r` a second, it stays with a chance of
//! `exp(-0.7 r / 1024)`: 0.93 at 100 a second, 0.71 at 500, 0.50 at 1,000. A client dials four times: 0.99 at 500, 0.94 at
//! 1,000. A connection without a ClientHello never comes here: see [`crate::arrivals`].

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::crowd::Crowd;
use crate::lane::tcp;
use crate::session::lock;

/// Lanes without a hello at once, of both transports, where the process may have enough descriptors. Reason: each costs a
/// thread and some 100 kB until it is known, 100 MB in all; honest lanes are here for a round trip.
pub const HANDSHAKES_MAX: usize = 1024;

/// Time to the hello. Reason: the hello comes right behind a handshake, which has as much for itself.
const HELLO_TIME_MAX: Duration = tcp::HANDSHAKE_TIME_MAX;

/// Lanes without a hello.
pub struct Handshakes {
    crowd: Mutex<Crowd<UnderWay>>,
}

struct UnderWay {
    since: Instant,
    cut: Box<dyn Fn() + Send>,
}

/// The place of one lane in the table, until it is dropped.
pub struct Slot {
    table: Arc<Handshakes>,
    number: u64,
}

impl Handshakes {
    /// An empty table that takes `places_max` lanes, at least one.
    pub fn new(places_max: usize) -> Arc<Self> {
        Arc::new(Self { crowd: Mutex::new(Crowd::new(places_max)) })
    }

    /// How many lanes are in it.
    pub fn count(&self) -> usize {
        lock(&self.crowd).len()
    }

    /// Takes note of a lane from `from`; ends another when there are too many. `cut` ends this one: it must not block.
    pub fn begin(self: &Arc<Self>, from: IpAddr, now: Instant, cut: impl Fn() + Send + 'static) -> Slot {
        let (number, evicted) = lock(&self.crowd).add(from, UnderWay { since: now, cut: Box::new(cut) });
        evicted.iter().for_each(|handshake| (handshake.cut)());
        Slot { table: Arc::clone(self), number }
    }

    /// Ends every lane that has taken longer than it may.
    pub fn end_late(&self, now: Instant) {
        let is_late = |handshake: &UnderWay| now.saturating_duration_since(handshake.since) > HELLO_TIME_MAX;
        let late = lock(&self.crowd).remove_all(is_late);
        late.iter().for_each(|handshake| (handshake.cut)());
    }
}

impl Slot {
    /// Whether the lane was not ended here.
    pub fn stays(&self) -> bool {
        lock(&self.table.crowd).find(self.number).is_some()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Its closure may hold a descriptor, which is closed outside the lock.
        let gone = lock(&self.table.crowd).remove(self.number);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn what_says_no_hello_is_ended_when_there_are_too_many_or_it_is_late() {
        let table = Handshakes::new(HANDSHAKES_MAX);
        let cut = Arc::new(AtomicU32::new(0));
        let begin = |now| {
            let cut = Arc::clone(&cut);
            table.begin(IpAddr::from([10, 0, 0, 1]), now, move || {
                cut.fetch_add(1, Ordering::Relaxed);
            })
        };
        let start = Instant::now();
        let slots: Vec<Slot> = (0..=HANDSHAKES_MAX).map(|_| begin(start)).collect();
        assert_eq!(cut.load(Ordering::Relaxed), 1);
        assert_eq!(slots.iter().filter(|slot| !slot.stays()).count(), 1);
        assert!(slots.last().is_some_and(Slot::stays), "a newcomer is not refused");
        drop(slots);
        let (early, late) = (begin(start), begin(start + Duration::from_secs(1)));
        table.end_late(start + HELLO_TIME_MAX + Duration::from_millis(1));
        assert_eq!(cut.load(Ordering::Relaxed), 2);
        assert!(!early.stays() && late.stays());
    }
}
