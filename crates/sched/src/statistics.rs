//! Statistics of links: how many transfers arrived lately, and how fast.
//!
//! Keeps the last hour of each link in buckets of five minutes: bytes, busy time and outcomes. The throughput of a link
//! is its bytes by its busy time: the time during which at least one transfer that arrived was under way. So parallel
//! transfers count together, and a link without files is not slow. Choices see means that are kept for five minutes,
//! unless a transfer fails. Refuses to grow beyond a fixed size.

use std::collections::BTreeMap;
use std::time::Duration;

use sterna_proto::{BitRate, ByteCount};

use crate::replica::SourceStats;
use crate::settings::Link;
use crate::time::UnixTime;

/// Period of the statistics. Source: FTS3 takes means of the last hour.
pub const PERIOD: Duration = Duration::from_secs(3600);

/// Time for which the means of a link are kept. Source: FTS3 keeps the answers of its database that long. Reason here:
/// files that are submitted together see the same values, and go to the same source unless its queue says otherwise.
const KEPT: Duration = Duration::from_secs(300);

/// Time between two removals of links that had no transfer in the period. Source: FTS3 removes what has expired that
/// often.
const CLEANED_EVERY: Duration = Duration::from_secs(1800);

/// Number of buckets in the period. Reason: the end of the period moves in steps of five minutes, which changes a mean
/// by a twelfth at most.
const BUCKETS: usize = 12;

/// Time of a bucket, in milliseconds.
const BUCKET_MS: i64 = 300_000;

/// Maximum number of idle times of a link that are remembered, to notice a long transfer that was under way meanwhile.
/// Reason: a long transfer rarely covers more of them, and the shortest ones are forgotten first. A forgotten one
/// counts as idle: the throughput is too high by that time.
const IDLE_MAX: usize = 15;

/// Maximum memory of all links, in bytes. Source: issue 17, as FTS3.
const BYTES_MAX: usize = 1_000_000;

/// Minimum time of a transfer in a rate. Reason: clocks of the database have milliseconds.
const TIME_LEAST: Duration = Duration::from_millis(1);

/// Transfer that has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Bytes of the file.
    pub size: ByteCount,
    /// Time from its start until now, with what came before and after the bytes. Gives the throughput of the link.
    pub under_way: Duration,
    /// Time from the first to the last byte. Gives the throughput of the file.
    pub moving: Duration,
}

/// Outcomes and bytes of five minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bucket {
    /// Bytes of transfers that arrived, each spread evenly over its time.
    bytes: f64,
    /// Sum of the rates of the transfers that arrived in this time, in bytes/s.
    rates: f64,
    /// Time with at least one transfer, in milliseconds; at most [`BUCKET_MS`].
    busy_ms: u32,
    /// Transfers that ended in this time.
    ended: u32,
    /// Those that arrived.
    arrived: u32,
}

/// Time without transfers.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Idle {
    from: UnixTime,
    to: UnixTime,
}

impl Idle {
    fn time(&self) -> Duration {
        self.to.since(self.from)
    }
}

/// Means of one link over the period, as [`SourceStats`] has them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Means {
    ended_files: u64,
    success: Option<f64>,
    throughput: Option<BitRate>,
    file_throughput: Option<BitRate>,
}

impl From<Means> for SourceStats {
    fn from(means: Means) -> Self {
        let Means { ended_files, success, throughput, file_throughput } = means;
        Self { ended_files, success, throughput, file_throughput, ..Self::default() }
    }
}

/// Statistics of one link.
#[derive(Clone, Debug)]
struct OfLink {
    /// Number of the latest bucket: time since 1970 by [`BUCKET_MS`].
    latest: i64,
    /// Buckets, each at its number modulo [`BUCKETS`].
    buckets: [Bucket; BUCKETS],
    /// All times without transfers: at first all time. Disjoint.
    idle: Vec<Idle>,
    /// Time of the last outcome.
    last: UnixTime,
    /// Means that choices use, and the time at which they were taken. Edges: none -> some at a choice; some -> none at
    /// a failure; some -> some at a choice after [`KEPT`].
    kept: Option<(UnixTime, Means)>,
}

