//! Source of a transfer: a file at a storage, or a file of this host that an agent sends.
//!
//! The only place that knows the difference, besides the ways to move the bytes.

use std::sync::Arc;

use sterna_net::agent::OutgoingFile;
use sterna_proto::{Algorithm, Checks, Error, ErrorKind, FileDigests, Phase, Scope};

use super::client::{Client, End};
use super::failure;
use super::local::{LocalReader, blocking};
use super::reader::Reader;
use super::storage::{self, Stat};

/// Source of a transfer.
pub(super) enum Source {
    /// File at a storage.
    Storage(End),
    /// File of this host.
    Local(Arc<OutgoingFile>),
}

impl Source {
    /// Returns the storage; `None`: the file is at this host.
    pub fn storage(&self) -> Option<&End> {
        match self {
            Self::Storage(end) => Some(end),
            Self::Local(_) => None,
        }
    }

    /// Returns the state of the file. `wanted`: algorithm of the digest, which a storage may report.
    ///
    /// Errors: `NotFound`; it has no known size.
    pub async fn stat(&self, client: &Client, wanted: Option<Algorithm>) -> Result<(u64, Stat), Error> {
        let failed = |kind, text| Err(failure::error(kind, Scope::Source, Phase::Prepare, text));
        let end = match self {
            Self::Local(file) => return Ok((file.size(), Stat { size: Some(file.size()), ..Stat::default() })),
            Self::Storage(end) => end,
        };
        let Some(stat) = storage::stat(client, end, Phase::Prepare, wanted).await? else {
            return failed(ErrorKind::NotFound, format!("HEAD {}: 404: there is no such file", end.at));
        };
        match stat.size {
            Some(size) => Ok((size, stat)),
            None => {
                let text = format!("HEAD {}: no Content-Length, and a file of unknown size is not moved", end.at);
                failed(ErrorKind::Protocol, text)
            }
        }
    }

    /// Starts to read the file. `ranges`: number of requests to a storage at the same time.
    pub async fn open(
        &self,
        client: &Arc<Client>,
        size: u64,
        tag: Option<String>,
        ranges: Option<u32>,
    ) -> Result<Reader, Error> {
        match self {
            Self::Storage(end) => Reader::open(client, end, size, tag, ranges).await,
            Self::Local(file) => Ok(Reader::local(LocalReader::new(Arc::clone(file)))),
        }
    }

    /// Returns the digests to compute: those that are wanted, and those for [`Source::confirm`].
    pub fn checks(&self, wanted: Checks) -> Checks {
        match self {
            Self::Storage(_) => wanted,
            Self::Local(file) => file.checks(wanted),
        }
    }

    /// Checks that the bytes which were read are one state of the file. `read`: their digests. A storage reports a
    /// change by size and tag while it is read.
    ///
    /// Errors: `Changed`.
    pub async fn confirm(&self, read: &FileDigests) -> Result<(), Error> {
        let Self::Local(file) = self else { return Ok(()) };
        let read = *read;
        blocking(file, move |file| file.confirm(&read)).await
    }
}
