//! Report of a case as one HTML page, in the style of the page of an examination: no script, nothing to load, prints on
//! A4. All text enters through `maud`, which escapes it.

use maud::{Markup, html};
use sterna_proto::file::plain;

use super::examination::RunId;
use super::facts::{FactKey, FactValue};
use super::history::FactHistory;
use super::moment::EntryTime;
use super::report::{CaseReport, ReportedEvent, ReportedExamination};
use super::statements::Agreement;
use crate::evidence::Direction;
use crate::report::figures::Figure;
use crate::report::figures::history::{HistoryPoint, StatedLine, figure};
use crate::report::html::{around, drawn, safe};
use crate::report::text;

/// Returns the page.
pub fn page(report: &CaseReport) -> String {
    let figures = figures(report);
    let main = html! {
        (head(report))
        (open(report))
        (facts(report))
        @if !figures.is_empty() {
            section { h2 { "Rate over time" } @for figure in &figures { (drawn(figure)) } }
        }
        (chronology(report))
        section { h2 { "Examinations" } @for one in &report.examinations { (examination(one)) } }
        footer {
            p.soft { "A is the host that measured, and B the target. Times are UTC. The bundle of each examination has its \
                evidence, signed. " code { "sterna doctor show FILE --html page.html" } " makes its own report again. \
                This page loads nothing and runs no program." }
        }
    };
    around(&format!("Case: {}", safe(&report.title)), &main)
}

/// Returns the plots of a report: one for each target and direction with examinations.
pub fn figures(report: &CaseReport) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (index, target) in report.targets.iter().enumerate() {
        for direction in Direction::ALL {
            let name = format!("history-{}-{}", index + 1, direction.name());
            let title = format!("{}, {}", safe(target), text::arrow(direction));
            figures.extend(figure(
                &name,
                title,
                history(report, target, direction),
                stated(report, direction),
                &|at| EntryTime::from_unix(at).to_string(),
            ));
        }
    }
    figures
}

fn history(report: &CaseReport, target: &str, direction: Direction) -> Vec<HistoryPoint> {
    let point = |one: &ReportedExamination| {
        let result = one.examination.direction(direction).filter(|result| result.measured_bps > 0)?;
        let limit = one.examination.binding(direction);
        Some(HistoryPoint {
            at: one.time.unix(),
            measured_bps: result.measured_bps,
            limit: limit.and_then(|limit| Some((limit.limit.words(), limit.bps()?))),
            retest: one.retest.as_ref().map(|retest| retest.is_met),
        })
    };
    report.used(target).filter_map(point).collect()
}

fn stated(report: &CaseReport, direction: Direction) -> Vec<StatedLine> {
    let facts = report.facts.iter().filter(|fact| fact.key == FactKey::RateLimit && fact.is_of(direction));
    let line = |fact: &FactHistory| StatedLine {
        domain: fact.domain.clone(),
        steps: fact
            .values
            .iter()
            .map(|stated| match stated.value {
                FactValue::Number(bps) => (stated.since.unix(), Some(bps)),
                _ => (stated.since.unix(), None),
            })
            .collect(),
    };
    facts.map(line).collect()
}

