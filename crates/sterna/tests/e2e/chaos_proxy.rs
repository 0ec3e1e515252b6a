//! Chaos proxy between client and agent, for TCP or UDP: counts, holds, cuts and flips data on command.
//!
//! Positions are payload bytes that have passed, the sum of both directions. A test thus acts at a position from a
//! seed, not at a time.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use socket2::SockRef;

/// Kernel buffers of the TCP sockets of the proxy. Reason: limits the data in flight, so that positions are meaningful.
const SOCKET_BUFFER_BYTES: usize = 128 << 10;

/// Time that a UDP thread waits before it checks for the end of the proxy.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Action at a mark.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// Passes all data.
    Pass,
    /// Passes nothing until [`ChaosProxy::release`]: TCP waits, datagrams are lost.
    Hold,
    /// Cuts all connections.
    Cut,
    /// Cuts all connections, and new ones too until [`ChaosProxy::release`].
    Shut,
    /// Inverts one bit at the mark.
    Flip,
}

#[derive(Default)]
struct State {
    up: u64,
    down: u64,
    mark: Option<(u64, Reaction)>,
    marks_reached: u64,
    held: bool,
    shut: bool,
    connections: Vec<TcpStream>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    target: SocketAddr,
    over: AtomicBool,
}

/// Chaos proxy; ends when dropped.
pub struct ChaosProxy {
    shared: Arc<Shared>,
    pub addr: SocketAddr,
}

impl ChaosProxy {
    /// Starts a TCP proxy in front of `agent`.
    pub fn tcp(agent: &crate::site::Agent) -> Self {
        Self::tcp_at(Ipv4Addr::LOCALHOST, agent)
    }

    fn tcp_at(ip: Ipv4Addr, agent: &crate::site::Agent) -> Self {
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let proxy = Self::before(agent, listener.local_addr().unwrap());
        let shared = Arc::clone(&proxy.shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if shared.over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.join(client));
            }
        });
        proxy
    }

    /// Starts a UDP proxy in front of `agent`.
    pub fn udp(agent: &crate::site::Agent) -> Self {
        Self::ferrying(agent, UdpSocket::bind("127.0.0.1:0").unwrap())
    }

    /// Starts a TCP proxy and a UDP proxy at the same port of `ip`, in front of two agents.
    pub fn tcp_and_udp(ip: Ipv4Addr, by_tcp: &crate::site::Agent, by_udp: &crate::site::Agent) -> (Self, Self) {
        loop {
            let tcp = Self::tcp_at(ip, by_tcp);
            // Another test may use the port for UDP.
            let Ok(socket) = UdpSocket::bind(tcp.addr) else { continue };
            return (tcp, Self::ferrying(by_udp, socket));
        }
    }

    fn ferrying(agent: &crate::site::Agent, socket: UdpSocket) -> Self {
        let proxy = Self::before(agent, socket.local_addr().unwrap());
        let shared = Arc::clone(&proxy.shared);
        thread::spawn(move || shared.ferry_datagrams(socket));
        proxy
    }

    fn before(agent: &crate::site::Agent, addr: SocketAddr) -> Self {
        let shared = Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            target: agent.addr,
            over: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), addr }
    }

    /// Returns the location of `path` at the agent, through the proxy.
    pub fn url(&self, path: &str) -> String {
        format!("sterna://{}/{path}", self.addr)
    }

    /// Sets the mark `bytes` after the current position. There is one mark at a time.
    pub fn mark(&self, bytes: u64, then: Reaction) {
        let mut state = self.shared.lock();
        state.mark = Some((state.up + state.down + bytes, then));
    }

    /// Returns the number of marks that were reached.
    pub fn marks_reached(&self) -> u64 {
        self.shared.lock().marks_reached
    }

    /// Ends a hold or shutdown, and removes the mark.
    pub fn release(&self) {
        let mut state = self.shared.lock();
        (state.held, state.shut) = (false, false);
        state.mark = None;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Cuts all current connections.
    pub fn cut(&self) {
        self.shared.lock().cut();
    }

    /// Returns the bytes that have passed from client to agent, and from agent to client.
    pub fn passed(&self) -> (u64, u64) {
        let state = self.shared.lock();
        (state.up, state.down)
    }
}

impl Drop for ChaosProxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.cut();
        self.release();
        // Wakes the accepting thread, if there is one.
        let _ = TcpStream::connect(self.addr);
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

