//! Several replicas of one file, for one receiver: which of them is asked for what, and which of them is believed.
//!
//! What it does: towards the receiver it is an ordinary sender of one file, whose pool of blocks has a lane for each replica; towards each replica's sender it is
//! an ordinary receiver, which says *have* for everything and then *want* for what is to be sent. A replica goes through a run of its own
//! (`runs`), is asked for as much as it delivers in about two seconds, and takes half of the largest rest when its run is done; at the end it also takes what a
//! slower one was asked for. Some blocks are asked of every replica and compared. What it refuses to do: write, hash, or know what a replica is.
//!
//! Time comes in as an argument; frames and events come out by `poll_*`.

mod decide;
mod peer;
mod votes;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use self::peer::{FILE, Peer, Standing};
use self::votes::Votes;
use super::message::Frame;
use super::send::{FileOutcome, SendEvent, SendSession};
use super::{LaneId, copied};
use crate::error::{Error, ErrorKind, Phase, Retry, Scope};
use crate::file::{FileEntry, RelPath};
use crate::range_set::RangeSet;

/// Most replicas of one file. Reason: each costs a session; beyond a few the narrowest link is this host's own.
pub const REPLICAS_MAX: usize = 8;

/// How long the replicas that were named before the first one that answers are waited for; of three and more, all of them, since most sizes decide. Reason: a resume needs the entry of the same replica as
/// before, and answers within some round trips of the longest path come in this time.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// How long a block that was asked for is left to who was asked before one takes it that was asked for it before. Reason: a replica that is stuck must not
/// hold up the end, and two slow ones must not take blocks from each other all the time.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// How long a comparison is waited for when all else is here. Reason: longer than a round trip; what was not compared then is taken anew from others.
const COMPARING_MAX: Duration = Duration::from_secs(3);

/// So many blocks that do not match their own digests end a replica, if they are a tenth of those that it gave. Reason: some may be chance; the file fails at
/// [`super::BLOCK_FAILURES_MAX`] of one block.
const CORRUPT_BLOCKS_MAX: u64 = 3;

/// A replica, numbered from 0 in the order in which they were named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u32);

impl ReplicaId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// A block on its way from a replica, named by the driver; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId(pub u64);

/// What becomes of a block that a replica sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockUse {
    /// It is written. `instead_of`: a copy that is under way and is to be read past from here on, before this one is written.
    Take {
        /// That copy.
        instead_of: Option<CopyId>,
    },
    /// It is read past, and its digest counts.
    Compare,
    /// It is read past.
    Discard,
}

/// What the driver must do or know, in order.
#[derive(Debug)]
pub enum ReplicaEvent {
    /// This file is what the receiver gets: every block travels with this entry.
    Chosen(FileEntry),
    /// A remark for the person.
    Notice(String),
    /// This copy is read past from here on; nothing of it is written any more.
    Revoke(CopyId),
    /// These blocks are of no use: [`super::RecvSession::take_back`].
    TakeBack(RangeSet),
    /// Nothing more is to be compared: [`super::RecvSession::release`].
    Release,
    /// Of a small file: the copy of this replica is the one to be written.
    PassOn(ReplicaId),
}

/// What a replica brought, for the person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaAccount {
    /// Bytes of the file that are from it.
    pub bytes: u64,
    /// Why it is not used any more, or was not reached at the end; `None`: it was there to the end.
    pub dropped: Option<String>,
}

/// What is said of a file before its replicas are asked.
#[derive(Clone, Debug)]
pub struct ReplicaPlan {
    /// The replicas as the person wrote them, 2 to [`REPLICAS_MAX`].
    pub names: Vec<String>,
    /// What the file is called, if the destination does not say it.
    pub path: RelPath,
    /// A digest says what the file must be.
    pub is_expected: bool,
    /// How long the copy goes on when no replica can be reached any more.
    pub linger: Duration,
    /// For the choice of blocks that are compared.
    pub seed: u64,
}

/// All replicas of one file.
#[derive(Debug)]
pub struct ReplicaSession {
    plan: ReplicaPlan,
    /// Towards the receiver. Its lanes are [`CONTROL`] and one for each replica.
    pool: SendSession,
    peers: Vec<Peer>,
    file: Option<FileEntry>,
    /// When the first replica answered.
    answered: Option<Instant>,
    votes: Votes,
    /// Blocks under way that are written.
    open: BTreeMap<u64, (ReplicaId, CopyId)>,
    /// Blocks that an earlier session has left; `None` while that is not known.
    held: Option<RangeSet>,
    /// Blocks that were taken back, and that the receiver has not asked for yet.
    back: RangeSet,
    /// Since when everything is here.
    complete: Option<Instant>,
    released: bool,
    /// Replicas whose blocks were replaced to see whether the file is right without them; the last is [`HELD`] or is barred.
    suspects: Vec<Suspect>,
    /// The last of them, as long as nothing else has changed since.
    blamed: Vec<ReplicaId>,
    /// Since when there has been no replica to ask.
    alone: Option<Instant>,
    over: bool,
    events: VecDeque<ReplicaEvent>,
}

