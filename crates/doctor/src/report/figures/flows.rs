//! Rate over time of the baseline and of each flow of proof, with the limits coloured by their share of time.

use maud::{Markup, html};
use sterna_net::measure::{FlowPair, FlowSample, StreamReport};

use super::plot::{Axes, Figure, Fill, LEFT, LINE, RIGHT, Scale, WIDTH, advance, axes, fills, legend, px};
use crate::evidence::{Direction, Evidence, Experiment, Outcome, Purpose};
use crate::report::text;
use crate::view::{FlowView, SERIES_EVERY_US, at_time};

/// Limits of a connection as the sender's kernel counts them, in the order in which they are stacked.
const LIMITS: [(Fill, &str); 4] = [
    (Fill::Three, "congestion control or the path"),
    (Fill::One, "window of the receiver"),
    (Fill::Two, "send buffer"),
    (Fill::Four, "no data to send"),
];

/// Height of the panel of a baseline.
const BASELINE: f64 = 160.0;

/// Height of the panel of another flow.
const PROOF: f64 = 96.0;

/// Space above a panel for its title.
const TITLE: f64 = 26.0;

/// Space below a panel for its marks.
const MARKS: f64 = 30.0;

/// Maximum number of flows in a figure. Reason: more than an examination runs; a file may have any number.
const FLOWS_MAX: usize = 16;

/// Flow as the figure needs it.
struct Flow {
    purpose: Purpose,
    view: FlowView,
    /// Shares of each limit by interval of the rate series, in the order of [`LIMITS`]; they add up to 1.
    shares: Vec<[f64; 4]>,
    /// Intervals in which segments were sent again.
    resent: Vec<bool>,
}

impl Flow {
    fn new(purpose: Purpose, pair: &FlowPair, time_s: f64) -> Self {
        let view = FlowView::new(pair, time_s);
        let every = SERIES_EVERY_US as f64 / 1e6;
        let intervals = (0..view.series_bps.len()).map(|index| (index as f64 * every, (index + 1) as f64 * every));
        let (shares, resent) = intervals
            .map(|(from, to)| (shares(pair, from, to), growth(&pair.sender.streams, from, to, |s| s.resent) > 0.5))
            .unzip();
        Self { purpose, view, shares, resent }
    }

    fn most(&self) -> f64 {
        self.view.series_bps.iter().copied().fold(0.0, f64::max)
    }

    fn time_s(&self) -> f64 {
        self.view.series_bps.len() as f64 * SERIES_EVERY_US as f64 / 1e6
    }

    /// Returns the mean share of each limit, weighted by time, in the second half.
    fn steady(&self) -> [f64; 4] {
        let half = &self.shares[self.shares.len() / 2..];
        std::array::from_fn(|limit| half.iter().map(|shares| shares[limit]).sum::<f64>() / half.len().max(1) as f64)
    }
}

/// Draws the flows of one direction; `None` without a flow.
pub(super) fn figure(evidence: &Evidence, direction: Direction) -> Option<Figure> {
    let flows: Vec<Flow> = evidence
        .records
        .iter()
        .filter(|record| record.direction == direction)
        .filter_map(|record| match (&record.experiment, &record.outcome) {
            (Experiment::Flow { spec }, Outcome::Flow(pair)) => {
                Some(Flow::new(record.purpose, pair, spec.time_ms as f64 / 1e3))
            }
            _ => None,
        })
        .filter(|flow| !flow.view.series_bps.is_empty())
        .take(FLOWS_MAX)
        .collect();
    let first = flows.first()?;
    let name = format!("rate-{}", direction.name());
    let most = flows.iter().map(Flow::most).fold(0.0, f64::max);
    let time = flows.iter().map(Flow::time_s).fold(0.0, f64::max);
    let mut top = LINE + 6.0;
    let body = html! {
        (fills(&name))
        (legend(&name, 14.0, &LIMITS))
        @for flow in &flows {
            @let height = if flow.purpose == Purpose::Baseline { BASELINE } else { PROOF };
            @let above = advance(&mut top, TITLE + height + MARKS);
            (panel(&name, flow, (above + TITLE, height), (time, most)))
        }
    };
    let caption = format!(
        "Payload rate of each flow by intervals of 200 ms, all on the same scales. The colour of a column shows what held \
         the sender back, by its share of the interval, as the sender's kernel counts it. A triangle marks segments sent \
         again. {}",
        summary(first)
    );
    let numbers = flows[1..].iter().map(summary).collect::<Vec<_>>().join(" ");
    Some(Figure {
        title: format!("Rate over time, {}", text::arrow(direction)),
        name,
        caption,
        numbers,
        height: top,
        body,
    })
}

