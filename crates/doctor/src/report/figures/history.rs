//! Rate of one connection over the weeks of a case, with the limits that were found and the rates that operators state.

use maud::{Markup, html};

use super::plot::{Axes, CHARACTER, Figure, LEFT, LINE, RIGHT, Scale, WIDTH, axes, points, px, rate};
use crate::report::text;

/// Height of the panel.
const HEIGHT: f64 = 220.0;

/// Space above the panel: the legend, and names of limits.
const TOP: f64 = 44.0;

/// Ratio of the largest rate to the smallest one above which the scale is logarithmic. Reason: a line of a twentieth of
/// the panel is not seen.
const LOGARITHMIC_ABOVE: f64 = 20.0;

/// Maximum number of examinations in a figure. Reason: as many as a case has at most, on a page of 1 MB.
const POINTS_MAX: usize = 2000;

/// Maximum number of statements with a line.
const STATED_MAX: usize = 8;

/// Maximum number of names of limits. Reason: more of them cover each other.
const NAMES_MAX: usize = 12;

/// Space on both sides of the examinations, as a part of their time.
const MARGIN: f64 = 0.04;

/// Smallest space on both sides, seconds. Reason: a single examination spans no time.
const MARGIN_MIN_S: f64 = 600.0;

/// Distances of the marks of time, seconds: ten minutes to ten years.
const STEPS: [i64; 16] = [
    600,
    1800,
    3600,
    10_800,
    21_600,
    43_200,
    DAY,
    2 * DAY,
    7 * DAY,
    14 * DAY,
    30 * DAY,
    91 * DAY,
    182 * DAY,
    365 * DAY,
    1461 * DAY,
    3653 * DAY,
];

const DAY: i64 = 86_400;

/// Maximum number of marks of time. Reason: a date needs a tenth of the width.
const MARKS_MAX: i64 = 8;

