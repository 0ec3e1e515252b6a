//! Settings of a QUIC lane, from the known properties of its path.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use noq::{AckFrequencyConfig, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use noq_proto::HashedConnectionIdGenerator;
use parking_lot::Mutex;
use sterna_proto::quantity::bandwidth_delay_product;
use sterna_proto::{BitRate, ByteCount};

use super::pace::{Pace, PaceFactory, PaceState};
use super::share::PathShare;
use super::stretch::{PREFIX_BYTES, STRETCH_BYTES};
use crate::identity::Identity;
use crate::lane::{BLOCK_HEADER_BYTES_MAX, BLOCK_TRAILER_BYTES_MAX, PIECE_BYTES};

/// Properties that a lane is configured for; see the fields of `QuicOptions` with the same names.
#[derive(Clone, Debug)]
pub(super) struct PathHints {
    pub(super) rate: Option<BitRate>,
    pub(super) rtt: Option<Duration>,
    pub(super) memory: ByteCount,
    pub(super) idle_timeout: Duration,
    pub(super) payload_max: u16,
    /// Receive window of the lane until its path is known.
    pub(super) window: ByteCount,
    /// Stretches that the peer may have open until the path is known.
    pub(super) stretches: u32,
}

impl PathHints {
    /// Limits payloads to `route`, the largest that the route carries: larger probes only lose time.
    pub(super) fn through(mut self, route: Option<u16>) -> Self {
        self.payload_max = self.payload_max.min(route.unwrap_or(u16::MAX));
        self
    }
}

/// Returns the settings of one lane. `pace`: that of a client lane; `None` at a listener, whose lanes each make
/// one.
pub(super) fn transport(hints: &PathHints, peer: SocketAddr, pace: Option<Arc<Pace>>) -> TransportConfig {
    let mut config = TransportConfig::default();
    let rtt = hints.rtt.unwrap_or(Duration::ZERO);
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(hints.stretches))
        .stream_receive_window(varint(STREAM_WINDOW))
        .receive_window(varint(hints.window.0))
        .send_window(SEND_AHEAD.min(hints.memory.max(SEND_AHEAD)).0)
        // Blocks leave one after the other: they become complete earlier, and fewer are open.
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

/// Returns the settings of a client's endpoint. Its secrets are random: no peer asks it for a reset after its end.
pub(super) fn client_endpoint() -> EndpointConfig {
    with_payload_max(EndpointConfig::default())
}

/// Returns the settings of the endpoint of socket `index` of a listener.
///
/// Its secrets are derived from the identity. Reason: a restarted agent can reset the lanes of its previous process
/// (RFC 9000, section 10.3). The client then redials at once, and not after the idle timeout. Each socket has a
/// separate reset key (section 21.11). Reason: a socket that does not have a lane of another socket must not reveal
/// the token that ends that lane. The kernel assigns a peer to the same socket again as long as the number of
/// sockets is the same.
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

/// Allows every payload size that a probe of the peer may have.
fn with_payload_max(mut config: EndpointConfig) -> EndpointConfig {
    // The value is in range, so this call cannot fail.
    let _ = config.max_udp_payload_size(PAYLOAD_MAX);
    config
}

/// Returns the bytes of IP and UDP headers of each datagram to or from `peer`.
pub(super) fn header_bytes(peer: SocketAddr) -> u64 {
    if peer.ip().to_canonical().is_ipv4() { 28 } else { 48 }
}

