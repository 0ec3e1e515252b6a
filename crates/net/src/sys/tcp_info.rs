//! State of a TCP connection in the kernel (`TCP_INFO`).

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use sterna_proto::{BitRate, ByteCount};

use super::socket_option::get;

/// Size of the buffer for `struct tcp_info` in bytes: the struct has 280 bytes in Linux 6.18, and it only grows.
const INFO_BYTES_MAX: usize = 512;

/// `TCPI_OPT_TIMESTAMPS`, `TCPI_OPT_SACK` and `TCPI_OPT_WSCALE` of include/uapi/linux/tcp.h.
const OPTION_TIMESTAMPS: u8 = 1;
const OPTION_SACK: u8 = 2;
const OPTION_WINDOW_SCALE: u8 = 4;

/// Part of a window that arrives in a round trip of a connection that the window limits. Reason: the smallest round
/// trip is a little shorter than those in which data arrived.
const WINDOW_FULL: f64 = 0.8;

/// Snapshot of `struct tcp_info`. A field is `None` if the kernel is older than the field.
///
/// Source of fields and offsets: include/uapi/linux/tcp.h. The length that the kernel returns decides which fields
/// exist, never the kernel version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// True if timestamps are in use (12 bytes of each segment).
    pub timestamps: bool,
    /// True if selective acknowledgements are in use.
    pub selective_acks: bool,
    /// True if window scaling is in use; without it, a window has at most 64 KiB.
    pub window_scaling: bool,
    /// Shift count of the windows that the peer advertises (RFC 7323).
    pub snd_wnd_scale: u8,
    /// Shift count of the windows that we advertise.
    pub rcv_wnd_scale: u8,
    /// Consecutive retransmission timeouts, without an acknowledgement between them.
    pub retransmits: u8,
    /// Unanswered probes of a closed window or of an idle connection.
    pub probes: u8,
    /// Retransmission timeout.
    pub rto: Duration,
    /// Payload of a full segment sent, in bytes, without TCP options.
    pub snd_mss: u32,
    /// Payload of a full segment received, in bytes, as the kernel estimates it.
    pub rcv_mss: u32,
    /// Segments sent and not yet acknowledged.
    pub unacked: u32,
    /// Segments considered lost.
    pub lost: u32,
    /// Segments retransmitted and not yet acknowledged.
    pub retrans: u32,
    /// Time since data was last sent.
    pub since_data_sent: Duration,
    /// Time since data was last received.
    pub since_data_received: Duration,
    /// Time since an acknowledgement was last received.
    pub since_ack_received: Duration,
    /// Path MTU, in bytes.
    pub pmtu: u32,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rtt_variation: Duration,
    /// Slow start threshold, in segments.
    pub snd_ssthresh: u32,
    /// Congestion window, in segments.
    pub snd_cwnd: u32,
    /// Payload of a full segment, in bytes, that this end has offered to receive, without TCP options.
    pub adv_mss: u32,
    /// Reordering that the kernel tolerates, in segments.
    pub reordering: u32,
    /// Round-trip time as the receiving side estimates it.
    pub rcv_rtt: Duration,
    /// Bytes that the reader takes in one round trip (receive autotuning).
    pub rcv_space: ByteCount,
    /// Segments retransmitted since the start.
    pub total_retrans: u32,
    /// Pacing rate of the kernel; `None` also if it does not pace.
    pub pacing_rate: Option<BitRate>,
    /// Cap on the pacing rate (`SO_MAX_PACING_RATE`); `None` also without such a cap.
    pub max_pacing_rate: Option<BitRate>,
    /// Bytes acknowledged since the start.
    pub bytes_acked: Option<ByteCount>,
    /// Bytes received in order since the start.
    pub bytes_received: Option<ByteCount>,
    /// Segments sent since the start, with or without data.
    pub segs_out: Option<u32>,
    /// Segments received since the start, with or without data.
    pub segs_in: Option<u32>,
    /// Bytes in the send queue that were never sent.
    pub notsent: Option<ByteCount>,
    /// Smallest round-trip time of the last minutes; `None` also before the first sample.
    pub min_rtt: Option<Duration>,
    /// Segments with data received since the start.
    pub data_segs_in: Option<u32>,
    /// Segments with data sent since the start, retransmissions included.
    pub data_segs_out: Option<u32>,
    /// Latest delivery rate.
    pub delivery_rate: Option<BitRate>,
    /// Time with data to send; includes `rwnd_limited` and `sndbuf_limited`.
    pub busy: Option<Duration>,
    /// Time in which the receive window of the peer was the limit.
    pub rwnd_limited: Option<Duration>,
    /// Time in which our send buffer was the limit.
    pub sndbuf_limited: Option<Duration>,
    /// Segments delivered since the start.
    pub delivered: Option<u32>,
    /// Bytes of data sent since the start, retransmissions included.
    pub bytes_sent: Option<ByteCount>,
    /// Bytes of data retransmitted since the start.
    pub bytes_retrans: Option<ByteCount>,
    /// Unnecessary retransmissions, which the peer reported as duplicates (RFC 2883).
    pub dsack_dups: Option<u32>,
    /// Number of times that reordering was detected.
    pub reord_seen: Option<u32>,
    /// Segments received out of order.
    pub rcv_ooopack: Option<u32>,
    /// Window that the peer advertises, in bytes.
    pub snd_wnd: Option<ByteCount>,
    /// Window that we advertise, in bytes.
    pub rcv_wnd: Option<ByteCount>,
}

