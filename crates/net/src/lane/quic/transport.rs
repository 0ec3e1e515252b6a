//! The settings of a QUIC lane, from what is known of its path.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use noq::{AckFrequencyConfig, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use noq_proto::HashedConnectionIdGenerator;
use sterna_proto::quantity::bandwidth_delay_product;
use sterna_proto::{BitRate, ByteCount};

use super::pace::{Pace, PaceFactory, PaceState};
use super::share::PathShare;
use super::stretch::{PREFIX_BYTES, STRETCH_BYTES};
use crate::identity::Identity;
use crate::lane::{BLOCK_HEADER_BYTES_MAX, BLOCK_TRAILER_BYTES_MAX, PIECE_BYTES};

/// What a lane is made for; see the fields of `QuicOptions` that have the same names.
#[derive(Clone, Debug)]
pub(super) struct PathHints {
    pub(super) rate: Option<BitRate>,
    pub(super) rtt: Option<Duration>,
    pub(super) memory: ByteCount,
    pub(super) idle_timeout: Duration,
    pub(super) payload_max: u16,
    /// Receive window of the lane until its path is known.
    pub(super) window: ByteCount,
    /// Stretches that the peer may have open until then.
    pub(super) stretches: u32,
}

impl PathHints {
    /// The same for a route that carries payloads up to `route`: probes beyond it are lost time.
    pub(super) fn through(mut self, route: Option<u16>) -> Self {
        self.payload_max = self.payload_max.min(route.unwrap_or(u16::MAX));
        self
    }
}

/// The settings of one lane (client: `pace` is its own) or of all lanes of a listener.
pub(super) fn transport(hints: &PathHints, peer: SocketAddr, pace: Option<Arc<Pace>>) -> TransportConfig {
    let mut config = TransportConfig::default();
    let rtt = hints.rtt.unwrap_or(Duration::ZERO);
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(hints.stretches))
        .stream_receive_window(varint(STREAM_WINDOW))
        .receive_window(varint(hints.window.0))
        .send_window(SEND_AHEAD.min(hints.memory.max(SEND_AHEAD)).0)
        // One block after the other: they become complete earlier and fewer are open.
        .send_fairness(false)
        .packet_threshold(packet_threshold(hints.rate))
        .time_threshold(time_threshold(hints.rtt))
        .mtu_discovery_config(Some(mtu_discovery(hints.payload_max)))
        .ack_frequency_config(Some(ack_frequency(hints.rate, rtt)))
        .keep_alive_interval(Some((hints.idle_timeout / 4).min(KEEP_ALIVE_MAX)))
        .max_idle_timeout(IdleTimeout::try_from(hints.idle_timeout).ok())
        .datagram_receive_buffer_size(None)
        .congestion_controller_factory(Arc::new(PaceFactory {
            pace: Mutex::new(pace),
            expected_rtt: hints.rtt,
            overhead_bytes: header_bytes(peer),
        }));
    if let Some(rtt) = hints.rtt {
        config.initial_rtt(rtt.mul_f32(1.25).max(INITIAL_RTT_MIN));
    }
    config
}

/// The settings of a client's endpoint. Its secrets are random: nobody asks it for a reset once it has ended.
pub(super) fn client_endpoint() -> EndpointConfig {
    with_payload_max(EndpointConfig::default())
}

/// The settings of the endpoint of socket `index` of a listener.
///
/// Its secrets come from the identity, so that an agent that was restarted can tell a lane of its former life that it is
/// gone (RFC 9000, section 10.3): the client redials at once and not after the idle timeout. Each socket has a reset key of its
/// own (section 21.11): a socket that does not know a lane of another one must not give away the token that ends it. The kernel
/// deals a peer to the same socket again as long as there are as many.
pub(super) fn listener_endpoint(identity: &Identity, index: usize) -> EndpointConfig {
    let secret = identity.reset_secret();
    let mut of_socket = blake3::Hasher::new_derive_key("sterna 2026-11-23 QUIC stateless reset of a socket");
    of_socket.update(secret).update(&(index as u64).to_le_bytes());
    let reset_key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, of_socket.finalize().as_bytes());
    let mut config = EndpointConfig::new(Arc::new(reset_key));
    let mut id_key = [0; 8];
    id_key.copy_from_slice(&blake3::derive_key("sterna 2026-11-21 QUIC connection ids", secret)[..8]);
    let id_key = u64::from_le_bytes(id_key);
    config.cid_generator(Arc::new(move || Box::new(HashedConnectionIdGenerator::from_key(id_key))));
    with_payload_max(config)
}

