//! Choice of a source: ranks the replicas of a file.
//!
//! Nine strategies have the names and formulas of FTS3 (its report of CERN openlab, 2015). The tenth, `best`, is the
//! default: the expected time until the file has arrived. A source without measurements is tried once before it is
//! judged. A source with an obstacle is the last one, except in the order of the user (`orderly`). Refuses to collect
//! statistics.

use std::collections::BTreeMap;
use std::time::Duration;

use sterna_proto::quantity::readable_time;
use sterna_proto::{BitRate, ByteCount};

use crate::obstacle::Obstacle;
use crate::queue::{RATE_ASSUMED, SIZE_ASSUMED};
use crate::settings::{Link, Name};

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
    /// Number of transfers under way.
    pub active: u64,
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
    /// Obstacle on the link; `None`: transfers may start.
    pub obstacle: Option<Obstacle>,
}

impl SourceStats {
    /// Returns true if a file is under way or in the queue while nothing was measured: its outcome will be the
    /// measurement.
    fn is_being_tried(&self) -> bool {
        self.ended_files == 0 && self.has_files()
    }

    fn has_files(&self) -> bool {
        self.queued_files + self.active > 0
    }

    /// Returns the obstacle that counts for one more file. One file may try an endpoint that has refused others.
    fn obstacle(&self) -> Option<Obstacle> {
        self.obstacle.filter(|obstacle| *obstacle != Obstacle::Unproven || self.has_files())
    }
}

/// Source of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Endpoint, for the rationale.
    pub name: Name,
    /// Statistics of its link.
    pub stats: SourceStats,
}

/// Files that a submission has placed on links, and that no queue has yet. Each choice of the submission counts them,
/// so that the files of one job go to several sources.
#[derive(Clone, Debug, Default)]
pub struct Placed(BTreeMap<Link, OnLink>);

/// Files on one link.
#[derive(Clone, Debug, Default)]
struct OnLink {
    files: u64,
    pending: Vec<Pending>,
}

/// Maximum number of links on which the files of a submission are counted. Reason: a MB of memory; a job has some tens.
const PLACED_LINKS_MAX: usize = 5000;

impl Placed {
    /// Adds a file.
    pub fn add(&mut self, link: &Link, wanted: &Wanted) {
        if !self.0.contains_key(link) && self.0.len() < PLACED_LINKS_MAX {
            self.0.insert(link.clone(), OnLink::default());
        }
        let Some(on_link) = self.0.get_mut(link) else { return };
        on_link.files += 1;
        add_pending(&mut on_link.pending, Pending { weight: wanted.weight, size: ByteCount(size_of(wanted) as u64) });
    }

    /// Adds the files of a link to those in its queue.
    pub fn add_to(&self, link: &Link, stats: &mut SourceStats) {
        let Some(on_link) = self.0.get(link) else { return };
        stats.queued_files += on_link.files;
        on_link.pending.iter().for_each(|pending| add_pending(&mut stats.pending, *pending));
    }
}

