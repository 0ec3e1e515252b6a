//! A path in virtual time with a sender of ours on it, or some, and whoever else uses it.
//!
//! Packets go over the lab's model, both ways: acknowledgements take the reverse direction and can be lost. What the QUIC
//! engine does around the controller is done here as it does it: pacing in bursts of 2 ms, an acknowledgement for every 50
//! packets or 25 ms, a hole lost after later packets or a time.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use sterna_lab::LinkModel;
use sterna_lab::model::{Flow, Verdict, Wire};
use sterna_proto::rate::{AckedPacket, LaneControl, LaneKey, PathControl, RateContract};
use sterna_proto::{BitRate, ByteCount};

use crate::cubic::Cubic;

/// What is on the wires.
#[derive(Clone, Debug)]
pub enum Packet {
    /// Of one of our lanes.
    Data { lane: usize, number: u64 },
    /// Acknowledges these packets of a lane.
    Ack { lane: usize, numbers: Vec<u64> },
    /// Of a competing flow.
    Other { flow: usize, number: u64 },
    /// Acknowledges one packet of a competing flow.
    OtherAck { flow: usize, number: u64 },
    /// So many packets were dropped by the receiving host.
    Overrun { packets: u64 },
}

/// Nothing is done at a host, or at both when they share a machine.
#[derive(Clone, Debug)]
pub struct Stall {
    pub host: Host,
    pub when: Range<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    Sender,
    Receiver,
    Both,
}

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct Setup {
    pub link: LinkModel,
    pub contract: RateContract,
    pub lanes: usize,
    /// Cubic flows that use the path too, from the start.
    pub competitors: usize,
    /// In the order of time, none within another.
    pub stalls: Vec<Stall>,
    pub hosts: Hosts,
    /// What the sender has to send; `None`: more than any path carries.
    pub load: Option<Load>,
    pub duration: Duration,
}

impl Setup {
    /// A path that this sender has for itself, between hosts without limits.
    pub fn new(link: &LinkModel, contract: RateContract, lanes: usize, duration: Duration) -> Self {
        let (hosts, stalls) = (Hosts::default(), Vec::new());
        Self { link: link.clone(), contract, lanes, competitors: 0, stalls, hosts, load: None, duration }
    }
}

/// What the hosts themselves can do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hosts {
    /// Most that the sending host puts on the wire, all lanes together.
    pub sends: Option<BitRate>,
    /// Most bytes in flight on one lane: its part of the memory of a copy.
    pub lane_memory: Option<ByteCount>,
    /// The socket of the receiving host.
    pub receives: Option<Socket>,
}

/// A socket that is read at a limited rate and drops what exceeds its buffer.
#[derive(Clone, Copy, Debug)]
pub struct Socket {
    pub rate: BitRate,
    pub buffer: ByteCount,
}

/// Messages that are written at intervals to the first lane; the others write updates of flow control.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub message: ByteCount,
    pub every: Duration,
}

/// What came of it, in tenths of a second.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    sent: Vec<u64>,
    dropped: Vec<u64>,
    /// Bytes that were dropped by the socket of the receiving host.
    overrun: Vec<u64>,
    ours: Vec<u64>,
    others: Vec<u64>,
    /// Bytes of the load that were not sent at the end.
    pub waiting: u64,
}

impl Tally {
    /// Mean rate that our lanes delivered in `[from, to)` of the run, counted on the wire.
    pub fn delivered(&self, from: Duration, to: Duration) -> BitRate {
        mean(&self.ours, from, to)
    }

    /// The same of all competing flows.
    pub fn delivered_by_others(&self, from: Duration, to: Duration) -> BitRate {
        mean(&self.others, from, to)
    }

    /// When `size` bytes of ours had arrived, to the tenth of a second.
    pub fn time_of(&self, size: ByteCount) -> Option<Duration> {
        let sums = self.ours.iter().scan(0, |sum, bytes| {
            *sum += bytes;
            Some(*sum)
        });
        let tenth = sums.take_while(|sum| *sum < size.0).count();
        (tenth < self.ours.len()).then(|| Duration::from_millis(100) * (tenth as u32 + 1))
    }

