//! Bytes that one TCP connection can have in flight, by the limits of this host and the announcements of the peer.

use std::fs;
use std::time::Duration;

use sterna_proto::ByteCount;
use sterna_proto::limit::{RECEIVE_SHARE, SEND_SHARE};

use crate::sys::{SocketMemory, TcpInfo};

/// Limits to which the kernel grows the buffers of a connection; the third number of each file applies.
const SEND_BUFFER_LIMITS: &str = "/proc/sys/net/ipv4/tcp_wmem";
const RECEIVE_BUFFER_LIMITS: &str = "/proc/sys/net/ipv4/tcp_rmem";

/// Largest window before scaling, in bytes (RFC 7323, section 2.3).
const UNSCALED_WINDOW_BYTES_MAX: u64 = 65_535;

/// Returns the largest number of bytes that one connection of this host can have in flight, in either direction, if
/// its peer has the same limits.
///
/// `None` when the kernel does not report them. Cost: reads two small files.
pub fn window_max() -> Option<ByteCount> {
    let limit = |path| fs::read_to_string(path).ok().and_then(|text| largest(&text));
    Some(host_window(limit(SEND_BUFFER_LIMITS)?, limit(RECEIVE_BUFFER_LIMITS)?))
}

/// Returns the sizes to which this host's kernel grows the send and receive buffers of a connection; 0 where not
/// reported.
pub fn buffer_limits() -> (ByteCount, ByteCount) {
    let limit = |path| fs::read_to_string(path).ok().and_then(|text| largest(&text)).unwrap_or(0);
    (ByteCount(limit(SEND_BUFFER_LIMITS)), ByteCount(limit(RECEIVE_BUFFER_LIMITS)))
}

/// Returns [`window_max`] for a live connection, also bounded by the largest window that its peer can announce.
pub(super) fn window_max_of(info: &TcpInfo) -> Option<ByteCount> {
    let shift = if info.window_scaling { info.snd_wnd_scale } else { 0 };
    Some(window_max()?.min(ByteCount(UNSCALED_WINDOW_BYTES_MAX << shift)))
}

/// Time with data to send from which the measured limits are meaningful. Reason: some round trips of the longest
/// path, in which buffers grow to their limits.
const BUSY_MIN: Duration = Duration::from_secs(3);

/// Returns the window that limits a live lane now; `None` while something else limits the lane, or nothing.
///
/// For a sender, the kernel reports for how long the peer's window or the local buffer limited it. Such a limit
/// counts when it held for more than half of the time with data to send. For a receiver, the only sign is a buffer
/// that has grown to its limit: the kernel grows it for a sender that fills it.
pub(super) fn held_to(info: &TcpInfo, memory: &SocketMemory) -> Option<ByteCount> {
    let busy = info.busy.filter(|busy| *busy >= BUSY_MIN);
    let (by_peer, by_buffer) = (info.rwnd_limited.unwrap_or_default(), info.sndbuf_limited.unwrap_or_default());
    if busy.is_some_and(|busy| (by_peer + by_buffer) * 2 > busy) {
        let in_flight = ByteCount(u64::from(info.unacked) * u64::from(info.snd_mss));
        return Some(if by_peer > by_buffer { info.snd_wnd? } else { in_flight }).filter(|window| window.0 > 0);
    }
    let limit = fs::read_to_string(RECEIVE_BUFFER_LIMITS).ok().and_then(|text| largest(&text))?;
    info.rcv_wnd.filter(|window| window.0 > 0 && memory.receive_limit.0 >= limit)
}

fn host_window(send_buffer_max: u64, receive_buffer_max: u64) -> ByteCount {
    let send = (send_buffer_max as f64 * SEND_SHARE) as u64;
    // Later kernels give more once data flows, and [`held_to`] measures that.
    let receive = (receive_buffer_max as f64 * RECEIVE_SHARE) as u64;
    ByteCount(send.min(receive))
}

/// Returns the third of the three numbers of such a file.
fn largest(text: &str) -> Option<u64> {
    text.split_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_buffer_bounds_the_window() {
        let limit = |text| largest(text).unwrap();
        // Linux 6.16 and later: the send buffer is the limit. Up to 6.15: the receive buffer.
        let (send, later, earlier) =
            (limit("4096\t16384\t4194304\n"), limit("4096\t131072\t33554432\n"), limit("4096\t131072\t6291456\n"));
        assert_eq!(host_window(send, later), ByteCount(4_068_474));
        assert_eq!(host_window(send, earlier), ByteCount(3_145_728));
        assert_eq!((largest(""), largest("1 2 x")), (None, None));
    }

    #[test]
    fn a_lane_is_held_by_what_took_most_of_its_time() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let memory = SocketMemory::default();
        let info = TcpInfo {
            busy: seconds(10),
            rwnd_limited: seconds(6),
            snd_wnd: Some(ByteCount(3_000_000)),
            unacked: 2_000,
            snd_mss: 1_448,
            ..TcpInfo::default()
        };
        assert_eq!(held_to(&info, &memory), Some(ByteCount(3_000_000)));
        let by_buffer = TcpInfo { rwnd_limited: seconds(0), sndbuf_limited: seconds(6), ..info };
        assert_eq!(held_to(&by_buffer, &memory), Some(ByteCount(2_896_000)));
        assert_eq!(held_to(&TcpInfo { rwnd_limited: seconds(4), ..info }, &memory), None);
        assert_eq!(held_to(&TcpInfo { busy: seconds(2), rwnd_limited: seconds(2), ..info }, &memory), None);
        let receiving = TcpInfo { rcv_wnd: Some(ByteCount(5_000_000)), ..TcpInfo::default() };
        assert_eq!(held_to(&receiving, &memory), None);
        let grown = SocketMemory { receive_limit: ByteCount(u64::MAX), ..memory };
        assert_eq!(held_to(&receiving, &grown), Some(ByteCount(5_000_000)));
    }

    #[test]
    fn a_peer_without_window_scaling_holds_64_kib() {
        let info = TcpInfo { window_scaling: false, snd_wnd_scale: 0, ..TcpInfo::default() };
        assert_eq!(window_max_of(&info), Some(ByteCount(65_535)));
        let scaled = TcpInfo { window_scaling: true, snd_wnd_scale: 14, ..TcpInfo::default() };
        assert_eq!(window_max_of(&scaled), window_max());
    }
}
