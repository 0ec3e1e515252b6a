//! Files that leave sources with obstacles, in virtual time: a second for each step, with random obstacles by seed.

use std::collections::BTreeMap;
use std::time::Duration;

use sterna_proto::ByteCount;
use sterna_sched::obstacle::{LOOKED_AT_MAX, Look, PATIENCE, Stuck};
use sterna_sched::queue::{FileNumber, QueuedFile};
use sterna_sched::replica::{Candidate, SourceStats, Strategy, Wanted, rank_free};
use sterna_sched::scheduler::Scheduler;
use sterna_sched::settings::{Limits, Link, Name, QueueName, Shares};
use sterna_sched::time::UnixTime;
use sterna_seeded::{Seeded, for_seeds};

const START: UnixTime = UnixTime(1_800_000_000_000);

/// Number of sources.
const SOURCES: usize = 6;

/// Number of entries. Reason: more files than a tick looks at.
const ENTRIES: u64 = 400;

/// Replica of an entry.
struct Replica {
    entry: u64,
    source: usize,
    is_reserved: bool,
}

/// Files of a service that starts none of them.
struct World {
    scheduler: Scheduler,
    stuck: Stuck,
    replicas: BTreeMap<FileNumber, Replica>,
    entries: Vec<Vec<FileNumber>>,
    /// Bans, by source.
    banned: [bool; SOURCES],
    /// Time since which each source is banned; `None`: it is not.
    since: [Option<UnixTime>; SOURCES],
    now: UnixTime,
    /// Number of files that have left their source.
    swapped: usize,
}

fn source(at: usize) -> Name {
    format!("mock://{at}").into()
}

fn link(at: usize) -> Link {
    Link { source: source(at), destination: "mock://to".into() }
}

fn queued(number: FileNumber) -> QueuedFile {
    let size = Some(ByteCount(1));
    QueuedFile { number, size, priority: 3, submitted: START, deadline: None, not_before: START, group: None }
}

impl World {
    fn new(random: &mut Seeded) -> Self {
        let scheduler = Scheduler::new(Limits { all: 0, ..Limits::default() }, Shares::default());
        let stuck = Stuck::new(PATIENCE);
        let (banned, since, now) = ([false; SOURCES], [None; SOURCES], START);
        let entries = vec![Vec::new(); ENTRIES as usize];
        let mut world = Self { scheduler, stuck, replicas: BTreeMap::new(), entries, banned, since, now, swapped: 0 };
        let mut number = 0;
        for entry in 0..ENTRIES {
            for index in 0..1 + random.below(4) {
                number += 1;
                let (source, is_reserved) = (random.below(SOURCES as u64) as usize, index > 0);
                world.replicas.insert(FileNumber(number), Replica { entry, source, is_reserved });
                world.entries[entry as usize].push(FileNumber(number));
                if !is_reserved {
                    world.queue(FileNumber(number));
                }
            }
        }
        world
    }

    fn queue(&mut self, number: FileNumber) {
        let queue = QueueName { link: link(self.replicas[&number].source), vo: "v".into(), activity: "a".into() };
        self.scheduler.handle_queued(queue, queued(number), self.now);
    }

    fn set_banned(&mut self, at: usize, is_banned: bool) {
        self.banned[at] = is_banned;
        self.since[at] = is_banned.then(|| self.since[at].unwrap_or(self.now));
        let banned: Vec<Name> = (0..SOURCES).filter(|at| self.banned[*at]).map(source).collect();
        self.scheduler.set_bans(&banned);
    }

    /// Returns the files that a look finds, as the store does.
    fn found(&self, look: &Look) -> Vec<FileNumber> {
        let is_there = |(number, replica): &(&FileNumber, &Replica)| {
            !replica.is_reserved && **number > look.after && source(replica.source) == look.endpoint
        };
        let files = self.replicas.iter().filter(is_there).map(|(number, _)| *number);
        files.take(look.limit as usize).collect()
    }

    fn reserves(&self, entry: u64) -> Vec<FileNumber> {
        let of_entry = self.entries[entry as usize].iter();
        of_entry.copied().filter(|number| self.replicas[number].is_reserved).collect()
    }

    fn candidate(&self, number: FileNumber) -> Candidate {
        let link = link(self.replicas[&number].source);
        let queued_files = self.scheduler.queued(&link).files;
        let obstacle = self.scheduler.obstacle(&link, self.now);
        Candidate { name: link.source, stats: SourceStats { queued_files, obstacle, ..SourceStats::default() } }
    }

    /// Looks at the files of a tick. Returns the number of files that it looked at.
    fn tick(&mut self) -> usize {
        self.stuck.observe(self.scheduler.obstacles(self.now), self.now);
        let mut looked = 0;
        for look in self.stuck.poll(self.now) {
            let found = self.found(&look);
            self.stuck.handle_looked(&look, &found);
            looked += found.len();
            for number in found {
                let from = self.replicas[&number].source;
                let reserves = self.reserves(self.replicas[&number].entry);
                let candidates: Vec<Candidate> = reserves.iter().map(|number| self.candidate(*number)).collect();
                let wanted = Wanted { size: None, weight: 1.0 };
                let Some(ranking) = rank_free(Strategy::Queue, &wanted, &candidates) else { continue };
                let next = reserves[ranking.order[0]];
                let since = self.since[from].unwrap_or_else(|| panic!("{from} is free"));
                assert!(self.now.since(since) >= PATIENCE, "{from} is banned since {since:?}");
                assert!(!self.banned[self.replicas[&next].source], "{}", ranking.rationale);
                assert!(self.scheduler.handle_cancelled(number));
                self.replicas.get_mut(&number).unwrap().is_reserved = true;
                self.replicas.get_mut(&next).unwrap().is_reserved = false;
                self.queue(next);
                self.swapped += 1;
            }
        }
        looked
    }

    /// Checks that of each entry one replica waits, and all others are in reserve.
    fn check(&self) {
        let mut waiting = vec![0; ENTRIES as usize];
        for replica in self.replicas.values().filter(|replica| !replica.is_reserved) {
            waiting[replica.entry as usize] += 1;
        }
        assert!(waiting.iter().all(|count| *count == 1), "{waiting:?}");
        assert_eq!(self.scheduler.counts(), (ENTRIES as usize, 0));
    }
}

#[test]
fn stuck_files_go_to_a_free_source_and_none_is_lost() {
    for_seeds("stuck_files_go_to_a_free_source_and_none_is_lost", 10, |seed| {
        let mut random = Seeded::new(seed);
        let mut world = World::new(&mut random);
        for _ in 0..500 {
            world.now = world.now + Duration::from_secs(1);
            // A ban lasts 200 s in the mean, some shorter than the patience.
            if random.chance(30) {
                let at = random.below(SOURCES as u64) as usize;
                world.set_banned(at, !world.banned[at]);
            }
            assert!(world.tick() <= LOOKED_AT_MAX as usize);
        }
        world.check();
        // The obstacles stay: after the patience and some rounds no file waits that could go elsewhere.
        for _ in 0..PATIENCE.as_secs() + 100 {
            world.now = world.now + Duration::from_secs(1);
            world.tick();
        }
        world.check();
        assert!(world.swapped > 20, "{} files have left their source", world.swapped);
        let stays = |replica: &&Replica| !replica.is_reserved && world.banned[replica.source];
        for replica in world.replicas.values().filter(stays) {
            let reserves = world.reserves(replica.entry);
            assert!(reserves.iter().all(|number| world.banned[world.replicas[number].source]), "{reserves:?}");
        }
    });
}
