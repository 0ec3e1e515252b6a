//! Further tries to begin a test with a server that has one place.

use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use sterna_proto::{Error, ErrorKind};

/// Pauses before further tries to begin a test. Reason: the next test of a run comes at once, while the server still
/// ends the one before; iperf3 closes its port for some milliseconds in between.
const PAUSES: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(250), Duration::from_secs(1)];

/// Calls `begin` until it succeeds, at most four times. Tries again if the server is busy, or if its host refuses or
/// resets the connection. Other errors stay: a silent server would take the time of all attempts.
pub(super) fn until_begun<T>(begin: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let mut pauses = PAUSES.into_iter();
    loop {
        match (begin(), pauses.next()) {
            (Err(error), Some(pause)) if may_pass(&error) => thread::sleep(pause),
            (begun, _) => return begun,
        }
    }
}

/// Returns true for errors of a server that still ends a test.
fn may_pass(error: &Error) -> bool {
    let by_system = error.os_code().map(Errno::from_raw_os_error);
    error.kind == ErrorKind::Busy || matches!(by_system, Some(Errno::CONNREFUSED | Errno::CONNRESET))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io;

    use sterna_proto::{Phase, Scope};

    use super::*;

    #[test]
    fn only_a_server_that_ends_a_test_is_tried_again() {
        let of = |kind| Error::new(kind, Scope::Path, Phase::Prepare, "begin a test");
        let by = |errno: Errno| of(ErrorKind::Unreachable).caused_by(io::Error::from(errno));
        for (error, attempts) in [
            (of(ErrorKind::Busy), 4),
            (by(Errno::CONNREFUSED), 4),
            (by(Errno::CONNRESET), 4),
            (by(Errno::HOSTUNREACH), 1),
            (by(Errno::AGAIN), 1),
            (of(ErrorKind::Unreachable).caused_by(io::Error::from(io::ErrorKind::TimedOut)), 1),
            (of(ErrorKind::Unreachable).caused_by(io::Error::from(io::ErrorKind::UnexpectedEof)), 1),
            (of(ErrorKind::Denied), 1),
            (of(ErrorKind::Protocol), 1),
        ] {
            let tried = Cell::new(0);
            let begun: Result<(), Error> = until_begun(|| {
                tried.set(tried.get() + 1);
                Err(error.clone())
            });
            assert!(begun.is_err());
            assert_eq!(tried.get(), attempts, "{}", error.chain());
        }
    }
}
