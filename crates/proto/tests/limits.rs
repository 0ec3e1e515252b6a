//! Tests of the accountant with given lane samples, in virtual time: each limit alone, and the order in which limits
//! bind.

use std::ops::Range;
use std::time::{Duration, Instant};

use sterna_proto::limit::{
    Accountant, Advice, LaneSample, Limit, LimitReport, QuicSample, ReceiverReport, SourceSample, TcpSample,
    TransportSample, Waits, WebSample, remedy,
};
use sterna_proto::rate::RateState;
use sterna_proto::session::LaneId;
use sterna_proto::{BitRate, ByteCount};

const STEP: Duration = Duration::from_millis(100);
const RTT: Duration = Duration::from_millis(40);

/// Shares of a feeder's time.
#[derive(Clone, Copy, Default)]
struct Feeder {
    storage: f64,
    compute: f64,
    transport: f64,
}

const HELD: Feeder = Feeder { storage: 0.0, compute: 0.05, transport: 0.95 };

/// Reports on a TCP lane that delivers 80 Mbit/s with room in its window. `change` alters the sample of each step.
fn run(feeder: Feeder, report: ReceiverReport, change: impl Fn(u32, &mut TcpSample)) -> LimitReport {
    run_with(Accountant::default(), feeder, Some(report), change)
}

fn run_with(
    mut accountant: Accountant,
    feeder: Feeder,
    report: Option<ReceiverReport>,
    change: impl Fn(u32, &mut TcpSample),
) -> LimitReport {
    let start = Instant::now();
    let mut tcp = TcpSample {
        rtt: RTT,
        rtt_min: RTT,
        window: ByteCount(500_000),
        in_flight: ByteCount(400_000),
        unsent: ByteCount(300_000),
        send_buffer: ByteCount(2_000_000),
        send_buffer_max: ByteCount(4_000_000),
        yields_to_loss: true,
        ..TcpSample::default()
    };
    let mut waits = Waits::default();
    for step in 0..100 {
        let now = start + STEP * step;
        tcp.sent += 700;
        tcp.delivered += 1_000_000;
        change(step, &mut tcp);
        waits.storage += STEP.mul_f64(feeder.storage);
        waits.compute += STEP.mul_f64(feeder.compute);
        waits.transport += STEP.mul_f64(feeder.transport);
        waits.idle += STEP.mul_f64((1.0 - feeder.storage - feeder.compute - feeder.transport).max(0.0));
        let times = |time: Duration| time * (step + 1);
        let reported = report.map(|report| ReceiverReport {
            lane_time: times(STEP),
            waiting: times(report.waiting),
            storage: times(report.storage),
            publishing: times(report.publishing),
            dropped: report.dropped * u64::from(step + 1),
            ..ReceiverReport::default()
        });
        reported.iter().for_each(|report| accountant.handle_report(now, report));
        let sample = LaneSample { feeder: waits, transport: TransportSample::Tcp(tcp) };
        accountant.handle_samples(now, &[(LaneId(0), sample)], &SourceSample::default());
    }
    accountant.report()
}

fn waits_for_data() -> ReceiverReport {
    ReceiverReport { waiting: STEP, ..ReceiverReport::default() }
}

#[test]
fn a_feeder_that_the_transport_does_not_hold_names_the_limit() {
    let first = |feeder| run(feeder, waits_for_data(), |_, tcp| tcp.unsent = ByteCount(0)).total.first();
    assert_eq!(first(Feeder { storage: 0.8, compute: 0.2, transport: 0.0 }), Some(Limit::SourceDisk));
    assert_eq!(first(Feeder { storage: 0.1, compute: 0.85, transport: 0.05 }), Some(Limit::Cpu));
    assert_eq!(first(Feeder { compute: 0.1, ..Feeder::default() }), Some(Limit::NothingToSend));
}

#[test]
fn a_sender_without_work_waits_for_the_storage_of_the_receiver_when_that_is_at_work() {
    let publishing = ReceiverReport { publishing: STEP, ..waits_for_data() };
    let report = run(Feeder::default(), publishing, |_, tcp| tcp.unsent = ByteCount(0));
    assert_eq!(report.total.first(), Some(Limit::DestinationDisk));
    // Data that the kernel already accepted is still in flight.
    let report = run(Feeder::default(), waits_for_data(), |_, _| {});
    assert_eq!(report.total.first(), Some(Limit::CongestionWindow));
}

