//! File systems in image files, for power cuts and for case folding. They need root, and a kernel with these features.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Size of a file system. Reason: several times the data of a test; the image is sparse.
const DISK_BYTES: u64 = 160 << 20;

/// Runs a command; the error has the command and its output.
fn run(command: &str, args: &[&dyn AsRef<std::ffi::OsStr>]) -> Result<(), String> {
    let mut command = Command::new(command);
    for arg in args {
        command.arg(arg);
    }
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Mounted ext4 image; unmounted when dropped.
pub struct Mounted {
    image: PathBuf,
    point: PathBuf,
}

impl Mounted {
    /// Creates an ext4 file system in the new file `image`, and mounts it at the new directory `point`.
    fn make(image: PathBuf, point: PathBuf, features: &[&str], options: &str) -> Result<Self, String> {
        let file = fs::File::create(&image).and_then(|file| file.set_len(DISK_BYTES));
        file.map_err(|error| format!("make {}: {error}", image.display()))?;
        let mut args: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"-q", &"-F"];
        features.iter().for_each(|feature| args.push(feature));
        args.push(&image);
        run("mkfs.ext4", &args)?;
        fs::create_dir(&point).map_err(|error| format!("make {}: {error}", point.display()))?;
        let mounted = Self { image, point };
        mounted.mount(options)?;
        Ok(mounted)
    }

    fn mount(&self, options: &str) -> Result<(), String> {
        run("mount", &[&"-t", &"ext4", &"-o", &format!("loop,{options}"), &self.image, &self.point])
    }

    fn unmount(&self) -> Result<(), String> {
        run("umount", &[&self.point])
    }

    /// Returns the mount point.
    pub fn point(&self) -> &Path {
        &self.point
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A failed test may still have open files there. Then the mount ends when the last of them is closed.
        let _ = self.unmount().or_else(|_| run("umount", &[&"--lazy", &self.point]));
    }
}

/// Creates a directory that treats `a` and `A` as one name. Errors: the reason why this system has none.
pub fn folding() -> Result<(Mounted, TempDir), String> {
    let top = tempfile::tempdir().unwrap();
    let features = ["-O", "casefold", "-E", "encoding=utf8"];
    let mounted = Mounted::make(top.path().join("image"), top.path().join("folding"), &features, "rw")?;
    let directory = mounted.point.join("d");
    fs::create_dir(&directory).unwrap();
    run("chattr", &[&"+F", &directory])?;
    Ok((mounted, top))
}

/// Disk with a simulated power cut: an inner ext4 file system in a file of an outer one, which can be frozen.
///
/// Data in the caches of the inner file system is lost; written data is kept, whatever the order of the writes. The
/// outer file system is frozen while the image is read, so that the snapshot has one point in time.
pub struct Disk {
    inner: Mounted,
    outer: Mounted,
    options: String,
    top: TempDir,
}

impl Disk {
    /// Creates and mounts the disk with `options`, and with options that leave unsynced data unwritten for a long time.
    /// Errors: the reason why this system has none.
    pub fn new(options: &str) -> Result<Self, String> {
        let top = tempfile::tempdir().unwrap();
        // No commit by time and none before a rename: only data that was synced, or by chance written, is durable.
        let options = format!("commit=600,noauto_da_alloc,{options}");
        let outer = Mounted::make(top.path().join("outer.img"), top.path().join("outer"), &["-m", "0"], "rw")?;
        let image = outer.point.join("inner.img");
        let inner = Mounted::make(image, top.path().join("disk"), &["-m", "0", "-J", "size=8"], &options)?;
        Ok(Self { inner, outer, options, top })
    }

    /// Returns the mount point, which stays the same after a power cut.
    pub fn point(&self) -> &Path {
        &self.inner.point
    }

    /// Writes a snapshot of the disk as a power cut would leave it now.
    pub fn cut(&self) -> PathBuf {
        let snapshot = self.top.path().join("snapshot.img");
        run("fsfreeze", &[&"--freeze", &self.outer.point]).unwrap();
        let copied = run("cp", &[&"--sparse=always", &self.inner.image, &snapshot]);
        run("fsfreeze", &[&"--unfreeze", &self.outer.point]).unwrap();
        copied.unwrap();
        snapshot
    }

    /// Replaces the disk with a snapshot and mounts it. No process may have an open file beneath [`Disk::point`].
    pub fn start_from(&self, snapshot: &Path) {
        self.inner.unmount().unwrap();
        run("cp", &[&"--sparse=always", &snapshot, &self.inner.image]).unwrap();
        self.inner.mount(&self.options).unwrap();
    }
}
