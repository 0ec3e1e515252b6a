//! Places for unknown peers, limited in number. When one more peer arrives, a random one of the most crowded networks
//! is evicted.
//!
//! Counts entries by the prefixes of their addresses (IPv4 /24 and /32, IPv6 /48, /56 and /64), and chooses the entry
//! that is evicted. Refuses to know what an entry is, or read a clock.
//!
//! The choice: two entries are drawn at random, and the one of the more crowded prefix is evicted. With `n` places and
//! `r` newcomers per second, an entry that needs `t` seconds stays with a probability of `exp(-c r t / n)`:
//! - `c` is 1 if a flood is spread as evenly as possible, over many prefixes with few entries each;
//! - `c` is the share of entries that are not more crowded than the entry, near 0 if a flood comes from few prefixes;
//! - `c` is 2 at most, however crowded the prefix of the entry is: a university behind one address is not locked out.
//!
//! The oldest entry must not be evicted instead: a flood of `n / t` newcomers per second would then end every honest
//! entry.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;

/// Entries by number, with the prefixes of their addresses.
pub struct Crowd<T> {
    places_max: usize,
    places: Vec<Place<T>>,
    /// Index of each entry in `places`, by number.
    index: HashMap<u64, usize>,
    counts: HashMap<Prefix, u32>,
    added: u64,
    random: u64,
}

struct Place<T> {
    number: u64,
    /// Prefixes of the address, the widest one first.
    prefixes: [Prefix; 3],
    entry: T,
}

/// Prefix of an address: its length in bits, and these bits.
type Prefix = (u32, u128);

impl<T> Crowd<T> {
    /// Creates an empty crowd of at most `places_max` entries, at least one.
    pub fn new(places_max: usize) -> Self {
        Self::seeded(places_max, RandomState::new().hash_one(0))
    }

    fn seeded(places_max: usize, seed: u64) -> Self {
        let (places, index, counts) = (Vec::new(), HashMap::new(), HashMap::new());
        Self { places_max, places, index, counts, added: 0, random: seed }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Adds an entry from `address`. Returns its number, and the entry that was evicted, if any.
    pub fn add(&mut self, address: IpAddr, entry: T) -> (u64, Option<T>) {
        let evicted = if self.places.len() >= self.places_max { self.evict() } else { None };
        let (number, prefixes) = (self.added, prefixes_of(address));
        self.added += 1;
        for prefix in prefixes {
            *self.counts.entry(prefix).or_default() += 1;
        }
        self.index.insert(number, self.places.len());
        self.places.push(Place { number, prefixes, entry });
        (number, evicted)
    }

    /// Returns the entry with this number, if it is still present.
    pub fn find(&self, number: u64) -> Option<&T> {
        self.index.get(&number).map(|&at| &self.places[at].entry)
    }

    /// Removes an entry.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let at = self.index.remove(&number)?;
        let place = self.places.swap_remove(at);
        if let Some(moved) = self.places.get(at) {
            self.index.insert(moved.number, at);
        }
        for prefix in place.prefixes {
            let count = self.counts.get_mut(&prefix).map_or(0, |count| {
                *count -= 1;
                *count
            });
            if count == 0 {
                self.counts.remove(&prefix);
            }
        }
        Some(place.entry)
    }