/// A web server reports nothing: what a round trip brings tells a small window from a server that reads late.
#[test]
fn a_closed_window_of_a_web_server_is_small_or_read_late() {
    let to_server = |feeder, window, change: &dyn Fn(&mut TcpSample)| {
        let report = run_with(Accountant::to_web_server(), feeder, None, |_, tcp| {
            tcp.receive_window = ByteCount(window);
            change(tcp);
        });
        report.total.first()
    };
    let closed = |tcp: &mut TcpSample| tcp.rwnd_limited += STEP;
    // 80 Mbit/s bring 400 kB in 40 ms.
    assert_eq!(to_server(HELD, 450_000, &closed), Some(Limit::ReceiveWindow));
    assert_eq!(to_server(HELD, 4_000_000, &closed), Some(Limit::DestinationDisk));
    assert_eq!(to_server(HELD, 4_000_000, &|_| {}), Some(Limit::CongestionWindow));
    let never_open = |tcp: &mut TcpSample| (tcp.rwnd_limited, tcp.delivered) = (tcp.rwnd_limited + STEP, 1);
    assert_eq!(to_server(HELD, 0, &never_open), Some(Limit::DestinationDisk));
    let answers = |tcp: &mut TcpSample| tcp.unsent = ByteCount(0);
    assert_eq!(
        to_server(Feeder::default(), 4_000_000, &answers),
        Some(Limit::DestinationDisk),
        "it waits for an answer"
    );
    let reads = Feeder { storage: 0.9, compute: 0.1, transport: 0.0 };
    assert_eq!(to_server(reads, 4_000_000, &answers), Some(Limit::SourceDisk));
}

/// As between SIGSTOP and SIGCONT. The feeder counts that time as a wait for the transport, and nothing was lost.
#[test]
fn a_time_in_which_the_process_did_not_run_is_that_of_its_host() {
    let mut accountant = Accountant::default();
    let start = Instant::now();
    let mut waits = Waits::default();
    let mut now = start;
    let mut sample = |accountant: &mut Accountant, after: Duration, delivered: u64| {
        now += after;
        waits.transport += after;
        let tcp = TcpSample {
            rtt: RTT,
            rtt_min: RTT,
            window: ByteCount(500_000),
            in_flight: ByteCount(400_000),
            unsent: ByteCount(300_000),
            sent: delivered / 1000,
            delivered,
            yields_to_loss: true,
            ..TcpSample::default()
        };
        let lane = LaneSample { feeder: waits, transport: TransportSample::Tcp(tcp) };
        accountant.handle_samples(now, &[(LaneId(0), lane)], &SourceSample::default());
    };
    for step in 0..50 {
        sample(&mut accountant, STEP, step * 1_000_000);
    }
    let before = accountant.report();
    assert_eq!(before.total.first(), Some(Limit::CongestionWindow));
    let stop = Duration::from_secs(7);
    sample(&mut accountant, stop, 50_000_000);
    let after = accountant.report();
    assert_eq!(after.total.of(Limit::Cpu), stop);
    assert_eq!(after.total.of(Limit::CongestionWindow), before.total.of(Limit::CongestionWindow));
    assert_eq!((after.facts.reached, after.facts.cpu_at_receiver), (before.facts.reached, false));
    // It goes on as before.
    for step in 51..60 {
        sample(&mut accountant, STEP, step * 1_000_000);
    }
    let last = accountant.report();
    assert_eq!((last.total.of(Limit::Cpu), last.total.of(Limit::Silence)), (stop, Duration::ZERO));
    assert!(last.total.of(Limit::CongestionWindow) > before.total.of(Limit::CongestionWindow));
}

#[test]
fn a_closed_window_is_the_buffer_or_the_reader_behind_it() {
    let closed = |_, tcp: &mut TcpSample| tcp.rwnd_limited += STEP;
    assert_eq!(run(HELD, waits_for_data(), closed).total.first(), Some(Limit::ReceiveWindow));
    let storage = ReceiverReport { storage: STEP, ..ReceiverReport::default() };
    assert_eq!(run(HELD, storage, closed).total.first(), Some(Limit::DestinationDisk));
    // The remaining time, neither waiting nor storage, is processor time of the receiver.
    let busy = run(HELD, ReceiverReport::default(), closed);
    assert_eq!((busy.total.first(), busy.facts.cpu_at_receiver), (Some(Limit::Cpu), true));
}

