//! The lanes that have not said hello yet: at most so many, none for long, and none can keep an honest peer out.
//!
//! What it does: counts lanes until their hello is admitted (TCP: from the first packet; QUIC: from the first bytes of the
//! control stream, and before that in a table of its own for each socket). When one more than the limit begins, it ends the
//! oldest of the network that has the most (an IPv4 address, the /64 of an IPv6 one): who floods ends its own. What takes too
//! long is ended too.
//! What it refuses to do: shake hands, read a clock, or know who a peer is.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lane::tcp;
use crate::session::lock;

/// Lanes without a hello at once, of both transports. Reason: a stranger costs a thread until it is known, and no more than
/// these; honest lanes are here for two or three round trips.
pub const HANDSHAKES_MAX: usize = 64;

/// Time from the first packet to the hello. Reason: the hello comes right behind a handshake, which has as much for itself.
const HELLO_TIME_MAX: Duration = tcp::HANDSHAKE_TIME_MAX;

/// Lanes without a hello, the oldest first, and how many there may be.
pub struct Handshakes {
    most: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    begun: u64,
    under_way: Vec<UnderWay>,
}

struct UnderWay {
    number: u64,
    network: IpAddr,
    since: Instant,
    cut: Box<dyn Fn() + Send>,
}

/// The place of one lane in the table, until it is dropped.
pub struct Slot {
    table: Arc<Handshakes>,
    number: u64,
}

impl Handshakes {
    /// An empty table that takes `most` lanes, at least one.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, table: Mutex::default() })
    }

    /// How many lanes are in it.
    pub fn count(&self) -> usize {
        lock(&self.table).under_way.len()
    }

    /// Takes note of a lane from `from`; ends another when there are too many. `cut` ends this one: it must not block.
    pub fn begin(self: &Arc<Self>, from: IpAddr, now: Instant, cut: impl Fn() + Send + 'static) -> Slot {
        let mut table = lock(&self.table);
        if table.under_way.len() >= self.most
            && let Some(index) = oldest_of_the_busiest(table.under_way.iter().map(|handshake| handshake.network))
        {
            (table.under_way.remove(index).cut)();
        }
        table.begun += 1;
        let number = table.begun;
        table.under_way.push(UnderWay { number, network: network_of(from), since: now, cut: Box::new(cut) });
        Slot { table: Arc::clone(self), number }
    }

    /// Ends every lane that has taken longer than it may.
    pub fn end_late(&self, now: Instant) {
        lock(&self.table).under_way.retain(|handshake| {
            let is_late = now.saturating_duration_since(handshake.since) > HELLO_TIME_MAX;
            if is_late {
                (handshake.cut)();
            }
            !is_late
        });
    }
}

impl Slot {
    /// Whether the lane was not ended here.
    pub fn stays(&self) -> bool {
        lock(&self.table.table).under_way.iter().any(|handshake| handshake.number == self.number)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.table.table).under_way.retain(|handshake| handshake.number != self.number);
    }
}

/// What counts as one peer: who has an IPv6 address has all of its /64 (RFC 4291, section 2.5.1). An IPv4 address may come
/// as an IPv6 one, and those have a /64 in common.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

/// Where the first of the addresses stands that are there most often.
fn oldest_of_the_busiest(addresses: impl Iterator<Item = IpAddr> + Clone) -> Option<usize> {
    let count = |address: IpAddr| addresses.clone().filter(|other| *other == address).count();
    let busiest = addresses.clone().map(count).max()?;
    addresses.clone().position(|address| count(address) == busiest)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn who_floods_ends_its_own_oldest_handshake() {
        let addresses = [ip(1), ip(2), ip(3), ip(2), ip(4)];
        assert_eq!(oldest_of_the_busiest(addresses.into_iter()), Some(1));
        assert_eq!(oldest_of_the_busiest([ip(1), ip(2)].into_iter()), Some(0));
        assert_eq!(oldest_of_the_busiest([].into_iter()), None);
    }

    #[test]
    fn who_has_a_whole_ipv6_network_floods_under_one_name() {
        let stays = |addresses: [&str; 4]| {
            let table = Handshakes::new(3);
            let slots = addresses.map(|address| table.begin(address.parse().unwrap(), Instant::now(), || {}));
            slots.map(|slot| slot.stays())
        };
        let flood = ["2001:db8::1", "2001:db8:1::1", "2001:db8:1:0:ffff::", "2001:db8:2::1"];
        assert_eq!(stays(flood), [true, false, true, true]);
        // On a socket for both kinds, IPv4 addresses have a /64 in common and are no network.
        let flood = ["::ffff:10.0.0.1", "::ffff:10.0.0.2", "::ffff:10.0.0.2", "::ffff:10.0.0.3"];
        assert_eq!(stays(flood), [true, false, true, true]);
    }

    #[test]
    fn what_says_no_hello_is_ended_when_there_are_too_many_or_it_is_late() {
        let table = Handshakes::new(HANDSHAKES_MAX);
        let cut = Arc::new(AtomicU32::new(0));
        let begin = |now| {
            let cut = Arc::clone(&cut);
            table.begin(ip(1), now, move || {
                cut.fetch_add(1, Ordering::Relaxed);
            })
        };
        let start = Instant::now();
        let slots: Vec<Slot> = (0..=HANDSHAKES_MAX).map(|_| begin(start)).collect();
        assert_eq!(cut.load(Ordering::Relaxed), 1);
        assert!(!slots[0].stays() && slots[1].stays());
        drop(slots);
        let (early, late) = (begin(start), begin(start + Duration::from_secs(1)));
        table.end_late(start + HELLO_TIME_MAX + Duration::from_millis(1));
        assert_eq!(cut.load(Ordering::Relaxed), 2);
        assert!(!early.stays() && late.stays());
    }
}
