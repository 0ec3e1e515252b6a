//! Speed of QUIC lanes from memory to memory, with the CPU time of each side.
//!
//! `quic_lane_speed` alone runs both ends over loopback, each in a process of its own. `serve ADDR` and `send ADDR` run one
//! end each. Options: `--lanes N --rate RATE --size SIZE --mtu PAYLOAD --rtt MS --memory SIZE --loss CEILING`.

#![allow(clippy::print_stdout)]

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sterna_net::identity::Identity;
use sterna_net::lane::quic::{Listener, ListenerOptions, QuicOptions, SharedBudget, connect};
use sterna_net::lane::{Lane, LaneHandle, LaneSink, LaneTx};
use sterna_proto::{BitRate, ByteCount, Error};

/// What is measured.
#[derive(Clone, Debug)]
struct Plan {
    lanes: u32,
    rate: Option<BitRate>,
    size: ByteCount,
    payload_max: u16,
    rtt: Option<Duration>,
    memory: ByteCount,
    loss_ceiling: f64,
    idle: Duration,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let plan = read_plan(&mut words)?;
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => both(&plan),
        ["serve", addr] => serve(addr.parse()?, &plan),
        ["send", addr] => send(addr.parse()?, &plan),
        _ => Err("usage: quic_lane_speed [serve ADDR | send ADDR] [options]".into()),
    }
}

fn read_plan(words: &mut Vec<String>) -> Result<Plan, Box<dyn std::error::Error>> {
    let mut take = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.remove(at);
        (at < words.len()).then(|| words.remove(at))
    };
    Ok(Plan {
        lanes: take("--lanes").map_or(Ok(1), |v| v.parse())?,
        rate: take("--rate").map(|v| v.parse()).transpose()?,
        size: take("--size").map_or(Ok(ByteCount(1_000_000_000)), |v| v.parse())?,
        payload_max: take("--mtu").map_or(Ok(8952), |v| v.parse())?,
        rtt: take("--rtt").map(|v| v.parse().map(Duration::from_millis)).transpose()?,
        memory: take("--memory").map_or(Ok(ByteCount::mebibytes(128)), |v| v.parse())?,
        loss_ceiling: take("--loss").map_or(Ok(0.02), |v| v.parse())?,
        idle: Duration::from_secs(take("--idle").map_or(Ok(30), |v| v.parse())?),
    })
}

/// Both ends over loopback; the receiver is a child, so that each counts its own CPU time.
fn both(plan: &Plan) -> Result<(), Box<dyn std::error::Error>> {
    let port = std::net::UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port();
    let addr = format!("127.0.0.1:{port}");
    let mut server = Command::new(std::env::current_exe()?)
        .args(["serve", &addr, "--mtu", &plan.payload_max.to_string(), "--lanes", &plan.lanes.to_string()])
        .stdin(Stdio::null())
        .spawn()?;
    std::thread::sleep(Duration::from_millis(300));
    let sent = send(addr.parse()?, plan);
    if sent.is_err() {
        server.kill()?;
    }
    server.wait()?;
    sent
}

/// Counts what arrives on one lane and answers when all that was announced is there.
struct Counter {
    tx: Box<dyn LaneTx>,
    bytes: Arc<AtomicU64>,
    blocks: u64,
    announced: Option<u64>,
}

impl Counter {
    fn answer_when_complete(&mut self) -> Result<(), Error> {
        if self.announced == Some(self.blocks) { self.tx.control(b"complete") } else { Ok(()) }
    }
}

impl LaneSink for Counter {
    fn control(&mut self, frame: &[u8]) -> Result<(), Error> {
        let mut count = [0; 8];
        count.copy_from_slice(frame.get(..8).ok_or_else(|| Error::protocol("a short frame"))?);
        self.announced = Some(u64::from_be_bytes(count));
        self.answer_when_complete()
    }
    fn block_begin(&mut self, _block: u64, _header: &[u8], _data_len: u64) -> Result<(), Error> {
        Ok(())
    }
    fn block_data(&mut self, _block: u64, _offset: u64, data: &[u8]) -> Result<(), Error> {
        self.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(())
    }
    fn block_end(&mut self, _block: u64, _trailer: &[u8]) -> Result<(), Error> {
        self.blocks += 1;
        self.answer_when_complete()
    }
    fn block_abandoned(&mut self, _block: u64) -> Result<(), Error> {
        Ok(())
    }
}

