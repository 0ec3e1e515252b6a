//! Report of a case: chronology, facts, examinations, re-tests, and open questions.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::entry::{Entry, Event};
use super::examination::{DirectionResult, Examination, LimitResult, RunId};
use super::facts::FactKey;
use super::history::{FactHistory, histories};
use super::moment::EntryTime;
use super::statements::{Agreement, StatementCheck, check};
use super::{Case, FORMAT};
use crate::bundle::SignedBundle;
use crate::evidence::Direction;
use crate::report::{Report, text};
use crate::verdict::Cause;

/// Deviation of a rate in an entry from that of its evidence. Reason: a later release may judge a flow a little
/// otherwise.
const DIFFERS_ABOVE: f64 = 0.1;

/// State of the bundle of an examination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "why", rename_all = "snake_case")]
pub enum BundleState {
    /// It is the bundle of the entry, and its signatures fit.
    Unchanged,
    /// It is the bundle of the entry, and nobody signed it.
    Unsigned,
    /// It is not there: the numbers are those of the entry.
    Missing,
    /// It cannot be read, or it is another one, or the entry has other numbers: neither is used.
    Changed(String),
}

impl BundleState {
    /// Judges a bundle that was read.
    pub fn of(examination: &Examination, signed: &SignedBundle) -> Self {
        if signed.proof.digest != examination.digest {
            return Self::Changed("it is not the bundle that the entry names by its SHA-256".to_owned());
        }
        if signed.proof.signers != examination.signers {
            return Self::Changed("another key signed it than the entry names".to_owned());
        }
        if signed.bundle.about.target != examination.target {
            return Self::Changed(format!("it is of {}", signed.bundle.about.target));
        }
        let report = Report::new(&signed.bundle.evidence, &signed.bundle.about);
        let evident = Examination::new(examination.id.clone(), &report, &signed.proof);
        // The rates that decide what is gone.
        let rates: [fn(&DirectionResult) -> u64; 3] =
            [|one| one.measured_bps, |one| one.at_least_bps, |one| one.capacity_bps.unwrap_or(0)];
        for (direction, of) in Direction::ALL.into_iter().flat_map(|direction| rates.map(|of| (direction, of))) {
            let rate = |one: &Examination| one.direction(direction).map_or(0, of);
            let (noted, evident) = (rate(examination), rate(&evident));
            if noted.abs_diff(evident) as f64 > noted.max(evident) as f64 * DIFFERS_ABOVE {
                return Self::Changed(format!(
                    "the entry has {} and the evidence {}, {}",
                    text::rate(noted),
                    text::rate(evident),
                    text::arrow(direction)
                ));
            }
        }
        if signed.proof.signers.is_empty() { Self::Unsigned } else { Self::Unchanged }
    }

    /// Returns true if the numbers of the entry count.
    pub fn is_used(&self) -> bool {
        !matches!(self, Self::Changed(_))
    }

    /// Returns the state in words.
    pub fn words(&self) -> String {
        match self {
            Self::Unchanged => "unchanged since it was signed".to_owned(),
            Self::Unsigned => "not signed, so anybody may have changed it".to_owned(),
            Self::Missing => "missing: the numbers are those of the entry".to_owned(),
            Self::Changed(why) => format!("not used: {why}"),
        }
    }
}

/// Report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaseReport {
    /// Version of the format.
    pub format: u32,
    /// Title.
    pub title: String,
    /// Begin.
    pub opened: Option<EntryTime>,
    /// End, and the result in words.
    pub closed: Option<Closing>,
    /// Agents at the other ends.
    pub targets: Vec<String>,
    /// Authors of entries.
    pub authors: Vec<String>,
    /// Facts by domain.
    pub facts: Vec<FactHistory>,
    /// Events in order of time.
    pub chronology: Vec<ReportedEvent>,
    /// Examinations in order of time.
    pub examinations: Vec<ReportedExamination>,
    /// Questions that are open at the end.
    pub open: Vec<String>,
    /// Lines and bundles that could not be used.
    pub problems: Vec<String>,
}

