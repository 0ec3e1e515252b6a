//! Packet trains over random paths in virtual time: the ceiling has the kind, the rate and the bucket of the path.

mod trains;

use std::time::Duration;

use sterna_doctor::ceiling::Ceiling;
use sterna_lab::LinkModel;
use sterna_lab::model::{Policer, Queue, Shaper};
use sterna_proto::{BitRate, ByteCount};
use sterna_seeded::{Seeded, for_seeds};

use self::trains::{Hosts, train};

/// Number of paths of each kind.
const PATHS: u64 = 400;

fn between(draw: &mut Seeded, least: f64, most: f64) -> f64 {
    least * (most / least).powf(draw.below(1_000_000) as f64 / 1e6)
}

/// Draws a path of 5 to 400 Mbit/s and 8 to 660 ms, with a little loss in half of the draws.
fn path(draw: &mut Seeded) -> (LinkModel, f64) {
    let (rate, rtt) = (between(draw, 5e6, 400e6), between(draw, 0.008, 0.660));
    let mut model = LinkModel::clean(BitRate(rate as u64), Duration::from_secs_f64(rtt));
    model.seed = draw.draw();
    if draw.chance(500) {
        model.forward.loss = between(draw, 1e-4, 5e-3);
    }
    (model, rate)
}

/// Host that sends a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    /// It keeps its schedule: the bounds are those of the judgement.
    Steady,
    /// It pauses now and then: the bounds have the error of what was not sent.
    Pausing,
}

impl Sender {
    const BOTH: [Self; 2] = [Self::Steady, Self::Pausing];

    fn hosts(self, draw: &mut Seeded) -> Hosts {
        Hosts { noise: draw.up_to(Duration::from_micros(400)), pauses: self == Self::Pausing }
    }

    /// Returns `steady` or `pausing`.
    fn bound<T>(self, steady: T, pausing: T) -> T {
        if self == Self::Steady { steady } else { pausing }
    }
}

/// Runs a scenario for both senders.
fn for_senders(name: &str, scenario: impl Fn(Sender, &mut Seeded)) {
    for sender in Sender::BOTH {
        for_seeds(name, PATHS, |seed| scenario(sender, &mut Seeded::new(seed)));
    }
}

fn is_near(value: f64, expected: f64, part: f64, grain: f64) -> bool {
    (value - expected).abs() <= (expected * part).max(grain)
}

#[test]
fn a_link_delays_from_the_first_packet() {
    for_senders("doctor: link", |sender, draw| {
        let (mut model, rate) = path(draw);
        // Shorter queues are empty after a pause of the sender.
        let shortest = sender.bound(0.005, 0.02);
        model.forward.queue = Queue::Time(Duration::from_secs_f64(between(draw, shortest, 0.6)));
        let hosts = sender.hosts(draw);
        let (spec, report) = train(&model, rate * between(draw, 1.3, 3.0), Duration::from_secs(2), hosts, draw);
        let part = sender.bound(0.03, 0.05);
        match Ceiling::of(&spec, &report) {
            Some(Ceiling::Link { bps, .. }) => assert!(is_near(bps, rate, part, 0.0), "{bps} of {rate}, {model:?}"),
            other => panic!("{sender:?}: {other:?} at {} of {model:?}", spec.rate_bps),
        }
    });
}

/// Switches have queues of some hundred kilobytes: less than a millisecond at their rate.
#[test]
fn a_shallow_queue_is_no_policer() {
    for_seeds("doctor: shallow", PATHS / 10, |seed| {
        let draw = &mut Seeded::new(seed);
        let rate = between(draw, 500e6, 1.2e9);
        let mut model = LinkModel::clean(BitRate(rate as u64), Duration::from_secs_f64(between(draw, 0.008, 0.3)));
        model.forward.queue = Queue::Bytes(ByteCount(between(draw, 50e3, 500e3) as u64));
        let hosts = Hosts { noise: draw.up_to(Duration::from_micros(30)), pauses: false };
        let (spec, report) = train(&model, rate * between(draw, 1.4, 1.7), Duration::from_secs(1), hosts, draw);
        match Ceiling::of(&spec, &report) {
            Some(Ceiling::Link { bps, .. }) => assert!(is_near(bps, rate, 0.03, 0.0), "{bps} of {rate}"),
            other => panic!("{other:?} at {} of {model:?}", spec.rate_bps),
        }
    });
}

