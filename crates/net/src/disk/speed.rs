//! Speed of the disk below a directory: writes a file without a name, and reads it back.
//!
//! The file has no name (`O_TMPFILE`), so nobody sees it, and the kernel removes it at any end of this process.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, Mode, OFlags};
use serde::{Deserialize, Serialize};
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::root::{Access, Root};

/// Bytes of one read or write. Reason: sterna moves data in blocks of about this size.
const BUFFER_BYTES: usize = 1 << 20;

/// Maximum of bytes that are written. Reason: a cache of the device of some hundred MB is full then.
pub const BYTES_MAX: u64 = 1 << 30;

/// Maximum of time for writing, and for reading. Reason: a slow disk shows within it.
pub const TIME_MAX: Duration = Duration::from_secs(5);

/// Part of the free space that a measurement uses at most, as a divisor. Reason: others write to the disk meanwhile.
const FREE_DIVISOR: u64 = 4;

/// Part of the time after which no further step of writing begins. Reason: its sync takes as long as the writing.
const WRITE_FOR: f64 = 0.4;

/// Speed of a disk. A rate of 0 was not measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskSpeed {
    /// Rate of writing, with the sync to the device, bit/s.
    pub write_bps: u64,
    /// Rate of reading from the device, bit/s.
    pub read_bps: u64,
    /// Bytes written, and read again.
    pub bytes: u64,
}

impl Root {
    /// Measures the speed of the disk at `directory`, with at most `bytes_max` bytes and `time_max` for writing and for
    /// reading.
    ///
    /// Errors: `Denied`: the root is read-only, or the file system cannot create files without a name; `NotFound`;
    /// `Io`.
    pub fn speed(&self, directory: &[u8], bytes_max: u64, time_max: Duration) -> Result<DiskSpeed, Error> {
        let shown = String::from_utf8_lossy(directory).into_owned();
        let failed = |kind, what: &str| {
            let text = format!("{what} a file without a name in {shown:?} of {self}, to measure the disk");
            Error::new(kind, Scope::Service, Phase::Prepare, text)
        };
        if self.access() == Access::ReadOnly {
            return Err(failed(ErrorKind::Denied, "create"));
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let file = self.open_at(directory, flags, Mode::from_raw_mode(0o600)).map_err(|errno| {
            let kind = if errno == rustix::io::Errno::NOENT { ErrorKind::NotFound } else { ErrorKind::Denied };
            failed(kind, "create").caused_by(errno)
        })?;
        let mut file = File::from(file);
        let free = rustix::fs::fstatvfs(&file).map_or(u64::MAX, |space| space.f_bavail.saturating_mul(space.f_frsize));
        measure(&mut file, bytes_max.min(BYTES_MAX).min(free / FREE_DIVISOR), time_max.min(TIME_MAX))
            .map_err(|e| failed(ErrorKind::Io, "write or read").caused_by(e))
    }
}

fn measure(file: &mut File, bytes_max: u64, time_max: Duration) -> std::io::Result<DiskSpeed> {
    // Data that no file system can compress or share.
    let mut data = vec![0; BUFFER_BYTES];
    getrandom::fill(&mut data).map_err(std::io::Error::other)?;
    let (start, mut bytes, mut step) = (Instant::now(), 0, STEP_MIN);
    while bytes < bytes_max && start.elapsed() < time_max.mul_f64(WRITE_FOR) {
        let (begun, end) = (Instant::now(), (bytes + step).min(bytes_max));
        while bytes < end {
            data[..8].copy_from_slice(&bytes.to_le_bytes());
            let length = usize::try_from(end - bytes).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES);
            file.write_all(&data[..length])?;
            bytes += length as u64;
        }
        file.sync_data()?;
        if begun.elapsed() < time_max.mul_f64(STEP_FOR) {
            step = (step * 2).min(STEP_MAX);
        }
    }
    let wrote = start.elapsed();
    rustix::fs::fadvise(&*file, 0, None, Advice::DontNeed)?;
    file.seek(SeekFrom::Start(0))?;
    let (start, mut read) = (Instant::now(), 0);
    while read < bytes && start.elapsed() < time_max {
        let count = file.read(&mut data)? as u64;
        if count == 0 {
            break;
        }
        read += count;
    }
    let rate = |bytes: u64, time: Duration| (bytes as f64 * 8.0 / time.as_secs_f64().max(1e-6)) as u64;
    Ok(DiskSpeed { write_bps: rate(bytes, wrote), read_bps: rate(read, start.elapsed()), bytes })
}

/// Bytes until the first sync. Reason: a disk of 1 Mbit/s writes them in 2 s.
const STEP_MIN: u64 = 256 << 10;

/// Largest number of bytes between two syncs.
const STEP_MAX: u64 = 64 << 20;

/// Part of the time below which a step is short: the next one has twice the bytes.
const STEP_FOR: f64 = 0.05;