#[test]
fn a_send_buffer_is_named_by_the_kernel_or_by_being_full() {
    let said = |_, tcp: &mut TcpSample| tcp.sndbuf_limited += STEP;
    assert_eq!(run(HELD, waits_for_data(), said).total.first(), Some(Limit::SendBuffer));
    let full = |_, tcp: &mut TcpSample| {
        (tcp.send_buffer, tcp.send_queued) = (ByteCount(4_000_000), ByteCount(3_900_000));
        (tcp.unsent, tcp.in_flight) = (ByteCount(0), ByteCount(3_400_000));
    };
    assert_eq!(run(HELD, waits_for_data(), full).total.first(), Some(Limit::SendBuffer));
}

#[test]
fn a_cap_counts_when_it_is_reached() {
    // 1 MB in 100 ms is 80 Mbit/s.
    let capped = |megabits| move |_, tcp: &mut TcpSample| tcp.cap = Some(BitRate::megabits(megabits));
    assert_eq!(run(HELD, waits_for_data(), capped(85)).total.first(), Some(Limit::RateCap));
    assert_eq!(run(HELD, waits_for_data(), capped(200)).total.first(), Some(Limit::CongestionWindow));
}

#[test]
fn what_the_receiving_host_drops_is_no_loss_of_the_path() {
    let single = |step: u32, tcp: &mut TcpSample| tcp.lost += u64::from(step.is_multiple_of(3)) * 4;
    let report = run(HELD, ReceiverReport { dropped: 1, ..waits_for_data() }, single);
    assert_eq!((report.total.first(), report.facts.cpu_at_receiver), (Some(Limit::Cpu), true));
    assert_eq!((report.facts.overrun, report.facts.lost), (100, 32));
    let said = remedy(Limit::Cpu, &report.facts).unwrap().cause;
    assert_eq!(said, "the receiver's processors are busy: its sockets dropped 100 packets that the path had brought");
}

#[test]
fn losses_one_by_one_are_loss_and_losses_in_bursts_a_policer() {
    let single = |step: u32, tcp: &mut TcpSample| tcp.lost += u64::from(step.is_multiple_of(3)) * 2;
    assert_eq!(run(HELD, waits_for_data(), single).total.first(), Some(Limit::Loss));
    let bursts = |step: u32, tcp: &mut TcpSample| tcp.lost += u64::from(step % 20 == 5) * 60;
    let policed = run(HELD, waits_for_data(), bursts);
    assert_eq!(policed.total.first(), Some(Limit::Policer));
    // A sender that stays above the policer's rate loses all excess packets, at a constant rate.
    let even = |_, tcp: &mut TcpSample| tcp.lost += 30;
    assert_eq!(run(HELD, waits_for_data(), even).total.first(), Some(Limit::Policer));
    let rate = policed.facts.policed.0 as f64;
    assert!((75e6..90e6).contains(&rate), "{rate} is what came through, with its headers");
    assert!(policed.facts.policed_is_least, "packets that come in clumps are dropped at any mean rate");
    let even = run(HELD, waits_for_data(), even).facts;
    assert!((75e6..90e6).contains(&(even.policed.0 as f64)) && !even.policed_is_least, "{even:?}");
}

/// Reports on one lane in virtual time. Receiver reports take `returning(step)` longer than without a queue.
fn run_with_delays(
    mut transport: TransportSample,
    returning: impl Fn(u32) -> Duration,
    change: impl Fn(u32, &mut TransportSample),
) -> LimitReport {
    let mut accountant = Accountant::default();
    let start = Instant::now();
    for step in 1..100u32 {
        let now = start + STEP * step;
        change(step, &mut transport);
        let (lane_time, waiting) = (STEP * step, STEP * step);
        // The receiver's clock started an hour earlier.
        let sent_at = Duration::from_secs(3600) + STEP * step - returning(step);
        accountant.handle_report(now, &ReceiverReport { sent_at, lane_time, waiting, ..ReceiverReport::default() });
        let feeder = Waits { transport: STEP * step, ..Waits::default() };
        let lanes = [(LaneId(0), LaneSample { feeder, transport })];
        accountant.handle_samples(now, &lanes, &SourceSample::default());
    }
    accountant.report()
}

