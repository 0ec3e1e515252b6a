//! Rate control over a grid of paths in virtual time: measures the share of each path that a sender reaches.

mod cubic;
mod given;
mod hard;
mod path;
mod random;

use std::time::Duration;

use path::{Path, Setup};
use sterna_lab::LinkModel;
use sterna_lab::model::{Policer, Queue, Reorder};
use sterna_proto::plan::choose_quic_lanes;
use sterna_proto::rate::RateContract;
use sterna_proto::{BitRate, ByteCount};

/// One impairment of a path.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    None,
    Loss(f64),
    ShortQueue,
    /// Policer at this share of the rate, with a bucket of 64 KiB.
    Policer(f64),
    Reordering,
    Jitter,
    Competitors(usize),
}

fn link(rate: BitRate, rtt: Duration, trouble: Trouble) -> (LinkModel, usize, BitRate) {
    let mut link = LinkModel::clean(rate, rtt);
    // Smallest queue of real routers.
    link.forward.queue = Queue::Bytes(link.forward.queue_bytes(rtt).max(ByteCount(64 * 1500)));
    if rate > BitRate::megabits(1000) {
        link.mtu = 9000;
    }
    let (mut competitors, mut possible) = (0, rate);
    match trouble {
        Trouble::None => {}
        Trouble::Loss(loss) => {
            link.forward.loss = loss;
            possible = BitRate((rate.0 as f64 * (1.0 - loss)) as u64);
        }
        Trouble::ShortQueue => {
            let queue = LinkModel::clean(rate, rtt).forward.queue_bytes(rtt).0 / 10;
            link.forward.queue = Queue::Bytes(ByteCount(queue.max(16 * u64::from(link.mtu))));
        }
        Trouble::Policer(part) => {
            possible = BitRate((rate.0 as f64 * part) as u64);
            link.forward.policer = Some(Policer { rate: possible, burst: ByteCount(64 << 10), udp_only: false });
        }
        Trouble::Reordering => {
            link.forward.reorder = Some(Reorder { probability: 0.01, delay: Duration::from_millis(5) });
        }
        Trouble::Jitter => link.forward.jitter = Duration::from_millis(5),
        Trouble::Competitors(count) => {
            competitors = count;
            possible = BitRate(rate.0 / (count as u64 + 1));
        }
    }
    (link, competitors, possible)
}

/// Result of one cell, as shares of the achievable rate.
struct Share {
    /// In the first quarter of the run, start included.
    first: f64,
    /// In the second half of the run.
    settled: f64,
    /// Share of dropped packets in the second half.
    lost: f64,
    /// Share of each competing flow in the second half, relative to its fair share.
    others: f64,
}

/// Returns the number of lanes that a session opens.
fn lanes_for(rate: BitRate, mtu: u16) -> usize {
    choose_quic_lanes(Some(rate), mtu).value as usize
}

fn measure(mbit: u64, rtt_ms: u64, trouble: Trouble) -> Share {
    // Flows that halve their window and grow again need some time on long paths to share the rate.
    let least = Duration::from_secs(if matches!(trouble, Trouble::Competitors(_)) { 60 } else { 8 });
    let most = Duration::from_secs(if mbit > 1000 { 12 } else { 40 });
    measure_for((Duration::from_millis(rtt_ms) * 60).clamp(least, least.max(most)), mbit, rtt_ms, trouble)
}

fn measure_for(duration: Duration, mbit: u64, rtt_ms: u64, trouble: Trouble) -> Share {
    let (rate, rtt) = (BitRate::megabits(mbit), Duration::from_millis(rtt_ms));
    let (link, competitors, possible) = link(rate, rtt, trouble);
    let contract = RateContract { expected_rtt: Some(rtt), ..RateContract::default() };
    let (tally, _) =
        Path::new(Setup { competitors, ..Setup::new(&link, contract, lanes_for(rate, link.mtu), duration) }).run();
    let part = |rate: BitRate| rate.0 as f64 / possible.0 as f64;
    let half = duration / 2;
    Share {
        first: part(tally.delivered(Duration::ZERO, duration / 4)),
        settled: part(tally.delivered(half, duration)),
        lost: tally.lost(half, duration),
        others: part(tally.delivered_by_others(half, duration)) / competitors.max(1) as f64,
    }
}

#[test]
fn without_a_given_rate_a_path_is_found_and_filled() {
    let troubles =
        [Trouble::None, Trouble::Loss(0.01), Trouble::ShortQueue, Trouble::Policer(0.6), Trouble::Reordering];
    for (mbit, rtt_ms) in [(1, 8), (1, 800), (10, 150), (100, 8), (100, 800), (1000, 50)] {
        for trouble in troubles {
            let share = measure(mbit, rtt_ms, trouble);
            let cell = format!("{mbit} Mbit/s, {rtt_ms} ms, {trouble:?}: {:.2} then {:.2}", share.first, share.settled);
            assert!(share.settled > 0.9, "{cell}");
            assert!(share.first > 0.5, "{cell}");
        }
    }
}

