//! Scheduler: which files start now, and why the others wait.
//!
//! Keeps the queues of all links in memory, counts the transfers under way, and starts files within exact limits: for
//! each link, for each endpoint in and out, for each VO, and for all together. Links take turns, one file each. Within
//! a link, shares decide by bytes (VO, then activity), and the order of the queue decides the file. A file that must
//! start to end at its deadline goes before all others of its VO. Refuses to store anything: its owner keeps files and
//! their states, and reports every change.
//!
//! The cost of a turn grows with the links that have files and with the files that start, not with the files that wait.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use sterna_proto::quantity::readable_time;
use sterna_proto::{BitRate, ByteCount, Error, Scope};

use crate::breaker::Breaker;
use crate::obstacle::Obstacle;
use crate::order::{Due, Order};
use crate::queue::{FileNumber, Queue, QueuedFile, RATE_ASSUMED};
use crate::replica::Pending;
use crate::settings::{Limits, Link, Name, QueueName, Shares};
use crate::share::{RoundRobin, Waiting};
use crate::time::UnixTime;
use crate::why::{Waits, Why};

/// Maximum number of files that share a session. Reason: their paths travel in the hello of each lane, which has room
/// for 32 kB; a session that fails fails for all of them.
pub const SHARED_FILES_MAX: usize = 100;

/// Maximum size of the files of one session together, unless their sizes are not known. Reason: some seconds of a fast
/// link, after which other queues have their turn.
const SHARED_SIZE_MAX: ByteCount = ByteCount(1 << 30);

/// File that starts, with those that share its session.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// Number.
    pub file: FileNumber,
    /// Files of the same group that start in the same session. All of them count as one transfer.
    pub with: Vec<FileNumber>,
    /// Queue in which it waited.
    pub queue: QueueName,
    /// Reason why this file starts before the others.
    pub rationale: String,
}

/// Files that wait and that are under way on a link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueuedOnLink {
    /// Number of files that wait.
    pub files: u64,
    /// Number of files under way.
    pub active: u64,
    /// Data that waits, by the weight of its activity.
    pub pending: Vec<Pending>,
}

/// State of an endpoint.
#[derive(Clone, Debug, Default)]
struct Endpoint {
    inbound: usize,
    outbound: usize,
    breaker: Breaker,
    is_banned: bool,
    is_absent: bool,
}

impl Endpoint {
    fn obstacle(&self, now: UnixTime) -> Option<Obstacle> {
        if self.is_banned {
            return Some(Obstacle::Banned);
        }
        if self.is_absent {
            return Some(Obstacle::Absent);
        }
        let of_breaker = if self.breaker.blocked(now).is_some() { Obstacle::Refusing } else { Obstacle::Unproven };
        self.breaker.is_unproven().then_some(of_breaker)
    }
}

/// Queues of one link.
#[derive(Debug, Default)]
struct LinkQueues {
    active: usize,
    /// Measured rate of one file; `None`: not measured.
    file_rate: Option<BitRate>,
    vos: BTreeMap<Name, BTreeMap<Name, Queue>>,
    vo_turns: RoundRobin<Name>,
    activity_turns: BTreeMap<Name, RoundRobin<Name>>,
}

/// Place of a file.
#[derive(Clone, Debug)]
enum Place {
    Queued(QueueName),
    /// `session`: the first file of its session.
    Active {
        queue: QueueName,
        file: QueuedFile,
        session: FileNumber,
    },
}

/// Scheduler.
#[derive(Debug, Default)]
pub struct Scheduler {
    limits: Limits,
    shares: Shares,
    links: BTreeMap<Link, LinkQueues>,
    endpoints: BTreeMap<Name, Endpoint>,
    vos: BTreeMap<Name, usize>,
    /// Number of sessions: what limits count.
    active: usize,
    /// Number of files under way of each session, by its first file.
    sessions: BTreeMap<FileNumber, usize>,
    places: BTreeMap<FileNumber, Place>,
    /// Link that had the first turn last.
    turn: Option<Link>,
}

impl Scheduler {
    /// Creates a scheduler without files.
    pub fn new(limits: Limits, shares: Shares) -> Self {
        Self { limits, shares, ..Self::default() }
    }

    /// Replaces the limits. Transfers under way above a lower limit go on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Replaces the shares, and gives the files that wait the queues and the order that follow. Cost: a sort of the
    /// files that wait, if the order of their VO changes.
    pub fn set_shares(&mut self, shares: Shares, now: UnixTime) {
        let before = std::mem::replace(&mut self.shares, shares);
        for vo in before.in_order.symmetric_difference(&self.shares.in_order) {
            let order = self.shares.order_of(vo);
            for link in self.links.values_mut() {
                link.activity_turns.remove(vo);
                let Some(queues) = link.vos.get_mut(vo) else { continue };
                for file in std::mem::take(queues).into_values().flat_map(Queue::into_files) {
                    let Some(Place::Queued(queue)) = self.places.get(&file.number) else { continue };
                    let name = Arc::clone(self.shares.queue_in_vo(queue));
                    queues.entry(name).or_insert_with(|| Queue::new(order)).add(file, now);
                }
            }
        }
    }

    /// Records the measured rate of one file on each link that has files; `None`: not measured. Deadlines follow it.
    pub fn set_file_rates(&mut self, mut rate: impl FnMut(&Link) -> Option<BitRate>) {
        for (name, link) in &mut self.links {
            link.file_rate = rate(name);
        }
    }

    /// Bans an endpoint, or lifts the ban: no transfer starts from or to a banned one.
    pub fn set_ban(&mut self, endpoint: &Name, is_banned: bool) {
        self.endpoints.entry(Arc::clone(endpoint)).or_default().is_banned = is_banned;
    }

    /// Bans these endpoints, and no others.
    pub fn set_bans(&mut self, banned: &[Name]) {
        self.endpoints.values_mut().for_each(|endpoint| endpoint.is_banned = false);
        banned.iter().for_each(|endpoint| self.set_ban(endpoint, true));
    }

    /// Records the endpoints without an agent, and no others: no transfer starts from or to them.
    pub fn set_absent(&mut self, absent: &[Name]) {
        self.endpoints.values_mut().for_each(|endpoint| endpoint.is_absent = false);
        absent.iter().for_each(|endpoint| self.endpoint(endpoint).is_absent = true);
    }

