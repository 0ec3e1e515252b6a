//! Bytes of a file of this host, in order. Reads in threads that may block.

use std::sync::Arc;

use hyper::body::Bytes;
use sterna_net::agent::OutgoingFile;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use tokio::task::spawn_blocking;

/// Bytes that are read at once. Reason: a change of threads costs some 20 µs, and a transfer holds about ten blocks.
const BLOCK_BYTES: u64 = 256 << 10;

/// Reader of a file of this host.
pub(super) struct LocalReader {
    file: Arc<OutgoingFile>,
    /// Start of the next block.
    next: u64,
}

impl LocalReader {
    /// Creates it, at the beginning of the file.
    pub fn new(file: Arc<OutgoingFile>) -> Self {
        Self { file, next: 0 }
    }

    /// Returns the next bytes; `None` at the end of the file. Errors: `Changed`; of the storage.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let (start, length) = (self.next, BLOCK_BYTES.min(self.file.size() - self.next));
        if length == 0 {
            return Ok(None);
        }
        let bytes = blocking(&self.file, move |file| file.read(start, length as usize)).await?;
        self.next += length;
        Ok(Some(bytes.into()))
    }
}

/// Runs work on a file in a thread that may block. The work goes on to its end if this is dropped.
pub(super) async fn blocking<T: Send + 'static>(
    file: &Arc<OutgoingFile>,
    work: impl FnOnce(&OutgoingFile) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let owned = Arc::clone(file);
    let done = spawn_blocking(move || work(&owned)).await;
    done.unwrap_or_else(|e| {
        let text = format!("read {file}: the thread has ended");
        Err(Error::new(ErrorKind::Internal, Scope::Source, Phase::Transfer, text).caused_by(e))
    })
}
