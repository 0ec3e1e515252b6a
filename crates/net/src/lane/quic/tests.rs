//! Tests of lanes over loopback, with both ends in this process.

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use noq::crypto::rustls::QuicClientConfig;
use noq::{ClientConfig, Endpoint};
use parking_lot::Mutex;
use sterna_proto::rate::RateContract;
use sterna_proto::{BitRate, ByteCount, Error, ErrorKind, Phase, Retry, Scope};

use super::{Listener, ListenerOptions, QuicOptions, SharedRate, connect};
use crate::identity::Identity;
use crate::lane::{
    BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES_MAX, BLOCK_TRAILER_BYTES_MAX, CONTROL_FRAME_BYTES_MAX, Lane, LaneHandle,
    LaneSink, LaneTx, Transport,
};

/// Arrival on a lane.
#[derive(Debug, PartialEq)]
enum Arrival {
    Control(Vec<u8>),
    Block { header: Vec<u8>, data: Vec<u8>, trailer: Vec<u8> },
    Abandoned,
}

struct Open {
    header: Vec<u8>,
    data: Vec<Option<u8>>,
}

/// Sink that checks the contract of `LaneSink` and passes on what is complete.
struct Collect {
    open: HashMap<u64, Open>,
    arrivals: mpsc::Sender<Arrival>,
    /// Taken before each piece of data; a test that holds it makes the sink slow.
    gate: Arc<Mutex<()>>,
    refuse_blocks: bool,
}

impl Collect {
    fn new() -> (Self, mpsc::Receiver<Arrival>) {
        let (arrivals, received) = mpsc::channel();
        (Self { open: HashMap::new(), arrivals, gate: Arc::default(), refuse_blocks: false }, received)
    }
}

impl LaneSink for Collect {
    fn control(&mut self, frame: &[u8]) -> Result<(), Error> {
        let _ = self.arrivals.send(Arrival::Control(frame.to_vec()));
        Ok(())
    }

    fn block_begin(&mut self, block: u64, header: &[u8], data_len: u64) -> Result<(), Error> {
        if self.refuse_blocks {
            return Err(Error::new(ErrorKind::NoSpace, Scope::Destination, Phase::Transfer, "the disk is full"));
        }
        let open = Open { header: header.to_vec(), data: vec![None; data_len as usize] };
        assert!(self.open.insert(block, open).is_none(), "block {block} begun twice");
        Ok(())
    }

    fn block_data(&mut self, block: u64, offset: u64, data: &[u8]) -> Result<(), Error> {
        let _gate = self.gate.lock();
        let open = self.open.get_mut(&block).expect("data of an open block");
        for (place, byte) in open.data[offset as usize..][..data.len()].iter_mut().zip(data) {
            assert!(place.replace(*byte).is_none(), "byte given twice");
        }
        Ok(())
    }

    fn block_end(&mut self, block: u64, trailer: &[u8]) -> Result<(), Error> {
        let open = self.open.remove(&block).expect("the end of an open block");
        let data = open.data.into_iter().map(|byte| byte.expect("every byte given")).collect();
        let _ = self.arrivals.send(Arrival::Block { header: open.header, data, trailer: trailer.to_vec() });
        Ok(())
    }

    fn block_abandoned(&mut self, block: u64) -> Result<(), Error> {
        self.open.remove(&block).expect("an open block is abandoned");
        let _ = self.arrivals.send(Arrival::Abandoned);
        Ok(())
    }
}

/// One end of a lane, with its reader running.
struct Side {
    tx: Box<dyn LaneTx>,
    handle: Arc<dyn LaneHandle>,
    arrivals: mpsc::Receiver<Arrival>,
    gate: Arc<Mutex<()>>,
    reader: thread::JoinHandle<Result<(), Error>>,
}

fn side(lane: Lane, refuse_blocks: bool) -> Side {
    let (mut sink, arrivals) = Collect::new();
    sink.refuse_blocks = refuse_blocks;
    let gate = Arc::clone(&sink.gate);
    let Lane { tx, rx, handle, .. } = lane;
    let reader = thread::spawn(move || rx.run(&mut sink));
    Side { tx, handle, arrivals, gate, reader }
}

