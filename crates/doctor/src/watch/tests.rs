//! Connections in virtual time: each has one limit, and the observer names it with its remedy.

use sterna_net::sys::{SocketMemory, TcpInfo};

use super::*;
use crate::kernel::{Buffers, KernelVersion};

const STEP: Duration = Duration::from_millis(100);
const MSS: u32 = 1448;

/// Sender over a path, whose state is that of a full window.
#[derive(Clone, Copy)]
struct Path {
    rtt: Duration,
    window: u64,
    congestion_window: u64,
    in_flight: u64,
    unsent: u64,
    send_buffer: u64,
    /// Parts of the time in which the kernel counts the connection as limited.
    by_window: f64,
    by_buffer: f64,
}

const GRNET: Path = Path {
    rtt: Duration::from_millis(8),
    window: 3_145_728,
    congestion_window: 6_000_000,
    in_flight: 3_145_728,
    unsent: 1_000_000,
    send_buffer: 4_194_304,
    by_window: 1.0,
    by_buffer: 0.0,
};

fn address(host: u8, port: u16) -> SocketAddr {
    ([10, 0, 0, host], port).into()
}

/// Sending end after `time`.
fn sender(path: &Path, time: Duration) -> Connection {
    let acked = (path.in_flight as f64 * time.div_duration_f64(path.rtt)) as u64;
    let segments = |bytes: u64| (bytes / u64::from(MSS)) as u32;
    let info = TcpInfo {
        window_scaling: true,
        snd_wnd_scale: 7,
        snd_mss: MSS,
        rtt: path.rtt,
        min_rtt: Some(path.rtt),
        snd_cwnd: segments(path.congestion_window),
        unacked: segments(path.in_flight),
        snd_ssthresh: 0x7fff_ffff,
        notsent: Some(ByteCount(path.unsent)),
        snd_wnd: Some(ByteCount(path.window)),
        bytes_acked: Some(ByteCount(acked)),
        bytes_received: Some(ByteCount(0)),
        delivered: Some(segments(acked)),
        data_segs_out: Some(segments(acked + path.in_flight)),
        busy: Some(time),
        rwnd_limited: Some(time.mul_f64(path.by_window)),
        sndbuf_limited: Some(time.mul_f64(path.by_buffer)),
        ..TcpInfo::default()
    };
    let memory = SocketMemory {
        send_limit: ByteCount(path.send_buffer),
        send_queued: ByteCount((path.in_flight + path.unsent) * 103 / 100),
        receive_limit: ByteCount(131_072),
        ..SocketMemory::default()
    };
    let (local, remote) = (address(1, 40_000), address(2, 443));
    Connection { cookie: 1, local, remote, inode: 11, congestion: "cubic".to_owned(), bbr_rate: None, info, memory }
}

/// Receiving end of the same connection: `unread` of its buffer are filled.
fn receiver(path: &Path, time: Duration, buffer: u64, unread: u64) -> Connection {
    let sends = sender(path, time);
    let info = TcpInfo {
        bytes_received: sends.info.bytes_acked,
        bytes_acked: Some(ByteCount(0)),
        rcv_wnd: sends.info.snd_wnd,
        rcv_wnd_scale: 7,
        window_scaling: true,
        rtt: path.rtt,
        min_rtt: Some(path.rtt),
        snd_mss: MSS,
        notsent: Some(ByteCount(0)),
        ..TcpInfo::default()
    };
    let (receive_limit, receive_used) = (ByteCount(buffer), ByteCount(unread));
    let memory = SocketMemory { receive_limit, receive_used, ..SocketMemory::default() };
    Connection { cookie: 2, local: sends.remote, remote: sends.local, inode: 22, info, memory, ..sends }
}

/// Observes connections for 10 s. Returns the rows of the last second, and the summary.
fn observe(host: HostLimits, state: impl Fn(Duration) -> Vec<Connection>) -> (Vec<Row>, Vec<PathSummary>) {
    let origin = Instant::now();
    let mut watch = Watch::new(host, BitRate::megabits(1));
    let mut rows = Vec::new();
    for step in 1..=100u32 {
        let time = STEP * step;
        watch.handle(origin + time, &state(time));
        if step.is_multiple_of(10) {
            rows = watch.end_interval(origin + time);
        }
    }
    (rows, watch.summary())
}