    /// Adds a file that is under way already, because it was when the service stopped.
    pub fn handle_running(&mut self, queue: QueueName, file: QueuedFile) {
        if self.places.contains_key(&file.number) {
            return;
        }
        self.count(&queue, 1);
        // Which files shared a session is not stored: each counts until it ends.
        self.sessions.insert(file.number, 1);
        self.places.insert(file.number, Place::Active { queue, session: file.number, file });
    }

    /// Adds a file that waits. A file that the scheduler has already keeps its place, and is not added again.
    pub fn handle_queued(&mut self, queue: QueueName, file: QueuedFile, now: UnixTime) {
        if self.places.contains_key(&file.number) {
            return;
        }
        let order = self.shares.order_of(&queue.vo);
        let link = self.links.entry(queue.link.clone()).or_default();
        let activities = link.vos.entry(Arc::clone(&queue.vo)).or_default();
        let name = Arc::clone(self.shares.queue_in_vo(&queue));
        let files = activities.entry(name).or_insert_with(|| Queue::new(order));
        files.add(file, now);
        self.places.insert(file.number, Place::Queued(queue));
    }

    /// Removes a file that waits. Returns false if it does not wait here.
    pub fn handle_cancelled(&mut self, number: FileNumber) -> bool {
        let Some(Place::Queued(queue)) = self.places.get(&number).cloned() else { return false };
        self.places.remove(&number);
        self.take(&queue, number).is_some()
    }

    /// Records that a file under way has ended: it arrived, or failed. With the last file of its session, the place of
    /// the session is free.
    ///
    /// `wait`: the time for which the endpoint asked. Returns false for a file that is not under way.
    pub fn handle_ended(
        &mut self,
        number: FileNumber,
        outcome: Result<ByteCount, &Error>,
        wait: Option<Duration>,
        now: UnixTime,
    ) -> bool {
        let Some(Place::Active { queue, file, session }) = self.places.get(&number).cloned() else { return false };
        self.places.remove(&number);
        let left = self.sessions.get(&session).copied().unwrap_or(1).saturating_sub(1);
        if left == 0 {
            self.sessions.remove(&session);
            self.count(&queue, -1);
        } else {
            self.sessions.insert(session, left);
        }
        // The credit was taken for the size that was known.
        let unsent = file.assumed_size().0.saturating_sub(outcome.map_or(0, |size| size.0));
        if let Some(link) = self.links.get_mut(&queue.link).filter(|_| unsent > 0) {
            link.vo_turns.give_back(&queue.vo, unsent);
            let name = self.shares.queue_in_vo(&queue);
            link.activity_turns.entry(Arc::clone(&queue.vo)).or_default().give_back(name, unsent);
        }
        let (source, destination) = (&queue.link.source, &queue.link.destination);
        for (endpoint, scope) in [(source, Scope::Source), (destination, Scope::Destination)] {
            let breaker = &mut self.endpoint(endpoint).breaker;
            match outcome {
                Ok(_) => breaker.handle_success(number),
                Err(error) if error.scope == scope => breaker.handle_failure(number, error, wait, now),
                Err(_) => breaker.handle_other_end(number, now),
            }
        }
        true
    }

    /// Returns the files that start now. They count as under way from here on.
    pub fn poll(&mut self, now: UnixTime) -> Vec<Start> {
        let mut starts = Vec::new();
        let first = self.turn.take();
        let mut open: Vec<Link> = self.links.keys().cloned().collect();
        // The link after the one that began last begins.
        let at = first.as_ref().map_or(0, |first| open.partition_point(|link| link <= first));
        let at = at.min(open.len());
        open.rotate_left(at);
        while !open.is_empty() {
            open.retain(|link| match self.start_one(link, now) {
                Some(start) => {
                    starts.push(start);
                    true
                }
                None => false,
            });
        }
        self.turn = starts.first().map(|start| start.queue.link.clone()).or(first);
        starts
    }

    /// Returns the reason why a file waits, and its place in its queue; `None`: it does not wait here. `rate`: that of
    /// the link.
    pub fn why(&self, number: FileNumber, rate: Option<BitRate>, now: UnixTime) -> Option<Why> {
        let Some(Place::Queued(queue)) = self.places.get(&number) else { return None };
        let link = self.links.get(&queue.link)?;
        let files = link.vos.get(&queue.vo)?.get(self.shares.queue_in_vo(queue))?;
        let file = files.file(number)?;
        let retry = (file.not_before > now).then_some(Waits::Retry(file.not_before));
        let waits = retry.or_else(|| self.blocked(&queue.link, link, now)).or_else(|| self.full_of_vo(&queue.vo));
        let waits = waits.unwrap_or(Waits::Turn);
        let (count, size) = files.before(number, link.file_rate.unwrap_or(RATE_ASSUMED), now)?;
        let of_files = rate.filter(|rate| rate.0 > 0).map(|rate| rate.time_for(size));
        let expected = of_files.max(waits.ends_in(now));
        let is_late = file.deadline.is_some_and(|deadline| deadline <= now);
        Some(Why { waits, files: count, size, expected, is_late })
    }

    /// Returns the links that have files, each with its maximum of transfers.
    pub fn links(&self) -> BTreeMap<Link, usize> {
        self.links.keys().map(|link| (link.clone(), self.limits.of_link(link))).collect()
    }

    /// Returns the files that wait and that are under way on a link.
    pub fn queued(&self, link: &Link) -> QueuedOnLink {
        let Some(queues) = self.links.get(link) else { return QueuedOnLink::default() };
        let mut queued = QueuedOnLink { active: queues.active as u64, ..QueuedOnLink::default() };
        for (vo, activities) in &queues.vos {
            for (activity, queue) in activities {
                queued.files += queue.len() as u64;
                let weight = self.shares.of_activity(vo, activity).weight;
                queued.pending.push(Pending { weight, size: queue.size() });
            }
        }
        queued
    }

    /// Returns the weight of an activity of a VO.
    pub fn weight(&self, vo: &Name, activity: &Name) -> f64 {
        self.shares.of_activity(vo, activity).weight
    }