    /// Bytes that our lanes sent in `[from, to)`.
    pub fn sent(&self, from: Duration, to: Duration) -> u64 {
        let index = |at: Duration| ((at.as_millis() / 100) as usize).min(self.sent.len());
        self.sent[index(from)..index(to)].iter().sum()
    }

    /// The most that arrived in any second.
    pub fn most_in_a_second(&self) -> BitRate {
        let most = self.ours.windows(10).map(|second| second.iter().sum()).max().unwrap_or(0);
        BitRate::mean(ByteCount(most), Duration::from_secs(1))
    }

    /// Bytes that the receiving host dropped in the whole run, as a part of those sent.
    pub fn overrun(&self) -> f64 {
        self.overrun.iter().sum::<u64>() as f64 / self.sent.iter().sum::<u64>().max(1) as f64
    }

    /// Packets of ours that did not arrive, as a fraction of those sent in `[from, to)`.
    pub fn lost(&self, from: Duration, to: Duration) -> f64 {
        let sum = |tenths: &[u64]| {
            let index = |at: Duration| ((at.as_millis() / 100) as usize).min(tenths.len());
            tenths[index(from)..index(to)].iter().sum::<u64>() as f64
        };
        sum(&self.dropped) / sum(&self.sent).max(1.0)
    }
}

fn mean(tenths: &[u64], from: Duration, to: Duration) -> BitRate {
    let index = |at: Duration| ((at.as_millis() / 100) as usize).min(tenths.len());
    BitRate::mean(ByteCount(tenths[index(from)..index(to)].iter().sum()), to - from)
}

fn count(tenths: &mut Vec<u64>, now: Duration, bytes: u64) {
    let tenth = (now.as_millis() / 100) as usize;
    if tenths.len() <= tenth {
        tenths.resize(tenth + 1, 0);
    }
    tenths[tenth] += bytes;
}

/// One lane: the controller, and what an engine keeps beside it.
struct Lane {
    /// Which of our senders it belongs to.
    sender: usize,
    control: LaneControl,
    key: LaneKey,
    /// Packets in flight by number, with the time of sending and their bytes; `None` once acknowledged.
    flying: VecDeque<(u64, Option<(Duration, u64)>)>,
    in_flight: u64,
    /// Bytes that the lane has to send, and when the next message is written.
    backlog: u64,
    next_message: Duration,
    /// When it is up; the maximum while it waits for the rate to be found.
    up_at: Duration,
    next_number: u64,
    largest_acked: u64,
    next_send: Duration,
    last_progress: Duration,
    /// What the receiver has and not yet acknowledged, and since when.
    unacked: Vec<u64>,
    unacked_since: Duration,
    /// What the last acknowledgements said: the next one says it again.
    said: VecDeque<Vec<u64>>,
}

/// A run.
pub struct Path {
    setup: Setup,
    /// When the flow is moved to a path of another rate.
    change: Option<(Duration, LinkModel)>,
    /// Size of a full packet of ours: it grows with what path MTU discovery finds, a probe in each round trip.
    packet_bytes: u64,
    mtu_probe_at: Duration,
    start: Instant,
    now: Duration,
    forward: Wire<Packet>,
    reverse: Wire<Packet>,
    /// One for each of our senders; the first is the one that is measured.
    rates: Vec<PathControl>,
    lanes: Vec<Lane>,
    others: Vec<Cubic>,
    /// When the sending host can send again, and which lane it serves first.
    host_free: Duration,
    turn: usize,
    socket: ReceiveSocket,
    tally: Tally,
}

/// The socket of the receiving host.
#[derive(Default)]
struct ReceiveSocket {
    /// Lane, number and bytes of what waits to be read.
    waiting: VecDeque<(usize, u64, u64)>,
    bytes: u64,
    /// When the next packet is read.
    read_at: Duration,
    /// Packets dropped since the last report, and when the next one is due.
    dropped: u64,
    report_at: Duration,
}

