//! Tests with peers that shake hands, from one or many networks, and then send nothing. An honest peer must still
//! get in.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::{iter, thread};

use noq::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use noq::{ClientConfig, Connection, Endpoint, ServerConfig};
use parking_lot::{Condvar, Mutex};
use sterna_proto::rate::RateContract;

use super::{Listener, ListenerOptions, QuicOptions, SharedRate, connect};
use crate::identity::Identity;

/// Dials `count` times from one socket, finishes the handshakes that the listener takes, and opens no control
/// stream.
async fn knock_and_say_nothing(from: &str, listener: SocketAddr, count: usize) -> (Endpoint, Vec<Connection>) {
    let endpoint = Endpoint::client(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
    let identity = Identity::ephemeral().unwrap();
    let crypto = Arc::new(QuicClientConfig::try_from(identity.client_config()).unwrap());
    let dial = || endpoint.connect_with(ClientConfig::new(crypto.clone()), listener, super::SERVER_NAME).unwrap();
    let mut taken = Vec::new();
    for connecting in (0..count).map(|_| dial()).collect::<Vec<_>>() {
        // The listener ends some in favour of others.
        taken.extend(connecting.await.ok());
    }
    (endpoint, taken)
}

#[test]
fn who_holds_its_control_streams_back_makes_room_itself_and_keeps_nobody_out() {
    const MOST: usize = 4;
    let (ours, theirs) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let options = ListenerOptions { handshakes_max: MOST, ..ListenerOptions::default() };
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), &theirs, &options).unwrap();
    let runtime = super::lane_runtime().unwrap();
    // The kernel spreads client sockets over the listener's sockets. With this many, each of the listener's sockets
    // gets some.
    let mute: Vec<_> = (0..24)
        .map(|_| runtime.block_on(knock_and_say_nothing("127.0.0.1", listener.local_addr(), MOST + 1)))
        .collect();
    let honest = QuicOptions {
        local: Some("127.0.0.2:0".parse().unwrap()),
        ..QuicOptions::new(listener.local_addr(), SharedRate::new(RateContract::default()))
    };
    let lane = connect(&honest, &ours).unwrap();
    let accepted = iter::from_fn(|| listener.accept()).find_map(Result::ok).unwrap();
    assert_eq!((accepted.peer, lane.peer), (ours.fingerprint(), theirs.fingerprint()));
    drop(mute);
}

#[test]
fn silent_connections_from_many_networks_keep_nobody_out() {
    const MOST: usize = 16;
    let (ours, theirs) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let options = ListenerOptions { handshakes_max: MOST, ..ListenerOptions::default() };
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), &theirs, &options).unwrap();
    let runtime = super::lane_runtime().unwrap();
    // Each comes from another /24, and there are more of them than all sockets have places.
    let knock = |network| {
        let from = format!("127.1.{network}.1");
        let (endpoint, connections) = runtime.block_on(knock_and_say_nothing(&from, listener.local_addr(), 1));
        (endpoint, connections)
    };
    let mute: Vec<_> = (0..160).map(knock).collect();
    let honest = QuicOptions {
        local: Some("127.200.0.1:0".parse().unwrap()),
        ..QuicOptions::new(listener.local_addr(), SharedRate::new(RateContract::default()))
    };
    let lane = connect(&honest, &ours).unwrap();
    let accepted = iter::from_fn(|| listener.accept()).find_map(Result::ok).unwrap();
    assert_eq!((accepted.peer, lane.peer), (ours.fingerprint(), theirs.fingerprint()));
    drop(mute);
}

/// Flood that lasts until it is stopped; its dials serve as the clock of the test.
#[derive(Default)]
struct Flood {
    knocks: Mutex<u64>,
    more: Condvar,
    over: AtomicBool,
}

impl Flood {
    /// Dials from one network after the other until the flood is over.
    fn run(&self, listener: SocketAddr, open_max: usize) {
        let runtime = super::lane_runtime().unwrap();
        let mut open = VecDeque::new();
        for network in (0..=u8::MAX).cycle() {
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            open.push_back(runtime.block_on(knock_and_say_nothing(&format!("127.1.{network}.1"), listener, 1)));
            // A connection that is dropped frees its place. Only the oldest are dropped, which the listener has
            // ended long ago.
            if open.len() > open_max {
                open.pop_front();
            }
            *self.knocks.lock() += 1;
            self.more.notify_all();
        }
    }

    /// Waits until the flood has dialled `number` times, or is over.
    fn wait_until(&self, number: u64) {
        let mut now = self.knocks.lock();
        while *now < number && !self.over.load(Ordering::Relaxed) {
            self.more.wait(&mut now);
        }
    }

