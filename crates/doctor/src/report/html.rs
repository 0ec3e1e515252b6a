//! Report as one HTML page, made to be sent to the operators of another network.
//!
//! The page needs no script and no other file. It has colours for dark and light screens and prints on A4. The verdicts
//! come first, then the proof of each, then what was measured, how, when and between which hosts. All text enters
//! through `maud`, which escapes it, and without characters that change the direction of text.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::exclude::{CAUSES, Ruling, Rulings, alike};
use super::figures::{self, Figure};
use super::text::{self, arrow};
use super::{About, Report, repeat};
use crate::bundle::Proof;
use crate::evidence::{Direction, Evidence, Experiment, Outcome, Purpose, Record};
use crate::facts::Facts;
use crate::verdict::{Cause, Verdict};
use crate::words::date;

/// Content of a page.
pub struct Page<'a> {
    /// Report.
    pub report: &'a Report,
    /// Evidence of the report.
    pub evidence: &'a Evidence,
    /// Circumstances of the examination.
    pub about: &'a About,
    /// Signatures of the bundle.
    pub proof: &'a Proof,
}

/// Maximum length of a text of a peer, characters. Reason: an error with its causes has some hundreds.
const TEXT_MAX: usize = 1000;

/// Returns a page with this content, and with the style of all pages. It loads nothing.
pub(crate) fn around(title: &str, main: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                meta name="color-scheme" content="light dark";
                // A text that escaping missed could load nothing.
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(figures::STYLE)) }
            }
            body { main { (main) } }
        }
    };
    page.into_string()
}

/// Returns a text of a peer for the page: on one line, without control characters, and not longer than [`TEXT_MAX`].
pub(crate) fn safe(text: &str) -> String {
    let shown = sterna_proto::file::plain(text);
    match shown.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        // A per cent sign stays beside its number.
        None => shown.replace(" %", "\u{a0}%"),
    }
}