    /// Returns the number of files that wait and that are under way.
    pub fn counts(&self) -> (usize, usize) {
        let active = self.sessions.values().sum();
        (self.places.len() - active, active)
    }

    fn start_one(&mut self, name: &Link, now: UnixTime) -> Option<Start> {
        let link = self.links.get(name)?;
        if self.blocked(name, link, now).is_some() {
            return None;
        }
        let full: Vec<Name> = link.vos.keys().filter(|vo| self.full_of_vo(vo).is_some()).cloned().collect();
        let shares = &self.shares;
        let link = self.links.get_mut(name)?;
        let rate = link.file_rate.unwrap_or(RATE_ASSUMED);
        // The first file of each activity, and of each VO that of the activity whose turn it is, or the most urgent
        // one.
        let mut vos = Vec::new();
        let mut candidates = BTreeMap::new();
        for (vo, queues) in link.vos.iter_mut().filter(|(vo, _)| !full.contains(vo)) {
            let mut urgent: Option<(Due, Name)> = None;
            let mut first = |(activity, queue): (&Name, &mut Queue)| {
                let first = queue.first(rate, now)?;
                let is_first =
                    |due: &Due| urgent.as_ref().is_none_or(|(other, _)| due.urgency(now) < other.urgency(now));
                if let Some(due) = first.due.filter(is_first) {
                    urgent = Some((due, Arc::clone(activity)));
                }
                let share = shares.of_activity(vo, activity);
                Some(Waiting { queue: Arc::clone(activity), share, first: first.size.0 })
            };
            let activities: Vec<Waiting<Name>> = queues.iter_mut().filter_map(&mut first).collect();
            let turns = link.activity_turns.entry(Arc::clone(vo)).or_default();
            let turn = || turns.clone().choose(&activities).map(|choice| choice.queue);
            let Some(activity) = urgent.as_ref().map(|(_, activity)| Arc::clone(activity)).or_else(turn) else {
                continue;
            };
            let size = activities.iter().find(|waiting| waiting.queue == activity).map_or(0, |waiting| waiting.first);
            vos.push(Waiting { queue: Arc::clone(vo), share: shares.of_vo(name, vo), first: size });
            candidates.insert(Arc::clone(vo), (activities, urgent));
        }
        let vo = link.vo_turns.choose(&vos)?;
        let (activities, urgent) = candidates.remove(&vo.queue)?;
        let turns = link.activity_turns.get_mut(&vo.queue)?;
        let activity = match &urgent {
            Some((_, activity)) => turns.choose_queue(&activities, activity)?,
            None => turns.choose(&activities)?,
        };
        let number = link.vos.get_mut(&vo.queue)?.get_mut(&activity.queue)?.first(rate, now)?.number;
        let Some(Place::Queued(queue)) = self.places.get(&number).cloned() else { return None };
        let file = self.take(&queue, number)?;
        self.count(&queue, 1);
        for endpoint in [&queue.link.source, &queue.link.destination] {
            self.endpoint(endpoint).breaker.handle_start(number);
        }
        let mut rationale = format!("share of {} {:.0} %", queue.vo, vo.fraction * 100.0);
        // Writing to a string succeeds always.
        let _ = match self.shares.order_of(&queue.vo) {
            Order::Submission => write!(rationale, "; in order of submission"),
            Order::Priority => {
                let (activity, percent) = (&queue.activity, activity.fraction * 100.0);
                write!(rationale, ", of {activity} in it {percent:.0} %; priority {}", file.priority)
            }
        };
        if let Some((due, _)) = urgent {
            let left = due.deadline.since(now);
            let _ = match due.is_late(now) {
                true => write!(rationale, "; first because its deadline has passed"),
                false => write!(rationale, "; first because its deadline is in {}", readable_time(left)),
            };
        }
        Some(self.start(queue, file, rationale, now))
    }

    /// Starts a session with a file, and those that share it.
    fn start(&mut self, queue: QueueName, file: QueuedFile, rationale: String, now: UnixTime) -> Start {
        let session = file.number;
        let with = self.take_group(&queue, &file, now);
        self.sessions.insert(session, 1 + with.len());
        for file in std::iter::once(file).chain(with.iter().copied()) {
            self.places.insert(file.number, Place::Active { queue: queue.clone(), file, session });
        }
        Start { file: session, with: with.iter().map(|file| file.number).collect(), queue, rationale }
    }

    /// Takes the files that share the session of a file: those of its group that go next in its queue. Their bytes
    /// count for the shares, too.
    fn take_group(&mut self, queue: &QueueName, first: &QueuedFile, now: UnixTime) -> Vec<QueuedFile> {
        let mut with: Vec<QueuedFile> = Vec::new();
        let size_of = |file: &QueuedFile| file.size.map_or(0, |size| size.0);
        let mut size = size_of(first);
        let name = Arc::clone(self.shares.queue_in_vo(queue));
        while first.group.is_some() && with.len() + 1 < SHARED_FILES_MAX && size < SHARED_SIZE_MAX.0 {
            let Some(number) = self.next_of(queue, &name, now) else { break };
            // Files of a VO in order have one queue, and each its activity.
            let is_like = matches!(self.places.get(&number), Some(Place::Queued(of_next)) if of_next == queue);
            let group = |link: &LinkQueues| link.vos.get(&queue.vo)?.get(&name)?.file(number)?.group;
            if !is_like || self.links.get(&queue.link).and_then(group) != first.group {
                break;
            }
            let Some(file) = self.take(queue, number) else { break };
            size = size.saturating_add(size_of(&file));
            with.push(file);
        }
        let bytes = with.iter().fold(0_u64, |sum, file| sum.saturating_add(file.assumed_size().0));
        if let Some(link) = self.links.get_mut(&queue.link) {
            link.vo_turns.take(&queue.vo, bytes);
            link.activity_turns.entry(Arc::clone(&queue.vo)).or_default().take(&name, bytes);
        }
        with
    }

