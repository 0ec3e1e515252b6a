//! Figures and their elements: scales with their marks, the axes of a panel, legends, and colours with patterns.
//!
//! All text enters through `maud`, which escapes it. Numbers that are not finite are drawn at the edge.

use maud::{Markup, html};

/// Width of every plot, in SVG user units.
pub(super) const WIDTH: f64 = 760.0;

/// Space left of a panel for the marks of its vertical axis.
pub(super) const LEFT: f64 = 84.0;

/// Space right of a panel.
pub(super) const RIGHT: f64 = 16.0;

/// Height of a line of text.
pub(super) const LINE: f64 = 18.0;

/// Style of plots, in the page and in files. Colours: Okabe and Ito, which colour-blind readers can tell apart.
pub const STYLE: &str = "\
svg.plot{--ink:#1c2126;--soft:#5b6570;--grid:#d9dee3;--paper:#fff;--one:#e69f00;--two:#0072b2;--three:#2a9d75;\
--four:#a9b1b9;--bad:#c8401a;--mark:#7b3fa0;font:12px system-ui,-apple-system,'Segoe UI',sans-serif;background:var(--paper)}
@media screen and (prefers-color-scheme:dark){svg.plot{--ink:#e6e9ec;--soft:#a4adb6;--grid:#3a424a;--paper:#181c20;\
--one:#f0b73a;--two:#5ab0e6;--three:#46c79a;--four:#6c757e;--bad:#ff7d55;--mark:#c79af0}}
svg.plot text{fill:var(--ink)}svg.plot .soft{fill:var(--soft)}svg.plot .strong{font-weight:600}
svg.plot .grid{stroke:var(--grid)}svg.plot .axis{stroke:var(--soft);fill:none}
svg.plot .one{fill:var(--one)}svg.plot .two{fill:var(--two)}svg.plot .three{fill:var(--three)}
svg.plot .four{fill:var(--four)}svg.plot .bad{fill:var(--bad)}svg.plot .mark{fill:var(--mark)}
svg.plot rect{shape-rendering:crispEdges}svg.plot .hatch{stroke:var(--paper);stroke-width:1.6;fill:none}
svg.plot .line{fill:none;stroke:var(--ink);stroke-width:1.6}svg.plot .line2{fill:none;stroke:var(--two);stroke-width:2}
svg.plot .model{fill:none;stroke:var(--bad);stroke-width:1.8;stroke-dasharray:7 4}
svg.plot .band{fill:var(--two);opacity:.25}svg.plot .outline{fill:none;stroke:var(--soft)}
svg.plot .guide{stroke:var(--mark);stroke-width:1.4;stroke-dasharray:3 3;fill:none}";

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
    pub(super) numbers: String,
    /// Height, in SVG user units.
    pub(super) height: f64,
    pub(super) body: Markup,
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
                viewBox={ "0 0 " (px(WIDTH)) " " (px(self.height)) } {
                title id=(title) { (self.title) }
                desc id=(caption) { (self.caption) " " (self.numbers) }
                (style)
                (self.body)
            }
        }
    }
}

/// Returns a coordinate with one decimal.
pub(super) fn px(value: f64) -> String {
    if value.is_finite() { format!("{value:.1}") } else { "0".to_owned() }
}

/// Kind of a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Equal distances are equal differences.
    Linear,
    /// Equal distances are equal ratios.
    Logarithmic,
}

/// Scale: values from `least` to `most` on coordinates from `start` to `end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) kind: Kind,
    pub(super) least: f64,
    pub(super) most: f64,
    pub(super) start: f64,
    pub(super) end: f64,
}

impl Scale {
    /// Returns a linear scale from 0 to `most`.
    pub(super) fn from_zero(most: f64, start: f64, end: f64) -> Self {
        let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
        Self { kind: Kind::Linear, least: 0.0, most, start, end }
    }

