//! Several replicas of one file for one receiver: which blocks to request from each replica, and which replica to
//! trust.
//!
//! To the receiver it is an ordinary sender of one file, and its pool of blocks has a lane for each replica. To the
//! sender of each replica it is an ordinary receiver: it reports *have* for every block, then *want* for the blocks to
//! send.
//!
//! A replica works through a run (`runs`); its outstanding requests cover about two seconds of delivery. When its run
//! is done, it takes half of the largest remaining run. At the end it also takes blocks that were requested from a
//! slower replica. Some blocks are requested from every replica and compared.
//!
//! Refuses to write, hash, or depend on the kind of a replica. Time comes in as an argument; frames and events leave by
//! `poll_*`.

mod decide;
mod peer;
mod votes;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

pub use self::votes::ReplicaId;

use self::peer::{FILE, Peer, Standing};
use self::votes::Votes;
use super::message::Frame;
use super::send::{SendEvent, SendSession};
use super::{FileOutcome, LaneId};
use crate::error::{Error, ErrorKind, Phase, Retry, Scope};
use crate::file::{FileEntry, RelPath};
use crate::range_set::RangeSet;

/// Maximum number of replicas of one file. Reason: each costs a session; with more than a few, the link of this host is
/// the narrowest.
pub const REPLICAS_MAX: usize = 8;

/// Time that the choice of the file waits after the first answer. It waits for the replicas named before the first one
/// that answered; with three or more, for all replicas, because the most common size decides. Reason: a resume needs
/// the entry of the same replica as before. Answers within some round trips of the longest path arrive in this time.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// Time that a replica may keep a requested block before a replica that was asked earlier may take it over. Reason: a
/// stuck replica must not delay the end, and two slow ones must not keep taking blocks from each other.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// Time to wait for outstanding comparisons when all else has arrived. Reason: longer than a round trip. Blocks of a
/// replica that was not compared by then are taken again from others.
const COMPARING_MAX: Duration = Duration::from_secs(3);

/// Number of blocks that do not match their own digests after which a replica is dropped, if they are more than a tenth
/// of those it gave. Reason: a few may be chance; the file fails at [`super::BLOCK_FAILURES_MAX`] failures of one
/// block.
const CORRUPT_BLOCKS_MAX: u64 = 3;

/// A transfer of a block from a replica, numbered by the driver; numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId(pub u64);

/// Use of a block that a replica sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockUse {
    /// The block is written. `instead_of` is a copy in transfer that is discarded from here on, before this one is
    /// written.
    Take {
        /// The copy to discard.
        instead_of: Option<CopyId>,
    },
    /// The block is read and discarded; its digest counts as a vote.
    Compare,
    /// The block is read and discarded.
    Discard,
}

/// Task or event for the driver; events must be handled in order.
#[derive(Debug)]
pub enum ReplicaEvent {
    /// The file for the receiver is chosen. Every block travels with this entry.
    Chosen(FileEntry),
    /// Notice for the user.
    Notice(String),
    /// The driver discards this copy from here on and writes nothing more of it.
    Revoke(CopyId),
    /// These blocks are useless; the driver calls [`super::RecvSession::take_back`].
    TakeBack(RangeSet),
    /// All comparisons are done; the driver calls [`super::RecvSession::release`].
    Release,
    /// For a small file: the copy of this replica is the one to write.
    PassOn(ReplicaId),
}

/// Contribution of a replica, for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaAccount {
    /// Bytes of the file that came from the replica.
    pub bytes: u64,
    /// Reason why the replica is no longer used, or was not reachable at the end. `None`: it was present until the end.
    pub dropped: Option<String>,
}