impl Page<'_> {
    /// Returns the page.
    pub fn render(&self) -> String {
        let figures = figures::figures(self.evidence, self.report);
        let main = html! {
            (self.head())
            (self.verdicts(&figures))
            (self.table_of_path())
            section { h2 #proof { "Proof" } @for figure in &figures { (drawn(figure)) } }
            (self.rulings())
            (self.method())
            (self.experiments())
            (self.signatures())
        };
        around(&format!("Path examination: {}", safe(&self.report.target)), &main)
    }

    fn head(&self) -> Markup {
        let report = self.report;
        html! {
            header {
                h1 { "What limits transfers between A and B" }
                table.ends {
                    tr { th scope="row" { "A" } td { (self.end_a()) } }
                    tr { th scope="row" { "B" } td { (self.end_b()) } }
                    tr {
                        th scope="row" { "When" }
                        td { (date(report.started)) ", " (format!("{:.0}", report.cost.time_s)) " s, "
                            (sterna_proto::ByteCount(report.cost.bytes)) " over the path" }
                    }
                }
                div.rates {
                    (big(&text::rate(report.measured_bps), "A to B, one connection"))
                    (big(&text::rate(report.reverse_measured_bps), "B to A, one connection"))
                    (big(&text::time(report.path.rtt_s), "smallest round trip"))
                }
            }
        }
    }

    fn end_a(&self) -> String {
        let local = if self.about.local.is_empty() { "address not recorded" } else { &self.about.local };
        format!("{}, the host that measured; Linux {}", safe(local), safe(&self.report.path.near_kernel))
    }

    fn end_b(&self) -> String {
        let path = &self.report.path;
        format!("{}, asked as {}; Linux {}", safe(&path.address), safe(&self.report.target), safe(&path.far_kernel))
    }

    fn verdicts(&self, figures: &[Figure]) -> Markup {
        html! {
            section {
                h2 { "Verdicts" }
                @if self.report.verdicts.is_empty() { p { "No connection could be measured: there is no verdict." } }
                @if self.report.verdicts.len() > 1 {
                    ol.short {
                        @for verdict in &self.report.verdicts {
                            li {
                                strong { (arrow(verdict.direction)) ": " (heading(verdict)) }
                                @if let Some(limit) = verdict.limits_to_bps {
                                    ": " (text::rate(limit)) " now" (text::then(verdict))
                                }
                            }
                        }
                    }
                }
                @for (index, verdict) in self.report.verdicts.iter().enumerate() {
                    (self.verdict(index, verdict, figures))
                }
                @if !self.report.notes.is_empty() {
                    p.note {
                        strong { "Note: " }
                        (self.report.notes.iter().map(|line| safe(line)).collect::<Vec<_>>().join("; "))
                    }
                }
            }
        }
    }

    fn verdict(&self, index: usize, verdict: &Verdict, figures: &[Figure]) -> Markup {
        let shown = proofs(verdict, figures);
        let rulings = Rulings::new(self.evidence, self.report, verdict.direction);
        let others: Vec<(Cause, Ruling)> = rulings
            .iter()
            .flat_map(|rulings| alike(verdict.limit).iter().map(|cause| (*cause, rulings.of(*cause))))
            .filter(|(_, ruling)| *ruling != Ruling::Found)
            .collect();
        let repeats = repeat::commands(verdict, self.report);
        html! {
            article.verdict.clean[verdict.limit == Cause::Clean] {
                h3 { (index + 1) ". " (arrow(verdict.direction)) ": " (heading(verdict)) }
                p.plain { (sentence(verdict)) }
                (gain(verdict, self.measured(verdict.direction)))
                @if !verdict.evidence.is_empty() {
                    h4 { "Observed" }
                    ul { @for text in &verdict.evidence { li { (safe(text)) } } }
                }
                @if verdict.limit != Cause::Clean { h4 { "What to do" } p { (safe(&verdict.remedy)) } }
                @if !others.is_empty() {
                    h4 { "Could it be something else?" }
                    table.rulings { @for (cause, ruling) in &others { (ruling_row(*cause, ruling)) } }
                }
                @if !repeats.is_empty() {
                    h4 { "Repeat it with common tools" }
                    @for repeat in &repeats {
                        p.repeat { code { (safe(&repeat.command)) } br; "Expect: " (safe(&repeat.expect)) "." }
                    }
                }
                p.soft {
                    "Confidence " (format!("{:.0}", verdict.confidence * 100.0)) " %."
                    @if !shown.is_empty() { " Proof: " }
                    @for (index, figure) in shown.iter().enumerate() {
                        @if index > 0 { ", " }
                        a href={ "#" (figure.name) } { (figure.title) }
                    }
                }
            }
        }
    }

    fn measured(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Forward => self.report.measured_bps,
            Direction::Reverse => self.report.reverse_measured_bps,
        }
    }

    fn table_of_path(&self) -> Markup {
        html! {
            section {
                h2 { "The path" }
                table {
                    thead {
                        tr {
                            th scope="col" { "Direction" } th scope="col" { "One connection" }
                            th scope="col" { "The path carries" } th scope="col" { "Lost without load" }
                            th scope="col" { "Reordered" } th scope="col" { "Largest packet" } th scope="col" { "Segment" }
                        }
                    }
                    tbody {
                        @for path in &self.report.path.directions {
                            tr {
                                th scope="row" { (arrow(path.direction)) }
                                td { (text::rate(self.measured(path.direction))) }
                                td { (text::carries(path)) }
                                td {
                                    @if path.loss_packets == 0 { "not measured" } @else {
                                        (format!("{:.0}", path.loss * path.loss_packets as f64)) " of " (path.loss_packets)
                                        " (" (text::percent(path.loss)) ")"
                                    }
                                }
                                td { @if path.loss_packets == 0 { "not measured" } @else { (text::percent(path.reordered)) } }
                                td { @match path.mtu { Some(mtu) => { (mtu) " bytes" }, None => { "not measured" } } }
                                td { (path.mss) " bytes" }
                            }
                        }
                    }
                }
            }
        }
    }

    fn rulings(&self) -> Markup {
        let both = Direction::ALL.map(|direction| Rulings::new(self.evidence, self.report, direction));
        html! {
            section {
                h2 { "Every cause, and the observation about it" }
                p { "Found: there is a verdict above. Excluded: the observation speaks against the cause. Open: the \
                     observations do not decide, so the cause may be present without a visible effect." }
                @for (direction, rulings) in Direction::ALL.into_iter().zip(&both) {
                    @if let Some(rulings) = rulings {
                        h3 { (arrow(direction)) }
                        table.rulings { @for cause in CAUSES { (ruling_row(cause, &rulings.of(cause))) } }
                    }
                }
            }
        }
    }

    fn method(&self) -> Markup {
        html! {
            section {
                h2 { "How it was measured" }
                p { "Both hosts ran Sterna " (safe(&self.report.sterna)) ". The data of flows was generated in \
                     memory and discarded by the receiver, so no disk took part in them. No setting of a host was changed: each experiment \
                     sets options of the sockets that it opens."
                     @if let Some(most) = self.report.rate_max_bps {
                         " No experiment was faster than " (text::rate(most)) ", the maximum that the user allowed."
                     }
                }
                ul {
                    li { strong { "Flows" } " are TCP connections without encryption. Both kernels were read every 50 ms \
                        (TCP_INFO): segments sent, delivered and sent again, windows, and the time for which the window of \
                        the receiver or the send buffer held the sender. The counters of the two ends together tell lost \
                        data from lost acknowledgements." }
                    li { strong { "Proof by change" } ": the same flow with one thing changed. If half a buffer gives half \
                        the rate and a larger one gives more, that buffer is the limit." }
                    li { strong { "Trains" } " are UDP packets at a fixed rate without congestion control. The receiver \
                        counts them by 10 ms of their sending. Delays are one-way and relative to the smallest of the \
                        train; the drift of the clocks is removed." }
                    li { strong { "Echoes" } " are small UDP packets from many ports that B returns at once. The ports \
                        take different paths where routers spread flows." }
                }
                (self.hosts())
            }
        }
    }

    fn hosts(&self) -> Markup {
        let (near, far) = (&self.evidence.near, &self.evidence.far);
        let settings = near.settings.keys().chain(far.settings.keys());
        let mut names: Vec<&String> = settings.collect();
        names.sort();
        names.dedup();
        names.truncate(SETTINGS_MAX);
        let value = |host: &sterna_net::measure::HostFacts, name: &String| {
            host.settings.get(name).map_or_else(|| "not read".to_owned(), |value| safe(value))
        };
        html! {
            h3 { "Hosts" }
            table {
                thead { tr { th scope="col" { "" } th scope="col" { "A" } th scope="col" { "B" } } }
                tbody {
                    tr { th scope="row" { "Kernel" } td { (safe(&near.kernel)) } td { (safe(&far.kernel)) } }
                    tr { th scope="row" { "Processors" } td { (near.processors) } td { (far.processors) } }
                    tr { th scope="row" { "Sterna" } td { (safe(&near.sterna)) } td { (safe(&far.sterna)) } }
                }
            }
            details {
                summary { "Settings of both kernels" }
                table {
                    thead { tr { th scope="col" { "Setting" } th scope="col" { "A" } th scope="col" { "B" } } }
                    tbody {
                        @for name in names {
                            tr { th scope="row" { code { (safe(name)) } } td { (value(near, name)) } td { (value(far, name)) } }
                        }
                    }
                }
            }
        }
    }

    fn experiments(&self) -> Markup {
        let evidence = self.evidence;
        html! {
            section {
                h2 { "Experiments and their cost" }
                table.experiments {
                    thead {
                        tr {
                            th scope="col" { "Start" } th scope="col" { "Direction" } th scope="col" { "Question" }
                            th scope="col" { "How" } th scope="col" { "Result" } th scope="col" { "Time" }
                            th scope="col" { "Bytes" }
                        }
                    }
                    tbody {
                        @for record in evidence.records.iter().take(RECORDS_MAX) {
                            tr {
                                td { (format!("{:.1} s", record.start_ms as f64 / 1e3)) }
                                td { (place(record)) }
                                td { (text::purpose(record.purpose)) }
                                td { (safe(&asked(record))) }
                                td { (safe(&answered(evidence, record))) }
                                td { (format!("{:.1} s", record.time_ms as f64 / 1e3)) }
                                td { (sterna_proto::ByteCount(record.cost_bytes())) }
                            }
                        }
                    }
                }
            }
        }
    }

    fn signatures(&self) -> Markup {
        html! {
            footer {
                h2 { "Evidence file" }
                @if self.proof.signers.is_empty() {
                    p.note { strong { "No signed evidence. " } "The page was made without a bundle, or from one that nobody \
                        signed." }
                } @else {
                    p { "The evidence is in a bundle that is signed by the key "
                        @for (index, signer) in self.proof.signers.iter().enumerate() {
                            @if index > 0 { ", " }
                            code { (signer) }
                        }
                        @if !self.about.agent_key.is_empty() {
                            "; the key of B is " code { (safe(&self.about.agent_key)) }
                        }
                        ". Ask the sender for it, and make this page again:" }
                    p { code { "sterna doctor show FILE --html page.html" } }
                    p { "SHA-256 of the signed evidence: " code { (self.proof.digest) } }
                }
                p.soft { "This page loads nothing and runs no program. A signature shows who wrote the evidence and that \
                    nobody changed it. The counters are those of the kernels of both hosts." }
            }
        }
    }
}

