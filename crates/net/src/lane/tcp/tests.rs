//! Tests over real sockets on loopback. They wait for events, and never for time to pass.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use sterna_proto::{BitRate, Error, ErrorKind, Phase, Retry, Scope};

use super::*;
use crate::lane::frame::{DATA_FRAME_BYTES_MAX, FrameKind};
use crate::lane::{BLOCK_BYTES_MAX, CONTROL_FRAME_BYTES_MAX, LaneSink};

/// Call that a sink got.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Call {
    Control(Vec<u8>),
    Begin(u64, Vec<u8>, u64),
    Data(u64, u64, Vec<u8>),
    End(u64, Vec<u8>),
    Abandoned(u64),
}

/// Sends every call to the test; fails at the control frame "fail".
struct Recorder(Sender<Call>);

impl Recorder {
    fn note(&mut self, call: Call) -> Result<(), Error> {
        // Fails only when the test has ended.
        let _ = self.0.send(call);
        Ok(())
    }
}

impl LaneSink for Recorder {
    fn control(&mut self, frame: &[u8]) -> Result<(), Error> {
        self.note(Call::Control(frame.to_vec()))?;
        if frame == b"fail" {
            return Err(Error::new(ErrorKind::NoSpace, Scope::Destination, Phase::Transfer, "the sink is full"));
        }
        Ok(())
    }
    fn block_begin(&mut self, block: u64, header: &[u8], data_len: u64) -> Result<(), Error> {
        self.note(Call::Begin(block, header.to_vec(), data_len))
    }
    fn block_data(&mut self, block: u64, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.note(Call::Data(block, offset, data.to_vec()))
    }
    fn block_end(&mut self, block: u64, trailer: &[u8]) -> Result<(), Error> {
        self.note(Call::End(block, trailer.to_vec()))
    }
    fn block_abandoned(&mut self, block: u64) -> Result<(), Error> {
        self.note(Call::Abandoned(block))
    }
}

/// Lane whose receiving half runs on a thread.
struct End {
    peer: Fingerprint,
    tx: Box<dyn LaneTx>,
    handle: Arc<TcpHandle>,
    calls: Receiver<Call>,
    reader: thread::JoinHandle<Result<(), Error>>,
}

impl End {
    fn of(lane: TcpLane) -> Self {
        let (sender, calls) = channel();
        let rx = lane.rx;
        let reader = thread::spawn(move || rx.run(&mut Recorder(sender)));
        Self { peer: lane.peer, tx: lane.tx, handle: lane.handle, calls, reader }
    }

    /// Waits for the end of the lane. Returns the calls since the last look, and the result of the lane.
    fn join(self) -> (Vec<Call>, Result<(), Error>) {
        let result = self.reader.join().unwrap();
        (join_data(self.calls.iter()), result)
    }
}

/// Joins data that arrived in several slices; checks that the slices are in order.
fn join_data(calls: impl Iterator<Item = Call>) -> Vec<Call> {
    let mut joined: Vec<Call> = Vec::new();
    for call in calls {
        match (joined.last_mut(), call) {
            (Some(Call::Data(block, offset, so_far)), Call::Data(next_block, next_offset, data)) => {
                assert_eq!((*block, *offset + so_far.len() as u64), (next_block, next_offset));
                so_far.extend_from_slice(&data);
            }
            (_, call) => joined.push(call),
        }
    }
    joined
}

fn lanes(options: &TcpOptions) -> (TcpLane, TcpLane) {
    let (a, b) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect_options = ConnectOptions {
        remote: listener.local_addr().unwrap(),
        local: Some("127.0.0.1:0".parse().unwrap()),
        tcp: options.clone(),
    };
    thread::scope(|scope| {
        let connecting = scope.spawn(|| connect(&connect_options, &a).unwrap());
        let accepted = accept(listener.accept().unwrap().0, &b, options).unwrap();
        let connected = connecting.join().unwrap();
        assert_eq!((connected.peer, accepted.peer), (b.fingerprint(), a.fingerprint()));
        (connected, accepted)
    })
}

fn ends() -> (End, End) {
    let (a, b) = lanes(&TcpOptions::default());
    (End::of(a), End::of(b))
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ seed).collect()
}

fn send_block(tx: &mut dyn LaneTx, data: &[u8], piece: usize) {
    tx.block_begin(b"header", data.len() as u64).unwrap();
    for piece in data.chunks(piece) {
        tx.block_data(Bytes::copy_from_slice(piece)).unwrap();
    }
    tx.block_end(b"trailer").unwrap();
}

