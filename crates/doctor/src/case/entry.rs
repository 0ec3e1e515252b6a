//! Entries: one line of JSON each.

use serde::{Deserialize, Serialize};
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::examination::{Examination, RunId};
use super::facts::Fact;
use super::moment::EntryTime;
use super::retest::LimitOutcome;

/// Maximum length of a line, bytes. Reason: a long note has some kB, and an examination with 40 limits 20 kB.
pub const ENTRY_BYTES_MAX: usize = 64 << 10;

/// Maximum length of a note, bytes. Reason: ten pages; longer texts are files of their own.
pub const TEXT_BYTES_MAX: usize = 32 << 10;

/// Maximum length of a name, a title, a domain or a claim, bytes. Reason: tables show them.
pub const NAME_BYTES_MAX: usize = 400;

/// Entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Time of the event.
    pub time: EntryTime,
    /// Time of the entry, if that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<EntryTime>,
    /// Author.
    pub by: String,
    /// Event.
    #[serde(flatten)]
    pub event: Event,
}

/// Event of an entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// The case begins.
    Opened {
        /// Version of the format.
        format: u32,
        /// Title.
        title: String,
        /// Agents at the other ends.
        targets: Vec<String>,
    },
    /// Text of a person.
    Note {
        /// Text, of one line or more.
        text: String,
    },
    /// Fact about a network, as its operator states it.
    Fact(Fact),
    /// Examination of a target.
    Examination(Box<Examination>),
    /// Examination that answers for the limits of an earlier one.
    Retest(Box<Retest>),
    /// The case ends.
    Closed {
        /// Result.
        text: String,
    },
    /// Event of a later release.
    #[serde(other)]
    Unknown,
}

/// Re-test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retest {
    /// Examination of now.
    pub examination: Examination,
    /// Earlier examination.
    pub since: RunId,
    /// Change that an operator reported, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// Rate to which the limit was raised by that report, bit/s; absent: it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raised_to_bps: Option<u64>,
    /// Answers.
    pub limits: Vec<LimitOutcome>,
}

impl Retest {
    /// Returns true if no limit is left, or each has the rate that it was raised to.
    pub fn is_met(&self) -> bool {
        self.limits.iter().all(|limit| limit.is_met(self.raised_to_bps))
    }
}

impl Entry {
    /// Reads a line. Errors: the reason, in words.
    pub fn read(line: &[u8]) -> Result<Self, String> {
        if line.len() > ENTRY_BYTES_MAX {
            return Err(format!("the line has more than {} KiB", ENTRY_BYTES_MAX >> 10));
        }
        serde_json::from_slice(line).map_err(|e| format!("the line is no entry: {e}"))
    }

    /// Returns the line with its end.
    ///
    /// Errors: `Usage`: a text is too long.
    pub fn line(&self) -> Result<Vec<u8>, Error> {
        let usage = |text: String| Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text);
        for (what, text, most) in self.texts() {
            if text.len() > most {
                return Err(usage(format!("{what} has {} bytes, of at most {most}", text.len())));
            }
        }
        let mut line = serde_json::to_vec(self).map_err(|e| {
            Error::new(ErrorKind::Internal, Scope::Client, Phase::Finalise, "write an entry as JSON").caused_by(e)
        })?;
        if line.len() > ENTRY_BYTES_MAX {
            return Err(usage(format!("the entry has {} bytes, of at most {ENTRY_BYTES_MAX}", line.len())));
        }
        line.push(b'\n');
        Ok(line)
    }

    /// Returns the texts of people, with their maximum lengths.
    fn texts(&self) -> Vec<(&'static str, &str, usize)> {
        let mut texts = vec![("the name of the author", self.by.as_str(), NAME_BYTES_MAX)];
        match &self.event {
            Event::Opened { title, .. } => texts.push(("the title", title, NAME_BYTES_MAX)),
            Event::Note { text } | Event::Closed { text } => texts.push(("the text", text, TEXT_BYTES_MAX)),
            Event::Fact(fact) => texts.push(("the name of the domain", &fact.domain, NAME_BYTES_MAX)),
            Event::Retest(retest) => {
                texts.extend(retest.claim.as_ref().map(|claim| ("the claim", claim.as_str(), NAME_BYTES_MAX)));
            }
            Event::Examination(_) | Event::Unknown => {}
        }
        texts
    }

    /// Returns the examination of the entry.
    pub fn examination(&self) -> Option<&Examination> {
        match &self.event {
            Event::Examination(examination) => Some(examination),
            Event::Retest(retest) => Some(&retest.examination),
            _ => None,
        }
    }
}
