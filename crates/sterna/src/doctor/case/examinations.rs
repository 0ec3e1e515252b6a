//! `sterna doctor case run` and `retest`: examinations whose evidence and numbers are kept in the case.

use serde::Serialize;
use sterna_doctor::bundle::{Bundle, Proof};
use sterna_doctor::case::Case;
use sterna_doctor::case::entry::{Event, Retest};
use sterna_doctor::case::examination::{Examination, RunId};
use sterna_doctor::case::history::histories;
use sterna_doctor::case::moment::EntryTime;
use sterna_doctor::case::retest::{Asked, Fate, LimitOutcome, judge};
use sterna_doctor::case::statements::{StatementCheck, check};
use sterna_doctor::report::compare::Comparison;
use sterna_doctor::report::{Report, text};
use sterna_proto::location::RemoteLocation;
use sterna_proto::{Error, ErrorKind};

use super::entries::{direction, entry};
use super::store::Store;
use crate::doctor::examine::Examiner;
use crate::doctor::tools;
use crate::flags::{CaseRetestFlags, CaseRunFlags, EntryFlags};
use crate::jobs::table::json_of;
use crate::output::{print_line, say};

/// Exit code of a re-test that finds a limit, or does not decide.
const STILL_THERE: u8 = 1;

/// Examination that ran, with its earlier one, for programs.
#[derive(Serialize)]
struct Ran<'a> {
    id: &'a RunId,
    report: &'a Report,
    signed: &'a Proof,
    statements: Vec<StatementCheck>,
    /// Absent without an earlier examination whose evidence is there.
    changes: Option<Comparison>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retest: Option<RetestResult<'a>>,
}

/// Answers of a re-test, for programs.
#[derive(Serialize)]
struct RetestResult<'a> {
    since: &'a RunId,
    claim: Option<&'a str>,
    raised_to_bps: Option<u64>,
    is_met: bool,
    limits: &'a [LimitOutcome],
}

/// Target, and its earlier examination whose numbers count.
type Test = (RemoteLocation, Option<Examination>);

/// Question of a re-test.
struct Question<'a> {
    asked: Asked,
    claim: Option<&'a str>,
    raised_to_bps: Option<u64>,
}

/// Examines the targets.
pub fn run(flags: &CaseRunFlags) -> Result<u8, Error> {
    let store = Store::open(&flags.directory)?;
    let case = store.read()?;
    let targets = targets(&case, flags.target.as_deref())?.into_iter();
    let with_earlier = |target: RemoteLocation| {
        let before = earlier(&store, &case, &target.to_string());
        (target, before)
    };
    let tests: Vec<Test> = targets.map(with_earlier).collect();
    let session =
        Session { store: &store, flags, examiner: Examiner::new(&flags.measure, tests.len())?, question: None };
    session.each(&tests)
}

/// Examines the targets again and answers for the limits of an earlier examination.
pub fn retest(flags: &CaseRetestFlags) -> Result<u8, Error> {
    let store = Store::open(&flags.run.directory)?;
    let case = store.read()?;
    let asked = Asked { limit: flags.limit, direction: flags.direction.map(direction) };
    let (mut tests, mut without) = (Vec::new(), Vec::new());
    for target in targets(&case, flags.run.target.as_deref())? {
        let name = target.to_string();
        let before = match &flags.since {
            Some(id) => named(&store, &case, id, &name)?,
            None => earlier(&store, &case, &name),
        };
        match before {
            None => without.push(format!("{name}: no examination to compare with")),
            // Beside itself: the limits that are asked for.
            Some(before) if judge(&before, &before, &asked).is_empty() => {
                without.push(format!("{name}: the examination {} has no such limit", before.id));
            }
            before => tests.push((target, before)),
        }
    }
    if tests.is_empty() {
        return Err(tools::usage(format!("nothing to test again: {}", without.join("; "))));
    }
    without.iter().for_each(|text| say(text));
    let question = Question { asked, claim: flags.claim.as_deref(), raised_to_bps: flags.to.map(|rate| rate.0) };
    let examiner = Examiner::new(&flags.run.measure, tests.len())?;
    Session { store: &store, flags: &flags.run, examiner, question: Some(question) }.each(&tests)
}

