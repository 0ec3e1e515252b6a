//! The router: one thread that moves packets between TUN devices according to the model.
//!
//! Reads the packets that the hosts send, asks the [`Direction`] for the verdict on each, and writes each at its due
//! time. Refuses to make any decision about a packet, except for the ICMP answer to an MTU drop and the SYN edit. Time
//! enters by one clock read per turn. Bytes enter the ring of their direction and leave from there without a copy.
//!
//! [`spawn`] starts the loop. A packet, a due time or the stop signal wakes the loop. [`READS_PER_TURN`] limits each
//! turn. The loop ends when it is stopped or when a device fails.
//!
//! While packets flow, the loop takes a turn every *quantum* (a hundredth of the round trip, at most 200 us). Packets
//! that arrive together are then forwarded together, as network cards do. On a quiet path a packet is forwarded at its
//! exact time.

mod ring;

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::model::{Delivery, Direction, DirectionCounters, DropCause, InFlight, LinkModel, Verdict};
use crate::packet::{
    HEADERS_BYTES_MAX, OFFLOAD_HEADER_BYTES, OffloadHeader, Shape, SynEdit, edit_syn, flow, forbids_fragments,
    fragmentation_needed,
};
use crate::sys;
use ring::{PacketRing, RECORD_BYTES_MAX};

/// Counters of a lab since its start. `--counters` writes them as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counters {
    /// Seconds since the start.
    pub elapsed_s: f64,
    /// Counters of the router.
    pub router: RouterCounters,
    /// Counters of each network, in order.
    pub networks: Vec<NetworkCounters>,
}

/// Cost and timing accuracy of the router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RouterCounters {
    /// CPU time of the router's thread, seconds; includes the hosts' receive path up to the socket.
    pub cpu_s: f64,
    /// Turns of the loop.
    pub turns: u64,
    /// Packets and super-packets read from hosts.
    pub reads: u64,
    /// Packets and super-packets written to hosts.
    pub writes: u64,
    /// Packets (as on the wire) written to hosts.
    pub delivered_packets: u64,
    /// Mean delay of packets after their due time in the model, microseconds.
    pub late_mean_us: f64,
    /// Largest delay of a packet after its due time, microseconds.
    pub late_max_us: f64,
    /// Packets that were not IPv4 or not well-formed.
    pub malformed: u64,
    /// Packets lost because the router's memory was full: more than the model permits in flight.
    pub memory_full: u64,
    /// Writes that the receiving host's kernel refused.
    pub refused: u64,
    /// ICMP "fragmentation needed" answers.
    pub icmp_sent: u64,
    /// SYN packets from which an option was removed.
    pub options_stripped: u64,
    /// SYN packets whose MSS was lowered.
    pub mss_clamped: u64,
}

/// Both directions of one network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetworkCounters {
    /// From host `a` to host `b`.
    pub forward: DirectionCounters,
    /// From host `b` to host `a`.
    pub reverse: DirectionCounters,
}

/// The two ends of one network: the hosts' TUN devices.
pub(crate) struct Attachment {
    pub(crate) model: LinkModel,
    pub(crate) a: OwnedFd,
    pub(crate) b: OwnedFd,
    /// Source address of ICMP answers.
    pub(crate) router_address: [u8; 4],
}

/// A running router.
pub(crate) struct RouterHandle {
    thread: Option<JoinHandle<io::Result<()>>>,
    /// Write end of the stop pipe; closing it stops the router.
    stop: Option<OwnedFd>,
    counters: Arc<Mutex<Counters>>,
    /// One switch for each network. True while the network is cut.
    cut: Arc<[AtomicBool]>,
}

