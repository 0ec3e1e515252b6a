//! Figures of a report as SVG: the plots that prove its verdicts.
//!
//! Each figure has a title and a description in words with the main numbers, for readers who do not see the picture. It
//! stands in the page or alone in a file. Figures show only what was observed: without a result of an experiment its
//! figure is absent.

#![allow(clippy::let_unit_value, reason = "a template moves its pen between two elements")]

mod echoes;
mod flows;
mod ladder;
mod plot;
mod trains;

use maud::{Markup, html};

pub use self::plot::STYLE;
use crate::evidence::{Direction, Evidence};
use crate::report::Report;

/// Figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Name of its file without extension, and its anchor in the page.
    pub name: String,
    /// Title.
    pub title: String,
    /// How to read it, and what it shows.
    pub caption: String,
    /// Its numbers, for readers who do not see the picture.
    numbers: String,
    /// Height, in SVG user units.
    height: f64,
    body: Markup,
}

impl Figure {
    /// Returns the figure as an element of a page.
    pub fn inline(&self) -> Markup {
        self.draw(&html! {})
    }

    /// Returns the figure as a file of its own.
    pub fn file(&self) -> String {
        let style = html! { style { (maud::PreEscaped(STYLE)) } };
        format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n", self.draw(&style).into_string())
    }

    fn draw(&self, style: &Markup) -> Markup {
        let (title, caption) = (format!("{}-title", self.name), format!("{}-caption", self.name));
        html! {
            svg.plot xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby={ (title) " " (caption) }
                viewBox={ "0 0 " (plot::px(plot::WIDTH)) " " (plot::px(self.height)) } {
                title id=(title) { (self.title) }
                desc id=(caption) { (self.caption) " " (self.numbers) }
                (style)
                (self.body)
            }
        }
    }
}

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

/// Returns a direction as the page names it: A is the host of the doctor, B that of the agent.
pub fn arrow(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "A to B",
        Direction::Reverse => "B to A",
    }
}