/// Returns the targets that the user selects; by default all agents of the case. Errors: `Usage`.
fn targets(case: &Case, selected: Option<&str>) -> Result<Vec<RemoteLocation>, Error> {
    let all = case.targets();
    if let Some(given) = selected {
        let target = RemoteLocation::parse(given.as_bytes())?;
        if !all.contains(&target.to_string()) {
            return Err(tools::usage(format!("{target} is no target of the case: it has {}", all.join(", "))));
        }
        return Ok(vec![target]);
    }
    // A bundle of strangers that was added may have any text as its target.
    let agents: Vec<_> = all.iter().filter_map(|name| RemoteLocation::parse(name.as_bytes()).ok()).collect();
    match agents.is_empty() {
        true => Err(tools::usage("the case has no agent as its target".to_owned())),
        false => Ok(agents),
    }
}

/// Returns the last examination of a target whose numbers count, and tells which do not.
fn earlier(store: &Store, case: &Case, target: &str) -> Option<Examination> {
    let is_used = |examination: &&Examination| {
        let state = store.check(examination).0;
        if !state.is_used() {
            say(&format!("{}: {}", examination.id, state.words()));
        }
        state.is_used()
    };
    let last = case.of_target(target).into_iter().rev().find(is_used)?;
    Some(undecided(case, last).cloned().unwrap_or_else(|| last.clone()))
}

/// Returns the examination with the limits that re-tests up to this one have not decided: a later one must still answer
/// for them. `None`: all are decided.
fn undecided<'a>(case: &'a Case, last: &Examination) -> Option<&'a Examination> {
    let (mut at, mut open) = (last.id.clone(), None);
    // Each step goes back, so that entries that name each other end it.
    for _ in 0..case.entries.len() {
        let retest = case.entries.iter().find_map(|entry| match &entry.event {
            Event::Retest(retest) if retest.examination.id == at => Some(retest),
            _ => None,
        });
        let Some(retest) = retest.filter(|retest| retest.limits.iter().any(|one| one.fate == Fate::Open)) else {
            break;
        };
        at = retest.since.clone();
        open = case.examination(&at).or(open);
    }
    open
}

/// Returns the examination with a name, if it is of this target. Errors: `Usage`: there is none, or it does not count.
fn named(store: &Store, case: &Case, id: &RunId, target: &str) -> Result<Option<Examination>, Error> {
    let examination = case.examination(id).ok_or_else(|| {
        tools::usage(format!("the case has no examination {id}: `sterna doctor case list` shows their names"))
    })?;
    if examination.target != target {
        return Ok(None);
    }
    match store.check(examination).0 {
        state if state.is_used() => Ok(Some(examination.clone())),
        state => Err(tools::usage(format!("{id}: {}", state.words()))),
    }
}

/// Examinations of one command.
struct Session<'a> {
    store: &'a Store,
    flags: &'a CaseRunFlags,
    examiner: Examiner<'a>,
    question: Option<Question<'a>>,
}

