//! Detects other processes that have a file open: leases (fcntl(2), "Leases").

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use libc::c_int;

/// Returns `Some(true)` if a process of this host has `file` open for writing; `file` itself must be open for reading
/// only.
///
/// Returns `None` if the kernel cannot report it: a file system without leases (NFS), or a file of another user. The
/// function takes a read lease, which the kernel grants only if nobody writes, and releases it at once. A process that
/// opens the file for writing in between waits for the release.
pub fn is_open_for_writing(file: &impl AsFd) -> Option<bool> {
    // Signal to the holder of the lease when another process waits. The usual signal would end this process; this one
    // is ignored.
    control(file, F_SETSIG, libc::SIGURG).ok()?;
    match control(file, libc::F_SETLEASE, libc::F_RDLCK as c_int) {
        Ok(()) => {
            // If this call fails, closing the descriptor releases the lease.
            let _ = control(file, libc::F_SETLEASE, libc::F_UNLCK as c_int);
            Some(false)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(true),
        Err(_) => None,
    }
}

fn control(file: &impl AsFd, command: c_int, argument: c_int) -> io::Result<()> {
    // SAFETY: both commands take a number and access no memory of ours. The file descriptor is borrowed from `file`,
    // which outlives the call.
    #[allow(unsafe_code)]
    let status = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, argument) };
    match status {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Value from `include/uapi/asm-generic/fcntl.h`; the libc crate has it for few platforms only.
const F_SETSIG: c_int = 10;

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};

    use super::*;

    #[test]
    fn a_file_is_open_for_writing_until_its_last_writer_closes_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let first = File::create(&path).unwrap();
        let second = OpenOptions::new().append(true).open(&path).unwrap();
        let reader = File::open(&path).unwrap();
        let other_reader = File::open(&path).unwrap();
        assert_eq!(is_open_for_writing(&reader), Some(true));
        drop(first);
        assert_eq!(is_open_for_writing(&reader), Some(true));
        drop(second);
        assert_eq!(is_open_for_writing(&reader), Some(false));
        // The lease is released: the next writer does not wait.
        let third = OpenOptions::new().append(true).open(&path).unwrap();
        assert_eq!(is_open_for_writing(&other_reader), Some(true));
        drop(third);
        assert_eq!(is_open_for_writing(&other_reader), Some(false));
    }
}