/// Whose blocks may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suspect {
    Replica(ReplicaId),
    /// What an earlier session left.
    Held,
    /// Everybody but one: several may be wrong in different places.
    AllBut(ReplicaId),
}

/// The lane towards the receiver that carries control frames.
pub const CONTROL: LaneId = LaneId(0);

impl ReplicaSession {
    /// The replicas of a plan; nothing is known of them. Range: at least one, at most [`REPLICAS_MAX`].
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

    /// A session with the sender of a replica begins; what an earlier one was asked for goes to others.
    pub fn handle_joined(&mut self, replica: ReplicaId, now: Instant) {
        self.leave_pool(replica, now);
        if !self.peers[replica.index()].is_dropped() {
            // It may come back with another file.
            self.votes.forget(replica);
            self.peers[replica.index()].begin_session();
        }
    }

    /// There is no session with a replica's sender any more, or none came to be. Unless trying again cannot help it may come back.
    pub fn handle_left(&mut self, replica: ReplicaId, error: &Error, now: Instant) {
        let peer = &self.peers[replica.index()];
        if self.over || peer.is_dropped() {
            return;
        }
        if error.retry == Retry::Never && error.kind != ErrorKind::SessionLost {
            return self.drop_replica(replica, copied(error), now);
        }
        if error.kind != ErrorKind::Cancelled && !matches!(peer.standing, Standing::Away(_)) {
            self.notice(replica, &format!("{}; it is tried again", error.chain()));
        }
        self.leave_pool(replica, now);
        self.peers[replica.index()].standing = Standing::Away(copied(error));
    }

    /// A lane to a replica's sender is up.
    pub fn handle_lane_up(&mut self, replica: ReplicaId, lane: LaneId) {
        self.peers[replica.index()].log.handle_lane_up(lane);
    }

    /// A lane to a replica's sender is dead. With the last one, what it was asked for goes to others.
    pub fn handle_lane_down(&mut self, replica: ReplicaId, lane: LaneId, now: Instant) {
        let peer = &mut self.peers[replica.index()];
        peer.log.handle_lane_down(lane, now);
        if peer.log.lane_count() == 0 {
            self.leave_pool(replica, now);
        }
    }

    /// Nothing has been heard of these lanes of a replica for a while, and something of others.
    pub fn handle_silence(&mut self, replica: ReplicaId, silent: &[LaneId]) {
        self.peers[replica.index()].log.handle_silence(silent);
    }

