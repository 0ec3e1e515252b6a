//! Case file: measurements, notes and facts about the networks of a path in order of time, over weeks or years.
//!
//! A case is a list of entries ([`entry`]). Each examination keeps its numbers in its entry ([`examination`]), so a
//! report needs no evidence. [`retest`] tells which limits of an earlier examination are gone, [`statements`] compares
//! what operators state with what was measured, and [`report`] is the chronology, as text ([`text`]) and as one page
//! ([`html`]).
//!
//! All of it is pure: files, locks and signatures are matters of the caller. Entries come from strangers: reading them
//! is bounded, and a line that cannot be read is named and left out.

pub mod entry;
pub mod examination;
pub mod facts;
pub mod history;
pub mod html;
pub mod moment;
pub mod report;
pub mod retest;
pub mod statements;
pub mod text;

use std::collections::BTreeSet;

use sterna_proto::{Error, ErrorKind, Phase, Scope};

use self::entry::{Entry, Event};
use self::examination::{Examination, RunId};

/// Version of the format of entries.
pub const FORMAT: u32 = 1;

/// Maximum number of entries, and of lines. Reason: three a day for 18 years.
pub const ENTRIES_MAX: usize = 20_000;

/// Maximum size of the file of entries, bytes. Reason: 20,000 entries of 3 kB, an examination with ten limits.
pub const FILE_BYTES_MAX: usize = 64 << 20;

/// Maximum number of examinations. Reason: one a day for five years; a report verifies each of their bundles.
pub const EXAMINATIONS_MAX: usize = 2000;

/// Maximum number of targets. Reason: a case is about one site; a mesh of sites has many cases.
pub const TARGETS_MAX: usize = 16;

/// Entries of a case, as the file has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Case {
    /// Entries in the order of the file.
    pub entries: Vec<Entry>,
    /// Lines that are no entries.
    pub unreadable: Vec<Unreadable>,
}

/// Line that is no entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Number of the line, from 1.
    pub line: usize,
    /// Reason.
    pub why: String,
}

impl Case {
    /// Reads the file of entries. Lines that cannot be read are in [`Case::unreadable`].
    ///
    /// Errors: `Limit`: the file or the number of its lines is above the maximum.
    pub fn read(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > FILE_BYTES_MAX {
            return Err(limit(format!("the case has more than {} MiB: open another case", FILE_BYTES_MAX >> 20)));
        }
        let mut case = Self::default();
        let count = bytes.iter().filter(|byte| **byte == b'\n').count();
        for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            if case.entries.len() + case.unreadable.len() >= ENTRIES_MAX {
                return Err(limit(format!("the case has more than {ENTRIES_MAX} entries: open another case")));
            }
            match Entry::read(line) {
                Ok(entry) => case.entries.push(entry),
                Err(why) if index == count => {
                    let why = format!("the last line ends early, because a write was interrupted ({why})");
                    case.unreadable.push(Unreadable { line: index + 1, why });
                }
                Err(why) => case.unreadable.push(Unreadable { line: index + 1, why }),
            }
        }
        match case.examinations().count() > EXAMINATIONS_MAX {
            true => Err(limit(format!("the case has more than {EXAMINATIONS_MAX} examinations: open another case"))),
            false => Ok(case),
        }
    }

    /// Returns the title and the targets; `None`: the file does not open a case.
    pub fn opened(&self) -> Option<(&Entry, &str, &[String])> {
        self.entries.iter().find_map(|entry| match &entry.event {
            Event::Opened { title, targets, .. } => Some((entry, title.as_str(), targets.as_slice())),
            _ => None,
        })
    }

    /// Returns the entry that closed the case; `None`: the case is open, because nothing closed it or an entry follows.
    pub fn closed(&self) -> Option<(&Entry, &str)> {
        let entry = self.entries.last()?;
        match &entry.event {
            Event::Closed { text } => Some((entry, text)),
            _ => None,
        }
    }

    /// Returns the entries in order of time; those of one time in the order of the file.
    pub fn chronology(&self) -> Vec<&Entry> {
        let mut entries: Vec<&Entry> = self.entries.iter().collect();
        entries.sort_by_key(|entry| entry.time);
        entries
    }

    /// Returns the examinations, those of re-tests included, in the order of the file.
    pub fn examinations(&self) -> impl DoubleEndedIterator<Item = (&Entry, &Examination)> {
        self.entries.iter().filter_map(|entry| Some((entry, entry.examination()?)))
    }

    /// Returns the examination with this name.
    pub fn examination(&self, id: &RunId) -> Option<&Examination> {
        self.examinations().find(|(_, examination)| examination.id == *id).map(|(_, examination)| examination)
    }

    /// Returns the examinations of a target in order of time.
    pub fn of_target(&self, target: &str) -> Vec<&Examination> {
        let mut found: Vec<_> = self.examinations().filter(|(_, one)| one.target == target).collect();
        found.sort_by_key(|(entry, _)| entry.time);
        found.into_iter().map(|(_, examination)| examination).collect()
    }

    /// Returns the targets: those of the case, and those of examinations that were added.
    pub fn targets(&self) -> Vec<String> {
        let mut targets: Vec<String> = self.opened().map_or(Vec::new(), |(_, _, targets)| targets.to_vec());
        for (_, examination) in self.examinations() {
            if targets.len() < TARGETS_MAX && !targets.contains(&examination.target) {
                targets.push(examination.target.clone());
            }
        }
        targets.truncate(TARGETS_MAX);
        targets
    }

    /// Returns the bundles that no entry names.
    pub fn unnamed(&self, mut bundles: Vec<RunId>) -> Vec<RunId> {
        let named: BTreeSet<&RunId> = self.examinations().map(|(_, examination)| &examination.id).collect();
        bundles.retain(|id| !named.contains(id));
        bundles
    }
}

fn limit(text: String) -> Error {
    Error::new(ErrorKind::Limit, Scope::Client, Phase::Prepare, text)
}

#[cfg(test)]
mod tests;
