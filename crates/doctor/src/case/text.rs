//! Report of a case for the terminal.

use sterna_proto::file::plain;

use super::examination::Examination;
use super::history::FactHistory;
use super::report::{CaseReport, ReportedEvent};

/// Width of the column of times.
const TIME_WIDTH: usize = 16;

/// Width of the column of kinds.
const KIND_WIDTH: usize = 11;

/// Returns the lines of a report.
pub fn lines(report: &CaseReport) -> Vec<String> {
    let mut lines = head(report);
    let mut section = |title: &str, content: Vec<String>| {
        if !content.is_empty() {
            lines.extend([String::new(), title.to_owned()]);
            lines.extend(content);
        }
    };
    section("facts by domain, as stated:", report.facts.iter().flat_map(of_fact).collect());
    section("chronology (UTC):", report.chronology.iter().flat_map(of_event).collect());
    section("statements of operators at each examination:", statements(report));
    section("open questions:", report.open.iter().map(|text| format!("  - {text}")).collect());
    section("not used, or not certain:", report.problems.iter().map(|text| format!("  - {text}")).collect());
    lines.into_iter().map(|line| plain(&line).into_owned()).collect()
}

/// Returns the lines of an event, the first one with time, kind and author.
pub fn of_event(event: &ReportedEvent) -> Vec<String> {
    let id = event.id.as_ref().map(|id| format!("bundle {id}"));
    let mut texts: Vec<String> = event.lines.iter().cloned().chain(id).collect();
    if let Some(first) = texts.first_mut() {
        first.push_str(&format!("  ({})", event.by));
    }
    let begin = format!("  {:<TIME_WIDTH$}  {:<KIND_WIDTH$}  ", event.time, event.kind);
    let indent = " ".repeat(begin.len());
    let line = |(index, text): (usize, &String)| {
        let line = format!("{}{text}", if index == 0 { &begin } else { &indent });
        plain(&line).into_owned()
    };
    texts.iter().enumerate().map(line).collect()
}

/// Returns an examination for a message: rates and verdicts.
pub fn of_examination(examination: &Examination) -> String {
    let verdicts = crate::evidence::Direction::ALL.into_iter().filter_map(|one| examination.verdict(one));
    format!("{}; {}", examination.rates(), verdicts.collect::<Vec<_>>().join("; "))
}

fn head(report: &CaseReport) -> Vec<String> {
    let opened = report.opened.map_or_else(String::new, |time| format!(", opened {time}"));
    let closed = match &report.closed {
        Some(closing) => format!(", closed {}: {}", closing.time, closing.text),
        None => ", open".to_owned(),
    };
    let mut lines = vec![format!("{}{opened}{closed}", report.title)];
    for target in &report.targets {
        let last = report.used(target).next_back();
        let last = last.map_or("no examination yet".to_owned(), |one| {
            format!("{} ({})", of_examination(&one.examination), one.time)
        });
        lines.push(format!("  {target} {last}"));
    }
    lines
}

/// Returns a line for each value of a fact, the current one first.
fn of_fact(fact: &FactHistory) -> Vec<String> {
    let values = fact.values.iter().rev().enumerate().map(|(index, stated)| {
        let begin = match index {
            0 => format!("  {}: {} = {}", fact.domain, fact.name(), fact.shown(&stated.value)),
            _ => format!("      before: {}", fact.shown(&stated.value)),
        };
        format!("{begin}  (since {}, by {})", stated.since, stated.by)
    });
    values.collect()
}

fn statements(report: &CaseReport) -> Vec<String> {
    let mut lines = Vec::new();
    for one in report.examinations.iter().filter(|one| !one.statements.is_empty()) {
        lines.push(format!("  {:<TIME_WIDTH$}  {}", one.time, one.examination.target));
        lines.extend(one.statements.iter().map(|check| format!("      {}", check.words)));
    }
    lines
}