fn host(receive_max: u64, send_max: u64) -> HostLimits {
    let buffers = Buffers { receive_max: ByteCount(receive_max), send_max: ByteCount(send_max) };
    HostLimits { kernel: KernelVersion::new(6, 1), buffers }
}

fn first(summary: &[PathSummary]) -> &Verdict {
    summary.first().and_then(|path| path.verdicts.first()).unwrap()
}

#[test]
fn a_small_window_is_named_with_the_limit_behind_it() {
    let (rows, summary) = observe(host(6_291_456, 4_194_304), |time| vec![sender(&GRNET, time)]);
    assert_eq!((rows[0].limits[0].limit, rows[0].direction), (Bound::ReceiveWindow, Direction::Out));
    assert_eq!(rows[0].rate_bps / 10_000_000, 314, "3072 KiB over 8 ms");
    let verdict = first(&summary);
    assert_eq!((verdict.limit, verdict.basis), (Bound::ReceiveWindow, Basis::Counted));
    let said = format!("{:?} {}", verdict.evidence, verdict.remedy);
    assert!(said.contains("at most 3.15 Gbit/s a connection over 8 ms"), "{said}");
    assert!(said.contains("window scale is 7") && said.contains("4.19 MB to 8.39 MB"), "{said}");
    assert!(said.contains("tcp_rmem='4096 131072 12582912' (before)"), "twice the window, of a half: {said}");
    // GRNET found its second limit by hand: 4 MB of send buffer.
    assert!(said.contains("Then the send buffer of this host binds, at 4.07 Gbit/s"), "{said}");
    assert_eq!(verdict.predicted_bps.unwrap() / 10_000_000, 406);
    let free = host(6_291_456, 67_108_864);
    let (_, summary) = observe(free, |time| vec![sender(&GRNET, time)]);
    assert_eq!(first(&summary).predicted_bps.unwrap() / 10_000_000, 629);
}

#[test]
fn windows_that_cannot_grow_by_a_setting_of_the_host_say_so() {
    let state = |scale: u8, scaling: bool| {
        move |time| {
            let mut connection = sender(&Path { window: 65_535, in_flight: 65_000, ..GRNET }, time);
            (connection.info.snd_wnd_scale, connection.info.window_scaling) = (scale, scaling);
            vec![connection]
        }
    };
    let (_, summary) = observe(host(6_291_456, 4_194_304), state(0, false));
    assert_eq!(first(&summary).limit, Bound::NoWindowScaling);
    assert!(first(&summary).remedy.starts_with("Window scaling is off"), "{summary:?}");
    let (_, summary) = observe(host(6_291_456, 4_194_304), state(2, true));
    assert!(first(&summary).remedy.contains("sets it (SO_RCVBUF)"), "{summary:?}");
}

#[test]
fn a_window_that_is_not_steady_is_that_of_a_slow_reader() {
    let state = |time: Duration| {
        let wide = time.as_millis().is_multiple_of(700);
        let window = if wide { 3_145_728 } else { 400_000 + 100_000 * (time.as_millis() as u64 / 100 % 7) };
        vec![sender(&Path { window, ..GRNET }, time)]
    };
    let (_, summary) = observe(host(6_291_456, 4_194_304), state);
    let verdict = first(&summary);
    assert_eq!((verdict.limit, verdict.basis), (Bound::Reader, Basis::Inferred), "{summary:?}");
}

#[test]
fn a_window_beyond_a_full_path_is_no_limit() {
    let state = |time| {
        let mut connection = sender(&GRNET, time);
        // Twice the round trip: half of the window waits in a queue.
        connection.info.min_rtt = Some(GRNET.rtt / 2);
        vec![connection]
    };
    let (_, summary) = observe(host(6_291_456, 4_194_304), state);
    assert_eq!(summary[0].limits.iter().find(|share| share.limit == Bound::ReceiveWindow), None, "{summary:?}");
}