/// The same for any payload that a probe of the peer may try.
fn with_payload_max(mut config: EndpointConfig) -> EndpointConfig {
    // In range, so this cannot fail.
    let _ = config.max_udp_payload_size(PAYLOAD_MAX);
    config
}

/// Bytes of IP and UDP headers of each datagram to or from `peer`.
pub(super) fn header_bytes(peer: SocketAddr) -> u64 {
    if peer.ip().to_canonical().is_ipv4() { 28 } else { 48 }
}

/// How much may be given to the engine and not yet be acknowledged: what is in flight, a quarter of it for repeats, and what
/// goes within [`SEND_AHEAD_TIME`]; never more than five eighths of the controller's window, which is two products of the
/// path. Memory is this much. Reason for the first: a lane that is alone for its first round trips has all of the rate, and
/// would otherwise take a whole product of the path before the others come and do the same.
///
/// `lanes`: those of the path, which share what is given ahead.
pub(super) fn send_window(state: &PaceState, lanes: u32, memory: ByteCount) -> ByteCount {
    let soon = state.rate.bytes_in(SEND_AHEAD_TIME).0.saturating_add(state.in_flight.0 / 4 * 5);
    let least = share(SEND_AHEAD_MIN_ALL, lanes, SEND_AHEAD_MIN);
    let ahead = state.rate.bytes_in(SEND_RESERVE_TIME).clamp(least, share(SEND_AHEAD_ALL, lanes, SEND_AHEAD));
    (ByteCount(soon.min(state.window.0 / 8 * 5)) + ahead).min(memory.max(SEND_AHEAD))
}

/// How much the peer may send on a lane that the sink has not taken: three times what `rate` brings in a round trip, since what lies
/// behind a lost packet waits for more than one, at least what a lane brings at [`RATE_FIRST`] and [`RECEIVE_WINDOW_MIN`]; at most the
/// lane's part of [`receive_window_most`]. Memory is this much when the sink is slower than the path.
pub(super) fn receive_window(rate: BitRate, path: &PathShare, rtt: Duration, memory: ByteCount) -> ByteCount {
    let wanted = ByteCount(rate.bytes_in(rtt).0.saturating_mul(3));
    let most = receive_window_most(path.lanes(), path.most(), rtt);
    wanted.max(RATE_FIRST.bytes_in(rtt)).max(RECEIVE_WINDOW_MIN).min(most).min(memory)
}

/// The part that one of `lanes` lanes has of what they may have together: three times what their path has brought in a round trip
/// (`rate`), and as much again as lanes want that are new.
pub(super) fn receive_window_most(lanes: u32, rate: BitRate, rtt: Duration) -> ByteCount {
    let first = BitRate(RATE_FIRST.0.saturating_mul(LANES_FULL.into())).bytes_in(rtt);
    let all = rate.bytes_in(rtt).0.saturating_mul(3).saturating_add(first.max(RECEIVE_WINDOW_MIN_ALL).0);
    ByteCount(all / u64::from(lanes.max(1)))
}

/// The receive window of one of `lanes` lanes whose round trip is not known yet.
pub(super) fn receive_window_first(lanes: u32, memory: ByteCount) -> ByteCount {
    let all = RECEIVE_WINDOW_FIRST.0 * u64::from(LANES_FULL);
    ByteCount(all / u64::from(lanes.max(LANES_FULL))).min(memory)
}

/// Stretches that the peer may have open on a lane with that window. What the engine spends on the gaps of streams is bounded by it.
pub(super) fn stretches(window: ByteCount) -> u32 {
    (window.0 / BYTES_PER_STRETCH).clamp(OPEN_STRETCHES_MIN.into(), OPEN_STRETCHES_MAX.into()) as u32
}

/// Data that is read and given to a lane at once, one of `lanes`: some pieces are on their way through each.
pub(super) fn piece_bytes(lanes: u32) -> usize {
    if lanes > LANES_FEW { PIECE_BYTES / 4 } else { PIECE_BYTES }
}

/// Trains of datagrams (up to 64 KB each) that one of `lanes` lanes reads at once.
pub(super) fn receive_trains(lanes: u32) -> usize {
    (RECEIVE_TRAINS_ALL / lanes.max(1) as usize).clamp(RECEIVE_TRAINS_MIN, RECEIVE_TRAINS_MAX)
}

