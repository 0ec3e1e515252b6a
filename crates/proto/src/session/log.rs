//! The control log: a reliable, ordered stream of messages from one end of a session to the other. It survives the loss
//! of any lane.
//!
//! Messages are numbered from 0. They travel on one lane at a time, the carrier. The carrier changes only when it goes
//! down or falls silent, because a message on another lane could overtake one in flight. The peer acknowledges the
//! messages that it has accepted. When the carrier changes, the oldest remaining lane takes over, and everything
//! unacknowledged is sent again on it. Both ends drop messages that they have already received. So each message is
//! accepted exactly once and in order, whenever lanes come up or go down.
//!
//! Refuses to interpret a message, or limit a producer that ignores [`ControlLog::has_room`]. Time comes in as an
//! argument; frames come in by `handle_*` and leave by `poll_*`.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use super::message::{Frame, Message};
use super::{LaneId, UNSETTLED_FILES_MAX};
use crate::error::Error;

/// Bytes of unacknowledged messages above which producers must wait. Reason: the manifest can then run ahead of the
/// data by tens of thousands of files. This exceeds the bandwidth-delay product of any path that Sterna is for.
pub const LOG_BYTES_MAX: usize = 8 << 20;

/// Number of unacknowledged messages above which producers must wait. Reason: blocks may arrive before their offers, on
/// other lanes. The peer accepts no file that is more than [`UNSETTLED_FILES_MAX`] ahead of the offers it has received.
const LOG_MESSAGES_MAX: usize = UNSETTLED_FILES_MAX / 2;

/// Maximum bytes of messages in one frame. Reason: small enough to fit between the data of a block, large enough that
/// ten thousand offers take few frames.
const FRAME_BYTES_MAX: usize = 32 << 10;

/// Number of accepted messages after which an acknowledgement is due. Reason: keeps the peer's log short at little
/// cost.
const ACKNOWLEDGE_EVERY: u64 = 64;

/// One end of the control log: messages to send, and the position in the messages received.
#[derive(Debug, Default)]
pub struct ControlLog {
    /// Encoded messages not yet acknowledged; the first one has number `first`.
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
    first: u64,
    /// Number of the next message to send on the carrier.
    next: u64,
    /// Number of the first message that has never been sent on a lane.
    sent: u64,
    /// Number of the first message that the carrier may not have taken yet. Its feeder has at most one frame at a time,
    /// and asks for the next frame when the lane has taken that one.
    taken: u64,
    lanes: BTreeSet<LaneId>,
    carrier: Option<LaneId>,
    /// Time since which no lane is up. `None` while a lane is up, and before the first lane.
    alone_since: Option<Instant>,
    /// Number of the next message expected from the peer.
    expected: u64,
    /// Last number that was acknowledged to the peer.
    acknowledged: u64,
    /// True if an acknowledgement is due at once: the carrier changed, or the peer sent a message twice and may have
    /// missed an acknowledgement.
    acknowledge_now: bool,
}

impl ControlLog {
    /// Adds a message.
    pub fn push(&mut self, message: &Message) {
        let encoded = message.encode();
        self.waiting_bytes += encoded.len();
        self.waiting.push_back(encoded);
    }

    /// Returns the number of messages that were added up to now.
    pub fn added(&self) -> u64 {
        self.first + self.waiting.len() as u64
    }

    /// Returns true if producers that can wait may add messages.
    pub fn has_room(&self) -> bool {
        self.waiting_bytes < LOG_BYTES_MAX && self.waiting.len() < LOG_MESSAGES_MAX
    }