/// Maximum number of settings of a host in the page. Reason: a release reads some twenty.
const SETTINGS_MAX: usize = 100;

/// Maximum number of experiments in the page. Reason: an examination of 10 min has about 40.
const RECORDS_MAX: usize = 200;

fn big(value: &str, words: &str) -> Markup {
    html! { div { strong { (value) } span { (words) } } }
}

/// Draws a figure with its title and caption.
pub(crate) fn drawn(figure: &Figure) -> Markup {
    html! {
        figure id=(figure.name) {
            h3 { (figure.title) }
            (figure.inline())
            figcaption { (safe(&figure.caption)) }
        }
    }
}

fn heading(verdict: &Verdict) -> String {
    match (verdict.limit, verdict.limits_to_bps) {
        (Cause::Clean, _) => "no trouble found".to_owned(),
        (limit, Some(_)) => format!("{} is the limit", limit.words()),
        (limit, None) => format!("{}, not the limit now", limit.words()),
    }
}

/// Returns the verdict in one plain sentence.
fn sentence(verdict: &Verdict) -> &'static str {
    match verdict.limit {
        Cause::ReceiveBuffer => {
            "The receiver's buffer is smaller than the data that fits on the path in one round trip, so the sender must wait \
             for the receiver. The network is not the limit."
        }
        Cause::SendBuffer => {
            "The sender's buffer is smaller than the data that fits on the path in one round trip, so the sender cannot keep \
             the path full. The network is not the limit."
        }
        Cause::SlowRamp => "A connection needs a large part of a transfer to reach the rate of the path.",
        Cause::NoWindowScaling => {
            "Without window scaling at most 64 KiB are on the way: an end does not offer it, or a device removes the option."
        }
        Cause::NoSack => {
            "Without selective acknowledgements one loss is repaired in each round trip: an end does not offer them, or a \
             device removes the option."
        }
        Cause::NoTimestamps => "Timestamps are missing: an end does not offer them, or a device removes the option.",
        Cause::RttModes => "Flows take paths of different length, depending on their port numbers.",
        Cause::RandomLoss => {
            "Packets are lost at any rate, also when the path is nearly empty. That is a fault of a link or device, and not \
             an effect of load."
        }
        Cause::Congestion => "The path is shared: traffic of others fills its queue or takes a part of its rate.",
        Cause::Policer => {
            "A device on the path drops packets above a fixed rate and keeps no queue. TCP takes each drop for congestion and \
             slows down, often far below the fixed rate."
        }
        Cause::Shaper => "A device on the path delays packets above a fixed rate, after it has let a burst pass.",
        Cause::AckPath => "The opposite direction is too slow, or too full, for the acknowledgements of this rate.",
        Cause::Reordering => "Packets overtake each other on the path, and TCP takes late packets for lost ones.",
        Cause::PmtuBlackHole => {
            "Large packets vanish and no router reports it. Connections open, and stop at the first large transfer."
        }
        Cause::MssClamped => "A device on the path makes the segments smaller than the path needs.",
        Cause::ApplicationRead => "The program at the sender does not supply data fast enough.",
        Cause::ApplicationWrite => "The program at the receiver does not read fast enough.",
        Cause::DiskRead => "The disk of the sender is slower than the path.",
        Cause::DiskWrite => "The disk of the receiver is slower than the path.",
        Cause::Cpu => "A host has no processor time when packets are due. The network is not the limit.",
        Cause::RateCap => "The user has limited the rate of the examination; the path would carry more.",
        Cause::Clean => "One connection fills what the path carries, as far as the experiments can tell.",
    }
}