/// Bytes between the tasks and the sink of one of `lanes` lanes.
pub(super) fn inbox_bytes(lanes: u32) -> usize {
    (INBOX_BYTES_ALL / lanes.max(1) as usize).clamp(INBOX_BYTES_MIN, INBOX_BYTES)
}

/// The part of `all` that one of `lanes` has, at most `most`.
fn share(all: ByteCount, lanes: u32, most: ByteCount) -> ByteCount {
    ByteCount(all.0 / u64::from(lanes.max(1))).min(most)
}

/// One acknowledgement per 50 to 200 packets: about 16 in a round trip. Fewer cost CPU nothing and
/// blur rates; more cost the sender a pass over its packets in flight each time.
fn ack_frequency(rate: Option<BitRate>, rtt: Duration) -> AckFrequencyConfig {
    let in_flight = rate.map_or(0, |rate| bandwidth_delay_product(rate, rtt.max(Duration::from_millis(10))).0 / 1500);
    let mut config = AckFrequencyConfig::default();
    config
        .ack_eliciting_threshold(varint((in_flight / 16).clamp(ACK_PACKETS_MIN, ACK_PACKETS_MAX)))
        .reordering_threshold(VarInt::from_u32(packet_threshold(rate) - 1));
    config
}

/// How many later packets make a hole a loss: as many as pass in [`REORDERING`].
fn packet_threshold(rate: Option<BitRate>) -> u32 {
    let packets = rate.map_or(u64::MAX, |rate| rate.bytes_in(REORDERING).0 / 1500);
    u32::try_from(packets).unwrap_or(u32::MAX).clamp(PACKET_THRESHOLD_MIN, PACKET_THRESHOLD_MAX)
}

/// How late, in RTTs, a packet may be before it is lost: 5 ms of reordering must not be a loss.
fn time_threshold(rtt: Option<Duration>) -> f32 {
    let Some(rtt) = rtt else { return 1.5 };
    let reordering = REORDERING.as_secs_f32() / rtt.max(Duration::from_millis(1)).as_secs_f32();
    (1.0 + reordering).max(1.0 + RTT_JITTER)
}

fn mtu_discovery(payload_max: u16) -> MtuDiscoveryConfig {
    let mut config = MtuDiscoveryConfig::default();
    let payload_max = payload_max.clamp(1200, PAYLOAD_MAX);
    config.upper_bound(payload_max);
    if payload_max <= ETHERNET_PAYLOAD_MAX {
        // Between 1200 and Ethernet a search in halves costs five round trips and wins little: the top is tried at once
        // (a smallest step above half the range makes the engine do so).
        config.minimum_change(((payload_max - 1200) / 3 * 2).max(20));
    }
    config
}

pub(super) fn varint(value: u64) -> VarInt {
    VarInt::from_u64(value).unwrap_or(VarInt::MAX)
}

/// Largest UDP payload that is tried and taken: jumbo Ethernet (9000) less IPv6 and UDP headers.
pub(super) const PAYLOAD_MAX: u16 = 8952;

/// Window of one stream. Reason: the engine announces more of it whenever an eighth was read, which for a stretch is a frame in vain; six of them a
/// stretch were a third of what a receiving end sent. What a lane holds is bounded by its own window, and what is said of a stream by `stretch`.
const STREAM_WINDOW: u64 = 9 * STREAM_BYTES_MAX;

/// The longest stretch on its stream: see `stretch`.
const STREAM_BYTES_MAX: u64 = STRETCH_BYTES + (PREFIX_BYTES + BLOCK_HEADER_BYTES_MAX + BLOCK_TRAILER_BYTES_MAX) as u64;

/// Least memory of a lane: one stretch as a whole.
pub const MEMORY_MIN: ByteCount = ByteCount(STREAM_BYTES_MAX);

/// Stretches that a peer may have open at once on a lane: one for so many bytes of its window, within these bounds. Reason: the
/// smallest blocks of large files have four times as much; 825 MB (10 Gbit/s at 660 ms) are 825 whole stretches.
const BYTES_PER_STRETCH: u64 = 64 << 10;
const OPEN_STRETCHES_MIN: u32 = 64;
const OPEN_STRETCHES_MAX: u32 = 1024;

/// Lanes whose windows and buffers are not made smaller by each other, at [`RATE_FIRST`] each. Reason: 1 Gbit/s.
const LANES_FULL: u32 = 4;

/// Lanes that are few: each has whole pieces. Guess: 16 of them have 8 MiB of pieces.
const LANES_FEW: u32 = 16;

