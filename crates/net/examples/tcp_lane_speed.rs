//! Moves data from memory to memory over TCP lanes on loopback and prints the rate and the CPU time of each side.
//!
//! `cargo run --release -p sterna-net --example tcp_lane_speed -- [LANES] [GIGABYTES]`
//! The receiver looks at each byte's slice but does not copy it; nothing is hashed or stored.

#![allow(clippy::print_stdout, reason = "it is what an example is for")]

use std::error::Error;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use sterna_net::identity::Identity;
use sterna_net::lane::tcp::{self, ConnectOptions, TcpOptions};
use sterna_net::lane::{LaneHandle, LaneSink, LaneTx};

/// Data of one block, and the piece of it that is given to the lane in one call.
const BLOCK_BYTES: usize = 4 << 20;
const PIECE_BYTES: usize = 256 << 10;

/// Counts what comes.
#[derive(Default)]
struct Count {
    bytes: u64,
    calls: u64,
}

impl LaneSink for Count {
    fn control(&mut self, _: &[u8]) -> Result<(), sterna_proto::Error> {
        Ok(())
    }
    fn block_begin(&mut self, _: u64, _: &[u8], _: u64) -> Result<(), sterna_proto::Error> {
        Ok(())
    }
    fn block_data(&mut self, _: u64, _: u64, data: &[u8]) -> Result<(), sterna_proto::Error> {
        self.bytes += data.len() as u64;
        self.calls += 1;
        Ok(())
    }
    fn block_end(&mut self, _: u64, _: &[u8]) -> Result<(), sterna_proto::Error> {
        Ok(())
    }
    fn block_abandoned(&mut self, _: u64) -> Result<(), sterna_proto::Error> {
        Ok(())
    }
}

/// CPU time of the calling thread so far.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn send(tx: &mut dyn LaneTx, blocks: u64) -> Result<(), sterna_proto::Error> {
    let block = Bytes::from(vec![0x5a; BLOCK_BYTES]);
    for _ in 0..blocks {
        tx.block_begin(b"header", BLOCK_BYTES as u64)?;
        for at in (0..BLOCK_BYTES).step_by(PIECE_BYTES) {
            tx.block_data(block.slice(at..at + PIECE_BYTES))?;
        }
        tx.block_end(b"trailer")?;
    }
    tx.flush()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let lanes: u64 = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let gigabytes: u64 = arguments.next().map_or(Ok(8), |text| text.parse())?;
    let blocks = (gigabytes * 1_000_000_000 / BLOCK_BYTES as u64).div_ceil(lanes.max(1));
    let (sender, receiver) = (Identity::ephemeral()?, Identity::ephemeral()?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;

    let start = Instant::now();
    let mut senders = Vec::new();
    let mut receivers = Vec::new();
    for _ in 0..lanes {
        let identity = sender.clone();
        senders.push(thread::spawn(move || -> Result<Duration, sterna_proto::Error> {
            let mut lane = tcp::connect(&ConnectOptions::new(address), &identity)?;
            let rx = lane.rx;
            let reader = thread::spawn(move || rx.run(&mut Count::default()));
            send(&mut *lane.tx, blocks)?;
            lane.handle.close("done");
            // A thread that panics is a bug of this example; its message is on the screen.
            let _ = reader.join();
            Ok(thread_cpu())
        }));
        let (stream, _) = listener.accept()?;
        let identity = receiver.clone();
        receivers.push(thread::spawn(move || -> Result<(Count, Duration), sterna_proto::Error> {
            let lane = tcp::accept(stream, &identity, &TcpOptions::default())?;
            let mut count = Count::default();
            lane.rx.run(&mut count)?;
            Ok((count, thread_cpu()))
        }));
    }
    let (mut send_cpu, mut receive_cpu, mut bytes, mut calls) = (Duration::ZERO, Duration::ZERO, 0, 0);
    for sender in senders {
        send_cpu += sender.join().map_err(|_| "a sender panicked")??;
    }
    for receiver in receivers {
        let (count, cpu) = receiver.join().map_err(|_| "a receiver panicked")??;
        (bytes, calls, receive_cpu) = (bytes + count.bytes, calls + count.calls, receive_cpu + cpu);
    }
    let elapsed = start.elapsed();
    let gb = bytes as f64 / 1e9;
    println!(
        "{lanes} lanes, {gb:.2} GB in {:.2} s: {:.2} Gbit/s; CPU s/GB: sender {:.3}, receiver {:.3}; {:.0} KB a slice",
        elapsed.as_secs_f64(),
        gb * 8.0 / elapsed.as_secs_f64(),
        send_cpu.as_secs_f64() / gb,
        receive_cpu.as_secs_f64() / gb,
        bytes as f64 / calls.max(1) as f64 / 1e3,
    );
    Ok(())
}
