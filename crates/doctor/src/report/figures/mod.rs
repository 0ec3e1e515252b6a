//! Figures of a report as SVG: the plots that prove its verdicts.
//!
//! Each figure has a title and a description in words with the main numbers, for readers who do not see the picture. It
//! stands in the page or alone in a file. Figures show only what was observed: without a result of an experiment its
//! figure is absent.

#![allow(clippy::let_unit_value, reason = "a template moves its pen between two elements")]

mod echoes;
mod flows;
pub(crate) mod history;
mod ladder;
mod plot;
mod rounds;
mod trains;

pub use self::plot::{Figure, STYLE};
pub use self::rounds::history;
use crate::evidence::{Direction, Evidence};
use crate::report::Report;

/// Returns the figures of a report, in the order of the page.
pub fn figures(evidence: &Evidence, report: &Report) -> Vec<Figure> {
    let mut figures = Vec::new();
    for direction in Direction::ALL {
        figures.extend(ladder::figure(evidence, report, direction));
    }
    for direction in Direction::ALL {
        figures.extend(flows::figure(evidence, direction));
        figures.extend(trains::long(evidence, direction));
        figures.extend(trains::losses(evidence, direction));
        figures.extend(echoes::sizes(evidence, direction));
    }
    figures.extend(echoes::round_trips(evidence, report));
    figures
}