impl Path {
    pub fn new(setup: Setup) -> Self {
        // Virtual time needs some first instant; it is never read again.
        let start = Instant::now();
        let packet_bytes = u64::from(setup.link.mtu).min(PACKET_BYTES_FIRST);
        let mtu_probe_at = setup.link.rtt * 2;
        let (forward, reverse) = Wire::pair(&setup.link);
        let others = (0..setup.competitors).map(|_| Cubic::new()).collect();
        let tally = Tally::default();
        let mut path = Self {
            packet_bytes,
            mtu_probe_at,
            start,
            now: Duration::ZERO,
            forward,
            reverse,
            rates: Vec::new(),
            lanes: Vec::new(),
            others,
            tally,
            setup,
            change: None,
            host_free: Duration::ZERO,
            turn: 0,
            socket: ReceiveSocket::default(),
        };
        path.add_sender();
        path
    }

    fn add_sender(&mut self) {
        let mut rate = PathControl::new(self.setup.contract);
        rate.set_packet_bytes(self.packet_bytes);
        let (sender, start) = (self.rates.len(), self.start);
        self.lanes.extend((0..self.setup.lanes).map(|_| Lane::new(sender, &mut rate, start)));
        if rate.control().found().is_none() && self.setup.load.is_none() {
            // As a session begins.
            let later = self.lanes.iter_mut().filter(|lane| lane.sender == sender).skip(1);
            later.for_each(|lane| lane.up_at = Duration::MAX);
        }
        self.rates.push(rate);
    }

    /// Adds senders of ours that know nothing of the first; what they deliver counts as that of others.
    pub fn beside_ours(mut self, count: usize) -> Self {
        (0..count).for_each(|_| self.add_sender());
        self
    }

    /// Moves all flows to another path at `at`: what is in flight then is lost.
    pub fn change(mut self, at: Duration, link: LinkModel) -> Self {
        self.change = Some((at, link));
        self
    }

    /// Runs to the end.
    pub fn run(mut self) -> (Tally, PathControl) {
        while self.now < self.setup.duration {
            if let Some((_, link)) = self.change.take_if(|(at, _)| self.now >= *at) {
                (self.forward, self.reverse) = Wire::pair(&link);
                self.setup.link = link;
            }
            self.discover_mtu();
            self.receive();
            self.start_lanes();
            if !self.is_stalled(Host::Sender) {
                self.write();
                self.turn += 1;
                let count = self.lanes.len();
                (0..count).for_each(|lane| self.send((lane + self.turn) % count));
            }
            (0..self.others.len()).for_each(|flow| self.send_other(flow));
            self.now = self.next_event().max(self.now + Duration::from_micros(1));
        }
        self.tally.waiting = self.lanes.iter().map(|lane| lane.backlog).sum();
        (self.tally, self.rates.swap_remove(0))
    }

    fn discover_mtu(&mut self) {
        let mtu = u64::from(self.setup.link.mtu);
        if self.packet_bytes < mtu && self.now >= self.mtu_probe_at {
            self.packet_bytes = (self.packet_bytes + ((mtu - self.packet_bytes) / 2).max(20)).min(mtu);
            self.mtu_probe_at = self.now + self.setup.link.rtt;
            self.rates.iter_mut().for_each(|rate| rate.set_packet_bytes(self.packet_bytes));
        }
    }

    /// Whether a host does nothing now.
    fn is_stalled(&self, host: Host) -> bool {
        let stalls = &self.setup.stalls;
        let next = stalls.partition_point(|stall| stall.when.end <= self.now);
        stalls
            .get(next)
            .is_some_and(|stall| stall.when.contains(&self.now) && (stall.host == host || stall.host == Host::Both))
    }

    fn next_event(&self) -> Duration {
        if self.is_stalled(Host::Sender) || self.is_stalled(Host::Receiver) {
            // What happens elsewhere meanwhile is looked at a thousand times a second.
            return self.now + Duration::from_millis(1);
        }
        let lanes = self.lanes.iter().map(|lane| {
            let ack = if lane.unacked.is_empty() { Duration::MAX } else { lane.unacked_since + ACK_DELAY };
            let may_send = self.may_send(lane);
            let send = if may_send { lane.next_send.max(self.host_free) } else { lane.probe_at() };
            let write = if self.setup.load.is_some() { lane.next_message } else { Duration::MAX };
            ack.min(send).min(write)
        });
        let read = if self.socket.waiting.is_empty() { Duration::MAX } else { self.socket.read_at };
        let report = if self.socket.dropped == 0 { Duration::MAX } else { self.socket.report_at };
        let others = self.others.iter().map(Cubic::poll_timeout);
        let wires = [self.forward.poll_timeout(), self.reverse.poll_timeout()].into_iter().flatten();
        lanes.chain(others).chain(wires).chain([read, report]).min().unwrap_or(Duration::MAX)
    }