/// Returns how many bytes the engine may hold unacknowledged. The limit is the bytes in flight, a quarter of them
/// for retransmissions, and the bytes sent within [`SEND_AHEAD_TIME`]. It is at most five eighths of the
/// controller's window, which is two BDPs. A reserve for [`SEND_RESERVE_TIME`] is added. Memory use is this much.
/// Reason for the limit by bytes in flight: a lane that is alone for its first round trips has the whole rate. It
/// would otherwise take a whole BDP before the other lanes come and do the same.
///
/// `lanes`: number of lanes of the path, which share the reserve.
pub(super) fn send_window(state: &PaceState, lanes: u32, memory: ByteCount) -> ByteCount {
    let soon = state.rate.bytes_in(SEND_AHEAD_TIME).0.saturating_add(state.in_flight.0 / 4 * 5);
    let least = share(SEND_AHEAD_MIN_ALL, lanes, SEND_AHEAD_MIN);
    let ahead = state.rate.bytes_in(SEND_RESERVE_TIME).clamp(least, share(SEND_AHEAD_ALL, lanes, SEND_AHEAD));
    (ByteCount(soon.min(state.window.0 / 8 * 5)) + ahead).min(memory.max(SEND_AHEAD))
}

/// Returns how many bytes the peer may send on a lane before the sink takes them: three times what `rate` delivers
/// in a round trip. Reason: data behind a lost packet waits for more than one round trip. The window is at least
/// what a lane receives in it at [`RATE_FIRST`], and [`RECEIVE_WINDOW_MIN`], and at most [`receive_window_most`]
/// and `memory`. Memory use is this much when the sink is slower than the path.
pub(super) fn receive_window(rate: BitRate, path: &PathShare, rtt: Duration, memory: ByteCount) -> ByteCount {
    let wanted = ByteCount(rate.bytes_in(rtt).0.saturating_mul(3));
    let most = receive_window_most(path.lanes(), path.most(), rtt);
    wanted.max(RATE_FIRST.bytes_in(rtt)).max(RECEIVE_WINDOW_MIN).min(most).min(memory)
}

/// Returns the largest receive window of one of `lanes` lanes: its part of what they may have together. Together
/// they may have three times what their path has delivered in a round trip at `rate`, and in addition what new
/// lanes need.
pub(super) fn receive_window_most(lanes: u32, rate: BitRate, rtt: Duration) -> ByteCount {
    let first = BitRate(RATE_FIRST.0.saturating_mul(LANES_FULL.into())).bytes_in(rtt);
    let all = rate.bytes_in(rtt).0.saturating_mul(3).saturating_add(first.max(RECEIVE_WINDOW_MIN_ALL).0);
    ByteCount(all / u64::from(lanes.max(1)))
}

/// Returns the receive window of one of `lanes` lanes whose round trip is not known yet.
pub(super) fn receive_window_first(lanes: u32, memory: ByteCount) -> ByteCount {
    let all = RECEIVE_WINDOW_FIRST.0 * u64::from(LANES_FULL);
    ByteCount(all / u64::from(lanes.max(LANES_FULL))).min(memory)
}

/// Returns how many stretches the peer may have open on a lane with that window. This limits the memory that the
/// engine uses for the gaps of streams.
pub(super) fn stretches(window: ByteCount) -> u32 {
    (window.0 / BYTES_PER_STRETCH).clamp(OPEN_STRETCHES_MIN.into(), OPEN_STRETCHES_MAX.into()) as u32
}

/// Returns how many bytes are read and passed at once to one of `lanes` lanes. Each lane has several such pieces in
/// progress.
pub(super) fn piece_bytes(lanes: u32) -> usize {
    if lanes > LANES_FEW { PIECE_BYTES / 4 } else { PIECE_BYTES }
}

/// Returns how many batches of coalesced datagrams (GRO, up to 64 KB each) one of `lanes` lanes reads at once.
pub(super) fn receive_trains(lanes: u32) -> usize {
    (RECEIVE_TRAINS_ALL / lanes.max(1) as usize).clamp(RECEIVE_TRAINS_MIN, RECEIVE_TRAINS_MAX)
}

/// Returns how many bytes may wait between the tasks and the sink of one of `lanes` lanes.
pub(super) fn inbox_bytes(lanes: u32) -> usize {
    (INBOX_BYTES_ALL / lanes.max(1) as usize).clamp(INBOX_BYTES_MIN, INBOX_BYTES)
}

