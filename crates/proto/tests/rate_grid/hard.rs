//! Harder paths and hosts: first contact with a path, as a share of the achievable rate.

use std::time::Duration;

use sterna_lab::LinkModel;
use sterna_lab::model::{Queue, Reorder};
use sterna_proto::rate::RateContract;
use sterna_proto::{BitRate, ByteCount};

use crate::lanes_for;
use crate::path::{Hosts, Load, Path, Setup, Socket, Tally};

/// One row: the setup and the achievable rate.
struct Row {
    name: &'static str,
    setup: Setup,
    achievable: BitRate,
    /// Size of the copy: the first bytes that count.
    size: ByteCount,
}

fn link(mbit: u64, rtt_ms: u64, mtu: u16) -> LinkModel {
    let mut link = LinkModel::clean(BitRate::megabits(mbit), Duration::from_millis(rtt_ms));
    link.mtu = mtu;
    link
}

fn found(link: &LinkModel) -> RateContract {
    RateContract { expected_rtt: Some(link.rtt), ..RateContract::default() }
}

fn row(name: &'static str, link: LinkModel, hosts: Hosts, size_mb: u64) -> Row {
    let rate = link.forward.rate;
    let carried = BitRate((rate.0 as f64 * (1.0 - link.forward.loss)) as u64);
    let achievable = hosts.receives.map_or(carried, |socket| socket.rate.min(carried));
    let (size, rtt) = (ByteCount(size_mb * 1_000_000), link.rtt);
    let duration = achievable.time_for(size) * 4 + rtt * 20;
    let setup = Setup { hosts, ..Setup::new(&link, found(&link), lanes_for(rate, link.mtu), duration) };
    Row { name, setup, achievable, size }
}

/// Returns a host that reads `mbit` from a socket with `buffer_mb`, beside a sending host of at most 6 Gbit/s.
fn slow_host(mbit: u64, buffer_mb: u64) -> Hosts {
    Hosts {
        sends: Some(BitRate::megabits(6000)),
        lane_memory: Some(ByteCount(33_000_000)),
        receives: Some(Socket { rate: BitRate::megabits(mbit), buffer: ByteCount(buffer_mb * 1_000_000) }),
    }
}

fn rows() -> Vec<Row> {
    let mut shallow = link(500, 150, 1500);
    shallow.forward.queue = Queue::Bdp(0.1);
    let mut reordered = link(1000, 50, 1500);
    reordered.forward.reorder = Some(Reorder { probability: 0.05, delay: Duration::from_millis(5) });
    let mut satellite = link(150, 600, 1500);
    satellite.reverse.rate = BitRate::megabits(1);
    satellite.reverse.queue = Queue::Bytes(ByteCount(75_000));
    let mut lossy = satellite.clone();
    (lossy.forward.loss, lossy.reverse.loss) = (0.01, 0.01);
    let mut heavy = link(50, 660, 1500);
    (heavy.forward.loss, heavy.reverse.loss) = (0.05, 0.05);
    let mut given = row("5 % loss, 660 ms, rate given", heavy.clone(), Hosts::default(), 200);
    given.setup.contract =
        RateContract { expected_rtt: Some(heavy.rtt), ..RateContract::of_rate(Some(BitRate::megabits(50))) };
    vec![
        given,
        row("5 % loss, 660 ms", heavy, Hosts::default(), 200),
        row("slow receiver, 148 ms, 3 Gbit/s", link(3000, 148, 9000), slow_host(2200, 16), 3000),
        row("slow receiver, small buffer", link(3000, 148, 9000), slow_host(1500, 2), 3000),
        row("30 ms, 2 Gbit/s, jumbo", link(2000, 30, 9000), slow_host(1900, 16), 2000),
        row("queue of 0.1 BDP, 150 ms, 500 Mbit/s", shallow, Hosts::default(), 500),
        row("5 % reordered, 50 ms, 1 Gbit/s", reordered, Hosts::default(), 1000),
        row("satellite, ACK path of 1 Mbit/s", satellite, Hosts::default(), 200),
        row("satellite, 1 % loss both ways", lossy, Hosts::default(), 200),
    ]
}

/// Returns the share of the achievable rate during the first `size` bytes.
fn first(tally: &Tally, row: &Row) -> f64 {
    let took = tally.time_of(row.size).unwrap_or(row.setup.duration);
    row.achievable.time_for(row.size).as_secs_f64() / took.as_secs_f64()
}

#[test]
fn first_contact_uses_what_slow_hosts_and_hard_paths_can_do() {
    for row in rows() {
        let (tally, path) = Path::new(row.setup.clone()).run();
        let half = row.setup.duration / 2;
        let settled = tally.delivered(half, row.setup.duration).0 as f64 / row.achievable.0 as f64;
        let (lost, overrun) = (tally.lost(Duration::ZERO, row.setup.duration), tally.overrun());
        let first = first(&tally, &row);
        let cell = format!(
            "{}: first {first:.2}, settled {settled:.2}, lost {lost:.4}, overrun {overrun:.4}, {:?}",
            row.name,
            path.control().state(),
        );
        println!("{cell}");
        assert!(first > 0.85 && settled > 0.9, "{cell}");
        assert!(overrun < 0.01, "{cell}");
    }
}

/// Sends messages of `message` bytes, one every `every_us`, for eight seconds over eight lanes. Returns the number of
/// message bytes that wait at the end.
fn waiting(mbit: u64, rtt_ms: u64, message: u64, every_us: u64) -> u64 {
    let link = link(mbit, rtt_ms, 1500);
    let load = Load { message: ByteCount(message), every: Duration::from_micros(every_us) };
    let setup = Setup { load: Some(load), ..Setup::new(&link, found(&link), 8, Duration::from_secs(8)) };
    Path::new(setup).run().0.waiting
}

#[test]
fn messages_do_not_wait_for_a_search_that_has_too_little_to_send() {
    for (rtt_ms, message, every_us) in [(150, 60, 800), (150, 60, 100), (660, 60, 100), (20, 60, 50), (150, 60, 20)] {
        let waiting = waiting(1000, rtt_ms, message, every_us);
        // Bytes written in three round trips: one to evaluate a packet train, and the time to send the backlog from it.
        let most = message * 1000 / every_us * rtt_ms * 3;
        assert!(waiting < most, "{rtt_ms} ms, {message} bytes each {every_us} us: {waiting} bytes wait");
    }
}

#[test]
fn a_narrow_return_path_is_not_flooded_by_messages() {
    let mut link = link(1, 300, 1500);
    link.forward.queue = Queue::Time(Duration::from_millis(300));
    // Messages of 1.5 Mbit/s in total.
    let load = Load { message: ByteCount(60), every: Duration::from_micros(640) };
    let duration = Duration::from_secs(30);
    let (tally, _) = Path::new(Setup { load: Some(load), ..Setup::new(&link, found(&link), 8, duration) }).run();
    let arrived = tally.delivered(duration / 2, duration);
    assert!(arrived.0 > 850_000, "{arrived} of 1 Mbit/s");
    let lost = tally.lost(duration / 2, duration);
    assert!(lost < 0.1, "{lost:.3} of the packets were dropped");
}