    /// Relays between a client and the listener. Each datagram of the listener is delayed by `late` dials.
    fn keep_far(self: &Arc<Self>, listener: SocketAddr, late: u64) -> SocketAddr {
        let near = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let far = Arc::new(UdpSocket::bind("127.200.0.1:0").unwrap());
        far.connect(listener).unwrap();
        let addr = near.local_addr().unwrap();
        let client: Arc<Mutex<Option<SocketAddr>>> = Arc::default();
        let (answers, on_their_way) = mpsc::channel::<(u64, Vec<u8>)>();
        let (from, heard_of, out) = (Arc::clone(&near), Arc::clone(&client), Arc::clone(&far));
        thread::spawn(move || {
            let mut data = [0; 1 << 16];
            while let Ok((count, client)) = from.recv_from(&mut data) {
                *heard_of.lock() = Some(client);
                // The listener may be gone at the end.
                let _ = out.send(&data[..count]);
            }
        });
        let flood = Arc::clone(self);
        thread::spawn(move || {
            let mut data = [0; 1 << 16];
            while let Ok(count) = far.recv(&mut data) {
                let due = *flood.knocks.lock() + late;
                if answers.send((due, data[..count].to_vec())).is_err() {
                    return;
                }
            }
        });
        let flood = Arc::clone(self);
        thread::spawn(move || {
            for (due, data) in on_their_way {
                flood.wait_until(due);
                if let Some(client) = *client.lock() {
                    let _ = near.send_to(&data, client);
                }
            }
        });
        addr
    }
}

/// Ends the flood when dropped, also if the test fails.
struct Ending(Arc<Flood>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
        self.0.more.notify_all();
    }
}

/// Most dials of a client whose handshake takes longer, by an eighth, than the flood needs to fill every place.
/// Reason: one in three gets in where places are taken at random (e to the power of -9/8). This many dials fail
/// once in 10^10 runs.
const TRIES_MAX: usize = 64;

#[test]
fn a_flood_that_fills_every_place_within_a_round_trip_does_not_lock_a_far_client_out() {
    const MOST: usize = 8;
    let (ours, theirs) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let options = ListenerOptions { handshakes_max: MOST, ..ListenerOptions::default() };
    let listener = Arc::new(Listener::bind("127.0.0.1:0".parse().unwrap(), &theirs, &options).unwrap());
    let places = (MOST * thread::available_parallelism().unwrap().get().min(super::listener::SOCKETS_MAX)) as u64;
    let flood = Arc::new(Flood::default());
    let (flooding, to) = (Arc::clone(&flood), listener.local_addr());
    let _ending = Ending(Arc::clone(&flood));
    thread::spawn(move || flooding.run(to, 4 * places as usize));
    flood.wait_until(2 * places);
    // A listener that ends the oldest handshake would end this client's each time.
    let far = flood.keep_far(to, places + places / 8);
    let (accepting, expected, is_in) = (Arc::clone(&listener), ours.fingerprint(), Arc::new(AtomicBool::new(false)));
    let got_in = Arc::clone(&is_in);
    thread::spawn(move || {
        let mut peers = iter::from_fn(|| accepting.accept()).filter_map(Result::ok);
        got_in.store(peers.any(|lane| lane.peer == expected), Ordering::Relaxed);
    });
    let mut dialled = Vec::new();
    for _ in 0..TRIES_MAX {
        if is_in.load(Ordering::Relaxed) {
            return;
        }
        let honest = QuicOptions::new(far, SharedRate::new(RateContract::default()));
        dialled.extend(connect(&honest, &ours).ok());
    }
    assert!(!dialled.is_empty(), "{TRIES_MAX} dials, and no lane");
}

/// Returns the first datagrams of a dial, which have its ClientHello.
fn recorded_hello() -> Vec<Vec<u8>> {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = silent.local_addr().unwrap();
    let runtime = super::lane_runtime().unwrap();
    let (received, datagrams) = mpsc::channel();
    thread::spawn(move || {
        let mut data = [0; 1 << 16];
        for _ in 0..2 {
            let count = silent.recv(&mut data).unwrap();
            received.send(data[..count].to_vec()).unwrap();
        }
    });
    runtime.block_on(async {
        tokio::select! {
            _ = knock_and_say_nothing("127.0.0.1", addr, 1) => panic!("nobody answers"),
            hello = tokio::task::spawn_blocking(move || datagrams.iter().take(2).collect()) => hello.unwrap(),
        }
    })
}

#[test]
fn the_rest_of_a_client_hello_after_the_stop_of_a_listener_does_no_harm() {
    let (one, other) = (recorded_hello(), recorded_hello());
    let crypto = QuicServerConfig::try_from(Identity::ephemeral().unwrap().server_config()).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    super::lane_runtime().unwrap().block_on(async {
        let config = ServerConfig::with_crypto(Arc::new(crypto));
        let endpoint = Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
        let send = |datagram: &[u8]| client.send_to(datagram, endpoint.local_addr().unwrap()).unwrap();
        send(&one[0]);
        // A dial that is neither taken nor refused at the stop.
        let undecided = endpoint.accept().await.unwrap();
        super::listener::close(endpoint.clone()).await;
        send(&one[1]);
        // The next dial is seen after that datagram.
        send(&other[0]);
        drop((endpoint.accept().await.unwrap(), undecided));
    });
}