/// Returns the part of `all` that one of `lanes` lanes has, at most `most`.
fn share(all: ByteCount, lanes: u32, most: ByteCount) -> ByteCount {
    ByteCount(all.0 / u64::from(lanes.max(1))).min(most)
}

/// Requests one acknowledgement per 50 to 200 packets: about 16 in a round trip. Fewer save no CPU time and make
/// rates less exact. More cost the sender a pass over its packets in flight each time.
fn ack_frequency(rate: Option<BitRate>, rtt: Duration) -> AckFrequencyConfig {
    let in_flight = rate.map_or(0, |rate| bandwidth_delay_product(rate, rtt.max(Duration::from_millis(10))).0 / 1500);
    let mut config = AckFrequencyConfig::default();
    config
        .ack_eliciting_threshold(varint((in_flight / 16).clamp(ACK_PACKETS_MIN, ACK_PACKETS_MAX)))
        .reordering_threshold(VarInt::from_u32(packet_threshold(rate) - 1));
    config
}

/// Returns how many later packets make a gap a loss: as many as pass in [`REORDERING`].
fn packet_threshold(rate: Option<BitRate>) -> u32 {
    let packets = rate.map_or(u64::MAX, |rate| rate.bytes_in(REORDERING).0 / 1500);
    u32::try_from(packets).unwrap_or(u32::MAX).clamp(PACKET_THRESHOLD_MIN, PACKET_THRESHOLD_MAX)
}

/// Returns how late a packet may be, in RTTs, before it is lost: 5 ms of reordering must not be a loss.
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
        // Between 1200 and Ethernet, a binary search costs five round trips and gains little. So the engine tries
        // the top at once: a smallest step above half the range makes it do so.
        config.minimum_change(((payload_max - 1200) / 3 * 2).max(20));
    }
    config
}

pub(super) fn varint(value: u64) -> VarInt {
    VarInt::from_u64(value).unwrap_or(VarInt::MAX)
}

/// Largest UDP payload that is tried and accepted: jumbo Ethernet (9000) minus IPv6 and UDP headers.
pub(super) const PAYLOAD_MAX: u16 = 8952;

/// Window of one stream. Reason: the engine announces more of it whenever an eighth was read, which is useless for
/// a stretch. Six such frames per stretch were a third of what a receiving end sent. The lane's window limits what
/// a lane holds, and `stretch` limits the length of a stream.
const STREAM_WINDOW: u64 = 9 * STREAM_BYTES_MAX;

/// Longest stretch on its stream: see `stretch`.
const STREAM_BYTES_MAX: u64 = STRETCH_BYTES + (PREFIX_BYTES + BLOCK_HEADER_BYTES_MAX + BLOCK_TRAILER_BYTES_MAX) as u64;

/// Smallest memory of a lane: one whole stretch.
pub const MEMORY_MIN: ByteCount = ByteCount(STREAM_BYTES_MAX);

/// Stretches that a peer may have open at once on a lane: one for so many bytes of its window, within these bounds.
/// Reason: the smallest blocks of large files have four times as many bytes. 825 MB (10 Gbit/s at 660 ms) are 825
/// whole stretches.
const BYTES_PER_STRETCH: u64 = 64 << 10;
const OPEN_STRETCHES_MIN: u32 = 64;
const OPEN_STRETCHES_MAX: u32 = 1024;

/// Lanes that do not reduce each other's windows and buffers, at [`RATE_FIRST`] each. Reason: 1 Gbit/s.
const LANES_FULL: u32 = 4;

/// Most lanes that each have whole pieces. Guess: 16 of them have 8 MiB of pieces.
const LANES_FEW: u32 = 16;

/// Batches of coalesced datagrams (GRO) that are read at once. Reason for the maximum: 32 of them are 2 MB for each
/// lane, more than the cache holds.
const RECEIVE_TRAINS_ALL: usize = 32;
const RECEIVE_TRAINS_MIN: usize = 2;
const RECEIVE_TRAINS_MAX: usize = 8;

