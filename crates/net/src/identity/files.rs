//! Reads and replaces the small files of the state directory.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sterna_proto::{Error, ErrorKind, Phase, Scope};

/// Creates an error of the storage that holds the state directory or the file of authorized peers.
pub(super) fn storage_error(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, text)
}

/// Creates the error for a line that cannot be read.
pub(super) fn line_error(path: &Path, line_number: usize, what: impl std::fmt::Display) -> Error {
    let text = format!("{} line {line_number}: {what}", path.display());
    Error::new(ErrorKind::Corrupt, Scope::Client, Phase::Prepare, text)
}

/// Creates the error for two lines that disagree about `what`.
pub(super) fn lines_error(path: &Path, (first, second): (usize, usize), what: impl std::fmt::Display) -> Error {
    let text = format!("{} lines {first} and {second} both name {what}", path.display());
    Error::new(ErrorKind::Corrupt, Scope::Client, Phase::Prepare, text)
}

/// Reads a file of at most `bytes_max` bytes. Returns `None` if the file does not exist.
pub(super) fn read_bounded(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, Error> {
    let failed = |e| storage_error(format!("read {}", path.display())).caused_by(e);
    // Opening a FIFO without this flag would wait forever for a writer.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if file.metadata().map_err(failed)?.file_type().is_fifo() {
        return Err(storage_error(format!("read {}: it is a fifo and no file", path.display())));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        let text = format!("{} is larger than {bytes_max} bytes", path.display());
        return Err(Error::new(ErrorKind::Limit, Scope::Client, Phase::Prepare, text));
    }
    Ok(Some(bytes))
}

/// Reads a file of lines, as `read_bounded` does.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> Result<Option<String>, Error> {
    let Some(bytes) = read_bounded(path, bytes_max)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|e| {
        let text = format!("{} is not text in UTF-8", path.display());
        Error::new(ErrorKind::Corrupt, Scope::Client, Phase::Prepare, text).caused_by(e)
    })
}

/// Creates the state directory, accessible to its owner only, unless it exists.
pub(crate) fn create_state_dir(dir: &Path) -> Result<(), Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| storage_error(format!("make the state directory {}", dir.display())).caused_by(e))
}

/// Replaces the file at `path` with `bytes`. After a crash, either the old or the new file is there, complete.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let write = || -> std::io::Result<()> {
        let temporary = temporary_beside(path)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            // The first error is the reason; a file that stays is found by its name.
            let _ = fs::remove_file(&temporary);
        }
        written.and_then(|()| sync_dir_of(path))
    };
    write().map_err(|e| storage_error(format!("replace {}", path.display())).caused_by(e))
}

/// Returns a name for a temporary file beside `path` that no other process uses.
pub(super) fn temporary_beside(path: &Path) -> std::io::Result<PathBuf> {
    let mut random = [0; 8];
    let generator = ring::rand::SystemRandom::new();
    ring::rand::SecureRandom::fill(&generator, &mut random).map_err(|_| std::io::Error::other("no random bytes"))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(path.with_file_name(format!(".{name}.{:016x}", u64::from_le_bytes(random))))
}

/// Makes the names in the directory of `path` durable.
pub(crate) fn sync_dir_of(path: &Path) -> std::io::Result<()> {
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(dir)?.sync_all()
}