#[test]
fn blocks_and_control_frames_arrive_as_they_were_sent_both_ways() {
    let (mut a, mut b) = ends();
    assert_ne!(a.peer, b.peer);
    // Lengths at the edges of records (16 KiB), DATA frames (256 KiB) and blocks.
    let lengths =
        [0, 1, 16_379, 16_384, 16_385, DATA_FRAME_BYTES_MAX, DATA_FRAME_BYTES_MAX + 1, BLOCK_BYTES_MAX as usize];
    let longest_control = pattern(CONTROL_FRAME_BYTES_MAX, 1);
    thread::scope(|scope| {
        for tx in [&mut a.tx, &mut b.tx] {
            let longest_control = &longest_control;
            scope.spawn(move || {
                for (seed, length) in lengths.into_iter().enumerate() {
                    send_block(&mut **tx, &pattern(length, seed as u8), 300_000);
                }
                tx.control(longest_control).unwrap();
                tx.block_begin(b"", 10).unwrap();
                tx.block_data(Bytes::from_static(b"half")).unwrap();
                tx.control(b"between").unwrap();
                tx.block_abandon().unwrap();
                tx.flush().unwrap();
            });
        }
    });
    a.handle.close("all sent");
    let mut expected = Vec::new();
    for (block, length) in lengths.into_iter().enumerate() {
        expected.push(Call::Begin(block as u64, b"header".to_vec(), length as u64));
        if length > 0 {
            expected.push(Call::Data(block as u64, 0, pattern(length, block as u8)));
        }
        expected.push(Call::End(block as u64, b"trailer".to_vec()));
    }
    let abandoned = lengths.len() as u64;
    expected.extend([
        Call::Control(longest_control.clone()),
        Call::Begin(abandoned, Vec::new(), 10),
        Call::Data(abandoned, 0, b"half".to_vec()),
        Call::Control(b"between".to_vec()),
        Call::Abandoned(abandoned),
    ]);
    assert_eq!(b.handle.closed_by_peer().unwrap_or_default(), "all sent");
    for end in [a, b] {
        let (calls, result) = end.join();
        result.unwrap();
        assert!(calls == expected, "calls differ");
    }
}

#[test]
fn keys_are_replaced_while_data_flows_both_ways() {
    // 100 records per key, of which 64 are kept in reserve: some dozens of updates in each direction.
    let (a, b) = lanes(&TcpOptions { key_records_max: 100, ..TcpOptions::default() });
    let (mut a, mut b) = (End::of(a), End::of(b));
    let data = pattern(BLOCK_BYTES_MAX as usize, 9);
    thread::scope(|scope| {
        for tx in [&mut a.tx, &mut b.tx] {
            let data = &data;
            scope.spawn(move || {
                send_block(&mut **tx, data, DATA_FRAME_BYTES_MAX);
                tx.flush().unwrap();
            });
        }
    });
    a.handle.close("done");
    for end in [a, b] {
        let (calls, result) = end.join();
        result.unwrap();
        assert!(matches!(&calls[..], [Call::Begin(..), Call::Data(0, 0, got), Call::End(..)] if *got == data));
    }
}

#[test]
fn a_closed_lane_ends_both_halves_at_both_ends_and_tells_the_reason() {
    let (mut a, mut b) = ends();
    b.handle.close("going down\nfor today");
    b.handle.close("again");
    let error = b.tx.control(b"x").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Cancelled);
    // The peer calls no close; its sending half reports the reason.
    let Err(error) = (0..).try_for_each(|_| a.tx.control(b"x").and_then(|()| a.tx.flush())) else { unreachable!() };
    assert_eq!((error.kind, error.retry), (ErrorKind::Unreachable, Retry::After));
    assert!(error.text().contains("closed by the peer: going down\\nfor today"), "{error}");
    a.join().1.unwrap();
    b.join().1.unwrap();
}

#[test]
fn what_was_given_before_a_close_is_delivered() {
    let (mut a, b) = ends();
    let data = pattern(5_000_000, 3);
    send_block(&mut *a.tx, &data, 1_000_000);
    a.tx.block_begin(b"cut", 2).unwrap();
    a.handle.close("enough");
    let (calls, result) = b.join();
    result.unwrap();
    let [_, Call::Data(0, 0, got), Call::End(..), Call::Begin(1, ..), Call::Abandoned(1)] = &calls[..] else {
        panic!("{} calls", calls.len())
    };
    assert!(*got == data);
    a.join().1.unwrap();
}