/// Inbox of a lane, and of all lanes of a path, in bytes. Reason for the first: 10 Gbit/s for 3 ms, so that a short
/// stall of the sink costs nothing. Reason for the minimum: one parcel.
pub(super) const INBOX_BYTES: usize = 4 << 20;
const INBOX_BYTES_ALL: usize = 16 << 20;
pub(super) const INBOX_BYTES_MIN: usize = 256 << 10;

/// Variation of the RTT without a loss, as a part of the RTT, on paths where 7 ms are less than this part. Below
/// the 1/8 of RFC 9002. Reason: at 660 ms an eighth is 80 ms at the end of each file, and a useless retransmission
/// costs nothing there.
const RTT_JITTER: f32 = 1.0 / 32.0;

/// Largest payload of Ethernet without jumbo frames, over IPv4.
const ETHERNET_PAYLOAD_MAX: u16 = 1472;

/// Bounds of the later packets that make a gap a loss. Reason: the engine's duplicate window is 129 packets, and it
/// drops packets that are later than that. Below 16, a burst that a router reorders would count as a loss.
const PACKET_THRESHOLD_MIN: u32 = 16;
const PACKET_THRESHOLD_MAX: u32 = 128;

/// Reordering that is not taken for a loss, with a reserve over the 5 ms of measured paths.
const REORDERING: Duration = Duration::from_millis(7);

/// Bounds of the packets per acknowledgement. Above 200, the 64 ranges of an acknowledgement cannot hold the gaps
/// of 1 % loss.
const ACK_PACKETS_MIN: u64 = 50;
const ACK_PACKETS_MAX: u64 = 200;

/// Rate for which a new lane's windows are sized: the rate per lane when the number of lanes is chosen for a rate.
const RATE_FIRST: BitRate = BitRate::megabits(250);

/// Receive window of a lane whose round trip is not known yet. Reason: [`RATE_FIRST`] over 660 ms, the longest
/// path. A push fills it before this end has measured the round trip.
const RECEIVE_WINDOW_FIRST: ByteCount = ByteCount::mebibytes(20);

/// Smallest receive window of a lane, and of all lanes of a path. Reason: 10 Gbit/s for 3 ms, in which a busy host
/// does other work.
const RECEIVE_WINDOW_MIN: ByteCount = ByteCount::mebibytes(4);
const RECEIVE_WINDOW_MIN_ALL: ByteCount = ByteCount::mebibytes(16);

/// Time for which the engine gets data ahead. Reason: twice the time until the window is checked again.
const SEND_AHEAD_TIME: Duration = Duration::from_millis(50);

/// Additional time for which the engine gets data ahead. Reason: some reads of a busy disk.
const SEND_RESERVE_TIME: Duration = Duration::from_millis(60);

/// Bounds of the data for that time, of a lane and of all lanes of a path. Reason: the upper bound fits a lane of
/// 250 Mbit/s. The lower bound leaves each of 64 lanes some pieces.
const SEND_AHEAD_MIN: ByteCount = ByteCount(256 << 10);
const SEND_AHEAD_MIN_ALL: ByteCount = ByteCount::mebibytes(8);
const SEND_AHEAD: ByteCount = ByteCount::mebibytes(2);
const SEND_AHEAD_ALL: ByteCount = ByteCount::mebibytes(24);

/// Longest interval of keep-alive packets. They keep address translations alive (RFC 9308, section 3.5: 15 s;
/// middleboxes are often faster). They also show that this end is alive (`ALIVE_EVERY`).
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(2);

/// Smallest RTT that is assumed before the first sample: a busy host answers no faster.
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
        // Alone on a new path: the data of 50 ms, and not a whole BDP at once.
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
                // A lane that has the whole rate for a moment.
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
