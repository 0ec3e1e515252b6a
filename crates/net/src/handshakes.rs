//! Lanes between their ClientHello and their hello: limited in number and time, with random eviction when the table is
//! full.
//!
//! Counts lanes until their hello is admitted. TCP lanes count from the ClientHello. QUIC lanes count from the first
//! bytes of the control stream, and before that in a separate table for each socket. When one lane more than the limit
//! begins, [`Crowd`] chooses the lane that ends. A lane that takes too long is ended too. Refuses to shake hands, read
//! a clock, or know who a peer is.
//!
//! The arithmetic: an honest lane needs one round trip here, 0.7 s at an RTT of 660 ms with its computing. Assume `r`
//! strangers per second, from any number of prefixes, which send a ClientHello and then nothing. The lane then stays
//! with a probability of `exp(-0.7 r / 1024)`: 0.93 at 100 per second, 0.71 at 500, 0.50 at 1,000. A client dials four
//! times: 0.99 at 500, 0.94 at 1,000. A connection without a ClientHello never gets here: see [`crate::arrivals`].

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::crowd::Crowd;
use crate::lane::tcp;

/// Maximum number of lanes without a hello, of both transports together, if the process may have enough descriptors.
/// Reason: each costs a thread and about 100 kB until it is admitted, 100 MB in all; honest lanes stay for one round
/// trip.
pub const HANDSHAKES_MAX: usize = 1024;

/// Maximum time to the hello. Reason: the hello directly follows a handshake, which has the same limit for itself.
const HELLO_TIME_MAX: Duration = tcp::HANDSHAKE_TIME_MAX;

/// Table of lanes without a hello.
pub struct Handshakes {
    crowd: Mutex<Crowd<UnderWay>>,
}

struct UnderWay {
    since: Instant,
    cut: Box<dyn Fn() + Send>,
}

/// Place of one lane in the table; dropping it frees the place.
pub struct Slot {
    table: Arc<Handshakes>,
    number: u64,
}

impl Handshakes {
    /// Creates an empty table for at most `places_max` lanes, at least one.
    pub fn new(places_max: usize) -> Arc<Self> {
        Arc::new(Self { crowd: Mutex::new(Crowd::new(places_max)) })
    }

    /// Returns the number of lanes in the table.
    pub fn count(&self) -> usize {
        self.crowd.lock().len()
    }

    /// Adds a lane from `from`; ends another lane if there are too many. `cut` ends this lane, and must not block.
    pub fn begin(self: &Arc<Self>, from: IpAddr, now: Instant, cut: impl Fn() + Send + 'static) -> Slot {
        let (number, evicted) = self.crowd.lock().add(from, UnderWay { since: now, cut: Box::new(cut) });
        evicted.iter().for_each(|handshake| (handshake.cut)());
        Slot { table: Arc::clone(self), number }
    }

    /// Ends every lane that has exceeded its time limit.
    pub fn end_late(&self, now: Instant) {
        let is_late = |handshake: &UnderWay| now.saturating_duration_since(handshake.since) > HELLO_TIME_MAX;
        let late = self.crowd.lock().remove_all(is_late);
        late.iter().for_each(|handshake| (handshake.cut)());
    }
}

impl Slot {
    /// Returns true if the table has not ended the lane.
    pub fn stays(&self) -> bool {
        self.table.crowd.lock().find(self.number).is_some()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The closure may hold a descriptor, which is closed outside the lock.
        let gone = self.table.crowd.lock().remove(self.number);
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