/// Starts the router's thread.
pub(crate) fn spawn(attachments: Vec<Attachment>) -> io::Result<RouterHandle> {
    let (watched, stop) = rustix::pipe::pipe()?;
    let counters = Arc::new(Mutex::new(Counters::default()));
    let cut: Arc<[AtomicBool]> = attachments.iter().map(|_| AtomicBool::new(false)).collect();
    let mut router = Router::new(attachments, watched, Arc::clone(&counters), Arc::clone(&cut));
    let thread = std::thread::Builder::new().name("lab-router".into()).spawn(move || {
        sys::make_thread_prompt();
        // On machines that do not permit pinning, only precision suffers.
        drop(crate::cpus::keep_to_one());
        router.run()
    })?;
    Ok(RouterHandle { thread: Some(thread), stop: Some(stop), counters, cut })
}

impl RouterHandle {
    /// Returns counters that are at most [`PUBLISH_EVERY`] old.
    pub(crate) fn counters(&self) -> Counters {
        self.counters.lock().clone()
    }

    /// Cuts both directions of network `network`, or connects them again. Packets that are in flight still arrive.
    pub(crate) fn set_cut(&self, network: usize, cut: bool) {
        // The router reads the switch when it reads the next packet. No other data depends on the order.
        self.cut[network].store(cut, Ordering::Relaxed);
    }

    /// Stops the router and returns the final counters.
    pub(crate) fn stop(&mut self) -> io::Result<Counters> {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_| io::Error::other("the router's thread panicked"))??;
        }
        Ok(self.counters())
    }
}

impl Drop for RouterHandle {
    fn drop(&mut self) {
        // Nobody reads the counters and errors of a lab that is dropped without `finish`.
        drop(self.stop());
    }
}

struct Router {
    legs: Vec<Leg>,
    /// TUN devices: `a` and `b` of each network, in order.
    devices: Vec<OwnedFd>,
    watched: OwnedFd,
    start: Instant,
    quantum: Duration,
    published: Duration,
    /// True after packets moved since the counters were published.
    unpublished: bool,
    figures: RouterCounters,
    late_ns_total: u64,
    shared: Arc<Mutex<Counters>>,
    /// One switch for each network. True while the network is cut.
    cut: Arc<[AtomicBool]>,
    /// Accepted segments of the current packet. The buffer is reused to avoid an allocation per packet.
    accepted: Vec<(u16, Delivery)>,
    /// Buffer for a packet that is split, or that no ring has room for.
    scratch: Vec<u8>,
}

/// One direction of one network.
struct Leg {
    direction: Direction,
    flight: InFlight<Segment>,
    ring: PacketRing,
    from: usize,
    to: usize,
    syn_edit: SynEdit,
    /// MTU and source address of ICMP answers, if the path answers packets that are too large.
    icmp: Option<(u16, [u8; 4])>,
}

/// One packet on the wire: a segment of a record in the ring.
#[derive(Clone, Copy, Debug)]
struct Segment {
    record: u64,
    index: u16,
    due_us: u64,
}

/// Segments `[first, end)` of a record that are due together.
struct Run {
    record: u64,
    first: u16,
    end: u16,
}

