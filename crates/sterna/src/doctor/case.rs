//! `sterna doctor case`: keeps a case in a directory. `case/store.rs` has its files, and
//! `case/examinations.rs` the commands that measure.

mod entries;
mod examinations;
mod store;

use std::collections::BTreeMap;
use std::path::Path;

use sterna_doctor::bundle::Bundle;
use sterna_doctor::case::entry::{Entry, Event};
use sterna_doctor::case::examination::Examination;
use sterna_doctor::case::facts::Fact;
use sterna_doctor::case::moment::EntryTime;
use sterna_doctor::case::report::{BundleState, CaseReport, event};
use sterna_doctor::case::{FORMAT, TARGETS_MAX, html, text};
use sterna_doctor::report::Report;
use sterna_proto::location::RemoteLocation;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use self::entries::{direction, entry, text_of};
use self::store::Store;
use super::{bundle, tools};
use crate::flags::{
    CaseAddFlags, CaseCloseFlags, CaseCommand, CaseFactFlags, CaseListFlags, CaseNewFlags, CaseNoteFlags,
    CaseReportFlags, EntryFlags,
};
use crate::jobs::table::json_of;
use crate::output::{print_line, say};

/// Runs a command of a case. Returns the exit code.
pub fn run(command: &CaseCommand) -> Result<u8, Error> {
    match command {
        CaseCommand::New(flags) => new(flags),
        CaseCommand::Note(flags) => note(flags),
        CaseCommand::Fact(flags) => fact(flags),
        CaseCommand::Run(flags) => examinations::run(flags),
        CaseCommand::Retest(flags) => examinations::retest(flags),
        CaseCommand::Add(flags) => add(flags),
        CaseCommand::List(flags) => list(flags),
        CaseCommand::Report(flags) => report(flags),
        CaseCommand::Close(flags) => close(flags),
    }
}

fn new(flags: &CaseNewFlags) -> Result<u8, Error> {
    let mut targets = Vec::new();
    for given in &flags.target {
        let target = RemoteLocation::parse(given.as_bytes())?.to_string();
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    if targets.len() > TARGETS_MAX {
        return Err(tools::usage(format!("a case has at most {TARGETS_MAX} targets, and {} are given", targets.len())));
    }
    let opened = Event::Opened { format: FORMAT, title: flags.title.trim().to_owned(), targets };
    let entry = entry(&flags.entry, opened);
    // A text that is too long makes no directory.
    entry.line()?;
    let store = Store::create(&flags.directory)?;
    let mut writer = store.write()?;
    if let Some((_, title, _)) = writer.case().opened() {
        let text = format!("{} has the case {title:?} already: give another directory", flags.directory.display());
        return Err(Error::new(ErrorKind::Exists, Scope::Client, Phase::Prepare, text));
    }
    writer.append(&entry)?;
    Ok(0)
}

fn note(flags: &CaseNoteFlags) -> Result<u8, Error> {
    append(&flags.directory, vec![entry(&flags.entry, Event::Note { text: text_of(&flags.text)? })])
}

fn close(flags: &CaseCloseFlags) -> Result<u8, Error> {
    append(&flags.directory, vec![entry(&flags.entry, Event::Closed { text: text_of(&flags.text)? })])
}

fn fact(flags: &CaseFactFlags) -> Result<u8, Error> {
    let domain = flags.domain.trim();
    if domain.is_empty() {
        return Err(tools::usage("--domain names no network".to_owned()));
    }
    let facts = flags.facts.iter().map(|pair| {
        let fact = Fact {
            domain: domain.to_owned(),
            direction: flags.direction.map(direction),
            key: pair.key.clone(),
            value: pair.value.clone(),
        };
        entry(&flags.entry, Event::Fact(fact))
    });
    append(&flags.directory, facts.collect())
}

/// Appends entries to a case that exists.
fn append(directory: &Path, entries: Vec<Entry>) -> Result<u8, Error> {
    let store = Store::open(directory)?;
    store.read()?;
    let mut writer = store.write()?;
    // All of them are valid before the first one is written.
    entries.iter().try_for_each(|entry| entry.line().map(drop))?;
    entries.iter().try_for_each(|entry| writer.append(entry))?;
    Ok(0)
}

fn add(flags: &CaseAddFlags) -> Result<u8, Error> {
    let store = Store::open(&flags.directory)?;
    store.read()?;
    let bytes = bundle::read_bytes(&flags.bundle)?;
    let signed = Bundle::read(&bytes).map_err(|e| bundle::of_file(&flags.bundle, e))?;
    let mut writer = store.write()?;
    if let Some((_, known)) = writer.case().examinations().find(|(_, one)| one.digest == signed.proof.digest) {
        let text = format!("the case has the examination {} as {} already", flags.bundle.display(), known.id);
        return Err(Error::new(ErrorKind::Exists, Scope::Client, Phase::Prepare, text));
    }
    let started = EntryTime::from_unix(i64::try_from(signed.bundle.about.started).unwrap_or(i64::MAX));
    let report = Report::new(&signed.bundle.evidence, &signed.bundle.about);
    // A bundle that a crash left without its entry has its place.
    let left = writer
        .case()
        .unnamed(store.bundles()?)
        .into_iter()
        .find(|id| store.bundle(id).ok().flatten().is_some_and(|one| one.proof.digest == signed.proof.digest));
    let id = match left {
        Some(id) => id,
        None => {
            let id = writer.free_id(started)?;
            writer.save(&id, &bytes)?;
            id
        }
    };
    let examination = Examination::new(id, &report, &signed.proof);
    say(&format!("{}: {}", examination.id, text::of_examination(&examination)));
    say(&bundle::signature(&flags.bundle, &signed.proof));
    let by = EntryFlags { by: flags.by.clone(), at: Some(started) };
    writer.append(&entry(&by, Event::Examination(Box::new(examination))))?;
    Ok(0)
}

fn list(flags: &CaseListFlags) -> Result<u8, Error> {
    let case = Store::open(&flags.directory)?.read()?;
    for line in &case.unreadable {
        say(&format!("line {} of the case: {}", line.line, line.why));
    }
    for entry in case.chronology() {
        let event = event(entry);
        match flags.json {
            true => print_line(json_of(&event)?.as_bytes())?,
            false => text::of_event(&event).iter().try_for_each(|line| print_line(line.as_bytes()))?,
        }
    }
    Ok(0)
}

fn report(flags: &CaseReportFlags) -> Result<u8, Error> {
    let store = Store::open(&flags.directory)?;
    let names = store.bundles()?;
    let case = store.read()?;
    // One bundle in memory at a time.
    let mut states: BTreeMap<_, BundleState> = BTreeMap::new();
    for (_, one) in case.examinations() {
        let state = store.check(one).0;
        // One entry that differs from its evidence makes all entries with its name doubtful.
        states
            .entry(one.id.clone())
            .and_modify(|known| {
                if known.is_used() {
                    *known = state.clone()
                }
            })
            .or_insert(state);
    }
    let report = CaseReport::new(&case, &states, &case.unnamed(names));
    if let Some(path) = &flags.html {
        bundle::write(path, html::page(&report).as_bytes())?;
    }
    if flags.json {
        print_line(json_of(&report)?.as_bytes())?;
        return Ok(0);
    }
    text::lines(&report).iter().try_for_each(|line| print_line(line.as_bytes()))?;
    Ok(0)
}
