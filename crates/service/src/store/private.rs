//! Mode of the files of a database.

use std::fs::{File, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Creates the file of a database, if there is none, and lets only its owner read it: jobs have tokens and keys. The
/// files beside it get its mode from SQLite; those of an earlier release are changed too.
pub(super) fn make_private(path: &Path) -> std::io::Result<()> {
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let set = |file: &File| match file.metadata()?.permissions().mode() & 0o077 {
        0 => Ok(()),
        _ => file.set_permissions(Permissions::from_mode(0o600)),
    };
    set(&file)?;
    for suffix in ["-wal", "-shm"] {
        let mut beside = path.as_os_str().to_owned();
        beside.push(suffix);
        match File::open(beside) {
            Ok(file) => set(&file)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_an_earlier_release_become_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mode = |name: &str| std::fs::metadata(path(name)).unwrap().permissions().mode() & 0o777;
        std::fs::write(path("d"), "data").unwrap();
        std::fs::write(path("d-wal"), "data").unwrap();
        for name in ["d", "d-wal"] {
            std::fs::set_permissions(path(name), Permissions::from_mode(0o644)).unwrap();
        }
        make_private(&path("d")).unwrap();
        make_private(&path("new")).unwrap();
        assert_eq!([mode("d"), mode("d-wal"), mode("new")], [0o600; 3]);
        assert_eq!(std::fs::read(path("d")).unwrap(), b"data");
        assert!(make_private(&path("missing/d")).is_err());
    }
}