impl Router {
    fn new(
        attachments: Vec<Attachment>,
        watched: OwnedFd,
        shared: Arc<Mutex<Counters>>,
        cut: Arc<[AtomicBool]>,
    ) -> Self {
        let shortest = attachments.iter().map(|n| n.model.rtt).min().unwrap_or_default();
        let mut legs = Vec::new();
        let mut devices = Vec::new();
        for network in attachments {
            let (a, b) = (devices.len(), devices.len() + 1);
            legs.push(Leg::new(&network, Direction::forward(&network.model), a, b));
            legs.push(Leg::new(&network, Direction::reverse(&network.model), b, a));
            devices.extend([network.a, network.b]);
        }
        Self {
            legs,
            devices,
            watched,
            start: Instant::now(),
            quantum: (shortest / QUANTA_PER_RTT).clamp(QUANTUM_MIN, QUANTUM_MAX),
            published: Duration::ZERO,
            unpublished: false,
            figures: RouterCounters::default(),
            late_ns_total: 0,
            shared,
            cut,
            accepted: Vec::new(),
            scratch: vec![0; RECORD_BYTES_MAX],
        }
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            let began = self.start.elapsed();
            self.figures.turns += 1;
            let reads = self.figures.reads;
            let writes = self.figures.writes;
            for leg in 0..self.legs.len() {
                self.take_in(leg)?;
            }
            let now = self.start.elapsed();
            for leg in 0..self.legs.len() {
                self.hand_on(leg, now);
            }
            let busy = self.figures.reads != reads || self.figures.writes != writes;
            self.unpublished |= busy;
            if now.saturating_sub(self.published) >= PUBLISH_EVERY {
                self.publish(now);
            }
            if self.sleep(busy.then_some(began + self.quantum))? {
                // Packets sent before the end are still counted.
                for leg in 0..self.legs.len() {
                    self.take_in(leg)?;
                }
                self.publish(self.start.elapsed());
                return Ok(());
            }
        }
    }

    /// Reads the packets sent by the host at the start of this leg, at most [`READS_PER_TURN`].
    fn take_in(&mut self, leg: usize) -> io::Result<()> {
        // `legs` holds both directions of each network, in order.
        let cut = self.cut[leg / 2].load(Ordering::Relaxed);
        for _ in 0..READS_PER_TURN {
            let leg = &mut self.legs[leg];
            leg.direction.set_cut(cut);
            let device = &self.devices[leg.from];
            let spare = leg.ring.spare();
            let has_room = spare.is_some();
            let len = match rustix::io::read(device, spare.unwrap_or(&mut self.scratch)) {
                Ok(len) => len,
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            self.figures.reads += 1;
            if !has_room {
                self.figures.memory_full += 1;
                continue;
            }
            let now = self.start.elapsed();
            leg.admit(now, len, device, &mut self.figures, &mut self.accepted, &mut self.scratch);
        }
        Ok(())
    }

    /// Writes all packets that are due by `now` to the host at the end of this leg.
    fn hand_on(&mut self, leg: usize, now: Duration) {
        let leg = &mut self.legs[leg];
        let device = &self.devices[leg.to];
        let mut run: Option<Run> = None;
        while let Some(segment) = leg.flight.poll(now) {
            let late_ns = crate::model::nanos(now).saturating_sub(segment.due_us * 1000);
            self.late_ns_total += late_ns;
            self.figures.late_max_us = self.figures.late_max_us.max(late_ns as f64 / 1000.0);
            self.figures.delivered_packets += 1;
            match &mut run {
                Some(run) if run.record == segment.record && run.end == segment.index => run.end += 1,
                _ => {
                    if let Some(ready) = run.take() {
                        leg.write(&ready, device, &mut self.figures);
                    }
                    run = Some(Run { record: segment.record, first: segment.index, end: segment.index + 1 });
                }
            }
        }
        if let Some(ready) = run {
            leg.write(&ready, device, &mut self.figures);
        }
    }

    /// Sleeps until the next event, or until `busy_until` while packets flow. Returns true if the router must stop.
    fn sleep(&self, busy_until: Option<Duration>) -> io::Result<bool> {
        let now = self.start.elapsed();
        let due = self.legs.iter().filter_map(|leg| leg.flight.poll_timeout()).min();
        let publish = self.unpublished.then_some(self.published + PUBLISH_EVERY);
        let wake = busy_until.or_else(|| due.into_iter().chain(publish).min());
        let timeout = wake.map(|at| timespec(at.saturating_sub(now)));
        let mut watched = vec![PollFd::new(&self.watched, PollFlags::IN)];
        if busy_until.is_none() {
            watched.extend(self.devices.iter().map(|device| PollFd::new(device, PollFlags::IN)));
        }
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!watched[0].revents().is_empty()),
            Err(error) => Err(error.into()),
        }
    }

    fn publish(&mut self, now: Duration) {
        self.published = now;
        self.unpublished = false;
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        self.figures.cpu_s = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
        self.figures.late_mean_us = self.late_ns_total as f64 / 1000.0 / self.figures.delivered_packets.max(1) as f64;
        let networks = self.legs.chunks_exact(2).map(|both| NetworkCounters {
            forward: *both[0].direction.counters(),
            reverse: *both[1].direction.counters(),
        });
        let counters = Counters { elapsed_s: now.as_secs_f64(), router: self.figures, networks: networks.collect() };
        *self.shared.lock() = counters;
    }
}

