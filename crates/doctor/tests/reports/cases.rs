//! Reports of cases, from signed bundles in virtual time.

use std::collections::BTreeMap;

use sterna_doctor::bundle::{Bundle, SignedBundle};
use sterna_doctor::case::entry::{Entry, Event, Retest};
use sterna_doctor::case::examination::{Examination, RunId};
use sterna_doctor::case::facts::{Fact, FactPair};
use sterna_doctor::case::html::{figures, page};
use sterna_doctor::case::moment::EntryTime;
use sterna_doctor::case::report::{BundleState, CaseReport};
use sterna_doctor::case::retest::{Asked, Fate, judge};
use sterna_doctor::case::{Case, EXAMINATIONS_MAX, FORMAT, text};
use sterna_doctor::evidence::{Direction, Evidence, Purpose};
use sterna_doctor::report::{About, Report};
use sterna_doctor::verdict::Cause;
use sterna_net::identity::Identity;

use super::examined::{Held, Records, about, flow, policed};
use super::pages::{HOSTILE, elements};

/// Start of the first examination, as [`about`] has it.
const FIRST: i64 = 1_790_000_000;

const DAY: i64 = 86_400;

fn at(day: i64) -> EntryTime {
    EntryTime::from_unix(FIRST + day * DAY)
}

/// Returns a bundle as it is read from its file.
fn signed(identity: &Identity, evidence: Evidence, day: i64) -> SignedBundle {
    let about = About { started: (FIRST + day * DAY) as u64, ..about() };
    let (bytes, _) = Bundle { about, evidence }.sign(identity).unwrap();
    Bundle::read(&bytes).unwrap()
}

fn numbers(signed: &SignedBundle, day: i64) -> Examination {
    let report = Report::new(&signed.bundle.evidence, &signed.bundle.about);
    Examination::new(RunId::new(at(day), 1), &report, &signed.proof)
}

/// Returns [`policed`] without the policer: one connection has 400 Mbit/s forward.
fn lifted() -> Evidence {
    let mut records = Records::default();
    for (direction, bps) in [(Direction::Forward, 400_000_000), (Direction::Reverse, 93_000_000)] {
        records.flow(Purpose::Baseline, direction, flow(bps, Held::Path));
    }
    Evidence { records: records.0, ..policed() }
}

fn entry(day: i64, event: Event) -> Entry {
    Entry { time: at(day), recorded: None, by: "ann@noc".to_owned(), event }
}

fn fact(day: i64, pair: &str) -> Entry {
    let FactPair { key, value } = pair.parse().unwrap();
    entry(day, Event::Fact(Fact { domain: "geant.net".to_owned(), direction: None, key, value }))
}

/// Returns a case as the file has it: a policer, the claim that it was lifted, a re-test that finds it, and one that
/// does not; with the bundles of its examinations.
fn story() -> (Case, Vec<SignedBundle>) {
    let identity = Identity::ephemeral().unwrap();
    let bundles =
        vec![signed(&identity, policed(), 0), signed(&identity, policed(), 10), signed(&identity, lifted(), 20)];
    let runs: Vec<Examination> = bundles.iter().zip([0, 10, 20]).map(|(bundle, day)| numbers(bundle, day)).collect();
    let retest = |before: &Examination, now: &Examination| {
        let asked = Asked { limit: None, direction: Some(Direction::Forward) };
        Event::Retest(Box::new(Retest {
            since: before.id.clone(),
            examination: now.clone(),
            claim: Some("limit lifted".to_owned()),
            raised_to_bps: None,
            limits: judge(before, now, &asked),
        }))
    };
    let opened = Event::Opened { format: FORMAT, title: "TIGO to JIVE".to_owned(), targets: vec![about().target] };
    let entries = [
        entry(-1, opened),
        entry(0, Event::Examination(Box::new(runs[0].clone()))),
        fact(-1, "rate_limit=100Mbit"),
        fact(9, "rate_limit=none"),
        entry(9, Event::Note { text: "the operator says:\nthe limit is lifted".to_owned() }),
        entry(10, retest(&runs[0], &runs[1])),
        entry(20, retest(&runs[1], &runs[2])),
    ];
    let file: Vec<u8> = entries.iter().flat_map(|entry| entry.line().unwrap()).collect();
    (Case::read(&file).unwrap(), bundles)
}

