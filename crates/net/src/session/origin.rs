//! Where the files of a sender lie: beneath roots of this host, or on web servers.

use std::sync::Arc;

use sterna_proto::{Error, FileEntry, RelPath};

use super::follow::Follow;
use super::sender::{READ_BYTES, Source};
use crate::disk::{Root, SourceFile};
use crate::web::{Web, WebFile, WebReader};

/// What a session sends.
pub enum Origins {
    /// What lies beneath roots of this host.
    Roots(Vec<Source>),
    /// The same, of large files what the receiver asks for.
    OnDemand(Vec<Source>),
    /// Files on web servers.
    Web(Arc<Web>),
    /// The same as roots, followed: files that still grow, and directories into which files come.
    Followed(Arc<Follow>),
}

impl Origins {
    /// The web servers, if they are what is read.
    pub(super) fn web(&self) -> Option<Arc<Web>> {
        match self {
            Self::Roots(_) | Self::OnDemand(_) | Self::Followed(_) => None,
            Self::Web(web) => Some(Arc::clone(web)),
        }
    }

    /// What is followed, and the number that this session of it has.
    pub(super) fn follow(&self) -> Option<(Arc<Follow>, u32)> {
        match self {
            Self::Followed(follow) => Some((Arc::clone(follow), follow.begin_session())),
            Self::Roots(_) | Self::OnDemand(_) | Self::Web(_) => None,
        }
    }
}

impl From<Vec<Source>> for Origins {
    fn from(sources: Vec<Source>) -> Self {
        Self::Roots(sources)
    }
}

/// Where one file lies.
#[derive(Clone)]
pub(super) enum Origin {
    /// Beneath a root.
    Disk { root: Root, path: RelPath },
    /// On a web server.
    Web(Arc<WebFile>),
}

/// A file that a block is read from.
pub(super) enum OpenSource<'a> {
    Disk(Arc<SourceFile>),
    Web(Box<WebReader<'a>>),
}

impl OpenSource<'_> {
    /// As [`SourceFile::is_hole`]; a web server tells of no holes.
    pub(super) fn is_hole(&self, offset: u64, length: u64) -> Result<bool, Error> {
        match self {
            Self::Disk(file) => file.is_hole(offset, length),
            Self::Web(_) => Ok(false),
        }
    }

    /// Whether all bytes `[offset, offset + length)` are zero, by reading them.
    pub(super) fn is_zero(&mut self, offset: u64, length: u64) -> Result<bool, Error> {
        let mut buffer = vec![0; READ_BYTES.min(length as usize)];
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let piece = &mut buffer[..READ_BYTES.min((end - at) as usize)];
            self.read_at(at, piece)?;
            if piece.iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            at += piece.len() as u64;
        }
        Ok(true)
    }

    /// Fills `buffer` with the bytes at `offset`.
    pub(super) fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        match self {
            Self::Disk(file) => file.read_at(offset, buffer),
            Self::Web(reader) => reader.read_at(offset, buffer),
        }
    }

    /// Compares with what was listed. What a web server sends was compared with each answer.
    pub(super) fn check_unchanged(&self, entry: &FileEntry) -> Result<(), Error> {
        match self {
            Self::Disk(file) => file.check_unchanged(entry),
            Self::Web(_) => Ok(()),
        }
    }

    /// Compares after a block was read. A file that is read as a whole once more, when all its blocks have arrived, may
    /// be open for writing meanwhile.
    pub(super) fn check_block(&self, entry: &FileEntry) -> Result<(), Error> {
        match self {
            Self::Disk(file) if entry.growth.is_none() => file.check_unwritten(entry),
            other => other.check_unchanged(entry),
        }
    }

    /// Compares after a file was read as a whole.
    pub(super) fn check_whole(&self, entry: &FileEntry, bytes: &[u8]) -> Result<(), Error> {
        self.check_unchanged(entry)?;
        match self {
            Self::Disk(file) => file.check_steady(0, bytes),
            Self::Web(_) => Ok(()),
        }
    }
}