fn listener(identity: &Identity) -> Listener {
    Listener::bind("127.0.0.1:0".parse().unwrap(), identity, &ListenerOptions::default()).unwrap()
}

fn options(listener: &Listener) -> QuicOptions {
    QuicOptions::new(listener.local_addr(), SharedRate::new(RateContract::of_rate(Some(BitRate::megabits(2000)))))
}

fn lane_pair() -> (Side, Side) {
    lane_pair_with(|options| options)
}

fn lane_pair_with(change: impl FnOnce(QuicOptions) -> QuicOptions) -> (Side, Side) {
    let (ours, theirs) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let listener = listener(&theirs);
    let client = connect(&change(options(&listener)), &ours).unwrap();
    let server = listener.accept().unwrap().unwrap();
    server.handle.admit();
    assert_eq!(client.peer, theirs.fingerprint());
    assert_eq!(server.peer, ours.fingerprint());
    (side(client, false), side(server, false))
}

#[test]
fn a_handshake_that_fails_is_reported_to_who_accepts() {
    let (ours, theirs) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let listener = listener(&theirs);
    let mut config = (*ours.client_config()).clone();
    config.alpn_protocols = vec![b"other/1".to_vec()];
    let crypto = noq::crypto::rustls::QuicClientConfig::try_from(Arc::new(config)).unwrap();
    super::lane_runtime().unwrap().block_on(async {
        let endpoint = noq::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let config = noq::ClientConfig::new(Arc::new(crypto));
        let connecting = endpoint.connect_with(config, listener.local_addr(), "sterna").unwrap();
        assert!(connecting.await.is_err());
    });
    let error = listener.accept().unwrap().err().unwrap();
    assert_eq!(error.phase, Phase::Prepare, "{error}");
}

fn pattern(length: u64, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}

fn send_block(tx: &mut Box<dyn LaneTx>, header: &[u8], data: &[u8], trailer: &[u8]) -> Result<(), Error> {
    tx.block_begin(header, data.len() as u64)?;
    for piece in data.chunks(300_000) {
        tx.block_data(Bytes::copy_from_slice(piece))?;
    }
    tx.block_end(trailer)
}