impl Leg {
    fn new(network: &Attachment, direction: Direction, from: usize, to: usize) -> Self {
        let model = &network.model;
        let ring = PacketRing::new(direction.bytes_in_flight_max() * RING_SLACK_NUMERATOR / 4 + RING_SPARE_BYTES);
        let icmp = model.icmp.then(|| (model.path_mtu.unwrap_or(model.mtu), network.router_address));
        Self { direction, flight: InFlight::new(), ring, from, to, syn_edit: SynEdit::of(model), icmp }
    }

    /// Decides about the record of `len` bytes that was just read into the ring's spare room.
    fn admit(
        &mut self,
        now: Duration,
        len: usize,
        answer_to: impl AsFd,
        figures: &mut RouterCounters,
        accepted: &mut Vec<(u16, Delivery)>,
        scratch: &mut [u8],
    ) {
        // `spare` returned this room for the last read, and no record was kept since then.
        let Some(record) = self.ring.spare() else { return };
        let Some(offload) = OffloadHeader::read(&record[..len]) else {
            figures.malformed += 1;
            return;
        };
        let packet = &mut record[OFFLOAD_HEADER_BYTES..len];
        let Some(shape) = Shape::read(&offload, packet) else {
            figures.malformed += 1;
            return;
        };
        if self.syn_edit.any() {
            let change = edit_syn(&offload, packet, &self.syn_edit);
            figures.options_stripped += u64::from(change.stripped);
            figures.mss_clamped += u64::from(change.clamped);
        }
        let flow = flow(packet);
        accepted.clear();
        let mut too_large = None;
        let mut uses = 0;
        for index in 0..shape.segment_count() {
            let wire_bytes = shape.wire_bytes(index);
            match self.direction.offer(now, wire_bytes, flow) {
                Verdict::Deliver(delivery) => {
                    uses += 1 + u32::from(delivery.copy_at.is_some());
                    accepted.push((index, delivery));
                }
                Verdict::Drop(DropCause::Mtu) => too_large = too_large.or(Some(wire_bytes)),
                Verdict::Drop(_) => {}
            }
        }
        if let (Some(wire_bytes), Some((mtu, router))) = (too_large, self.icmp) {
            let reply = forbids_fragments(packet).then(|| fragmentation_needed(packet, wire_bytes, router, mtu));
            if let Some(reply) = reply.flatten() {
                let header = OffloadHeader::default().write();
                // A host that cannot accept the answer does not get it, as on a real path.
                let _ = rustix::io::writev(answer_to, &[IoSlice::new(&header), IoSlice::new(&reply)]);
                figures.icmp_sent += 1;
            }
        }
        if accepted.is_empty() {
            return;
        }
        if accepted.len() * 4 <= usize::from(shape.segment_count()) * 3 {
            self.keep_parts(len, shape, accepted, figures, scratch);
            return;
        }
        let record = self.ring.keep(len, shape, uses);
        for (index, delivery) in accepted.drain(..) {
            self.launch(record, index, &delivery);
        }
    }