#[test]
fn a_queue_of_the_return_direction_is_no_full_path() {
    let queue = Duration::from_millis(60);
    let base = TcpSample { rtt_min: RTT, in_flight: ByteCount(400_000), yields_to_loss: true, ..TcpSample::default() };
    let tcp = |step: u32, transport: &mut TransportSample| {
        let TransportSample::Tcp(tcp) = transport else { panic!() };
        tcp.sent += 700;
        tcp.delivered += 1_000_000;
        tcp.rtt = RTT + if step > 5 { queue } else { Duration::ZERO };
    };
    let queued = |step: u32| if step > 5 { queue } else { Duration::ZERO };
    let report = run_with_delays(TransportSample::Tcp(base), queued, tcp);
    assert_eq!(report.total.first(), Some(Limit::AckPath), "{:?}", report.total.shares());
    let said = remedy(Limit::AckPath, &report.facts).unwrap();
    assert_eq!(said.cause, "acknowledgements wait in a full return direction");
    assert_eq!(said.advice, Some(Advice::QuicForFewerAcknowledgements));
    // The same round trips, but reports arrive without delay: the queue is in the direction of the data.
    let report = run_with_delays(TransportSample::Tcp(base), |_| Duration::ZERO, tcp);
    assert_eq!(report.total.first(), Some(Limit::CongestionWindow));
    assert_eq!(remedy(Limit::CongestionWindow, &report.facts).unwrap().cause, "the path is full at 80.0 Mbit/s");
    // A report that is occasionally lost and sent again means nothing.
    let late = |step: u32| if step.is_multiple_of(3) { queue * 3 } else { Duration::ZERO };
    assert_eq!(run_with_delays(TransportSample::Tcp(base), late, tcp).total.first(), Some(Limit::CongestionWindow));
    let quic = |step: u32, transport: &mut TransportSample| {
        let TransportSample::Quic(quic) = transport else { panic!() };
        quic.sent += 700;
        quic.wire_bytes += 1_000_000;
        quic.heard += 1000;
        quic.rtt = RTT + if step > 5 { queue } else { Duration::ZERO };
    };
    let found =
        QuicSample { rtt_min: RTT, rate: BitRate::megabits(82), state: RateState::Found, ..QuicSample::default() };
    assert_eq!(run_with_delays(TransportSample::Quic(found), queued, quic).total.first(), Some(Limit::AckPath));
}

#[test]
fn one_overshoot_of_slow_start_is_no_loss() {
    // 500 Mbit/s, with five of 400,000 packets lost at the end of slow start.
    let overshoot = |step: u32, tcp: &mut TcpSample| {
        tcp.delivered += 5_250_000;
        tcp.sent += 3600;
        tcp.lost += if step == 12 { 5 } else { 0 };
    };
    let report = run(HELD, waits_for_data(), overshoot);
    assert_eq!(report.total.first(), Some(Limit::CongestionWindow), "{:?}", report.total.shares());
    assert_eq!(report.total.of(Limit::Loss), Duration::ZERO);
    assert_eq!(remedy(Limit::CongestionWindow, &report.facts).unwrap().cause, "the path is full at 500 Mbit/s");
}

#[test]
fn a_policer_is_said_to_let_through_what_came_between_its_drops_and_no_less_is_advised() {
    // The bucket fills while the lane sends 80 Mbit/s. 200 Mbit/s for 0.4 s empty it: 104 Mbit/s on average between
    // drops.
    let filled = |step: u32, tcp: &mut TcpSample| {
        tcp.delivered += if (4..8).contains(&(step % 20)) { 1_500_000 } else { 0 };
        tcp.sent += if (4..8).contains(&(step % 20)) { 1050 } else { 0 };
        tcp.lost += if (5..8).contains(&(step % 20)) { 20 } else { 0 };
    };
    let report = run(HELD, waits_for_data(), filled);
    assert_eq!(report.total.first(), Some(Limit::Policer), "{:?}", report.total.shares());
    let facts = report.facts;
    // 108 Mbit/s with headers. The first drop may be anywhere in its bin, so the average may be a tenth lower.
    assert!((95e6..110e6).contains(&(facts.policed.0 as f64)) && facts.policed_is_least, "{}", facts.policed);
    let said = remedy(Limit::Policer, &facts).unwrap();
    assert!(said.advice == Some(Advice::QuicForPacing) && said.cause.contains("at least"), "{said:?}");
}

#[test]
fn random_loss_beside_a_full_queue_is_no_policer() {
    // One percent is lost at random, and the queue overflows regularly (every 2 s).
    let by_chance = [7, 4, 9, 11, 5, 8, 3, 10, 6, 7, 12, 5, 8, 6, 4];
    let quic = |step: u32, transport: &mut TransportSample| {
        let TransportSample::Quic(quic) = transport else { panic!() };
        quic.sent += 700;
        quic.wire_bytes += 1_000_000;
        quic.heard += 1000;
        quic.lost += by_chance[step as usize % by_chance.len()] + if step % 20 == 15 { 90 } else { 0 };
        quic.rtt = if step % 20 >= 5 { RTT * 2 } else { RTT };
        // The rate control may attribute these losses to a policer.
        quic.state = if step > 30 { RateState::Policed(BitRate(49_400_000)) } else { RateState::Found };
    };
    let lane = QuicSample { rtt_min: RTT, rate: BitRate::megabits(82), ..QuicSample::default() };
    let report = run_with_delays(TransportSample::Quic(lane), |_| Duration::ZERO, quic);
    assert_eq!(report.total.first(), Some(Limit::CongestionWindow), "{:?}", report.total.shares());
    assert_eq!(report.total.of(Limit::Policer), Duration::ZERO);
    assert_eq!(report.facts.policed, BitRate(0));
}