fn states(case: &Case, bundles: &[SignedBundle]) -> BTreeMap<RunId, BundleState> {
    let runs = case.examinations().map(|(_, examination)| examination).zip(bundles);
    runs.map(|(run, bundle)| (run.id.clone(), BundleState::of(run, bundle))).collect()
}

#[test]
fn a_case_tells_what_became_of_a_limit() {
    let (mut case, bundles) = story();
    let last = case.entries.pop().unwrap();
    let report = CaseReport::new(&case, &states(&case, &bundles), &[]);
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let open = report.open.join("\n");
    for said in [
        "policer of 100 Mbit/s with a burst of 49",
        "A to B, in the last 2 of 2 examinations, since 2026-09-21 14:13",
        "not confirmed by the re-test of 2026-10-01 14:13: limit lifted",
        "geant.net states no rate limit (2026-09-30); policer of 100 Mbit/s measured",
        "A to B: the limit is still there, at the rate stated on 2026-09-20",
    ] {
        assert!(open.contains(said), "{said} in {open}");
    }
    case.entries.push(last);
    let report = CaseReport::new(&case, &states(&case, &bundles), &[]);
    let retests: Vec<_> = report.examinations.iter().filter_map(|one| one.retest.as_ref()).collect();
    assert_eq!(retests.iter().map(|retest| retest.is_met).collect::<Vec<_>>(), [false, true]);
    assert!(
        retests[1].answers.iter().any(|said| said.starts_with("policer, A to B: gone: it was at 100 Mbit/s, burst 49")),
        "{:?}",
        retests[1]
    );
    assert!(report.open.iter().all(|question| !question.contains("policer")), "{:?}", report.open);
    let lines = text::lines(&report).join("\n");
    for said in [
        "TIGO to JIVE, opened 2026-09-20 14:13, open",
        "geant.net: rate_limit = none  (since 2026-09-30 14:13, by ann@noc)\n      before: 100 Mbit/s",
        "note         the operator says:  (ann@noc)\n",
        "re-test      sterna://hub.example.org A to B 400 Mbit/s",
    ] {
        assert!(lines.contains(said), "{said} in {lines}");
    }
}

#[test]
fn a_bundle_that_was_changed_is_named_and_not_used() {
    let (case, mut bundles) = story();
    let usual = CaseReport::new(&case, &states(&case, &bundles), &[]);
    assert_eq!(usual.used(&about().target).count(), 3);
    // Another examination under the name of the last one.
    bundles[2] = bundles[0].clone();
    let swapped = CaseReport::new(&case, &states(&case, &bundles), &[]);
    assert_eq!(swapped.used(&about().target).count(), 2);
    assert!(swapped.problems[0].contains("not used: it is not the bundle"), "{:?}", swapped.problems);
    assert!(swapped.examinations[2].retest.is_none());
    // The numbers of an entry that were changed by hand.
    let (mut case, bundles) = story();
    if let Event::Examination(examination) = &mut case.entries[1].event {
        examination.directions[0].measured_bps *= 2;
    }
    let state = &states(&case, &bundles)[&case.examinations().next().unwrap().1.id];
    assert!(matches!(state, BundleState::Changed(why) if why.contains("the entry has 120 Mbit/s")), "{state:?}");
    // Without its bundle, an entry counts, and the report says so.
    let lost = CaseReport::new(&case, &BTreeMap::new(), &["20260921T141320Z-2".parse().unwrap()]);
    assert_eq!((lost.used(&about().target).count(), lost.problems.len()), (3, 4));
    assert!(lost.problems[3].contains("no entry names it"), "{:?}", lost.problems);
}

