//! Further tries to begin a test with a server that has one place.

use std::thread;
use std::time::Duration;

use sterna_proto::{Error, ErrorKind};

/// Pauses before further tries to begin a test. Reason: the next test of a run comes at once, while the server still
/// ends the one before; iperf3 closes its port for some milliseconds in between.
const PAUSES: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(250), Duration::from_secs(1)];

/// Calls `begin` until it succeeds, at most four times. Tries again if the server is busy or cannot be reached.
pub(super) fn until_begun<T>(begin: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let mut pauses = PAUSES.into_iter();
    loop {
        match (begin(), pauses.next()) {
            (Err(error), Some(pause)) if matches!(error.kind, ErrorKind::Busy | ErrorKind::Unreachable) => {
                thread::sleep(pause);
            }
            (begun, _) => return begun,
        }
    }
}