fn summary(flow: &Flow) -> String {
    let each = LIMITS.iter().zip(flow.steady()).filter(|(_, share)| *share >= 0.005);
    let each: Vec<String> = each.map(|((_, words), share)| format!("{words} {:.0} %", share * 100.0)).collect();
    format!(
        "{}: {} in the second half, limited by: {}.",
        sentence(text::purpose(flow.purpose)),
        text::rate(flow.view.rate_bps as u64),
        each.join(", ")
    )
}

/// Returns a text with an upper-case first letter.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Draws a flow. `place`: top and height of the panel. `most`: ends of the scales, seconds and bit/s.
fn panel(plot: &str, flow: &Flow, place: (f64, f64), most: (f64, f64)) -> Markup {
    let (top, height) = place;
    let x = Scale::from_zero(most.0, LEFT, WIDTH - RIGHT);
    let y = Scale::rounded(most.1, top + height, top);
    let every = SERIES_EVERY_US as f64 / 1e6;
    let rate = super::plot::rate;
    let seconds = |value: f64| format!("{} s", (value * 100.0).round() / 100.0);
    let line = flow.view.series_bps.iter().enumerate().flat_map(|(index, bps)| {
        [(x.at(index as f64 * every), y.at(*bps)), (x.at((index + 1) as f64 * every), y.at(*bps))]
    });
    let steady = y.at(flow.view.rate_bps);
    let label = format!("{} in the second half", text::rate(flow.view.rate_bps as u64));
    html! {
        text.strong x=(px(LEFT)) y=(px(top - 8.0)) { (sentence(text::purpose(flow.purpose))) ": " (label) }
        (axes(&x, &y, &Axes { across: Some(&seconds), up: &rate }))
        @for (index, bps) in flow.view.series_bps.iter().enumerate() {
            @let (left, right) = (x.at(index as f64 * every), x.at((index + 1) as f64 * every));
            (column(plot, (left, right), (y.start, y.at(*bps)), &flow.shares[index]))
            @if flow.resent[index] {
                path.bad d={ "M" (px((left + right) / 2.0)) " " (px(top + 7.0)) "l-4 -7h8z" } {}
            }
        }
        polyline.line points=(super::plot::points(line)) {}
        line.guide x1=(px(x.at(flow.time_s() / 2.0))) x2=(px(x.at(flow.time_s()))) y1=(px(steady)) y2=(px(steady)) {}
    }
}

/// Draws one interval as stacked areas whose heights are the shares.
fn column(plot: &str, across: (f64, f64), up: (f64, f64), shares: &[f64; 4]) -> Markup {
    let (base, top) = up;
    let mut from = base;
    html! {
        @for ((fill, _), share) in LIMITS.iter().zip(shares) {
            @let height = (base - top) * share;
            @let bottom = advance(&mut from, -height);
            @if height > 0.05 {
                rect x=(px(across.0)) y=(px(bottom - height)) width=(px(across.1 - across.0)) height=(px(height))
                    fill=(fill.of(plot)) {}
            }
        }
    }
}

/// Returns the shares of an interval that the sender's kernel counted for each limit.
fn shares(pair: &FlowPair, from: f64, to: f64) -> [f64; 4] {
    let streams = &pair.sender.streams;
    let whole = (to - from) * 1e6 * streams.len().max(1) as f64;
    let share = |of: fn(&FlowSample) -> u64| (growth(streams, from, to, of) / whole).clamp(0.0, 1.0);
    let busy = share(|s| s.busy_us);
    let window = share(|s| s.peer_window_limited_us).min(busy);
    let buffer = share(|s| s.send_buffer_limited_us).min(busy - window);
    [busy - window - buffer, window, buffer, 1.0 - busy]
}

fn growth(streams: &[StreamReport], from: f64, to: f64, of: fn(&FlowSample) -> u64) -> f64 {
    streams.iter().map(|stream| at_time(stream, to, of) - at_time(stream, from, of)).sum()
}