    /// Returns the file that goes next in the queue of this name within a VO.
    fn next_of(&mut self, queue: &QueueName, name: &Name, now: UnixTime) -> Option<FileNumber> {
        let link = self.links.get_mut(&queue.link)?;
        let rate = link.file_rate.unwrap_or(RATE_ASSUMED);
        Some(link.vos.get_mut(&queue.vo)?.get_mut(name)?.first(rate, now)?.number)
    }

    /// Removes a file from its queue, and the queue with its last file.
    fn take(&mut self, queue: &QueueName, number: FileNumber) -> Option<QueuedFile> {
        let link = self.links.get_mut(&queue.link)?;
        let activities = link.vos.get_mut(&queue.vo)?;
        let name = self.shares.queue_in_vo(queue);
        let files = activities.get_mut(name)?;
        let file = files.remove(number);
        if files.is_empty() {
            activities.remove(name);
        }
        if activities.is_empty() {
            link.vos.remove(&queue.vo);
        }
        if link.vos.is_empty() && link.active == 0 {
            self.links.remove(&queue.link);
        }
        file
    }

    fn count(&mut self, queue: &QueueName, change: isize) {
        let apply = |count: &mut usize| *count = count.saturating_add_signed(change);
        apply(&mut self.active);
        apply(self.vos.entry(Arc::clone(&queue.vo)).or_default());
        apply(&mut self.endpoint(&queue.link.source).outbound);
        apply(&mut self.endpoint(&queue.link.destination).inbound);
        let link = self.links.entry(queue.link.clone()).or_default();
        apply(&mut link.active);
        if link.vos.is_empty() && link.active == 0 {
            self.links.remove(&queue.link);
        }
    }

    fn endpoint(&mut self, name: &Name) -> &mut Endpoint {
        self.endpoints.entry(Arc::clone(name)).or_default()
    }

    /// Returns the reason why no file of a link may start.
    fn blocked(&self, name: &Link, link: &LinkQueues, now: UnixTime) -> Option<Waits> {
        if self.limits.all == 0 {
            return Some(Waits::Drained);
        }
        let limit = |of, count: usize, most: usize| (count >= most).then_some(Waits::Limit { of, most });
        let most = self.limits.of_link(name);
        limit("service", self.active, self.limits.all).or_else(|| limit("link", link.active, most)).or_else(|| {
            let ends = [(&name.source, "source"), (&name.destination, "destination")];
            ends.into_iter().find_map(|(endpoint, of)| {
                let state = self.endpoints.get(endpoint)?;
                if state.is_banned {
                    return Some(Waits::Banned(Arc::clone(endpoint)));
                }
                if state.is_absent {
                    return Some(Waits::Absent(Arc::clone(endpoint)));
                }
                if let Some(blocked) = state.breaker.blocked(now) {
                    return Some(Waits::Refusing { endpoint: Arc::clone(endpoint), blocked });
                }
                let limits = self.limits.endpoints.get(endpoint).copied().unwrap_or(self.limits.endpoint);
                match of {
                    "source" => limit(of, state.outbound, limits.outbound),
                    _ => limit(of, state.inbound, limits.inbound),
                }
            })
        })
    }

    /// Returns the obstacle on a link: at its source, or else at its destination. `None`: transfers may start.
    pub fn obstacle(&self, link: &Link, now: UnixTime) -> Option<Obstacle> {
        let at = |endpoint| self.endpoints.get(endpoint)?.obstacle(now);
        at(&link.source).or_else(|| at(&link.destination))
    }

