//! Packet trains: delay, loss and passed bytes over time of a long train, and loss against rate of all trains.

use maud::{Markup, html};
use sterna_net::measure::{TRAIN_BIN, TrainBin, TrainReport, TrainSpec};
use sterna_proto::ByteCount;

use super::plot::{Axes, Figure, LEFT, LINE, RIGHT, Scale, WIDTH, axes, bytes, points, px, rate};
use crate::ceiling::Ceiling;
use crate::evidence::{Direction, Evidence, Purpose};
use crate::report::text;

/// Maximum number of points of a line. Reason: more are narrower than two pixels.
const POINTS_MAX: usize = 320;

/// Maximum number of trains in the plot of losses.
const TRAINS_MAX: usize = 32;

/// Interval of a train, in the unit of the plots.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    at_s: f64,
    sent: f64,
    received: f64,
    delay_min_s: f64,
    delay_max_s: f64,
    /// Bytes received of the packets that were sent until the end of the interval.
    passed: f64,
    /// End, seconds since the start of the train.
    end_s: f64,
}

/// Returns the bins in groups, at most [`POINTS_MAX`].
fn intervals(bins: &[TrainBin]) -> Vec<Interval> {
    let mut passed = 0.0;
    let every = bins.len().div_ceil(POINTS_MAX).max(1);
    let groups = bins.chunks(every).map(|group| {
        let sum = |of: fn(&TrainBin) -> u64| group.iter().map(|bin| of(bin) as f64).sum::<f64>();
        let arrived = || group.iter().filter(|bin| bin.received > 0);
        let seconds = |micros: i64| micros as f64 / 1e6;
        passed += sum(|bin| bin.received_bytes);
        Interval {
            at_s: group.first().map_or(0.0, |bin| bin.at_us as f64 / 1e6),
            sent: sum(|bin| u64::from(bin.sent)),
            received: sum(|bin| u64::from(bin.received)),
            delay_min_s: arrived().map(|bin| seconds(bin.delay_min_us)).reduce(f64::min).unwrap_or(f64::NAN),
            delay_max_s: arrived().map(|bin| seconds(bin.delay_max_us)).reduce(f64::max).unwrap_or(f64::NAN),
            passed,
            end_s: group.last().map_or(0.0, |bin| bin.at_us as f64 / 1e6 + TRAIN_BIN.as_secs_f64()),
        }
    });
    groups.collect()
}

/// Draws the last long train of one direction; `None` without one.
pub(super) fn long(evidence: &Evidence, direction: Direction) -> Option<Figure> {
    let of = |purpose| evidence.train(purpose, direction);
    let (spec, train) = of(Purpose::Overload).or_else(|| of(Purpose::SecondOverload))?;
    let intervals = intervals(&train.bins);
    let end = intervals.last()?.end_s;
    let ceiling = Ceiling::of(spec, train);
    let x = Scale::from_zero(end, LEFT, WIDTH - RIGHT);
    let body = html! {
        (delays(&x, (30.0, 150.0), &intervals))
        (losses_over_time(&x, (220.0, 60.0), &intervals))
        (passed(&x, (320.0, 130.0), &intervals, ceiling))
    };
    Some(Figure {
        name: format!("train-{}", direction.name()),
        title: format!("Above the rate of the path: a train of UDP packets, {}", text::arrow(direction)),
        caption: words(spec, train, ceiling, &intervals),
        numbers: String::new(),
        height: 320.0 + 130.0 + LINE + 10.0,
        body,
    })
}

/// Returns the rate of sending: that of the specification, or less if the sender's host was too slow.
fn sent_bps(spec: &TrainSpec, train: &TrainReport) -> f64 {
    let time_s = match (train.bins.first(), train.bins.last()) {
        (Some(first), Some(last)) => last.at_us.saturating_sub(first.at_us) as f64 / 1e6 + TRAIN_BIN.as_secs_f64(),
        _ => spec.time_ms as f64 / 1e3,
    };
    let asked = spec.rate_bps as f64;
    if train.sent_bytes == 0 { asked } else { asked.min(train.sent_bytes as f64 * 8.0 / time_s.max(1e-3)) }
}

