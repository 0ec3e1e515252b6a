//! The settings of a QUIC lane, from what is known of its path.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use noq::{AckFrequencyConfig, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use noq_proto::HashedConnectionIdGenerator;
use sterna_proto::quantity::bandwidth_delay_product;
use sterna_proto::{BitRate, ByteCount};

use super::pace::{Pace, PaceFactory, PaceState};
use super::stretch::{PREFIX_BYTES, STRETCH_BYTES};
use crate::identity::Identity;
use crate::lane::{BLOCK_HEADER_BYTES_MAX, BLOCK_TRAILER_BYTES_MAX};

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
        .stream_receive_window(varint(STREAM_BYTES_MAX))
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
pub(super) fn send_window(state: &PaceState, memory: ByteCount) -> ByteCount {
    let soon = state.rate.bytes_in(SEND_AHEAD_TIME).0.saturating_add(state.in_flight.0 / 4 * 5);
    let ahead = state.rate.bytes_in(SEND_RESERVE_TIME).clamp(SEND_AHEAD_MIN, SEND_AHEAD);
    (ByteCount(soon.min(state.window.0 / 8 * 5)) + ahead).min(memory.max(SEND_AHEAD))
}

/// How much the peer may send that the sink has not taken: three times what `rate` brings in a round trip, since what lies behind a
/// lost packet waits for more than one, at least what a lane brings at [`RATE_FIRST`] and [`RECEIVE_WINDOW_MIN`]. Memory is this much
/// when the sink is slower than the path.
pub(super) fn receive_window(rate: BitRate, rtt: Duration, memory: ByteCount) -> ByteCount {
    let wanted = ByteCount(rate.bytes_in(rtt).0.saturating_mul(3));
    wanted.max(RATE_FIRST.bytes_in(rtt)).max(RECEIVE_WINDOW_MIN).min(memory)
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

/// Window of one stream: the longest stretch, so that it never waits for the window, and no more: see `stretch`.
const STREAM_BYTES_MAX: u64 = STRETCH_BYTES + (PREFIX_BYTES + BLOCK_HEADER_BYTES_MAX + BLOCK_TRAILER_BYTES_MAX) as u64;

/// Least memory of a lane: one stretch as a whole, so that the window of the lane is never below that of a stream.
pub const MEMORY_MIN: ByteCount = ByteCount(STREAM_BYTES_MAX);

/// Stretches that a peer may have open at once on a lane. Reason: 825 MB (10 Gbit/s at 660 ms) of them.
pub(super) const OPEN_STRETCHES_MAX: u32 = 1024;

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
pub(super) const RECEIVE_WINDOW_FIRST: ByteCount = ByteCount::mebibytes(20);

/// Least receive window. Reason: 10 Gbit/s for 3 ms, in which a busy host does other things.
const RECEIVE_WINDOW_MIN: ByteCount = ByteCount::mebibytes(4);

/// Time for which data is given to the engine ahead. Reason: twice as long as until the window is looked at again.
const SEND_AHEAD_TIME: Duration = Duration::from_millis(50);

/// Time for which data is given to the engine ahead of that. Reason: some reads of a busy disk.
const SEND_RESERVE_TIME: Duration = Duration::from_millis(60);

/// Bounds of the data for that time. Reason: the upper one is that of a lane's 250 Mbit/s; the lower one leaves 64 lanes of one
/// session 16 MiB.
const SEND_AHEAD_MIN: ByteCount = ByteCount(256 << 10);
const SEND_AHEAD: ByteCount = ByteCount::mebibytes(2);

/// Keeps addresses translated on the way (RFC 9308, section 3.5: 15 s; middleboxes are often hastier), and says that this end
/// lives (`ALIVE_EVERY`).
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(2);

/// Least RTT assumed before the first sample: a busy host answers no faster.
const INITIAL_RTT_MIN: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

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
        let given = |in_flight, window| send_window(&state(in_flight, window), memory);
        assert_eq!(given(0, 0), SEND_AHEAD);
        // Alone on a new path: what goes in 50 ms, and not the whole product at once.
        assert_eq!(given(0, 64), ByteCount(6_250_000) + SEND_AHEAD);
        assert_eq!(given(8, 64), ByteCount(6_250_000) + ByteCount::mebibytes(10) + SEND_AHEAD);
        assert_eq!(given(32, 32), ByteCount::mebibytes(20) + SEND_AHEAD);
        assert_eq!(given(500, 1000), memory);
        assert_eq!(send_window(&state(500, 1000), ByteCount(1)), SEND_AHEAD);
        // One of many lanes.
        let slow = PaceState { rate: BitRate::megabits(10), ..state(0, 64) };
        assert_eq!(send_window(&slow, memory), ByteCount(62_500) + SEND_AHEAD_MIN);
    }

    #[test]
    fn the_receive_window_is_three_products_of_the_path_and_never_more_than_the_memory() {
        let memory = ByteCount::mebibytes(128);
        let window = |megabits, ms| receive_window(BitRate::megabits(megabits), Duration::from_millis(ms), memory);
        assert_eq!(window(10_000, 0), RECEIVE_WINDOW_MIN);
        assert_eq!(window(0, 660), ByteCount(20_625_000));
        assert_eq!(window(1000, 260), ByteCount(97_500_000));
        assert_eq!(window(1000, 660), memory);
    }

    #[test]
    fn headers_are_counted_as_the_path_sees_them() {
        for (peer, bytes) in [("1.2.3.4:5", 28), ("[::ffff:1.2.3.4]:5", 28), ("[2001:db8::1]:5", 48)] {
            assert_eq!(header_bytes(peer.parse().unwrap()), bytes, "{peer}");
        }
    }
}