impl OfLink {
    fn new(now: UnixTime) -> Self {
        let always = Idle { from: UnixTime(i64::MIN), to: UnixTime(i64::MAX) };
        let mut idle = Vec::with_capacity(IDLE_MAX + 1);
        idle.push(always);
        Self { latest: number_at(now), buckets: [Bucket::default(); BUCKETS], idle, last: now, kept: None }
    }

    /// Empties the buckets whose time is over. A clock that was set back by more than the period begins anew.
    fn advance(&mut self, now: UnixTime) {
        let number = number_at(now);
        if number <= self.latest - BUCKETS as i64 || number >= self.latest + BUCKETS as i64 {
            *self = Self::new(now);
        }
        while self.latest < number {
            self.latest += 1;
            *self.bucket(self.latest) = Bucket::default();
        }
        self.last = self.last.max(now);
    }

    fn bucket(&mut self, number: i64) -> &mut Bucket {
        &mut self.buckets[place_of(number)]
    }

    /// Calls a function with each bucket of a time that is kept, and the milliseconds in it.
    fn spread(&mut self, from: UnixTime, to: UnixTime, mut add: impl FnMut(&mut Bucket, i64)) {
        let oldest = self.latest - (BUCKETS as i64 - 1);
        for number in number_at(from).max(oldest)..=number_at(to).min(self.latest) {
            let (begins, ends) = (number.saturating_mul(BUCKET_MS), (number + 1).saturating_mul(BUCKET_MS));
            let ms = to.0.min(ends) - from.0.max(begins);
            if ms > 0 {
                add(self.bucket(number), ms);
            }
        }
    }

    fn handle_arrived(&mut self, arrived: &Arrived, now: UnixTime) {
        let bytes_per_s = |time: Duration| arrived.size.0 as f64 / time.as_secs_f64();
        let moving = arrived.moving.max(TIME_LEAST);
        let under_way = arrived.under_way.max(moving);
        let (from, rate) = (now - under_way, bytes_per_s(under_way));
        self.spread(from, now, |bucket, ms| bucket.bytes += rate * ms as f64 / 1e3);
        self.handle_busy(from, now);
        let bucket = self.bucket(number_at(now));
        bucket.ended += 1;
        bucket.arrived += 1;
        bucket.rates += bytes_per_s(moving);
    }

    /// Counts the part of a time that was idle up to now.
    fn handle_busy(&mut self, from: UnixTime, to: UnixTime) {
        let before = std::mem::replace(&mut self.idle, Vec::with_capacity(IDLE_MAX + 1));
        for idle in before {
            let busy = Idle { from: idle.from.max(from), to: idle.to.min(to) };
            if busy.from >= busy.to {
                self.idle.push(idle);
                continue;
            }
            self.spread(busy.from, busy.to, |bucket, ms| bucket.busy_ms += u32::try_from(ms).unwrap_or(0));
            let rests = [Idle { to: busy.from, ..idle }, Idle { from: busy.to, ..idle }];
            self.idle.extend(rests.into_iter().filter(|rest| rest.from < rest.to));
        }
        while self.idle.len() > IDLE_MAX {
            let shortest = (0..self.idle.len()).min_by_key(|at| self.idle[*at].time());
            shortest.map(|at| self.idle.swap_remove(at));
        }
    }