fn words(spec: &TrainSpec, train: &TrainReport, ceiling: Option<Ceiling>, intervals: &[Interval]) -> String {
    let quarter = &intervals[intervals.len() * 3 / 4..];
    let late = quarter.iter().map(|interval| interval.delay_min_s).filter(|delay| delay.is_finite());
    let late = crate::view::median(late.collect());
    let lost = 1.0 - train.received as f64 / train.sent.max(1) as f64;
    let sent = format!(
        "{} packets at {} for {:.1} s without congestion control; {:.1} % were lost, and the delay of those that arrived \
         was {} above the smallest at the end.",
        train.sent,
        text::rate(sent_bps(spec, train) as u64),
        spec.time_ms as f64 / 1e3,
        lost.clamp(0.0, 1.0) * 100.0,
        text::time(late)
    );
    let shows = match ceiling {
        Some(Ceiling::Policer { bps, burst }) => format!(
            "The delay stays flat and the packets above the rate vanish: a device drops them and keeps no queue. The bytes \
             that passed are those of a bucket of {} that fills at {}, to the end of the train. That is a policer.",
            ByteCount(burst as u64),
            text::rate(bps as u64)
        ),
        Some(Ceiling::Shaper { bps, peak_bps, burst }) => format!(
            "{} pass at {} or more, then the delay rises and the packets leave at {}. That is a shaper: a link alone would \
             delay from the first packet on, and a policer would not delay.",
            ByteCount(burst as u64),
            text::rate(peak_bps as u64),
            text::rate(bps as u64)
        ),
        Some(Ceiling::Link { bps, queue_s }) => format!(
            "The delay rises from the first packets on until the queue is full, {} long, and the packets leave at {}. That \
             is the queue of a link.",
            text::time(queue_s),
            text::rate(bps as u64)
        ),
        Some(Ceiling::AtLeast(bps)) => format!("The path carried {} or more.", text::rate(bps as u64)),
        None => "Too few packets arrived to judge it.".to_owned(),
    };
    format!("{sent} {shows}")
}

fn seconds(value: f64) -> String {
    format!("{} s", (value * 100.0).round() / 100.0)
}

/// Draws the delays. `place`: top and height.
fn delays(x: &Scale, place: (f64, f64), intervals: &[Interval]) -> Markup {
    let (top, height) = place;
    let arrived = || intervals.iter().filter(|interval| interval.delay_max_s.is_finite());
    let most = arrived().map(|interval| interval.delay_max_s).fold(DELAY_SCALE_MIN_S, f64::max);
    let y = Scale::rounded(most, top + height, top);
    let upper = arrived().map(|interval| (x.at(interval.at_s), y.at(interval.delay_max_s)));
    let lower = arrived().map(|interval| (x.at(interval.at_s), y.at(interval.delay_min_s)));
    let band = upper.chain(lower.clone().collect::<Vec<_>>().into_iter().rev());
    html! {
        text.strong x=(px(LEFT)) y=(px(top - 11.0)) {
            "One-way delay above the smallest (line: smallest, area: up to the largest)"
        }
        (axes(x, &y, &Axes { across: None, up: &text::time }))
        polygon.band points=(points(band)) {}
        polyline.line2 points=(points(lower)) {}
    }
}

/// Smallest end of the scale of delays, seconds. Reason: below a millisecond the hosts themselves are visible, and a
/// flat line must look flat.
const DELAY_SCALE_MIN_S: f64 = 0.005;