/// Reads `TCP_INFO`. Cost: one system call of about one microsecond.
pub fn tcp_info(socket: &impl AsFd) -> io::Result<TcpInfo> {
    let mut bytes = [0; INFO_BYTES_MAX];
    let length = get(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes)?;
    Ok(TcpInfo::parse(&bytes[..length]))
}

impl TcpInfo {
    /// Returns true if, since `before`, as much arrived in each round trip as the window of this end allows. `time`:
    /// time between the two.
    pub fn fills_window(&self, before: &Self, time: Duration) -> bool {
        let (Some(earlier), Some(came), Some(window)) = (before.bytes_received, self.bytes_received, self.rcv_wnd)
        else {
            return false;
        };
        let a_second = came.0.saturating_sub(earlier.0) as f64 / time.as_secs_f64();
        let a_round_trip = a_second * self.min_rtt.unwrap_or_default().as_secs_f64();
        window.0 > 0 && a_round_trip > window.0 as f64 * WINDOW_FULL
    }

    /// Parses the fields that lie completely within `bytes`.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let raw = Raw(bytes);
        let micros = |offset| Duration::from_micros(u64::from(raw.u32(offset).unwrap_or(0)));
        let millis = |offset| Duration::from_millis(u64::from(raw.u32(offset).unwrap_or(0)));
        let count = |offset| raw.u32(offset).unwrap_or(0);
        let options = raw.u8(5);
        Self {
            timestamps: options & OPTION_TIMESTAMPS != 0,
            selective_acks: options & OPTION_SACK != 0,
            window_scaling: options & OPTION_WINDOW_SCALE != 0,
            // Bit fields of one byte: the low half is the shift count of the peer, the high half is ours.
            snd_wnd_scale: raw.u8(6) & 0x0f,
            rcv_wnd_scale: raw.u8(6) >> 4,
            retransmits: raw.u8(2),
            probes: raw.u8(3),
            rto: micros(8),
            snd_mss: count(16),
            rcv_mss: count(20),
            unacked: count(24),
            lost: count(32),
            retrans: count(36),
            since_data_sent: millis(44),
            since_data_received: millis(52),
            since_ack_received: millis(56),
            pmtu: count(60),
            rtt: micros(68),
            rtt_variation: micros(72),
            snd_ssthresh: count(76),
            snd_cwnd: count(80),
            adv_mss: count(84),
            reordering: count(88),
            rcv_rtt: micros(92),
            rcv_space: ByteCount(u64::from(count(96))),
            total_retrans: count(100),
            // All ones mean no pacing.
            pacing_rate: raw.u64(104).filter(|rate| *rate != u64::MAX).map(BitRate::from_bytes_per_second),
            // The kernel may report a cap with 32 bits: 32 ones also mean no cap.
            max_pacing_rate: raw
                .u64(112)
                .filter(|rate| *rate < u64::from(u32::MAX))
                .map(BitRate::from_bytes_per_second),
            bytes_acked: raw.bytes(120),
            bytes_received: raw.bytes(128),
            segs_out: raw.u32(136),
            segs_in: raw.u32(140),
            notsent: raw.u32(144).map(|bytes| ByteCount(u64::from(bytes))),
            // All ones mean no sample yet.
            min_rtt: raw.u32(148).filter(|rtt| *rtt != u32::MAX).map(|rtt| Duration::from_micros(u64::from(rtt))),
            data_segs_in: raw.u32(152),
            data_segs_out: raw.u32(156),
            delivery_rate: raw.u64(160).map(BitRate::from_bytes_per_second),
            busy: raw.u64(168).map(Duration::from_micros),
            rwnd_limited: raw.u64(176).map(Duration::from_micros),
            sndbuf_limited: raw.u64(184).map(Duration::from_micros),
            delivered: raw.u32(192),
            bytes_sent: raw.bytes(200),
            bytes_retrans: raw.bytes(208),
            dsack_dups: raw.u32(216),
            reord_seen: raw.u32(220),
            rcv_ooopack: raw.u32(224),
            snd_wnd: raw.u32(228).map(|bytes| ByteCount(u64::from(bytes))),
            rcv_wnd: raw.u32(232).map(|bytes| ByteCount(u64::from(bytes))),
        }
    }
}

