//! Directories of destinations, made before the first file comes.
//!
//! A storage that does not make them itself refuses a file after it has taken all its bytes. Refuses to fail: the
//! transfer shows what the storage does not allow.

use std::collections::HashSet;

use parking_lot::Mutex;
use sterna_proto::Phase;

use super::client::{Client, End};
use super::{location, storage};

/// Maximum number of directories that are remembered. Reason: some MB of memory.
const KNOWN_MAX: usize = 20_000;

/// Directories that are there, by location.
#[derive(Debug, Default)]
pub(super) struct Directories(Mutex<HashSet<String>>);

impl Directories {
    /// Makes the directory of a file, if the storage reports that it is missing.
    pub async fn prepare(&self, client: &Client, file: &End) {
        let Some(directory) = location::directory(&file.at) else { return };
        let name = directory.url().to_owned();
        if self.0.lock().contains(&name) {
            return;
        }
        let found = storage::stat(client, &file.with(directory), Phase::Prepare, None).await;
        if matches!(found, Ok(None))
            && let Err(error) = storage::make_parents(client, file).await
        {
            tracing::debug!("{}; the transfer goes on without the directory", error.chain());
            return;
        }
        let mut known = self.0.lock();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(name);
    }
}