    /// Returns the means of the buckets of the period.
    fn means(&self, now: UnixTime) -> Means {
        let oldest = (number_at(now) - (BUCKETS as i64 - 1)).max(self.latest - (BUCKETS as i64 - 1));
        let mut sum = Bucket::default();
        let (mut busy_ms, mut ended, mut arrived) = (0_u64, 0_u64, 0_u64);
        for bucket in (oldest..=self.latest).map(|number| &self.buckets[place_of(number)]) {
            sum.bytes += bucket.bytes;
            sum.rates += bucket.rates;
            busy_ms += u64::from(bucket.busy_ms);
            ended += u64::from(bucket.ended);
            arrived += u64::from(bucket.arrived);
        }
        let bits = |bytes_per_s: f64| BitRate((bytes_per_s * 8.0).round() as u64);
        Means {
            ended_files: ended,
            success: (ended > 0).then(|| arrived as f64 / ended as f64),
            throughput: (busy_ms > 0).then(|| bits(sum.bytes * 1e3 / busy_ms as f64)),
            file_throughput: (arrived > 0).then(|| bits(sum.rates / arrived as f64)),
        }
    }

    /// Returns the kept means, and takes them anew when they are too old. Those of a link without throughput are not
    /// kept: its first transfer is the measurement for which others wait.
    fn kept_means(&mut self, now: UnixTime) -> Means {
        if let Some((_, means)) = self.kept.filter(|(at, _)| *at <= now && now.since(*at) < KEPT) {
            return means;
        }
        let means = self.means(now);
        self.kept = means.throughput.is_some().then_some((now, means));
        means
    }
}

fn number_at(time: UnixTime) -> i64 {
    time.0.div_euclid(BUCKET_MS)
}

fn place_of(number: i64) -> usize {
    usize::try_from(number.rem_euclid(BUCKETS as i64)).unwrap_or(0)
}

/// Statistics of all links.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    links: BTreeMap<Link, Box<OfLink>>,
    /// Memory of the links, in bytes.
    bytes: usize,
    /// Time of the last removal of links without transfers.
    cleaned: UnixTime,
}

impl Statistics {
    /// Records a transfer that has arrived.
    pub fn handle_arrived(&mut self, link: &Link, arrived: &Arrived, now: UnixTime) {
        self.link(link, now).handle_arrived(arrived, now);
    }

    /// Records a transfer that has failed: the next choice sees it. Its time does not count as busy, because the
    /// success rate has the failures already.
    pub fn handle_failed(&mut self, link: &Link, now: UnixTime) {
        let link = self.link(link, now);
        link.bucket(number_at(now)).ended += 1;
        link.kept = None;
    }

    /// Returns the statistics of a link at this time, after making room for them.
    fn link(&mut self, name: &Link, now: UnixTime) -> &mut OfLink {
        if now.since(self.cleaned) >= CLEANED_EVERY {
            self.cleaned = now;
            self.links.retain(|_, link| link.means(now).ended_files > 0);
            self.bytes = self.links.keys().map(bytes_of).sum();
        }
        if !self.links.contains_key(name) {
            self.bytes += bytes_of(name);
            while self.bytes > BYTES_MAX {
                let Some(oldest) = self.links.iter().min_by_key(|(_, link)| link.last) else { break };
                let oldest = oldest.0.clone();
                self.remove(&oldest);
            }
        }
        let link = self.links.entry(name.clone()).or_insert_with(|| Box::new(OfLink::new(now)));
        link.advance(now);
        link
    }

    fn remove(&mut self, link: &Link) {
        if self.links.remove(link).is_some() {
            self.bytes -= bytes_of(link);
        }
    }

    /// Returns the statistics of a link for a choice, without those of its queue. They are up to 300 s old, unless a
    /// transfer of the link has failed since.
    pub fn of(&mut self, link: &Link, now: UnixTime) -> SourceStats {
        self.links.get_mut(link).map(|link| link.kept_means(now)).unwrap_or_default().into()
    }

    /// Returns the statistics of a link at this time, without those of its queue.
    pub fn latest(&self, link: &Link, now: UnixTime) -> SourceStats {
        self.links.get(link).map(|link| link.means(now)).unwrap_or_default().into()
    }
}

