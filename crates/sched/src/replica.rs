//! Choice of a source: ranks the replicas of a file.
//!
//! Nine strategies have the names and formulas of FTS3 (its report of CERN openlab, 2015). The tenth, `best`, is the
//! default: the expected time until the file has arrived. A source without measurements is tried once before it is
//! judged. Refuses to collect statistics, or remember earlier choices.

use std::time::Duration;

use sterna_proto::quantity::readable_time;
use sterna_proto::{BitRate, ByteCount};

use crate::queue::{RATE_ASSUMED, SIZE_ASSUMED};

/// Strategy of the choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// First source, as submitted.
    Orderly,
    /// Fewest files in the queue of the link.
    Queue,
    /// Highest success rate of the link.
    Success,
    /// Highest throughput of the link, all its files together.
    Throughput,
    /// Highest throughput of one file.
    FileThroughput,
    /// Least data in the queue that goes before this file.
    PendingData,
    /// Shortest wait: pending data by throughput.
    WaitingTime,
    /// Shortest wait, with the data that failures send again.
    WaitingTimeWithError,
    /// Earliest end: that wait, and the time of the file itself.
    Duration,
    /// Earliest expected end, by goodput, queue, success and the recorded path.
    #[default]
    Best,
}

/// Names of the strategies in requests. `auto` is another name of `queue`.
const NAMES: [(&str, Strategy); 11] = [
    ("orderly", Strategy::Orderly),
    ("queue", Strategy::Queue),
    ("success", Strategy::Success),
    ("throughput", Strategy::Throughput),
    ("file-throughput", Strategy::FileThroughput),
    ("pending-data", Strategy::PendingData),
    ("waiting-time", Strategy::WaitingTime),
    ("waiting-time-with-error", Strategy::WaitingTimeWithError),
    ("duration", Strategy::Duration),
    ("best", Strategy::Best),
    ("auto", Strategy::Queue),
];

impl Strategy {
    /// Names in requests, without other names of the same strategy.
    pub const NAMES: [&str; 10] = {
        let mut names = [""; 10];
        let mut index = 0;
        while index < names.len() {
            names[index] = NAMES[index].0;
            index += 1;
        }
        names
    };

    /// Returns the strategy of this name; `None` for an unknown name.
    pub fn by_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, strategy)| *strategy)
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, strategy)| *strategy == self).map_or("best", |(name, _)| name)
    }
}

/// Data that waits in the queue of a link, by the share of its activity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pending {
    /// Weight of the activity among the activities of its VO.
    pub weight: f64,
    /// Size of the files together.
    pub size: ByteCount,
}

/// Statistics of the link from one source to the destination.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceStats {
    /// Number of files in the queue.
    pub queued_files: u64,
    /// Data in the queue.
    pub pending: Vec<Pending>,
    /// Files that ended within the period of the statistics, whatever their outcome.
    pub ended_files: u64,
    /// Part of these that arrived, from 0 to 1; `None`: no file ended.
    pub success: Option<f64>,
    /// Throughput of the link, all files together; `None`: not measured.
    pub throughput: Option<BitRate>,
    /// Throughput of one file; `None`: not measured.
    pub file_throughput: Option<BitRate>,
    /// Best rate that agents have recorded on the path; `None`: there is no record.
    pub path_rate: Option<BitRate>,
    /// True if a file is under way or in the queue while nothing was measured: its outcome will be the measurement.
    pub is_being_tried: bool,
}

/// File whose source is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// Size; `None`: not known.
    pub size: Option<ByteCount>,
    /// Weight of its activity. Data of activities with less weight does not go before it.
    pub weight: f64,
}

/// Ranked sources, the best one first.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// Index of each source, as given.
    pub order: Vec<usize>,
    /// Reason for the first place.
    pub rationale: String,
}

/// Success of a link without ended files. Reason: as FTS3, which assumes 100 %.
const SUCCESS_ASSUMED: f64 = 1.0;

/// Minimum success in a denominator. Reason: a link on which every file fails has a finite place, the last one.
const SUCCESS_LEAST: f64 = 0.01;

/// Weight of the exploration: with `n` ended files, a link counts as `1 + EXPLORATION / sqrt(n)` times as fast. Guess:
/// a link with four files gets a bonus of a quarter, one with a hundred of 5 %.
const EXPLORATION: f64 = 0.5;