#[test]
fn a_second_close_waits_while_the_kernel_has_unsent_data() {
    let (mut a, b) = ends();
    // The data takes most of a second.
    a.handle.set_rate(Some(BitRate::megabits(1)));
    send_block(&mut *a.tx, &pattern(100_000, 5), 100_000);
    let first = Arc::clone(&a.handle);
    let closing = thread::spawn(move || first.close("over"));
    while a.tx.flush().is_ok() {
        thread::yield_now();
    }
    a.handle.close("over");
    assert_eq!(a.handle.tcp_info().notsent.unwrap_or_default(), ByteCount(0), "it is lost if the process ends");
    closing.join().unwrap();
    b.join().1.unwrap();
    a.join().1.unwrap();
}

#[test]
fn a_peer_that_is_refused_hears_why_before_it_reads() {
    let (a, b) = lanes(&TcpOptions::default());
    let mut a = End::of(a);
    a.tx.control(b"hello").unwrap();
    a.tx.flush().unwrap();
    // No thread reads at this end: the agent has looked at the fingerprint and refuses the peer.
    b.handle.close("your key is not authorized");
    assert!(b.rx.run(&mut Recorder(channel().0)).is_ok());
    let error = loop {
        if let Err(error) = a.tx.flush().and_then(|()| a.tx.control(b"x")) {
            break error;
        }
    };
    assert!(error.text().contains("your key is not authorized"), "{error}");
    a.join().1.unwrap();
}

#[test]
fn an_error_of_the_sink_closes_the_lane_and_reaches_the_peer() {
    let (mut a, b) = ends();
    a.tx.control(b"fail").unwrap();
    a.tx.flush().unwrap();
    let (calls, result) = b.join();
    assert_eq!(calls, [Call::Control(b"fail".to_vec())]);
    assert_eq!(result.unwrap_err().kind, ErrorKind::NoSpace);
    let handle = Arc::clone(&a.handle);
    a.join().1.unwrap();
    assert_eq!(handle.closed_by_peer().unwrap(), "the sink is full");
}

#[test]
fn a_peer_that_does_not_read_cannot_hold_up_a_close() {
    let (a, b) = lanes(&TcpOptions::default());
    let mut a = End::of(a);
    let handle = Arc::clone(&a.handle);
    let (full, is_full) = channel();
    let feeding = thread::spawn(move || {
        loop {
            // The other end reads nothing: this call blocks once the buffers of the kernel are full.
            a.tx.block_begin(b"", BLOCK_BYTES_MAX).unwrap();
            for _ in 0..64 {
                let _ = full.send(());
                if let Err(error) = a.tx.block_data(Bytes::from(vec![0; DATA_FRAME_BYTES_MAX])) {
                    return (error, a.join().1);
                }
            }
            a.tx.block_end(b"").unwrap();
        }
    });
    while is_full.recv_timeout(Duration::from_millis(500)).is_ok() {}
    handle.close("stopped by the person");
    let (error, result) = feeding.join().unwrap();
    assert!(error.text().contains("stopped by the person"), "{error}");
    result.unwrap();
    drop(b);
}

#[test]
fn a_lane_that_is_cut_is_an_error_that_may_be_tried_again() {
    let (a, b) = ends();
    // Below TLS: the connection ends without a TLS close.
    b.handle.shared.connection.stream.shutdown(Shutdown::Both).unwrap();
    for end in [a, b] {
        let error = end.join().1.unwrap_err();
        assert_eq!((error.kind, error.retry), (ErrorKind::Unreachable, Retry::After), "{error}");
        assert!(error.text().contains("cut"), "{error}");
    }
}

#[test]
fn a_peer_whose_kernel_lives_and_that_says_nothing_is_cut_off() {
    // Shortest time whose sixth part the kernel takes as the interval of its keepalive probes (1 s).
    let (a, b) = lanes(&TcpOptions { dead_after: Duration::from_secs(6), ..TcpOptions::default() });
    // The peer's end of the connection stays open, but no thread runs it.
    let a = End::of(a);
    let error = a.join().1.unwrap_err();
    assert_eq!((error.kind, error.retry), (ErrorKind::Unreachable, Retry::After));
    assert!(error.text().contains("not a word"), "{error}");
    drop(b);
}