/// Draws the rate now and the rate without the limit.
fn gain(verdict: &Verdict, measured: u64) -> Markup {
    let Some(limit) = verdict.limits_to_bps else { return html! {} };
    let factor = verdict.predicted_bps as f64 / limit.max(1) as f64;
    if factor < text::GAIN_MIN {
        return html! {
            p.gain { "Now " strong { (text::rate(measured)) } ". One connection already has the rate of this limit." }
        };
    }
    let after = if verdict.limit == Cause::Policer { "with a paced sender" } else { "without it" };
    html! {
        p.gain {
            "Now " strong { (text::rate(measured)) } " → predicted " (after) " "
            strong { (text::rate(verdict.predicted_bps)) }
            @if verdict.predicted_is_least { " or more" }
            " (" (format!("{factor:.1}")) " times)"
        }
    }
}

/// Returns the figures that prove a verdict.
fn proofs<'a>(verdict: &Verdict, figures: &'a [Figure]) -> Vec<&'a Figure> {
    let kinds: &[&str] = match verdict.limit {
        Cause::Policer | Cause::Shaper => &["train", "loss", "rate"],
        Cause::RandomLoss | Cause::Congestion => &["loss", "rate", "round-trips"],
        Cause::RttModes => &["round-trips"],
        Cause::PmtuBlackHole | Cause::MssClamped => &["sizes"],
        Cause::Clean => &["ladder", "rate", "loss"],
        _ => &["ladder", "rate"],
    };
    let names = kinds.iter().map(|kind| match *kind {
        "round-trips" => "round-trips".to_owned(),
        kind => format!("{kind}-{}", verdict.direction.name()),
    });
    names.filter_map(|name| figures.iter().find(|figure| figure.name == name)).collect()
}

