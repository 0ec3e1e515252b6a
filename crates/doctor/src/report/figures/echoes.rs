//! Round trips by port, and sizes of packets that pass.

use maud::{Markup, html};
use sterna_net::measure::SizeCount;

use super::plot::{Axes, Figure, Fill, LEFT, LINE, RIGHT, Scale, WIDTH, advance, axes, fills, legend, px};
use crate::evidence::{Direction, Evidence, Purpose};
use crate::report::{Report, text};

/// Maximum number of ports in the plot; as many as an experiment has.
const PORTS_MAX: usize = 256;

/// Maximum number of round trips of a port in the plot. Reason: more dots cover each other.
const ROUND_TRIPS_MAX: usize = 32;

/// Number of modes with a line and a mark of their own.
const MODES_MAX: usize = 6;

/// Draws the round trips by port; `None` without echoes.
pub(super) fn round_trips(evidence: &Evidence, report: &Report) -> Option<Figure> {
    let mut ports: Vec<_> = evidence.echoes()?.echoes.iter().filter(|port| !port.rtt_us.is_empty()).collect();
    ports.sort_by_key(|port| port.port);
    ports.truncate(PORTS_MAX);
    let (first, last) = (ports.first()?.port, ports.last()?.port);
    let seconds = |micros: u64| micros as f64 / 1e6;
    let all = || ports.iter().flat_map(|port| port.rtt_us.iter().take(ROUND_TRIPS_MAX)).map(|rtt| seconds(*rtt));
    let least = all().fold(f64::INFINITY, f64::min);
    let mut sorted: Vec<f64> = all().collect();
    sorted.sort_by(f64::total_cmp);
    let smallest =
        ports.iter().filter_map(|port| port.rtt_us.iter().min()).map(|rtt| seconds(*rtt)).fold(0.0, f64::max);
    let most = sorted[(sorted.len() * 98 / 100).min(sorted.len() - 1)].max(smallest);
    let (top, height) = (36.0, 210.0);
    // The scale begins near the smallest round trip, so that modes that differ by a part of it are apart.
    let y = around(least, most, top + height, top);
    let x = |index: usize| LEFT + 10.0 + (WIDTH - LEFT - RIGHT - 20.0) * (index as f64 + 0.5) / ports.len() as f64;
    let across = Scale::from_zero(1.0, LEFT, WIDTH - RIGHT);
    let modes = &report.path.rtt_modes;
    let body = html! {
        text.strong x=(px(LEFT)) y=(px(top - 14.0)) {
            "Round trip of each echo (dot) and the smallest of its port (mark), by port of A"
        }
        (axes(&across, &y, &Axes { across: None, up: &millis }))
        @for mode in modes.iter().take(MODES_MAX) {
            @let at = y.at(mode.rtt_s);
            line.guide x1=(px(LEFT)) x2=(px(WIDTH - RIGHT)) y1=(px(at)) y2=(px(at)) {}
        }
        @for (index, port) in ports.iter().enumerate() {
            @for rtt in port.rtt_us.iter().take(ROUND_TRIPS_MAX) {
                circle.four cx=(px(x(index))) cy=(px(y.at(seconds(*rtt)))) r="1.6" {}
            }
            @let smallest = port.rtt_us.iter().min().copied().unwrap_or(0);
            @let mode = modes.iter().position(|mode| mode.ports.contains(&port.port)).unwrap_or(0);
            (mark(mode, x(index), y.at(seconds(smallest))))
        }
        text.soft x=(px(LEFT)) y=(px(top + height + LINE)) { "port " (first) }
        text.soft x=(px(WIDTH - RIGHT)) y=(px(top + height + LINE)) text-anchor="end" { "port " (last) }
    };
    let each = modes
        .iter()
        .take(MODES_MAX)
        .map(|mode| format!("{} for {:.0} % of the ports", millis(mode.rtt_s), mode.share * 100.0));
    let each = each.collect::<Vec<_>>().join(", ");
    let shows = match modes.len() {
        0 | 1 => "All ports have one path, or paths of the same length",
        _ => "The ports have paths of different length: a router spreads flows over them by their ports",
    };
    Some(Figure {
        name: "round-trips".to_owned(),
        title: "Round trips by port".to_owned(),
        caption: format!(
            "{} ports. {shows}: {each}. The largest 2 % of the round trips are drawn at the edge.",
            ports.len()
        ),
        numbers: String::new(),
        height: top + height + LINE + 8.0,
        body,
    })
}

/// Returns a scale around the values, whose marks are round.
fn around(least: f64, most: f64, start: f64, end: f64) -> Scale {
    let span = (most - least).max(least * 0.02).max(2e-4);
    let step = super::plot::step(span);
    let least = ((least / step).floor() * step).max(0.0);
    let whole = Scale::from_zero(most, start, end);
    Scale { least, most: least + ((most - least) / step + 0.2).ceil() * step, ..whole }
}