impl State {
    fn cut(&mut self) {
        for connection in self.connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Counts `data`, and performs the action of a mark inside it.
    fn pass(&mut self, way: Direction, data: &mut [u8]) {
        let before = self.up + self.down;
        match way {
            Direction::Up => self.up += data.len() as u64,
            Direction::Down => self.down += data.len() as u64,
        }
        let Some((at, then)) = self.mark.filter(|(at, _)| *at < before + data.len() as u64) else { return };
        self.mark = None;
        self.marks_reached += 1;
        match then {
            Reaction::Pass => {}
            Reaction::Hold => self.held = true,
            Reaction::Cut => self.cut(),
            Reaction::Shut => {
                self.shut = true;
                self.cut();
            }
            Reaction::Flip => data[at.saturating_sub(before) as usize] ^= 1 << (at % 8),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Forwards one TCP connection.
    fn join(self: Arc<Self>, client: TcpStream) {
        if self.lock().shut {
            return;
        }
        let Ok(agent) = TcpStream::connect(self.target) else { return };
        for stream in [&client, &agent] {
            let _ = stream.set_nodelay(true);
            SockRef::from(stream).set_send_buffer_size(SOCKET_BUFFER_BYTES).unwrap();
            SockRef::from(stream).set_recv_buffer_size(SOCKET_BUFFER_BYTES).unwrap();
        }
        let mut state = self.lock();
        state.connections.extend([client.try_clone().unwrap(), agent.try_clone().unwrap()]);
        drop(state);
        let (back_from, back_to) = (agent.try_clone().unwrap(), client.try_clone().unwrap());
        let shared = Arc::clone(&self);
        thread::spawn(move || shared.ferry(back_from, back_to, Direction::Down));
        self.ferry(client, agent, Direction::Up);
    }

    fn ferry(&self, mut from: TcpStream, mut to: TcpStream, way: Direction) {
        let mut data = [0; 32 << 10];
        loop {
            let count = match from.read(&mut data) {
                Ok(0) | Err(_) => break,
                Ok(count) => count,
            };
            let mut state = self.lock();
            state.pass(way, &mut data[..count]);
            while state.held && !self.over.load(Ordering::Relaxed) {
                state = self.changed.wait(state).unwrap();
            }
            drop(state);
            if to.write_all(&data[..count]).is_err() {
                break;
            }
        }
        // The other direction ends separately, or has ended.
        let _ = to.shutdown(Shutdown::Write);
        let _ = from.shutdown(Shutdown::Read);
    }

    /// Forwards datagrams; each client address has a separate socket to the agent.
    fn ferry_datagrams(self: Arc<Self>, socket: UdpSocket) {
        let socket = Arc::new(socket);
        socket.set_read_timeout(Some(LOOK_EVERY)).unwrap();
        SockRef::from(&*socket).set_recv_buffer_size(4 << 20).unwrap();
        let mut upstream: std::collections::HashMap<SocketAddr, Arc<UdpSocket>> = std::collections::HashMap::new();
        let mut data = [0; 64 << 10];
        while !self.over.load(Ordering::Relaxed) {
            let Ok((count, client)) = socket.recv_from(&mut data) else { continue };
            let agent = upstream.entry(client).or_insert_with(|| self.datagrams_back(&socket, client));
            if self.let_datagram_pass(Direction::Up, &mut data[..count]) {
                // An agent that is down refuses the datagram; the client detects this.
                let _ = agent.send(&data[..count]);
            }
        }
    }

    fn datagrams_back(self: &Arc<Self>, socket: &Arc<UdpSocket>, client: SocketAddr) -> Arc<UdpSocket> {
        let agent = UdpSocket::bind("127.0.0.1:0").unwrap();
        agent.connect(self.target).unwrap();
        agent.set_read_timeout(Some(LOOK_EVERY)).unwrap();
        SockRef::from(&agent).set_recv_buffer_size(4 << 20).unwrap();
        let agent = Arc::new(agent);
        let (shared, from, to) = (Arc::clone(self), Arc::clone(&agent), Arc::clone(socket));
        thread::spawn(move || {
            let mut data = [0; 64 << 10];
            while !shared.over.load(Ordering::Relaxed) {
                match from.recv(&mut data) {
                    Ok(count) if shared.let_datagram_pass(Direction::Down, &mut data[..count]) => {
                        let _ = to.send_to(&data[..count], client);
                    }
                    Ok(_) => {}
                    Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => {}
                    Err(_) => return,
                }
            }
        });
        agent
    }

    fn let_datagram_pass(&self, way: Direction, data: &mut [u8]) -> bool {
        let mut state = self.lock();
        if state.held {
            return false;
        }
        state.pass(way, data);
        !state.held
    }
}
