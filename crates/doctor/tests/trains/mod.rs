//! Packet trains over a modelled path, in virtual time.

use std::time::Duration;

use sterna_lab::LinkModel;
use sterna_lab::model::{Direction, Flow, Verdict};
use sterna_net::measure::{TRAIN_BIN, TrainBin, TrainReport, TrainSpec};
use sterna_proto::path_cache::DataDirection;
use sterna_seeded::Seeded;

/// Behaviour of the hosts of a train.
#[derive(Clone, Copy)]
pub struct Hosts {
    /// Largest time that they add to an arrival; they keep the order.
    pub noise: Duration,
    /// The sender pauses five times, up to 20 ms each.
    pub pauses: bool,
}

/// Sends a train over the path.
pub fn train(
    model: &LinkModel,
    rate: f64,
    time: Duration,
    hosts: Hosts,
    draw: &mut Seeded,
) -> (TrainSpec, TrainReport) {
    const BYTES: u32 = 1500;
    let spec = TrainSpec {
        direction: DataDirection::Out,
        rate_bps: rate as u64,
        time_ms: u64::try_from(time.as_millis()).unwrap(),
        packet_bytes: vec![BYTES],
        ports: 1,
    };
    let mut path = Direction::forward(model);
    let every = f64::from(BYTES) * 8.0 / rate;
    let count = (time.as_secs_f64() / every) as u64;
    let mut report = TrainReport::default();
    let (mut latest, mut arrivals) = (Duration::ZERO, Vec::new());
    let mut late = Duration::ZERO;
    for number in 0..count {
        if hosts.pauses && draw.below(count) < 5 {
            late += draw.up_to(Duration::from_millis(20));
        }
        let sent = late + Duration::from_secs_f64(number as f64 * every);
        let arrived = match path.offer(sent, BYTES as usize, Flow::udp(7)) {
            Verdict::Deliver(delivery) => {
                latest = latest.max(delivery.at + draw.up_to(hosts.noise));
                Some(latest)
            }
            Verdict::Drop(_) => None,
        };
        arrivals.push((sent, arrived));
    }
    let first = arrivals.iter().find_map(|(_, arrived)| *arrived).unwrap_or_default();
    let delay = |sent: Duration, arrived: Duration| (arrived.as_micros() as i64) - sent.as_micros() as i64;
    let least = arrivals.iter().filter_map(|(sent, arrived)| arrived.map(|at| delay(*sent, at))).min().unwrap_or(0);
    for (sent, arrived) in arrivals {
        let index = (sent.as_micros() / TRAIN_BIN.as_micros()) as usize;
        while report.bins.len() <= index {
            let at_us = report.bins.len() as u64 * TRAIN_BIN.as_micros() as u64;
            report.bins.push(TrainBin { at_us, ..TrainBin::default() });
        }
        let bin = &mut report.bins[index];
        bin.sent += 1;
        bin.sent_bytes += u64::from(BYTES);
        report.sent += 1;
        report.sent_bytes += u64::from(BYTES);
        let Some(arrived) = arrived else { continue };
        let delay = delay(sent, arrived) - least;
        let since = arrived.saturating_sub(first).as_micros() as u64;
        bin.delay_min_us = if bin.received == 0 { delay } else { bin.delay_min_us.min(delay) };
        bin.delay_mean_us += delay;
        bin.first_arrival_us = if bin.received == 0 { since } else { bin.first_arrival_us };
        bin.last_arrival_us = since;
        bin.received += 1;
        bin.received_bytes += u64::from(BYTES);
        report.received += 1;
        report.received_bytes += u64::from(BYTES);
    }
    for bin in report.bins.iter_mut().filter(|bin| bin.received > 0) {
        bin.delay_mean_us /= i64::from(bin.received);
    }
    (spec, report)
}