/// End of a case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Closing {
    /// Time.
    pub time: EntryTime,
    /// Result in words.
    pub text: String,
}

/// Event in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportedEvent {
    /// Time.
    pub time: EntryTime,
    /// Author.
    pub by: String,
    /// Kind.
    pub kind: &'static str,
    /// Lines.
    pub lines: Vec<String>,
    /// Examination of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<RunId>,
}

/// Examination with its bundle and what it tells about statements of operators.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportedExamination {
    /// Time.
    pub time: EntryTime,
    /// Author.
    pub by: String,
    /// Numbers.
    #[serde(flatten)]
    pub examination: Examination,
    /// Bundle.
    pub bundle: BundleState,
    /// Statements of operators at that time.
    pub statements: Vec<StatementCheck>,
    /// Re-test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retest: Option<ReportedRetest>,
}

/// Re-test in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportedRetest {
    /// Earlier examination.
    pub since: RunId,
    /// Change that an operator reported.
    pub claim: Option<String>,
    /// The limits are gone, or have the rate that they were raised to.
    pub is_met: bool,
    /// Answers in words.
    pub answers: Vec<String>,
}

impl CaseReport {
    /// Makes the report. `bundles` has the state of each bundle; `unnamed` are bundles that no entry names.
    pub fn new(case: &Case, bundles: &BTreeMap<RunId, BundleState>, unnamed: &[RunId]) -> Self {
        let facts = histories(case);
        let state = |id: &RunId| bundles.get(id).cloned().unwrap_or(BundleState::Missing);
        let chronology = case.chronology();
        let examinations: Vec<ReportedExamination> =
            chronology.iter().filter_map(|entry| reported(entry, &facts, &state)).collect();
        let authors: BTreeSet<&str> = case.entries.iter().map(|entry| entry.by.as_str()).collect();
        let opened = case.opened();
        Self {
            format: FORMAT,
            title: opened.map_or("a case without a title", |(_, title, _)| title).to_owned(),
            opened: opened.map(|(entry, ..)| entry.time),
            closed: case.closed().map(|(entry, text)| Closing { time: entry.time, text: text.to_owned() }),
            targets: case.targets(),
            authors: authors.into_iter().map(str::to_owned).collect(),
            open: open_questions(&case.targets(), &examinations),
            problems: problems(case, &examinations, unnamed),
            facts,
            chronology: chronology.into_iter().map(event).collect(),
            examinations,
        }
    }

    /// Returns the examinations of a target whose numbers count, in order of time.
    pub fn used<'a>(&'a self, target: &'a str) -> impl DoubleEndedIterator<Item = &'a ReportedExamination> {
        used(&self.examinations, target)
    }
}

fn used<'a>(
    examinations: &'a [ReportedExamination],
    target: &'a str,
) -> impl DoubleEndedIterator<Item = &'a ReportedExamination> {
    examinations.iter().filter(move |one| one.examination.target == target && one.bundle.is_used())
}

fn reported(
    entry: &Entry,
    facts: &[FactHistory],
    state: &dyn Fn(&RunId) -> BundleState,
) -> Option<ReportedExamination> {
    let examination = entry.examination()?;
    let bundle = state(&examination.id);
    let statements = match bundle.is_used() {
        true => check(facts, examination, entry.time),
        false => Vec::new(),
    };
    let retest = match &entry.event {
        Event::Retest(retest) if bundle.is_used() => Some(ReportedRetest {
            since: retest.since.clone(),
            claim: retest.claim.clone(),
            is_met: retest.is_met(),
            answers: retest.limits.iter().map(super::retest::LimitOutcome::words).collect(),
        }),
        _ => None,
    };
    let (by, examination) = (entry.by.clone(), examination.clone());
    Some(ReportedExamination { time: entry.time, by, examination, bundle, statements, retest })
}