    /// Takes what has arrived at either end.
    fn receive(&mut self) {
        let is_stalled = self.is_stalled(Host::Receiver);
        while !is_stalled && let Some(packet) = self.forward.poll(self.now) {
            match packet {
                Packet::Data { lane, number } => self.arrive(lane, number),
                Packet::Other { flow, number } => {
                    count(&mut self.tally.others, self.now, u64::from(self.setup.link.mtu));
                    let ack = Packet::OtherAck { flow, number };
                    self.reverse.offer(self.now, ACK_BYTES, Flow::udp(100 + flow as u64), ack);
                }
                _ => {}
            }
        }
        if !is_stalled {
            self.read_socket();
        }
        for lane in 0..self.lanes.len() {
            let state = &self.lanes[lane];
            if !is_stalled && !state.unacked.is_empty() && self.now >= state.unacked_since + ACK_DELAY {
                self.acknowledge(lane);
            }
        }
        while !self.is_stalled(Host::Sender)
            && let Some(packet) = self.reverse.poll(self.now)
        {
            match packet {
                Packet::Ack { lane, numbers } => self.handle_ack(lane, &numbers),
                Packet::OtherAck { flow, number } => self.others[flow].handle_ack(self.now, number),
                Packet::Overrun { packets } => self.rates[0].handle_overrun(self.start + self.now, packets),
                _ => {}
            }
        }
    }

    /// A packet of a lane is at the receiving host.
    fn arrive(&mut self, lane: usize, number: u64) {
        let bytes = self.lanes[lane].bytes_of(number, self.packet_bytes);
        let Some(limits) = self.setup.hosts.receives else { return self.receive_data(lane, number, bytes) };
        let socket = &mut self.socket;
        if socket.bytes + bytes > limits.buffer.0 {
            socket.dropped += 1;
            return count(&mut self.tally.overrun, self.now, bytes);
        }
        if socket.waiting.is_empty() {
            socket.read_at = socket.read_at.max(self.now);
        }
        socket.bytes += bytes;
        socket.waiting.push_back((lane, number, bytes));
    }

    /// Reads what the host has had the time for, and reports what its socket dropped.
    fn read_socket(&mut self) {
        let Some(limits) = self.setup.hosts.receives else { return };
        while self.socket.read_at <= self.now
            && let Some((lane, number, bytes)) = self.socket.waiting.pop_front()
        {
            self.socket.bytes -= bytes;
            self.socket.read_at += limits.rate.time_for(ByteCount(bytes));
            self.receive_data(lane, number, bytes);
        }
        if self.socket.dropped > 0 && self.now >= self.socket.report_at {
            let packets = std::mem::take(&mut self.socket.dropped);
            self.socket.report_at = self.now + REPORT_EVERY;
            self.reverse.offer(self.now, ACK_BYTES, Flow::udp(0), Packet::Overrun { packets });
        }
    }

    fn receive_data(&mut self, lane: usize, number: u64, bytes: u64) {
        let state = &mut self.lanes[lane];
        let tally = if state.sender == 0 { &mut self.tally.ours } else { &mut self.tally.others };
        count(tally, self.now, bytes);
        if state.unacked.is_empty() {
            state.unacked_since = self.now;
        }
        state.unacked.push(number);
        if state.unacked.len() >= ACK_PACKETS {
            self.acknowledge(lane);
        }
    }

