//! A path in virtual time with one or more of our senders, and with competing flows.
//!
//! Packets travel over the lab's model in both directions. Acknowledgements take the reverse direction and can be lost.
//! The simulation reproduces the QUIC engine around the controller. It paces in bursts of 2 ms and acknowledges every
//! 50 packets or 25 ms. A gap counts as lost after a number of later packets or after a time.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use sterna_lab::LinkModel;
use sterna_lab::model::{Flow, Verdict, Wire};
use sterna_proto::rate::{AckedPacket, LaneControl, LaneKey, PathControl, RateContract};
use sterna_proto::{BitRate, ByteCount};

use crate::cubic::Cubic;

/// Packets on the wires.
#[derive(Clone, Debug)]
pub enum Packet {
    /// Data of one of our lanes.
    Data { lane: usize, number: u64 },
    /// Acknowledgement of these packets of a lane.
    Ack { lane: usize, numbers: Vec<u64> },
    /// Data of a competing flow.
    Other { flow: usize, number: u64 },
    /// Acknowledgement of one packet of a competing flow.
    OtherAck { flow: usize, number: u64 },
    /// Report that the receiving host dropped this number of packets.
    Overrun { packets: u64 },
}

/// A time in which a host is stalled; both hosts if they share a machine.
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

/// Setup of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    pub link: LinkModel,
    pub contract: RateContract,
    pub lanes: usize,
    /// Number of cubic flows that also use the path from the start.
    pub competitors: usize,
    /// Stalls in order of time, without overlap.
    pub stalls: Vec<Stall>,
    pub hosts: Hosts,
    /// Data of the sender; `None`: more than any path carries.
    pub load: Option<Load>,
    pub duration: Duration,
}

impl Setup {
    /// Returns the setup of a path with one sender, between hosts without limits.
    pub fn new(link: &LinkModel, contract: RateContract, lanes: usize, duration: Duration) -> Self {
        let (hosts, stalls) = (Hosts::default(), Vec::new());
        Self { link: link.clone(), contract, lanes, competitors: 0, stalls, hosts, load: None, duration }
    }
}

/// Limits of the hosts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hosts {
    /// Highest rate of the sending host on the wire, all lanes together.
    pub sends: Option<BitRate>,
    /// Most bytes in flight on one lane: its share of the memory of a copy.
    pub lane_memory: Option<ByteCount>,
    /// Socket of the receiving host.
    pub receives: Option<Socket>,
}

/// A socket that is read at a limited rate and drops packets that exceed its buffer.
#[derive(Clone, Copy, Debug)]
pub struct Socket {
    pub rate: BitRate,
    pub buffer: ByteCount,
}

/// Messages written at intervals to the first lane. The other lanes write updates of flow control.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub message: ByteCount,
    pub every: Duration,
}

/// Counters of a run, per tenth of a second.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    sent: Vec<u64>,
    dropped: Vec<u64>,
    /// Bytes that the socket of the receiving host dropped.
    overrun: Vec<u64>,
    ours: Vec<u64>,
    others: Vec<u64>,
    /// Bytes of the load that were not sent at the end.
    pub waiting: u64,
}

impl Tally {
    /// Returns the mean rate that our lanes delivered in `[from, to)` of the run, counted on the wire.
    pub fn delivered(&self, from: Duration, to: Duration) -> BitRate {
        mean(&self.ours, from, to)
    }

    /// Returns the same rate for all competing flows together.
    pub fn delivered_by_others(&self, from: Duration, to: Duration) -> BitRate {
        mean(&self.others, from, to)
    }

    /// Returns the time at which `size` bytes of ours had arrived, to a tenth of a second.
    pub fn time_of(&self, size: ByteCount) -> Option<Duration> {
        let sums = self.ours.iter().scan(0, |sum, bytes| {
            *sum += bytes;
            Some(*sum)
        });
        let tenth = sums.take_while(|sum| *sum < size.0).count();
        (tenth < self.ours.len()).then(|| Duration::from_millis(100) * (tenth as u32 + 1))
    }

