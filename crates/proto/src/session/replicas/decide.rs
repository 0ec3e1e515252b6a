//! Decisions of each turn: the file to copy, the blocks to request from each replica, the replicas to trust, and the
//! end of the copy.

use std::time::Instant;

use super::peer::{FILE, Peer, Standing};
use super::votes::Votes;
use super::{ANSWER_GRACE, COMPARING_MAX, CopyId, ReplicaEvent, ReplicaId, ReplicaSession, STUCK_AFTER};
use crate::error::{Error, ErrorKind, Phase, Scope};
use crate::file::FileEntry;
use crate::range_set::RangeSet;
use crate::session::life::lost_every_lane;
use crate::session::{BlockOrder, BlockTask};

impl ReplicaSession {
    /// Chooses the entry for the receiver. Takes the first replica, in the order of names, that has a file of the most
    /// common size.
    pub(super) fn choose(&mut self, now: Instant) {
        if self.file.is_some() {
            return;
        }
        let size_of = |peer: &Peer| peer.entry.as_ref().filter(|_| peer.is_present()).map(|entry| entry.size);
        let with_size = |size: u64| self.peers.iter().filter(|peer| size_of(peer) == Some(size)).count();
        let answered = (0..self.peers.len()).filter_map(|index| Some((index, size_of(&self.peers[index])?)));
        let most = answered.max_by_key(|(index, size)| (with_size(*size), usize::MAX - index));
        let Some((first, _)) = most else { return };
        let expected =
            |peer: &Peer| peer.entry.is_none() && matches!(peer.standing, Standing::Trying | Standing::Present);
        // Two replicas cannot outvote each other. With more, the size of every replica counts.
        let awaited = if self.peers.len() > 2 { &self.peers[..] } else { &self.peers[..first] };
        let waits = awaited.iter().any(expected) && self.answered.is_none_or(|at| now < at + ANSWER_GRACE);
        let Some(entry) = self.peers[first].entry.clone().filter(|_| !waits) else { return };
        let entry = FileEntry { path: self.plan.path.clone(), ..entry };
        let count = if entry.is_packed() { 1 } else { entry.blocks().count() };
        self.votes = Votes::of_file(count, self.plan.seed);
        self.pool.add_file_in(entry.clone(), BlockOrder::Shared);
        self.pool.end_files();
        self.file = Some(entry.clone());
        self.events.push_back(ReplicaEvent::Chosen(entry));
        (0..self.peers.len() as u32).for_each(|index| self.check_size(ReplicaId(index), now));
    }

    pub(super) fn check_size(&mut self, replica: ReplicaId, now: Instant) {
        let (Some(file), peer) = (&self.file, &self.peers[replica.index()]) else { return };
        let Some(entry) = peer.entry.as_ref().filter(|entry| entry.size != file.size && !peer.is_dropped()) else {
            return;
        };
        let text = format!("wrong size: {} bytes, where the file that is copied has {}", entry.size, file.size);
        let error = Error::new(ErrorKind::Changed, Scope::Source, Phase::Prepare, text);
        self.drop_replica(replica, error, now);
    }

    /// Adds usable replicas to the pool, and requests from each of them the compared blocks first.
    pub(super) fn join_pool(&mut self, now: Instant) {
        let Some(file) = &self.file else { return };
        let is_packed = file.is_packed();
        if !is_packed && !self.pool.is_looked_up(FILE) {
            return;
        }
        for index in 0..self.peers.len() {
            if self.peers[index].in_pool || !self.peers[index].is_usable() {
                continue;
            }
            self.peers[index].in_pool = true;
            let lane = Peer::lane(index);
            self.pool.handle_lane_up(lane);
            let (replica, mut blocks) = (ReplicaId(index as u32), RangeSet::default());
            for block in self.votes.blocks().collect::<Vec<_>>() {
                if self.votes.has_voted(replica, block) {
                    continue;
                }
                let peer = &mut self.peers[index];
                if !is_packed && self.pool.take_block(lane, FILE, block) {
                    peer.asked.insert(block, now);
                } else {
                    peer.comparing.insert(block);
                }
                blocks.insert(block..block + 1);
            }
            self.peers[index].ask(&blocks);
        }
    }

    /// Returns to the pool the missing blocks whose copies were lost on the way. Runs only when no replica has an
    /// outstanding request and no copy is in transfer.
    pub(super) fn take_up_orphans(&mut self) {
        let is_awaited = |(by, _): &(ReplicaId, CopyId)| !self.peers[by.index()].is_dropped();
        if self.peers.iter().any(|peer| !peer.asked.is_empty())
            || self.open.values().any(is_awaited)
            || !self.pool.is_looked_up(FILE)
        {
            return;
        }
        let mut orphans = self.pool.missing(FILE);
        self.peers.iter().flat_map(|peer| peer.given.iter()).for_each(|range| orphans.remove(range));
        orphans.iter().for_each(|range| self.pool.give_back(FILE, range));
    }