/// Parameters of a copy from replicas, known before the replicas are asked.
#[derive(Clone, Debug)]
pub struct ReplicaPlan {
    /// Names of the replicas as the user wrote them, 2 to [`REPLICAS_MAX`].
    pub names: Vec<String>,
    /// Path of the file if the destination does not name it.
    pub path: RelPath,
    /// True if an expected digest identifies the file.
    pub is_expected: bool,
    /// Time that the copy waits when no replica is reachable any more.
    pub linger: Duration,
    /// Seed for the choice of the compared blocks.
    pub seed: u64,
}

/// All replicas of one file.
#[derive(Debug)]
pub struct ReplicaSession {
    plan: ReplicaPlan,
    /// Sending end towards the receiver. Its lanes are [`CONTROL`] and one for each replica.
    pool: SendSession,
    peers: Vec<Peer>,
    file: Option<FileEntry>,
    /// Time of the first answer of a replica.
    answered: Option<Instant>,
    votes: Votes,
    /// Copies in transfer that are written, by block.
    open: BTreeMap<u64, (ReplicaId, CopyId)>,
    /// Blocks that an earlier session has left; `None` until the receiver has reported them.
    held: Option<RangeSet>,
    /// Blocks that were taken back and not requested by the receiver yet.
    back: RangeSet,
    /// Time since which every block has arrived.
    complete: Option<Instant>,
    released: bool,
    /// Suspects with blocks that have been replaced already, to test if the file is right without them.
    suspects: Vec<Suspect>,
    /// Replicas barred by the last replacement. Cleared when another replica is found to be wrong, or with the next
    /// replacement.
    blamed: Vec<ReplicaId>,
    /// Time since which no replica can be asked.
    alone: Option<Instant>,
    over: bool,
    events: VecDeque<ReplicaEvent>,
}

/// Origin of blocks that may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suspect {
    Replica(ReplicaId),
    /// Blocks that an earlier session left.
    Held,
    /// All replicas except one: several may be wrong in different places.
    AllBut(ReplicaId),
}

/// Lane towards the receiver that carries control frames.
pub const CONTROL: LaneId = LaneId(0);

impl ReplicaSession {
    /// Returns a session for the replicas of `plan`; nothing is known about them yet. Range: at least one, at most
    /// [`REPLICAS_MAX`].
    pub fn new(plan: ReplicaPlan) -> Self {
        assert!((1..=REPLICAS_MAX).contains(&plan.names.len()), "the caller has counted the replicas");
        let mut pool = SendSession::new(plan.linger);
        pool.handle_lane_up(CONTROL);
        pool.expect_lanes(plan.names.len() as u32);
        let peers = plan.names.iter().map(|_| Peer::new()).collect();
        Self {
            plan,
            pool,
            peers,
            file: None,
            answered: None,
            votes: Votes::default(),
            open: BTreeMap::new(),
            held: None,
            back: RangeSet::default(),
            complete: None,
            released: false,
            suspects: Vec::new(),
            blamed: Vec::new(),
            alone: None,
            over: false,
            events: VecDeque::new(),
        }
    }

    // Input.

    /// Records that a session with the sender of a replica begins. Requests of an earlier session go to other replicas.
    pub fn handle_joined(&mut self, replica: ReplicaId, now: Instant) {
        self.leave_pool(replica, now);
        if !self.peers[replica.index()].is_dropped() {
            // The replica may come back with another file.
            self.votes.forget(replica);
            self.peers[replica.index()].begin_session();
        }
    }

    /// Records that the session with a replica's sender ended or could not be opened. The replica is tried again unless
    /// `error` excludes a retry.
    pub fn handle_left(&mut self, replica: ReplicaId, error: &Error, now: Instant) {
        let peer = &self.peers[replica.index()];
        if self.over || peer.is_dropped() {
            return;
        }
        if error.retry == Retry::Never && error.kind != ErrorKind::SessionLost {
            return self.drop_replica(replica, error.clone(), now);
        }
        if error.kind != ErrorKind::Cancelled && !matches!(peer.standing, Standing::Away(_)) {
            self.notice(replica, &format!("{}; it is tried again", error.chain()));
        }
        self.leave_pool(replica, now);
        self.peers[replica.index()].standing = Standing::Away(error.clone());
    }