#[test]
fn a_sign_of_life_is_heard_by_the_lane_and_not_by_the_sink() {
    let (mut a, b) = ends();
    a.tx.block_begin(b"", 4).unwrap();
    a.handle.say_alive();
    a.tx.block_data(Bytes::from_static(b"data")).unwrap();
    a.handle.say_alive();
    a.tx.block_end(b"").unwrap();
    a.tx.flush().unwrap();
    a.handle.close("done");
    a.handle.say_alive();
    let (calls, ended) = b.join();
    ended.unwrap();
    let expected = [Call::Begin(0, Vec::new(), 4), Call::Data(0, 0, b"data".to_vec()), Call::End(0, Vec::new())];
    assert_eq!(calls, expected);
}

#[test]
fn a_sign_of_life_does_not_wait_for_a_peer_that_does_not_read() {
    let (a, b) = lanes(&TcpOptions::default());
    // Far more than the kernels take; the rest stays for the next call.
    for _ in 0..100_000 {
        a.handle.say_alive();
    }
    let (a, b) = (End::of(a), End::of(b));
    a.handle.close("done");
    b.join().1.unwrap();
}

#[test]
fn bytes_changed_on_the_way_end_the_lane() {
    let (a, b) = ends();
    // A record with a valid head that is not encrypted with the lane's key; then a wrong type; then a wrong length.
    let forged = [&[23, 3, 3, 0, 40][..], &[7; 40]].concat();
    (&a.handle.shared.connection.stream).write_all(&forged).unwrap();
    let error = b.join().1.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Protocol);
    assert!(error.text().contains("changed on the way"), "{error}");
    let handle = Arc::clone(&a.handle);
    a.join().1.unwrap();
    assert!(handle.closed_by_peer().unwrap().contains("changed on the way"));

    for (garbage, expected) in [(&b"GET / HTTP/1.1\r\n"[..], "kind 71"), (&[23, 3, 3, 0xff, 0xff], "65535 bytes")] {
        let (a, b) = ends();
        (&a.handle.shared.connection.stream).write_all(garbage).unwrap();
        let error = b.join().1.unwrap_err();
        assert!(error.text().contains(expected), "{error}");
        a.join().1.unwrap();
    }
}

#[test]
fn a_lane_cut_within_a_record_or_a_frame_is_an_error() {
    for bytes in [&[23, 3][..], &[23, 3, 3, 0, 100, 1, 2]] {
        let (a, b) = ends();
        (&a.handle.shared.connection.stream).write_all(bytes).unwrap();
        a.handle.shared.connection.stream.shutdown(Shutdown::Write).unwrap();
        let error = b.join().1.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unreachable, "{error}");
    }
}

#[test]
fn calls_out_of_order_are_refused_before_the_peer_sees_them() {
    type WrongCall = fn(&mut dyn LaneTx) -> Result<(), Error>;
    let wrong: [WrongCall; 6] = [
        |tx| tx.block_data(Bytes::from_static(b"x")),
        |tx| tx.block_end(b""),
        |tx| tx.block_abandon(),
        |tx| tx.block_begin(b"", BLOCK_BYTES_MAX + 1),
        |tx| tx.block_begin(b"", 1).and_then(|()| tx.block_end(b"")),
        |tx| tx.control(&[0; CONTROL_FRAME_BYTES_MAX + 1]),
    ];
    for call in wrong {
        let (mut a, b) = ends();
        assert_eq!(call(&mut *a.tx).unwrap_err().kind, ErrorKind::Internal);
        assert!(a.tx.control(b"later").is_err(), "the lane is dead after an error");
        assert!(b.join().1.is_err());
    }
}

/// Runs `accept` against a plain connection that `peer` controls; returns the error.
fn accept_from(handshake_time_max: Duration, peer: impl FnOnce(TcpStream) + Send) -> Error {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let identity = Identity::ephemeral().unwrap();
    let options = TcpOptions { handshake_time_max, ..TcpOptions::default() };
    thread::scope(|scope| {
        scope.spawn(|| peer(TcpStream::connect(address).unwrap()));
        accept(listener.accept().unwrap().0, &identity, &options).err().unwrap()
    })
}