/// Returns the memory of a link, in bytes: its statistics, its names, and twice its place in the map, whose nodes are
/// half full at least.
fn bytes_of(link: &Link) -> usize {
    /// Counts of owners before a name.
    const COUNTS: usize = 16;
    let fixed = size_of::<OfLink>() + (IDLE_MAX + 1) * size_of::<Idle>();
    let names = link.source.len() + link.destination.len() + 2 * COUNTS;
    fixed + names + 2 * (size_of::<Link>() + size_of::<Box<OfLink>>())
}

#[cfg(test)]
mod tests {
    use sterna_seeded::{Seeded, for_seeds};

    use super::*;

    /// Begin of a bucket.
    const NOW: UnixTime = UnixTime(1_800_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);
    const MB: u64 = 1_000_000;

    fn link(source: &str) -> Link {
        Link { source: source.into(), destination: "d".into() }
    }

    /// Returns a transfer whose bytes moved all the time.
    fn arrived(size: u64, time: Duration) -> Arrived {
        Arrived { size: ByteCount(size), under_way: time, moving: time }
    }

    #[test]
    fn means_are_those_of_the_last_hour() {
        let mut statistics = Statistics::default();
        let one = link("a");
        statistics.handle_arrived(&one, &arrived(7, SECOND), NOW - PERIOD);
        assert_eq!(statistics.latest(&one, NOW), SourceStats::default(), "an hour old");
        // Two at the same time, of 10 s and 5 s, with 100 and 25 MB; then a failure.
        statistics.handle_arrived(&one, &arrived(100 * MB, 10 * SECOND), NOW - SECOND);
        statistics.handle_arrived(&one, &arrived(25 * MB, 5 * SECOND), NOW - SECOND);
        statistics.handle_failed(&one, NOW);
        let stats = statistics.latest(&one, NOW);
        assert_eq!((stats.ended_files, stats.success), (3, Some(2.0 / 3.0)));
        assert_eq!(stats.throughput, Some(BitRate(100_000_000)), "125 MB in 10 s");
        assert_eq!(stats.file_throughput, Some(BitRate(60_000_000)), "mean of 10 and 5 MB/s");
        assert_eq!(statistics.latest(&link("b"), NOW), SourceStats::default());
        // 54 min later they are in the oldest bucket still, and after the hour they are gone.
        assert_eq!(statistics.latest(&one, NOW + 54 * 60 * SECOND).ended_files, 3);
        assert_eq!(statistics.latest(&one, NOW + PERIOD), SourceStats::default());
    }

    #[test]
    fn parallel_transfers_count_together_however_many_they_are() {
        // 66 transfers of 4 s with 1 MB each at a time: 66 MB in 4 s are 132 Mbit/s, and 2 Mbit/s for each file.
        for staggered in [false, true] {
            let mut statistics = Statistics::default();
            let one = link("a");
            for round in 1..=50_u32 {
                for lane in 0..66 {
                    let shift = if staggered { Duration::from_millis(60) * lane } else { Duration::ZERO };
                    statistics.handle_arrived(&one, &arrived(MB, 4 * SECOND), NOW + 4 * SECOND * round + shift);
                }
            }
            let stats = statistics.latest(&one, NOW + 210 * SECOND);
            let rate = stats.throughput.unwrap().0 as f64 / 1e6;
            // Staggered, the last one ends 3.9 s after the first: 3300 MB in 203.9 s.
            let expected = if staggered { 3300.0 * 8.0 / 203.9 } else { 132.0 };
            assert!((rate - expected).abs() < 0.001, "{rate} instead of {expected}");
            assert_eq!((stats.ended_files, stats.file_throughput), (3300, Some(BitRate(2_000_000))));
        }
    }

