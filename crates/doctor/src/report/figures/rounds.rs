//! Plots of the rounds of a monitored path over time.

use maud::{Markup, html};

use super::plot::{Axes, CHARACTER, Figure, LEFT, LINE, RIGHT, Scale, WIDTH, axes, points, px, rate};
use crate::evidence::Direction;
use crate::monitor::{Change, Echoes, Outcome, Round, Turn};
use crate::words::{date, millis, percent};

/// Maximum number of rounds in a plot. Reason: a week; more cover each other.
const ROUNDS_MAX: usize = 2016;

/// Maximum number of changes that are marked.
const CHANGES_MAX: usize = 40;

/// Top and height of the panel of a plot.
const PANEL: (f64, f64) = (36.0, 160.0);

/// Value at a time, and the mark that shows it.
struct Point {
    at: u64,
    value: f64,
    mark: Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// Dot in blue.
    First,
    /// Triangle in red.
    Second,
    /// Small dot in grey.
    Faint,
}

/// Returns the plots of a path. `number` tells its plots from those of others in a page.
pub fn history(number: usize, rounds: &[Round], changes: &[Change]) -> Vec<Figure> {
    let rounds = &rounds[rounds.len().saturating_sub(ROUNDS_MAX)..];
    let measured = || {
        rounds.iter().filter_map(|round| match &round.outcome {
            Outcome::Measured(measured) => Some((round.at, measured)),
            Outcome::Failed(_) => None,
        })
    };
    let echoes: Vec<(u64, &Echoes)> =
        measured().filter_map(|(at, measured)| Some((at, measured.echoes.as_ref()?))).collect();
    let trips = [Mark::Faint, Mark::First, Mark::Second].into_iter().flat_map(|mark| {
        echoes.iter().filter_map(move |(at, echoes)| {
            let value = match mark {
                Mark::Faint => echoes.slowest_s(),
                Mark::First => echoes.fastest_s(),
                Mark::Second => echoes.typical_s(),
            };
            Some(Point { at: *at, value: value?, mark })
        })
    });
    let losses = echoes.iter().flat_map(|(at, echoes)| {
        Direction::ALL.map(|direction| {
            let (lost, sent) = echoes.losses(direction);
            Point { at: *at, value: lost as f64 / sent.max(1) as f64, mark: mark_of(direction) }
        })
    });
    let rates = measured().flat_map(|(at, measured)| {
        let point =
            move |test: &crate::monitor::Test| Point { at, value: test.rate_bps as f64, mark: mark_of(test.direction) };
        measured.tests.iter().map(point)
    });
    let draw = |name: &str, title: &str, keys: [&str; 3], points: Vec<Point>, unit: &dyn Fn(f64) -> String| {
        let range = (rounds.first()?.at, rounds.last()?.at);
        figure((&format!("{name}-{number}"), title, keys), &points, range, changes, unit)
    };
    let trips = draw(
        "history-rtt",
        "Smallest round trip of each round",
        ["fastest port", "median port", "slowest port"],
        trips.collect(),
        &millis,
    );
    let both = ["to the agent", "from the agent", ""];
    let losses = draw("history-loss", "Lost packets without load", both, losses.collect(), &percent);
    let rates = draw("history-rate", "Rate of throughput tests", both, rates.collect(), &rate);
    [trips, losses, rates].into_iter().flatten().collect()
}

fn mark_of(direction: Direction) -> Mark {
    match direction {
        Direction::Forward => Mark::First,
        Direction::Reverse => Mark::Second,
    }
}

/// Draws points over time; `None` without points.
fn figure(
    (name, title, keys): (&str, &str, [&str; 3]),
    all: &[Point],
    (first, last): (u64, u64),
    changes: &[Change],
    unit: &dyn Fn(f64) -> String,
) -> Option<Figure> {
    if all.is_empty() {
        return None;
    }
    let (top, height) = PANEL;
    let most = all.iter().map(|point| point.value).fold(0.0, f64::max);
    let y = Scale::rounded(most * 1.02, top + height, top);
    let x = Scale {
        least: first as f64,
        most: (last.max(first + 1)) as f64,
        ..Scale::from_zero(1.0, LEFT + 8.0, WIDTH - RIGHT - 8.0)
    };
    let raised = changes.iter().filter(|change| change.turn == Turn::Raised && change.alarm.since() >= first);
    let mut since: Vec<u64> = raised.map(|change| change.alarm.since()).collect();
    // The latest ones.
    since.drain(..since.len().saturating_sub(CHANGES_MAX));
    let day = |seconds: f64| date(seconds as u64).get(5..16).unwrap_or_default().to_owned();
    let body = html! {
        (legend(keys))
        (axes(&x, &y, &Axes { across: Some(&day), up: unit }))
        @for at in &since {
            @let at = x.at(*at as f64);
            polyline.guide points=(points([(at, top), (at, top + height)])) {}
        }
        @for point in all { (draw(point.mark, x.at(point.at as f64), y.at(point.value))) }
    };
    let mut values: Vec<f64> = all.iter().map(|point| point.value).collect();
    values.sort_by(f64::total_cmp);
    let at = |part: usize| unit(values[(values.len() - 1) * part / 100]);
    Some(Figure {
        name: name.to_owned(),
        title: title.to_owned(),
        caption: format!(
            "{title}, from {} to {}. Dashed lines: {} alarms begin.",
            date(first),
            date(last),
            since.len()
        ),
        numbers: format!("{} values: median {}, from {} to {}.", values.len(), at(50), at(0), at(100)),
        height: top + height + 2.0 * LINE,
        body,
    })
}

/// Draws the meaning of the marks in one line.
fn legend(keys: [&str; 3]) -> Markup {
    let place = |index: usize| {
        let before: usize = keys[..index].iter().map(|key| key.chars().count()).sum();
        LEFT + before as f64 * CHARACTER + index as f64 * 40.0
    };
    html! {
        @for (index, (key, mark)) in keys.into_iter().zip([Mark::First, Mark::Second, Mark::Faint]).enumerate() {
            @if !key.is_empty() {
                (draw(mark, place(index) + 5.0, 12.0))
                text x=(px(place(index) + 16.0)) y=(px(16.0)) { (key) }
            }
        }
    }
}

fn draw(mark: Mark, x: f64, y: f64) -> Markup {
    html! {
        @match mark {
            Mark::First => { circle.two cx=(px(x)) cy=(px(y)) r="2.4" {} },
            Mark::Second => { path.bad d={ "M" (px(x)) " " (px(y - 3.5)) "l3.5 6.5h-7z" } {} },
            Mark::Faint => { circle.four cx=(px(x)) cy=(px(y)) r="1.8" {} },
        }
    }
}
