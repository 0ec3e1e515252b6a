//! Who else has a file open: leases (fcntl(2), "Leases").

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use libc::c_int;

/// Whether some process of this host has `file`, which is open for reading alone, open for writing.
///
/// `None`: the kernel does not say: a file system without leases (NFS), or a file of another user. Takes a read lease, which it gives only where nobody
/// writes, and gives it back at once: who opens the file in between waits for that.
pub fn is_open_for_writing(file: &impl AsFd) -> Option<bool> {
    // What tells the holder that somebody waits: the usual signal would end this process, this one is ignored.
    control(file, F_SETSIG, libc::SIGURG).ok()?;
    match control(file, libc::F_SETLEASE, libc::F_RDLCK as c_int) {
        Ok(()) => {
            // Given back with the descriptor otherwise.
            let _ = control(file, libc::F_SETLEASE, libc::F_UNLCK as c_int);
            Some(false)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(true),
        Err(_) => None,
    }
}

fn control(file: &impl AsFd, command: c_int, argument: c_int) -> io::Result<()> {
    // SAFETY: both commands take a number and touch no memory of ours; the file descriptor is borrowed from `file`, which lives
    // through the call.
    #[allow(unsafe_code)]
    let status = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, argument) };
    match status {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// `include/uapi/asm-generic/fcntl.h`; the crate has it for few platforms.
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
        // It is given back: the next writer is not held up.
        let third = OpenOptions::new().append(true).open(&path).unwrap();
        assert_eq!(is_open_for_writing(&other_reader), Some(true));
        drop(third);
        assert_eq!(is_open_for_writing(&other_reader), Some(false));
    }
}