    /// Records that a lane to a replica's sender is up.
    pub fn handle_lane_up(&mut self, replica: ReplicaId, lane: LaneId) {
        self.peers[replica.index()].core.log.handle_lane_up(lane);
    }

    /// Records that a lane to a replica's sender is down. After the last one, its requests go to other replicas.
    pub fn handle_lane_down(&mut self, replica: ReplicaId, lane: LaneId, now: Instant) {
        let peer = &mut self.peers[replica.index()];
        peer.core.handle_lane_down(lane, now);
        if peer.core.log.lane_count() == 0 {
            self.leave_pool(replica, now);
        }
    }

    /// Records lanes of a replica that are silent while others are active.
    pub fn handle_silence(&mut self, replica: ReplicaId, silent: &[LaneId]) {
        self.peers[replica.index()].core.log.handle_silence(silent);
    }

    /// Accepts a batch of the control log of a replica's sender. Errors: the sender violated the protocol; the replica
    /// is dropped.
    pub fn handle_messages(
        &mut self,
        replica: ReplicaId,
        first: u64,
        encoded: &[u8],
        now: Instant,
    ) -> Result<(), Error> {
        let taken = self.peers[replica.index()].core.log.handle_frame(first, encoded);
        let handled = taken.and_then(|messages| {
            messages.into_iter().try_for_each(|message| {
                if let Some(error) = self.peers[replica.index()].handle_message(message)? {
                    self.handle_unfit(replica, error, now);
                }
                Ok(())
            })
        });
        if let Err(error) = &handled {
            self.drop_replica(replica, error.clone(), now);
        }
        if self.peers[replica.index()].entry.is_some() {
            self.answered.get_or_insert(now);
            if self.peers[replica.index()].has_changed() {
                let text = "its file has changed since its last session";
                self.drop_wrong(replica, Error::new(ErrorKind::Changed, Scope::Source, Phase::Transfer, text), now);
            }
            self.check_size(replica, now);
        }
        handled
    }

    /// Handles an error by which a replica's sender reports that it cannot serve the file.
    fn handle_unfit(&mut self, replica: ReplicaId, error: Error, now: Instant) {
        let ended = self.peers[replica.index()].is_over();
        if ended && error.retry == Retry::After {
            self.handle_left(replica, &error, now)
        } else {
            self.drop_replica(replica, error, now)
        }
    }

    /// Records that the sender of a replica has accepted our messages below `next`. Errors: such a message was never
    /// sent; the replica is dropped.
    pub fn handle_acknowledgement(&mut self, replica: ReplicaId, next: u64, now: Instant) -> Result<(), Error> {
        let taken = self.peers[replica.index()].core.log.handle_acknowledgement(next);
        taken.inspect_err(|error| self.drop_replica(replica, error.clone(), now))
    }

    /// Handles a control frame of the receiver. Errors: the receiver violated the protocol.
    pub fn handle_receiver_frame(&mut self, frame: Frame) -> Result<(), Error> {
        match frame {
            Frame::Messages { first, encoded } => self.pool.handle_messages(first, &encoded)?,
            Frame::Acknowledge { next } => self.pool.handle_acknowledgement(next)?,
            // The receiver's report of waiting times is of use only to a remote sender.
            _ => return Ok(()),
        }
        if self.pool.is_looked_up(FILE) {
            let missing = self.pool.missing(FILE);
            if self.held.is_none() {
                let mut held = RangeSet::default();
                let blocks = self.file.as_ref().map_or(0, |file| file.blocks().count());
                missing.gaps(0..blocks).for_each(|range| held.insert(range));
                self.held = Some(held);
            }
            // The requested blocks count here, not the missing ones: a requested block may have arrived again already.
            let wanted = self.pool.take_wanted(FILE);
            wanted.iter().for_each(|range| self.back.remove(range));
            for range in missing.iter() {
                self.held.iter_mut().for_each(|held| held.remove(range.clone()));
            }
        }
        Ok(())
    }