/// Ranks the sources of a file. Sources with the same value keep the order in which they were submitted.
///
/// Range: at least one source; `stats` has one element for each. Source of the formulas: the module.
pub fn rank(strategy: Strategy, wanted: &Wanted, stats: &[SourceStats]) -> Ranking {
    let costs: Vec<Cost> = stats.iter().map(|source| cost(strategy, wanted, source, stats)).collect();
    let mut order: Vec<usize> = (0..stats.len()).collect();
    // The sort is stable.
    order.sort_by(|one, other| costs[*one].value().total_cmp(&costs[*other].value()));
    let rationale = order.first().map_or_else(String::new, |best| {
        format!("{}: source {} of {}, {}", strategy.name(), best + 1, stats.len(), costs[*best].reason)
    });
    Ranking { order, rationale }
}

/// Value of a source: the lowest one is chosen.
struct Cost {
    place: Place,
    reason: String,
}

/// Place of a source.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// No measurement, and no file on its way to become one: goes first.
    Untried,
    /// Measured, with this value.
    Measured(f64),
    /// No measurement, and a file on its way: goes last until that has ended.
    BeingTried,
}

impl Cost {
    fn value(&self) -> f64 {
        match self.place {
            Place::Untried => f64::NEG_INFINITY,
            Place::Measured(value) => value,
            Place::BeingTried => f64::INFINITY,
        }
    }

    fn measured(value: f64, reason: String) -> Self {
        Self { place: Place::Measured(value), reason }
    }

    /// Returns the cost of a source whose measurement is missing.
    fn unmeasured(source: &SourceStats) -> Self {
        match source.is_being_tried {
            true => Self { place: Place::BeingTried, reason: "not measured yet".to_owned() },
            false => Self { place: Place::Untried, reason: "not measured, so that it is tried".to_owned() },
        }
    }
}

fn cost(strategy: Strategy, wanted: &Wanted, source: &SourceStats, all: &[SourceStats]) -> Cost {
    let seconds = |value: f64, what: &str| Cost::measured(value, format!("{what} {}", readable(value)));
    let pending = pending_before(wanted, source);
    let failures = 1.0 - source.success.unwrap_or(SUCCESS_ASSUMED);
    // Pending data by throughput, in seconds.
    let waiting = source.throughput.map(|rate| time_of(pending, rate));
    let waiting_with_error = waiting.map(|time| time + time * failures);
    match strategy {
        Strategy::Orderly => Cost::measured(0.0, "the first as submitted".to_owned()),
        Strategy::Queue => {
            Cost::measured(source.queued_files as f64, format!("{} files in its queue", source.queued_files))
        }
        Strategy::Success => Cost::measured(failures, format!("{:.0} % of its files arrive", (1.0 - failures) * 100.0)),
        Strategy::Throughput => fastest(source.throughput, source, "its link carries"),
        Strategy::FileThroughput => fastest(source.file_throughput, source, "one file gets"),
        Strategy::PendingData => Cost::measured(pending, format!("{} before the file", ByteCount(pending as u64))),
        Strategy::WaitingTime => waiting.map_or_else(|| Cost::unmeasured(source), |time| seconds(time, "a wait of")),
        Strategy::WaitingTimeWithError => {
            waiting_with_error.map_or_else(|| Cost::unmeasured(source), |time| seconds(time, "a wait with failures of"))
        }
        Strategy::Duration => {
            let own = source.file_throughput.map(|rate| time_of(size_of(wanted), rate));
            let time = waiting_with_error.zip(own).map(|(wait, own)| wait + own);
            time.map_or_else(|| Cost::unmeasured(source), |time| seconds(time, "done in"))
        }
        Strategy::Best => {
            let time = expected_time(wanted, source, all);
            seconds(time, "expected in")
        }
    }
}

fn fastest(rate: Option<BitRate>, source: &SourceStats, what: &str) -> Cost {
    rate.map_or_else(|| Cost::unmeasured(source), |rate| Cost::measured(-(rate.0 as f64), format!("{what} {rate}")))
}

