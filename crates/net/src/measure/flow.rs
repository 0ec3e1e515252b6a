//! One end of a flow: sends or discards generated data over bare TCP connections, and samples them.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::message::{FlowReport, FlowSample, FlowSpec, SocketSettings, StreamReport};
use super::{SAMPLE_EVERY, host};
use crate::lane::tcp;
use crate::sys;

/// Bytes of one read or write. Reason: larger ones save no more processor time.
const BUFFER_BYTES: usize = 256 << 10;

/// Time after the end of the sender in which its last data arrives at the receiver. Reason: a queue of some seconds,
/// and a timeout on a path of 660 ms.
const LATE: Duration = Duration::from_secs(5);

/// Role of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Sends,
    Receives,
}

/// Applies settings to a socket before or after its connection is open.
///
/// Errors: the kernel refuses a setting.
pub(super) fn apply(settings: &SocketSettings, of: &impl AsFd) -> Result<(), Error> {
    let socket = SockRef::from(of);
    let refused = |what: String| {
        move |e: io::Error| {
            let text = format!("set {what} of a socket");
            Error::new(ErrorKind::Denied, Scope::Service, Phase::Prepare, text).caused_by(e)
        }
    };
    // Without the privilege, the kernel takes at most the maximum of the host, and doubles the number.
    if let Some(bytes) = settings.receive_buffer {
        let forced = sys::force_receive_buffer(of, bytes);
        forced
            .or_else(|_| socket.set_recv_buffer_size(half(bytes)))
            .map_err(refused(format!("{bytes} bytes to receive")))?;
    }
    if let Some(bytes) = settings.send_buffer {
        let forced = sys::force_send_buffer(of, bytes);
        forced
            .or_else(|_| socket.set_send_buffer_size(half(bytes)))
            .map_err(refused(format!("{bytes} bytes to send")))?;
    }
    if let Some(name) = &settings.congestion {
        socket.set_tcp_congestion(name.as_bytes()).map_err(refused(format!("the congestion control {name}")))?;
    }
    if let Some(bytes) = settings.mss {
        socket.set_tcp_mss(bytes).map_err(refused(format!("segments of {bytes} bytes")))?;
    }
    if let Some(rate) = settings.pacing_bps {
        sys::set_pacing_rate(of, Some(rate / 8)).map_err(refused(format!("a rate of {rate} bit/s")))?;
    }
    Ok(())
}

fn half(bytes: u64) -> usize {
    usize::try_from(bytes / 2).unwrap_or(usize::MAX)
}

/// Runs one end of a flow to its end. The connections are in the order of their numbers.
///
/// The sender ends after the time of the flow, or with its bytes; it drops what the kernel has not sent. A stream that
/// fails is part of the report.
pub(super) fn run(role: Role, streams: Vec<TcpStream>, spec: &FlowSpec) -> FlowReport {
    let streams: Vec<Arc<TcpStream>> = streams.into_iter().map(Arc::new).collect();
    let is_over = AtomicBool::new(false);
    let (busy, cpu, start) = (host::busy_us(), host::cpu_us(), Instant::now());
    let each = spec.bytes_max / u64::from(spec.streams.max(1));
    let mut report = thread::scope(|scope| {
        let sampler = scope.spawn(|| sample(&streams, start, &is_over));
        let move_data = |stream: &Arc<TcpStream>| {
            let stream = Arc::clone(stream);
            let time = spec.time();
            scope.spawn(move || match role {
                Role::Sends => send(&stream, start + time, each),
                Role::Receives => discard(&stream, start + time + LATE, each.saturating_add(each / SURPLUS)),
            })
        };
        let movers: Vec<_> = streams.iter().map(move_data).collect();
        let outcomes: Vec<io::Result<()>> =
            movers.into_iter().map(|mover| mover.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))).collect();
        is_over.store(true, Ordering::Relaxed);
        // A panic of the sampler is a bug of ours, and its end of the flow has no samples then.
        let mut report = sampler.join().unwrap_or_default();
        for (stream, outcome) in report.streams.iter_mut().zip(outcomes) {
            stream.error = outcome.err().map(|error| error.to_string());
        }
        report
    });
    for stream in &streams {
        // Drops unsent data: it would take the path for seconds.
        let _ = SockRef::from(&**stream).set_linger(Some(Duration::ZERO));
    }
    report.cpu_us = host::cpu_us().saturating_sub(cpu);
    report.host_busy_us = host::busy_us().saturating_sub(busy);
    report.time_us = micros(start.elapsed());
    report
}