    /// Records the result of [`super::RecvSession::take_back`] for `blocks`: the receiver had those in `asked` and
    /// requests them. It never had the others.
    pub fn handle_taken_back(&mut self, blocks: &RangeSet, asked: &RangeSet) {
        let mut never = blocks.clone();
        asked.iter().for_each(|range| never.remove(range));
        never.iter().for_each(|range| self.back.remove(range));
    }

    /// Records the total bytes of blocks that a replica has delivered.
    pub fn handle_delivered(&mut self, replica: ReplicaId, bytes: u64, now: Instant) {
        self.peers[replica.index()].handle_delivered(bytes, now);
    }

    /// Decides the use of a block that a replica begins to send. The caller then passes `copy` to
    /// [`ReplicaSession::handle_block`] or [`ReplicaSession::handle_block_lost`]. Errors: the entry is not the one that
    /// the replica has offered.
    pub fn handle_begun(
        &mut self,
        replica: ReplicaId,
        copy: CopyId,
        entry: &FileEntry,
        index: u64,
    ) -> Result<BlockUse, Error> {
        let peer = &self.peers[replica.index()];
        if peer.entry.as_ref().is_some_and(|offered| offered != entry) {
            return Err(Error::protocol(format!("block of {}: its entry is not the one that was offered", entry.path)));
        }
        let Some(file) = self.file.as_ref().filter(|_| peer.entry.is_some() && !peer.is_dropped() && !peer.barred)
        else {
            // The block arrived before it was requested. If it is needed, it will be requested.
            return Ok(BlockUse::Discard);
        };
        if file.is_packed() {
            return Ok(BlockUse::Compare);
        }
        if !self.pool.is_looked_up(FILE) {
            return Ok(BlockUse::Discard);
        }
        if !self.is_wanted(index) {
            self.peers[replica.index()].asked.remove(&index);
            return Ok(self.read_past(replica, index));
        }
        let instead_of = match self.open.get(&index) {
            Some(_) if !peer.asked.contains_key(&index) => return Ok(self.read_past(replica, index)),
            Some((_, other)) => Some(*other),
            None => None,
        };
        self.open.insert(index, (replica, copy));
        Ok(BlockUse::Take { instead_of })
    }

    /// Returns true if a block is missing at the receiver and no replica has given it.
    fn is_wanted(&self, index: u64) -> bool {
        self.pool.is_missing(FILE, index) && !self.peers.iter().any(|peer| peer.given.contains(index))
    }

    /// Records that a block of a replica has arrived completely, with `digest` in its trailer. `arrived` is the result
    /// of its writing and verification.
    pub fn handle_block(
        &mut self,
        replica: ReplicaId,
        copy: CopyId,
        index: u64,
        digest: [u8; 32],
        arrived: Arrival,
        now: Instant,
    ) {
        self.close(index, copy);
        let is_wanted = self.is_wanted(index);
        let peer = &mut self.peers[replica.index()];
        peer.comparing.remove(&index);
        if arrived != Arrival::ReadPast || !is_wanted {
            peer.asked.remove(&index);
        }
        if arrived == Arrival::Corrupt {
            peer.corrupt += 1;
            if self.votes.is_compared(index) && !peer.is_dropped() {
                // The copy of this replica must still be compared, whichever replica delivers the block for the file.
                peer.comparing.insert(index);
                let mut again = RangeSet::default();
                again.insert(index..index + 1);
                peer.ask(&again);
            }
            let is_unsound = peer.corrupt >= CORRUPT_BLOCKS_MAX && peer.corrupt * 10 > peer.given.len();
            let mut others = self.peers.iter().enumerate().filter(|(index, _)| *index != replica.index());
            // The only replica that is left may send each block several times.
            if is_unsound && others.any(|(_, peer)| !peer.is_dropped() && !peer.barred) {
                let peer = &self.peers[replica.index()];
                let text = format!("{} of its blocks do not match their own digests", peer.corrupt);
                self.drop_replica(replica, Error::new(ErrorKind::Corrupt, Scope::Source, Phase::Verify, text), now);
            }
            return;
        }
        let is_dropped = peer.is_dropped();
        // Another replica may have delivered the block in the meantime.
        if arrived == Arrival::Written && !self.peers.iter().any(|peer| peer.given.contains(index)) {
            let peer = &mut self.peers[replica.index()];
            peer.given.insert(index..index + 1);
            peer.lost = 0;
            (0..self.peers.len()).for_each(|other| self.call_off(other, index));
            if is_dropped {
                // The block was being written when its replica was dropped.
                let mut late = RangeSet::default();
                late.insert(index..index + 1);
                self.peers[replica.index()].given.remove(index..index + 1);
                self.take_back(late);
            }
        }
        if !is_dropped {
            self.votes.vote(replica, index, digest);
        }
    }