    #[test]
    fn the_time_before_the_bytes_counts_for_the_link_and_not_for_the_file() {
        let (mut statistics, one) = (Statistics::default(), link("a"));
        let arrived = Arrived { size: ByteCount(10 * MB), under_way: 5 * SECOND, moving: SECOND };
        statistics.handle_arrived(&one, &arrived, NOW);
        let stats = statistics.latest(&one, NOW);
        assert_eq!((stats.throughput, stats.file_throughput), (Some(BitRate(16_000_000)), Some(BitRate(80_000_000))));
    }

    #[test]
    fn idle_time_does_not_count_and_time_that_a_long_transfer_fills_does() {
        let mut statistics = Statistics::default();
        let one = link("a");
        // 10 MB in 1 s, three times, with 99 s of idle time between.
        (1..=3).for_each(|turn| statistics.handle_arrived(&one, &arrived(10 * MB, SECOND), NOW + 100 * SECOND * turn));
        assert_eq!(statistics.latest(&one, NOW + 400 * SECOND).throughput, Some(BitRate(80_000_000)));
        // One that was under way from 50 s before the second until 50 s after the third, with 271 MB in 200 s: 301 MB
        // in 201 s of busy time.
        statistics.handle_arrived(&one, &arrived(271 * MB, 200 * SECOND), NOW + 350 * SECOND);
        let expected = (301.0 * 8e6_f64 / 201.0).round() as u64;
        assert_eq!(statistics.latest(&one, NOW + 400 * SECOND).throughput, Some(BitRate(expected)));
    }

    #[test]
    fn a_transfer_that_is_longer_than_the_period_counts_with_its_part_in_it() {
        let mut statistics = Statistics::default();
        let one = link("a");
        let day = 24 * PERIOD;
        statistics.handle_arrived(&one, &arrived(86_400 * MB, day), NOW + Duration::from_secs(1));
        // 1 MB/s, whatever part of the day is in the period.
        for minutes in [0, 20, 50] {
            let stats = statistics.latest(&one, NOW + 60 * SECOND * minutes + SECOND);
            assert_eq!((stats.throughput, stats.file_throughput), (Some(BitRate(8_000_000)), Some(BitRate(8_000_000))));
        }
    }

    #[test]
    fn busy_time_is_the_union_of_the_times_of_transfers() {
        for_seeds("busy_time_is_the_union_of_the_times_of_transfers", 200, |seed| {
            let mut random = Seeded::new(seed);
            let (mut statistics, one) = (Statistics::default(), link("a"));
            // In virtual time of 1 s, from 1000 s before the first end.
            let mut is_busy = vec![false; 1000];
            let (mut bytes, mut end) = (0, 0);
            // Idle times: at most one after each transfer, and those before the first and after the last.
            for _ in 0..1 + random.index(IDLE_MAX - 2) {
                end += random.index(100);
                let time = 1 + random.index(100 + end);
                let size = random.below(1000 * MB);
                let now = NOW + Duration::from_secs(end as u64 + 1000);
                statistics.handle_arrived(&one, &arrived(size, Duration::from_secs(time as u64)), now);
                is_busy.resize(end + 1000, false);
                (1..=time).for_each(|second| is_busy[end + 1000 - second] = true);
                bytes += size;
            }
            let busy = is_busy.iter().filter(|is_busy| **is_busy).count();
            let expected = bytes as f64 * 8.0 / busy as f64;
            let measured =
                statistics.latest(&one, NOW + Duration::from_secs(end as u64 + 1000)).throughput.unwrap().0 as f64;
            assert!((measured - expected).abs() <= 1.0 + expected * 1e-9, "{measured} instead of {expected}");
        });
    }