fn send(stream: &TcpStream, end: Instant, bytes_max: u64) -> io::Result<()> {
    let data = vec![0x5a; BUFFER_BYTES];
    let mut left = bytes_max;
    while left > 0 {
        let time_left = end.saturating_duration_since(Instant::now());
        if time_left.is_zero() {
            return Ok(());
        }
        stream.set_write_timeout(Some(time_left))?;
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(data.len());
        match (&mut &*stream).write(&data[..count]) {
            Ok(written) => left -= written as u64,
            Err(error) if is_timeout(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    // All bytes are in the kernel. The peer reads them and closes its end.
    stream.shutdown(Shutdown::Write)?;
    discard(stream, end, u64::MAX)
}

/// Part of the bytes of a flow that a sender may send beyond them, as a divisor.
const SURPLUS: u64 = 8;

/// Discards data until its end. Errors: more than `bytes_max` came.
fn discard(stream: &TcpStream, end: Instant, bytes_max: u64) -> io::Result<()> {
    let (mut data, mut bytes) = (vec![0; BUFFER_BYTES], 0_u64);
    loop {
        let time_left = end.saturating_duration_since(Instant::now());
        if time_left.is_zero() {
            return Ok(());
        }
        stream.set_read_timeout(Some(time_left))?;
        match (&mut &*stream).read(&mut data) {
            Ok(0) => {
                // The other end waits for this close. It fails if the connection is gone.
                let _ = stream.shutdown(Shutdown::Write);
                return Ok(());
            }
            Ok(count) => {
                bytes = bytes.saturating_add(count as u64);
                if bytes > bytes_max {
                    return Err(io::Error::other("the sender has sent more than the flow has"));
                }
            }
            // The sender drops the connection at its end.
            Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Samples streams until the flow is over.
pub(super) fn sample(streams: &[Arc<TcpStream>], start: Instant, is_over: &AtomicBool) -> FlowReport {
    let mut report =
        FlowReport { streams: streams.iter().map(|stream| describe(stream)).collect(), ..Default::default() };
    let (mut turn, mut before) = (0, start);
    loop {
        let is_last = is_over.load(Ordering::Relaxed);
        let now = Instant::now();
        report.pause_us = report.pause_us.max(micros(now.saturating_duration_since(before)));
        before = now;
        for (stream, observed) in streams.iter().zip(&mut report.streams) {
            if let Some(sample) = sample_of(stream, now.saturating_duration_since(start)) {
                observed.samples.push(sample);
            }
        }
        if is_last {
            return report;
        }
        turn += 1;
        let next = start + SAMPLE_EVERY * turn;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

fn describe(stream: &TcpStream) -> StreamReport {
    let info = sys::tcp_info(stream).unwrap_or_default();
    StreamReport {
        port: stream.local_addr().map_or(0, |address| address.port()),
        mss: info.snd_mss,
        path_mtu: info.pmtu,
        congestion: tcp::congestion(stream),
        sack: info.selective_acks,
        timestamps: info.timestamps,
        window_scaling: info.window_scaling,
        peer_scale: info.snd_wnd_scale,
        own_scale: info.rcv_wnd_scale,
        ..StreamReport::default()
    }
}

/// Returns the state of a connection; `None`: it is gone.
fn sample_of(stream: &TcpStream, at: Duration) -> Option<FlowSample> {
    let info = sys::tcp_info(stream).ok()?;
    let memory = sys::socket_memory(stream).unwrap_or_default();
    let count = |value: Option<u32>| u64::from(value.unwrap_or(0));
    let bytes = |value: Option<sterna_proto::ByteCount>| value.unwrap_or_default().0;
    let time = |value: Option<Duration>| micros(value.unwrap_or_default());
    let segments = |count: u32| u64::from(count) * u64::from(info.snd_mss);
    Some(FlowSample {
        at_us: micros(at),
        acked: bytes(info.bytes_acked),
        received: bytes(info.bytes_received),
        rtt_us: micros(info.rtt),
        rtt_min_us: time(info.min_rtt),
        receiver_rtt_us: micros(info.rcv_rtt),
        window: segments(info.snd_cwnd),
        in_flight: segments(info.unacked),
        unsent: bytes(info.notsent),
        peer_window: bytes(info.snd_wnd),
        own_window: bytes(info.rcv_wnd),
        busy_us: time(info.busy),
        peer_window_limited_us: time(info.rwnd_limited),
        send_buffer_limited_us: time(info.sndbuf_limited),
        data_segments_out: count(info.data_segs_out),
        data_segments_in: count(info.data_segs_in),
        segments_out: count(info.segs_out),
        segments_in: count(info.segs_in),
        delivered: count(info.delivered),
        resent: u64::from(info.total_retrans),
        duplicates: count(info.dsack_dups),
        reordered: count(info.reord_seen),
        out_of_order: count(info.rcv_ooopack),
        delivery_bps: info.delivery_rate.unwrap_or_default().0,
        receive_buffer: memory.receive_limit.0,
        unread: memory.receive_used.0,
        send_buffer: memory.send_limit.0,
        send_queue: memory.send_queued.0,
    })
}

/// Ends the streams of a flow that does not run to its end.
pub(super) fn cut(streams: &[TcpStream]) {
    for stream in streams {
        // Fails only if the connection is gone.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Returns a time in microseconds.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