    /// Cancels the request to a replica for a block that another replica has delivered. If the block is compared, the
    /// replica still sends it.
    fn call_off(&mut self, index: usize, block: u64) {
        let peer = &mut self.peers[index];
        if !peer.asked.contains_key(&block) {
            return;
        }
        if self.votes.is_compared(block) && !self.votes.has_voted(ReplicaId(index as u32), block) {
            peer.asked.remove(&block);
            peer.comparing.insert(block);
        } else {
            peer.call_off(block);
        }
    }

    /// Records that a block of a replica did not arrive completely.
    pub fn handle_block_lost(&mut self, copy: CopyId, index: u64) {
        self.close(index, copy);
    }

    /// Records that the receiver refused a copy that was to be written: another copy was faster, or the block is being
    /// taken back. A block that is still missing returns to the pool. Returns the use of this copy; its digest may
    /// count as a vote.
    pub fn handle_refused(&mut self, replica: ReplicaId, copy: CopyId, index: u64) -> BlockUse {
        self.close(index, copy);
        if self.peers[replica.index()].asked.remove(&index).is_some() {
            self.pool.give_back(FILE, index..index + 1);
        }
        self.read_past(replica, index)
    }

    /// Returns the use of a block that is not written.
    fn read_past(&self, replica: ReplicaId, index: u64) -> BlockUse {
        if self.votes.is_compared(index) && !self.votes.has_voted(replica, index) {
            BlockUse::Compare
        } else {
            BlockUse::Discard
        }
    }

    fn close(&mut self, index: u64, copy: CopyId) {
        if self.open.get(&index).is_some_and(|(_, open)| *open == copy) {
            self.open.remove(&index);
        }
    }

    /// For a small file: drops a replica with content that does not match the expected digest.
    pub fn handle_unexpected(&mut self, replica: ReplicaId, error: &Error, now: Instant) {
        self.drop_replica(replica, error.clone(), now);
    }