    /// Returns the bytes that our lanes sent in `[from, to)`.
    pub fn sent(&self, from: Duration, to: Duration) -> u64 {
        let index = |at: Duration| ((at.as_millis() / 100) as usize).min(self.sent.len());
        self.sent[index(from)..index(to)].iter().sum()
    }

    /// Returns the highest rate of arrival in any second.
    pub fn most_in_a_second(&self) -> BitRate {
        let most = self.ours.windows(10).map(|second| second.iter().sum()).max().unwrap_or(0);
        BitRate::mean(ByteCount(most), Duration::from_secs(1))
    }

    /// Returns the bytes that the receiving host dropped in the whole run, as a share of the sent bytes.
    pub fn overrun(&self) -> f64 {
        self.overrun.iter().sum::<u64>() as f64 / self.sent.iter().sum::<u64>().max(1) as f64
    }

    /// Returns the bytes of ours that did not arrive, as a share of the bytes sent in `[from, to)`.
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

/// One lane: the controller and the state that an engine keeps for it.
struct Lane {
    /// Index of the sender that owns the lane.
    sender: usize,
    control: LaneControl,
    key: LaneKey,
    /// Packets in flight by number, with send time and size; `None` once acknowledged or lost.
    flying: VecDeque<(u64, Option<(Duration, u64)>)>,
    in_flight: u64,
    /// Bytes that the lane has to send, and the time of the next message.
    backlog: u64,
    next_message: Duration,
    /// Time when the lane is up; the maximum while the lane waits for the rate to be found.
    up_at: Duration,
    next_number: u64,
    largest_acked: u64,
    next_send: Duration,
    last_progress: Duration,
    /// Packets received and not yet acknowledged, and the time of the oldest.
    unacked: Vec<u64>,
    unacked_since: Duration,
    /// Packet numbers of the last acknowledgements, repeated in the next one.
    said: VecDeque<Vec<u64>>,
}

/// A run.
pub struct Path {
    setup: Setup,
    /// Time at which all flows move to a path of another rate, and this path.
    change: Option<(Duration, LinkModel)>,
    /// Size of our full packets. Grows by path MTU discovery, with one probe per round trip.
    packet_bytes: u64,
    mtu_probe_at: Duration,
    start: Instant,
    now: Duration,
    forward: Wire<Packet>,
    reverse: Wire<Packet>,
    /// One for each of our senders; the first one is measured.
    rates: Vec<PathControl>,
    lanes: Vec<Lane>,
    others: Vec<Cubic>,
    /// Time when the sending host can send again, and the lane that it serves first.
    host_free: Duration,
    turn: usize,
    socket: ReceiveSocket,
    tally: Tally,
}

/// Socket of the receiving host.
#[derive(Default)]
struct ReceiveSocket {
    /// Lane, number and bytes of each packet that waits to be read.
    waiting: VecDeque<(usize, u64, u64)>,
    bytes: u64,
    /// Time when the next packet is read.
    read_at: Duration,
    /// Packets dropped since the last report, and the time of the next report.
    dropped: u64,
    report_at: Duration,
}

impl Path {
    pub fn new(setup: Setup) -> Self {
        // Virtual time needs an origin, which is read only here.
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
            // As at the start of a session: the other lanes wait for the rate.
            let later = self.lanes.iter_mut().filter(|lane| lane.sender == sender).skip(1);
            later.for_each(|lane| lane.up_at = Duration::MAX);
        }
        self.rates.push(rate);
    }

    /// Adds senders of ours that share no state with the first. Their deliveries count as those of others.
    pub fn beside_ours(mut self, count: usize) -> Self {
        (0..count).for_each(|_| self.add_sender());
        self
    }

    /// Moves all flows to another path at `at`. Packets in flight at this time are lost.
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

    /// Returns true if a host is stalled now.
    fn is_stalled(&self, host: Host) -> bool {
        let stalls = &self.setup.stalls;
        let next = stalls.partition_point(|stall| stall.when.end <= self.now);
        stalls
            .get(next)
            .is_some_and(|stall| stall.when.contains(&self.now) && (stall.host == host || stall.host == Host::Both))
    }