    /// Removes every entry for which `is_due` is true.
    pub fn remove_all(&mut self, is_due: impl Fn(&T) -> bool) -> Vec<T> {
        let due: Vec<u64> = self.places.iter().filter(|place| is_due(&place.entry)).map(|place| place.number).collect();
        due.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    /// Removes one entry to make room: out of two random ones, the entry of the more crowded prefix.
    pub fn evict(&mut self) -> Option<T> {
        let others = self.places.len().checked_sub(1)?;
        let one = self.random_below(others + 1);
        // Another entry, unless there is only one.
        let other = (one + 1 + self.random_below(others.max(1))) % (others + 1);
        let goes = if self.crowding(other) > self.crowding(one) { other } else { one };
        self.remove(self.places[goes].number)
    }

    /// Returns how many entries share each prefix of a place, the widest prefix first: within one /48, the narrower
    /// prefixes decide.
    fn crowding(&self, at: usize) -> [u32; 3] {
        self.places[at].prefixes.map(|prefix| self.counts.get(&prefix).copied().unwrap_or(0))
    }

    fn random_below(&mut self, limit: usize) -> usize {
        // SplitMix64 (Steele, Lea and Flood, 2014). Peers see neither the numbers nor the seed.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}

/// Returns the prefixes that count as one network, the widest one first. Sites get an IPv6 /48 or /56, and hosts have
/// all of a /64 (RFC 6177). IPv4 is routed down to a /24. An IPv4 address may arrive as an IPv6 address
/// (`::ffff:0:0/96`), and all of these share one /64.
fn prefixes_of(address: IpAddr) -> [Prefix; 3] {
    let (bits, lengths) = match address.to_canonical() {
        IpAddr::V6(address) => (address.to_bits(), [48, 56, 64]),
        IpAddr::V4(address) => (address.to_ipv6_mapped().to_bits(), [120, 120, 128]),
    };
    lengths.map(|length| (length, bits >> (128 - length)))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    /// Returns address number `host` in the /48 `site`.
    fn v6(site: u64, host: u64) -> IpAddr {
        Ipv6Addr::from_bits(0x2001 << 112 | u128::from(site) << 80 | u128::from(host) << 64).into()
    }

    /// Returns address number `host` in the /24 `network`.
    fn v4(network: u32, host: u32) -> IpAddr {
        Ipv4Addr::from_bits(10 << 24 | network << 8 | host).into()
    }

    /// Returns the share of entries from `honest` that are still present after `newcomers` of the flood.
    fn staying(places: usize, newcomers: u64, honest: IpAddr, flood: impl Fn(u64) -> IpAddr) -> f64 {
        const TRIALS: u64 = 100;
        let mut crowd = Crowd::seeded(places, 1);
        let mut stayed = 0;
        let mut knock = 0;
        let mut knocks = |crowd: &mut Crowd<()>, count| {
            for _ in 0..count {
                crowd.add(flood(knock), ());
                knock += 1;
            }
        };
        knocks(&mut crowd, places as u64);
        for _ in 0..TRIALS {
            let (number, _) = crowd.add(honest, ());
            knocks(&mut crowd, newcomers);
            stayed += u64::from(crowd.remove(number).is_some());
        }
        stayed as f64 / TRIALS as f64
    }

    #[test]
    fn a_flood_from_ten_thousand_prefixes_leaves_an_honest_entry_its_place() {
        // 2,000 per second for one round trip of 660 ms: exp(-1320 / 4096) is 0.72 for one try, and 0.92 for two.
        let spread = [
            staying(4096, 1320, v6(1 << 20, 0), |knock| v6(knock * 7919 % 10_000, 0)),
            staying(4096, 1320, v4(60_000, 1), |knock| v4((knock * 7919 % 10_000) as u32, 1)),
        ];
        assert!(spread.iter().all(|share| *share > 0.62), "{spread:?}");
        // The same number of /64s in few /48s, or of hosts in few /24s, has almost no effect.
        let crowded = [
            staying(4096, 1320, v6(1 << 20, 0), |knock| v6(knock % 40, knock * 7919 % 10_000)),
            staying(4096, 1320, v4(60_000, 1), |knock| v4((knock % 40) as u32, (knock * 31 % 256) as u32)),
        ];
        assert!(crowded.iter().all(|share| *share > 0.97), "{crowded:?}");
    }

    #[test]
    fn an_honest_neighbour_of_a_flood_is_distinguished_from_it_by_the_narrower_prefix() {
        // 200 /64s of one /48, which locked out everybody in an earlier version. The honest entry is in another /56 of
        // the site.
        let share = staying(1024, 1000, v6(7, 0xff00), |knock| v6(7, knock % 200));
        assert!(share > 0.97, "{share}");
    }

    #[test]
    fn a_crowded_honest_network_is_not_shut_out_by_a_spread_flood() {
        // 64 lanes from one address beside entries with one prefix each: at most twice the average probability of
        // eviction.
        let mut crowd = Crowd::seeded(1024, 1);
        for knock in 0..1024 {
            crowd.add(v4(knock, 1), false);
        }
        for _ in 0..64 {
            crowd.add(v4(60_000, 1), true);
        }
        for knock in 0..256 {
            crowd.add(v4(2000 + knock, 1), false);
        }
        let staying = crowd.remove_all(|is_honest| *is_honest).len();
        assert!(staying > 30, "{staying} of 64, where exp(-2 * 256 / 1024) of them are 39");
    }

    #[test]
    fn one_address_that_floods_ends_its_own_entries() {
        let mut crowd = Crowd::seeded(100, 1);
        let quiet: Vec<u64> = (0..10).map(|host| crowd.add(v4(host, 1), ()).0).collect();
        for _ in 0..300 {
            crowd.add(v4(77, 7), ());
        }
        let staying = quiet.iter().filter(|number| crowd.find(**number).is_some()).count();
        assert!(staying >= 5, "{staying}");
        assert_eq!(crowd.len(), 100);
    }

    #[test]
    fn counts_follow_entries_that_leave() {
        let mut crowd = Crowd::seeded(4, 1);
        let numbers: Vec<u64> = (0..4).map(|host| crowd.add(v4(1, host), host).0).collect();
        assert_eq!(crowd.remove(numbers[1]), Some(1));
        assert_eq!(crowd.remove(numbers[1]), None);
        assert_eq!((crowd.find(numbers[3]), crowd.len()), (Some(&3), 3));
        assert_eq!(crowd.remove_all(|host| *host == 0), [0]);
        assert_eq!(crowd.counts.values().max(), Some(&4), "two entries, whose IPv4 prefix /24 counts twice");
        assert!(crowd.evict().is_some() && crowd.evict().is_some() && crowd.evict().is_none());
        assert!(crowd.counts.is_empty() && crowd.index.is_empty());
    }

    #[test]
    fn ipv4_in_ipv6_addresses_is_no_single_network() {
        let mapped = |text: &str| prefixes_of(text.parse().unwrap());
        assert_eq!(mapped("::ffff:10.0.0.1"), mapped("10.0.0.1"));
        assert_ne!(mapped("::ffff:10.0.0.1")[0], mapped("::ffff:10.0.1.1")[0]);
    }
}
