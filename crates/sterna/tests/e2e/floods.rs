//! Tests floods of connections from many networks, faster than the handshake of a distant honest client. The client
//! still connects.
//!
//! The unit of time is one connection of the flood, not a second. The distant client receives each answer of the agent
//! a number of connections later.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use sterna_net::descriptors;
use sterna_net::identity::Identity;
use sterna_net::lane::tcp;

use crate::site::{Agent, Site};
use crate::tree::write;

/// IPv4 /24 networks that the flood comes from.
const NETWORKS: u64 = 10_000;

/// Behaviour of a stranger after it has connected.
#[derive(Clone)]
enum Stranger {
    Silent,
    /// Sends a ClientHello and then nothing.
    Stalling(Vec<u8>),
}

impl Stranger {
    /// Returns the number of hosts in a network that connect one after the other.
    fn hosts_of_a_network(&self) -> u64 {
        match self {
            Self::Silent => 1,
            Self::Stalling(_) => 250,
        }
    }
}

/// Connections of the flood. The flood makes only those that somebody waits for, so that a slow host has no more of
/// them in a handshake than a fast one.
#[derive(Default)]
struct Knocks {
    state: Mutex<KnocksState>,
    changed: Condvar,
}

#[derive(Default)]
struct KnocksState {
    /// Number of connections until now.
    count: u64,
    /// Number of connections that somebody waits for.
    wanted: u64,
    is_over: bool,
}

impl Knocks {
    /// Waits for `count` more connections, or for the end of the flood.
    fn wait_for(&self, count: u64) {
        let mut state = self.state.lock().unwrap();
        let until = state.count + count;
        state.wanted = state.wanted.max(until);
        self.changed.notify_all();
        while state.count < until && !state.is_over {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// Waits until somebody waits for one more connection. Returns false at the end of the flood.
    fn wait_for_waiter(&self) -> bool {
        let state = self.state.lock().unwrap();
        !self.changed.wait_while(state, |state| state.count >= state.wanted && !state.is_over).unwrap().is_over
    }

    fn handle_knock(&self) {
        self.state.lock().unwrap().count += 1;
        self.changed.notify_all();
    }

    fn end(&self) {
        self.state.lock().unwrap().is_over = true;
        self.changed.notify_all();
    }
}

/// Flood of connections; ends when dropped.
struct Flood {
    knocks: Arc<Knocks>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Flood {
    fn of(agent: &Agent, stranger: Stranger) -> Self {
        descriptors::raise_limit();
        let (knocks, addr) = (Arc::new(Knocks::default()), agent.addr);
        let knocking = Arc::clone(&knocks);
        let thread = thread::spawn(move || knock_without_end(addr, &stranger, &knocking));
        Self { knocks, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.knocks.end();
        let ended = self.thread.take().map(thread::JoinHandle::join);
        assert!(thread::panicking() || ended.is_none_or(|ended| ended.is_ok()), "the flood came to an end");
    }
}

fn knock_without_end(agent: SocketAddr, stranger: &Stranger, knocks: &Knocks) {
    // More than the agent has places for, as far as the descriptors of this process allow.
    let open_max = (descriptors::limit() / 4).min(6000);
    let mut open = VecDeque::new();
    for knock in 0u64.. {
        if !knocks.wait_for_waiter() {
            return;
        }
        let hosts = stranger.hosts_of_a_network();
        let (network, host) = (knock / hosts * 7919 % NETWORKS, 1 + knock % hosts);
        let from = Ipv4Addr::new(127, 1 + (network >> 8) as u8, network as u8, host as u8);
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
        socket.connect(&agent.into()).expect("the agent's kernel takes connections");
        if let Stranger::Stalling(hello) = stranger {
            // The connection counts when the agent has answered or reset it: the agent is never behind the count.
            let _ = (&socket).write_all(hello).and_then(|()| (&socket).read(&mut [0]));
        }
        open.push_back(socket);
        if open.len() > open_max {
            open.pop_front();
        }
        knocks.handle_knock();
    }
}

/// Returns the first bytes that a client sends.
fn recorded_hello() -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let client =
        thread::spawn(move || tcp::connect(&tcp::ConnectOptions::new(addr), &Identity::ephemeral().unwrap()).err());
    let (mut stream, _) = listener.accept().unwrap();
    let mut head = [0; 5];
    stream.read_exact(&mut head).unwrap();
    let mut hello = head.to_vec();
    hello.resize(5 + usize::from(u16::from_be_bytes([head[3], head[4]])), 0);
    stream.read_exact(&mut hello[5..]).unwrap();
    drop(stream);
    assert!(client.join().unwrap().is_some());
    hello
}

/// Proxy that delays each answer of the agent by a number of connections of the flood. As on a real path, the agent
/// receives the first bytes together with the connection.
struct FarClient {
    addr: SocketAddr,
    dials: Arc<AtomicU64>,
}

impl FarClient {
    fn new(agent: &Agent, flood: &Flood, knocks_late: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = Self { addr: listener.local_addr().unwrap(), dials: Arc::default() };
        let (agent, dials, knocks) = (agent.addr, Arc::clone(&far.dials), Arc::clone(&flood.knocks));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                dials.fetch_add(1, Ordering::Relaxed);
                let knocks = Arc::clone(&knocks);
                thread::spawn(move || carry(client, agent, &knocks, knocks_late));
            }
        });
        far
    }
}