fn ruling_row(cause: Cause, ruling: &Ruling) -> Markup {
    let (mark, words, observed) = match ruling {
        Ruling::Found => ("●", "found", ""),
        Ruling::Excluded(observed) => ("✕", "excluded", observed.as_str()),
        Ruling::Open(observed) => ("?", "open", observed.as_str()),
    };
    html! {
        tr class=(words) {
            th scope="row" { (cause.words()) }
            td { span.sign aria-hidden="true" { (mark) } " " (words) }
            td { @if ruling == &Ruling::Found { "see its verdict" } @else { (safe(observed)) } }
        }
    }
}

/// Returns the direction of an experiment, or the host of a disk.
fn place(record: &Record) -> &'static str {
    match record.purpose {
        Purpose::Echoes => "both",
        Purpose::NearDisk => "at A",
        Purpose::FarDisk => "at B",
        _ => arrow(record.direction),
    }
}

/// Returns the settings of an experiment in words.
fn asked(record: &Record) -> String {
    match &record.experiment {
        Experiment::Echo { spec } => {
            format!("{} ports, {} packets of {} bytes each", spec.ports, spec.per_port, spec.packet_bytes)
        }
        Experiment::Train { spec, rest_ms } => {
            let sizes = match (spec.packet_bytes.iter().min(), spec.packet_bytes.iter().max()) {
                (Some(least), Some(most)) if least != most => format!("{least} to {most} bytes"),
                (Some(size), _) => format!("{size} bytes"),
                _ => "no size".to_owned(),
            };
            let rest =
                if *rest_ms > 0 { format!(", after {:.1} s of rest", *rest_ms as f64 / 1e3) } else { String::new() };
            format!(
                "UDP, {} for {:.1} s, packets of {sizes}{rest}",
                text::rate(spec.rate_bps),
                spec.time_ms as f64 / 1e3
            )
        }
        Experiment::Disk { path } => format!("a file without a name in {path:?}"),
        Experiment::Flow { spec } => {
            let mut words = vec![match spec.streams {
                1 => "TCP".to_owned(),
                count => format!("TCP, {count} connections"),
            }];
            words.push(format!("{:.1} s", spec.time_ms as f64 / 1e3));
            let bytes = |name: &str, bytes: u64| format!("{name} {}", sterna_proto::ByteCount(bytes));
            words.extend(spec.receiver.receive_buffer.map(|buffer| bytes("receive buffer", buffer)));
            words.extend(spec.sender.send_buffer.map(|buffer| bytes("send buffer", buffer)));
            words.extend(spec.sender.congestion.clone());
            words.extend(spec.sender.pacing_bps.map(|bps| format!("at most {}", text::rate(bps))));
            words.join(", ")
        }
    }
}