    /// Returns a linear scale from 0 that ends at a mark.
    pub(super) fn rounded(most: f64, start: f64, end: f64) -> Self {
        let scale = Self::from_zero(most, start, end);
        let step = step(scale.most);
        Self { most: (scale.most / step).ceil() * step, ..scale }
    }

    /// Returns a logarithmic scale over the values and some space beside them.
    pub(super) fn logarithmic(least: f64, most: f64, start: f64, end: f64) -> Self {
        let least = if least.is_finite() && least > 0.0 { least } else { 1.0 };
        let most = if most.is_finite() && most > least { most } else { least };
        Self { kind: Kind::Logarithmic, least: least / 1.6, most: most * 1.6, start, end }
    }

    /// Returns the coordinate of a value; values outside are at the edge.
    pub(super) fn at(&self, value: f64) -> f64 {
        let part = match self.kind {
            Kind::Linear => (value - self.least) / (self.most - self.least).max(f64::MIN_POSITIVE),
            Kind::Logarithmic => (value / self.least).max(f64::MIN_POSITIVE).ln() / (self.most / self.least).ln(),
        };
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
        self.start + (self.end - self.start) * part
    }

    /// Returns the values of the marks.
    pub(super) fn marks(&self) -> Vec<f64> {
        match self.kind {
            Kind::Linear => {
                let step = step(self.most - self.least);
                let count = ((self.most - self.least) / step + 1e-6).floor().clamp(0.0, MARKS_MAX) as usize;
                (0..=count).map(|index| self.least + index as f64 * step).collect()
            }
            Kind::Logarithmic => {
                let first = self.least.log10().floor() as i32;
                let decades = (0..LOG_DECADES_MAX).map(|decade| 10f64.powi(first + decade));
                let all: Vec<f64> = decades
                    .flat_map(|decade| [1.0, 2.0, 5.0].map(|factor| factor * decade))
                    .filter(|value| (self.least..=self.most).contains(value))
                    .collect();
                let every = all.len().div_ceil(MARKS_MAX as usize).max(1);
                all.into_iter().step_by(every).collect()
            }
        }
    }
}

/// Maximum number of marks of a scale.
const MARKS_MAX: f64 = 12.0;

/// Maximum number of decades of a scale. Reason: from 1 bit/s to 1 Pbit/s.
const LOG_DECADES_MAX: i32 = 16;

/// Returns a round distance between marks, for three to six marks up to `most`.
pub(super) fn step(most: f64) -> f64 {
    let rough = most / 5.0;
    let scale = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| scale * factor >= rough * 0.999);
    scale * factor.unwrap_or(10.0)
}

/// Texts of the two axes of a panel.
pub(super) struct Axes<'a> {
    /// Unit of a horizontal value; `None`: no marks, because another panel below has them.
    pub(super) across: Option<&'a dyn Fn(f64) -> String>,
    /// Unit of a vertical value.
    pub(super) up: &'a dyn Fn(f64) -> String,
}

/// Draws the grid and the marks of a panel.
pub(super) fn axes(x: &Scale, y: &Scale, axes: &Axes<'_>) -> Markup {
    html! {
        @for mark in y.marks() {
            line.grid x1=(px(x.start)) x2=(px(x.end)) y1=(px(y.at(mark))) y2=(px(y.at(mark))) {}
            text.soft x=(px(x.start - 7.0)) y=(px(y.at(mark) + 4.0)) text-anchor="end" { ((axes.up)(mark)) }
        }
        line.axis x1=(px(x.start)) x2=(px(x.end)) y1=(px(y.start)) y2=(px(y.start)) {}
        @if let Some(across) = axes.across {
            @for mark in x.marks() {
                line.axis x1=(px(x.at(mark))) x2=(px(x.at(mark))) y1=(px(y.start)) y2=(px(y.start + 4.0)) {}
                text.soft x=(px(x.at(mark))) y=(px(y.start + LINE)) text-anchor="middle" { (across(mark)) }
            }
        }
    }
}

/// Returns a coordinate and moves it.
pub(super) fn advance(at: &mut f64, by: f64) -> f64 {
    let before = *at;
    *at += by;
    before
}