#[test]
fn beside_flows_that_keep_a_queue_full_each_has_its_part() {
    for (mbit, rtt_ms) in [(1, 50), (1, 800), (10, 8), (10, 150), (100, 50), (100, 320)] {
        for count in [1, 4] {
            let Share { settled, others, .. } = measure(mbit, rtt_ms, Trouble::Competitors(count));
            let cell =
                format!("{mbit} Mbit/s, {rtt_ms} ms, beside {count}: {settled:.2}, each of the others {others:.2}");
            assert!(settled > 0.8, "{cell}");
            assert!(others > 0.4, "{cell}");
        }
    }
}

/// Measures several of our senders that share a path, in the second minute. Returns the share of the first sender and
/// the mean share of the others, relative to an equal share. Also returns the loss of the first sender.
fn among_ours(mbit: u64, rtt_ms: u64, others: usize) -> (f64, f64, f64) {
    let (rate, rtt) = (BitRate::megabits(mbit), Duration::from_millis(rtt_ms));
    let (link, ..) = link(rate, rtt, Trouble::None);
    let contract = RateContract { expected_rtt: Some(rtt), ..RateContract::default() };
    let (half, duration) = (Duration::from_secs(60), Duration::from_secs(120));
    let setup = Setup::new(&link, contract, lanes_for(rate, link.mtu), duration);
    let (tally, _) = Path::new(setup).beside_ours(others).run();
    let part = |delivered: BitRate| delivered.0 as f64 * (others + 1) as f64 / rate.0 as f64;
    let theirs = part(tally.delivered_by_others(half, duration)) / others as f64;
    (part(tally.delivered(half, duration)), theirs, tally.lost(half, duration))
}

#[test]
fn senders_of_ours_divide_a_path_and_fill_it() {
    for (mbit, rtt_ms) in [(10, 50), (10, 150), (100, 50)] {
        for others in [1, 3] {
            let (ours, theirs, lost) = among_ours(mbit, rtt_ms, others);
            let cell =
                format!("{mbit} Mbit/s, {rtt_ms} ms, beside {others}: {ours:.2}, {theirs:.2} each, lost {lost:.3}");
            assert!(ours > 0.6 && theirs > 0.6, "{cell}");
            assert!(ours + theirs * others as f64 > 0.94 * (others + 1) as f64, "{cell}");
            assert!(lost < 0.15, "{cell}");
        }
    }
}

/// Prints the whole grid: first quarter and second half (percent of the achievable rate), then loss, or the share that
/// competing flows keep.
/// `cargo test --release -p sterna-proto --test rate_grid -- --ignored --nocapture`
#[test]
#[ignore = "a table for people"]
fn grid() {
    let troubles = [
        Trouble::None,
        Trouble::Loss(0.0001),
        Trouble::Loss(0.01),
        Trouble::ShortQueue,
        Trouble::Policer(0.6),
        Trouble::Reordering,
        Trouble::Jitter,
        Trouble::Competitors(1),
        Trouble::Competitors(4),
    ];
    let heads: Vec<String> = troubles.iter().map(|trouble| format!("{:>16}", format!("{trouble:?}"))).collect();
    println!("{:>14}{}", "", heads.join(" "));
    for mbit in [1, 10, 100, 1000, 10_000] {
        for rtt_ms in [1, 8, 50, 150, 320, 800] {
            let cells = troubles.map(|trouble| {
                let Share { first, settled, lost, others } = measure(mbit, rtt_ms, trouble);
                let beside = if matches!(trouble, Trouble::Competitors(_)) { others } else { lost };
                format!("{:>5.0} {:>4.0} {:>5.1}", 100.0 * first, 100.0 * settled, 100.0 * beside)
            });
            println!("{mbit:>5} M {rtt_ms:>4} ms{}", cells.join(" "));
        }
    }
}

/// Prints shares relative to an equal share, for our sender and for each of the others. First after five minutes beside
/// cubic flows, then beside other senders of ours, with the loss of one of these.
#[test]
#[ignore = "a table for people"]
fn neighbours() {
    for mbit in [1, 10, 100] {
        for rtt_ms in [1, 8, 50, 150, 320, 800] {
            let beside_cubic = [1, 4].map(|count| {
                let trouble = Trouble::Competitors(count);
                let Share { settled, others, .. } = measure_for(Duration::from_secs(300), mbit, rtt_ms, trouble);
                format!("{:>4.0} {:>4.0}", 100.0 * settled, 100.0 * others)
            });
            let beside_ours = [1, 3].map(|count| {
                let (ours, theirs, lost) = among_ours(mbit, rtt_ms, count);
                format!("{:>4.0} {:>4.0} {:>4.1}", 100.0 * ours, 100.0 * theirs, 100.0 * lost)
            });
            println!("{mbit:>5} M {rtt_ms:>4} ms {}   {}", beside_cubic.join("   "), beside_ours.join("   "));
        }
    }
}
