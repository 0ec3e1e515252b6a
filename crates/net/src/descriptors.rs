//! How many files and sockets this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open descriptors to what the system allows this process.
///
/// Shells and service managers start processes with 1,024 for the sake of programs that use `select`, which we do not. Best effort:
/// with a lower limit fewer files are open at once.
pub fn raise_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // It can fail only where the hard limit is above what the kernel takes now.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// How many descriptors this process may have open.
pub fn limit() -> usize {
    let current = getrlimit(Resource::Nofile).current;
    current.map_or(usize::MAX, |current| usize::try_from(current).unwrap_or(usize::MAX))
}