#[test]
fn peers_that_do_not_shake_hands_are_cut_off() {
    let error = accept_from(HANDSHAKE_TIME_MAX, |mut stream| stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap());
    assert_eq!(error.kind, ErrorKind::Protocol);
    assert!(error.text().contains("does not use TLS"), "{error}");

    let error = accept_from(HANDSHAKE_TIME_MAX, drop);
    assert_eq!((error.kind, error.retry), (ErrorKind::Unreachable, Retry::After), "{error}");

    // The peer sends nothing, and stays until it is cut off.
    let error = accept_from(Duration::from_millis(50), |mut stream| drop(stream.read(&mut [0])));
    assert!(error.text().contains("did not finish the handshake in time"), "{error}");

    // A record that is longer than TLS allows, and more bytes than a handshake may have.
    let error = accept_from(HANDSHAKE_TIME_MAX, |mut stream| {
        let _ = stream.write_all(&[22, 3, 1, 0xff, 0xff]).and_then(|()| stream.write_all(&[0; 100_000]));
        let _ = stream.read(&mut [0]);
    });
    assert_eq!(error.kind, ErrorKind::Protocol, "{error}");
}

#[test]
fn a_port_where_something_else_listens_is_named_with_the_one_that_agents_have() {
    let alert = |code: u8| vec![21, 3, 3, 0, 2, 2, code];
    let answers = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "answers, but does not use TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(), "answers, but does not use TLS"),
        (alert(40), "uses TLS, but is"),
        (alert(70), "uses TLS, but is"),
        (alert(120), "uses TLS, but is"),
    ];
    for (answer, what) in answers {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        let options = ConnectOptions { remote, local: None, tcp: TcpOptions::default() };
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = listener.accept().unwrap().0;
                stream.write_all(&answer).unwrap();
                let _ = stream.read_to_end(&mut Vec::new());
            });
            connect(&options, &Identity::ephemeral().unwrap()).err().unwrap()
        });
        assert_eq!((error.kind, error.retry), (ErrorKind::Protocol, Retry::Never), "{error}");
        assert!(error.text().starts_with(&format!("{remote} {what}")), "{error}");
        assert!(error.text().contains("no sterna agent; is the port right? agents listen on 7373"), "{error}");
    }
}

#[test]
fn a_record_of_another_kind_behind_half_a_handshake_message_is_an_error() {
    let half =
        [&[22, 3, 1, 1, 0xda, 1, 0, 0x0f, 0xff, 3, 3][..], &[b'A'; 468], &[23, 3, 3, 0, 16], &[b'B'; 16]].concat();
    // The two ends have no keys yet: any host on the path can send this.
    let error = accept_from(HANDSHAKE_TIME_MAX, |mut stream| {
        stream.write_all(&half).unwrap();
        let _ = stream.read(&mut [0]);
    });
    assert_eq!(error.kind, ErrorKind::Protocol, "{error}");

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let remote = listener.local_addr().unwrap();
    let server = [&[22, 3, 3, 1, 0xda, 2][..], &half[6..]].concat();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&server).unwrap();
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        });
        let options = ConnectOptions { remote, local: None, tcp: TcpOptions::default() };
        let error = connect(&options, &Identity::ephemeral().unwrap()).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Protocol, "{error}");
    });
}

#[test]
fn a_port_where_nobody_listens_is_refused_with_its_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = connect(&ConnectOptions::new(address), &Identity::ephemeral().unwrap()).err().unwrap();
    assert_eq!((error.kind, error.scope, error.retry), (ErrorKind::Unreachable, Scope::Path, Retry::After));
    let said = error.chain();
    assert!(said.starts_with(&format!("connect to {address} by TCP: Connection refused")), "{said}");
}

#[test]
fn a_local_address_that_is_not_ours_is_a_usage_error() {
    let mut options = ConnectOptions::new("127.0.0.1:1".parse().unwrap());
    options.local = Some("192.0.2.1:0".parse().unwrap());
    let error = connect(&options, &Identity::ephemeral().unwrap()).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Usage, "{error}");
}

#[test]
fn the_kernel_is_asked_and_steered() {
    let options = TcpOptions { congestion: Some("nosuch".to_owned()), ..TcpOptions::default() };
    let (a, _b) = lanes(&options);
    let refused = a.congestion_refused.unwrap();
    assert!(refused.text().contains("use congestion control nosuch: the kernel refuses; going on with "), "{refused}");
    a.handle.set_congestion("reno").unwrap();
    assert_eq!(a.handle.congestion(), "reno");
    assert!(a.handle.set_congestion("nosuch").is_err());
    a.handle.set_rate(Some(BitRate::megabits(100)));
    let stats = a.handle.stats();
    assert!(stats.rtt > Duration::ZERO && stats.mtu > 1000 && stats.window_bytes > 0, "{stats:?}");
    assert!(stats.wire_bytes_sent > 500 && stats.wire_bytes_received > 500, "{stats:?}");
    assert_eq!(a.handle.transport(), Transport::Tcp);
    assert_eq!(a.handle.peer_addr(), _b.handle.local_addr());
    assert!(a.handle.socket_memory().send_limit.0 > 0);
}

