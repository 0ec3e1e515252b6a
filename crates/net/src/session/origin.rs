//! Places of the files of a sender: beneath roots of this host, or on web servers.

use std::sync::Arc;

use sterna_proto::{Error, FileEntry, RelPath};

use super::follow::Follow;
use super::sender::{READ_BYTES, Source};
use crate::disk::{Root, SourceFile};
use crate::web::{Web, WebFile, WebReader};

/// Sources of a session.
pub enum Origins {
    /// Files beneath roots of this host.
    Roots(Vec<Source>),
    /// Files beneath roots of this host; blocks of large files only on demand of the receiver.
    OnDemand(Vec<Source>),
    /// Files on web servers.
    Web(Arc<Web>),
    /// Files beneath roots of this host, followed: growing files, and directories in which files appear.
    Followed(Arc<Follow>),
}

impl Origins {
    /// Returns the web servers, if they are the source.
    pub(super) fn web(&self) -> Option<Arc<Web>> {
        match self {
            Self::Roots(_) | Self::OnDemand(_) | Self::Followed(_) => None,
            Self::Web(web) => Some(Arc::clone(web)),
        }
    }

    /// Returns the followed source and the number of its new session, if the source is followed.
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

/// Place of one file.
#[derive(Clone)]
pub(super) enum Origin {
    /// Beneath a root.
    Disk { root: Root, path: RelPath },
    /// On a web server.
    Web(Arc<WebFile>),
}

/// Open file from which blocks are read.
pub(super) enum OpenSource<'a> {
    Disk(Arc<SourceFile>),
    Web(Box<WebReader<'a>>),
}

impl OpenSource<'_> {
    /// True if the range is a hole, see [`SourceFile::is_hole`]. A web server reports no holes.
    pub(super) fn is_hole(&self, offset: u64, length: u64) -> Result<bool, Error> {
        match self {
            Self::Disk(file) => file.is_hole(offset, length),
            Self::Web(_) => Ok(false),
        }
    }

    /// Reads the bytes `[offset, offset + length)`; true if all of them are zero.
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

    /// Checks that the file is the listed one. Each answer of a web server has already been checked.
    pub(super) fn check_unchanged(&self, entry: &FileEntry) -> Result<(), Error> {
        match self {
            Self::Disk(file) => file.check_unchanged(entry),
            Self::Web(_) => Ok(()),
        }
    }

    /// Checks a file after the read of a block. A growing file may be open for writing, because it is read again as a
    /// whole once all its blocks have arrived.
    pub(super) fn check_block(&self, entry: &FileEntry) -> Result<(), Error> {
        match self {
            Self::Disk(file) if entry.growth.is_none() => file.check_unwritten(entry),
            other => other.check_unchanged(entry),
        }
    }

    /// Checks a file after it was read as a whole.
    pub(super) fn check_whole(&self, entry: &FileEntry, bytes: &[u8]) -> Result<(), Error> {
        self.check_unchanged(entry)?;
        match self {
            Self::Disk(file) => file.check_steady(0, bytes),
            Self::Web(_) => Ok(()),
        }
    }
}