/// The bytes of the structure, read by offset.
struct Raw<'a>(&'a [u8]);

impl Raw<'_> {
    fn u8(&self, offset: usize) -> u8 {
        self.0.get(offset).copied().unwrap_or(0)
    }

    fn u32(&self, offset: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.0.get(offset..offset + 4)?.try_into().ok()?))
    }

    fn u64(&self, offset: usize) -> Option<u64> {
        Some(u64::from_ne_bytes(self.0.get(offset..offset + 8)?.try_into().ok()?))
    }

    fn bytes(&self, offset: usize) -> Option<ByteCount> {
        self.u64(offset).map(ByteCount)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_real_connection_is_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut b, _) = listener.accept().unwrap();
        a.write_all(&[7; 5000]).unwrap();
        b.read_exact(&mut [0; 5000]).unwrap();
        b.write_all(&[7; 10]).unwrap();
        a.read_exact(&mut [0; 10]).unwrap();
        let info = tcp_info(&a).unwrap();
        assert!(info.rtt > Duration::ZERO && info.snd_mss > 500 && info.snd_cwnd > 0, "{info:?}");
        assert_eq!(info.bytes_received, Some(ByteCount(10)));
        assert_eq!(tcp_info(&b).unwrap().bytes_received, Some(ByteCount(5000)));
        assert!(info.min_rtt.is_some_and(|rtt| rtt <= info.rtt * 10));
    }

    #[test]
    fn fields_that_an_old_kernel_lacks_are_absent() {
        let bytes: Vec<u8> = (0..=255).collect();
        let old = TcpInfo::parse(&bytes[..104]);
        assert_eq!((old.bytes_acked, old.min_rtt, old.snd_wnd), (None, None, None));
        assert_eq!(old.total_retrans, u32::from_ne_bytes([100, 101, 102, 103]));
        let cut = TcpInfo::parse(&bytes[..231]);
        assert!(cut.rcv_ooopack.is_some() && cut.snd_wnd.is_none(), "a field cut in half is not read");
        assert_eq!(TcpInfo::parse(&[]), TcpInfo::default());
    }

    #[test]
    fn a_window_is_full_when_it_comes_in_every_round_trip() {
        let info = |received| TcpInfo {
            bytes_received: Some(ByteCount(received)),
            rcv_wnd: Some(ByteCount(200_000)),
            min_rtt: Some(Duration::from_millis(100)),
            ..TcpInfo::default()
        };
        // 2 MB in a second are 200 kB in 100 ms.
        assert!(info(2_000_000).fills_window(&info(0), Duration::from_secs(1)));
        assert!(!info(1_000_000).fills_window(&info(0), Duration::from_secs(1)));
        let old = TcpInfo { rcv_wnd: None, ..info(2_000_000) };
        assert!(!old.fills_window(&info(0), Duration::from_secs(1)), "a kernel that does not report it");
    }

    #[test]
    fn values_that_stand_for_nothing_are_absent() {
        let info = TcpInfo::parse(&[0xff; 280]);
        assert_eq!((info.min_rtt, info.pacing_rate), (None, None));
        assert_eq!((info.snd_wnd_scale, info.rcv_wnd_scale), (15, 15));
    }
}