#[test]
fn drops_of_a_host_that_is_late_are_those_of_the_queue_that_stands_otherwise() {
    // The queue is persistent, except for a fifth of the time, when bursts overflow it.
    let run_at = |policed: u64| {
        let quic = |step: u32, transport: &mut TransportSample| {
            let TransportSample::Quic(quic) = transport else { panic!() };
            quic.sent += 700;
            quic.wire_bytes += 1_000_000;
            quic.heard += 1000;
            let is_burst = step % 100 >= 80;
            quic.lost += if is_burst && step.is_multiple_of(10) { 90 } else { 0 };
            quic.rtt = if is_burst { RTT } else { RTT * 2 };
            quic.state = if is_burst { RateState::Policed(BitRate::megabits(policed)) } else { RateState::Found };
        };
        let lane = QuicSample { rtt_min: RTT, rate: BitRate::megabits(82), ..QuicSample::default() };
        run_with_delays(TransportSample::Quic(lane), |_| Duration::ZERO, quic)
    };
    let report = run_at(155);
    assert_eq!(report.total.of(Limit::Policer), Duration::ZERO, "{:?}", report.total.shares());
    assert_eq!((report.total.first(), report.facts.policed), (Some(Limit::CongestionWindow), BitRate(0)));
    // A policer for QUIC only, below the rate with which TCP fills the path, is reported as a policer.
    let report = run_at(50);
    assert!(!report.total.of(Limit::Policer).is_zero(), "{:?}", report.total.shares());
    assert_eq!(report.facts.policed, BitRate::megabits(50));
}

#[test]
fn losses_with_a_queue_are_a_full_path_and_so_are_those_that_bbr_does_not_mind() {
    let queued = |step: u32, tcp: &mut TcpSample| {
        tcp.rtt = RTT * 2;
        tcp.lost += u64::from(step % 20 == 5) * 60;
    };
    let full = run(HELD, waits_for_data(), queued);
    assert_eq!((full.total.first(), full.facts.is_growing), (Some(Limit::CongestionWindow), false));
    let bbr = |step: u32, tcp: &mut TcpSample| {
        tcp.yields_to_loss = false;
        tcp.lost += u64::from(step.is_multiple_of(3)) * 2;
    };
    assert_eq!(run(HELD, waits_for_data(), bbr).total.first(), Some(Limit::CongestionWindow));
}

#[test]
fn losses_before_a_policer_is_known_are_its_losses() {
    // One percent with a random spread, unlike the losses of bursts or of a constant excess.
    let by_chance = [7, 4, 9, 11, 5, 8, 3, 10, 6, 7, 12, 5, 8, 6, 4];
    let chance = |step: u32| by_chance.iter().cycle().take(step as usize).sum();
    let times = |known_from: u32, lost: &dyn Fn(u32) -> u64| {
        let mut accountant = Accountant::default();
        let start = Instant::now();
        for step in 0..100u32 {
            let quic = QuicSample {
                engine: Duration::ZERO,
                sent: u64::from(step) * 700,
                lost: lost(step),
                wire_bytes: u64::from(step) * 1_000_000,
                heard: u64::from(step) * 1000,
                rtt: RTT,
                rtt_min: RTT,
                window: ByteCount(1_000_000),
                in_flight: ByteCount(400_000),
                rate: BitRate::megabits(82),
                state: match step {
                    _ if step >= known_from => RateState::Policed(BitRate::megabits(82)),
                    _ => RateState::Losing,
                },
                memory: ByteCount(4_000_000),
            };
            let (lane_time, waiting) = (STEP * step, STEP * step);
            let report = ReceiverReport { lane_time, waiting, ..ReceiverReport::default() };
            accountant.handle_report(start + STEP * step, &report);
            let feeder = Waits { transport: STEP * step, ..Waits::default() };
            let sample = LaneSample { feeder, transport: TransportSample::Quic(quic) };
            accountant.handle_samples(start + STEP * step, &[(LaneId(0), sample)], &SourceSample::default());
        }
        let total = accountant.report().total;
        (total.of(Limit::Loss), total.of(Limit::Policer), total.total())
    };
    let (loss, policer, total) = times(u32::MAX, &chance);
    assert!(loss > total / 2 && policer.is_zero(), "{loss:?} {policer:?} of {total:?}");
    let (loss, policer, total) = times(90, &chance);
    assert!(policer > total / 2 && loss.is_zero(), "{loss:?} {policer:?} of {total:?}");
    // Bursts without losses between them. The accountant classifies a short copy without the rate control, which needs
    // several bursts.
    let bursts = |step: u32| u64::from((step + 15) / 20) * 140;
    let (loss, policer, total) = times(u32::MAX, &bursts);
    assert!(policer > total / 2 && policer > loss * 4, "{loss:?} {policer:?} of {total:?}");
}