    /// Requests more blocks from a replica when at most half of its target is outstanding.
    pub(super) fn fill(&mut self, index: usize, now: Instant) {
        let Some(file) = self.file.as_ref().filter(|file| !file.is_packed() && self.peers[index].in_pool) else {
            return;
        };
        let blocks = file.blocks();
        let wanted = self.peers[index].asked_bytes_wanted(blocks.block_bytes());
        let on_its_way = |peer: &Peer| peer.asked.len() as u64 * blocks.block_bytes();
        if on_its_way(&self.peers[index]) * 2 > wanted {
            return;
        }
        let mut more = RangeSet::default();
        while on_its_way(&self.peers[index]) < wanted {
            let Some(BlockTask::Single { index: block, .. }) = self.pool.next_block(Peer::lane(index)) else { break };
            self.peers[index].asked.insert(block, now);
            more.insert(block..block + 1);
        }
        self.peers[index].ask(&more);
    }

    /// Lets idle replicas take over blocks that were requested from others. The first is the one that lost the fewest
    /// blocks to others; on a tie, one that has delivered blocks.
    pub(super) fn help_out(&mut self, now: Instant) {
        let Some(file) = self.file.as_ref().filter(|file| !file.is_packed()) else { return };
        let block_bytes = file.blocks().block_bytes();
        let is_idle = |index: &usize| self.peers[*index].in_pool && self.peers[*index].asked.is_empty();
        let mut idle: Vec<usize> = (0..self.peers.len()).filter(is_idle).collect();
        idle.sort_by_key(|index| (self.peers[*index].lost, self.peers[*index].given.is_empty()));
        for index in idle {
            let most = self.peers[index].asked_bytes_wanted(block_bytes) / block_bytes;
            let taken = self.take_over(index, most, now);
            self.peers[index].ask(&taken);
        }
    }

    /// Moves to an idle replica the last half of the blocks requested from the slowest replica. A block requested
    /// earlier from the idle replica moves only if the slow one is stuck.
    pub(super) fn take_over(&mut self, index: usize, most: u64, now: Instant) -> RangeSet {
        let mut taken = RangeSet::default();
        let tried = self.peers[index].tried.clone();
        let may_take =
            |block: u64, asked: Instant| !tried.contains(block) || now.saturating_duration_since(asked) >= STUCK_AFTER;
        let others = (0..self.peers.len()).filter(|other| *other != index);
        let takeable = |other: usize| {
            let asked = self.peers[other].asked.iter();
            asked
                .filter(|(block, at)| may_take(**block, **at) && self.is_wanted(**block))
                .map(|(block, _)| *block)
                .collect::<Vec<u64>>()
        };
        let candidates = others.map(|other| (other, takeable(other))).filter(|(_, blocks)| !blocks.is_empty());
        // Rough time that the other replica needs for its blocks.
        let time = |(other, blocks): &(usize, Vec<u64>)| {
            blocks.len() as u64 * 1_000_000 / self.peers[*other].recent_bytes().max(1).div_ceil(1 << 10)
        };
        let Some((other, blocks)) = candidates.max_by_key(time) else { return taken };
        let count = blocks.len().div_ceil(2).min(most.max(1) as usize);
        for block in blocks.into_iter().rev().take(count) {
            if self.pool.hand_over(Peer::lane(index), FILE, block) {
                self.call_off(other, block);
                self.peers[other].lost += 1;
                self.peers[index].asked.insert(block, now);
                taken.insert(block..block + 1);
            }
        }
        taken
    }

    /// Drops replicas that differ, if the votes decide that already.
    pub(super) fn judge(&mut self, now: Instant) {
        let Some(file) = &self.file else { return };
        let is_packed = file.is_packed();
        // An expected digest of the whole file decides instead of the votes.
        while let Some(verdict) = {
            let (voters, more) = (self.voters(), self.expects_votes(now));
            self.votes.verdict(voters, more).filter(|_| !self.plan.is_expected)
        } {
            let believed = self
                .votes
                .blocks()
                .find(|block| *block == verdict.block)
                .and_then(|block| self.votes.first_voter(block));
            for replica in verdict.wrong {
                let what = if is_packed { "its content".to_owned() } else { format!("its block {}", verdict.block) };
                let whom = believed.filter(|_| !verdict.by_majority).map_or_else(
                    || "most replicas have".to_owned(),
                    |first| {
                        format!(
                            "{} has, which was named first and is believed (give the expected digest to have it decide)",
                            self.plan.names[first.index()]
                        )
                    },
                );
                let text = format!("{what} differs from what {whom}");
                self.drop_wrong(replica, Error::new(ErrorKind::Corrupt, Scope::Source, Phase::Verify, text), now);
            }
        }
        if is_packed {
            self.pass_on(now);
        }
    }

    /// Returns the number of replicas that may vote.
    pub(super) fn voters(&self) -> usize {
        self.peers.iter().filter(|peer| !peer.is_dropped()).count()
    }