    /// Keeps only the accepted segments of a super-packet, each run of consecutive segments as a separate packet.
    ///
    /// Reason: a full queue or a policer drops segments out of super-packets, and whole super-packets would fill the
    /// ring.
    fn keep_parts(
        &mut self,
        len: usize,
        shape: Shape,
        accepted: &mut Vec<(u16, Delivery)>,
        figures: &mut RouterCounters,
        scratch: &mut [u8],
    ) {
        let Some(record) = self.ring.spare() else { return };
        scratch[..len].copy_from_slice(&record[..len]);
        let packet = &scratch[OFFLOAD_HEADER_BYTES..len];
        for stretch in accepted.chunk_by(|(one, _), (next, _)| one + 1 == *next) {
            let Some(room) = self.ring.spare() else {
                figures.memory_full += stretch.len() as u64;
                continue;
            };
            let (first, end) = (stretch[0].0, stretch[0].0 + stretch.len() as u16);
            let mut header = [0; HEADERS_BYTES_MAX];
            let (header_bytes, offload) = shape.run_header(packet, first, end, &mut header);
            let payload = &packet[shape.payload_range(first, end)];
            let payload_at = OFFLOAD_HEADER_BYTES + header_bytes;
            room[..OFFLOAD_HEADER_BYTES].copy_from_slice(&offload.write());
            room[OFFLOAD_HEADER_BYTES..payload_at].copy_from_slice(&header[..header_bytes]);
            room[payload_at..payload_at + payload.len()].copy_from_slice(payload);
            let part = shape.part(first, end);
            let uses = stretch.iter().map(|(_, delivery)| 1 + u32::from(delivery.copy_at.is_some())).sum();
            let record = self.ring.keep(payload_at + payload.len(), part, uses);
            for (index, delivery) in stretch {
                self.launch(record, index - first, delivery);
            }
        }
        accepted.clear();
    }

    fn launch(&mut self, record: u64, index: u16, delivery: &Delivery) {
        let segment = Segment { record, index, due_us: delivery.at.as_micros() as u64 };
        self.flight.push(delivery, segment);
        if let Some(copy_at) = delivery.copy_at {
            self.flight.push_at(copy_at, segment);
        }
    }

    /// Writes a run of segments as one packet and releases them.
    fn write(&mut self, run: &Run, device: impl AsFd, figures: &mut RouterCounters) {
        let (record, shape) = self.ring.record(run.record);
        let packet = &record[OFFLOAD_HEADER_BYTES..];
        let result = if run.first == 0 && run.end == shape.segment_count() {
            rustix::io::write(device, record)
        } else {
            let mut header = [0; HEADERS_BYTES_MAX];
            let (header_bytes, offload) = shape.run_header(packet, run.first, run.end, &mut header);
            let offload = offload.write();
            let parts = [
                IoSlice::new(&offload),
                IoSlice::new(&header[..header_bytes]),
                IoSlice::new(&packet[shape.payload_range(run.first, run.end)]),
            ];
            rustix::io::writev(device, &parts)
        };
        figures.writes += 1;
        figures.refused += u64::from(result.is_err());
        self.ring.release(run.record, u32::from(run.end - run.first));
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

/// Most packets read from one host in one turn, so that no host starves the others. One quantum delivers fewer packets
/// than this at 10 Gbit/s in super-packets, or at 1 Gbit/s in packets of 100 bytes.
const READS_PER_TURN: usize = 256;

/// Turns per round trip while packets flow. Limits the error of the round-trip time to 2 %.
const QUANTA_PER_RTT: u32 = 100;
/// Shorter turns cost more CPU time than they gain.
const QUANTUM_MIN: Duration = Duration::from_micros(20);
/// Longer turns would make the hosts' pacing and the router's timing coarser than a millisecond on a busy machine.
const QUANTUM_MAX: Duration = Duration::from_micros(200);

/// Interval at which counters are published.
const PUBLISH_EVERY: Duration = Duration::from_millis(100);

/// Memory of a direction relative to the model's maximum, in quarters. Covers headers and partly dropped super-packets.
const RING_SLACK_NUMERATOR: usize = 6;
/// Additional memory of a direction: the super-packets of one turn.
const RING_SPARE_BYTES: usize = 8 << 20;
