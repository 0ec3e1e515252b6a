//! Tests with peers that are not admitted yet: receive windows before admission, stateless resets across sockets.

use std::future::{Future, poll_fn};
use std::net::{SocketAddr, UdpSocket};
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::{iter, thread};

use bytes::Bytes;
use noq::crypto::rustls::QuicClientConfig;
use noq::{ClientConfig, Connection, Endpoint, TransportConfig};
use parking_lot::Mutex;
use sterna_proto::rate::RateContract;
use sterna_proto::{BitRate, Error};
use tokio::sync::mpsc as tokio_mpsc;

use super::{Listener, ListenerOptions, QuicOptions, SharedRate, connect};
use crate::identity::Identity;
use crate::lane::{Lane, LaneSink};

fn listener() -> Listener {
    let identity = Identity::ephemeral().unwrap();
    Listener::bind("127.0.0.1:0".parse().unwrap(), &identity, &ListenerOptions::default()).unwrap()
}

/// Connects `count` times and sends nothing; the engine would send everything that it gets.
async fn knock(listener: SocketAddr, count: usize) -> (Endpoint, Vec<Connection>) {
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let crypto = Arc::new(QuicClientConfig::try_from(Identity::ephemeral().unwrap().client_config()).unwrap());
    let mut transport = TransportConfig::default();
    transport.send_window(u64::MAX);
    let mut config = ClientConfig::new(crypto);
    config.transport_config(Arc::new(transport));
    let mut connections = Vec::new();
    for _ in 0..count {
        let connecting = endpoint.connect_with(config.clone(), listener, super::SERVER_NAME).unwrap();
        connections.push(connecting.await.unwrap());
    }
    (endpoint, connections)
}

/// Returns the outcome of `future` if it is ready without a wait.
async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        })
    })
    .await
}

/// Returns the bytes that the peer has granted on unidirectional streams. Passes as many to the engine; none is
/// sent meanwhile.
async fn granted(connection: &Connection, most: usize) -> usize {
    let piece = Bytes::from(vec![0; 1 << 16]);
    let mut bytes = 0;
    while let Some(Ok(mut stream)) = at_once(connection.open_uni()).await {
        // The engine takes a part of a piece that the window cuts. The write of the rest shows that the window is
        // full.
        while bytes < most
            && let Some(Ok(written)) = at_once(stream.write(&piece)).await
        {
            bytes += written;
        }
        if bytes >= most {
            break;
        }
    }
    bytes
}

#[test]
fn strangers_are_granted_no_more_together_than_a_bound_of_the_whole_port() {
    const STRANGERS: usize = 100;
    const BOUND: usize = 72 << 20;
    let listener = listener();
    super::lane_runtime().unwrap().block_on(async {
        let (_endpoint, connections) = knock(listener.local_addr(), STRANGERS).await;
        let mut sum = 0;
        for connection in &connections {
            sum += granted(connection, BOUND).await;
            assert!(sum <= BOUND, "{sum} bytes were granted to peers that nobody knows");
        }
        assert!(sum > 0, "a first flight has room while few knock");
    });
}

/// Connection id of the lane at its server, taken from the last short-header packet of the client.
type SeenId = Arc<Mutex<Vec<u8>>>;

/// Relays datagrams between one client and `server` and records the connection id. Passes datagrams from `forged`
/// to the client as if the server had sent them.
async fn relay(
    inner: tokio::net::UdpSocket,
    server: SocketAddr,
    seen: SeenId,
    mut forged: tokio_mpsc::UnboundedReceiver<Vec<u8>>,
) {
    let outer = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut client = None;
    let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let (datagram, to) = tokio::select! {
            Ok((length, from)) = inner.recv_from(&mut up) => {
                client = Some(from);
                if up[0] & 0x80 == 0 {
                    *seen.lock() = up[1..1 + ID_BYTES].to_vec();
                }
                outer.send_to(&up[..length], server).await.unwrap();
                continue;
            }
            Ok(length) = outer.recv(&mut down) => (&down[..length], client),
            datagram = forged.recv() => {
                // The test is over.
                let Some(datagram) = datagram else { return };
                down[..datagram.len()].copy_from_slice(&datagram);
                (&down[..datagram.len()], client)
            }
        };
        inner.send_to(datagram, to.unwrap()).await.unwrap();
    }
}