    fn acknowledge(&mut self, lane: usize) {
        let state = &mut self.lanes[lane];
        state.said.push_back(std::mem::take(&mut state.unacked));
        if state.said.len() > ACKS_REPEATED {
            state.said.pop_front();
        }
        let numbers = state.said.iter().flatten().copied().collect();
        self.reverse.offer(self.now, ACK_BYTES, Flow::udp(lane as u64), Packet::Ack { lane, numbers });
    }

    fn handle_ack(&mut self, lane: usize, numbers: &[u64]) {
        let (start, now, packet_bytes) = (self.start, self.now, self.packet_bytes);
        let is_limited = self.setup.load.is_some();
        let lane = &mut self.lanes[lane];
        for &number in numbers {
            let Ok(index) = lane.flying.binary_search_by_key(&number, |(number, _)| *number) else { continue };
            let Some((sent, bytes)) = lane.flying[index].1.take() else { continue };
            lane.in_flight -= bytes;
            lane.largest_acked = lane.largest_acked.max(number);
            lane.last_progress = now;
            lane.control.handle_acked(start + now, AckedPacket { number, sent: start + sent, bytes });
        }
        let late = self.setup.link.rtt.mul_f64(1.0 + 1.0 / 32.0) + REORDERING;
        lane.lose(|number, sent, largest| number + LATER_PACKETS <= largest || (number < largest && now > sent + late));
        let batch = lane.control.take_batch(is_limited && lane.backlog == 0);
        let rate = &mut self.rates[lane.sender];
        rate.handle_batch(lane.key, start + now, &batch);
        lane.control.follow(rate.terms(lane.key, start + now));
        // A pacer goes by the rate of now, also for what it had put off.
        lane.next_send = lane.next_send.min(now + gap(&lane.control, packet_bytes));
    }

    /// Writes the messages of the load that are due.
    fn write(&mut self) {
        let Some(load) = self.setup.load else { return };
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            while lane.next_message <= self.now {
                lane.backlog += if number == 0 { load.message.0 } else { UPDATE_BYTES };
                lane.next_message += if number == 0 { load.every } else { UPDATE_EVERY };
            }
        }
    }

    /// Whether a lane is up, and has something to send and room for it.
    fn may_send(&self, lane: &Lane) -> bool {
        let most = self.setup.hosts.lane_memory.map_or(u64::MAX, |memory| memory.0);
        let has_data = self.setup.load.is_none() || lane.backlog > 0;
        has_data && lane.up_at <= self.now && lane.has_room(self.packet_bytes) && lane.in_flight < most
    }

    /// Brings up the lanes that wait for the rate to be found, as a session does: they take two round trips.
    fn start_lanes(&mut self) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.up_at == Duration::MAX) {
            if self.rates[lane.sender].control().found().is_some() {
                lane.up_at = self.now + self.setup.link.rtt * 2;
            }
        }
    }

    fn send(&mut self, lane: usize) {
        let (start, now, packet_bytes) = (self.start, self.now, self.packet_bytes);
        // A probe needs no room; what it finds lost is lost only once it is acknowledged.
        let mut probes = now >= self.lanes[lane].probe_at();
        while probes || (self.may_send(&self.lanes[lane]) && now >= self.lanes[lane].next_send.max(self.host_free)) {
            let state = &mut self.lanes[lane];
            let rate = &mut self.rates[state.sender];
            if std::mem::take(&mut probes) {
                state.last_progress = now;
            }
            let mut bytes = packet_bytes;
            if self.setup.load.is_some() {
                let data = state.backlog.min(packet_bytes - HEADER_BYTES);
                state.backlog -= data;
                bytes = HEADER_BYTES + data;
            }
            if let Some(most) = self.setup.hosts.sends {
                self.host_free = self.host_free.max(now.saturating_sub(BURST)) + most.time_for(ByteCount(bytes));
            }
            let number = state.next_number;
            // Engines spend numbers on packets of their own that nobody acknowledges.
            state.next_number += if number.is_multiple_of(40) { 2 } else { 1 };
            state.flying.push_back((number, Some((now, bytes))));
            state.in_flight += bytes;
            state.control.handle_sent(start + now, number, bytes);
            rate.handle_sent(state.key, start + now, bytes);
            if state.control.take_train_pause() {
                rate.handle_train_pause(state.key);
            }
            state.control.follow(rate.terms(state.key, start + now));
            state.next_send = state.next_send.max(now.saturating_sub(BURST)) + gap(&state.control, bytes);
            let is_measured = state.sender == 0;
            count(&mut self.tally.sent, now, if is_measured { bytes } else { 0 });
            let verdict =
                self.forward.offer(now, bytes as usize, Flow::udp(lane as u64), Packet::Data { lane, number });
            if is_measured && matches!(verdict, Verdict::Drop(_)) {
                count(&mut self.tally.dropped, now, bytes);
            }
        }
    }

    fn send_other(&mut self, flow: usize) {
        while let Some(number) = self.others[flow].poll_send(self.now) {
            let packet = Packet::Other { flow, number };
            self.forward.offer(self.now, usize::from(self.setup.link.mtu), Flow::udp(100 + flow as u64), packet);
        }
    }
}

