//! Rate control of this project as the congestion controller of the QUIC engine.
//!
//! The engine counts UDP payload, and [`sterna_proto::rate`] counts bytes on the wire. This module converts between
//! them.

use std::any::Any;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use parking_lot::{Mutex, MutexGuard};
use sterna_proto::rate::{AckBatch, AckedPacket, LaneControl, RateContract, RateState, Terms};
use sterna_proto::{BitRate, ByteCount};

use crate::lane::ReceiveMemory;
use crate::sys;

use super::share::PathShare;
use super::shared_rate::{Seat, SharedRate};
use super::undelivered::Undelivered;

/// State that a lane and its controller share: the seat, and figures for other threads.
#[derive(Debug)]
pub(super) struct Pace {
    seat: Mutex<Seat>,
    rtt_min_micros: AtomicU64,
    window_bytes: AtomicU64,
    in_flight_bytes: AtomicU64,
    rate_bytes: AtomicU64,
    /// True while no thread gives the lane data to send.
    is_dry: AtomicBool,
    /// True from the time a control frame goes to the engine until the next packet is sent.
    is_asked: AtomicBool,
    pub(super) undelivered: Undelivered,
    /// Datagrams that may be sent twice: at the start of the lane, and now; see [`Pace::repeats`].
    greetings: AtomicU64,
    repeats: AtomicU64,
    overhead_bytes: AtomicU64,
    /// Socket of the lane once its peer is proven, and the number of packets that the socket had dropped by then.
    socket: OnceLock<(Arc<UdpSocket>, u32)>,
    /// Time since `born`, in microseconds, at which data was last acknowledged or first in flight.
    heard_micros: AtomicU64,
    born: Instant,
    /// Window for probes of a silent path, in UDP payload; 0 while acknowledgements arrive.
    probe_window: AtomicU64,
}

impl Pace {
    pub(super) fn new(rate: &SharedRate) -> Arc<Self> {
        Arc::new(Self {
            seat: Mutex::new(Seat::take(rate)),
            rtt_min_micros: AtomicU64::new(0),
            window_bytes: AtomicU64::new(0),
            in_flight_bytes: AtomicU64::new(0),
            rate_bytes: AtomicU64::new(0),
            is_dry: AtomicBool::new(true),
            is_asked: AtomicBool::new(false),
            undelivered: Undelivered::default(),
            greetings: AtomicU64::new(REPEATS_GREETING),
            repeats: AtomicU64::new(0),
            overhead_bytes: AtomicU64::new(0),
            socket: OnceLock::new(),
            heard_micros: AtomicU64::new(0),
            born: Instant::now(),
            probe_window: AtomicU64::new(0),
        })
    }

    /// Makes room for one more packet when nothing has been acknowledged for a while. Returns true if there is room
    /// now.
    ///
    /// The engine's probes become rarer, up to 10 s apart, and lost data fills the window. One packet every
    /// [`PROBE_EVERY`] finds a path that works again within that time and a round trip. A lane sends 4 such packets
    /// per second of an outage.
    pub(super) fn make_room_to_probe(&self) -> bool {
        let heard = Duration::from_micros(self.heard_micros.load(Ordering::Relaxed));
        let in_flight = self.in_flight_bytes.load(Ordering::Relaxed);
        let is_silent = self.born.elapsed().saturating_sub(heard) > PROBE_AFTER + self.rtt_min() * 2;
        if in_flight == 0 || !is_silent {
            return false;
        }
        self.probe_window.store(in_flight + PROBE_BYTES, Ordering::Relaxed);
        true
    }

    /// Records the socket on which the lane has come up.
    pub(super) fn set_socket(&self, socket: &Arc<UdpSocket>) {
        let dropped = sys::socket_memory(socket).unwrap_or_default().dropped_packets;
        // Set once, when the lane comes up.
        let _ = self.socket.set((Arc::clone(socket), dropped));
    }

    /// Returns the receiving side of the socket: its unread data, and the packets dropped since the lane came up.
    pub(super) fn receive_memory(&self) -> ReceiveMemory {
        let Some((socket, before)) = self.socket.get() else { return ReceiveMemory::default() };
        let memory = sys::socket_memory(socket).unwrap_or_default();
        ReceiveMemory {
            unread: memory.receive_used,
            buffer: memory.receive_limit,
            window: ByteCount(0),
            dropped: u64::from(memory.dropped_packets.wrapping_sub(*before)),
            socket: Arc::as_ptr(socket) as usize,
        }
    }