/// Draws the smallest round trip of a port: the shape shows its mode.
fn mark(mode: usize, x: f64, y: f64) -> Markup {
    html! {
        @match mode % 3 {
            0 => { circle.two cx=(px(x)) cy=(px(y)) r="4" {} },
            1 => { path.bad d={ "M" (px(x)) " " (px(y - 5.0)) "l5 9h-10z" } {} },
            _ => { rect.three x=(px(x - 4.0)) y=(px(y - 4.0)) width="8" height="8" {} },
        }
    }
}

/// Returns a time in milliseconds with the digits that tell paths apart.
fn millis(seconds: f64) -> String {
    let digits = format!("{:.2}", seconds * 1e3);
    format!("{} ms", digits.trim_end_matches('0').trim_end_matches('.'))
}

/// Returns the packets of a size that the sender tried to send.
fn tried(size: &SizeCount) -> u64 {
    size.sent.saturating_add(size.refused)
}

/// Maximum number of sizes in the plot; as many as fit beside each other.
const SIZES_MAX: usize = 16;

/// Draws the sizes of packets that pass; `None` without the experiment.
pub(super) fn sizes(evidence: &Evidence, direction: Direction) -> Option<Figure> {
    let (_, train) = evidence.train(Purpose::Sizes, direction)?;
    let mut sizes: Vec<SizeCount> = train.sizes.iter().filter(|size| tried(size) > 0).copied().collect();
    sizes.sort_by_key(|size| size.bytes);
    sizes.truncate(SIZES_MAX);
    let largest = sizes.iter().filter(|size| size.received > 0).map(|size| size.bytes).max();
    let name = format!("sizes-{}", direction.name());
    let (top, height) = (58.0, 90.0);
    let width = (WIDTH - LEFT - RIGHT) / SIZES_MAX as f64;
    let body = html! {
        (fills(&name))
        (legend(&name, 14.0, &[
            (Fill::Three, "arrived"), (Fill::One, "lost on the way"), (Fill::Four, "refused by the sender's own interface"),
        ]))
        @for (index, size) in sizes.iter().enumerate() {
            @let x = LEFT + width * index as f64;
            (column(&name, (x, width), (top, height), size))
        }
        line.axis x1=(px(LEFT)) x2=(px(WIDTH - RIGHT)) y1=(px(top + height)) y2=(px(top + height)) {}
        text.soft x=(px(LEFT - 7.0)) y=(px(top + height + LINE)) text-anchor="end" { "bytes" }
    };
    let passes = largest.map_or("No size passed.".to_owned(), |bytes| format!("Packets up to {bytes} bytes pass."));
    let reported = match train.too_big_mtu {
        Some(mtu) => format!(" A router reported that it carries {mtu} bytes at most."),
        None => String::new(),
    };
    let each = sizes.iter().map(|size| format!("{}: {} of {}", size.bytes, size.received, tried(size)));
    Some(Figure {
        title: format!("Sizes of packets that pass, {}", text::arrow(direction)),
        name,
        caption: format!(
            "Size of the IP packet, not to be fragmented. A size that vanishes without a report of a router is a black hole. \
             {passes}{reported}"
        ),
        numbers: format!("Arrived: {}.", each.collect::<Vec<_>>().join("; ")),
        height: top + height + LINE + 8.0,
        body,
    })
}

/// Draws one size. `across`: left edge and width; `up`: top and height.
fn column(plot: &str, across: (f64, f64), up: (f64, f64), size: &SizeCount) -> Markup {
    let all = tried(size).max(1) as f64;
    let received = size.received.min(size.sent);
    let shares = [
        (Fill::Three, received as f64 / all),
        (Fill::One, (size.sent - received) as f64 / all),
        (Fill::Four, size.refused as f64 / all),
    ];
    let middle = across.0 + across.1 / 2.0;
    let mut from = up.0 + up.1;
    html! {
        @for (fill, share) in shares {
            @let height = up.1 * share;
            @let bottom = advance(&mut from, -height);
            @if height > 0.05 {
                rect x=(px(across.0 + 4.0)) y=(px(bottom - height)) width=(px(across.1 - 8.0)) height=(px(height))
                    fill=(fill.of(plot)) {}
            }
        }
        text.soft x=(px(middle)) y=(px(up.0 - 6.0)) text-anchor="middle" {
            (size.received) "/" (tried(size))
        }
        text x=(px(middle)) y=(px(up.0 + up.1 + LINE)) text-anchor="middle" { (size.bytes) }
    }
}
