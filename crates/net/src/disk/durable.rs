//! Makes many files or directories durable: one by one, or with one sync of their file system.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use rustix::fs::StatFs;

/// Maximum number of directories or files that are synced one by one; more are synced with their whole file system.
/// Guess: on a disk, `fsync` costs one flush; `syncfs` costs one flush and the data of all other programs.
const SINGLE_SYNCS_MAX: usize = 4;

/// One round of syncs, for a known number of files or directories.
#[derive(Debug)]
pub(super) struct SyncRound {
    is_few: bool,
    /// Devices seen in this round. The value is true if `syncfs` is reliable there, and was therefore called.
    devices: BTreeMap<u64, bool>,
}

impl SyncRound {
    pub(super) fn of(count: usize) -> Self {
        Self { is_few: count <= SINGLE_SYNCS_MAX, devices: BTreeMap::new() }
    }

    /// Makes `file` durable.
    ///
    /// `syncfs` reports writes that were lost since the descriptor was opened, so `file` must be opened before it is
    /// written.
    pub(super) fn sync(&mut self, file: impl AsFd) -> rustix::io::Result<()> {
        if self.is_few {
            return rustix::fs::fsync(file);
        }
        let device = rustix::fs::fstat(&file)?.st_dev;
        match self.devices.get(&device) {
            Some(true) => Ok(()),
            Some(false) => rustix::fs::fsync(file),
            None => {
                let counts = rustix::fs::fstatfs(&file).is_ok_and(|system| reports_losses(magic_of(&system), kernel()));
                self.devices.insert(device, counts);
                if counts {
                    rustix::fs::syncfs(&file)?;
                }
                // Required after `syncfs` too: before Linux 5.17, `syncfs` drops the error of a failed commit of the
                // file system's journal.
                rustix::fs::fsync(file)
            }
        }
    }
}

/// Returns true if `syncfs` waits for all writes and reports each lost one, on this type of file system and under this
/// kernel.
///
/// Linux before 5.8 reports no lost write. FUSE did nothing at all in `syncfs` before 5.15, and since then only
/// supports it for virtiofs. Network file systems, overlays and others differ by version. Where the behaviour is not
/// certain, each file is synced separately.
fn reports_losses(magic: u64, kernel: Option<(u32, u32)>) -> bool {
    kernel.is_some_and(|release| release >= (5, 8)) && CERTAIN.contains(&magic)
}

/// Magic numbers of native Linux file systems on local disks: ext2 to ext4, XFS, Btrfs, F2FS, tmpfs. Source:
/// linux/magic.h.
const CERTAIN: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];

fn magic_of(system: &StatFs) -> u64 {
    // The type differs by architecture; magic numbers have 32 bits.
    system.f_type as u64 & 0xffff_ffff
}

/// Returns the release of the running kernel, as its first two numbers.
fn kernel() -> Option<(u32, u32)> {
    static KERNEL: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *KERNEL.get_or_init(|| release_of(&rustix::system::uname().release().to_string_lossy()))
}

fn release_of(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncfs_counts_only_where_it_reports_every_lost_write() {
        let (ext4, xfs, btrfs, tmpfs) = (0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994);
        for magic in [ext4, xfs, btrfs, tmpfs] {
            assert!(reports_losses(magic, Some((5, 8))) && reports_losses(magic, Some((6, 1))));
            for old in [None, Some((5, 7)), Some((4, 18)), Some((3, 10))] {
                assert!(!reports_losses(magic, old), "{old:?}");
            }
        }
        let (fuse, nfs, smb2, ceph, overlay, lustre) =
            (0x6573_5546, 0x6969, 0xfe53_4d42, 0x00c3_6400, 0x794c_7630, 0x0bd0_0bd0);
        for magic in [fuse, nfs, smb2, ceph, overlay, lustre, 0] {
            assert!(!reports_losses(magic, Some((6, 18))), "{magic:x}");
        }
    }

    #[test]
    fn in_doubt_each_file_is_synced_by_itself() {
        // Files of procfs cannot be synced, and each caller must get that error.
        let mut round = SyncRound::of(SINGLE_SYNCS_MAX + 1);
        for path in ["/proc/self/status", "/proc/self/stat", "/proc/self/status"] {
            let outcome = round.sync(std::fs::File::open(path).unwrap());
            assert_eq!(outcome, Err(rustix::io::Errno::INVAL), "{path}");
        }
    }

    #[test]
    fn releases_of_kernels_are_read_and_others_are_in_doubt() {
        let cases =
            [("5.8.0-1-amd64", Some((5, 8))), ("4.18.0-553.el8_10.x86_64", Some((4, 18))), ("6.18+", Some((6, 18)))];
        for (text, release) in cases {
            assert_eq!(release_of(text), release, "{text}");
        }
        for text in ["", "6", "six.one", "99999999999.1"] {
            assert_eq!(release_of(text), None, "{text}");
        }
        assert!(kernel().is_some());
    }
}
