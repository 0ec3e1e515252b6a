//! Cost of a lane alone: sends bytes from memory to memory, without files and hashing. Each end is a separate process.
//!
//! `cargo bench -p sterna-net --bench lanes -- VIA LANES RATE_MBIT SIZE_MB [PREFIX]` sends SIZE_MB over LANES lanes and
//! prints one line of JSON for each end. PREFIX (`ip netns exec b`) precedes the command of the receiving end. The
//! environment variable `LANES_ADDR` then gives the address of this end (default 127.0.0.1).

#![allow(clippy::print_stdout, reason = "it prints figures")]

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sterna_net::identity::Identity;
use sterna_net::lane::quic::{self, Listener, ListenerOptions, QuicOptions, SharedRate};
use sterna_net::lane::{Lane, LaneSink, tcp};
use sterna_proto::rate::RateContract;
use sterna_proto::{BitRate, Error};

const BLOCK_BYTES: u64 = 4 << 20;
const PIECE_BYTES: usize = 128 << 10;

/// Counts received bytes and discards them.
#[derive(Default)]
struct Count {
    bytes: u64,
}

impl LaneSink for Count {
    fn control(&mut self, _frame: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn block_begin(&mut self, _block: u64, _header: &[u8], _data_len: u64) -> Result<(), Error> {
        Ok(())
    }
    fn block_data(&mut self, _block: u64, _offset: u64, data: &[u8]) -> Result<(), Error> {
        self.bytes += data.len() as u64;
        Ok(())
    }
    fn block_end(&mut self, _block: u64, _trailer: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn block_abandoned(&mut self, _block: u64) -> Result<(), Error> {
        Ok(())
    }
}

struct Job {
    via: String,
    lanes: u32,
    rate: Option<BitRate>,
    bytes: u64,
}

fn main() {
    // `cargo bench` and `cargo test` add flags for the standard harness, which this program does not use.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let Some([via, lanes, rate, size]) = args.first_chunk() else {
        println!("lanes: nothing measured; give VIA LANES RATE_MBIT SIZE_MB");
        return;
    };
    let number = |text: &String| text.parse::<u64>().expect("a whole number");
    let job = Job {
        via: via.clone(),
        lanes: number(lanes) as u32,
        rate: Some(BitRate::megabits(number(rate))).filter(|rate| rate.0 > 0),
        bytes: number(size) * 1_000_000,
    };
    if std::env::var_os("LANES_RECEIVES").is_some() { receive(&job) } else { send(&job, &args) }
}

fn address() -> IpAddr {
    std::env::var("LANES_ADDR").map_or([127, 0, 0, 1].into(), |text| text.parse().expect("an address"))
}

/// Prints the port, accepts the lanes and reads each to its end.
fn receive(job: &Job) {
    let identity = Arc::new(Identity::ephemeral().expect("an identity"));
    let any = SocketAddr::new(address(), 0);
    let mut readers = Vec::new();
    let mut read = |lane: Lane| {
        readers.push(thread::spawn(move || {
            let Lane { tx, rx, handle, .. } = lane;
            let mut sink = Count::default();
            handle.admit();
            let outcome = rx.run(&mut sink);
            drop((tx, handle));
            outcome.expect("a lane that ends in order");
            sink.bytes
        }));
    };
    let mut listener = None;
    if job.via == "quic" {
        let quic = Listener::bind(any, &identity, &ListenerOptions::default()).expect("a free port");
        println!("{}", quic.local_addr());
        (0..job.lanes).for_each(|_| read(quic.accept().expect("a lane").expect("a lane")));
        listener = Some(quic);
    } else {
        let tcp = TcpListener::bind(any).expect("a free port");
        println!("{}", tcp.local_addr().expect("bound"));
        for _ in 0..job.lanes {
            let (stream, _) = tcp.accept().expect("a connection");
            read(tcp::accept(stream, &identity, &tcp::TcpOptions::default()).expect("a lane").into_lane());
        }
    }
    let bytes: u64 = readers.into_iter().map(|reader| reader.join().expect("a reader")).sum();
    drop(listener);
    report("receive", job, bytes, None);
}

fn send(job: &Job, args: &[String]) {
    let itself = std::env::current_exe().expect("our own path").display().to_string();
    let mut words: Vec<&str> = args[4..].iter().flat_map(|prefix| prefix.split(' ')).collect();
    words.push(&itself);
    let mut receiver = Command::new(words[0]);
    receiver.args(&words[1..]).args(&args[..4]).env("LANES_RECEIVES", "1").stdout(Stdio::piped());
    let mut receiver = receiver.spawn().expect("the receiving end starts");
    let mut lines = BufReader::new(receiver.stdout.take().expect("piped")).lines();
    let remote: SocketAddr = lines.next().expect("a line").expect("readable").parse().expect("an address");
    let identity = Identity::ephemeral().expect("an identity");
    let budget = SharedRate::new(RateContract::of_rate(job.rate));
    let began = Instant::now();
    let senders: Vec<_> = (0..job.lanes)
        .map(|_| {
            let lane = if job.via == "quic" {
                let options = QuicOptions { lanes: job.lanes, ..QuicOptions::new(remote, budget.clone()) };
                quic::connect(&options, &identity).expect("a lane")
            } else {
                tcp::connect(&tcp::ConnectOptions::new(remote), &identity).expect("a lane").into_lane()
            };
            lane.handle.share_rate(&budget);
            let share = job.bytes / u64::from(job.lanes);
            thread::spawn(move || send_share(lane, share))
        })
        .collect();
    senders.into_iter().for_each(|sender| sender.join().expect("a sender"));
    let took = began.elapsed();
    lines.for_each(|line| println!("{}", line.expect("readable")));
    receiver.wait().expect("the receiving end ends");
    report("send", job, job.bytes, Some(took));
}

fn send_share(lane: Lane, bytes: u64) {
    let Lane { mut tx, rx, handle, .. } = lane;
    let reader = thread::spawn(move || rx.run(&mut Count::default()));
    let piece = Bytes::from(vec![0x5a; PIECE_BYTES]);
    let mut left = bytes;
    while left > 0 {
        let block = left.min(BLOCK_BYTES);
        tx.block_begin(b"bench", block).expect("a live lane");
        let mut rest = block;
        while rest > 0 {
            let size = rest.min(PIECE_BYTES as u64);
            tx.block_data(piece.slice(..size as usize)).expect("a live lane");
            rest -= size;
        }
        tx.block_end(b"").expect("a live lane");
        left -= block;
    }
    tx.flush().expect("a live lane");
    handle.close("sent");
    // The reader's result is not needed: the receiving end counts the bytes and checks the end of the lane.
    let _ = reader.join();
}

fn report(end: &str, job: &Job, bytes: u64, took: Option<Duration>) {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let cpu = clock.tv_sec as f64 + clock.tv_nsec as f64 / 1e9;
    let rate = took.map_or(0.0, |took| bytes as f64 * 8.0 / took.as_secs_f64() / 1e6);
    let line = serde_json::json!({
        "end": end,
        "via": job.via,
        "lanes": job.lanes,
        "bytes": bytes,
        "cpu_s_per_gb": (cpu / (bytes as f64 / 1e9) * 1e3).round() / 1e3,
        "mbit_s": rate.round() as u64,
    });
    println!("{line}");
}
