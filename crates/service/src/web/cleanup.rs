//! Removal of what a transfer that failed or was cancelled has left at a storage.
//!
//! A temporary name is unique for service, file and attempt: it is deleted after the attempt has ended, and again
//! later. Anybody may write to a final name at any time: what this attempt wrote there is deleted once, within it.

use std::sync::Arc;
use std::time::Duration;

use sterna_proto::Error;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use super::client::{Client, End};
use super::storage;

/// Times of the deletions after the end of the transfer. Reason for the second: XRootD notices a cancelled pull at its
/// next marker, up to 5 s later, and may create the file meanwhile.
const DELETE_AFTER: [Duration; 2] = [Duration::ZERO, Duration::from_secs(10)];

/// Time limit of a deletion.
const DELETE_TIME_MAX: Duration = Duration::from_secs(30);

/// File with a temporary name that is deleted when this is dropped.
pub(super) struct Temporary {
    client: Arc<Client>,
    end: End,
    is_armed: bool,
}

impl Temporary {
    /// Creates it for a name that is unique for service, file and attempt.
    pub fn new(client: Arc<Client>, end: End) -> Self {
        Self { client, end, is_armed: true }
    }

    /// Leaves the file alone: it has its final name, or is to stay.
    pub fn keep(mut self) {
        self.is_armed = false;
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // The file stays if the process is ending: the next attempt deletes it.
        let Some(runtime) = self.is_armed.then(Handle::try_current).and_then(Result::ok) else { return };
        let (client, end) = (Arc::clone(&self.client), self.end.clone());
        runtime.spawn(async move {
            for wait in DELETE_AFTER {
                sleep(wait).await;
                match timeout(DELETE_TIME_MAX, storage::delete(&client, &end)).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => tracing::warn!("{}; a part of a file may stay there", error.chain()),
                    Err(_) => tracing::warn!("DELETE {}: no answer; a part of a file may stay there", end.at),
                }
            }
        });
    }
}

/// Deletes a file at a final name, which this attempt has written and found wrong. Waits for the end. Returns `failed`,
/// with a note if the file may still be there.
pub(super) async fn delete_written(client: &Client, end: &End, failed: Error) -> Error {
    let why = match timeout(DELETE_TIME_MAX, storage::delete(client, end)).await {
        Ok(Ok(_)) => return failed,
        Ok(Err(error)) => error.chain(),
        Err(_) => format!("DELETE {}: no answer within {} s", end.at, DELETE_TIME_MAX.as_secs()),
    };
    tracing::warn!("{why}; a file that is wrong may stay there");
    noted(failed, end)
}

/// Returns an error that says that a part of a file may be at a final name.
pub(super) fn noted(error: Error, end: &End) -> Error {
    let text = format!("{}; a part of the file may be at {}", error.text(), end.at);
    error.reworded(text)
}