    /// Records that the receiving host dropped `packets`.
    pub(super) fn handle_overrun(&self, packets: u64) {
        self.seat().rate.lock().handle_overrun(Instant::now(), packets);
    }

    fn note_heard(&self) {
        let micros = u64::try_from(self.born.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.heard_micros.store(micros, Ordering::Relaxed);
        self.probe_window.store(0, Ordering::Relaxed);
    }

    /// Moves the lane to the rate of another path, unless it is there already.
    pub(super) fn join(&self, rate: &SharedRate) {
        if self.seat().rate.is(rate) {
            return;
        }
        let seat = Seat::take(rate);
        *self.seat() = seat;
    }

    /// Returns the lanes of its path.
    pub(super) fn share(&self) -> Arc<PathShare> {
        self.seat().rate.share()
    }

    /// Records if the lane has no data to send now. The engine alone cannot distinguish this from a full send
    /// window.
    pub(super) fn set_dry(&self, is_dry: bool) {
        self.is_dry.store(is_dry, Ordering::Relaxed);
    }

    /// Returns the smallest RTT seen; zero while unknown.
    pub(super) fn rtt_min(&self) -> Duration {
        Duration::from_micros(self.rtt_min_micros.load(Ordering::Relaxed))
    }

    /// Returns the window in bytes on the wire.
    pub(super) fn window(&self) -> ByteCount {
        ByteCount(self.window_bytes.load(Ordering::Relaxed))
    }

    /// Returns the bytes in flight.
    pub(super) fn in_flight(&self) -> ByteCount {
        ByteCount(self.in_flight_bytes.load(Ordering::Relaxed))
    }

    /// Returns the state of the rate of the lane's path.
    pub(super) fn rate_state(&self) -> RateState {
        self.seat().rate.lock().control().state()
    }

    /// Returns the current window, bytes in flight and rate.
    pub(super) fn state(&self) -> PaceState {
        let rate = self.rate_bytes.load(Ordering::Relaxed).saturating_mul(8);
        PaceState { window: self.window(), in_flight: self.in_flight(), rate: BitRate(rate) }
    }

    /// Returns true if a transmit of `datagrams` datagrams and `bytes` payload is to be sent twice.
    ///
    /// When a lane has no more data, no later packet reveals a loss, and each loss costs two round trips. At 660 ms
    /// and 1 % loss the end of a file took 2.5 s. The rate is unused then. So the last packets, single packets and
    /// the first packets of a lane are sent twice; the peer drops the second copy unread.
    ///
    /// Acknowledgements are sent once: each repeats the content of the ones before it, and they fill a return path
    /// that is a thousand times narrower. Packets of a listener to an address that is not proven yet are sent once
    /// too. At most three times the received bytes may go there (RFC 9000, section 8.1), and the engine does not
    /// count copies. Copies are limited to [`REPEATS_TAIL`] per acknowledgement.
    pub(super) fn repeats(&self, now: Instant, datagrams: u64, bytes: u64) -> bool {
        let spend = |budget: &AtomicU64| {
            budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(datagrams)).is_ok()
        };
        let granted = spend(&self.greetings) || spend(&self.repeats);
        if granted {
            let seat = self.seat();
            let wire_bytes = bytes + datagrams * self.overhead_bytes.load(Ordering::Relaxed);
            seat.rate.lock().handle_sent(seat.key, now, wire_bytes);
        }
        granted
    }

    /// Records that a control frame goes to the engine now. The engine alone cannot distinguish its packet from an
    /// acknowledgement.
    pub(super) fn note_control(&self) {
        self.is_asked.store(true, Ordering::Relaxed);
    }

    /// Allows copies of the packets sent now: nothing in flight would reveal their loss.
    fn repeat_alone(&self) {
        self.repeats.fetch_max(REPEATS_ALONE, Ordering::Relaxed);
    }

    /// Allows copies of the next packets, because they are the last.
    pub(super) fn repeat_last(&self) {
        self.repeats.store(REPEATS_TAIL, Ordering::Relaxed);
    }

    fn seat(&self) -> MutexGuard<'_, Seat> {
        self.seat.lock()
    }

    fn set_packet_bytes(&self, bytes: u64) {
        self.seat().rate.lock().set_packet_bytes(bytes);
    }

    /// Reports an event to the path; returns the terms that the path allows now.
    fn handle_news(&self, now: Instant, news: News<'_>) -> Terms {
        let seat = self.seat();
        let mut path = seat.rate.lock();
        match news {
            News::Nothing => {}
            News::Sent { wire_bytes, has_train_paused } => {
                path.handle_sent(seat.key, now, wire_bytes);
                if has_train_paused {
                    path.handle_train_pause(seat.key);
                }
            }
            News::Heard(batch) => path.handle_batch(seat.key, now, batch),
        }
        path.terms(seat.key, now)
    }
}