/// Trains read at once. Reason for the most: 32 of them are 2 MB for each lane, out of the cache.
const RECEIVE_TRAINS_ALL: usize = 32;
const RECEIVE_TRAINS_MIN: usize = 2;
const RECEIVE_TRAINS_MAX: usize = 8;

/// Inbox of a lane, and of all lanes of a path. Reason for the first: 10 Gbit/s for 3 ms, so that a sink that stalls briefly costs
/// nothing; for the least: one parcel.
pub(super) const INBOX_BYTES: usize = 4 << 20;
const INBOX_BYTES_ALL: usize = 16 << 20;
pub(super) const INBOX_BYTES_MIN: usize = 256 << 10;

/// How much the RTT may vary without a loss, as a part of it, on paths where 7 ms are less. Below the 1/8 of RFC 9002: at
/// 660 ms an eighth is 80 ms at the end of each file, and a packet sent twice in vain costs nothing there.
const RTT_JITTER: f32 = 1.0 / 32.0;

/// Largest payload of Ethernet without jumbo frames, over IPv4.
const ETHERNET_PAYLOAD_MAX: u16 = 1472;

/// Bounds of the later packets that make a hole a loss. Reason: the engine's window for duplicates is 129 packets; what
/// comes later than that is dropped anyway. Below 16, a burst that a router reorders would do.
const PACKET_THRESHOLD_MIN: u32 = 16;
const PACKET_THRESHOLD_MAX: u32 = 128;

/// Reordering that is not taken for loss, with a reserve over the 5 ms of measured paths.
const REORDERING: Duration = Duration::from_millis(7);

/// Bounds of the packets per acknowledgement. Above 200, 64 ranges of an acknowledgement no longer hold the holes of 1 % loss.
const ACK_PACKETS_MIN: u64 = 50;
const ACK_PACKETS_MAX: u64 = 200;

/// The rate that a new lane's windows are made for: that of the lanes which are chosen for a rate.
const RATE_FIRST: BitRate = BitRate::megabits(250);

/// The receive window of a lane whose round trip is not known yet. Reason: [`RATE_FIRST`] over 660 ms, the longest path; a push
/// has filled it before this end knows.
const RECEIVE_WINDOW_FIRST: ByteCount = ByteCount::mebibytes(20);

/// Least receive window of a lane, and of all lanes of a path. Reason: 10 Gbit/s for 3 ms, in which a busy host does other things.
const RECEIVE_WINDOW_MIN: ByteCount = ByteCount::mebibytes(4);
const RECEIVE_WINDOW_MIN_ALL: ByteCount = ByteCount::mebibytes(16);

/// Time for which data is given to the engine ahead. Reason: twice as long as until the window is looked at again.
const SEND_AHEAD_TIME: Duration = Duration::from_millis(50);

/// Time for which data is given to the engine ahead of that. Reason: some reads of a busy disk.
const SEND_RESERVE_TIME: Duration = Duration::from_millis(60);

/// Bounds of the data for that time, of a lane and of all lanes of a path. Reason: the upper one is that of a lane's 250 Mbit/s; the
/// lower one leaves each of 64 lanes some pieces.
const SEND_AHEAD_MIN: ByteCount = ByteCount(256 << 10);
const SEND_AHEAD_MIN_ALL: ByteCount = ByteCount::mebibytes(8);
const SEND_AHEAD: ByteCount = ByteCount::mebibytes(2);
const SEND_AHEAD_ALL: ByteCount = ByteCount::mebibytes(24);

/// Keeps addresses translated on the way (RFC 9308, section 3.5: 15 s; middleboxes are often hastier), and says that this end
/// lives (`ALIVE_EVERY`).
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(2);