/// Adds data to that of the same weight.
fn add_pending(all: &mut Vec<Pending>, more: Pending) {
    match all.iter_mut().find(|pending| pending.weight.total_cmp(&more.weight).is_eq()) {
        Some(pending) => pending.size = ByteCount(pending.size.0.saturating_add(more.size.0)),
        None => all.push(more),
    }
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

/// Maximum number of sources in a rationale besides the first one. Reason: a text of some hundred bytes for each file.
const OTHERS_SHOWN: usize = 4;

/// Ranks the sources of a file: first those without obstacles, by their value. Sources with the same value keep the
/// order in which they were submitted. `orderly` looks at nothing but that order. Source: FTS3.
///
/// Source of the formulas: the module.
pub fn rank(strategy: Strategy, wanted: &Wanted, candidates: &[Candidate]) -> Ranking {
    let ignores_obstacles = strategy == Strategy::Orderly;
    let costs = costs(strategy, wanted, candidates);
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    let is_blocked = |at: usize| !ignores_obstacles && candidates[at].stats.obstacle().is_some();
    // The sort is stable.
    order.sort_by(|one, other| {
        let of = |at: usize| (is_blocked(at), costs[at].value());
        let ((one_blocked, one), (other_blocked, other)) = (of(*one), of(*other));
        one_blocked.cmp(&other_blocked).then(one.0.total_cmp(&other.0)).then(one.1.total_cmp(&other.1))
    });
    let rationale = rationale(strategy, candidates, &costs, &order);
    Ranking { order, rationale }
}

/// Ranks the sources without obstacles alone, those that can take the place of a stuck file. `None`: each has one.
pub fn rank_free(strategy: Strategy, wanted: &Wanted, candidates: &[Candidate]) -> Option<Ranking> {
    let mut ranking = rank(strategy, wanted, candidates);
    ranking.order.retain(|at| candidates[*at].stats.obstacle().is_none());
    if ranking.order.is_empty() {
        return None;
    }
    ranking.rationale = rationale(strategy, candidates, &costs(strategy, wanted, candidates), &ranking.order);
    Some(ranking)
}

fn costs(strategy: Strategy, wanted: &Wanted, candidates: &[Candidate]) -> Vec<Cost> {
    let all: Vec<&SourceStats> = candidates.iter().map(|candidate| &candidate.stats).collect();
    all.iter().map(|source| cost(strategy, wanted, source, &all)).collect()
}

/// Returns the strategy, the first source with its value, and the values of the others.
fn rationale(strategy: Strategy, candidates: &[Candidate], costs: &[Cost], order: &[usize]) -> String {
    let Some((best, others)) = order.split_first() else { return String::new() };
    let value = |at: usize| {
        let Candidate { name, stats } = &candidates[at];
        let obstacle = stats.obstacle().map_or_else(String::new, |obstacle| format!("{}, ", obstacle.text()));
        format!("{name} {obstacle}{}", costs[at].reason)
    };
    let mut text = format!("{}: {}", strategy.name(), value(*best));
    others.iter().take(OTHERS_SHOWN).for_each(|at| text += &format!("; {}", value(*at)));
    if others.len() > OTHERS_SHOWN {
        text += &format!("; {} more", others.len() - OTHERS_SHOWN);
    }
    text
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
    /// No measurement, and a file on its way: goes last until that has ended. Among several, the value decides.
    BeingTried(f64),
}

impl Cost {
    fn value(&self) -> (f64, f64) {
        match self.place {
            Place::Untried => (f64::NEG_INFINITY, 0.0),
            Place::Measured(value) => (value, 0.0),
            Place::BeingTried(value) => (f64::INFINITY, value),
        }
    }

    fn measured(value: f64, reason: String) -> Self {
        Self { place: Place::Measured(value), reason }
    }

    /// Returns the cost of a source whose measurement is missing. `value`: what is known of it.
    fn unmeasured(source: &SourceStats, value: f64) -> Self {
        match source.is_being_tried() {
            true => Self { place: Place::BeingTried(value), reason: "is not measured yet".to_owned() },
            false => Self { place: Place::Untried, reason: "is not measured, so that it is tried".to_owned() },
        }
    }
}

fn cost(strategy: Strategy, wanted: &Wanted, source: &SourceStats, all: &[&SourceStats]) -> Cost {
    let seconds = |value: f64, what: &str| Cost::measured(value, format!("{what} {}", readable(value)));
    let pending = pending_before(wanted, source);
    let failures = 1.0 - source.success.unwrap_or(SUCCESS_ASSUMED);
    // Pending data by throughput, in seconds.
    let waiting = source.throughput.map(|rate| time_of(pending, rate));
    let waiting_with_error = waiting.map(|time| time + time * failures);
    // The source without a rate that has the least data before the file has the shortest wait.
    let unmeasured = || Cost::unmeasured(source, pending);
    match strategy {
        Strategy::Orderly => Cost::measured(0.0, "in the order of the user".to_owned()),
        Strategy::Queue => {
            Cost::measured(source.queued_files as f64, format!("has {} files in its queue", source.queued_files))
        }
        Strategy::Success => Cost::measured(failures, format!("delivers {:.0} %", (1.0 - failures) * 100.0)),
        Strategy::Throughput => fastest(source.throughput, source, "has a link of"),
        Strategy::FileThroughput => fastest(source.file_throughput, source, "gives a file"),
        Strategy::PendingData => Cost::measured(pending, format!("has {} before the file", ByteCount(pending as u64))),
        Strategy::WaitingTime => waiting.map_or_else(unmeasured, |time| seconds(time, "has a wait of")),
        Strategy::WaitingTimeWithError => {
            waiting_with_error.map_or_else(unmeasured, |time| seconds(time, "has a wait with failures of"))
        }
        Strategy::Duration => {
            let own = source.file_throughput.map(|rate| time_of(size_of(wanted), rate));
            let time = waiting_with_error.zip(own).map(|(wait, own)| wait + own);
            time.map_or_else(unmeasured, |time| seconds(time, "is done in"))
        }
        Strategy::Best => {
            let time = expected_time(wanted, source, all);
            seconds(time, "is expected in")
        }
    }
}

fn fastest(rate: Option<BitRate>, source: &SourceStats, what: &str) -> Cost {
    rate.map_or_else(
        || Cost::unmeasured(source, 0.0),
        |rate| Cost::measured(-(rate.0 as f64), format!("{what} {rate}")),
    )
}

/// Returns the expected time until the file has arrived, in seconds: the data before it and its own, at the rate of the
/// link, as often as the link needs until one attempt succeeds.
///
/// The rate of a link without measurements is the best one of its path, or the mean of the other sources. Few
/// measurements count as a faster link ([`EXPLORATION`]), so that a link with one slow file is tried again.
fn expected_time(wanted: &Wanted, source: &SourceStats, all: &[&SourceStats]) -> f64 {
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

    const NAMES_OF_SOURCES: [&str; 4] = ["A", "B", "C", "D"];

    fn candidates(stats: &[SourceStats]) -> Vec<Candidate> {
        let candidate = |(name, stats): (&&str, &SourceStats)| Candidate { name: (*name).into(), stats: stats.clone() };
        NAMES_OF_SOURCES.iter().zip(stats).map(candidate).collect()
    }

    fn in_letters(ranking: &Ranking) -> String {
        ranking.order.iter().map(|at| NAMES_OF_SOURCES[*at]).collect()
    }

    fn order(strategy: Strategy, wanted: &Wanted, stats: &[SourceStats]) -> String {
        in_letters(&rank(strategy, wanted, &candidates(stats)))
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
            rank(Strategy::PendingData, &high, &candidates(&sources())).rationale,
            "pending-data: C has 50.0 MB before the file; D has 200 MB before the file; \
             A has 300 MB before the file; B has 450 MB before the file"
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
            stats[2] = SourceStats::default();
            assert!(order(strategy, &FILE, &stats).starts_with('C'), "{}", strategy.name());
            for (queued_files, active) in [(9, 0), (0, 1)] {
                stats[2] = SourceStats { queued_files, active, ..SourceStats::default() };
                assert!(order(strategy, &FILE, &stats).ends_with('C'), "{}", strategy.name());
            }
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
            let sources = candidates(&[dead.clone(), SourceStats::default()]);
            let ranking = rank(strategy, &Wanted { size: None, weight: f64::NAN }, &sources);
            assert_eq!(ranking.order.len(), 2, "{}", ranking.rationale);
            assert_eq!(rank(strategy, &FILE, &[]), Ranking { order: Vec::new(), rationale: String::new() });
            assert_eq!(rank_free(strategy, &FILE, &[]), None);
        }
    }

    /// The sources of the table; B is banned, and C has refused transfers lately.
    #[test]
    fn sources_with_obstacles_are_the_last_ones_except_in_the_order_of_the_user() {
        let mut stats = sources();
        stats[1].obstacle = Some(Obstacle::Banned);
        stats[2].obstacle = Some(Obstacle::Unproven);
        // The orders of the table without B and C, and then B and C in their order there.
        for (strategy, expected, free) in [
            (Strategy::Orderly, "ABCD", "AD"),
            (Strategy::Queue, "DABC", "DA"),
            (Strategy::Success, "ADBC", "AD"),
            (Strategy::Throughput, "DABC", "DA"),
            (Strategy::FileThroughput, "ADCB", "AD"),
            (Strategy::PendingData, "DACB", "DA"),
            (Strategy::WaitingTime, "DABC", "DA"),
            (Strategy::WaitingTimeWithError, "DABC", "DA"),
            (Strategy::Duration, "DABC", "DA"),
            (Strategy::Best, "DABC", "DA"),
        ] {
            assert_eq!(order(strategy, &FILE, &stats), expected, "{}", strategy.name());
            let of_free = rank_free(strategy, &FILE, &candidates(&stats)).unwrap();
            assert_eq!(in_letters(&of_free), free, "{}", strategy.name());
        }
        let said = rank(Strategy::Queue, &FILE, &candidates(&stats)).rationale;
        let expected = "queue: D has 2 files in its queue; A has 3 files in its queue; \
                        B is banned, has 1 files in its queue; \
                        C has refused transfers lately, has 4 files in its queue";
        assert_eq!(said, expected);
        let blocked: Vec<SourceStats> =
            sources().into_iter().map(|source| SourceStats { obstacle: Some(Obstacle::Absent), ..source }).collect();
        assert_eq!(order(Strategy::Queue, &FILE, &blocked), "BDAC", "with obstacles everywhere, as without");
        assert_eq!(rank_free(Strategy::Queue, &FILE, &candidates(&blocked)), None);
    }

    #[test]
    fn one_file_tries_a_source_that_has_refused_others() {
        let unproven = SourceStats { obstacle: Some(Obstacle::Unproven), ..SourceStats::default() };
        let other = SourceStats { queued_files: 5, ..SourceStats::default() };
        let mut stats = [unproven, other];
        assert_eq!(order(Strategy::Queue, &FILE, &stats), "AB");
        stats[0].queued_files = 1;
        assert_eq!(order(Strategy::Queue, &FILE, &stats), "BA", "it has its file");
        (stats[0].queued_files, stats[0].active) = (0, 1);
        assert_eq!(order(Strategy::Queue, &FILE, &stats), "BA");
    }

    /// Returns the numbers of files that each source gets of a job, whose files are all as [`FILE`].
    fn of_one_job(strategy: Strategy, stats: &[SourceStats], files: u32) -> Vec<u32> {
        let link = |at: usize| Link { source: NAMES_OF_SOURCES[at].into(), destination: "Z".into() };
        let (mut placed, mut counts) = (Placed::default(), vec![0; stats.len()]);
        for _ in 0..files {
            let mut now = candidates(stats);
            now.iter_mut().enumerate().for_each(|(at, one)| placed.add_to(&link(at), &mut one.stats));
            let best = rank(strategy, &FILE, &now).order[0];
            placed.add(&link(best), &FILE);
            counts[best] += 1;
        }
        counts
    }

    #[test]
    fn files_of_one_job_count_for_each_other() {
        // A and B of the table alone, both with two sources. By hand, 1,000 files of 120 MB:
        // queue: 3 + x = 1 + y and x + y = 1000, so x = 499 and y = 501.
        // pending: 600 + 120x = 900 + 120y, so x - y = 2.5: 501 and 499.
        // wait: (600 + 120x)/10 = (900 + 120y)/30, so 3x - y = -7.5 and 4x = 992.5: 248 and 752.
        // wait with failures: 60 + 12x = 1.1(30 + 4y), so 16.4x = 4373: 267 and 733, within one file.
        // duration: 84 + 12x = 73 + 4.4y, so 16.4x = 4389: 268 and 732, within one file.
        // best: 84 + 12x = (70 + 4y)/0.9, so 16.444x = 4438.2: 270 and 730, within one file.
        let two = &sources()[..2];
        for (strategy, expected) in [
            (Strategy::Queue, [499, 501]),
            (Strategy::PendingData, [501, 499]),
            (Strategy::WaitingTime, [248, 752]),
            (Strategy::WaitingTimeWithError, [267, 733]),
            (Strategy::Duration, [268, 732]),
            (Strategy::Best, [270, 730]),
            // The formulas of these have no queue.
            (Strategy::Orderly, [1000, 0]),
            (Strategy::Success, [1000, 0]),
            (Strategy::Throughput, [0, 1000]),
            (Strategy::FileThroughput, [1000, 0]),
        ] {
            let counts = of_one_job(strategy, two, 1000);
            assert!(counts[0].abs_diff(expected[0]) <= 1, "{}: {counts:?}", strategy.name());
        }
    }

    #[test]
    fn a_job_from_sources_that_nobody_has_measured_goes_to_all_of_them() {
        let fresh = [const { None }; 2].map(|obstacle| SourceStats { obstacle, ..SourceStats::default() });
        for strategy in [
            Strategy::Queue,
            Strategy::PendingData,
            Strategy::WaitingTime,
            Strategy::WaitingTimeWithError,
            Strategy::Duration,
            Strategy::Best,
        ] {
            assert_eq!(of_one_job(strategy, &fresh, 1000), [500, 500], "{}", strategy.name());
        }
    }

    #[test]
    fn a_rationale_of_many_sources_is_short() {
        let name: Name = "mock://a.example".into();
        let all = vec![Candidate { name, stats: sources()[0].clone() }; 50];
        let said = rank(Strategy::Best, &FILE, &all).rationale;
        assert!(said.ends_with("; 45 more") && said.len() < 400, "{said}");
    }
}