impl Session<'_> {
    /// Examines all targets. One that fails does not hold up the others; the first error is the result.
    fn each(&self, tests: &[Test]) -> Result<u8, Error> {
        let (mut code, mut failure) = (0, None);
        for (target, earlier) in tests {
            match self.examine(target, earlier.as_ref()) {
                Ok(one) => code = code.max(one),
                Err(error) if error.kind == ErrorKind::Cancelled || tests.len() == 1 => return Err(error),
                Err(error) => {
                    say(&format!("{target}: {}", error.chain()));
                    failure.get_or_insert(error);
                }
            }
        }
        failure.map_or(Ok(code), Err)
    }

    /// Examines a target, keeps the evidence and the entry, and shows the result. Returns the exit code.
    fn examine(&self, target: &RemoteLocation, earlier: Option<&Examination>) -> Result<u8, Error> {
        let bundle = self.examiner.examine(target, !self.flags.json)?;
        let (bytes, proof) = bundle.sign(&self.examiner.identity)?;
        let report = Report::new(&bundle.evidence, &bundle.about);
        let started = EntryTime::from_unix(i64::try_from(bundle.about.started).unwrap_or(i64::MAX));
        let fresh = Fresh { bundle, report, proof, started };
        // The result is shown, even if the case cannot keep it.
        let (kept, numbers) = self.keep(&bytes, &fresh, earlier);
        let retest = self.retest_of(&numbers, earlier);
        self.show(&fresh, &numbers, earlier, retest.as_ref())?;
        kept?;
        Ok(if retest.is_none_or(|retest| retest.is_met()) { 0 } else { STILL_THERE })
    }

    /// Writes the bundle and then the entry. Returns the numbers of the examination, whatever comes of that.
    fn keep(&self, bytes: &[u8], fresh: &Fresh, earlier: Option<&Examination>) -> (Result<(), Error>, Examination) {
        let mut numbers = Examination::new(RunId::new(fresh.started, 1), &fresh.report, &fresh.proof);
        let mut keep = || {
            let mut writer = self.store.write()?;
            numbers.id = writer.free_id(fresh.started)?;
            writer.save(&numbers.id, bytes)?;
            let event = match self.retest_of(&numbers, earlier) {
                Some(retest) => Event::Retest(Box::new(retest)),
                None => Event::Examination(Box::new(numbers.clone())),
            };
            let mut entry = entry(&EntryFlags { by: self.flags.by.clone(), at: None }, event);
            entry.time = fresh.started;
            writer.append(&entry)
        };
        let kept = keep();
        (kept, numbers)
    }

    /// Returns the re-test that an examination is; `None`: it is none.
    fn retest_of(&self, now: &Examination, earlier: Option<&Examination>) -> Option<Retest> {
        let (before, question) = (earlier?, self.question.as_ref()?);
        Some(Retest {
            since: before.id.clone(),
            examination: now.clone(),
            claim: question.claim.map(str::to_owned),
            raised_to_bps: question.raised_to_bps,
            limits: judge(before, now, &question.asked),
        })
    }

    fn show(
        &self,
        fresh: &Fresh,
        numbers: &Examination,
        earlier: Option<&Examination>,
        retest: Option<&Retest>,
    ) -> Result<(), Error> {
        let case = self.store.read();
        let statements = case.map(|case| check(&histories(&case), numbers, fresh.started)).unwrap_or_default();
        let old = earlier.and_then(|earlier| self.store.check(earlier).1).map(|signed| signed.bundle);
        let changes = old.map(|old| {
            let before = Report::new(&old.evidence, &old.about);
            Comparison::new((&before, &old.evidence), (&fresh.report, &fresh.bundle.evidence))
        });
        if self.flags.json {
            let retest = retest.map(|retest| RetestResult {
                since: &retest.since,
                claim: retest.claim.as_deref(),
                raised_to_bps: retest.raised_to_bps,
                is_met: retest.is_met(),
                limits: &retest.limits,
            });
            let (id, report, signed) = (&numbers.id, &fresh.report, &fresh.proof);
            return print_line(json_of(&Ran { id, report, signed, statements, changes, retest })?.as_bytes());
        }
        let mut lines = Vec::new();
        match retest {
            Some(retest) => lines.extend(answers(retest, numbers)),
            None => {
                lines.extend(text::lines(&fresh.report));
                lines.extend(earlier.map(|earlier| changed(earlier, changes.as_ref())).unwrap_or_default());
            }
        }
        lines.extend(statements.iter().map(|one| one.words.clone()));
        lines.iter().try_for_each(|line| print_line(sterna_proto::file::plain(line).as_bytes()))?;
        say(&format!("evidence: {}", self.store.path_of(&numbers.id).display()));
        Ok(())
    }
}

/// Examination that has ended.
struct Fresh {
    bundle: Bundle,
    report: Report,
    proof: Proof,
    started: EntryTime,
}

/// Returns the answers of a re-test in words, and at the end the answer to the claim.
fn answers(retest: &Retest, now: &Examination) -> Vec<String> {
    let mut lines = vec![format!("{}, compared with {}", now.target, retest.since)];
    lines.extend(retest.limits.iter().map(LimitOutcome::words));
    let claim = match (&retest.claim, retest.raised_to_bps) {
        (Some(claim), _) => claim.clone(),
        (None, Some(bps)) => format!("the limit was raised to {}", text::rate(bps)),
        (None, None) => "the limits are gone".to_owned(),
    };
    lines.push(format!("{}: {claim}", if retest.is_met() { "confirmed" } else { "not confirmed" }));
    lines
}

/// Returns what changed since the earlier examination, in words.
fn changed(earlier: &Examination, changes: Option<&Comparison>) -> Vec<String> {
    let Some(changes) = changes else {
        return vec![format!("changes since {}: its bundle cannot be read, so they are not known", earlier.id)];
    };
    let lines = changes.lines().into_iter().map(|line| format!("  {line}"));
    [String::new(), format!("changes since {}:", earlier.id)].into_iter().chain(lines).collect()
}