/// Least RTT assumed before the first sample: a busy host answers no faster.
const INITIAL_RTT_MIN: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::quic::share::Arriving;

    #[test]
    fn five_milliseconds_of_reordering_are_no_loss_at_any_rtt() {
        for rtt_ms in [1, 8, 100, 660] {
            let rtt = Duration::from_millis(rtt_ms);
            let late = rtt.mul_f32(time_threshold(Some(rtt))) - rtt;
            assert!(late >= Duration::from_millis(5), "{rtt_ms} ms: {late:?}");
        }
    }

    #[test]
    fn a_hole_is_a_loss_after_the_packets_of_seven_milliseconds() {
        for (rate, packets) in [(Some(1), 16), (Some(50), 29), (Some(150), 87), (Some(1000), 128), (None, 128)] {
            assert_eq!(packet_threshold(rate.map(BitRate::megabits)), packets, "{rate:?}");
        }
    }

    #[test]
    fn data_given_ahead_is_bounded_by_the_memory() {
        let memory = ByteCount::mebibytes(64);
        let state = |in_flight, window| PaceState {
            in_flight: ByteCount::mebibytes(in_flight),
            window: ByteCount::mebibytes(window),
            rate: BitRate::megabits(1000),
        };
        let given = |in_flight, window| send_window(&state(in_flight, window), 1, memory);
        assert_eq!(given(0, 0), SEND_AHEAD);
        // Alone on a new path: what goes in 50 ms, and not the whole product at once.
        assert_eq!(given(0, 64), ByteCount(6_250_000) + SEND_AHEAD);
        assert_eq!(given(8, 64), ByteCount(6_250_000) + ByteCount::mebibytes(10) + SEND_AHEAD);
        assert_eq!(given(32, 32), ByteCount::mebibytes(20) + SEND_AHEAD);
        assert_eq!(given(500, 1000), memory);
        assert_eq!(send_window(&state(500, 1000), 1, ByteCount(1)), SEND_AHEAD);
        // One of many lanes.
        let slow = PaceState { rate: BitRate::megabits(10), ..state(0, 64) };
        assert_eq!(send_window(&slow, 8, memory), ByteCount(62_500) + SEND_AHEAD_MIN);
        assert_eq!(send_window(&slow, 64, memory), ByteCount(62_500) + ByteCount(128 << 10));
    }

    #[test]
    fn the_receive_window_is_three_products_of_the_path_and_never_more_than_the_memory() {
        let memory = ByteCount::mebibytes(128);
        let window = |megabits, ms| {
            let path = Arc::new(PathShare::default());
            let rate = BitRate::megabits(megabits);
            let mut lane = Arriving::new(Arc::clone(&path));
            lane.report(Arc::clone(&path), rate);
            receive_window(rate, &path, Duration::from_millis(ms), memory)
        };
        assert_eq!(window(10_000, 0), RECEIVE_WINDOW_MIN);
        assert_eq!(window(0, 660), ByteCount(20_625_000));
        assert_eq!(window(1000, 260), ByteCount(97_500_000));
        assert_eq!(window(1000, 660), memory);
    }

    #[test]
    fn all_lanes_of_a_path_hold_three_products_and_64_megabytes() {
        let memory = ByteCount::mebibytes(128);
        for (megabits, ms) in [(100, 50), (1000, 0), (1000, 50), (1000, 300), (10_000, 10)] {
            let (all, rtt) = (BitRate::megabits(megabits), Duration::from_millis(ms));
            let product = bandwidth_delay_product(all, rtt).0;
            for lanes in [1, 4, 8, 16, 64] {
                let path = Arc::new(PathShare::default());
                let rate = BitRate(all.0 / lanes);
                let mut arriving: Vec<Arriving> = (0..lanes).map(|_| Arriving::new(Arc::clone(&path))).collect();
                arriving.iter_mut().for_each(|lane| lane.report(Arc::clone(&path), rate));
                (0..lanes).for_each(|_| path.join());
                // A lane that has all of the rate for a moment.
                let window = receive_window(all, &path, rtt, memory).0;
                let count = u32::try_from(lanes).unwrap();
                let held = lanes * (window + inbox_bytes(count) as u64);
                assert!(held <= 3 * product + (64 << 20), "{lanes} lanes, {megabits} Mbit/s, {ms} ms: {held} bytes");
                assert!(
                    window >= 2 * product / lanes,
                    "{lanes} lanes, {megabits} Mbit/s, {ms} ms: a window of {window}"
                );
                let ahead =
                    send_window(&PaceState { window: ByteCount(0), in_flight: ByteCount(0), rate }, count, memory);
                let fed = lanes * (ahead.0 + 4 * piece_bytes(count) as u64);
                assert!(fed <= 32 << 20, "{lanes} lanes, {megabits} Mbit/s: {fed} bytes are given ahead");
            }
        }
    }

    #[test]
    fn headers_are_counted_as_the_path_sees_them() {
        for (peer, bytes) in [("1.2.3.4:5", 28), ("[::ffff:1.2.3.4]:5", 28), ("[2001:db8::1]:5", 48)] {
            assert_eq!(header_bytes(peer.parse().unwrap()), bytes, "{peer}");
        }
    }
}