fn carry(mut client: TcpStream, agent: SocketAddr, knocks: &Arc<Knocks>, knocks_late: u64) {
    let mut bytes = vec![0; 64 << 10];
    let Ok(count) = client.read(&mut bytes) else { return };
    let mut agent = TcpStream::connect(agent).expect("the agent's kernel takes connections");
    if agent.write_all(&bytes[..count]).is_err() {
        return;
    }
    let (mut answers, mut hears) = (agent.try_clone().unwrap(), client.try_clone().unwrap());
    let knocks = Arc::clone(knocks);
    thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = answers.read(&mut bytes) {
            knocks.wait_for(knocks_late);
            if hears.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = hears.shutdown(Shutdown::Both);
    });
    while let Ok(count @ 1..) = client.read(&mut bytes) {
        if agent.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = agent.shutdown(Shutdown::Write);
}

/// Copies a file during a flood, which has opened `places` connections before the copy starts. Returns the number of
/// dials of the client.
fn gets_in_beside(stranger: Stranger, places: u64, knocks_late: u64) -> u64 {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("f"), b"bytes");
    let flood = Flood::of(&agent, stranger);
    flood.knocks.wait_for(places);
    let far = FarClient::new(&agent, &flood, knocks_late);
    let url = format!("sterna://{}/f", far.addr);
    site.copy(&agent).args(["--via", "tcp", "--lanes", "1", "f", &url]).run().expect(0);
    assert!(site.root().join("f").exists());
    far.dials.load(Ordering::Relaxed)
}

#[test]
fn bare_connections_from_ten_thousand_networks_do_not_lock_a_far_client_out() {
    // 2,000 connections per second at a round trip of 660 ms.
    let dials = gets_in_beside(Stranger::Silent, 5000, 1320);
    assert!(dials <= 2, "{dials} tries");
}

#[test]
fn client_hellos_that_nothing_follows_do_not_lock_a_far_client_out() {
    // More in each round trip than there are places (`HANDSHAKES_MAX`), so the oldest entry would never stay. The flood
    // fills the table from about five networks, and almost every eviction hits one of these. The chances beside a flood
    // that is spread over more networks are tested with a seed (`sterna_net::crowd`).
    let dials = gets_in_beside(Stranger::Stalling(recorded_hello()), 1200, 1320);
    assert!(dials <= 2, "{dials} tries");
}