/// Event that a lane reports to its path.
enum News<'a> {
    Nothing,
    Sent { wire_bytes: u64, has_train_paused: bool },
    Heard(&'a AckBatch),
}

/// State of a lane's pace.
#[derive(Clone, Copy, Debug)]
pub(super) struct PaceState {
    /// Window of the controller, in bytes on the wire.
    pub(super) window: ByteCount,
    /// Bytes in flight.
    pub(super) in_flight: ByteCount,
    /// Pacing rate.
    pub(super) rate: BitRate,
}

/// Creates the controller of one lane.
#[derive(Debug)]
pub(super) struct PaceFactory {
    /// Pace of the lane at a client, which has one lane; `None` at a listener, whose lanes each make one.
    pub(super) pace: Mutex<Option<Arc<Pace>>>,
    pub(super) expected_rtt: Option<Duration>,
    /// Bytes of IP and UDP headers of each datagram.
    pub(super) overhead_bytes: u64,
}

impl ControllerFactory for PaceFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let held = self.pace.lock().clone();
        let contract = RateContract { expected_rtt: self.expected_rtt, ..RateContract::default() };
        let pace = held.unwrap_or_else(|| Pace::new(&SharedRate::new(contract)));
        pace.overhead_bytes.store(self.overhead_bytes, Ordering::Relaxed);
        let mtu = u64::from(current_mtu);
        pace.set_packet_bytes(mtu + self.overhead_bytes);
        let control = LaneControl::new(pace.handle_news(now, News::Nothing));
        let overhead_bytes = self.overhead_bytes;
        let mut controller = PaceController {
            last_sent: None,
            pace,
            control,
            overhead_bytes,
            mtu,
            window: 0,
            pacing_rate: 0,
            smoothed: Smoothed::default(),
        };
        controller.refresh();
        Box::new(controller)
    }
}

/// Controller of one lane, owned by its connection.
#[derive(Clone, Debug)]
pub(super) struct PaceController {
    pace: Arc<Pace>,
    control: LaneControl,
    overhead_bytes: u64,
    mtu: u64,
    /// Both in UDP payload, for the engine, which reads them with each datagram.
    window: u64,
    pacing_rate: u64,
    smoothed: Smoothed,
    last_sent: Option<Instant>,
}

/// Smoothed RTT of the engine, as far as a controller gets it: the value before each acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
struct Smoothed {
    /// Smoothed RTT; `None` before the first acknowledgement.
    rtt: Option<Duration>,
    /// Last acknowledged packet: the time since it was sent, and the smoothed RTT of the engine.
    last: Option<(Duration, Duration)>,
}

impl Smoothed {
    fn handle_acked(&mut self, sample: Duration, before: Duration) {
        self.last = Some((sample, before));
    }

    /// Ends an acknowledgement. The engine adds its sample now; it takes the first sample unchanged.
    fn end_acks(&mut self) {
        if let Some((sample, before)) = self.last.take() {
            self.rtt = Some(if self.rtt.is_none() { sample } else { before });
        }
    }
}

/// Returns the window that makes the engine pace at `rate` (bytes/s of payload) in bursts; `None` where a rate
/// works better.
///
/// With a rate, the engine (noq-proto 1.4) waits for the credit of one packet. From about 300 Mbit/s on, this wait
/// takes less time than sending one. The engine then never rests and sends one or two packets per system call:
/// 7.5 s of CPU time for 1 GB at 1 Gbit/s. With a window, it sends five quarters of the window in a smoothed RTT,
/// and waits until 1.6 ms of that may leave at once. A window of few bytes would be rounded. The burst of a very
/// fast lane, whose packets the engine limits, is over before a timer fires.
fn burst_window(rate: u64, rtt: Duration, mtu: u64) -> Option<u64> {
    let window = (rate as f64 * rtt.as_secs_f64() / REFILL) as u64;
    (window >= BURST_WINDOW_MIN && rate <= BURST_PACKETS_PER_SECOND * mtu).then_some(window)
}

impl PaceController {
    /// Returns the pace of the lane that this controller serves.
    pub(super) fn pace(&self) -> Arc<Pace> {
        Arc::clone(&self.pace)
    }

