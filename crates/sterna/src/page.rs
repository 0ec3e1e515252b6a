//! Draws a log of samples as one HTML page with plots, as text and SVG. The page downloads nothing.
//!
//! The page has four plots over the time of the copy: rate, round-trip time, lost packets, and bytes in flight by lane.
//! The rate has the limits as background colours; bytes in flight have the congestion window beside them. Samples
//! enter as values; the page leaves as text.

use sterna_net::report::Sample;
use sterna_proto::limit::Limit;
use sterna_proto::{BitRate, ByteCount};

/// Width and margins of a plot, in SVG user units.
const WIDTH: f64 = 960.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 24.0;

/// Most points of one line. Reason: more points are narrower than a pixel.
const POINTS_MAX: usize = 480;

/// Most lanes in a plot. Reason: a reader cannot distinguish more lines.
const LANES_DRAWN_MAX: usize = 8;

/// Returns the page: the paragraphs of `words`, then the plots.
pub fn page(samples: &[Sample], words: &[String]) -> String {
    let end = samples.last().map_or(0.0, |sample| sample.elapsed_s).max(0.1);
    let stretches = stretches(samples);
    let mut body = String::new();
    words.iter().for_each(|line| body.push_str(&format!("<p>{}</p>\n", escaped(line))));
    body.push_str(&legend(&stretches));
    let goodput = rates(samples, |sample| sample.bytes_carried, 8.0);
    let wire = rates(samples, |sample| sample.totals.wire_bytes, 8.0);
    let rate = |value: f64| BitRate(value as u64).to_string();
    let bytes = |value: f64| ByteCount(value as u64).to_string();
    let percent = |value: f64| format!("{} %", short(value));
    body.push_str(
        &Plot { title: "Rate (dark: on the wire, light: goodput), on the limit", height: 300.0, end, unit: &rate }
            .draw(&stretches, &[(goodput, "#7aa6c2", 1.2), (wire, "#123", 1.6)]),
    );
    let rtt = points(samples, |sample| sample.rtt_s);
    let (scale, unit) = if rtt.iter().all(|(_, rtt)| *rtt < 1e-3) { (1e6, "µs") } else { (1e3, "ms") };
    let rtt = rtt.into_iter().map(|(at, rtt)| (at, rtt * scale)).collect();
    let time = |value: f64| format!("{} {unit}", short(value));
    body.push_str(&Plot { title: "Round-trip time", height: 150.0, end, unit: &time }.draw(&[], &[(rtt, "#934", 1.4)]));
    body.push_str(
        &Plot { title: "Packets lost, of those sent", height: 150.0, end, unit: &percent }
            .draw(&[], &[(losses(samples), "#c33", 1.4)]),
    );
    let flight = in_flight(samples);
    if !flight.is_empty() {
        body.push_str(
            &Plot { title: "In flight, by lane (dashed: window of the first)", height: 220.0, end, unit: &bytes }
                .draw(&[], &flight),
        );
    }
    format!(
        "{HEAD}<style>{STYLE}</style></head>\n\
         <body><h1>What limited this copy</h1>\n{body}</body></html>\n"
    )
}