/// Returns a rate for an axis.
pub(super) fn rate(bps: f64) -> String {
    if bps < 1.0 { "0".to_owned() } else { sterna_proto::BitRate(bps as u64).to_string() }
}

/// Returns a number of bytes for an axis.
pub(super) fn bytes(count: f64) -> String {
    if count < 1.0 { "0".to_owned() } else { sterna_proto::ByteCount(count as u64).to_string() }
}

/// Returns the points of a line as an attribute.
pub(super) fn points(of: impl IntoIterator<Item = (f64, f64)>) -> String {
    of.into_iter().map(|(x, y)| format!("{},{}", px(x), px(y))).collect::<Vec<_>>().join(" ")
}

/// Fill of an area: a colour and a pattern, so that the colour is never alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// Orange with rising lines.
    One,
    /// Blue with falling lines.
    Two,
    /// Green, plain.
    Three,
    /// Grey with dots.
    Four,
}

impl Fill {
    const ALL: [Self; 4] = [Self::One, Self::Two, Self::Three, Self::Four];

    fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Two => "two",
            Self::Three => "three",
            Self::Four => "four",
        }
    }

    /// Returns the value of the attribute `fill` in the plot of this name.
    pub(super) fn of(self, plot: &str) -> String {
        format!("url(#{plot}-{})", self.name())
    }
}

/// Draws the definitions of the fills, once for each plot.
pub(super) fn fills(plot: &str) -> Markup {
    html! {
        defs {
            @for fill in Fill::ALL {
                pattern id={ (plot) "-" (fill.name()) } width="8" height="8" patternUnits="userSpaceOnUse" {
                    rect class=(fill.name()) width="8" height="8" {}
                    @match fill {
                        Fill::One => { path.hatch d="M-2 2 L2 -2 M0 8 L8 0 M6 10 L10 6" {} },
                        Fill::Two => { path.hatch d="M-2 6 L2 10 M0 0 L8 8 M6 -2 L10 2" {} },
                        Fill::Three => {},
                        Fill::Four => { circle.hatch cx="4" cy="4" r="1" {} },
                    }
                }
            }
        }
    }
}

/// Draws a legend in one line: a fill and its words, in turn.
pub(super) fn legend(plot: &str, y: f64, entries: &[(Fill, &str)]) -> Markup {
    let mut x = LEFT;
    html! {
        @for (fill, words) in entries {
            @let left = advance(&mut x, 17.0 + words.chars().count() as f64 * CHARACTER + 18.0);
            rect x=(px(left)) y=(px(y - 10.0)) width="12" height="12" fill=(fill.of(plot)) {}
            text x=(px(left + 17.0)) y=(px(y)) { (words) }
        }
    }
}

/// Mean width of a character, for the places of legends. Reason: system fonts of 12 units differ by a tenth.
pub(super) const CHARACTER: f64 = 6.3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_few() {
        for most in [1e-6, 0.3, 1.0, 7.3, 149e6, 9.9e9, 1e15] {
            let scale = Scale::rounded(most, 0.0, 100.0);
            let marks = scale.marks();
            assert!((3..=8).contains(&marks.len()), "{most}: {marks:?}");
            assert!(scale.most >= most && (scale.at(scale.most) - 100.0).abs() < 1e-9, "{most}");
        }
        let log = Scale::logarithmic(4e6, 2e9, 0.0, 100.0);
        assert!((4..=12).contains(&log.marks().len()), "{:?}", log.marks());
    }

    #[test]
    fn values_that_are_no_numbers_are_drawn_at_the_edge() {
        for wrong in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            for scale in [Scale::rounded(wrong, 0.0, 9.0), Scale::logarithmic(wrong, wrong, 0.0, 9.0)] {
                assert!((0.0..=9.0).contains(&scale.at(wrong)), "{wrong}");
                assert!(scale.marks().len() < 20);
            }
        }
        assert_eq!(px(f64::NAN), "0");
    }
}