    /// Returns true if the rate would have let the lane send earlier: it had nothing to send.
    fn has_rested(&self, now: Instant) -> bool {
        let packet = Duration::from_secs_f64(self.mtu as f64 / self.pacing_rate as f64);
        self.last_sent.is_none_or(|last| now.saturating_duration_since(last) > packet * RESTED_PACKETS)
    }

    fn handle_news(&mut self, now: Instant, news: News<'_>) {
        self.control.follow(self.pace.handle_news(now, news));
        self.refresh();
    }

    fn refresh(&mut self) {
        let payload = self.mtu as f64 / (self.mtu + self.overhead_bytes) as f64;
        let rate = self.control.rate().0 as f64 / 8.0 * payload;
        self.pacing_rate = (rate as u64).max(1);
        let window = self.control.window().0;
        self.window = ((window as f64 * payload) as u64).max(2 * self.mtu);
        self.pace.window_bytes.store(window, Ordering::Relaxed);
        self.pace.rate_bytes.store(self.pacing_rate, Ordering::Relaxed);
    }
}

impl Controller for PaceController {
    fn on_sent(&mut self, now: Instant, bytes: u64, largest_pn: u64) {
        let has_rested = self.has_rested(now);
        self.last_sent = Some(now);
        if self.pace.in_flight_bytes.fetch_add(bytes, Ordering::Relaxed) == 0 {
            self.pace.note_heard();
            if has_rested && self.pace.undelivered.any() {
                self.pace.repeat_alone();
            }
        }
        if self.pace.is_asked.swap(false, Ordering::Relaxed) && self.pace.is_dry.load(Ordering::Relaxed) {
            self.pace.repeat_alone();
        }
        let datagrams = bytes.div_ceil(self.mtu);
        let wire_bytes = bytes + datagrams * self.overhead_bytes;
        self.control.handle_sent(now, largest_pn, wire_bytes);
        let has_train_paused = self.control.take_train_pause();
        self.handle_news(now, News::Sent { wire_bytes, has_train_paused });
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, pn: u64, _app_limited: bool, rtt: &RttEstimator) {
        self.smoothed.handle_acked(now.saturating_duration_since(sent), rtt.get());
        let packet = AckedPacket { number: pn, sent, bytes: bytes + self.overhead_bytes };
        self.control.handle_acked(now, packet);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, _largest: Option<u64>) {
        self.smoothed.end_acks();
        let ran_dry = app_limited && self.pace.is_dry.load(Ordering::Relaxed);
        let batch = self.control.take_batch(ran_dry);
        self.handle_news(now, News::Heard(&batch));
        let rtt_min = u64::try_from(self.control.terms().rtt_min.as_micros()).unwrap_or(u64::MAX);
        self.pace.rtt_min_micros.store(rtt_min, Ordering::Relaxed);
        self.pace.in_flight_bytes.store(in_flight, Ordering::Relaxed);
        self.pace.note_heard();
        let is_tail = ran_dry && in_flight > 0 && self.pace.undelivered.any();
        self.pace.repeats.store(if is_tail { REPEATS_TAIL } else { 0 }, Ordering::Relaxed);
    }

    fn on_packet_lost(&mut self, _lost_bytes: u16, pn: u64, _now: Instant) {
        self.control.handle_lost(pn);
    }