    /// Returns true while votes are outstanding: a present replica has not sent all compared blocks and is still
    /// awaited.
    pub(super) fn expects_votes(&self, now: Instant) -> bool {
        let is_late = self.complete.is_some_and(|since| now.saturating_duration_since(since) >= COMPARING_MAX);
        let differs = (0..self.peers.len() as u32).any(|index| self.votes.differences(ReplicaId(index)) > 0);
        let owes = |(index, peer): (usize, &Peer)| {
            let replica = ReplicaId(index as u32);
            let undecided = self.complete.is_none() || differs || self.votes.voters() < 2;
            let is_coming = matches!(peer.standing, Standing::Trying) || peer.is_present() && peer.entry.is_none();
            let may_come = is_coming && undecided;
            // A replica that gave no block to the file is awaited only if its vote may change the result.
            let matters = undecided || !peer.given.is_empty();
            may_come
                || matters && peer.is_usable() && self.votes.blocks().any(|block| !self.votes.has_voted(replica, block))
        };
        !is_late && self.peers.iter().enumerate().any(owes)
    }

    /// Selects the copy of a small file to write, once all expected votes are in.
    pub(super) fn pass_on(&mut self, now: Instant) {
        let Some(first) = self.votes.first_voter(0) else { return };
        self.complete.get_or_insert(now);
        let task = if self.expects_votes(now) { None } else { self.pool.next_block(Peer::lane(first.index())) };
        if task.is_some() {
            self.events.push_back(ReplicaEvent::PassOn(first));
        }
    }

    /// Releases the file for publication when every block has arrived and is compared.
    pub(super) fn check_complete(&mut self, now: Instant) {
        if self.released
            || self.file.as_ref().is_none_or(FileEntry::is_packed)
            || !self.pool.is_confirmed(FILE)
            || !self.back.is_empty()
            || !self.is_accounted_for()
        {
            return;
        }
        if self.complete.is_none() {
            // Open votes are decided in the next turn, with the replicas that have voted by then.
            self.complete = Some(now);
            return;
        }
        if !self.plan.is_expected && self.expects_votes(now) {
            return;
        }
        if !self.plan.is_expected && self.take_uncompared_anew(now) {
            return;
        }
        self.released = true;
        self.events.push_back(ReplicaEvent::Release);
    }

    /// Returns true if the origin of every block is known.
    pub(super) fn is_accounted_for(&self) -> bool {
        let count = self.file.as_ref().map_or(0, |file| file.blocks().count());
        let given: u64 = self.peers.iter().map(|peer| peer.given.len()).sum();
        given + self.held.as_ref().map_or(0, RangeSet::len) == count
    }

    /// Takes back the blocks of a replica without any compared block, so that others send them again. Returns false if
    /// there is no such replica, or if no compared replica can send its blocks.
    pub(super) fn take_uncompared_anew(&mut self, now: Instant) -> bool {
        let has_voted =
            |index: usize| self.votes.blocks().any(|block| self.votes.has_voted(ReplicaId(index as u32), block));
        let uncompared = |index: &usize| !self.peers[*index].given.is_empty() && !has_voted(*index);
        let Some(index) = (0..self.peers.len()).find(uncompared) else { return false };
        let blocks = self.peers[index].given.len();
        let mut others = (0..self.peers.len()).filter(|other| *other != index);
        let is_replaced = others.any(|other| self.peers[other].is_usable() && has_voted(other));
        let replica = ReplicaId(index as u32);
        if !is_replaced {
            if self.peers.len() > 1 {
                self.notice(
                    replica,
                    &format!("gave {blocks} blocks, and none of its blocks could be compared with those of others"),
                );
            }
            return false;
        }
        self.notice(
            replica,
            &format!("it is too slow to be compared with others: the {blocks} blocks that it gave are taken anew"),
        );
        self.leave_pool(replica, now);
        self.peers[index].barred = true;
        self.take_back_given(replica);
        true
    }

    /// Aborts the copy when no replica is left to ask, or none has come back in time.
    pub(super) fn check_alone(&mut self, now: Instant) {
        let reachable = |peer: &Peer| peer.is_present() && peer.core.log.lane_count() > 0 && !peer.barred;
        let is_trying = |peer: &Peer| matches!(peer.standing, Standing::Trying);
        if self.peers.iter().any(|peer| reachable(peer) || is_trying(peer))
            || self.pool.is_confirmed(FILE) && self.back.is_empty()
        {
            self.alone = None;
            return;
        }
        let may_return = |peer: &Peer| !peer.is_dropped() && peer.was_present && !peer.barred;
        let since = *self.alone.get_or_insert(now);
        if self.peers.iter().any(may_return) && now < since + self.plan.linger {
            return;
        }
        let reasons: Vec<String> = self
            .accounts()
            .iter()
            .zip(&self.plan.names)
            .filter_map(|(account, name)| Some(format!("{name}: {}", account.dropped.as_ref()?)))
            .collect();
        let first = self.peers.iter().find_map(|peer| match &peer.standing {
            Standing::Dropped(error) | Standing::Away(error) => Some(error.clone()),
            Standing::Trying | Standing::Present => None,
        });
        let error = match first {
            Some(first) => {
                let text = format!("no replica is left to copy from: {}", reasons.join("; "));
                let error = Error::new(first.kind, first.scope, first.phase, text).retry(first.retry);
                if first.is_from_peer() { error.from_peer() } else { error }
            }
            None => lost_every_lane(self.plan.linger),
        };
        self.abort(error);
    }
}