/// First bytes of every page. They identify a file as a page of an earlier copy.
pub const HEAD: &str = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>sterna copy</title>";

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#223}\
h1{font-size:1.4em}h2{font-size:1em;margin:1.6em 0 .2em}svg{width:100%;height:auto;display:block}\
text{font:11px system-ui,sans-serif;fill:#556}.key{display:inline-block;margin-right:1.2em}\
.key i{display:inline-block;width:.9em;height:.9em;margin-right:.4em;vertical-align:-.1em}";

/// Time interval with one leading limit, in seconds since the start.
struct Stretch {
    start: f64,
    end: f64,
    limit: Limit,
}

/// Returns the intervals of the leading limits; adjacent samples with the same limit become one interval.
fn stretches(samples: &[Sample]) -> Vec<Stretch> {
    let mut found: Vec<Stretch> = Vec::new();
    let mut before = 0.0;
    for sample in samples {
        let at = sample.elapsed_s;
        if let Some(limit) = leading(sample) {
            match found.last_mut() {
                Some(last) if last.limit == limit => last.end = at,
                _ => found.push(Stretch { start: before, end: at, limit }),
            }
        }
        before = at;
    }
    found
}

/// Returns the limit of most lanes in a sample. Without lanes it is the largest share of the last seconds: a receiver
/// has only this report of the sender.
fn leading(sample: &Sample) -> Option<Limit> {
    let of_lanes: Vec<Limit> = sample.lanes.iter().map(|lane| lane.limit).collect();
    let count = |limit: &Limit| of_lanes.iter().filter(|other| *other == limit).count();
    let most = of_lanes.iter().copied().max_by_key(count);
    most.or_else(|| {
        let (name, _) = sample.recent.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
        Limit::ALL.into_iter().find(|limit| limit.name() == *name)
    })
}

fn colour(limit: Limit) -> &'static str {
    match limit {
        Limit::ReceiveWindow => "#f4c9a1",
        Limit::SendBuffer => "#f7e29c",
        Limit::CongestionWindow => "#cfe6c8",
        Limit::Loss => "#f3b0b0",
        Limit::Policer => "#e0a3cf",
        Limit::SourceDisk => "#b9c7f0",
        Limit::DestinationDisk => "#c9b8ea",
        Limit::Cpu => "#d8c3ae",
        Limit::RateCap => "#bfe3e6",
        Limit::NothingToSend => "#e6e6e6",
        Limit::ServerOrPath => "#d5e0a6",
        Limit::Silence => "#a9a9a9",
        Limit::AckPath => "#dcbeff",
    }
}

fn legend(stretches: &[Stretch]) -> String {
    let present = Limit::ALL.into_iter().filter(|limit| stretches.iter().any(|stretch| stretch.limit == *limit));
    let keys = present.map(|limit| {
        format!("<span class=\"key\"><i style=\"background:{}\"></i>{}</span>", colour(limit), limit.words())
    });
    format!("<p>{}</p>\n", keys.collect::<String>())
}

/// Points of a line: time in seconds, and value.
type Points = Vec<(f64, f64)>;

/// Line of a plot: points, colour, width. A negative width means a dashed line.
type Line<'a> = (Points, &'a str, f64);

struct Plot<'a> {
    title: &'a str,
    height: f64,
    end: f64,
    /// Formats a value with its unit.
    unit: &'a dyn Fn(f64) -> String,
}

