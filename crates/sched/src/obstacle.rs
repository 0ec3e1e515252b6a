//! Obstacles at endpoints, and the endpoints that have kept files waiting for long.
//!
//! A file that waits for a source with an obstacle can give its place to another replica of its entry. [`Stuck`]
//! decides when the owner of the files looks for such files, and at how many. Refuses to read files, and to choose a
//! replica.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use crate::queue::FileNumber;
use crate::settings::Name;
use crate::time::UnixTime;

/// Time after which files leave a source with an obstacle, unless an operator sets another one. Reason: an agent that
/// is restarted is back, its lease (90 s) is over, and so are the first three pauses of a breaker (105 s).
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Maximum number of files that are looked at in a tick. Reason: with the writes for all of them, less than 100 ms, for
/// which other events wait. A source gives its files away faster than most links start them.
pub const LOOKED_AT_MAX: u32 = 100;

/// Maximum number of endpoints whose files are looked at in a tick. Reason: each is a query of the store.
const ENDPOINTS_MAX: u32 = 8;

/// Reason why no transfer from or to an endpoint starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// An operator has banned it.
    Banned,
    /// None of its agents is connected.
    Absent,
    /// It has refused transfers, and gets none for a time.
    Refusing,
    /// It has refused transfers. Its pause is over, and no transfer has arrived since: one may try it.
    Unproven,
}

impl Obstacle {
    /// Returns the reason, for people, after the name of the endpoint.
    pub fn text(self) -> &'static str {
        match self {
            Self::Banned => "is banned",
            Self::Absent => "has no agent",
            Self::Refusing => "refuses transfers",
            Self::Unproven => "has refused transfers lately",
        }
    }
}

/// Look at files that wait for a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Endpoint of the source.
    pub endpoint: Name,
    /// Its obstacle.
    pub obstacle: Obstacle,
    /// Time for which it has had one.
    pub time: Duration,
    /// Files after this number.
    pub after: FileNumber,
    /// Maximum number of files.
    pub limit: u32,
}

/// Endpoint with an obstacle.
#[derive(Clone, Copy, Debug)]
struct Obstructed {
    since: UnixTime,
    obstacle: Obstacle,
    /// Last file that was looked at in this round.
    read: FileNumber,
}

/// Endpoints with obstacles, and the files that were looked at. Cost of a tick: it grows with the endpoints, and not
/// with the files that wait.
#[derive(Debug)]
pub struct Stuck {
    patience: Duration,
    endpoints: BTreeMap<Name, Obstructed>,
    /// Endpoint whose files were looked at last.
    turn: Option<Name>,
}

impl Stuck {
    /// Creates it without endpoints. `patience`: time after which files leave a source.
    pub fn new(patience: Duration) -> Self {
        Self { patience, endpoints: BTreeMap::new(), turn: None }
    }

    /// Records the endpoints with obstacles now. One that had another obstacle before has had one all the time.
    pub fn observe(&mut self, obstacles: impl IntoIterator<Item = (Name, Obstacle)>, now: UnixTime) {
        let mut present = BTreeSet::new();
        for (endpoint, obstacle) in obstacles {
            let new = Obstructed { since: now, obstacle, read: FileNumber(0) };
            self.endpoints.entry(Name::clone(&endpoint)).or_insert(new).obstacle = obstacle;
            present.insert(endpoint);
        }
        self.endpoints.retain(|endpoint, _| present.contains(endpoint));
    }

    /// Returns the looks of this tick: endpoints take turns, and share the files of a tick.
    pub fn poll(&mut self, now: UnixTime) -> Vec<Look> {
        let after = self.turn.take().map_or(Bound::Unbounded, Bound::Excluded);
        let before = match &after {
            Bound::Excluded(name) => Bound::Included(Name::clone(name)),
            _ => Bound::Excluded("".into()),
        };
        let in_turn = self.endpoints.range((after, Bound::Unbounded));
        let in_turn = in_turn.chain(self.endpoints.range((Bound::Unbounded, before)));
        let is_due = |one: &Obstructed| now.since(one.since) >= self.patience;
        let due: Vec<_> = in_turn.filter(|(_, one)| is_due(one)).take(ENDPOINTS_MAX as usize).collect();
        let limit = LOOKED_AT_MAX / u32::try_from(due.len().max(1)).unwrap_or(ENDPOINTS_MAX);
        let look = |(endpoint, one): &(&Name, &Obstructed)| Look {
            endpoint: Name::clone(endpoint),
            obstacle: one.obstacle,
            time: now.since(one.since),
            after: one.read,
            limit,
        };
        let looks: Vec<Look> = due.iter().map(look).collect();
        self.turn = looks.last().map(|look| Name::clone(&look.endpoint));
        looks
    }

