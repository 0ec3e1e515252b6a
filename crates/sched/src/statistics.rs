//! Statistics of links: how many transfers arrived lately, and how fast.
//!
//! Keeps the last transfers of each link in memory, so that a choice always sees the latest outcome. Refuses to grow
//! beyond a fixed size.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use sterna_proto::{BitRate, ByteCount};

use crate::replica::SourceStats;
use crate::scheduler::Link;
use crate::time::UnixTime;

/// Period of the statistics. Source: FTS3 takes means of the last hour.
const PERIOD: Duration = Duration::from_secs(3600);

/// Maximum number of transfers of one link. Reason: with more, a mean hardly changes.
const TRANSFERS_MAX: usize = 32;

/// Maximum number of links. Reason: with all their transfers, at 32 bytes each, they stay near 1 MB.
const LINKS_MAX: usize = 1024;

/// Transfer that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ended {
    at: UnixTime,
    bytes: u64,
    /// Time under way; `None`: it failed.
    time: Option<Duration>,
}

/// Statistics of all links.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    links: BTreeMap<Link, VecDeque<Ended>>,
}

impl Statistics {
    /// Records a transfer that has arrived: its bytes, and the time it was under way.
    pub fn handle_arrived(&mut self, link: &Link, size: ByteCount, time: Duration, now: UnixTime) {
        self.add(link, Ended { at: now, bytes: size.0, time: Some(time) });
    }

    /// Records a transfer that has failed.
    pub fn handle_failed(&mut self, link: &Link, now: UnixTime) {
        self.add(link, Ended { at: now, bytes: 0, time: None });
    }

    fn add(&mut self, link: &Link, ended: Ended) {
        if !self.links.contains_key(link) && self.links.len() >= LINKS_MAX {
            let last = |ended: &VecDeque<Ended>| ended.back().map(|ended| ended.at);
            let oldest = self.links.iter().min_by_key(|(_, ended)| last(ended)).map(|(link, _)| link.clone());
            oldest.map(|link| self.links.remove(&link));
        }
        let transfers = self.links.entry(link.clone()).or_default();
        if transfers.len() == TRANSFERS_MAX {
            transfers.pop_front();
        }
        transfers.push_back(ended);
    }

    /// Returns the statistics of a link, without those of its queue.
    pub fn of(&self, link: &Link, now: UnixTime) -> SourceStats {
        let transfers = self.links.get(link).into_iter().flatten().filter(|ended| ended.at > now - PERIOD);
        let (mut ended, mut bytes, mut rates, mut arrived) = (0_u64, 0_u64, 0.0, 0_u32);
        let mut began: Option<UnixTime> = None;
        let mut last = UnixTime::default();
        for transfer in transfers {
            ended += 1;
            let Some(time) = transfer.time else { continue };
            arrived += 1;
            bytes = bytes.saturating_add(transfer.bytes);
            rates += transfer.bytes as f64 / time.as_secs_f64().max(TIME_LEAST.as_secs_f64());
            let start = transfer.at - time;
            began = Some(began.map_or(start, |began| began.min(start)));
            last = last.max(transfer.at);
        }
        let bits = |bytes_per_s: f64| BitRate((bytes_per_s * 8.0) as u64);
        let span = began.map(|began| last.since(began).max(TIME_LEAST).as_secs_f64());
        SourceStats {
            ended_files: ended,
            success: (ended > 0).then(|| f64::from(arrived) / ended as f64),
            throughput: span.map(|span| bits(bytes as f64 / span)),
            file_throughput: (arrived > 0).then(|| bits(rates / f64::from(arrived))),
            ..SourceStats::default()
        }
    }
}

/// Minimum time of a transfer in a rate. Reason: clocks of the database have milliseconds.
const TIME_LEAST: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime(1_800_000_000_000);

    fn link(source: &str) -> Link {
        Link { source: source.into(), destination: "d".into() }
    }

    #[test]
    fn means_are_those_of_the_last_hour() {
        let mut statistics = Statistics::default();
        let (one, second) = (link("a"), Duration::from_secs(1));
        statistics.handle_arrived(&one, ByteCount(7), second, NOW - PERIOD);
        assert_eq!(statistics.of(&one, NOW), SourceStats::default(), "an hour old");
        // Two at the same time, of 10 s and 5 s, with 100 and 25 MB; then a failure.
        statistics.handle_arrived(&one, ByteCount(100_000_000), 10 * second, NOW - second);
        statistics.handle_arrived(&one, ByteCount(25_000_000), 5 * second, NOW - second);
        statistics.handle_failed(&one, NOW);
        let stats = statistics.of(&one, NOW);
        assert_eq!((stats.ended_files, stats.success), (3, Some(2.0 / 3.0)));
        assert_eq!(stats.throughput, Some(BitRate(100_000_000)), "125 MB in 10 s");
        assert_eq!(stats.file_throughput, Some(BitRate(60_000_000)), "mean of 10 and 5 MB/s");
        assert_eq!(statistics.of(&link("b"), NOW), SourceStats::default());
    }

    #[test]
    fn the_size_has_a_limit_and_the_link_that_is_idle_longest_goes_first() {
        let mut statistics = Statistics::default();
        for number in 0..=LINKS_MAX {
            let at = NOW + Duration::from_millis(number as u64);
            (0..TRANSFERS_MAX + 1).for_each(|_| statistics.handle_failed(&link(&number.to_string()), at));
        }
        assert_eq!(statistics.links.len(), LINKS_MAX);
        assert!(statistics.links.values().all(|transfers| transfers.len() == TRANSFERS_MAX));
        assert!(!statistics.links.contains_key(&link("0")) && statistics.links.contains_key(&link("1")));
    }
}