/// Returns the expected time until the file has arrived, in seconds: the data before it and its own, at the rate of the
/// link, as often as the link needs until one attempt succeeds.
///
/// The rate of a link without measurements is the best one of its path, or the mean of the other sources. Few
/// measurements count as a faster link ([`EXPLORATION`]), so that a link with one slow file is tried again.
fn expected_time(wanted: &Wanted, source: &SourceStats, all: &[SourceStats]) -> f64 {
    let others: Vec<f64> = all.iter().filter_map(|other| other.throughput).map(|rate| rate.0 as f64).collect();
    let mean = match others.len() {
        0 => RATE_ASSUMED.0 as f64,
        count => others.iter().sum::<f64>() / count as f64,
    };
    let assumed = source.path_rate.map_or(mean, |rate| rate.0 as f64);
    let link = source.throughput.map_or(assumed, |rate| rate.0 as f64);
    let own = source.file_throughput.map_or(link, |rate| rate.0 as f64);
    let bonus = 1.0 + EXPLORATION / (source.ended_files.max(1) as f64).sqrt();
    let time = |bytes: f64, rate: f64| bytes * 8.0 / (rate * bonus).max(1.0);
    let success = source.success.unwrap_or(SUCCESS_ASSUMED).max(SUCCESS_LEAST);
    (time(pending_before(wanted, source), link) + time(size_of(wanted), own)) / success
}

/// Returns the bytes of files that go before a file: those of activities with at least its weight.
fn pending_before(wanted: &Wanted, source: &SourceStats) -> f64 {
    source.pending.iter().filter(|pending| pending.weight >= wanted.weight).map(|pending| pending.size.0 as f64).sum()
}

fn size_of(wanted: &Wanted) -> f64 {
    wanted.size.unwrap_or(SIZE_ASSUMED).0 as f64
}

fn time_of(bytes: f64, rate: BitRate) -> f64 {
    bytes * 8.0 / (rate.0 as f64).max(1.0)
}