/// Returns the result of an experiment in words.
fn answered(evidence: &Evidence, record: &Record) -> String {
    match &record.outcome {
        Outcome::Failed(reason) => format!("no result: {reason}"),
        Outcome::Echo(report) => {
            let sum = |of: fn(&sterna_net::measure::EchoPort) -> u64| -> u64 {
                report.echoes.iter().map(of).fold(0, u64::saturating_add)
            };
            format!("{} sent, {} reached B, {} came back", sum(|p| p.sent), sum(|p| p.reflected), sum(|p| p.returned))
        }
        Outcome::Disk(disk) => format!(
            "writes {}, reads {}, {}",
            text::rate(disk.write_bps),
            text::rate(disk.read_bps),
            sterna_proto::ByteCount(disk.bytes)
        ),
        Outcome::Train(train) => format!("{} of {} packets arrived", train.received, train.sent),
        Outcome::Flow(_) => match Facts::new(evidence, record.direction).flow(record.purpose) {
            Some(view) => format!(
                "{}; {} of {} segments lost; {}",
                text::rate(view.rate_bps as u64),
                view.lost,
                view.segments,
                view.congestion
            ),
            None => "no samples".to_owned(),
        },
    }
}

/// Style of the page.
pub(super) const STYLE: &str = "\
:root{--ink:#1c2126;--soft:#5b6570;--edge:#d9dee3;--paper:#fff;--panel:#f5f7f9;--link:#0060a8;--good:#1b7f5c;--warn:#a4480c}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#a4adb6;--edge:#3a424a;--paper:#181c20;\
--panel:#20262b;--link:#7cc0f5;--good:#5fd0a5;--warn:#ffa45c}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif}
main{max-width:860px;margin:0 auto;padding:24px 20px 48px}h1{font-size:1.6em;line-height:1.25;margin:0 0 .6em}
h2{font-size:1.25em;margin:2em 0 .6em;padding-bottom:.25em;border-bottom:1px solid var(--edge)}
h3{font-size:1.05em;margin:1.2em 0 .4em}h4{font-size:.95em;margin:1em 0 .2em}p,ul,ol{margin:.4em 0}ul,ol{padding-left:1.4em}
a{color:var(--link)}.soft{color:var(--soft);font-size:.9em}
table{border-collapse:collapse;width:100%;font-size:.9em;margin:.4em 0}th,td{text-align:left;vertical-align:top;padding:.3em .7em .3em 0;\
border-bottom:1px solid var(--edge);overflow-wrap:anywhere}thead th{color:var(--soft);font-weight:600}tbody th,.rulings th{font-weight:600}
.experiments :is(td,th):is(:nth-child(1),:nth-child(2),:nth-child(6),:nth-child(7)){white-space:nowrap}.ends th{width:4em}.rulings th{width:24%}.rulings td:nth-child(2){width:13%;white-space:nowrap}
.rulings .excluded .sign{color:var(--good)}.rulings .open .sign,.rulings .found .sign{color:var(--warn)}.sign{display:inline-block;width:1em;font-weight:700}
.rates{display:flex;flex-wrap:wrap;gap:12px;margin:1em 0}.rates div{flex:1 1 200px;background:var(--panel);padding:.7em 1em;border-radius:6px}
.rates strong{display:block;font-size:1.5em;line-height:1.2}.rates span{color:var(--soft);font-size:.9em}
.verdict{background:var(--panel);border-left:5px solid var(--warn);border-radius:0 6px 6px 0;padding:.2em 1.2em .7em;margin:1em 0}
.verdict.clean{border-color:var(--good)}.verdict .plain{font-size:1.05em}.gain{font-size:1.05em}.note{border-left:5px solid var(--warn);padding-left:1em}
code{font:.92em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}.repeat code{display:inline-block;background:var(--paper);\
border:1px solid var(--edge);border-radius:4px;padding:.1em .5em}
figure{margin:1.4em 0}figure svg{display:block;width:100%;height:auto}figcaption{color:var(--soft);font-size:.9em;margin-top:.4em}
summary{cursor:pointer;color:var(--link)}
@page{size:A4;margin:14mm}@media print{main{max-width:none;padding:0}body{font-size:10pt}figure,.verdict h3,.verdict .plain,tr,.rates{break-inside:avoid}\
h2,h3,h4{break-after:avoid}a{color:inherit;text-decoration:none}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}";
