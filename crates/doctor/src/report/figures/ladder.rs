//! Ladder: the predicted rates of the limits as bars, above the rates that were measured.

use maud::html;

use super::plot::{CHARACTER, Figure, Fill, LINE, Scale, WIDTH, advance, fills, px};
use crate::evidence::{Direction, Evidence, Outcome};
use crate::facts::Facts;
use crate::report::{Report, text};
use crate::verdict::Cause;

/// Height of a bar with the space below it.
const ROW: f64 = 26.0;

/// Space for the names of the bars.
const NAMES: f64 = 300.0;

/// Space for the rate behind a bar.
const RATES: f64 = 96.0;

struct Bar {
    name: String,
    bps: f64,
    fill: Fill,
}

/// Draws the ladder of one direction; `None` without a baseline.
pub(super) fn figure(evidence: &Evidence, report: &Report, direction: Direction) -> Option<Figure> {
    let (limits, measured) = (limits(report, direction), measured(evidence, direction));
    if measured.is_empty() {
        return None;
    }
    let name = format!("ladder-{}", direction.name());
    let most = limits.iter().chain(&measured).map(|bar| bar.bps).fold(0.0, f64::max);
    let x = Scale::from_zero(most, NAMES, WIDTH - RATES);
    let mut y = 0.0;
    let body = html! {
        (fills(&name))
        @for (heading, bars) in [("Predicted: limits of one connection", &limits), ("Measured", &measured)] {
            @let above = advance(&mut y, LINE + 14.0);
            text.strong x="0" y=(px(above + LINE + 6.0)) { (heading) }
            @for bar in bars {
                @let end = x.at(bar.bps).max(NAMES + 2.0);
                @let top = advance(&mut y, ROW);
                text x=(px(NAMES - 8.0)) y=(px(top + 15.0)) text-anchor="end" { (bar.name) }
                rect x=(px(NAMES)) y=(px(top + 2.0)) width=(px(end - NAMES)) height=(px(ROW - 8.0))
                    fill=(bar.fill.of(&name)) {}
                text.strong x=(px(end + 6.0)) y=(px(top + 15.0)) { (text::rate(bar.bps as u64)) }
            }
        }
        line.axis x1=(px(NAMES)) x2=(px(NAMES)) y1=(px(LINE + 12.0)) y2=(px(y)) {}
    };
    let words = |bars: &[Bar]| {
        let each = bars.iter().map(|bar| format!("{} {}", bar.name, text::rate(bar.bps as u64)));
        each.collect::<Vec<_>>().join("; ")
    };
    let numbers = format!("Limits: {}. Measured: {}.", words(&limits), words(&measured));
    let caption = "The lowest limit is the rate of one connection now. Once it is gone, the next one binds. The measured \
                   rates are those of the same flow with one thing changed.";
    Some(Figure {
        title: format!("Limits in order, {}", text::arrow(direction)),
        name,
        caption: caption.to_owned(),
        numbers,
        height: y + 6.0,
        body,
    })
}

fn limits(report: &Report, direction: Direction) -> Vec<Bar> {
    let steps = report.ladder.iter().filter(|step| step.direction == direction);
    let bar = |step: &crate::verdict::Step| match step.limit {
        Cause::Clean => Bar { name: "the path".to_owned(), bps: step.rate_bps as f64, fill: Fill::Three },
        limit => Bar { name: limit.words().to_owned(), bps: step.rate_bps as f64, fill: Fill::One },
    };
    steps.map(bar).collect()
}

fn measured(evidence: &Evidence, direction: Direction) -> Vec<Bar> {
    let facts = Facts::new(evidence, direction);
    let flows = evidence
        .records
        .iter()
        .filter(|record| record.direction == direction && matches!(record.outcome, Outcome::Flow(_)));
    let bar = |purpose| {
        let view = facts.flow(purpose)?;
        let name = shortened(text::purpose(purpose));
        Some(Bar { name, bps: view.rate_bps, fill: Fill::Two })
    };
    flows.filter_map(|record| bar(record.purpose)).collect()
}

/// Cuts a name at the space for names.
fn shortened(name: &str) -> String {
    let most = ((NAMES - 8.0) / CHARACTER) as usize;
    if name.chars().count() <= most {
        return name.to_owned();
    }
    name.chars().take(most - 1).chain(['…']).collect()
}