    /// Returns the endpoints with obstacles.
    pub fn obstacles(&self, now: UnixTime) -> impl Iterator<Item = (Name, Obstacle)> + '_ {
        let one = move |(name, endpoint): (&Name, &Endpoint)| Some((Arc::clone(name), endpoint.obstacle(now)?));
        self.endpoints.iter().filter_map(one)
    }

    fn full_of_vo(&self, vo: &Name) -> Option<Waits> {
        let most = *self.limits.vos.get(vo)?;
        let count = self.vos.get(vo).copied().unwrap_or(0);
        (count >= most).then_some(Waits::Limit { of: "VO", most })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use sterna_proto::{ErrorKind, Phase};
    use sterna_seeded::{Seeded, for_seeds};

    use super::*;
    use crate::settings::{ACTIVITY_DEFAULT, ANY, EndpointLimits, PUBLIC};
    use crate::share::Share;

    const NOW: UnixTime = UnixTime(1_800_000_000_000);
    const MB: u64 = 1_000_000;

    fn link(source: &str, destination: &str) -> Link {
        Link { source: source.into(), destination: destination.into() }
    }

    fn queue(link: &Link, vo: &str, activity: &str) -> QueueName {
        QueueName { link: link.clone(), vo: vo.into(), activity: activity.into() }
    }

    fn file(number: u64, size: u64) -> QueuedFile {
        QueuedFile {
            number: FileNumber(number),
            size: Some(ByteCount(size)),
            priority: 3,
            submitted: NOW,
            deadline: None,
            not_before: NOW,
            group: None,
        }
    }

    fn limits(link: usize) -> Limits {
        Limits { link, ..Limits::default() }
    }

    fn waits(scheduler: &Scheduler, number: u64) -> Option<Waits> {
        scheduler.why(FileNumber(number), None, NOW).map(|why| why.waits)
    }

    fn numbers(starts: &[Start]) -> Vec<u64> {
        starts.iter().map(|start| start.file.0).collect()
    }

    #[test]
    fn links_take_turns_within_the_limits_of_their_endpoints() {
        let (one, other) = (link("a", "c"), link("b", "c"));
        let endpoints = BTreeMap::from([("c".into(), EndpointLimits { inbound: 4, outbound: 9 })]);
        let mut scheduler = Scheduler::new(Limits { endpoints, ..limits(3) }, Shares::default());
        for number in 0..10 {
            scheduler.handle_queued(queue(&one, "vo", "x"), file(number, MB), NOW);
            scheduler.handle_queued(queue(&other, "vo", "x"), file(100 + number, MB), NOW);
        }
        let started = numbers(&scheduler.poll(NOW));
        assert_eq!(started, [0, 100, 1, 101], "the fifth would be one too many at the destination");
        assert_eq!((scheduler.counts(), scheduler.poll(NOW)), ((16, 4), Vec::new()));
        assert_eq!(waits(&scheduler, 5), Some(Waits::Limit { of: "destination", most: 4 }));
        assert!(scheduler.handle_ended(FileNumber(0), Ok(ByteCount(MB)), None, NOW));
        assert!(!scheduler.handle_ended(FileNumber(0), Ok(ByteCount(MB)), None, NOW), "it has ended already");
        // The other link has the first turn now.
        assert_eq!(numbers(&scheduler.poll(NOW)), [102]);
        assert!(scheduler.handle_cancelled(FileNumber(5)) && !scheduler.handle_cancelled(FileNumber(5)));
        assert!(!scheduler.handle_cancelled(FileNumber(1)), "it is under way");
    }

    #[test]
    fn files_wait_for_an_agent_and_transfers_of_an_earlier_run_count() {
        let link = link("a", "b");
        let mut scheduler = Scheduler::new(limits(2), Shares::default());
        scheduler.set_absent(&["b".into()]);
        scheduler.handle_running(queue(&link, "vo", "x"), file(1, MB));
        scheduler.handle_running(queue(&link, "vo", "x"), file(1, MB));
        scheduler.handle_queued(queue(&link, "vo", "x"), file(1, MB), NOW);
        scheduler.handle_queued(queue(&link, "vo", "x"), file(2, MB), NOW);
        scheduler.handle_queued(queue(&link, "vo", "x"), file(3, MB), NOW);
        assert_eq!((scheduler.poll(NOW), scheduler.counts()), (Vec::new(), (2, 1)));
        assert_eq!(waits(&scheduler, 2), Some(Waits::Absent("b".into())));
        scheduler.set_absent(&[]);
        assert_eq!(numbers(&scheduler.poll(NOW)), [2], "one more is the maximum of the link");
        assert!(scheduler.handle_ended(FileNumber(1), Ok(ByteCount(MB)), None, NOW));
        assert_eq!(numbers(&scheduler.poll(NOW)), [3]);
    }

    #[test]
    fn files_of_a_group_share_a_session_that_counts_once() {
        let link = link("a", "b");
        let mut scheduler = Scheduler::new(limits(2), Shares::default());
        let of = |group, number| QueuedFile { group, ..file(number, MB) };
        let all = [(Some(1), 1), (Some(1), 2), (Some(2), 3), (None, 4), (None, 5), (Some(1), 6)];
        for (group, number) in all {
            scheduler.handle_queued(queue(&link, "vo", "x"), of(group, number), NOW);
        }
        let starts = scheduler.poll(NOW);
        let with = |start: &Start| start.with.iter().map(|file| file.0).collect::<Vec<_>>();
        assert_eq!(numbers(&starts), [1, 3], "two sessions are the maximum");
        assert_eq!((with(&starts[0]), with(&starts[1])), (vec![2], vec![]), "only those that go next");
        assert_eq!((scheduler.counts(), scheduler.queued(&link).active), ((3, 3), 2));
        assert!(scheduler.handle_ended(FileNumber(1), Ok(ByteCount(MB)), None, NOW));
        assert_eq!(scheduler.poll(NOW), [], "the session goes on with its other file");
        assert!(scheduler.handle_ended(FileNumber(2), Ok(ByteCount(MB)), None, NOW));
        assert_eq!(numbers(&scheduler.poll(NOW)), [4]);
        assert!(!scheduler.handle_ended(FileNumber(2), Ok(ByteCount(MB)), None, NOW), "it has ended already");
    }

    #[test]
    fn a_session_has_no_more_files_than_its_limits_allow() {
        let link = link("a", "b");
        let mut scheduler = Scheduler::new(limits(9), Shares::default());
        let small = |number| QueuedFile { group: Some(1), ..file(number, 10) };
        (0..250).for_each(|number| scheduler.handle_queued(queue(&link, "vo", "x"), small(number), NOW));
        let counts = |starts: Vec<Start>| starts.iter().map(|start| 1 + start.with.len()).collect::<Vec<_>>();
        assert_eq!(counts(scheduler.poll(NOW)), [SHARED_FILES_MAX, SHARED_FILES_MAX, 50]);
        let large = |number| QueuedFile { group: Some(1), ..file(number, 400 * MB) };
        (300..304).for_each(|number| scheduler.handle_queued(queue(&link, "vo", "x"), large(number), NOW));
        assert_eq!(counts(scheduler.poll(NOW)), [3, 1], "the third reaches the maximum size");
    }

    #[test]
    fn bytes_of_a_link_follow_the_shares_of_vos_and_activities() {
        let link = link("a", "b");
        let share = |weight| Share { weight, guarantee: 0.0 };
        let shares = Shares {
            links: BTreeMap::from([(
                Link { source: ANY.into(), destination: ANY.into() },
                BTreeMap::from([("atlas".into(), share(75.0)), (PUBLIC.into(), share(25.0))]),
            )]),
            activities: BTreeMap::from([(
                "atlas".into(),
                BTreeMap::from([("production".into(), share(2.0)), (ACTIVITY_DEFAULT.into(), share(1.0))]),
            )]),
            in_order: BTreeSet::new(),
        };
        let mut scheduler = Scheduler::new(limits(1), shares);
        let mut random = Seeded::new(7);
        let queues = [("atlas", "production"), ("atlas", "anything"), ("cms", "x")];
        let mut bytes = BTreeMap::new();
        let mut number = 0;
        let mut add = |scheduler: &mut Scheduler, (vo, activity): (&str, &str)| {
            number += 1;
            scheduler.handle_queued(queue(&link, vo, activity), file(number, 1 + random.below(2000 * MB)), NOW);
        };
        queues.into_iter().for_each(|queue| (0..5).for_each(|_| add(&mut scheduler, queue)));
        for _ in 0..3000 {
            let start = scheduler.poll(NOW).remove(0);
            let size = match &scheduler.places[&start.file] {
                Place::Active { file, .. } => file.assumed_size(),
                Place::Queued(_) => panic!("{start:?}"),
            };
            *bytes.entry(start.queue.activity.to_string()).or_insert(0.0) += size.0 as f64;
            assert!(scheduler.handle_ended(start.file, Ok(size), None, NOW));
            let refill = (start.queue.vo.to_string(), start.queue.activity.to_string());
            add(&mut scheduler, (&refill.0, &refill.1));
        }
        let all: f64 = bytes.values().sum();
        for (activity, expected) in [("production", 0.5), ("anything", 0.25), ("x", 0.25)] {
            let part = bytes[activity] / all;
            assert!((part - expected).abs() < 0.02, "{activity}: {part} instead of {expected}");
        }
    }

    #[test]
    fn the_order_of_a_vo_counts_for_files_that_wait_already() {
        let link = link("a", "b");
        let mut scheduler = Scheduler::new(limits(1), Shares::default());
        for (number, priority) in [(1, 1), (2, 5), (3, 3)] {
            let file = QueuedFile { priority, ..file(number, MB) };
            scheduler.handle_queued(queue(&link, "mission", "x"), file, NOW);
        }
        scheduler.set_shares(Shares { in_order: BTreeSet::from(["mission".into()]), ..Shares::default() }, NOW);
        assert_eq!(numbers(&scheduler.poll(NOW)), [1], "by submission");
        assert!(scheduler.handle_ended(FileNumber(1), Ok(ByteCount(MB)), None, NOW));
        scheduler.handle_queued(queue(&link, "mission", "x"), QueuedFile { priority: 1, ..file(4, MB) }, NOW);
        scheduler.set_shares(Shares::default(), NOW);
        assert_eq!(numbers(&scheduler.poll(NOW)), [2], "by priority");
    }

    #[test]
    fn a_vo_in_order_is_one_queue_whatever_its_activities() {
        let link = link("a", "b");
        let share = |weight| Share { weight, guarantee: 0.0 };
        let activities = BTreeMap::from([("x".into(), share(9.0)), ("y".into(), share(1.0))]);
        let priorities = Shares { activities: BTreeMap::from([("m".into(), activities)]), ..Shares::default() };
        let in_order = Shares { in_order: BTreeSet::from(["m".into()]), ..priorities.clone() };
        for_seeds("a_vo_in_order_is_one_queue_whatever_its_activities", 100, |seed| {
            let mut random = Seeded::new(seed);
            // The order is set before the files come, or changes while some wait.
            let changes_at = random.below(30);
            let mut scheduler = Scheduler::new(limits(1), priorities.clone());
            let at = |seconds| NOW + Duration::from_secs(seconds);
            for number in 0..30 {
                if number == changes_at {
                    scheduler.set_shares(in_order.clone(), at(number));
                }
                // In a group of five, the later numbers were submitted first.
                let submitted = at(number / 5 * 5 + 4 - number % 5);
                let activity = ["x", "y", "z"][random.index(3)];
                let priority = 1 + random.below(5) as u8;
                let file = QueuedFile { submitted, priority, ..file(number, 1 + random.below(1000 * MB)) };
                scheduler.handle_queued(queue(&link, "m", activity), file, at(0));
                // Another VO has its own turns.
                scheduler.handle_queued(
                    queue(&link, "o", activity),
                    QueuedFile { number: FileNumber(100 + number), ..file },
                    at(0),
                );
            }
            let why = scheduler.why(FileNumber(29), None, at(30));
            assert!(matches!(why, Some(Why { waits: Waits::Turn, files: 25, .. })), "{why:?}");
            let mut order = Vec::new();
            while let Some(start) = scheduler.poll(at(60)).pop() {
                if &*start.queue.vo == "m" {
                    assert!(start.rationale.ends_with("; in order of submission"), "{}", start.rationale);
                    assert_ne!(&*start.queue.activity, "m", "it keeps its activity");
                    order.push(start.file.0);
                }
                assert!(scheduler.handle_ended(start.file, Ok(ByteCount(random.below(1000 * MB))), None, at(60)));
            }
            let expected: Vec<u64> = (0..6).flat_map(|group| (0..5).map(move |place| group * 5 + 4 - place)).collect();
            assert_eq!(order, expected);
            assert_eq!((scheduler.counts(), scheduler.links.len()), ((0, 0), 0));
        });
    }

    #[test]
    fn activities_have_their_queues_again_after_the_order_of_submission() {
        let link = link("a", "b");
        let in_order = Shares { in_order: BTreeSet::from(["m".into()]), ..Shares::default() };
        let mut scheduler = Scheduler::new(limits(1), in_order);
        for number in 0..6 {
            let activity = if number < 4 { "x" } else { "y" };
            scheduler.handle_queued(queue(&link, "m", activity), file(number, MB), NOW);
        }
        let later = QueuedFile { not_before: NOW + Duration::from_secs(60), ..file(6, MB) };
        scheduler.handle_queued(queue(&link, "m", "z"), later, NOW);
        assert_eq!(scheduler.weight(&"m".into(), &"x".into()), 1.0);
        scheduler.set_shares(Shares::default(), NOW);
        let mut order = Vec::new();
        while let Some(start) = scheduler.poll(NOW).pop() {
            order.push(start.file.0);
            assert!(scheduler.handle_ended(start.file, Ok(ByteCount(MB)), None, NOW));
        }
        assert_eq!(order, [0, 4, 1, 5, 2, 3], "activities take turns; the last file waits for its retry");
        assert_eq!(scheduler.counts(), (1, 0));
    }

    #[test]
    fn a_file_with_a_deadline_knows_its_place_and_that_it_is_late() {
        let link = link("a", "b");
        let mut scheduler = Scheduler::new(limits(0), Shares::default());
        (0..3).for_each(|number| scheduler.handle_queued(queue(&link, "vo", "x"), file(number, MB), NOW));
        let deadline = NOW + Duration::from_secs(600);
        let due = QueuedFile { deadline: Some(deadline), priority: 1, ..file(9, 1000 * MB) };
        scheduler.handle_queued(queue(&link, "vo", "x"), due, NOW);
        let place = |scheduler: &Scheduler, now| {
            let why = scheduler.why(FileNumber(9), None, now).unwrap();
            (why.files, why.is_late)
        };
        assert_eq!(place(&scheduler, NOW), (3, false));
        assert_eq!(place(&scheduler, deadline - Duration::from_secs(30)), (0, false), "it is due");
        assert_eq!(place(&scheduler, deadline), (0, true));
        // At 10 Mbit/s, a GB takes 800 s.
        scheduler.set_file_rates(|_| Some(BitRate(10_000_000)));
        assert_eq!(place(&scheduler, NOW), (0, false));
    }

    #[test]
    fn a_due_file_goes_before_the_other_activities_of_its_vo_and_not_before_other_vos() {
        let link = link("a", "b");
        let share = |weight| Share { weight, guarantee: 0.0 };
        let activities = BTreeMap::from([("bulk".into(), share(9.0)), ("urgent".into(), share(1.0))]);
        let shares = Shares { activities: BTreeMap::from([("m".into(), activities)]), ..Shares::default() };
        let mut scheduler = Scheduler::new(limits(1), shares);
        for number in 0..20 {
            scheduler.handle_queued(queue(&link, "m", "bulk"), file(number, 1000 * MB), NOW);
            scheduler.handle_queued(queue(&link, "o", "x"), file(100 + number, 1000 * MB), NOW);
            scheduler.handle_queued(queue(&link, "m", "urgent"), file(40 + number, 1000 * MB), NOW);
        }
        let due = |number, seconds| QueuedFile {
            deadline: Some(NOW + Duration::from_secs(seconds)),
            priority: 1,
            ..file(number, 1000 * MB)
        };
        // A GB takes 8 s at the assumed rate. The first is due, the second is late, and the third has slack.
        scheduler.handle_queued(queue(&link, "m", "urgent"), due(90, 30), NOW);
        scheduler.handle_queued(queue(&link, "m", "bulk"), due(91, 1), NOW);
        scheduler.handle_queued(queue(&link, "m", "urgent"), due(92, 3600), NOW);
        let now = NOW + Duration::from_secs(1);
        let run = |scheduler: &mut Scheduler, now| {
            let start = scheduler.poll(now).remove(0);
            assert!(scheduler.handle_ended(start.file, Ok(ByteCount(1000 * MB)), None, now));
            start
        };
        let starts: Vec<Start> = (0..26).map(|_| run(&mut scheduler, now)).collect();
        let of_m: Vec<&Start> = starts.iter().filter(|start| &*start.queue.vo == "m").collect();
        assert_eq!(of_m.len(), 13, "the other VO has its half");
        assert_eq!(of_m[..2].iter().map(|start| start.file.0).collect::<Vec<_>>(), [90, 91]);
        assert!(of_m[0].rationale.ends_with("; first because its deadline is in 29 s"), "{}", of_m[0].rationale);
        assert!(of_m[1].rationale.ends_with("; first because its deadline has passed"), "{}", of_m[1].rationale);
        assert!(of_m[2..].iter().all(|start| !start.rationale.contains("deadline")));
        // The activity has paid for its file: of the first 13 GB, it has a tenth.
        let urgent = of_m.iter().filter(|start| &*start.queue.activity == "urgent").count();
        assert_eq!(urgent, 1, "{of_m:?}");
        // At 10 Mbit/s, a GB takes 800 s, and the third is due at once.
        let later = now + Duration::from_secs(2800);
        scheduler.set_file_rates(|_| Some(BitRate(1_000_000_000)));
        assert!((0..2).all(|_| run(&mut scheduler, later).file.0 != 92));
        scheduler.set_file_rates(|of| (*of == link).then_some(BitRate(10_000_000)));
        assert!((0..2).any(|_| run(&mut scheduler, later).file.0 == 92));
    }

    #[test]
    fn who_waits_learns_why() {
        let link = link("a", "b");
        let mut scheduler =
            Scheduler::new(Limits { vos: BTreeMap::from([("small".into(), 0)]), ..limits(1) }, Shares::default());
        let later = NOW + Duration::from_secs(60);
        scheduler.handle_queued(queue(&link, "vo", "x"), QueuedFile { not_before: later, ..file(1, MB) }, NOW);
        assert_eq!(waits(&scheduler, 1), Some(Waits::Retry(later)));
        scheduler.handle_queued(queue(&link, "small", "x"), file(2, MB), NOW);
        assert_eq!(waits(&scheduler, 2), Some(Waits::Limit { of: "VO", most: 0 }));
        (3..6).for_each(|number| scheduler.handle_queued(queue(&link, "vo", "x"), file(number, 100 * MB), NOW));
        // Two files with 200 MB take 16 s at 100 Mbit/s, whatever blocks.
        let rate = Some(BitRate(100 * MB));
        let why = |waits, expected| Why { waits, files: 2, size: ByteCount(200 * MB), expected, is_late: false };
        let turn = why(Waits::Turn, Some(Duration::from_secs(16)));
        assert_eq!(scheduler.why(FileNumber(5), rate, NOW), Some(turn.clone()));
        assert_eq!(scheduler.why(FileNumber(5), None, NOW), Some(Why { expected: None, ..turn.clone() }));
        for (all, link, waits) in [(0, 1, Waits::Drained), (9, 0, Waits::Limit { of: "link", most: 0 })] {
            scheduler.set_limits(Limits { all, ..limits(link) });
            assert_eq!(scheduler.why(FileNumber(5), rate, NOW), Some(Why { waits, ..turn.clone() }));
            assert_eq!(scheduler.poll(NOW), []);
        }
        scheduler.set_limits(Limits { vos: BTreeMap::from([("small".into(), 0)]), ..limits(1) });
        // The first one has no files before it, and its retry is later.
        let retry = scheduler.why(FileNumber(1), rate, NOW).unwrap();
        assert_eq!((retry.files, retry.expected), (0, Some(Duration::from_secs(60))));
        let slow = scheduler.why(FileNumber(5), Some(BitRate(MB)), NOW).unwrap();
        assert_eq!(slow.expected, Some(Duration::from_secs(1600)));
        assert_eq!(numbers(&scheduler.poll(NOW)), [3]);
        assert_eq!(scheduler.why(FileNumber(3), None, NOW), None);
        assert_eq!(waits(&scheduler, 4), Some(Waits::Limit { of: "link", most: 1 }));
        scheduler.set_limits(limits(9));
        scheduler.set_ban(&"a".into(), true);
        assert_eq!((waits(&scheduler, 4), scheduler.poll(NOW)), (Some(Waits::Banned("a".into())), vec![]));
        scheduler.set_ban(&"a".into(), false);
        assert_eq!(numbers(&scheduler.poll(NOW)), [2, 4, 5]);
        assert_eq!(numbers(&scheduler.poll(later)), [1]);
    }

    #[test]
    fn a_full_destination_is_tried_by_one_file_at_a_time() {
        let (full, other) = (link("a", "full"), link("a", "b"));
        let mut scheduler = Scheduler::new(limits(2), Shares::default());
        for number in 0..6 {
            scheduler.handle_queued(queue(&full, "vo", "x"), file(number, MB), NOW);
            scheduler.handle_queued(queue(&other, "vo", "x"), file(10 + number, MB), NOW);
        }
        assert_eq!(scheduler.poll(NOW).len(), 4);
        let error = Error::new(ErrorKind::NoSpace, Scope::Destination, Phase::Transfer, "507");
        assert!(scheduler.handle_ended(FileNumber(0), Err(&error), None, NOW));
        assert!(scheduler.handle_ended(FileNumber(1), Ok(ByteCount(MB)), None, NOW), "it began before the refusal");
        assert!(scheduler.handle_ended(FileNumber(10), Ok(ByteCount(MB)), None, NOW));
        assert_eq!(numbers(&scheduler.poll(NOW)), [12], "only the other destination");
        assert!(matches!(waits(&scheduler, 2), Some(Waits::Refusing { endpoint, .. }) if &*endpoint == "full"));
        let after = NOW + Duration::from_secs(16);
        assert_eq!(numbers(&scheduler.poll(after)), [2], "one file tries it");
        assert!(scheduler.handle_ended(FileNumber(2), Ok(ByteCount(MB)), None, after));
        assert_eq!(numbers(&scheduler.poll(after)), [3, 4]);
    }

    #[test]
    fn every_limit_holds_at_every_step_and_every_file_ends() {
        for_seeds("every_limit_holds_at_every_step_and_every_file_ends", 60, |seed| {
            let mut random = Seeded::new(seed);
            let names = ["a", "b", "c", "d"];
            let most = |random: &mut Seeded| 1 + random.index(5);
            let limits = Limits {
                all: 2 + random.index(8),
                link: most(&mut random),
                links: BTreeMap::from([(link("a", "b"), most(&mut random))]),
                endpoint: EndpointLimits { inbound: most(&mut random), outbound: most(&mut random) },
                endpoints: BTreeMap::from([("c".into(), EndpointLimits { inbound: 1, outbound: most(&mut random) })]),
                vos: BTreeMap::from([("v0".into(), most(&mut random))]),
            };
            let mut scheduler = Scheduler::new(limits.clone(), Shares::default());
            let (mut now, mut under_way, mut ended) = (NOW, BTreeMap::new(), BTreeSet::new());
            let (count, mut queued) = (200, 0);
            for step in 0.. {
                assert!(step < 20_000, "files are left: {:?}", scheduler.counts());
                while queued < count && random.chance(400) {
                    let (from, to) = (random.index(4), random.index(4));
                    let name = queue(
                        &link(names[from], names[to]),
                        &format!("v{}", random.below(3)),
                        &format!("x{}", random.below(3)),
                    );
                    let most = [5000, 50][random.index(2)] * MB;
                    let file = QueuedFile {
                        priority: 1 + random.below(5) as u8,
                        submitted: now,
                        not_before: now,
                        group: [None, Some(1), Some(2)][random.below(3) as usize],
                        ..file(queued, 1 + random.below(most))
                    };
                    scheduler.handle_queued(name, file, now);
                    queued += 1;
                }
                for start in scheduler.poll(now) {
                    for file in std::iter::once(start.file).chain(start.with.iter().copied()) {
                        let session = (start.file, start.queue.clone());
                        assert!(!ended.contains(&file) && under_way.insert(file, session).is_none(), "twice");
                    }
                }
                let sessions: BTreeMap<FileNumber, &QueueName> =
                    under_way.values().map(|(session, queue)| (*session, queue)).collect();
                let counted = |is: &dyn Fn(&QueueName) -> bool| sessions.values().filter(|queue| is(queue)).count();
                assert!(sessions.len() <= limits.all && counted(&|queue| &*queue.vo == "v0") <= limits.vos["v0"]);
                for name in names {
                    let bounds = limits.endpoints.get(name).copied().unwrap_or(limits.endpoint);
                    assert!(counted(&|queue| &*queue.link.source == name) <= bounds.outbound);
                    assert!(counted(&|queue| &*queue.link.destination == name) <= bounds.inbound);
                    for to in names {
                        let link = link(name, to);
                        let most = limits.links.get(&link).copied().unwrap_or(limits.link);
                        assert!(counted(&|queue| queue.link == link) <= most);
                    }
                }
                if let Some(number) = under_way.keys().nth(random.index(under_way.len().max(1))).copied() {
                    under_way.remove(&number);
                    assert!(scheduler.handle_ended(number, Ok(ByteCount(1)), None, now));
                    ended.insert(number);
                }
                now = now + Duration::from_secs(random.below(100));
                if ended.len() as u64 == count {
                    break;
                }
            }
            assert_eq!((scheduler.counts(), scheduler.links.len()), ((0, 0), 0));
        });
    }

    #[test]
    fn the_same_input_gives_the_same_decisions() {
        let run = || {
            let mut random = Seeded::new(11);
            let mut scheduler = Scheduler::new(limits(3), Shares::default());
            let mut trace = Vec::new();
            for number in 0..500 {
                let link = link(["a", "b", "c"][random.index(3)], ["d", "e"][random.index(2)]);
                let vo = format!("v{}", random.below(4));
                scheduler.handle_queued(queue(&link, &vo, "x"), file(number, 1 + random.below(3000 * MB)), NOW);
                let starts = scheduler.poll(NOW);
                for start in &starts {
                    if random.chance(700) {
                        scheduler.handle_ended(start.file, Ok(ByteCount(random.below(MB))), None, NOW);
                    }
                }
                trace.extend(starts);
            }
            trace
        };
        assert_eq!(run(), run());
    }
}