/// Returns the first limits of a QUIC lane, of a TCP lane, and of a TCP lane whose host has no route during `away`. All
/// have data on its way and receive nothing during `away`.
fn first_of_away(away: Range<u32>) -> [Option<Limit>; 3] {
    [(false, true), (true, true), (true, false)].map(|(is_tcp, has_route)| {
        let mut accountant = Accountant::default();
        let start = Instant::now();
        for step in 0..200u32 {
            let heard = u64::from(if away.contains(&step) { away.start } else { step });
            let (rtt, rtt_min, window, in_flight) = (RTT, RTT, ByteCount(1_000_000), ByteCount(950_000));
            let transport = if is_tcp {
                let delivered = heard * 1_000_000;
                // Without a route, the kernel counts all data as unsent.
                let (in_flight, unsent) = match has_route || !away.contains(&step) {
                    true => (in_flight, ByteCount(0)),
                    false => (ByteCount(0), in_flight),
                };
                let sample = TcpSample { delivered, rtt, rtt_min, window, in_flight, unsent, ..TcpSample::default() };
                TransportSample::Tcp(sample)
            } else {
                TransportSample::Quic(QuicSample {
                    engine: Duration::ZERO,
                    sent: heard * 700,
                    lost: 0,
                    wire_bytes: heard * 1_000_000,
                    heard: heard * 1000,
                    rtt,
                    rtt_min,
                    window,
                    in_flight,
                    rate: BitRate::megabits(82),
                    state: RateState::Found,
                    memory: ByteCount(4_000_000),
                })
            };
            let report = ReceiverReport { lane_time: STEP * step, waiting: STEP * step, ..ReceiverReport::default() };
            accountant.handle_report(start + STEP * step, &report);
            let feeder = Waits { transport: STEP * step, ..Waits::default() };
            let sample = LaneSample { feeder, transport };
            accountant.handle_samples(start + STEP * step, &[(LaneId(0), sample)], &SourceSample::default());
        }
        accountant.report().total.first()
    })
}

#[test]
fn a_lane_of_which_nothing_comes_back_is_held_by_silence() {
    assert_eq!(first_of_away(20..190), [Some(Limit::Silence); 3]);
    assert_eq!(first_of_away(20..28), [Some(Limit::CongestionWindow); 3], "a host that stalls for less than a second");
    assert_eq!(first_of_away(0..0), [Some(Limit::CongestionWindow); 3]);
}

/// Returns the remedy for the congestion window of a QUIC lane over 50 Mbit/s and 660 ms, and the report.
///
/// The lane searches for `searching` steps, then fills the path for `full` steps. From then on one percent of its
/// packets is lost. Then it has nothing left to send for `ending` steps.
fn said_of_quic(searching: u32, full: u32, ending: u32) -> (String, LimitReport) {
    let mut accountant = Accountant::default();
    let start = Instant::now();
    let busy = searching + full;
    for step in 0..busy + ending {
        let sending = step.min(busy);
        // No acknowledgement arrives in the first round trip, and little is sent.
        let packets = u64::from(sending.saturating_sub(7)) * 500;
        let rtt = Duration::from_millis(660);
        let quic = QuicSample {
            engine: Duration::ZERO,
            sent: packets,
            lost: u64::from(sending.saturating_sub(searching)) * 5,
            wire_bytes: packets * 1250,
            heard: u64::from(step) * 1000,
            rtt: if step < searching { rtt } else { rtt * 2 },
            rtt_min: rtt,
            window: ByteCount(8_000_000),
            in_flight: ByteCount(if step < busy { (packets * 1250).min(7_500_000) } else { 1000 }),
            rate: BitRate::megabits(50),
            state: if step < searching { RateState::Searching } else { RateState::Found },
            memory: ByteCount(32_000_000),
        };
        let (transport, idle) = (STEP * sending, STEP * (step - sending));
        let feeder = Waits { transport, idle, ..Waits::default() };
        let sample = LaneSample { feeder, transport: TransportSample::Quic(quic) };
        let report = ReceiverReport { lane_time: STEP * step, waiting: STEP * step, ..ReceiverReport::default() };
        accountant.handle_report(start + STEP * step, &report);
        accountant.handle_samples(start + STEP * step, &[(LaneId(0), sample)], &SourceSample::default());
    }
    let report = accountant.report();
    (remedy(Limit::CongestionWindow, &report.facts).unwrap().cause, report)
}

