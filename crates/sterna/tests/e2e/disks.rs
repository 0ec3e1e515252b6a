//! File systems in files: what a power cut leaves of one, and one that folds case. They need root and a kernel that has them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Size of a file system. Reason: some times what a test copies; the file is sparse.
const DISK_BYTES: u64 = 160 << 20;

/// Runs a command; its error says what it was and what it said.
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

/// A mounted ext4 image; unmounted when dropped.
pub struct Mounted {
    image: PathBuf,
    point: PathBuf,
}

impl Mounted {
    /// Makes an ext4 file system in the new file `image`, and mounts it at the new directory `point`.
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

    /// Where it is mounted.
    pub fn point(&self) -> &Path {
        &self.point
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A test that failed may have it open still: then it goes with the last of these.
        let _ = self.unmount().or_else(|_| run("umount", &[&"--lazy", &self.point]));
    }
}

/// A directory that takes `a` and `A` for one name; the reason when this system has none.
pub fn folding() -> Result<(Mounted, TempDir), String> {
    let top = tempfile::tempdir().unwrap();
    let features = ["-O", "casefold", "-E", "encoding=utf8"];
    let mounted = Mounted::make(top.path().join("image"), top.path().join("folding"), &features, "rw")?;
    let directory = mounted.point.join("d");
    fs::create_dir(&directory).unwrap();
    run("chattr", &[&"+F", &directory])?;
    Ok((mounted, top))
}

/// A disk whose power can be cut: an ext4 file system in a file of another one, which can be frozen.
///
/// What the first has in its caches and has not written is lost; what it has written is kept, in whatever order that was. The
/// other one is frozen while the file is read, so that all of it is of one moment.
pub struct Disk {
    inner: Mounted,
    outer: Mounted,
    options: String,
    top: TempDir,
}

impl Disk {
    /// Makes and mounts it with these options beside those that leave unsynced data unwritten for long. Errors: why this
    /// system has none.
    pub fn new(options: &str) -> Result<Self, String> {
        let top = tempfile::tempdir().unwrap();
        // No commit by time, and none before a rename: nothing is durable but what was synced or happened to be written.
        let options = format!("commit=600,noauto_da_alloc,{options}");
        let outer = Mounted::make(top.path().join("outer.img"), top.path().join("outer"), &["-m", "0"], "rw")?;
        let image = outer.point.join("inner.img");
        let inner = Mounted::make(image, top.path().join("disk"), &["-m", "0", "-J", "size=8"], &options)?;
        Ok(Self { inner, outer, options, top })
    }

    /// Where it is mounted, also after a power cut.
    pub fn point(&self) -> &Path {
        &self.inner.point
    }

    /// Takes down what is on the disk at this moment, as a power cut would leave it.
    pub fn cut(&self) -> PathBuf {
        let snapshot = self.top.path().join("snapshot.img");
        run("fsfreeze", &[&"--freeze", &self.outer.point]).unwrap();
        let copied = run("cp", &[&"--sparse=always", &self.inner.image, &snapshot]);
        run("fsfreeze", &[&"--unfreeze", &self.outer.point]).unwrap();
        copied.unwrap();
        snapshot
    }

    /// Starts again from what a cut has left. Nothing may have a file open beneath [`Disk::point`].
    pub fn start_from(&self, snapshot: &Path) {
        self.inner.unmount().unwrap();
        run("cp", &[&"--sparse=always", &snapshot, &self.inner.image]).unwrap();
        self.inner.mount(&self.options).unwrap();
    }
}