    /// Records the numbers of the files that a look has found. After the last file the next round begins.
    pub fn handle_looked(&mut self, look: &Look, found: &[FileNumber]) {
        let Some(endpoint) = self.endpoints.get_mut(&look.endpoint) else { return };
        let is_full = found.len() >= look.limit as usize;
        endpoint.read = found.last().copied().filter(|_| is_full).unwrap_or(FileNumber(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: UnixTime = UnixTime(1_800_000_000_000);

    fn at(seconds: u64) -> UnixTime {
        START + Duration::from_secs(seconds)
    }

    fn name(number: u32) -> Name {
        format!("mock://{number:03}").into()
    }

    fn looked(looks: &[Look]) -> Vec<&str> {
        looks.iter().map(|look| &*look.endpoint).collect()
    }

    #[test]
    fn files_of_an_endpoint_are_looked_at_after_the_patience_and_until_its_obstacle_goes() {
        let mut stuck = Stuck::new(PATIENCE);
        stuck.observe([(name(1), Obstacle::Absent)], at(0));
        assert_eq!(stuck.poll(at(119)), []);
        // Another obstacle follows at once: the endpoint was free at no time.
        stuck.observe([(name(1), Obstacle::Banned), (name(2), Obstacle::Refusing)], at(119));
        let looks = stuck.poll(at(120));
        let (endpoint, time) = (name(1), Duration::from_secs(120));
        let after = FileNumber(0);
        assert_eq!(looks, [Look { endpoint, obstacle: Obstacle::Banned, time, after, limit: LOOKED_AT_MAX }]);
        stuck.observe([(name(2), Obstacle::Unproven)], at(121));
        stuck.observe([(name(1), Obstacle::Banned), (name(2), Obstacle::Refusing)], at(122));
        assert_eq!(looked(&stuck.poll(at(240))), ["mock://002"], "the first was free for a moment");
    }

    #[test]
    fn rounds_go_on_where_the_last_look_ended() {
        let mut stuck = Stuck::new(Duration::ZERO);
        let mut tick = |found: std::ops::Range<u64>| {
            stuck.observe([(name(1), Obstacle::Banned)], START);
            let look = stuck.poll(START).remove(0);
            stuck.handle_looked(&look, &found.map(FileNumber).collect::<Vec<_>>());
            look.after.0
        };
        let full = u64::from(LOOKED_AT_MAX);
        assert_eq!(tick(1..full + 1), 0);
        assert_eq!(tick(1000..1000 + full), full, "after the last one");
        assert_eq!(tick(5000..5001), 999 + full);
        assert_eq!(tick(0..0), 0, "that was the end: a new round");
        assert_eq!(tick(0..0), 0);
    }

    #[test]
    fn endpoints_take_turns_and_share_the_files_of_a_tick() {
        let mut stuck = Stuck::new(Duration::ZERO);
        stuck.observe((0..20).map(|number| (name(number), Obstacle::Absent)), START);
        let mut seen = Vec::new();
        for _ in 0..5 {
            let looks = stuck.poll(START);
            let all: u32 = looks.iter().map(|look| look.limit).sum();
            assert!((LOOKED_AT_MAX - ENDPOINTS_MAX..=LOOKED_AT_MAX).contains(&all), "{all} files");
            seen.extend(looks.into_iter().map(|look| look.endpoint));
        }
        let expected: Vec<Name> = (0..40).map(|number| name(number % 20)).collect();
        assert_eq!(seen, expected);
    }
}