/// Between two packets.
fn gap(control: &LaneControl, bytes: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 * 8.0 / (control.rate().0 as f64).max(1.0))
}

impl Lane {
    fn new(sender: usize, rate: &mut PathControl, start: Instant) -> Self {
        let key = rate.join();
        Self {
            sender,
            control: LaneControl::new(rate.terms(key, start)),
            key,
            flying: VecDeque::new(),
            in_flight: 0,
            next_number: 1,
            largest_acked: 0,
            next_send: Duration::ZERO,
            last_progress: Duration::ZERO,
            unacked: Vec::new(),
            unacked_since: Duration::ZERO,
            said: VecDeque::new(),
            backlog: 0,
            next_message: Duration::ZERO,
            up_at: Duration::ZERO,
        }
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.in_flight + bytes <= self.control.window().0
    }

    /// Bytes of packet `number`, which may have been taken for lost.
    fn bytes_of(&self, number: u64, packet_bytes: u64) -> u64 {
        let index = self.flying.binary_search_by_key(&number, |(number, _)| *number);
        index.ok().and_then(|index| self.flying[index].1).map_or(packet_bytes, |(_, bytes)| bytes)
    }

    /// When silence calls for a probe; never while nothing is in flight.
    fn probe_at(&self) -> Duration {
        if self.in_flight == 0 {
            return Duration::MAX;
        }
        self.last_progress + self.control.terms().rtt_min * 2 + ACK_DELAY * 2
    }

    /// Takes for lost what `is_lost` says of (number, time of sending, largest acknowledged).
    fn lose(&mut self, is_lost: impl Fn(u64, Duration, u64) -> bool) {
        for (number, sent) in &mut self.flying {
            let Some((at, bytes)) = *sent else { continue };
            if !is_lost(*number, at, self.largest_acked) {
                // Numbers and times rise: nothing behind it is lost either.
                break;
            }
            *sent = None;
            self.in_flight -= bytes;
            self.control.handle_lost(*number);
        }
        while self.flying.front().is_some_and(|(_, sent)| sent.is_none()) {
            self.flying.pop_front();
        }
    }
}

/// Size of a packet before path MTU discovery, about.
const PACKET_BYTES_FIRST: u64 = 1500;

/// Packets for an acknowledgement, and how long one may wait (the engine's settings; RFC 9000's delay).
const ACK_PACKETS: usize = 50;
const ACK_DELAY: Duration = Duration::from_millis(25);

/// In how many acknowledgements a packet is named. Reason: the ranges of an acknowledgement reach back over many.
const ACKS_REPEATED: usize = 4;

/// How often the receiving host reports what its socket dropped.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Headers of a packet with a message, and what a lane without data writes: updates of flow control.
const HEADER_BYTES: u64 = 60;
const UPDATE_BYTES: u64 = 20;
const UPDATE_EVERY: Duration = Duration::from_millis(20);

/// An acknowledgement on the wire.
const ACK_BYTES: usize = 80;

/// Later packets that make a hole a loss, and the time that counts as reordering.
const LATER_PACKETS: u64 = 100;
const REORDERING: Duration = Duration::from_millis(7);

/// How far a pacer catches up.
const BURST: Duration = Duration::from_millis(2);