#[test]
fn drops_of_our_own_hosts_are_no_policer() {
    for_senders("doctor: own drops", |sender, draw| {
        let (mut model, link) = path(draw);
        let rate = link / 4.0;
        model.forward.policer = Some(Policer { rate: BitRate(rate as u64), burst: ByteCount(64_000), udp_only: false });
        let hosts = sender.hosts(draw);
        let (spec, mut report) = train(&model, rate * 2.0, Duration::from_secs(1), hosts, draw);
        // The same packets, dropped by the socket of the receiver.
        report.receiver_drops = report.sent - report.received;
        let found = Ceiling::of(&spec, &report);
        assert!(matches!(found, Some(Ceiling::AtLeast(bps)) if bps < rate * 2.0), "{found:?} of {rate}");
    });
}

#[test]
fn a_train_below_the_rate_of_a_path_passes() {
    for_senders("doctor: below", |sender, draw| {
        let (model, rate) = path(draw);
        let sent = rate * between(draw, 0.05, 0.9);
        let hosts = sender.hosts(draw);
        let (spec, report) = train(&model, sent, Duration::from_millis(400), hosts, draw);
        // Five pauses take up to a quarter of the time.
        let least = sent * sender.bound(0.9, 0.6);
        match Ceiling::of(&spec, &report) {
            Some(Ceiling::AtLeast(bps)) => assert!((least..sent * 1.1).contains(&bps), "{bps} of {sent}"),
            other => panic!("{sender:?}: {other:?} at {sent} of {model:?}"),
        }
    });
}

#[test]
fn a_policer_has_its_rate_and_its_bucket() {
    let hidden = std::cell::Cell::new(0);
    for_senders("doctor: policer", |sender, draw| {
        let (mut model, link) = path(draw);
        let rate = (link / between(draw, 3.0, 20.0)).max(1e6);
        // The train empties the bucket in its first half.
        let burst = between(draw, 8e3, 2e6).min(rate / 8.0 * 0.5);
        model.forward.policer =
            Some(Policer { rate: BitRate(rate as u64), burst: ByteCount(burst as u64), udp_only: false });
        let hosts = sender.hosts(draw);
        let (spec, report) = train(&model, rate * between(draw, 1.5, 2.5), Duration::from_secs(3), hosts, draw);
        let Some(Ceiling::Policer { bps, burst: found }) = Ceiling::of(&spec, &report) else {
            panic!("{sender:?}: {:?} at {} of {model:?}", Ceiling::of(&spec, &report), spec.rate_bps);
        };
        assert!(is_near(bps, rate, 0.03, 0.0), "{bps} of {rate}, {model:?}");
        let is_right = is_near(found, burst, 0.2, 4500.0);
        assert!(is_right || sender == Sender::Pausing, "{found} of {burst}, {model:?}");
        hidden.set(hidden.get() + u64::from(!is_right));
    });
    // A pause just while the bucket empties hides its size.
    assert!(hidden.get() <= PATHS / 100, "{} of {PATHS}", hidden.get());
}

#[test]
fn a_shaper_has_its_rate_and_its_burst() {
    for_senders("doctor: shaper", |sender, draw| {
        let (mut model, link) = path(draw);
        model.forward.loss = 0.0;
        let rate = (link / between(draw, 3.0, 10.0)).max(1e6);
        let sent = rate * between(draw, 1.5, 2.5);
        let least = (sent - rate) / 8.0 * 0.05;
        let burst = between(draw, least.max(60e3), (least * 12.0).max(400e3)).min((sent - rate) / 8.0 * 1.2);
        if burst < 60e3 {
            return;
        }
        let queue = Queue::Time(Duration::from_secs_f64(between(draw, 0.05, 0.5)));
        model.forward.shaper = Some(Shaper { rate: BitRate(rate as u64), burst: ByteCount(burst as u64), queue });
        let hosts = sender.hosts(draw);
        let (spec, report) = train(&model, sent.min(link * 0.95), Duration::from_secs(3), hosts, draw);
        match Ceiling::of(&spec, &report) {
            Some(Ceiling::Shaper { bps, burst: found, .. }) => {
                assert!(is_near(bps, rate, 0.03, 0.0), "{bps} of {rate}, {model:?}");
                assert!(is_near(found, burst, 0.2, 15_000.0), "{found} of {burst}, {model:?}");
            }
            other => panic!("{sender:?}: {other:?} at {} of {model:?}", spec.rate_bps),
        }
    });
}