/// Examination in one direction.
#[derive(Clone, Debug)]
pub(crate) struct HistoryPoint {
    /// Time, seconds since 1970.
    pub(crate) at: i64,
    /// Rate of one connection, bit/s.
    pub(crate) measured_bps: u64,
    /// Limit that held it, and its rate.
    pub(crate) limit: Option<(&'static str, u64)>,
    /// Outcome of a re-test: true if the claim was confirmed.
    pub(crate) retest: Option<bool>,
}

/// Rate that an operator states, from each time on; `None`: no limit.
#[derive(Clone, Debug)]
pub(crate) struct StatedLine {
    /// Network.
    pub(crate) domain: String,
    /// Times and rates.
    pub(crate) steps: Vec<(i64, Option<u64>)>,
}

/// Draws the examinations of one direction of a target; `None` without one.
pub(crate) fn figure(
    name: &str,
    title: String,
    mut history: Vec<HistoryPoint>,
    mut stated: Vec<StatedLine>,
    shown: &dyn Fn(i64) -> String,
) -> Option<Figure> {
    history.truncate(POINTS_MAX);
    stated.truncate(STATED_MAX);
    let (first, last) = (history.first()?.at, history.last()?.at);
    let margin = ((last - first) as f64 * MARGIN).max(MARGIN_MIN_S);
    let (least, most) = (first as f64 - margin, last as f64 + margin);
    let x = Scale { least, most, ..Scale::from_zero(1.0, LEFT, WIDTH - RIGHT) };
    let y = vertical(&history, &stated);
    let across = Scale::from_zero(1.0, LEFT, WIDTH - RIGHT);
    let line = points(history.iter().map(|one| (x.at(one.at as f64), y.at(one.measured_bps as f64))));
    let body = html! {
        (legend(history.iter().any(|one| one.retest.is_some())))
        (axes(&across, &y, &Axes { across: None, up: &rate }))
        @for (at, words) in marks(least, most, shown) {
            line.axis x1=(px(x.at(at))) x2=(px(x.at(at))) y1=(px(y.start)) y2=(px(y.start + 4.0)) {}
            text.soft x=(px(x.at(at))) y=(px(y.start + LINE)) text-anchor="middle" { (words) }
        }
        @for one in &stated { (statement(one, &x, &y)) }
        polyline.line2 points=(line) {}
        @for one in &history { (examination(one, &x, &y)) }
        (names(&history, &x, &y))
    };
    let words = |one: &HistoryPoint| {
        let limit = one.limit.map_or_else(String::new, |(name, bps)| format!(" ({name} {})", text::rate(bps)));
        format!("{} {}{limit}", shown(one.at), text::rate(one.measured_bps))
    };
    let numbers: Vec<String> = history.iter().take(NAMES_MAX).map(words).collect();
    Some(Figure {
        name: name.to_owned(),
        title,
        caption: format!(
            "Payload rate of one connection at each examination (circle). A triangle is the rate of the limit that held \
             it, with the name of the limit where it changes. Dashed lines are the rate limits that operators state. \
             {} to {}, {} examinations.",
            shown(first),
            shown(last),
            history.len()
        ),
        numbers: format!("{}.", numbers.join("; ")),
        height: TOP + HEIGHT + LINE + 8.0,
        body,
    })
}

/// Returns the scale of the rates.
fn vertical(history: &[HistoryPoint], stated: &[StatedLine]) -> Scale {
    let measured = history.iter().flat_map(|one| [Some(one.measured_bps), one.limit.map(|(_, bps)| bps)]);
    let steps = stated.iter().flat_map(|one| one.steps.iter().map(|(_, bps)| *bps));
    let all = || measured.clone().chain(steps.clone()).flatten().filter(|bps| *bps > 0).map(|bps| bps as f64);
    let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    match most > least * LOGARITHMIC_ABOVE {
        true => Scale::logarithmic(least, most, TOP + HEIGHT, TOP),
        false => Scale::rounded(most, TOP + HEIGHT, TOP),
    }
}

/// Returns marks of time at round dates, with their words.
fn marks(least: f64, most: f64, shown: &dyn Fn(i64) -> String) -> Vec<(f64, String)> {
    // Both are within the years 0 to 9999.
    let (from, to) = (least.ceil() as i64, most.floor() as i64);
    let step = STEPS.into_iter().find(|step| (to - from) / step < MARKS_MAX).unwrap_or((to - from) / MARKS_MAX).max(1);
    let first = from.div_euclid(step) * step + step;
    (0..MARKS_MAX)
        .map(|index| first + index * step)
        .take_while(|at| *at <= to)
        .map(|at| (at as f64, shown(at)))
        .collect()
}

fn legend(has_retests: bool) -> Markup {
    let mut entries = vec![("one connection", 0), ("limit", 1)];
    if has_retests {
        entries.extend([("re-test: confirmed", 2), ("re-test: not confirmed", 3)]);
    }
    let mut left = LEFT;
    html! {
        @for (words, kind) in entries {
            @let x = super::plot::advance(&mut left, 17.0 + words.chars().count() as f64 * CHARACTER + 18.0);
            @match kind {
                0 => { circle.two cx=(px(x + 6.0)) cy="10" r="4" {} },
                1 => { (triangle(x + 6.0, 10.0)) },
                kind => { (ring(x + 6.0, 10.0, kind == 2)) },
            }
            text x=(px(x + 17.0)) y="14" { (words) }
        }
    }
}

/// Draws an examination.
fn examination(one: &HistoryPoint, x: &Scale, y: &Scale) -> Markup {
    let (at, measured) = (x.at(one.at as f64), y.at(one.measured_bps as f64));
    html! {
        @if let Some((_, bps)) = one.limit { (triangle(at, y.at(bps as f64))) }
        circle.two cx=(px(at)) cy=(px(measured)) r="4" {}
        @if let Some(is_met) = one.retest { (ring(at, measured, is_met)) }
    }
}

fn triangle(x: f64, y: f64) -> Markup {
    html! { path.bad d={ "M" (px(x)) " " (px(y - 5.0)) "l5 9h-10z" } {} }
}

/// Draws the outcome of a re-test: a whole ring if the claim is confirmed, a dashed one if not.
fn ring(x: f64, y: f64, is_met: bool) -> Markup {
    html! {
        @if is_met { circle.line cx=(px(x)) cy=(px(y)) r="7.5" {} }
        @else { circle.model cx=(px(x)) cy=(px(y)) r="7.5" {} }
    }
}

/// Writes the name of each limit where it changes.
fn names(history: &[HistoryPoint], x: &Scale, y: &Scale) -> Markup {
    let mut before = None;
    let mut changes = Vec::new();
    for one in history {
        let name = one.limit.map(|(name, _)| name);
        if name != before
            && let Some((name, bps)) = one.limit
        {
            changes.push((one.at, name, bps));
        }
        before = name;
    }
    html! {
        @for (at, name, bps) in changes.into_iter().take(NAMES_MAX) {
            @let at = x.at(at as f64);
            @let anchor = if at > WIDTH * 0.75 { "end" } else { "start" };
            text.strong x=(px(at)) y=(px(y.at(bps as f64) - 10.0)) text-anchor=(anchor) { (name) }
        }
    }
}

/// Draws the rate that an operator states.
fn statement(stated: &StatedLine, x: &Scale, y: &Scale) -> Markup {
    let ends = stated.steps.iter().skip(1).map(|(at, _)| *at as f64).chain([x.most]);
    let steps = stated.steps.iter().zip(ends);
    let drawn: Vec<(f64, f64, f64)> = steps
        .filter_map(|((at, bps), end)| Some((x.at(*at as f64), x.at(end), y.at((*bps)? as f64))))
        .filter(|(from, to, _)| to > from)
        .collect();
    // A name is cut where it would leave the panel.
    let name: String = sterna_proto::file::plain(&stated.domain).chars().take(40).collect();
    html! {
        @for (from, to, at) in &drawn {
            line.guide x1=(px(*from)) x2=(px(*to)) y1=(px(*at)) y2=(px(*at)) {}
        }
        @if let Some((_, to, at)) = drawn.last() {
            text.soft x=(px(*to)) y=(px(at - 4.0)) text-anchor="end" { (name) }
        }
    }
}