    /// A stretch of the control log of a replica's sender. Errors: it broke the protocol, which ends that replica.
    pub fn handle_messages(
        &mut self,
        replica: ReplicaId,
        first: u64,
        encoded: &[u8],
        now: Instant,
    ) -> Result<(), Error> {
        let taken = self.peers[replica.index()].log.handle_frame(first, encoded);
        let handled = taken.and_then(|messages| {
            messages.into_iter().try_for_each(|message| {
                if let Some(error) = self.peers[replica.index()].handle_message(message)? {
                    self.handle_unfit(replica, error, now);
                }
                Ok(())
            })
        });
        if let Err(error) = &handled {
            self.drop_replica(replica, copied(error), now);
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

    /// The sender of a replica says that it cannot serve the file.
    fn handle_unfit(&mut self, replica: ReplicaId, error: Error, now: Instant) {
        let ended = self.peers[replica.index()].is_over();
        if ended && error.retry == Retry::After {
            self.handle_left(replica, &error, now)
        } else {
            self.drop_replica(replica, error, now)
        }
    }

    /// The sender of a replica has taken our messages below `next`. Errors: it cannot have, which ends that replica.
    pub fn handle_acknowledgement(&mut self, replica: ReplicaId, next: u64, now: Instant) -> Result<(), Error> {
        let taken = self.peers[replica.index()].log.handle_acknowledgement(next);
        taken.inspect_err(|error| self.drop_replica(replica, copied(error), now))
    }

    /// A control frame of the receiver. Errors: it broke the protocol.
    pub fn handle_receiver_frame(&mut self, frame: Frame) -> Result<(), Error> {
        match frame {
            Frame::Messages { first, encoded } => self.pool.handle_messages(first, &encoded)?,
            Frame::Acknowledge { next } => self.pool.handle_acknowledgement(next)?,
            // What it waits for is for senders that are far away.
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
            // What it asks for may be here again by the time that this is heard.
            let wanted = self.pool.take_wanted(FILE);
            wanted.iter().for_each(|range| self.back.remove(range));
            for range in missing.iter() {
                self.held.iter_mut().for_each(|held| held.remove(range.clone()));
            }
        }
        Ok(())
    }

    /// Of blocks that were to be taken back the receiver had these, and asks for them; the others it never had.
    pub fn handle_taken_back(&mut self, blocks: &RangeSet, asked: &RangeSet) {
        let mut never = blocks.clone();
        asked.iter().for_each(|range| never.remove(range));
        never.iter().for_each(|range| self.back.remove(range));
    }

    /// A replica has delivered so many bytes of blocks in all.
    pub fn handle_delivered(&mut self, replica: ReplicaId, bytes: u64, now: Instant) {
        self.peers[replica.index()].handle_delivered(bytes, now);
    }

    /// A replica begins to send a block; what becomes of it. `copy` is then given to [`ReplicaSession::handle_block`] or
    /// [`ReplicaSession::handle_block_lost`]. Errors: it is no block of the file that the replica has offered.
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
            // It came before it was asked for; if it is wanted it will be.
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

    /// Whether a block is missing, as far as anybody knows.
    fn is_wanted(&self, index: u64) -> bool {
        self.pool.is_missing(FILE, index) && !self.peers.iter().any(|peer| peer.given.contains(index))
    }

    /// A block of a replica has come whole, with this digest in its trailer. `arrived`: it was to be written, and is.
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
                // Whoever brings it now, its own is to be compared.
                peer.comparing.insert(index);
                let mut again = RangeSet::default();
                again.insert(index..index + 1);
                peer.ask(&again);
            }
            let is_unsound = peer.corrupt >= CORRUPT_BLOCKS_MAX && peer.corrupt * 10 > peer.given.len();
            let mut others = self.peers.iter().enumerate().filter(|(index, _)| *index != replica.index());
            // Of the only one that is left each block has its tries.
            if is_unsound && others.any(|(_, peer)| !peer.is_dropped() && !peer.barred) {
                let peer = &self.peers[replica.index()];
                let text = format!("{} of its blocks do not match their own digests", peer.corrupt);
                self.drop_replica(replica, Error::new(ErrorKind::Corrupt, Scope::Source, Phase::Verify, text), now);
            }
            return;
        }
        let is_dropped = peer.is_dropped();
        // Another one may have been first, in between.
        if arrived == Arrival::Written && !self.peers.iter().any(|peer| peer.given.contains(index)) {
            let peer = &mut self.peers[replica.index()];
            peer.given.insert(index..index + 1);
            peer.lost = 0;
            (0..self.peers.len()).for_each(|other| self.call_off(other, index));
            if is_dropped {
                // It was being written when its replica was dropped.
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

    /// A block that a replica was asked for comes from another one; what is compared it is to send all the same.
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

    /// A block of a replica did not come whole.
    pub fn handle_block_lost(&mut self, copy: CopyId, index: u64) {
        self.close(index, copy);
    }

    /// The receiver does not take a copy that it was to write: another one was faster, or it is being taken back. Unless the block is here it is asked for
    /// again. What becomes of this copy: its digest may count.
    pub fn handle_refused(&mut self, replica: ReplicaId, copy: CopyId, index: u64) -> BlockUse {
        self.close(index, copy);
        if self.peers[replica.index()].asked.remove(&index).is_some() {
            self.pool.give_back(FILE, index..index + 1);
        }
        self.read_past(replica, index)
    }

    /// What becomes of a block that is not written.
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

    /// Of a small file: a replica has sent another content than the digest that is expected.
    pub fn handle_unexpected(&mut self, replica: ReplicaId, error: &Error, now: Instant) {
        self.drop_replica(replica, copied(error), now);
    }

    /// The whole file has not the digest that it must have: whose blocks are taken anew, if that may help. They are no longer that replica's.
    pub fn handle_wrong(&mut self, now: Instant) -> Option<RangeSet> {
        self.blame_nobody();
        let suspect = self.next_suspect()?;
        // What an earlier run left may be of the same replica: it is replaced with the first.
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

    /// A replica, and those that have what it has where that differs from others.
    fn camp(&self, replica: ReplicaId) -> Vec<ReplicaId> {
        let ids = (0..self.peers.len() as u32).map(ReplicaId);
        ids.filter(|other| *other == replica || self.votes.differ_alike(replica, *other)).collect()
    }

    /// Who may be asked.
    fn usable(&self) -> impl Iterator<Item = ReplicaId> {
        let usable = self.peers.iter().enumerate().filter(|(_, peer)| !peer.is_dropped() && peer.entry.is_some());
        usable.map(|(index, _)| ReplicaId(index as u32))
    }

    /// Whose blocks are replaced next: of who differs from others most, of the fewest that are alike, and the last that was named first;
    /// in the end those of all but one.
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

    /// Time has passed: who is to be asked for what is decided here. To be called some tens of times a second, and after input that may change it.
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

    /// Ends everything, at both sides.
    pub fn abort(&mut self, error: Error) {
        self.pool.abort(copied(&error));
        self.end_with(&error);
    }

    // Changes.

    fn notice(&mut self, replica: ReplicaId, text: &str) {
        let text = format!("{}: {text}", self.plan.names[replica.index()]);
        self.events.push_back(ReplicaEvent::Notice(text));
    }

    /// A replica takes no part for now: what it was asked for goes to others.
    fn leave_pool(&mut self, replica: ReplicaId, now: Instant) {
        let peer = &mut self.peers[replica.index()];
        if std::mem::replace(&mut peer.in_pool, false) {
            peer.call_all_off();
            self.pool.handle_lane_down(Peer::lane(replica.index()), now);
        }
    }

    /// A replica is not used any more. What it gave stays.
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
        peer.settle(FileOutcome::Failed(copied(&error)));
        peer.standing = Standing::Dropped(error);
        let copies: Vec<CopyId> = self.open.values().filter(|(by, _)| *by == replica).map(|(_, copy)| *copy).collect();
        self.events.extend(copies.into_iter().map(ReplicaEvent::Revoke));
    }

    /// A replica has another file: what it gave is taken anew, and what an earlier run may have had from it.
    fn drop_wrong(&mut self, replica: ReplicaId, error: Error, now: Instant) {
        if self.over || self.peers[replica.index()].is_dropped() {
            return;
        }
        self.drop_replica(replica, error, now);
        if self.released {
            // The digest decides, by now, and may find that what it gave is right.
            return;
        }
        self.take_back_given(replica);
        // Who was suspected before may be innocent.
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
                // The receiver has told the person itself.
                SendEvent::Notice { .. } => {}
                SendEvent::Aborted(error) => self.end_with(&error),
            }
        }
        if self.pool.is_complete() {
            self.over = true;
        }
    }

