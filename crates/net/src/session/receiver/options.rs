//! Options of a receiver.

use std::sync::Arc;
use std::time::Duration;

use sterna_proto::session::{LINGER_DEFAULT, Overwrite};
use sterna_proto::{Checks, Digest};

use crate::session::{AskedNames, SettledPaths};
use crate::sink::{Place, Sink};

/// Callback for a place that another session holds.
pub type OnBusy = Box<dyn Fn(&Place) + Send + Sync>;

/// Options of a receiver.
pub struct ReceiverOptions {
    /// Sink of the files.
    pub sink: Arc<dyn Sink>,
    /// Rule for files that exist. With `expect`, even a file that looks up to date is copied again: only its bytes
    /// can prove the digest.
    pub overwrite: Overwrite,
    /// Digests to compute in addition to BLAKE3.
    pub checks: Checks,
    /// Digest that the file must have. Only for a copy of one file.
    pub expect: Option<Digest>,
    /// True if nothing is written.
    pub dry_run: bool,
    /// Time that the session survives without a lane.
    pub linger: Duration,
    /// True if this end is the client: it leaves as soon as all its messages are sent.
    pub leaves_first: bool,
    /// First names that entries may have. Any other name ends the session before its entry is looked up.
    pub asked: AskedNames,
    /// Files that count as up to date, because an earlier session of the same copy has settled them.
    pub settled: Arc<SettledPaths>,
    /// Callback for the place of a file that another session holds. It can end that session if it is abandoned.
    pub on_busy: OnBusy,
}

impl ReceiverOptions {
    /// Returns the options of an agent that accepts every entry, with defaults for everything else.
    pub fn new(sink: Arc<dyn Sink>) -> Self {
        Self {
            sink,
            overwrite: Overwrite::IfChanged,
            checks: Checks::NONE,
            expect: None,
            dry_run: false,
            linger: LINGER_DEFAULT,
            leaves_first: false,
            asked: AskedNames::Any,
            settled: Arc::default(),
            on_busy: Box::new(|_| {}),
        }
    }
}