/// Returns an entry in words.
pub fn event(entry: &Entry) -> ReportedEvent {
    let lines_of = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (kind, lines) = match &entry.event {
        Event::Opened { title, targets, .. } => ("opened", [vec![title.clone()], targets.clone()].concat()),
        Event::Note { text } => ("note", lines_of(text)),
        Event::Fact(fact) => ("fact", vec![fact.to_string()]),
        Event::Examination(examination) => ("examination", of_examination(examination)),
        Event::Retest(retest) => {
            let mut lines = of_examination(&retest.examination);
            lines.extend(retest.claim.as_ref().map(|claim| format!("claim: {claim}")));
            lines.extend(retest.limits.iter().map(super::retest::LimitOutcome::words));
            ("re-test", lines)
        }
        Event::Closed { text } => ("closed", lines_of(text)),
        Event::Unknown => ("unknown", vec!["an entry of a later release: use that one to read it".to_owned()]),
    };
    ReportedEvent {
        time: entry.time,
        by: entry.by.clone(),
        kind,
        lines,
        id: entry.examination().map(|examination| examination.id.clone()),
    }
}

fn of_examination(examination: &Examination) -> Vec<String> {
    let mut lines = vec![format!("{} {}", examination.target, examination.rates())];
    lines.extend(Direction::ALL.into_iter().filter_map(|direction| examination.verdict(direction)));
    lines
}

/// Returns the questions that the last examination of each target leaves open.
fn open_questions(targets: &[String], examinations: &[ReportedExamination]) -> Vec<String> {
    let mut questions = Vec::new();
    for target in targets {
        let runs: Vec<&ReportedExamination> = used(examinations, target).collect();
        let Some(last) = runs.last() else {
            questions.push(format!("{target}: no examination yet"));
            continue;
        };
        // The user gives the rate of an examination: that is no question.
        let binds = |limit: &&LimitResult| limit.limits_to_bps.is_some() && limit.limit != Cause::RateCap;
        for limit in last.examination.limits.iter().filter(binds) {
            let has = |run: &&&ReportedExamination| run.examination.limit(limit.limit, limit.direction).is_some();
            let since: Vec<_> = runs.iter().rev().take_while(has).collect();
            // An operator who states the limit has answered what to do about it.
            let is_stated = |check: &&StatementCheck| {
                check.agreement == Agreement::Agrees
                    && check.key == FactKey::RateLimit
                    && check.direction == limit.direction
                    && limit.rate_bps.is_some()
            };
            let what = match last.statements.iter().find(is_stated) {
                Some(check) => format!("{} states it", check.domain),
                None => format!("fix: {}", limit.remedy),
            };
            questions.push(format!(
                "{target}: {}, {}, in the last {} of {} examinations, since {}; {what}",
                limit.words(),
                text::arrow(limit.direction),
                since.len(),
                runs.len(),
                since.last().map_or(last.time, |run| run.time),
            ));
        }
        let retest = runs.iter().rev().find_map(|run| Some((run, run.retest.as_ref()?)));
        if let Some((run, retest)) = retest.filter(|(_, retest)| !retest.is_met) {
            let claim = retest.claim.as_deref().unwrap_or("the limits are gone");
            questions.push(format!("{target}: not confirmed by the re-test of {}: {claim}", run.time));
        }
        let differs =
            |check: &&StatementCheck| matches!(check.agreement, Agreement::Contradicted | Agreement::Outdated);
        questions.extend(last.statements.iter().filter(differs).map(|check| check.words.clone()));
    }
    questions
}

fn problems(case: &Case, examinations: &[ReportedExamination], unnamed: &[RunId]) -> Vec<String> {
    let lines = case.unreadable.iter().map(|line| format!("line {} of the case: {}", line.line, line.why));
    let bundles = examinations
        .iter()
        .filter(|one| one.bundle != BundleState::Unchanged)
        .map(|one| format!("bundle {}: {}", one.examination.id, one.bundle.words()));
    let unnamed = unnamed
        .iter()
        .map(|id| format!("bundle {id}: no entry names it: `sterna doctor case add` it, if it belongs to the case"));
    lines.chain(bundles).chain(unnamed).collect()
}