#[test]
fn both_ends_on_this_host_tell_a_buffer_from_a_slow_reader() {
    let ends = |unread: u64| move |time| vec![sender(&GRNET, time), receiver(&GRNET, time, 6_291_456, unread)];
    let (rows, summary) = observe(host(6_291_456, 4_194_304), ends(6_000_000));
    assert_eq!((first(&summary).limit, first(&summary).basis), (Bound::Reader, Basis::Counted));
    assert_eq!((summary.len(), rows.len()), (1, 1), "one account for both ends");
    let (_, summary) = observe(host(6_291_456, 4_194_304), ends(0));
    assert_eq!(first(&summary).limit, Bound::ReceiveWindow);
    assert!(first(&summary).remedy.starts_with("At this host"), "{summary:?}");
    // The buffer is far below the maximum of this host, and does not grow.
    let (_, summary) = observe(host(67_108_864, 4_194_304), ends(0));
    assert!(first(&summary).remedy.contains("remove its setting (SO_RCVBUF)"), "{summary:?}");
}

#[test]
fn a_receiver_alone_names_its_window() {
    let state = |time| vec![receiver(&GRNET, time, 6_291_456, 0)];
    let (rows, summary) = observe(host(6_291_456, 4_194_304), state);
    assert_eq!((rows[0].direction, rows[0].limits[0].limit), (Direction::In, Bound::ReceiveWindow));
    assert!(first(&summary).remedy.contains("tcp_rmem='4096 131072 12582912'"), "{summary:?}");
    let late = |time| vec![receiver(&Path { in_flight: 1_000_000, ..GRNET }, time, 6_291_456, 5_000_000)];
    assert_eq!(first(&observe(host(6_291_456, 4_194_304), late).1).limit, Bound::Reader);
    let free = |time| vec![receiver(&Path { in_flight: 1_000_000, ..GRNET }, time, 6_291_456, 0)];
    assert_eq!(first(&observe(host(6_291_456, 4_194_304), free).1).limit, Bound::SenderOrPath);
}

#[test]
fn a_full_send_buffer_is_a_limit_and_the_second_witness_is_enough() {
    let full = Path { in_flight: 4_000_000, unsent: 0, window: 30_000_000, by_window: 0.0, ..GRNET };
    let (_, summary) = observe(host(33_554_432, 4_194_304), |time| vec![sender(&full, time)]);
    let verdict = first(&summary);
    assert_eq!(verdict.limit, Bound::SendBuffer, "the kernel counted nothing: {summary:?}");
    assert!(verdict.remedy.contains("tcp_wmem='4096 16384 8388608'"), "{verdict:?}");
    let set = Path { send_buffer: 425_984, in_flight: 400_000, ..full };
    let (_, summary) = observe(host(33_554_432, 4_194_304), |time| vec![sender(&set, time)]);
    assert!(first(&summary).remedy.contains("remove its setting (SO_SNDBUF)"), "{summary:?}");
}

#[test]
fn a_program_that_gives_too_little_is_the_limit_although_the_kernel_counts_it_as_busy() {
    let little = Path { in_flight: 130_000, unsent: 752, window: 3_000_000, by_window: 0.0, ..GRNET };
    let (rows, summary) = observe(host(33_554_432, 4_194_304), |time| vec![sender(&little, time)]);
    assert_eq!((rows[0].limits[0].limit, first(&summary).limit), (Bound::Writer, Bound::Writer), "{summary:?}");
}

#[test]
fn connections_below_the_rate_and_ended_ones_have_no_row() {
    let slow = Path { in_flight: 100, unsent: 0, ..GRNET };
    let (rows, summary) = observe(host(6_291_456, 4_194_304), |time| vec![sender(&slow, time)]);
    assert!(rows.is_empty() && summary.is_empty(), "{rows:?}");
    let ends = |time: Duration| if time < Duration::from_secs(5) { vec![sender(&GRNET, time)] } else { Vec::new() };
    let (rows, summary) = observe(host(6_291_456, 4_194_304), ends);
    assert!(rows.is_empty() && first(&summary).limit == Bound::ReceiveWindow, "{summary:?}");
}