    #[test]
    fn choices_see_kept_means_until_a_failure_or_five_minutes_have_gone() {
        let (mut statistics, one) = (Statistics::default(), link("a"));
        let fast = BitRate(80_000_000);
        // A link without throughput: each outcome counts at once.
        statistics.handle_failed(&one, NOW);
        assert_eq!((statistics.of(&one, NOW).success, statistics.of(&one, NOW).throughput), (Some(0.0), None));
        statistics.handle_arrived(&one, &arrived(10 * MB, SECOND), NOW + SECOND);
        assert_eq!(statistics.of(&one, NOW + SECOND).throughput, Some(fast));
        // A slow one: 20 MB in 21 s of busy time.
        statistics.handle_arrived(&one, &arrived(10 * MB, 20 * SECOND), NOW + 30 * SECOND);
        let slow = BitRate((20.0 * 8e6_f64 / 21.0).round() as u64);
        assert_eq!(statistics.of(&one, NOW + 300 * SECOND).throughput, Some(fast), "299 s old");
        assert_eq!(statistics.latest(&one, NOW + 300 * SECOND).throughput, Some(slow));
        let after = NOW + 301 * SECOND;
        assert_eq!(statistics.of(&one, after).throughput, Some(slow));
        statistics.handle_arrived(&one, &arrived(10 * MB, SECOND), after);
        assert_eq!(statistics.of(&one, after).ended_files, 3);
        statistics.handle_failed(&one, after);
        let stats = statistics.of(&one, after);
        assert_eq!((stats.ended_files, stats.success), (5, Some(0.6)), "a failure counts at once");
    }

    #[test]
    fn links_without_transfers_in_the_period_go_every_half_hour() {
        let mut statistics = Statistics::default();
        statistics.handle_failed(&link("a"), NOW);
        statistics.handle_failed(&link("b"), NOW + 50 * 60 * SECOND);
        statistics.handle_failed(&link("b"), NOW + 79 * 60 * SECOND);
        assert_eq!(statistics.links.len(), 2, "cleaned 29 min ago");
        statistics.handle_failed(&link("b"), NOW + 80 * 60 * SECOND);
        assert_eq!((statistics.links.len(), statistics.bytes), (1, bytes_of(&link("b"))));
    }

    #[test]
    fn the_size_has_a_limit_and_the_link_that_is_idle_longest_goes_first() {
        let mut statistics = Statistics::default();
        let fits = BYTES_MAX / bytes_of(&link("1234"));
        assert!(fits > 900, "{fits} links");
        for number in 0..=fits {
            let at = NOW + Duration::from_millis(number as u64);
            statistics.handle_failed(&link(&format!("{number:4}")), at);
        }
        assert_eq!(statistics.links.len(), fits);
        assert!(!statistics.links.contains_key(&link("   0")) && statistics.links.contains_key(&link("   1")));
        // Long names make fewer links.
        let long = "x".repeat(100_000);
        for number in 0..20 {
            statistics.handle_failed(&link(&format!("{long}{number}")), NOW + PERIOD);
        }
        assert!(statistics.bytes <= BYTES_MAX && statistics.links.len() < 10);
        assert_eq!(statistics.bytes, statistics.links.keys().map(bytes_of).sum::<usize>());
        // Many transfers of one link need no more.
        let mut random = Seeded::new(3);
        let mut now = NOW + PERIOD;
        for _ in 0..10_000 {
            now = now + Duration::from_millis(random.below(3000));
            statistics.handle_arrived(&link("a"), &arrived(1, Duration::from_millis(random.below(2000))), now);
        }
        assert!(statistics.links[&link("a")].idle.len() <= IDLE_MAX);
    }

    #[test]
    fn a_clock_that_is_set_back_or_far_ahead_begins_anew() {
        let (mut statistics, one) = (Statistics::default(), link("a"));
        for now in [NOW, NOW - 10 * PERIOD, NOW + 100 * PERIOD, UnixTime(0), UnixTime(i64::MAX), UnixTime(i64::MIN)] {
            statistics.handle_arrived(&one, &arrived(MB, SECOND), now);
            assert_eq!(statistics.latest(&one, now).ended_files, 1);
        }
    }
}