fn head(report: &CaseReport) -> Markup {
    html! {
        header {
            h1 { (safe(&report.title)) }
            table.ends {
                @for target in &report.targets {
                    tr { th scope="row" { "B" } td { (safe(target)) } }
                }
                tr {
                    th scope="row" { "When" }
                    td {
                        @if let Some(opened) = report.opened { "opened " (opened) }
                        @match &report.closed {
                            Some(closing) => { ", closed " (closing.time) ": " (long(&closing.text)) },
                            None => { ", open" },
                        }
                    }
                }
                tr { th scope="row" { "By" } td { (safe(&report.authors.join(", "))) } }
            }
            @for target in &report.targets {
                @if let Some(last) = report.used(target).next_back() {
                    div.rates {
                        @for result in &last.examination.directions {
                            div {
                                strong { (text::rate(result.measured_bps)) }
                                span { (text::arrow(result.direction)) ", " (last.time) ", " (safe(target)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn open(report: &CaseReport) -> Markup {
    html! {
        section {
            h2 { "Open questions" }
            @if report.open.is_empty() { p { "None." } }
            ul { @for question in &report.open { li { (safe(question)) } } }
            @if !report.problems.is_empty() {
                h3 { "Not used, or not certain" }
                ul { @for problem in &report.problems { li { (safe(problem)) } } }
            }
        }
    }
}

fn facts(report: &CaseReport) -> Markup {
    html! {
        @if !report.facts.is_empty() {
            section {
                h2 { "Facts by domain, as stated" }
                table {
                    thead {
                        tr { th scope="col" { "Domain" } th scope="col" { "Fact" } th scope="col" { "Value" }
                            th scope="col" { "Before" } }
                    }
                    tbody {
                        @for fact in &report.facts {
                            @if let Some((current, earlier)) = fact.values.split_last() {
                                tr {
                                    th scope="row" { (safe(&fact.domain)) }
                                    td { (safe(&fact.name())) }
                                    td { strong { (safe(&fact.shown(&current.value))) } " since " (current.since) ", "
                                        (safe(&current.by)) }
                                    td {
                                        @for old in earlier.iter().rev() {
                                            (safe(&fact.shown(&old.value))) " since " (old.since) ", " (safe(&old.by)) br;
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn chronology(report: &CaseReport) -> Markup {
    html! {
        section {
            h2 { "Chronology" }
            table {
                thead { tr { th scope="col" { "Time (UTC)" } th scope="col" { "Event" } th scope="col" { "By" } } }
                tbody { @for event in &report.chronology { (row(event)) } }
            }
        }
    }
}

fn row(event: &ReportedEvent) -> Markup {
    html! {
        tr {
            td { (event.time) }
            td {
                strong { (event.kind) } " "
                @match &event.id {
                    Some(id) => { a href={ "#" (anchor(id)) } { (id) } br; },
                    None => {},
                }
                @for (index, line) in event.lines.iter().enumerate() {
                    @if index > 0 { br; }
                    (plain(line))
                }
            }
            td { (safe(&event.by)) }
        }
    }
}

fn examination(one: &ReportedExamination) -> Markup {
    let examination = &one.examination;
    let is_clean = examination.limits.iter().all(|limit| limit.limits_to_bps.is_none());
    html! {
        article.verdict.clean[is_clean] id=(anchor(&examination.id)) {
            h3 { (one.time) ", " (safe(&examination.target)) }
            p.plain { (safe(&examination.rates())) }
            @for direction in Direction::ALL {
                @if let Some(verdict) = examination.verdict(direction) { p { (safe(&verdict)) } }
            }
            @if let Some(retest) = &one.retest {
                h4 { @if retest.is_met { "Re-test: confirmed" } @else { "Re-test: not confirmed" } }
                @if let Some(claim) = &retest.claim { p { "Claim: " (safe(claim)) } }
                ul { @for answer in &retest.answers { li { (safe(answer)) } } }
                p.soft { "Compared with " a href={ "#" (anchor(&retest.since)) } { (retest.since) } "." }
            }
            @if !one.statements.is_empty() {
                h4 { "Statements of operators" }
                ul {
                    @for check in &one.statements {
                        li { @if check.agreement == Agreement::Agrees { "✓ " } (safe(&check.words)) }
                    }
                }
            }
            p.soft {
                "Bundle " code { "bundles/" (examination.id.file_name()) } ": " (safe(&one.bundle.words())) ". By "
                (safe(&one.by)) ", address " (safe(&examination.address)) ", SHA-256 " code { (safe(&examination.digest)) }
            }
        }
    }
}

fn anchor(id: &RunId) -> String {
    format!("run-{id}")
}

/// Returns a text of several lines, without a maximum: entries have one.
fn long(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join(" ")
}