fn losses_over_time(x: &Scale, place: (f64, f64), intervals: &[Interval]) -> Markup {
    let (top, height) = place;
    let y = Scale::from_zero(1.0, top + height, top);
    let width = (x.end - x.start) / intervals.len().max(1) as f64;
    html! {
        text.strong x=(px(LEFT)) y=(px(top - 11.0)) { "Lost packets of those sent" }
        @for mark in [0.0, 0.5, 1.0] {
            line.grid x1=(px(x.start)) x2=(px(x.end)) y1=(px(y.at(mark))) y2=(px(y.at(mark))) {}
            text.soft x=(px(x.start - 7.0)) y=(px(y.at(mark) + 4.0)) text-anchor="end" { (percent(mark)) }
        }
        @for interval in intervals {
            @let lost = 1.0 - interval.received / interval.sent.max(1.0);
            @if interval.sent > 0.0 && lost > 0.0 {
                rect.bad x=(px(x.at(interval.at_s))) y=(px(y.at(lost))) width=(px(width + 0.5))
                    height=(px(y.start - y.at(lost))) {}
            }
        }
    }
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// Draws the bytes that passed beyond the rate of the ceiling: what a bucket or a queue took. Without a ceiling, all
/// bytes that passed.
fn passed(x: &Scale, place: (f64, f64), intervals: &[Interval], ceiling: Option<Ceiling>) -> Markup {
    let (top, height) = place;
    let bps = ceiling.filter(|ceiling| ceiling.is_reached()).map(Ceiling::bps);
    let beyond = |interval: &Interval| interval.passed - bps.unwrap_or(0.0) / 8.0 * interval.end_s;
    let most = intervals.iter().map(beyond).fold(0.0, f64::max);
    let (burst, words) = match ceiling {
        Some(Ceiling::Policer { burst, .. }) => (Some(burst), "bucket"),
        Some(Ceiling::Shaper { burst, .. }) => (Some(burst), "burst"),
        Some(Ceiling::Link { bps, queue_s }) => (Some(bps / 8.0 * queue_s), "queue"),
        Some(Ceiling::AtLeast(_)) | None => (None, ""),
    };
    let y = Scale::rounded(most.max(burst.unwrap_or(0.0)) * 1.05, top + height, top);
    // The last bin may be short.
    let whole = &intervals[..intervals.len().saturating_sub(1)];
    let line = std::iter::once((x.at(0.0), y.at(0.0)))
        .chain(whole.iter().map(|interval| (x.at(interval.end_s), y.at(beyond(interval)))));
    html! {
        text.strong x=(px(LEFT)) y=(px(top - 11.0)) {
            @match bps {
                Some(bps) => { "Bytes that passed beyond a steady " (text::rate(bps as u64)) },
                None => { "Bytes that passed" },
            }
            @if let Some(burst) = burst { " (dashed: " (words) " of " (bytes(burst)) ")" }
        }
        (axes(x, &y, &Axes { across: Some(&seconds), up: &bytes }))
        @if let Some(burst) = burst {
            line.model x1=(px(x.start)) x2=(px(x.end)) y1=(px(y.at(burst))) y2=(px(y.at(burst))) {}
        }
        polyline.line2 points=(points(line)) {}
    }
}

/// Train in the plot of losses.
struct Point {
    purpose: Purpose,
    bps: f64,
    lost: f64,
    sent: u64,
}

/// Draws loss against rate of the trains of one direction; `None` without two trains.
pub(super) fn losses(evidence: &Evidence, direction: Direction) -> Option<Figure> {
    let purposes = [Purpose::LowRate, Purpose::Capacity, Purpose::Overload, Purpose::SecondOverload];
    let trains = purposes.into_iter().flat_map(|purpose| {
        evidence.trains(purpose, direction).map(move |(spec, train)| Point {
            purpose,
            bps: sent_bps(spec, train),
            lost: 1.0 - (train.received.min(train.sent) as f64 / train.sent.max(1) as f64),
            sent: train.sent,
        })
    });
    let trains: Vec<Point> = trains.filter(|point| point.sent > 0).take(TRAINS_MAX).collect();
    if trains.len() < 2 {
        return None;
    }
    let least = trains.iter().map(|point| point.bps).fold(f64::INFINITY, f64::min);
    let most = trains.iter().map(|point| point.bps).fold(0.0, f64::max);
    let x = Scale::logarithmic(least, most, LEFT, WIDTH - RIGHT);
    let ceiling = [Purpose::SecondOverload, Purpose::Overload, Purpose::Capacity]
        .into_iter()
        .find_map(|purpose| evidence.train(purpose, direction).and_then(|(spec, train)| Ceiling::of(spec, train)))
        .filter(|ceiling| ceiling.is_reached());
    let expected = ceiling.map_or(0.0, |ceiling| 1.0 - ceiling.bps() / x.most);
    let loss = trains.iter().map(|point| point.lost).fold(expected.max(0.01), f64::max);
    let (top, height) = (36.0, 190.0);
    let y = Scale::rounded(loss, top + height, top);
    let part = |value: f64| format!("{} %", (value * 1e4).round() / 1e2);
    let body = html! {
        text.strong x=(px(LEFT)) y=(px(top - 14.0)) {
            "Lost packets by the rate at which they were sent"
            @if let Some(ceiling) = ceiling { "; dashed: all above " (rate(ceiling.bps())) " is lost" }
        }
        (axes(&x, &y, &Axes { across: Some(&rate), up: &part }))
        @if let Some(ceiling) = ceiling {
            polyline.model points=(points(model(&x, &y, ceiling.bps()))) {}
        }
        @for point in &trains { (marker(point.purpose, x.at(point.bps), y.at(point.lost))) }
        (key(top + height + LINE * 2.0 + 6.0))
    };
    let each = trains.iter().map(|point| {
        let words = text::purpose(point.purpose);
        format!("{words}: {} of {} packets at {}", part(point.lost), point.sent, rate(point.bps))
    });
    Some(Figure {
        name: format!("loss-{}", direction.name()),
        title: format!("Loss against rate, {}", text::arrow(direction)),
        caption:
            "Loss that is the same at every rate is random. Loss that begins at a rate and follows the dashed line \
                  has that rate as its cause. A short train loses less than the line, because its first packets fill a \
                  queue or use up a bucket."
                .to_owned(),
        numbers: format!("Observed: {}.", each.collect::<Vec<_>>().join("; ")),
        height: top + height + LINE * 3.0,
        body,
    })
}

/// Points of the line on which a limit of the rate alone would lie.
fn model(x: &Scale, y: &Scale, bps: f64) -> Vec<(f64, f64)> {
    let steps = 64;
    let rates = (0..=steps).map(|step| x.least * (x.most / x.least).powf(f64::from(step) / f64::from(steps)));
    rates.map(|rate| (x.at(rate), y.at((1.0 - bps / rate).max(0.0)))).collect()
}

/// Draws the mark of a train: its shape shows the question.
fn marker(purpose: Purpose, x: f64, y: f64) -> Markup {
    html! {
        @match purpose {
            Purpose::LowRate => { circle.two cx=(px(x)) cy=(px(y)) r="6" {} },
            Purpose::Capacity => { rect.three x=(px(x - 5.0)) y=(px(y - 5.0)) width="10" height="10" {} },
            _ => { path.bad d={ "M" (px(x)) " " (px(y - 7.0)) "l7 12h-14z" } {} },
        }
    }
}

fn key(y: f64) -> Markup {
    let entries = [
        (Purpose::LowRate, "far below the rate"),
        (Purpose::Capacity, "search for the rate"),
        (Purpose::Overload, "above the rate, some seconds"),
    ];
    html! {
        @for (index, (purpose, words)) in entries.into_iter().enumerate() {
            @let x = LEFT + 8.0 + index as f64 * 170.0;
            (marker(purpose, x, y - 4.0))
            text x=(px(x + 14.0)) y=(px(y)) { (words) }
        }
    }
}