    /// Returns the bytes of unacknowledged messages.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Returns true if every message has been acknowledged.
    pub fn is_settled(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns true if the carrier has taken every message. A frame in the hands of the feeder does not count: a close
    /// of the lane would overtake it.
    pub fn is_sent(&self) -> bool {
        self.taken == self.added()
    }

    /// Records that a lane is up.
    pub fn handle_lane_up(&mut self, lane: LaneId) {
        self.lanes.insert(lane);
        self.carrier.get_or_insert(lane);
        self.alone_since = None;
    }

    /// Records that a lane is down. If it was the carrier, unacknowledged messages are sent again on the next lane.
    pub fn handle_lane_down(&mut self, lane: LaneId, now: Instant) {
        if self.lanes.remove(&lane) && self.lanes.is_empty() {
            self.alone_since = Some(now);
        }
        if self.carrier == Some(lane) {
            self.change_carrier(self.lanes.first().copied());
        }
    }

    /// Records lanes from which nothing has arrived for a while. None of them stays the carrier if another lane is
    /// active.
    pub fn handle_silence(&mut self, silent: &[LaneId]) {
        let is_silent = |lane: &LaneId| silent.contains(lane);
        let heard = self.lanes.iter().copied().find(|lane| !is_silent(lane));
        if self.carrier.as_ref().is_some_and(is_silent) && heard.is_some() {
            self.change_carrier(heard);
        }
    }

    /// Makes `carrier` the carrier and sends unacknowledged messages again on it. Copies that still arrive on the
    /// former carrier are dropped by the peer.
    fn change_carrier(&mut self, carrier: Option<LaneId>) {
        self.carrier = carrier;
        (self.next, self.taken) = (self.first, self.first);
        self.acknowledge_now = true;
    }

    /// Accepts a frame of the log and returns the new messages in it, without those that are skipped.
    ///
    /// Errors: a gap in the numbers, or a malformed message.
    pub fn handle_frame(&mut self, first: u64, encoded: &[u8]) -> Result<Vec<Message>, Error> {
        if first > self.expected {
            return Err(Error::protocol(format!("message {first} from the peer where {} was next", self.expected)));
        }
        let messages = Message::decode_each(encoded)?;
        let seen = usize::try_from(self.expected - first).unwrap_or(usize::MAX);
        if seen > 0 {
            self.acknowledge_now = true;
        }
        self.expected += messages.len().saturating_sub(seen) as u64;
        Ok(messages.into_iter().skip(seen).flatten().collect())
    }

    /// Records that the peer has accepted every message below `next`. Errors: such a message was never sent.
    pub fn handle_acknowledgement(&mut self, next: u64) -> Result<(), Error> {
        if next > self.sent {
            return Err(Error::protocol(format!("message {next} acknowledged by the peer, which was never sent")));
        }
        while self.first < next {
            if let Some(encoded) = self.waiting.pop_front() {
                self.waiting_bytes -= encoded.len();
            }
            self.first += 1;
        }
        self.next = self.next.max(self.first);
        self.taken = self.taken.max(self.first);
        Ok(())
    }

    /// Returns the next frame for `lane`, if `lane` is the carrier and a frame is due. To be called when the lane has
    /// taken the last frame.
    pub fn poll_frame(&mut self, lane: LaneId) -> Option<Frame> {
        if self.carrier != Some(lane) {
            return None;
        }
        self.taken = self.next;
        if self.acknowledge_now || self.expected - self.acknowledged >= ACKNOWLEDGE_EVERY {
            return Some(self.acknowledge());
        }
        let start = usize::try_from(self.next - self.first).ok()?;
        if start >= self.waiting.len() {
            return None;
        }
        let first = self.next;
        let mut encoded = Vec::new();
        for message in self.waiting.range(start..) {
            if !encoded.is_empty() && encoded.len() + message.len() > FRAME_BYTES_MAX {
                break;
            }
            encoded.extend_from_slice(message);
            self.next += 1;
        }
        self.sent = self.sent.max(self.next);
        Some(Frame::Messages { first, encoded })
    }

    /// Returns an acknowledgement if one is owed. Call it when the lane has nothing else to send.
    pub fn poll_acknowledgement(&mut self, lane: LaneId) -> Option<Frame> {
        (self.carrier == Some(lane) && self.expected > self.acknowledged).then(|| self.acknowledge())
    }

    fn acknowledge(&mut self) -> Frame {
        self.acknowledged = self.expected;
        self.acknowledge_now = false;
        Frame::Acknowledge { next: self.expected }
    }

    /// Returns true if a received message has not been acknowledged yet.
    pub fn owes_acknowledgement(&self) -> bool {
        self.expected > self.acknowledged
    }

    /// Returns the time since which no lane is up; `None` if a lane is up, or none has ever been.
    pub fn alone_since(&self) -> Option<Instant> {
        self.alone_since
    }

    /// Returns true if `lane` is up.
    pub fn is_up(&self, lane: LaneId) -> bool {
        self.lanes.contains(&lane)
    }

    /// Returns the number of lanes that are up.
    pub fn lane_count(&self) -> usize {
        self.lanes.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sterna_seeded::{Seeded, for_seeds};

    use super::*;

    fn numbered(number: u64) -> Message {
        Message::OffersEnd { files: number, bytes: 0 }
    }

    fn numbers(messages: &[Message]) -> Vec<u64> {
        let number = |message: &Message| match message {
            Message::OffersEnd { files, .. } => *files,
            other => panic!("{other:?} was never sent"),
        };
        messages.iter().map(number).collect()
    }

    /// Origin of virtual time.
    fn origin() -> Instant {
        Instant::now()
    }

    fn frame(log: &mut ControlLog, lane: LaneId) -> (u64, Vec<u8>) {
        match log.poll_frame(lane) {
            Some(Frame::Messages { first, encoded }) => (first, encoded),
            other => panic!("messages expected, not {other:?}"),
        }
    }

    #[test]
    fn a_lane_with_a_lower_number_that_comes_up_later_does_not_overtake_the_carrier() {
        let (mut near, mut far) = (ControlLog::default(), ControlLog::default());
        near.handle_lane_up(LaneId(1));
        near.push(&numbered(0));
        let under_way = frame(&mut near, LaneId(1));
        near.handle_lane_up(LaneId(0));
        near.push(&numbered(1));
        assert!(near.poll_frame(LaneId(0)).is_none(), "it would arrive before what lane 1 carries");
        let second = frame(&mut near, LaneId(1));
        assert_eq!(numbers(&far.handle_frame(under_way.0, &under_way.1).unwrap()), [0]);
        assert_eq!(numbers(&far.handle_frame(second.0, &second.1).unwrap()), [1]);
    }

    #[test]
    fn what_was_not_acknowledged_goes_again_when_its_lane_dies() {
        let (mut near, mut far) = (ControlLog::default(), ControlLog::default());
        near.handle_lane_up(LaneId(0));
        near.handle_lane_up(LaneId(1));
        for number in 0..3 {
            near.push(&numbered(number));
        }
        let (first, encoded) = frame(&mut near, LaneId(0));
        assert_eq!(numbers(&far.handle_frame(first, &encoded).unwrap()), [0, 1, 2]);
        near.handle_acknowledgement(1).unwrap();
        near.handle_lane_down(LaneId(0), origin());
        assert!(matches!(near.poll_frame(LaneId(1)), Some(Frame::Acknowledge { next: 0 })));
        near.push(&numbered(3));
        let (first, encoded) = frame(&mut near, LaneId(1));
        assert_eq!(first, 1);
        assert_eq!(numbers(&far.handle_frame(first, &encoded).unwrap()), [3], "1 and 2 were taken before");
        near.handle_acknowledgement(4).unwrap();
        assert!(near.is_settled() && near.waiting_bytes() == 0);
    }

    #[test]
    fn a_message_is_sent_when_the_feeder_of_the_carrier_asks_for_the_next_frame() {
        let mut log = ControlLog::default();
        (0..2).for_each(|lane| log.handle_lane_up(LaneId(lane)));
        log.push(&numbered(0));
        frame(&mut log, LaneId(0));
        assert!(log.poll_frame(LaneId(1)).is_none() && !log.is_sent(), "the feeder of lane 0 has the frame");
        assert!(log.poll_frame(LaneId(0)).is_none() && log.is_sent());
        // The lane dies before it has taken the second message. The next lane sends it.
        log.handle_acknowledgement(1).unwrap();
        log.push(&numbered(1));
        frame(&mut log, LaneId(0));
        log.handle_lane_down(LaneId(0), origin());
        assert!(log.poll_frame(LaneId(0)).is_none() && !log.is_sent());
        while log.poll_frame(LaneId(1)).is_some() {}
        assert!(log.is_sent());
        // An acknowledged message was taken, too.
        log.push(&numbered(2));
        frame(&mut log, LaneId(1));
        log.handle_acknowledgement(3).unwrap();
        assert!(log.is_sent());
    }

    #[test]
    fn a_silent_carrier_hands_over_and_what_it_held_comes_twice() {
        let (mut near, mut far) = (ControlLog::default(), ControlLog::default());
        (0..2).for_each(|lane| near.handle_lane_up(LaneId(lane)));
        near.push(&numbered(0));
        let stuck = frame(&mut near, LaneId(0));
        near.handle_silence(&[LaneId(0), LaneId(1)]);
        near.push(&numbered(1));
        assert!(near.poll_frame(LaneId(1)).is_none(), "no lane is better");
        near.handle_silence(&[LaneId(0)]);
        assert!(near.poll_frame(LaneId(0)).is_none());
        assert!(matches!(near.poll_frame(LaneId(1)), Some(Frame::Acknowledge { next: 0 })));
        let again = frame(&mut near, LaneId(1));
        assert_eq!(numbers(&far.handle_frame(again.0, &again.1).unwrap()), [0, 1]);
        assert_eq!(numbers(&far.handle_frame(stuck.0, &stuck.1).unwrap()), []);
        // An active lane 0 is as good as lane 1; the carrier does not change.
        near.handle_silence(&[]);
        near.push(&numbered(2));
        assert!(near.poll_frame(LaneId(0)).is_none());
        let next = frame(&mut near, LaneId(1));
        assert_eq!(numbers(&far.handle_frame(next.0, &next.1).unwrap()), [2]);
    }

    #[test]
    fn gaps_and_acknowledgements_of_what_was_never_sent_are_errors() {
        let mut log = ControlLog::default();
        assert!(log.handle_frame(1, &numbered(0).encode()).is_err());
        assert!(log.handle_frame(u64::MAX, &[]).is_err());
        log.handle_lane_up(LaneId(0));
        assert!(log.handle_acknowledgement(1).is_err());
        log.push(&numbered(0));
        assert!(log.handle_acknowledgement(1).is_err(), "it has been on no lane");
        log.poll_frame(LaneId(0)).unwrap();
        log.handle_acknowledgement(1).unwrap();
        log.handle_acknowledgement(0).unwrap();
        assert!(log.handle_acknowledgement(2).is_err() && log.handle_acknowledgement(u64::MAX).is_err());
    }

    #[test]
    fn producers_wait_for_bytes_and_for_messages() {
        let mut log = ControlLog::default();
        for number in 0..LOG_MESSAGES_MAX as u64 {
            assert!(log.has_room());
            log.push(&numbered(number));
        }
        assert!(!log.has_room(), "{LOG_MESSAGES_MAX} messages wait");
        log.handle_lane_up(LaneId(0));
        while matches!(log.poll_frame(LaneId(0)), Some(Frame::Messages { .. })) {}
        log.handle_acknowledgement(1).unwrap();
        assert!(log.has_room());
    }

    /// One direction of a lane between two logs. Its frames are lost when the lane goes down.
    struct Pipe {
        lane: LaneId,
        frames: VecDeque<Frame>,
        near_up: bool,
        far_up: bool,
    }

    /// At random moves one frame, takes a lane down or brings one up. Returns the messages that the far end accepted.
    fn stir(random: &mut Seeded, near: &mut ControlLog, far: &mut ControlLog, pipes: &mut Vec<Pipe>) -> Vec<Message> {
        let now = origin();
        if pipes.len() < 4 && random.below(4) == 0 {
            // Lane numbers are not ordered: a lane may come up after one with a higher number.
            let lane = LaneId(random.below(1 << 30) as u32);
            near.handle_lane_up(lane);
            far.handle_lane_up(lane);
            pipes.push(Pipe { lane, frames: VecDeque::new(), near_up: true, far_up: true });
        }
        if pipes.is_empty() {
            return Vec::new();
        }
        let index = random.index(pipes.len());
        let Pipe { lane, frames, near_up, far_up } = &mut pipes[index];
        let mut taken = Vec::new();
        match random.below(30) {
            // One end notices the dead lane first, the other end later. Frames in flight may still arrive.
            0 if *near_up => {
                near.handle_lane_down(*lane, now);
                *near_up = false;
            }
            1 if *far_up => {
                far.handle_lane_down(*lane, now);
                *far_up = false;
                frames.clear();
            }
            2..15 if *near_up => frames.extend(near.poll_frame(*lane).or_else(|| near.poll_acknowledgement(*lane))),
            15..24 if *far_up => match frames.pop_front() {
                Some(Frame::Messages { first, encoded }) => taken = far.handle_frame(first, &encoded).unwrap(),
                Some(Frame::Acknowledge { next }) => far.handle_acknowledgement(next).unwrap(),
                _ => {}
            },
            // The reverse direction delivers a frame as soon as the far end returns one.
            _ if *far_up && *near_up => match far.poll_frame(*lane).or_else(|| far.poll_acknowledgement(*lane)) {
                Some(Frame::Acknowledge { next }) => near.handle_acknowledgement(next).unwrap(),
                Some(Frame::Messages { first, encoded }) => drop(near.handle_frame(first, &encoded).unwrap()),
                _ => {}
            },
            _ => {}
        }
        pipes.retain(|pipe| pipe.near_up || pipe.far_up);
        taken
    }

    #[test]
    fn every_message_is_taken_once_and_in_order_whatever_lanes_die_when() {
        for_seeds("every_message_is_taken_once_and_in_order_whatever_lanes_die_when", 500, |seed| {
            let mut random = Seeded::new(seed);
            let (mut near, mut far) = (ControlLog::default(), ControlLog::default());
            let (mut pipes, mut taken, mut pushed, mut turns) = (Vec::new(), Vec::new(), 0, 0u32);
            while taken.len() < 200 || !near.is_settled() {
                if pushed < 200 && random.below(3) == 0 {
                    near.push(&numbered(pushed));
                    pushed += 1;
                }
                taken.extend(numbers(&stir(&mut random, &mut near, &mut far, &mut pipes)));
                turns += 1;
                assert!(turns < 100_000, "no end after {turns} turns");
                assert!(taken.iter().copied().eq(0..taken.len() as u64), "{taken:?}");
            }
        });
    }

    #[test]
    fn a_log_without_lanes_knows_since_when() {
        let (mut log, start) = (ControlLog::default(), origin());
        assert_eq!(log.alone_since(), None, "before the first lane nothing is lost");
        log.handle_lane_up(LaneId(7));
        log.handle_lane_down(LaneId(3), start);
        assert_eq!((log.alone_since(), log.lane_count()), (None, 1));
        log.handle_lane_down(LaneId(7), start + Duration::from_secs(1));
        log.handle_lane_down(LaneId(7), start + Duration::from_secs(2));
        assert_eq!(log.alone_since(), Some(start + Duration::from_secs(1)));
        log.handle_lane_up(LaneId(8));
        assert_eq!(log.alone_since(), None);
    }
}