    fn next_event(&self) -> Duration {
        if self.is_stalled(Host::Sender) || self.is_stalled(Host::Receiver) {
            // During a stall the events elsewhere are checked every millisecond.
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

    /// Processes the packets that have arrived at both ends.
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

    /// Handles a packet of a lane that arrives at the receiving host.
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

    /// Reads as many packets as the host had time for, and reports the packets that its socket dropped.
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
        // The pacer applies the new rate immediately, also to a send that was already scheduled.
        lane.next_send = lane.next_send.min(now + gap(&lane.control, packet_bytes));
    }

    /// Writes the due messages of the load.
    fn write(&mut self) {
        let Some(load) = self.setup.load else { return };
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            while lane.next_message <= self.now {
                lane.backlog += if number == 0 { load.message.0 } else { UPDATE_BYTES };
                lane.next_message += if number == 0 { load.every } else { UPDATE_EVERY };
            }
        }
    }

    /// Returns true if a lane is up, has data to send and has room for it.
    fn may_send(&self, lane: &Lane) -> bool {
        let most = self.setup.hosts.lane_memory.map_or(u64::MAX, |memory| memory.0);
        let has_data = self.setup.load.is_none() || lane.backlog > 0;
        has_data && lane.up_at <= self.now && lane.has_room(self.packet_bytes) && lane.in_flight < most
    }

    /// Starts the lanes that wait for the rate to be found, as a session does. They take two round trips.
    fn start_lanes(&mut self) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.up_at == Duration::MAX) {
            if self.rates[lane.sender].control().found().is_some() {
                lane.up_at = self.now + self.setup.link.rtt * 2;
            }
        }
    }

    fn send(&mut self, lane: usize) {
        let (start, now, packet_bytes) = (self.start, self.now, self.packet_bytes);
        // A probe needs no room in the window. The losses that it reveals count only after its acknowledgement.
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
            // Engines use numbers for internal packets that are never acknowledged.
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

/// Returns the time between two packets.
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

    /// Returns the size of packet `number`, which may already count as lost.
    fn bytes_of(&self, number: u64, packet_bytes: u64) -> u64 {
        let index = self.flying.binary_search_by_key(&number, |(number, _)| *number);
        index.ok().and_then(|index| self.flying[index].1).map_or(packet_bytes, |(_, bytes)| bytes)
    }

    /// Returns the time at which silence triggers a probe; never while nothing is in flight.
    fn probe_at(&self) -> Duration {
        if self.in_flight == 0 {
            return Duration::MAX;
        }
        self.last_progress + self.control.terms().rtt_min * 2 + ACK_DELAY * 2
    }

    /// Marks packets as lost for which `is_lost` (number, send time, largest acknowledged) returns true.
    fn lose(&mut self, is_lost: impl Fn(u64, Duration, u64) -> bool) {
        for (number, sent) in &mut self.flying {
            let Some((at, bytes)) = *sent else { continue };
            if !is_lost(*number, at, self.largest_acked) {
                // Numbers and times increase, so no later packet is lost either.
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

/// Approximate packet size before path MTU discovery.
const PACKET_BYTES_FIRST: u64 = 1500;

/// Packets per acknowledgement, and the longest delay of an acknowledgement (the engine's settings; RFC 9000's delay).
const ACK_PACKETS: usize = 50;
const ACK_DELAY: Duration = Duration::from_millis(25);

/// Number of acknowledgements that contain a packet. Reason: the ranges of an acknowledgement cover many earlier
/// packets.
const ACKS_REPEATED: usize = 4;

/// Interval at which the receiving host reports packets that its socket dropped.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Header size of a packet with a message; size and interval of flow control updates on a lane without data.
const HEADER_BYTES: u64 = 60;
const UPDATE_BYTES: u64 = 20;
const UPDATE_EVERY: Duration = Duration::from_millis(20);

/// Size of an acknowledgement on the wire.
const ACK_BYTES: usize = 80;

/// Number of later packets after which a gap is a loss, and the time allowed for reordering.
const LATER_PACKETS: u64 = 100;
const REORDERING: Duration = Duration::from_millis(7);

/// Longest time that a pacer catches up.
const BURST: Duration = Duration::from_millis(2);