    /// The file is what was expected: who has another one is known now.
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

    /// The next control frame for the receiver.
    pub fn poll_receiver_frame(&mut self) -> Option<Frame> {
        self.pool.poll_frame(CONTROL)
    }

    /// The next control frame for a lane to a replica's sender.
    pub fn poll_frame(&mut self, replica: ReplicaId, lane: LaneId) -> Option<Frame> {
        let log = &mut self.peers[replica.index()].log;
        log.poll_frame(lane).or_else(|| log.poll_acknowledgement(lane))
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<ReplicaEvent> {
        self.events.pop_front()
    }

    // Questions.

    /// Whether the copy has come to its end, good or bad.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Whether the session with a replica's sender is over, and its lanes can go.
    pub fn is_left(&self, replica: ReplicaId) -> bool {
        self.peers[replica.index()].is_over()
    }

    /// Whether a replica is not to be tried again.
    pub fn is_dropped(&self, replica: ReplicaId) -> bool {
        self.peers[replica.index()].is_dropped()
    }

    /// The file, once it is known.
    pub fn file(&self) -> Option<&FileEntry> {
        self.file.as_ref()
    }

    /// How many lanes to a replica's sender are up.
    pub fn lane_count(&self, replica: ReplicaId) -> usize {
        self.peers[replica.index()].log.lane_count()
    }

    /// What each replica gave, in order.
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

/// What became of a block that has come whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is written, and matches its digest.
    Written,
    /// It was to be written, and does not match its own digest.
    Corrupt,
    /// It was read past.
    ReadPast,
}

fn copied_outcome(outcome: &FileOutcome) -> FileOutcome {
    match outcome {
        FileOutcome::Done(digests) => FileOutcome::Done(*digests),
        FileOutcome::Skipped => FileOutcome::Skipped,
        FileOutcome::Failed(error) => FileOutcome::Failed(copied(error)),
    }
}