    /// Handles a file that does not match its expected digest. Returns the blocks to take again, from the next suspect;
    /// their replica no longer counts as their origin. `None`: no suspect is left.
    pub fn handle_wrong(&mut self, now: Instant) -> Option<RangeSet> {
        self.blame_nobody();
        let suspect = self.next_suspect()?;
        // Blocks of an earlier run may come from the same replica: they are replaced together with the first suspect.
        self.suspects.push(Suspect::Held);
        let mut blocks = self.held.replace(RangeSet::default()).unwrap_or_default();
        self.suspects.push(suspect);
        self.blamed = match suspect {
            Suspect::Replica(replica) => self.camp(replica),
            Suspect::AllBut(replica) => self.usable().filter(|other| *other != replica).collect(),
            Suspect::Held => Vec::new(),
        };
        for member in self.blamed.clone() {
            self.suspects.push(Suspect::Replica(member));
            self.peers[member.index()].barred = true;
            self.leave_pool(member, now);
            let given = std::mem::take(&mut self.peers[member.index()].given);
            given.iter().for_each(|range| blocks.insert(range));
        }
        self.released = false;
        self.complete = None;
        let what = match suspect {
            Suspect::Held => "what an earlier run had left".to_owned(),
            Suspect::Replica(_) | Suspect::AllBut(_) => {
                let names = self.blamed.iter().map(|member| self.plan.names[member.index()].as_str());
                format!("what {} gave", names.collect::<Vec<_>>().join(" and "))
            }
        };
        let text =
            format!("the file has not the digest that it must have: {what} is taken anew, {} blocks", blocks.len());
        self.events.push_back(ReplicaEvent::Notice(text));
        blocks.iter().for_each(|range| self.back.insert(range));
        Some(blocks)
    }

    /// Returns a replica and all others that agree with it where it differs from the rest.
    fn camp(&self, replica: ReplicaId) -> Vec<ReplicaId> {
        let ids = (0..self.peers.len() as u32).map(ReplicaId);
        ids.filter(|other| *other == replica || self.votes.differ_alike(replica, *other)).collect()
    }

    /// Returns the replicas that may be asked.
    fn usable(&self) -> impl Iterator<Item = ReplicaId> {
        let usable = self.peers.iter().enumerate().filter(|(_, peer)| !peer.is_dropped() && peer.entry.is_some());
        usable.map(|(index, _)| ReplicaId(index as u32))
    }

    /// Returns the next suspect to replace. First comes the replica with the most differences; on a tie, the one with
    /// the fewest allies, then the one named last. In the end comes everything except one replica.
    fn next_suspect(&self) -> Option<Suspect> {
        let others_remain = |replica: ReplicaId| {
            let camp = self.camp(replica);
            self.usable().any(|other| !camp.contains(&other))
        };
        let ids = (0..self.peers.len() as u32).map(ReplicaId);
        let untried = ids.filter(|id| {
            let peer = &self.peers[id.index()];
            !peer.given.is_empty() && !self.suspects.contains(&Suspect::Replica(*id)) && others_remain(*id)
        });
        let replica = untried
            .max_by_key(|id| (self.votes.differences(*id), usize::MAX - self.camp(*id).len(), *id))
            .map(Suspect::Replica);
        let held = self.held.as_ref().is_some_and(|held| !held.is_empty()) && !self.suspects.contains(&Suspect::Held);
        let is_alone = |id: &ReplicaId| {
            let mut others = self.peers.iter().enumerate().filter(|(index, _)| *index != id.index());
            !self.suspects.contains(&Suspect::AllBut(*id)) && others.any(|(_, peer)| !peer.given.is_empty())
        };
        let all_but_one = || self.usable().find(is_alone).map(Suspect::AllBut);
        replica.or(held.then_some(Suspect::Held)).or_else(all_but_one)
    }