fn serve(addr: SocketAddr, plan: &Plan) -> Result<(), Box<dyn std::error::Error>> {
    let options = ListenerOptions {
        memory: plan.memory,
        payload_max: plan.payload_max,
        idle_timeout: plan.idle,
        ..ListenerOptions::default()
    };
    let listener = Listener::bind(addr, &Identity::ephemeral()?, &options)?;
    let bytes = Arc::new(AtomicU64::new(0));
    let mut threads = Vec::new();
    for _ in 0..plan.lanes {
        let Lane { tx, rx, handle, .. } = listener.accept().ok_or("listening has stopped")??;
        let mut counter = Counter { tx, bytes: Arc::clone(&bytes), blocks: 0, announced: None };
        threads.push(std::thread::spawn(move || {
            let ended = rx.run(&mut counter);
            (ended, handle)
        }));
    }
    for thread in threads {
        let (ended, _handle) = thread.join().map_err(|_| "a lane panicked")?;
        ended?;
    }
    report_cpu("receiver", bytes.load(Ordering::Relaxed));
    Ok(())
}

/// Waits for the answer of the receiver, then closes.
struct Waiter {
    handle: Arc<dyn LaneHandle>,
    complete: std::sync::mpsc::Sender<Instant>,
}

impl LaneSink for Waiter {
    fn control(&mut self, frame: &[u8]) -> Result<(), Error> {
        assert_eq!(frame, b"complete");
        // Measured until here: the close that follows takes a round trip, which no file waits for.
        let _ = self.complete.send(Instant::now());
        self.handle.close("complete");
        Ok(())
    }
    fn block_begin(&mut self, _block: u64, _header: &[u8], _data_len: u64) -> Result<(), Error> {
        Err(Error::protocol("the receiver sends no blocks"))
    }
    fn block_data(&mut self, _block: u64, _offset: u64, _data: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn block_end(&mut self, _block: u64, _trailer: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn block_abandoned(&mut self, _block: u64) -> Result<(), Error> {
        Ok(())
    }
}

fn send(addr: SocketAddr, plan: &Plan) -> Result<(), Box<dyn std::error::Error>> {
    let identity = Arc::new(Identity::ephemeral()?);
    let budget = SharedBudget::new(plan.rate);
    let blocks = plan.size.0.div_ceil(BLOCK_BYTES);
    let next = Arc::new(AtomicU64::new(0));
    let handles = Arc::new(Mutex::new(Vec::new()));
    let started = Instant::now();
    let done = Arc::new(AtomicBool::new(false));
    let watcher = watch(Arc::clone(&handles), Arc::clone(&done));
    let mut threads = Vec::new();
    let (complete, completed) = std::sync::mpsc::channel();
    for _ in 0..plan.lanes {
        let options = QuicOptions {
            lanes: plan.lanes,
            expected_rtt: plan.rtt,
            memory: plan.memory,
            payload_max: plan.payload_max,
            loss_ceiling: plan.loss_ceiling,
            idle_timeout: plan.idle,
            ..QuicOptions::new(addr, budget.clone())
        };
        let (identity, next, handles) = (Arc::clone(&identity), Arc::clone(&next), Arc::clone(&handles));
        let complete = complete.clone();
        threads.push(std::thread::spawn(move || {
            let lane = connect(&options, &identity)?;
            if let Ok(mut handles) = handles.lock() {
                handles.push(Arc::clone(&lane.handle));
            }
            feed(lane, &next, blocks, complete)
        }));
    }
    for thread in threads {
        thread.join().map_err(|_| "a lane panicked")??;
    }
    drop(complete);
    let elapsed = completed.iter().max().unwrap_or_else(Instant::now) - started;
    done.store(true, Ordering::Relaxed);
    let most = watcher.join().map_err(|_| "the watcher panicked")?;
    let bytes = blocks * BLOCK_BYTES;
    let goodput = BitRate::mean(ByteCount(bytes), elapsed);
    let share = plan
        .rate
        .map_or(String::new(), |rate| format!(" ({:.1} % of {rate})", goodput.0 as f64 / rate.0 as f64 * 100.0));
    println!(
        "goodput {goodput}{share} in {:.2} s, {} lanes, most in a second {} bit",
        elapsed.as_secs_f64(),
        plan.lanes,
        most * 8
    );
    report_cpu("sender", bytes);
    Ok(())
}

/// Sends blocks until there are none left, and waits until all have arrived.
fn feed(lane: Lane, next: &AtomicU64, blocks: u64, complete: std::sync::mpsc::Sender<Instant>) -> Result<(), Error> {
    let Lane { mut tx, rx, handle, .. } = lane;
    let mut waiter = Waiter { handle, complete };
    let reader = std::thread::spawn(move || rx.run(&mut waiter));
    let data = Bytes::from(vec![0x5a; PIECE_BYTES as usize]);
    let mut sent = 0u64;
    while next.fetch_add(1, Ordering::Relaxed) < blocks {
        tx.block_begin(b"header", BLOCK_BYTES)?;
        for _ in 0..BLOCK_BYTES / PIECE_BYTES {
            tx.block_data(data.clone())?;
        }
        tx.block_end(b"trailer")?;
        sent += 1;
    }
    tx.control(&sent.to_be_bytes())?;
    reader.join().unwrap_or_else(|_| Err(Error::protocol("the reader panicked")))
}

/// The most bytes on the wire in any second, looked at every 20 ms.
fn watch(handles: Arc<Mutex<Vec<Arc<dyn LaneHandle>>>>, done: Arc<AtomicBool>) -> std::thread::JoinHandle<u64> {
    std::thread::spawn(move || {
        let mut marks: std::collections::VecDeque<(Instant, u64)> = std::collections::VecDeque::new();
        let mut most = 0;
        let trace = std::env::var_os("LANE_STATS").is_some();
        let begun = Instant::now();
        let mut traced = begun;
        while !done.load(Ordering::Relaxed) {
            let now = Instant::now();
            let Ok(held) = handles.lock() else { return most };
            let stats: Vec<_> = held.iter().map(|handle| handle.stats()).collect();
            drop(held);
            let sent: u64 = stats.iter().map(|stats| stats.wire_bytes_sent).sum();
            if trace && now - traced >= Duration::from_millis(200) {
                traced = now;
                for stats in &stats {
                    println!("{:.1} s {stats:?}", (now - begun).as_secs_f64());
                }
            }
            // Reading takes time too: a second begins before its first reading and ends after its last.
            marks.push_back((now, sent));
            let read = Instant::now();
            while marks.front().is_some_and(|(at, _)| read - *at > Duration::from_secs(1)) {
                marks.pop_front();
            }
            if let Some((_, before)) = marks.front() {
                most = most.max(sent.saturating_sub(*before));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        most
    })
}

fn report_cpu(side: &str, bytes: u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks =
        |index: usize| stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(index)?.parse::<f64>().ok());
    let (user, system) = (ticks(11).unwrap_or(0.0) / 100.0, ticks(12).unwrap_or(0.0) / 100.0);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak =
        status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("").split_whitespace().nth(1).unwrap_or("?");
    println!(
        "{side}: {:.2} CPU s/GB (user {user:.2} system {system:.2}), peak {peak} kB",
        (user + system) / (bytes as f64 / 1e9)
    );
}

const BLOCK_BYTES: u64 = 4 << 20;
const PIECE_BYTES: u64 = 256 << 10;