impl Plot<'_> {
    fn draw(&self, stretches: &[Stretch], lines: &[Line<'_>]) -> String {
        let values = lines.iter().flat_map(|(points, _, _)| points.iter().map(|(_, value)| *value));
        let step = step(values.fold(0.0, f64::max));
        let top = lines.iter().flat_map(|(points, _, _)| points).map(|(_, value)| *value).fold(step, f64::max);
        let top = (top / step).ceil() * step;
        let base = self.height - BOTTOM;
        let x = |time: f64| LEFT + (WIDTH - LEFT - RIGHT) * (time / self.end).clamp(0.0, 1.0);
        let y = |value: f64| base - (base - TOP) * value / top;
        let mut svg = format!("<h2>{}</h2>\n<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\">\n", self.title, self.height);
        for Stretch { start, end, limit } in stretches {
            let (left, width) = (x(*start), x(*end) - x(*start));
            let (colour, words) = (colour(*limit), limit.words());
            svg.push_str(&format!(
                "<rect x=\"{left:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{colour}\"><title>{words}</title></rect>\n",
                base - TOP
            ));
        }
        let mut tick = 0.0;
        while tick <= top * 1.001 {
            let (at, words) = (y(tick), (self.unit)(tick));
            svg.push_str(&format!(
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#0002\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{words}</text>\n",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0
            ));
            tick += step;
        }
        let second = step_of_time(self.end);
        let mut at = 0.0;
        while at <= self.end * 1.001 {
            svg.push_str(&format!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{} s</text>\n",
                x(at).min(WIDTH - RIGHT - 8.0),
                self.height - 6.0,
                (at * 10.0).round() / 10.0
            ));
            at += second;
        }
        for (points, colour, width) in lines {
            let path: Vec<String> =
                thinned(points).iter().map(|(time, value)| format!("{:.1},{:.1}", x(*time), y(*value))).collect();
            let dashes = if *width < 0.0 { " stroke-dasharray=\"4 3\"" } else { "" };
            svg.push_str(&format!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{}\"{dashes}/>\n",
                path.join(" "),
                width.abs()
            ));
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// Formats a number of an axis with up to three decimals, so that no two marks have the same text.
fn short(value: f64) -> String {
    let digits = format!("{value:.3}");
    digits.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns a round distance between marks, for three to six marks up to `top`; 1 if `top` is not positive.
fn step(top: f64) -> f64 {
    if top <= 0.0 {
        return 1.0;
    }
    let rough = (top / 4.0).max(1e-3);
    let scale = 10_f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| scale * factor >= rough * 0.8);
    scale * round.unwrap_or(10.0)
}

fn step_of_time(end: f64) -> f64 {
    step(end * 0.5).max(0.1)
}

/// Returns means of adjacent points if there are more than [`POINTS_MAX`].
fn thinned(points: &Points) -> Points {
    let group = points.len().div_ceil(POINTS_MAX).max(1);
    let mean = |group: &[(f64, f64)]| {
        let count = group.len() as f64;
        let sum = group.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        (sum.0 / count, sum.1 / count)
    };
    points.chunks(group).map(mean).collect()
}

fn points(samples: &[Sample], value: impl Fn(&Sample) -> Option<f64>) -> Points {
    samples.iter().filter_map(|sample| Some((sample.elapsed_s, value(sample)?))).collect()
}

/// Returns the growth of a count per second, times `factor`, as a mean over [`RATE_OVER_S`]. A shorter interval shows
/// the arrival of single blocks instead of the rate. A count that falls belongs to a restarted session and gives 0.
fn rates(samples: &[Sample], count: impl Fn(&Sample) -> u64, factor: f64) -> Points {
    let mut first = 0;
    let mut found = Vec::new();
    for (index, sample) in samples.iter().enumerate() {
        while sample.elapsed_s - samples[first].elapsed_s > RATE_OVER_S && first + 1 < index {
            first += 1;
        }
        let time = sample.elapsed_s - samples[first].elapsed_s;
        if time > 0.0 {
            let growth = count(sample).saturating_sub(count(&samples[first]));
            found.push((sample.elapsed_s, growth as f64 / time * factor));
        }
    }
    found
}

/// Time that a drawn rate averages over, in seconds.
const RATE_OVER_S: f64 = 0.5;

fn losses(samples: &[Sample]) -> Points {
    let sent = rates(samples, |sample| sample.totals.packets_sent, 1.0);
    let lost = rates(samples, |sample| sample.totals.packets_lost, 1.0);
    let share = |(sent, lost): (&(f64, f64), &(f64, f64))| {
        (sent.0, if sent.1 > 0.0 { (lost.1 / sent.1 * 100.0).min(100.0) } else { 0.0 })
    };
    sent.iter().zip(&lost).map(share).collect()
}

fn in_flight(samples: &[Sample]) -> Vec<Line<'static>> {
    const COLOURS: [&str; LANES_DRAWN_MAX] = ["#147", "#a51", "#383", "#727", "#077", "#a33", "#555", "#960"];
    let of_lane = |id: u32, pick: fn((u64, u64)) -> u64| {
        points(samples, |sample| {
            let lane = sample.lanes.iter().find(|lane| lane.lane == id)?;
            lane.transport.in_flight_and_window().map(|both| pick(both) as f64)
        })
    };
    let mut ids: Vec<u32> = Vec::new();
    for lane in samples.iter().flat_map(|sample| &sample.lanes) {
        if !ids.contains(&lane.lane) && ids.len() < LANES_DRAWN_MAX {
            ids.push(lane.lane);
        }
    }
    let mut drawn: Vec<Line<'static>> =
        ids.iter().zip(COLOURS).map(|(id, colour)| (of_lane(*id, |(in_flight, _)| in_flight), colour, 1.3)).collect();
    if let Some(first) = ids.first() {
        drawn.push((of_lane(*first, |(_, window)| window), "#999", -1.0));
    }
    drawn
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sterna_net::engine::CopyProgress;
    use sterna_net::report::WireTotals;
    use sterna_proto::ByteCount;
    use sterna_proto::limit::{LaneJudgement, LaneSample, TcpSample, TransportSample, Waits};
    use sterna_proto::session::LaneId;

    use super::*;

    /// Returns a sample after `at` seconds, with one TCP lane of this limit, if there is one.
    fn sample(at: f64, limit: Option<Limit>, rtt: f64, lost: u64) -> Sample {
        let tcp = TcpSample { in_flight: ByteCount(5000), window: ByteCount(6000), ..TcpSample::default() };
        let lane = |limit| LaneJudgement {
            lane: LaneId(0),
            limit,
            sample: LaneSample { feeder: Waits::default(), transport: TransportSample::Tcp(tcp) },
        };
        let mut progress = CopyProgress { elapsed: Duration::from_secs_f64(at), ..CopyProgress::default() };
        progress.session.counters.bytes_done = (at * 1e6) as u64;
        progress.limits.lanes = limit.map(lane).into_iter().collect();
        let totals =
            WireTotals { wire_bytes: (at * 1.1e6) as u64, packets_sent: (at * 1e4) as u64, packets_lost: lost };
        Sample { rtt_s: Some(rtt), ..Sample::new(&progress, totals) }
    }

    #[test]
    fn a_page_stands_alone_and_shows_every_limit() {
        let samples = [(0.5, Limit::Loss), (1.0, Limit::Loss), (1.5, Limit::ReceiveWindow)]
            .map(|(at, limit)| sample(at, Some(limit), 0.05, 1));
        let page = page(&samples, &["limited by: <loss>".to_owned()]);
        assert!(page.contains("limited by: &lt;loss&gt;") && !page.contains("<loss>"));
        assert_eq!(page.matches("<rect").count(), 2, "stretches with one limit are drawn as one");
        assert_eq!(page.matches("<svg").count(), 4);
        assert!(!page.contains("http"), "nothing is fetched");
        assert!(super::page(&[], &[]).contains("</html>"));
    }

    #[test]
    fn short_paths_are_marked_in_microseconds_and_no_two_marks_read_alike() {
        for (rtt, lost, expected) in [
            (80e-6, 0, [">80 µs<", ">0 %<", ">1 %<"]),
            (1.5e-3, 2, [">1.5 ms<", ">0 %<", ">0.01 %<"]),
            (0.66, 0, [">600 ms<", ">0 %<", ">1 %<"]),
        ] {
            let page = page(&[sample(0.1, None, rtt, 0), sample(1.0, None, rtt, lost)], &[]);
            for words in expected {
                assert_eq!(page.matches(words).count(), 1, "{words} for {rtt}: {page}");
            }
        }
    }

    #[test]
    fn marks_are_round_numbers() {
        for (top, expected) in [(100.0, 20.0), (47e6, 10e6), (0.9, 0.2), (3.0, 1.0)] {
            assert!((step(top) - expected).abs() < expected * 1e-9, "{top}: {}", step(top));
        }
    }
}
