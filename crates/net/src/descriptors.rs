//! Limit of the files and sockets that this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open descriptors to the maximum that the system allows this process.
///
/// Shells and service managers start processes with a limit of 1,024, for programs that use `select`. Sterna does not
/// use it. Best effort: with a lower limit, fewer files are open at once.
pub fn raise_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // Fails only if the hard limit is above the maximum that the kernel accepts now.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Returns the number of descriptors that this process may have open.
pub fn limit() -> usize {
    let current = getrlimit(Resource::Nofile).current;
    current.map_or(usize::MAX, |current| usize::try_from(current).unwrap_or(usize::MAX))
}