#[test]
fn a_window_grows_or_is_full_by_what_it_did_for_most_of_the_time_and_not_at_the_end() {
    let (said, report) = said_of_quic(25, 15, 15);
    assert_eq!(said, "it is still growing: longer copies get more", "{:?}", report.total.shares());
    // Lost packets are not delivered.
    let (said, report) = said_of_quic(25, 200, 30);
    assert_eq!(said, "the path is full at 49.5 Mbit/s", "{:?}", report.total.shares());
    assert!((9000..=10_000).contains(&report.facts.loss_ppm), "{}", report.facts.loss_ppm);
    // Longer than the history of the path that the accountant evaluates.
    assert_eq!(said_of_quic(25, 200, 600).0, said);
}

#[test]
fn a_quic_lane_is_held_by_its_pace_its_engine_or_the_peer() {
    let first = |state, engine: f64, megabits, memory, announced| {
        let mut accountant = Accountant::default();
        let start = Instant::now();
        for step in 0..50 {
            let quic = QuicSample {
                engine: STEP.mul_f64(engine) * step,
                sent: u64::from(step) * 700,
                lost: 0,
                wire_bytes: u64::from(step) * 1_000_000,
                heard: u64::from(step) * 1000,
                rtt: RTT,
                rtt_min: RTT,
                window: ByteCount(1_000_000),
                in_flight: ByteCount(400_000),
                rate: BitRate::megabits(megabits),
                state,
                memory: ByteCount(memory),
            };
            let (lane_time, waiting, window) = (STEP * step, STEP * step, ByteCount(announced));
            let report = ReceiverReport { lane_time, waiting, window, ..ReceiverReport::default() };
            accountant.handle_report(start + STEP * step, &report);
            let feeder = Waits { transport: STEP * step, ..Waits::default() };
            let sample = LaneSample { feeder, transport: TransportSample::Quic(quic) };
            accountant.handle_samples(start + STEP * step, &[(LaneId(0), sample)], &SourceSample::default());
        }
        accountant.report().total.first()
    };
    assert_eq!(first(RateState::Given, 0.1, 82, 500_000, 4_000_000), Some(Limit::RateCap));
    assert_eq!(first(RateState::Given, 0.95, 82, 500_000, 4_000_000), Some(Limit::Cpu));
    assert_eq!(first(RateState::Found, 0.1, 82, 500_000, 4_000_000), Some(Limit::CongestionWindow));
    assert_eq!(first(RateState::Policed(BitRate::megabits(84)), 0.1, 82, 500_000, 4_000_000), Some(Limit::Policer));
    // The lane could send at four times the rate, and nearly all its memory is in flight.
    assert_eq!(first(RateState::Given, 0.1, 320, 500_000, 4_000_000), Some(Limit::SendBuffer));
    // Here the window of the receiver is the limit.
    assert_eq!(first(RateState::Given, 0.1, 320, 100_000_000, 500_000), Some(Limit::ReceiveWindow));
    assert_eq!(first(RateState::Given, 0.1, 320, 100_000_000, 4_000_000), Some(Limit::CongestionWindow));
}

#[test]
fn shares_are_of_the_time_with_lanes_and_the_mean_over_them() {
    let mut accountant = Accountant::default();
    let start = Instant::now();
    for step in 0..=10 {
        let lane = |storage: f64| LaneSample {
            feeder: Waits {
                storage: (STEP * step).mul_f64(storage),
                compute: (STEP * step).mul_f64(1.0 - storage),
                ..Waits::default()
            },
            transport: TransportSample::Tcp(TcpSample::default()),
        };
        let lanes = [(LaneId(0), lane(1.0)), (LaneId(1), lane(1.0)), (LaneId(2), lane(0.0))];
        accountant.handle_samples(start + STEP * step, &lanes, &SourceSample::default());
    }
    // An outage: while no lane is up, no limit accumulates time.
    accountant.handle_samples(start + STEP * 500, &[], &SourceSample::default());
    let report = accountant.report();
    assert_eq!(report.total.total().as_secs_f64().round(), 1.0);
    let shares = report.total.shares();
    assert_eq!((shares[0].0, shares[1].0), (Limit::SourceDisk, Limit::Cpu));
    assert!((shares[0].1 - 2.0 / 3.0).abs() < 0.01, "{shares:?}");
}