#[test]
fn blocks_of_every_size_arrive_whole_in_both_directions() {
    let (mut client, mut server) = lane_pair();
    // Sizes: nothing, one byte, around a packet, around a parcel, around a stretch, the largest.
    let mebibyte = 1 << 20;
    let sizes =
        [0, 1, 1199, 1200, 1453, 256 << 10, (256 << 10) + 1, mebibyte - 1, mebibyte, mebibyte + 1, BLOCK_BYTES_MAX];
    let big = pattern(BLOCK_HEADER_BYTES_MAX as u64, 9);
    for (sender, receiver) in [(&mut client.tx, &server.arrivals), (&mut server.tx, &client.arrivals)] {
        for (index, &size) in sizes.iter().enumerate() {
            let header = if index % 2 == 0 { &big[..] } else { &[] };
            let trailer = if index % 3 == 0 { &big[..BLOCK_TRAILER_BYTES_MAX] } else { &b"t"[..] };
            let data = pattern(size, index as u8);
            send_block(sender, header, &data, trailer).unwrap();
            match receiver.recv().unwrap() {
                Arrival::Block { header: h, data: d, trailer: t } => {
                    assert!(h == header && d == data && t == trailer, "block of {size} bytes");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn control_frames_arrive_in_order_and_up_to_the_limit() {
    let (mut client, mut server) = lane_pair();
    let frames = [vec![], vec![1], pattern(CONTROL_FRAME_BYTES_MAX as u64, 3), b"last".to_vec()];
    for (sender, receiver) in [(&mut client.tx, &server.arrivals), (&mut server.tx, &client.arrivals)] {
        for frame in &frames {
            sender.control(frame).unwrap();
        }
        for frame in &frames {
            assert_eq!(receiver.recv().unwrap(), Arrival::Control(frame.clone()));
        }
    }
    assert_eq!(client.tx.control(&vec![0; CONTROL_FRAME_BYTES_MAX + 1]).unwrap_err().kind, ErrorKind::Internal);
}

#[test]
fn an_abandoned_block_leaves_the_lane_usable() {
    let (mut client, server) = lane_pair();
    client.tx.block_begin(b"gone", 1 << 20).unwrap();
    client.tx.block_data(Bytes::from(pattern(500_000, 0))).unwrap();
    // The notice may overtake all data. The receiver then gets no call for the block at all.
    client.tx.block_abandon().unwrap();
    send_block(&mut client.tx, b"kept", b"data", b"").unwrap();
    let kept = Arrival::Block { header: b"kept".to_vec(), data: b"data".to_vec(), trailer: vec![] };
    let first = server.arrivals.recv().unwrap();
    if first == Arrival::Abandoned {
        assert_eq!(server.arrivals.recv().unwrap(), kept);
    } else {
        assert_eq!(first, kept);
    }
}

#[test]
fn closing_delivers_what_was_given_and_tells_the_reason() {
    let (mut client, server) = lane_pair();
    let data = pattern(1 << 20, 5);
    for _ in 0..4 {
        send_block(&mut client.tx, b"h", &data, b"t").unwrap();
    }
    client.tx.control(b"and this").unwrap();
    client.handle.close("all done");
    client.handle.close("twice does no harm");
    assert!(server.reader.join().unwrap().is_ok());
    let arrivals: Vec<Arrival> = server.arrivals.iter().collect();
    assert_eq!(arrivals.iter().filter(|a| matches!(a, Arrival::Block { .. })).count(), 4);
    assert!(arrivals.contains(&Arrival::Control(b"and this".to_vec())));
    assert!(client.reader.join().unwrap().is_ok());
    let mut server_tx = server.tx;
    let error = server_tx.control(b"too late").unwrap_err();
    assert!(error.text().contains("all done"), "{error}");
}

#[test]
fn a_slow_sink_stops_the_sender_instead_of_filling_memory() {
    let (mut client, server) = lane_pair_with(|options| QuicOptions { memory: ByteCount::mebibytes(16), ..options });
    let closed = server.gate.lock();
    let (progress, sent) = mpsc::channel();
    let sender = thread::spawn(move || {
        // Blocks of many packets: the engine fails with 2048 unread packets of one stream.
        let data = Bytes::from(vec![7; 1 << 20]);
        for _ in 0..32 {
            client.tx.block_begin(b"", BLOCK_BYTES_MAX).unwrap();
            for _ in 0..16 {
                client.tx.block_data(data.clone()).unwrap();
                progress.send(()).unwrap();
            }
            client.tx.block_end(b"").unwrap();
        }
        client
    });
    // 512 MiB are offered. The windows of both ends, the queue and the inbox hold under 200 MiB; the receiver's
    // window is 128 MiB by default. The sender stops there for as long as the sink does.
    sent.recv().unwrap();
    let mut count = 1;
    while sent.recv_timeout(super::CLOSE_GRACE).is_ok() {
        count += 1;
    }
    assert!(count < 200, "{count} MiB were taken");
    drop(closed);
    let client = sender.join().unwrap();
    let arrived = server.arrivals.iter().take(32).count();
    assert_eq!(arrived, 32);
    drop(client);
}

#[test]
fn an_error_of_the_sink_closes_the_lane_and_the_peer_hears_why() {
    let (ours, theirs) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let listener = listener(&theirs);
    let mut client = side(connect(&options(&listener), &ours).unwrap(), false);
    let server = side(listener.accept().unwrap().unwrap(), true);
    let _ = send_block(&mut client.tx, b"h", b"data", b"t");
    assert_eq!(server.reader.join().unwrap().unwrap_err().kind, ErrorKind::NoSpace);
    let error = client.reader.join().unwrap().unwrap_err();
    assert!(error.text().contains("the disk is full"), "{error}");
    assert_eq!(error.retry, Retry::After);
    // The task that feeds the engine detects the end separately, perhaps after the reader.
    while client.tx.flush().is_ok() {
        thread::yield_now();
    }
    assert!(send_block(&mut client.tx, b"h", b"data", b"t").is_err());
}

#[test]
fn a_dropped_lane_ends_in_order_at_the_peer() {
    let (client, server) = lane_pair();
    let Side { tx, handle, reader, .. } = client;
    drop(tx);
    drop(handle);
    // The reader holds the last reference to the lane until the peer closes, so the peer closes first here.
    server.handle.close("bye");
    assert!(reader.join().unwrap().is_ok());
    assert!(server.reader.join().unwrap().is_ok());
}

#[test]
fn a_port_where_nobody_listens_refuses_at_once() {
    let identity = Identity::ephemeral().unwrap();
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = connect(&QuicOptions::new(free, SharedRate::new(RateContract::default())), &identity).err().unwrap();
    assert_eq!((error.kind, error.scope, error.retry), (ErrorKind::Unreachable, Scope::Path, Retry::After));
    assert!(error.chain().contains("connection refused"), "{}", error.chain());
}

#[test]
fn a_peer_that_never_answers_is_given_up_in_time() {
    let identity = Identity::ephemeral().unwrap();
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let options = QuicOptions {
        connect_timeout: std::time::Duration::from_millis(200),
        ..QuicOptions::new(silent.local_addr().unwrap(), SharedRate::new(RateContract::default()))
    };
    let error = connect(&options, &identity).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Unreachable);
    assert!(error.text().contains("no answer"), "{error}");
}

#[test]
fn a_lane_that_is_cut_ends_whatever_its_peer_does() {
    let listener = listener(&Identity::ephemeral().unwrap());
    let runtime = super::lane_runtime().unwrap();
    let crypto = QuicClientConfig::try_from(Identity::ephemeral().unwrap().client_config()).unwrap();
    let (endpoint, connection, lane) = runtime.block_on(async {
        let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let (local_addr, peer_addr) = (endpoint.local_addr().unwrap(), listener.local_addr());
        let config = ClientConfig::new(Arc::new(crypto));
        let connection = endpoint.connect_with(config, peer_addr, super::SERVER_NAME).unwrap().await.unwrap();
        let (send, receive) = connection.open_bi().await.unwrap();
        let (pace, memory) = (super::pace::Pace::new(&SharedRate::new(RateContract::default())), super::MEMORY_DEFAULT);
        let ours = connection.clone();
        let parts = super::LaneParts { connection, send, receive, pace, memory, credit: None, local_addr, peer_addr };
        (endpoint, ours, super::assemble(parts, runtime.handle().clone()).unwrap().0)
    });
    // From here on no packet leaves and none arrives: a close in order waits until its time is over.
    lane.handle.close("bye");
    assert!(connection.close_reason().is_none());
    lane.handle.cut("now");
    assert!(connection.close_reason().is_some());
    drop(endpoint);
}

#[test]
fn a_lane_that_is_cut_tells_its_peer_that_nobody_is_there_any_more() {
    let (client, server) = lane_pair();
    client.handle.cut("session over");
    assert_eq!(server.reader.join().unwrap().unwrap_err().kind, ErrorKind::Cancelled);
    client.handle.close("too late to count");
}

#[test]
fn the_end_of_a_lane_has_left_this_host_when_it_was_waited_for() {
    let listener = Arc::new(listener(&Identity::ephemeral().unwrap()));
    // The engine gets a turn only while the test drives this runtime.
    let runtime = super::lane_runtime().unwrap();
    let crypto = QuicClientConfig::try_from(Identity::ephemeral().unwrap().client_config()).unwrap();
    let accepting = Arc::clone(&listener);
    let (_endpoint, client, server) = runtime.block_on(async {
        let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let (local_addr, peer_addr) = (endpoint.local_addr().unwrap(), listener.local_addr());
        let config = ClientConfig::new(Arc::new(crypto));
        let connection = endpoint.connect_with(config, peer_addr, super::SERVER_NAME).unwrap().await.unwrap();
        let (mut send, receive) = connection.open_bi().await.unwrap();
        send.write_all(super::PREAMBLE).await.unwrap();
        let (pace, memory) = (super::pace::Pace::new(&SharedRate::new(RateContract::default())), super::MEMORY_DEFAULT);
        let parts = super::LaneParts { connection, send, receive, pace, memory, credit: None, local_addr, peer_addr };
        let client = super::assemble(parts, runtime.handle().clone()).unwrap().0;
        let server = tokio::task::spawn_blocking(move || accepting.accept()).await.unwrap().unwrap().unwrap();
        (endpoint, client, server)
    });
    let server = side(server, false);
    client.handle.cut("session over");
    let handle = Arc::clone(&client.handle);
    let waiting = thread::spawn(move || handle.wait_until_cut(Instant::now() + Duration::from_secs(60)));
    runtime.block_on(async {
        while !waiting.is_finished() {
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(server.reader.join().unwrap().unwrap_err().kind, ErrorKind::Cancelled);
}

#[test]
fn a_close_by_this_end_keeps_the_reason_of_a_peer_that_has_left() {
    let (mut client, server) = lane_pair();
    // The feeder of the lane closes it while its reader still processes a block.
    let slow = server.gate.lock();
    send_block(&mut client.tx, b"h", &pattern(1 << 20, 1), b"t").unwrap();
    client.handle.cut("session over");
    while server.handle.closed_by_peer().is_none() {
        thread::yield_now();
    }
    server.handle.close("lane ended");
    // The close runs on the thread of the engine, soon after the call.
    (0..10_000).for_each(|_| thread::yield_now());
    assert_eq!(server.handle.closed_by_peer().as_deref(), Some("session over"));
    drop(slow);
    assert_eq!(server.reader.join().unwrap().unwrap_err().kind, ErrorKind::Cancelled);
}

#[test]
fn several_lanes_share_one_port_and_one_rate() {
    let (ours, theirs) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let listener = listener(&theirs);
    let options = QuicOptions { lanes: 4, ..options(&listener) };
    let mut pairs: Vec<(Side, Side)> = Vec::new();
    for _ in 0..4 {
        let client = side(connect(&options, &ours).unwrap(), false);
        let server = listener.accept().unwrap().unwrap();
        server.handle.admit();
        pairs.push((client, side(server, false)));
    }
    // In order: each lane was accepted before the next was dialled.
    for (index, (client, server)) in pairs.iter_mut().enumerate() {
        let data = pattern(3 << 20, index as u8);
        send_block(&mut client.tx, b"h", &data, b"t").unwrap();
        let Arrival::Block { data: arrived, .. } = server.arrivals.recv().unwrap() else { panic!("a block") };
        assert!(arrived == data);
        let stats = client.handle.stats();
        assert!(stats.wire_bytes_sent > 3 << 20, "{stats:?}");
        assert!(stats.rtt_min > std::time::Duration::ZERO && stats.mtu >= 1228, "{stats:?}");
        assert_eq!(client.handle.transport(), Transport::Quic);
        assert_eq!(client.handle.peer_addr(), listener.local_addr());
        assert_eq!(client.handle.local_addr(), server.handle.peer_addr());
    }
}

#[test]
fn acknowledgements_go_once() {
    // Packets as on Ethernet: there are many, so that many are acknowledged.
    let (mut client, server) = lane_pair_with(|options| QuicOptions { payload_max: 1452, ..options });
    let data = pattern(BLOCK_BYTES_MAX, 7);
    let mut send = |blocks: u32| {
        for _ in 0..blocks {
            send_block(&mut client.tx, b"h", &data, b"t").unwrap();
            let Arrival::Block { data: arrived, .. } = server.arrivals.recv().unwrap() else { panic!("a block") };
            assert!(arrived == data);
        }
        // Copies are made below the engine, which counts what it sends and everything that arrives.
        (client.handle.stats().wire_bytes_received, server.handle.stats().wire_bytes_sent)
    };
    // The first packets of a lane are sent twice, and the first block is among them.
    let before = send(1);
    let after = send(12);
    let (came, sent) = (after.0 - before.0, after.1 - before.1);
    // Some datagrams may be in flight at either moment.
    assert!(came < sent + 2000, "{came} bytes came of {sent} that were sent");
}