    /// Ignores losses, which have been counted packet by packet. A run of losses ("persistent congestion") is an
    /// outage here, which [`LaneControl`] detects by silence. Only an ECN mark of the network is new information.
    fn on_congestion_event(
        &mut self,
        _now: Instant,
        _sent: Instant,
        _is_persistent_congestion: bool,
        is_ecn: bool,
        _lost_bytes: u64,
        largest_lost_pn: u64,
    ) {
        if is_ecn {
            self.control.handle_lost(largest_lost_pn);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = u64::from(new_mtu);
        self.pace.set_packet_bytes(self.mtu + self.overhead_bytes);
        self.refresh();
    }

    fn window(&self) -> u64 {
        self.window.max(self.pace.probe_window.load(Ordering::Relaxed))
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        match self.smoothed.rtt.and_then(|rtt| burst_window(self.pacing_rate, rtt, self.mtu)) {
            Some(window) => metrics.congestion_window = window,
            None => (metrics.congestion_window, metrics.pacing_rate) = (self.window, Some(self.pacing_rate)),
        }
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.window
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Windows that the engine sends in a smoothed RTT (noq-proto 1.4, after RFC 9002, section 7.7).
const REFILL: f64 = 1.25;

/// Smallest window to pace by, in bytes. Reason: below it, rounding to whole bytes changes it by more than a
/// thousandth.
const BURST_WINDOW_MIN: u64 = 1000;

/// Packets per second up to which a lane is paced in bursts. Reason: the engine's bursts have at most 256 packets,
/// and waits of less than a millisecond may end late (`clock`).
const BURST_PACKETS_PER_SECOND: u64 = 200_000;

/// Time without an acknowledgement, in addition to two round trips, after which a path is probed; and the interval
/// of probes. Reason: a path that works again is to be used within about a second.
const PROBE_AFTER: Duration = Duration::from_millis(250);
pub(super) const PROBE_EVERY: Duration = Duration::from_millis(250);

/// Room for a probe, in bytes: one packet of any size.
const PROBE_BYTES: u64 = 9000;

/// First datagrams of a lane that are sent twice: the handshake, the hello and the data right after it, or the
/// answers.
const REPEATS_GREETING: u64 = 12;

/// Datagrams sent twice when nothing else is in flight: an outcome, or a request. Reason: no later packet reveals
/// their loss, which costs two round trips and more.
const REPEATS_ALONE: u64 = 2;

/// Packets that could have been sent since the last one, for a lane to have rested. Reason: on a short and slow
/// path each packet finds nothing in flight, and with its copy takes the time of two. A lane of 5 Mbit/s over
/// 0.1 ms stayed at half of its rate.
const RESTED_PACKETS: u32 = 4;

/// Datagrams sent twice per acknowledgement once a lane has no more data. Reason: an acknowledgement covers 50 to
/// 200 packets, of which some percent were lost. More packets would be new data, which needs no copy.
const REPEATS_TAIL: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_for_lanes_that_a_wait_of_one_packet_would_keep_busy() {
        let window = |megabits: u64, rtt_ms: f64, mtu| {
            burst_window(megabits * 125_000, Duration::from_secs_f64(rtt_ms / 1e3), mtu).map(|window| window as f64)
        };
        for (megabits, rtt_ms, mtu) in [(50, 660.0, 1472), (250, 0.1, 1472), (1000, 50.0, 1472), (9000, 150.0, 8972)] {
            let sent = window(megabits, rtt_ms, mtu).unwrap() * REFILL / rtt_ms * 1e3 * 8.0 / 1e6;
            assert!((sent / megabits as f64 - 1.0).abs() < 0.001, "{sent} of {megabits} Mbit/s over {rtt_ms} ms");
        }
        assert_eq!(window(1, 0.1, 1472), None, "a window of ten bytes");
        assert_eq!(window(10_000, 50.0, 1472), None, "a burst that is over before a timer ends");
    }

    #[test]
    fn the_smoothed_rtt_is_the_first_sample_and_then_that_of_the_engine() {
        let ms = Duration::from_millis;
        let mut smoothed = Smoothed::default();
        smoothed.end_acks();
        assert_eq!(smoothed.rtt, None, "nothing was acknowledged");
        for (sample, before, known) in [(50, 333, 50), (80, 50, 50), (80, 54, 54)] {
            smoothed.handle_acked(ms(sample), ms(before));
            smoothed.end_acks();
            assert_eq!(smoothed.rtt, Some(ms(known)));
        }
    }

    #[test]
    fn packets_at_the_pace_go_once_although_nothing_else_is_in_flight() {
        let pace = Pace::new(&SharedRate::new(RateContract::of_rate(Some(BitRate::megabits(5)))));
        let factory = PaceFactory { pace: Mutex::new(Some(Arc::clone(&pace))), expected_rtt: None, overhead_bytes: 28 };
        let (mut now, mtu) = (Instant::now(), 1472);
        let mut controller = Arc::new(factory).build(now, mtu);
        pace.greetings.store(0, Ordering::Relaxed);
        pace.undelivered.add();
        let mut goes_twice = |packets: u32, number| {
            now += Duration::from_micros(2400) * packets;
            pace.in_flight_bytes.store(0, Ordering::Relaxed);
            controller.on_sent(now, mtu.into(), number);
            pace.repeats(now, 1, mtu.into())
        };
        assert!(goes_twice(1, 1), "the first");
        pace.repeats.store(0, Ordering::Relaxed);
        assert!(!goes_twice(1, 2) && !goes_twice(2, 3), "more follow");
        assert!(goes_twice(10, 4), "it was alone");
    }
}