/// Connections to a web server.
#[derive(Clone, Copy)]
struct Web {
    /// Share of the time with a full window, and share of the time with packets out of order.
    full: f64,
    disordered: f64,
    /// Bytes, and with them new samples, arrive at every `every`-th sample, until sample `until`.
    every: u32,
    until: u32,
}

const WEB: Web = Web { full: 0.0, disordered: 0.0, every: 1, until: u32::MAX };

/// Reports on two lanes inside one process with this feeder, reading from a web server if `web` is given.
fn inside(feeder: Feeder, web: Option<Web>) -> LimitReport {
    let mut accountant = Accountant::default();
    let start = Instant::now();
    for step in 0..100 {
        let since = |part: f64| (STEP * step).mul_f64(part);
        let waits = Waits {
            storage: since(feeder.storage),
            compute: since(feeder.compute),
            transport: since(feeder.transport),
            idle: since((1.0 - feeder.storage - feeder.compute - feeder.transport).max(0.0)),
        };
        let web = web.map(|web| {
            let looked = (STEP * (step.min(web.until) / web.every * web.every)).mul_f64(feeder.storage * 2.0);
            WebSample {
                waited: looked,
                window_full: looked.mul_f64(web.full),
                disordered: looked.mul_f64(web.disordered),
                rtt_min: RTT,
                receive_window: ByteCount(200_000),
                receive_buffer: ByteCount(400_000),
                is_unscaled: false,
            }
        });
        let sample = LaneSample { feeder: waits, transport: TransportSample::InProcess };
        let source = SourceSample { rate: BitRate(0), web };
        accountant.handle_samples(start + STEP * step, &[(LaneId(1), sample), (LaneId(2), sample)], &source);
    }
    accountant.report()
}

#[test]
fn a_lane_within_a_process_is_bound_by_what_its_thread_did() {
    let feeder = Feeder { storage: 0.6, compute: 0.1, transport: 0.3 };
    let shares = inside(feeder, None).total.shares();
    let rounded: Vec<(Limit, u32)> =
        shares.iter().map(|(limit, share)| (*limit, (share * 100.0).round() as u32)).collect();
    assert_eq!(rounded, [(Limit::SourceDisk, 60), (Limit::DestinationDisk, 30), (Limit::Cpu, 10)]);
}

#[test]
fn a_web_server_is_named_but_for_the_time_in_which_our_window_was_full() {
    let feeder = Feeder { storage: 0.9, compute: 0.1, transport: 0.0 };
    let first = |web| {
        let report = inside(feeder, Some(web));
        let first = report.total.first().unwrap();
        (first, remedy(first, &report.facts).unwrap().cause)
    };
    assert_eq!(first(WEB), (Limit::ServerOrPath, "nothing at this end held it back".to_owned()));
    let (limit, said) = first(Web { full: 0.1, disordered: 0.4, ..WEB });
    assert_eq!(limit, Limit::ServerOrPath);
    assert!(said.starts_with("packets were lost or overtaken in 40 % of its time"), "{said}");
    assert_eq!(first(Web { full: 0.9, ..WEB }).0, Limit::ReceiveWindow);
    let slow_disk = Feeder { storage: 0.2, compute: 0.1, transport: 0.7 };
    assert_eq!(inside(slow_disk, Some(WEB)).total.first(), Some(Limit::DestinationDisk));
}

#[test]
fn a_full_window_is_named_over_paths_longer_than_the_time_between_samples_until_the_server_is_silent() {
    let feeder = Feeder { storage: 1.0, compute: 0.0, transport: 0.0 };
    let full = Web { full: 1.0, ..WEB };
    let window = |web| {
        let shares = inside(feeder, Some(web)).total.shares();
        shares.iter().find(|(limit, _)| *limit == Limit::ReceiveWindow).map_or(0.0, |(_, share)| *share)
    };
    assert!(window(full) > 0.95);
    assert!(window(Web { every: 4, ..full }) > 0.95, "{}", window(Web { every: 4, ..full }));
    let silent = window(Web { until: 50, ..full });
    assert!((0.5..0.6).contains(&silent), "{silent}");
}