/// Requests stateless resets of connection `id` from many ports, so that each socket of the server's port gets a
/// request.
fn resets_of(id: &[u8], server: SocketAddr) -> Vec<Vec<u8>> {
    const PORTS: usize = 64;
    let unknown: Vec<u8> = [&[0x41], id, &[7; 200]].concat();
    // A packet of an unknown version always gets an answer. A reset, if there is one, arrives before that answer.
    let version = [&[0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8], &[1; 8][..], &[8], &[2; 8], &[0; 1200]].concat();
    let ask = |_| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(server).unwrap();
        socket.send(&unknown).unwrap();
        socket.send(&version).unwrap();
        let answers = iter::repeat_with(|| {
            let mut buffer = vec![0; 1 << 16];
            let length = socket.recv(&mut buffer).unwrap();
            buffer.truncate(length);
            buffer
        });
        answers.take_while(|answer| answer[0] & 0x80 == 0).collect::<Vec<_>>()
    };
    (0..PORTS).flat_map(ask).collect()
}

/// Sink that reports each block that is complete.
struct Count(mpsc::Sender<u64>);

impl LaneSink for Count {
    fn control(&mut self, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn block_begin(&mut self, _: u64, _: &[u8], _: u64) -> Result<(), Error> {
        Ok(())
    }
    fn block_data(&mut self, _: u64, _: u64, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn block_end(&mut self, block: u64, _: &[u8]) -> Result<(), Error> {
        self.0.send(block).map_err(|_| Error::protocol("nobody counts"))
    }
    fn block_abandoned(&mut self, _: u64) -> Result<(), Error> {
        Ok(())
    }
}

fn send_block(lane: &mut Lane, bytes: usize) {
    lane.tx.block_begin(b"", bytes as u64).unwrap();
    lane.tx.block_data(vec![1; bytes].into()).unwrap();
    lane.tx.block_end(b"").unwrap();
}

/// Takes the blocks of `lane` on a thread; returns a channel with the number of each.
fn count_blocks(lane: Lane) -> mpsc::Receiver<u64> {
    let (sender, blocks) = mpsc::channel();
    thread::spawn(move || {
        let Lane { tx, rx, handle, .. } = lane;
        let _ = rx.run(&mut Count(sender));
        drop((tx, handle));
    });
    blocks
}

#[test]
fn a_lane_that_is_admitted_takes_whole_blocks_however_many_strangers_wait() {
    let listener = listener();
    let runtime = super::lane_runtime().unwrap();
    let strangers = runtime.block_on(knock(listener.local_addr(), 60));
    let rate = SharedRate::new(RateContract::of_rate(Some(BitRate::megabits(500))));
    let mut lane = connect(&QuicOptions::new(listener.local_addr(), rate), &Identity::ephemeral().unwrap()).unwrap();
    let accepted = listener.accept().unwrap().unwrap();
    let handle = Arc::clone(&accepted.handle);
    let blocks = count_blocks(accepted);
    handle.admit();
    // Several stretches, more than any credit.
    send_block(&mut lane, 16 << 20);
    assert_eq!(blocks.recv(), Ok(0));
    drop(strangers);
}

#[test]
fn a_reset_that_one_socket_gives_ends_no_lane_of_another() {
    let listener = listener();
    let server = listener.local_addr();
    let runtime = super::lane_runtime().unwrap();
    let inner = runtime.block_on(tokio::net::UdpSocket::bind("127.0.0.1:0")).unwrap();
    let rate = SharedRate::new(RateContract::of_rate(Some(BitRate::megabits(500))));
    let options = QuicOptions::new(inner.local_addr().unwrap(), rate);
    let (seen, (forge, forged)) = (SeenId::default(), tokio_mpsc::unbounded_channel());
    let relayed = relay(inner, server, Arc::clone(&seen), forged);
    thread::spawn(move || runtime.block_on(relayed));
    let mut lane = connect(&options, &Identity::ephemeral().unwrap()).unwrap();
    let accepted = listener.accept().unwrap().unwrap();
    let blocks = count_blocks(accepted);
    send_block(&mut lane, 1000);
    assert_eq!(blocks.recv(), Ok(0));

    let id = seen.lock().clone();
    let resets = resets_of(&id, server);
    if thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
        assert!(!resets.is_empty(), "the sockets that do not know the lane say so");
    }
    resets.into_iter().for_each(|reset| forge.send(reset).unwrap());
    send_block(&mut lane, 1000);
    assert_eq!(blocks.recv(), Ok(1));
}

/// Length of the connection ids of a listener.
const ID_BYTES: usize = 8;