#[test]
fn the_head_of_each_frame_is_as_documented() {
    assert_eq!(FrameKind::Data.head(0x0001_0203), [3, 3, 2, 1, 0]);
}

#[test]
fn another_implementation_of_tls_is_understood() {
    // rustls as the accepting end, with its own record layer. It sends tickets and requests key updates; sterna
    // does neither.
    let (a, b) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let mut config = (*b.server_config()).clone();
    config.send_tls13_tickets = 3;
    config.ticketer = rustls::crypto::ring::Ticketer::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = ConnectOptions::new(listener.local_addr().unwrap());
    let data = pattern(1_000_000, 7);
    let frames = [
        &FrameKind::BlockBegin.head(8)[..],
        &(data.len() as u64).to_le_bytes(),
        &FrameKind::Data.head(DATA_FRAME_BYTES_MAX),
        &data[..DATA_FRAME_BYTES_MAX],
    ]
    .concat();
    let peer = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut connection = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let mut heard = Vec::new();
        for _ in 0..3 {
            let mut tls = rustls::Stream::new(&mut connection, &mut stream);
            tls.write_all(&frames).unwrap();
            tls.write_all(&FrameKind::Abandon.head(0)).unwrap();
            let mut answer = [0; HEAD_AND_ANSWER_BYTES];
            tls.read_exact(&mut answer).unwrap();
            heard.push(answer.to_vec());
            connection.refresh_traffic_keys().unwrap();
        }
        connection.send_close_notify();
        let mut tls = rustls::Stream::new(&mut connection, &mut stream);
        tls.flush().unwrap();
        let mut last = Vec::new();
        tls.read_to_end(&mut last).unwrap();
        (heard, last)
    });
    let mut lane = End::of(connect(&options, &a).unwrap());
    for round in 0..3 {
        loop {
            match lane.calls.recv().unwrap() {
                Call::Abandoned(block) => break assert_eq!(block, round),
                Call::Data(block, offset, got) => {
                    assert_eq!(block, round);
                    assert!(got == data[offset as usize..][..got.len()]);
                }
                call => assert!(matches!(call, Call::Begin(_, _, 1_000_000)), "{call:?}"),
            }
        }
        lane.tx.control(b"answer").unwrap();
        lane.tx.flush().unwrap();
    }
    lane.join().1.unwrap();
    let (heard, last) = peer.join().unwrap();
    let answer = [&FrameKind::Control.head(6)[..], b"answer"].concat();
    assert_eq!(heard, [answer.clone(), answer.clone(), answer]);
    assert_eq!(last, [&FrameKind::Close.head(18)[..], b"closed by the peer"].concat());
}

/// Length of the answer in the test above: the head of a frame and "answer".
const HEAD_AND_ANSWER_BYTES: usize = 11;

#[test]
fn a_peer_with_another_protocol_in_tls_is_refused() {
    let (a, b) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let mut config = (*b.server_config()).clone();
    config.alpn_protocols.clear();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = ConnectOptions::new(listener.local_addr().unwrap());
    let peer = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut connection = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let _ = rustls::Stream::new(&mut connection, &mut stream).read(&mut [0]);
    });
    let error = connect(&options, &a).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Protocol);
    assert!(error.text().contains("not the protocol sterna/1"), "{error}");
    peer.join().unwrap();
}

#[test]
fn a_peer_without_a_certificate_is_untrusted() {
    /// Resolver that has no certificate.
    #[derive(Debug)]
    struct NoCertificate;
    impl rustls::client::ResolvesClientCert for NoCertificate {
        fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
            None
        }
        fn has_certs(&self) -> bool {
            false
        }
    }
    let mut config = (*Identity::ephemeral().unwrap().client_config()).clone();
    config.client_auth_cert_resolver = Arc::new(NoCertificate);
    let (heard, alert) = channel();
    let error = accept_from(HANDSHAKE_TIME_MAX, move |mut stream| {
        let mut connection = rustls::ClientConnection::new(Arc::new(config), crate::identity::server_name()).unwrap();
        let error = rustls::Stream::new(&mut connection, &mut stream).read(&mut [0]).unwrap_err();
        heard.send(error.to_string()).unwrap();
    });
    assert_eq!((error.kind, error.exit_code()), (ErrorKind::Untrusted, 6), "{error}");
    assert!(alert.recv().unwrap().contains("CertificateRequired"), "the peer hears why");
}
