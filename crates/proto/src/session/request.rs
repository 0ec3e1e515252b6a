//! Requests of a client to an agent, and their encoding.
//!
//! A request travels in the hello of each lane. Encodes requests to bytes and decodes bytes to requests. Refuses to
//! trust a length, a count or a code that the peer sent. It holds no state and needs no time.

use super::probe::Probe;
use super::query::Query;
use super::third_party::ThirdParty;
use super::values::{
    Overwrite, SOURCES_MAX, read_checks, read_expect, read_flag, read_many, read_overwrite, read_wish, write_checks,
    write_expect, write_overwrite, write_wish,
};
use crate::compress::CompressionPolicy;
use crate::digest::{Checks, Digest};
use crate::error::Error;
use crate::file::RelPath;
use crate::wire::{Reader, Writer};

/// Field of a push: the targets of a numbered copy.
const TARGETS: u8 = 1;

/// Field of a pull: it is a numbered copy.
const NUMBERED: u8 = 1;

/// Target of a numbered copy. Such a copy moves file N from source N to exactly target N, and its name in the session
/// is [`RelPath::of_number`] of N.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// File path.
    pub path: Vec<u8>,
    /// Digest that the file must have.
    pub expect: Option<Digest>,
}

/// Returns the number of a file in the session of a numbered copy; `None`: the path is no such name.
pub fn number_of_name(path: &RelPath) -> Option<usize> {
    let number = std::str::from_utf8(path.as_bytes()).ok()?.parse().ok()?;
    (RelPath::of_number(number) == *path).then_some(number)
}

/// Request of a client to an agent. Paths are written as in a location: beneath the agent's root, with wildcards in
/// sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The client sends; the agent receives into `destination`.
    Push {
        /// Destination path at the agent.
        destination: Vec<u8>,
        /// True if there is more than one source; the destination is then a directory.
        several: bool,
        /// Policy for files that exist.
        overwrite: Overwrite,
        /// Digests to compute in addition to BLAKE3.
        checks: Checks,
        /// Digest that the single file must have (`--expect`).
        expect: Option<Digest>,
        /// True if the agent writes nothing and only reports what it would do.
        dry_run: bool,
        /// Targets of a numbered copy, at most [`SOURCES_MAX`]; empty: it is no such copy. Otherwise `destination` is
        /// empty and `expect` is `None`.
        targets: Vec<Target>,
    },
    /// The agent sends `sources`; the client receives.
    Pull {
        /// Paths of the sources at the agent.
        sources: Vec<Vec<u8>>,
        /// True if the agent sends only the manifest.
        dry_run: bool,
        /// Compression policy of the agent.
        compress: CompressionPolicy,
        /// True if the agent sends no block of a large file until the client has reported which blocks it has. Reason:
        /// the client also asks other replicas.
        on_demand: bool,
        /// True for a numbered copy: each source is one file, and its name is its number.
        numbered: bool,
    },
    /// The agent runs a session with another agent and reports its events. No block travels on this lane.
    ThirdParty(Box<ThirdParty>),
    /// The agent answers a question about its files, or changes names. No block travels on this lane. Only agents with
    /// [`super::Features::QUERIES`].
    Query(Query),
    /// One end sends generated data, and the other verifies and discards it. Only agents with
    /// [`super::Features::PROBES`].
    Probe(Probe),
}

impl Request {
    pub(super) fn write(&self, w: &mut Writer) {
        match self {
            Self::Push { destination, several, overwrite, checks, expect, dry_run, .. } => {
                w.byte(1);
                w.bytes(destination);
                w.byte(u8::from(*several));
                write_overwrite(w, *overwrite);
                write_checks(w, *checks);
                write_expect(w, *expect);
                w.byte(u8::from(*dry_run));
            }
            Self::Pull { sources, dry_run, compress, on_demand, .. } => {
                w.byte(2);
                w.integer(sources.len() as u64);
                for source in sources {
                    w.bytes(source);
                }
                w.byte(u8::from(*dry_run));
                write_wish(w, *compress);
                w.byte(u8::from(*on_demand));
            }
            Self::ThirdParty(copy) => {
                w.byte(3);
                copy.write(w);
            }
            Self::Query(query) => {
                w.byte(4);
                query.write(w);
            }
            Self::Probe(probe) => {
                w.byte(5);
                probe.write(w);
            }
        }
        match self {
            Self::Push { targets, .. } if !targets.is_empty() => w.area(|w| {
                w.field(TARGETS, |w| {
                    w.integer(targets.len() as u64);
                    for target in targets {
                        w.bytes(&target.path);
                        write_expect(w, target.expect);
                    }
                });
            }),
            Self::Pull { numbered: true, .. } => w.area(|w| w.field(NUMBERED, |_| {})),
            _ => w.empty_area(),
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let mut request = match r.byte()? {
            1 => Self::Push {
                destination: r.bytes()?.to_vec(),
                several: read_flag(r)?,
                overwrite: read_overwrite(r)?,
                checks: read_checks(r)?,
                expect: read_expect(r)?,
                dry_run: read_flag(r)?,
                targets: Vec::new(),
            },
            2 => {
                let count = r.integer_up_to(SOURCES_MAX as u64)?;
                let mut sources = Vec::new();
                for _ in 0..count {
                    sources.push(r.bytes()?.to_vec());
                }
                let (dry_run, compress) = (read_flag(r)?, read_wish(r)?);
                Self::Pull { sources, dry_run, compress, on_demand: read_flag(r)?, numbered: false }
            }
            3 => Self::ThirdParty(Box::new(ThirdParty::read(r)?)),
            4 => Self::Query(Query::read(r)?),
            5 => Self::Probe(Probe::read(r)?),
            code => {
                let text = format!("a request of kind {code}, which this release does not know: update sterna here");
                return Err(Error::protocol(text));
            }
        };
        r.area(|number, value| match (&mut request, number) {
            (Self::Push { targets, .. }, TARGETS) => {
                let target = |r: &mut Reader<'_>| Ok(Target { path: r.bytes()?.to_vec(), expect: read_expect(r)? });
                *targets = read_many(value, SOURCES_MAX, target)?;
                Ok(true)
            }
            (Self::Pull { numbered, .. }, NUMBERED) => {
                *numbered = true;
                Ok(true)
            }
            _ => Ok(false),
        })?;
        Ok(request)
    }
}