    /// Decides which blocks to request from which replica. Must be called some tens of times a second, and after input
    /// that may change the decision.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.peers.iter_mut().for_each(|peer| peer.handle_timeout(now));
        self.pool.handle_timeout(now);
        self.take_pool_events(now);
        if self.over {
            return;
        }
        self.choose(now);
        self.join_pool(now);
        self.judge(now);
        self.take_up_orphans();
        (0..self.peers.len()).for_each(|index| self.fill(index, now));
        self.help_out(now);
        self.check_complete(now);
        self.check_alone(now);
        self.take_pool_events(now);
    }

    /// Ends the session towards the receiver and towards all replicas.
    pub fn abort(&mut self, error: Error) {
        self.pool.abort(error.clone());
        self.end_with(&error);
    }

    // Changes.

    fn notice(&mut self, replica: ReplicaId, text: &str) {
        let text = format!("{}: {text}", self.plan.names[replica.index()]);
        self.events.push_back(ReplicaEvent::Notice(text));
    }

    /// Removes a replica from the pool for now. Its requests go to other replicas.
    fn leave_pool(&mut self, replica: ReplicaId, now: Instant) {
        let peer = &mut self.peers[replica.index()];
        if std::mem::replace(&mut peer.in_pool, false) {
            peer.call_all_off();
            self.pool.handle_lane_down(Peer::lane(replica.index()), now);
        }
    }

    /// Stops using a replica. The blocks that it gave stay.
    fn drop_replica(&mut self, replica: ReplicaId, error: Error, now: Instant) {
        if self.over || self.peers[replica.index()].is_dropped() {
            return;
        }
        self.leave_pool(replica, now);
        let others = self.peers.iter().enumerate().any(|(index, peer)| index != replica.index() && !peer.is_dropped());
        let rest = if others { "; the copy goes on without it" } else { "" };
        self.notice(replica, &format!("{}{rest}", error.chain()));
        self.votes.forget(replica);
        let peer = &mut self.peers[replica.index()];
        peer.settle(FileOutcome::Failed(error.clone()));
        peer.standing = Standing::Dropped(error);
        let copies: Vec<CopyId> = self.open.values().filter(|(by, _)| *by == replica).map(|(_, copy)| *copy).collect();
        self.events.extend(copies.into_iter().map(ReplicaEvent::Revoke));
    }

    /// Drops a replica that has another file. Takes back its blocks, and also the blocks of an earlier run, which may
    /// come from it.
    fn drop_wrong(&mut self, replica: ReplicaId, error: Error, now: Instant) {
        if self.over || self.peers[replica.index()].is_dropped() {
            return;
        }
        self.drop_replica(replica, error, now);
        if self.released {
            // The expected digest decides by now, and may confirm the blocks of this replica.
            return;
        }
        self.take_back_given(replica);
        // Earlier suspects may be innocent.
        self.blame_nobody();
        self.suspects.clear();
        let held = self.held.as_mut().map(std::mem::take).filter(|held| !held.is_empty());
        if let Some(held) = held {
            let text = format!(
                "{} blocks that an earlier run had left may be from a wrong replica: they are taken anew",
                held.len()
            );
            self.events.push_back(ReplicaEvent::Notice(text));
            self.take_back(held);
        }
    }

    fn blame_nobody(&mut self) {
        for blamed in std::mem::take(&mut self.blamed) {
            self.peers[blamed.index()].barred = false;
        }
    }

    fn take_back_given(&mut self, replica: ReplicaId) {
        let given = std::mem::take(&mut self.peers[replica.index()].given);
        self.take_back(given);
    }

    fn take_back(&mut self, blocks: RangeSet) {
        if !blocks.is_empty() {
            blocks.iter().for_each(|range| self.back.insert(range));
            (self.complete, self.released) = (None, false);
            self.events.push_back(ReplicaEvent::TakeBack(blocks));
        }
    }

    fn take_pool_events(&mut self, now: Instant) {
        while let Some(event) = self.pool.poll_event() {
            match event {
                SendEvent::Settled { outcome, .. } => {
                    self.name_wrong(&outcome, now);
                    self.peers.iter_mut().for_each(|peer| peer.settle(copied_outcome(&outcome)));
                }
                // The receiver has notified the user itself.
                SendEvent::Notice { .. } => {}
                SendEvent::Aborted(error) => self.end_with(&error),
            }
        }
        if self.pool.is_complete() {
            self.over = true;
        }
    }

    /// Drops the replicas that differ from the file, once the file has matched its expected digest.
    fn name_wrong(&mut self, outcome: &FileOutcome, now: Instant) {
        let FileOutcome::Done(_) = outcome else { return };
        let wrong = |text: String| Error::new(ErrorKind::Corrupt, Scope::Source, Phase::Verify, text);
        for replica in self.blamed.clone() {
            let text = "wrong digest: the file is the one that is expected without its blocks".to_owned();
            self.drop_replica(replica, wrong(text), now);
        }
        let giver = |block| {
            let giver = self.peers.iter().position(|peer| peer.given.contains(block));
            giver.map(|index| ReplicaId(index as u32))
        };
        for (replica, block) in self.votes.against(giver) {
            self.drop_replica(replica, wrong(format!("its block {block} differs from that of the file")), now);
        }
    }

    fn end_with(&mut self, error: &Error) {
        if !std::mem::replace(&mut self.over, true) {
            self.peers.iter_mut().for_each(|peer| peer.abort(error));
        }
    }

    // Output.

    /// Returns the next control frame for the receiver.
    pub fn poll_receiver_frame(&mut self) -> Option<Frame> {
        self.pool.poll_frame(CONTROL)
    }

    /// Returns the next control frame for a lane to a replica's sender.
    pub fn poll_frame(&mut self, replica: ReplicaId, lane: LaneId) -> Option<Frame> {
        self.peers[replica.index()].core.poll_frame(lane)
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<ReplicaEvent> {
        self.events.pop_front()
    }

    // Getters.

    /// Returns a number that changes with each message to a sender, and when the file is complete: there is a frame to
    /// send, or the next decision is due.
    pub fn changes(&self) -> u64 {
        let added = self.peers.iter().map(|peer| peer.core.log.added());
        added.fold(u64::from(self.complete.is_some()), u64::wrapping_add)
    }

    /// Returns true if the copy has ended, with success or not.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Returns true if the session with a replica's sender is over and its lanes can close.
    pub fn is_left(&self, replica: ReplicaId) -> bool {
        self.peers[replica.index()].is_over()
    }

    /// Returns true if a replica must not be tried again.
    pub fn is_dropped(&self, replica: ReplicaId) -> bool {
        self.peers[replica.index()].is_dropped()
    }

    /// Returns the entry of the file, once it is chosen.
    pub fn file(&self) -> Option<&FileEntry> {
        self.file.as_ref()
    }

    /// Returns true if `lane` to a replica's sender is up.
    pub fn is_up(&self, replica: ReplicaId, lane: LaneId) -> bool {
        self.peers[replica.index()].core.log.is_up(lane)
    }

    /// Returns the number of lanes to a replica's sender that are up.
    pub fn lane_count(&self, replica: ReplicaId) -> usize {
        self.peers[replica.index()].core.log.lane_count()
    }

    /// Returns the contribution of each replica, in the order of names.
    pub fn accounts(&self) -> Vec<ReplicaAccount> {
        let bytes = |peer: &Peer| {
            let Some(file) = &self.file else { return 0 };
            match file.is_packed() {
                true => {
                    if peer.given.is_empty() {
                        0
                    } else {
                        file.size
                    }
                }
                false => peer.given.iter().flatten().map(|index| file.blocks().length(index)).sum(),
            }
        };
        let dropped = |peer: &Peer| match &peer.standing {
            Standing::Dropped(error) | Standing::Away(error) => Some(error.chain()),
            Standing::Trying => Some("no answer".to_owned()),
            Standing::Present => None,
        };
        self.peers.iter().map(|peer| ReplicaAccount { bytes: bytes(peer), dropped: dropped(peer) }).collect()
    }
}

/// Result of a block that has arrived completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The block is written and matches its digest.
    Written,
    /// The block was to be written but does not match its digest.
    Corrupt,
    /// The block was read and discarded.
    ReadPast,
}

fn copied_outcome(outcome: &FileOutcome) -> FileOutcome {
    match outcome {
        FileOutcome::Done(digests) => FileOutcome::Done(*digests),
        FileOutcome::Skipped => FileOutcome::Skipped,
        FileOutcome::Failed(error) => FileOutcome::Failed(error.clone()),
    }
}