#[test]
fn the_page_of_a_case_stands_alone() {
    let (case, bundles) = story();
    let report = CaseReport::new(&case, &states(&case, &bundles), &[]);
    let page = page(&report);
    for outside in ["<script", "<link", "<img", " src=", "@import", "https://"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(page.matches("http://").count(), page.matches("http://www.w3.org/2000/svg").count());
    for said in [
        "TIGO to JIVE",
        "id=\"history-1-forward\"",
        "href=\"#run-20261011T141320Z\"",
        "id=\"run-20261011T141320Z\"",
        "Re-test: not confirmed",
        "Re-test: confirmed",
        "the operator says:<br>the limit is lifted",
    ] {
        assert!(page.contains(said), "{said}");
    }
    let figures = figures(&report);
    assert_eq!(figures.len(), 2);
    for figure in &figures {
        let names = elements(&figure.file());
        let count = |name: &str| names.iter().filter(|found| *found == name).count();
        assert_eq!((count("title"), count("desc")), (1, 1));
        assert!(!figure.file().contains("NaN") && !figure.file().contains("inf\""), "{}", figure.name);
    }
    assert!(figures[0].caption.contains("3 examinations"), "{}", figures[0].caption);
}

#[test]
fn texts_of_a_case_stay_texts() {
    let tags = |page: &str| page.matches('<').count();
    let (original, _) = story();
    let told = |words: &str| {
        let mut case = original.clone();
        for entry in &mut case.entries {
            entry.by = words.to_owned();
            match &mut entry.event {
                Event::Opened { title, targets, .. } => (*title, *targets) = (words.to_owned(), vec![words.to_owned()]),
                Event::Note { text } => *text = words.to_owned(),
                Event::Fact(fact) => fact.domain = words.to_owned(),
                Event::Retest(retest) => {
                    retest.claim = Some(words.to_owned());
                    (retest.examination.target, retest.examination.address) = (words.to_owned(), words.to_owned());
                    retest.examination.digest = words.to_owned();
                    retest.examination.limits.iter_mut().for_each(|limit| limit.remedy = words.to_owned());
                }
                Event::Examination(examination) => examination.target = words.to_owned(),
                _ => {}
            }
        }
        CaseReport::new(&case, &BTreeMap::new(), &[])
    };
    let usual = tags(&page(&told("x")));
    for words in HOSTILE {
        let report = told(words);
        let page = page(&report);
        assert_eq!(tags(&page), usual, "{words}");
        assert!(words.starts_with('\'') || !page.contains(words), "{words}");
        assert!(!page.chars().any(|c| c.is_control() && c != '\n'), "{words}");
        assert!(!text::lines(&report).iter().any(|line| line.chars().any(char::is_control)), "{words}");
    }
}

#[test]
fn a_case_of_years_has_a_page_of_bounded_size() {
    let (mut case, _) = story();
    let (first, entries) = (case.entries[1].clone(), std::mem::take(&mut case.entries));
    case.entries.extend(entries);
    for index in 0..EXAMINATIONS_MAX as i64 - 10 {
        let mut next = first.clone();
        next.time = EntryTime::from_unix(FIRST + index * DAY * 365);
        if let Event::Examination(examination) = &mut next.event {
            examination.id = RunId::new(next.time, 2);
        }
        case.entries.push(next);
    }
    let report = CaseReport::new(&case, &BTreeMap::new(), &[]);
    let size = page(&report).len();
    assert!((1_000_000..20_000_000).contains(&size), "{size}");
    assert_eq!(judge(&numbers_of(&case), &numbers_of(&case), &Asked::default())[0].fate, Fate::StillThere);
}

fn numbers_of(case: &Case) -> Examination {
    let (_, examination) = case.examinations().next().unwrap();
    assert!(examination.limit(Cause::Policer, Direction::Forward).is_some());
    examination.clone()
}