fn readable(seconds: f64) -> String {
    // Values above a century come from a rate of a few bits per second.
    Duration::try_from_secs_f64(seconds.clamp(0.0, 3.2e9)).map_or_else(|_| "a long time".to_owned(), readable_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;
    /// One megabyte per second, as bits per second.
    const MB_S: u64 = 8_000_000;

    /// Four sources, measured as in the table of each test below:
    ///
    /// | | A | B | C | D |
    /// |---|---|---|---|---|
    /// | files in the queue | 3 | 1 | 4 | 2 |
    /// | pending, weight at least 0.5 | 600 MB | 900 MB | 100 MB | 400 MB |
    /// | pending, weight 0.2 | 0 | 0 | 2000 MB | 0 |
    /// | success | 100 % | 90 % | 50 % | 95 % |
    /// | throughput of the link | 10 MB/s | 30 MB/s | 2 MB/s | 20 MB/s |
    /// | throughput of a file | 5 MB/s | 3 MB/s | 8 MB/s | 4 MB/s |
    fn sources() -> Vec<SourceStats> {
        let source = |queued_files, high: u64, low: u64, success, link: u64, file: u64| SourceStats {
            queued_files,
            pending: vec![
                Pending { weight: 0.7, size: ByteCount(high / 2 * MB) },
                Pending { weight: 0.5, size: ByteCount(high / 2 * MB) },
                Pending { weight: 0.2, size: ByteCount(low * MB) },
            ],
            ended_files: 100,
            success: Some(success),
            throughput: Some(BitRate(link * MB_S)),
            file_throughput: Some(BitRate(file * MB_S)),
            ..SourceStats::default()
        };
        vec![
            source(3, 600, 0, 1.0, 10, 5),
            source(1, 900, 0, 0.9, 30, 3),
            source(4, 100, 2000, 0.5, 2, 8),
            source(2, 400, 0, 0.95, 20, 4),
        ]
    }

    /// A file of 120 MB whose activity has the weight 0.5.
    const FILE: Wanted = Wanted { size: Some(ByteCount(120 * MB)), weight: 0.5 };

    fn order(strategy: Strategy, wanted: &Wanted, stats: &[SourceStats]) -> String {
        rank(strategy, wanted, stats).order.iter().map(|at| ["A", "B", "C", "D"][*at]).collect()
    }

    #[test]
    fn each_strategy_ranks_by_its_formula() {
        // Computed by hand. Waits: A 600/10 = 60 s, B 900/30 = 30 s, C 100/2 = 50 s, D 400/20 = 20 s.
        // With failures: A 60 s, B 30 x 1.1 = 33 s, C 50 x 1.5 = 75 s, D 20 x 1.05 = 21 s.
        // The file itself: A 120/5 = 24 s, B 120/3 = 40 s, C 120/8 = 15 s, D 120/4 = 30 s.
        // Together: A 84 s, B 73 s, C 90 s, D 51 s.
        // Expected: A (60+24)/1 = 84, B (30+40)/0.9 = 77.8, C (50+15)/0.5 = 130, D (20+30)/0.95 = 52.6, each by 1.05.
        for (strategy, expected) in [
            (Strategy::Orderly, "ABCD"),
            (Strategy::Queue, "BDAC"),
            (Strategy::Success, "ADBC"),
            (Strategy::Throughput, "BDAC"),
            (Strategy::FileThroughput, "CADB"),
            (Strategy::PendingData, "CDAB"),
            (Strategy::WaitingTime, "DBCA"),
            (Strategy::WaitingTimeWithError, "DBAC"),
            (Strategy::Duration, "DBAC"),
            (Strategy::Best, "DBAC"),
        ] {
            assert_eq!(order(strategy, &FILE, &sources()), expected, "{}", strategy.name());
        }
    }

    #[test]
    fn data_of_activities_with_less_weight_does_not_go_before_a_file() {
        // For an activity of weight 0.2, all 2,100 MB of C are pending; for 0.7 half of the rest.
        let low = Wanted { weight: 0.2, ..FILE };
        assert_eq!(order(Strategy::PendingData, &low, &sources()), "DABC");
        let high = Wanted { weight: 0.7, ..FILE };
        assert_eq!(
            rank(Strategy::PendingData, &high, &sources()).rationale,
            "pending-data: source 3 of 4, 50.0 MB before the file"
        );
    }

    #[test]
    fn a_source_without_measurements_is_tried_once_and_then_waits_for_its_outcome() {
        let measured = [
            Strategy::Throughput,
            Strategy::FileThroughput,
            Strategy::WaitingTime,
            Strategy::WaitingTimeWithError,
            Strategy::Duration,
        ];
        for strategy in measured {
            let mut stats = sources();
            stats[2] = SourceStats { queued_files: 9, ..SourceStats::default() };
            assert!(order(strategy, &FILE, &stats).starts_with('C'), "{}", strategy.name());
            stats[2].is_being_tried = true;
            assert!(order(strategy, &FILE, &stats).ends_with('C'), "{}", strategy.name());
        }
    }

    #[test]
    fn the_best_source_without_measurements_is_judged_by_its_path_or_by_the_others() {
        let fresh = |path_rate: Option<u64>| {
            let path_rate = path_rate.map(|rate| BitRate(rate * MB_S));
            let unmeasured = SourceStats { path_rate, ..SourceStats::default() };
            let mut stats = sources();
            stats[0] = unmeasured;
            order(Strategy::Best, &FILE, &stats)
        };
        // The mean of the others is 17.3 MB/s, and there is no queue.
        assert_eq!(fresh(None), "ADBC");
        assert_eq!(fresh(Some(100)), "ADBC");
        assert_eq!(fresh(Some(1)), "DBAC", "120 MB at 1 MB/s take 80 s with the bonus of an untried link");
    }

    #[test]
    fn one_slow_file_does_not_shut_a_source_out() {
        // Both links are equal, but for one file of A that was 20 % slower.
        let mut stats = vec![sources()[3].clone(), sources()[3].clone()];
        stats[0].ended_files = 1;
        stats[0].file_throughput = Some(BitRate(4 * MB_S * 8 / 10));
        assert_eq!(order(Strategy::Best, &FILE, &stats), "AB");
        stats[0].ended_files = 100;
        assert_eq!(order(Strategy::Best, &FILE, &stats), "BA");
    }

    #[test]
    fn names_are_those_of_requests() {
        for (name, strategy) in NAMES {
            assert_eq!(Strategy::by_name(name), Some(strategy));
        }
        assert_eq!((Strategy::by_name("auto"), Strategy::Queue.name()), (Some(Strategy::Queue), "queue"));
        assert_eq!((Strategy::by_name("Best"), Strategy::default().name()), (None, "best"));
    }

    #[test]
    fn values_that_no_link_has_give_a_ranking_all_the_same() {
        let dead = SourceStats {
            success: Some(0.0),
            throughput: Some(BitRate(0)),
            file_throughput: Some(BitRate(0)),
            ..SourceStats::default()
        };
        for (_, strategy) in NAMES {
            let ranking =
                rank(strategy, &Wanted { size: None, weight: f64::NAN }, &[dead.clone(), SourceStats::default()]);
            assert_eq!(ranking.order.len(), 2, "{}", ranking.rationale);
        }
    }
}
