//! Creates files from a seed, and compares trees.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

pub use sterna_seeded::Seeded;

/// One mebibyte, in bytes.
pub const MIB: usize = 1 << 20;

/// Writes a file, and the directories above it.
pub fn write(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Sets the modification time of a file.
pub fn set_mtime(path: &Path, seconds: u64, nanoseconds: u32) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Properties of one name in a tree.
#[derive(Debug, PartialEq, Eq)]
pub struct Leaf {
    pub is_directory: bool,
    pub mode: u32,
    /// Modification time: seconds and nanoseconds.
    pub mtime: (i64, i64),
    pub size: u64,
    pub hash: String,
}

/// Returns all names beneath `top`, by file path in bytes.
pub fn read_tree(top: &Path) -> BTreeMap<Vec<u8>, Leaf> {
    let mut tree = BTreeMap::new();
    let mut todo = vec![top.to_owned()];
    while let Some(directory) = todo.pop() {
        for item in fs::read_dir(&directory).unwrap() {
            let path = item.unwrap().path();
            let about = fs::symlink_metadata(&path).unwrap();
            let hash = match about.is_file() {
                true => blake3::hash(&fs::read(&path).unwrap()).to_string(),
                false => String::new(),
            };
            let leaf = Leaf {
                is_directory: about.is_dir(),
                mode: about.mode() & 0o7777,
                mtime: (about.mtime(), about.mtime_nsec()),
                size: if about.is_dir() { 0 } else { about.len() },
                hash,
            };
            tree.insert(path.strip_prefix(top).unwrap().as_os_str().as_bytes().to_vec(), leaf);
            if about.is_dir() {
                todo.push(path);
            }
        }
    }
    tree
}

/// Fails unless both trees have the same names, bytes, modes and times, and nothing else.
#[track_caller]
pub fn assert_same_tree(left: &Path, right: &Path) {
    // An agent sets the times of directories when its session ends, shortly after the end of the client.
    let times = |top: &Path| -> Vec<_> {
        read_tree(top)
            .into_iter()
            .filter(|(_, leaf)| leaf.is_directory)
            .map(|(path, leaf)| (path, leaf.mtime))
            .collect()
    };
    crate::site::wait_until("the times of directories", || times(left) == times(right));
    let (left, right) = (read_tree(left), read_tree(right));
    for (path, leaf) in &left {
        let shown = path.escape_ascii();
        let other = right.get(path).unwrap_or_else(|| panic!("{shown} is missing"));
        assert_eq!(leaf, other, "{shown}");
    }
    let more: Vec<_> =
        right.keys().filter(|path| !left.contains_key(*path)).map(|p| p.escape_ascii().to_string()).collect();
    assert!(more.is_empty(), "not at the source: {more:?}");
}

/// Fails unless both files have the same bytes.
#[track_caller]
pub fn assert_same_file(left: &Path, right: &Path) {
    let (left, right) =
        (fs::read(left).unwrap(), fs::read(right).unwrap_or_else(|e| panic!("{}: {e}", right.display())));
    assert_eq!(left.len(), right.len());
    assert!(left == right, "the bytes differ");
}
