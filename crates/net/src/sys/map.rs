//! A writer through a memory map, for tests.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// File that is mapped for writing, and not open in any other way.
pub struct MappedFile {
    start: *mut u8,
    length: usize,
}

impl MappedFile {
    /// Maps a whole file, and closes its descriptor.
    pub fn new(path: &Path) -> Self {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let length = file.metadata().unwrap().len() as usize;
        let (null, access) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: the kernel chooses an address range that nothing else uses.
        #[allow(unsafe_code)]
        let start = unsafe { libc::mmap(null, length, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert!(start != libc::MAP_FAILED, "map {}: {}", path.display(), io::Error::last_os_error());
        Self { start: start.cast(), length }
    }

    /// Writes `byte` to every position.
    pub fn fill(&mut self, byte: u8) {
        // SAFETY: the mapping has this address and length until it is dropped; nothing borrows from it.
        #[allow(unsafe_code)]
        unsafe {
            self.start.write_bytes(byte, self.length);
        }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the mapping has this address and length, and nothing uses it any more.
        #[allow(unsafe_code)]
        let status = unsafe { libc::munmap(self.start.cast(), self.length) };
        assert_eq!(status, 0, "unmap: {}", io::Error::last_os_error());
    }
}
