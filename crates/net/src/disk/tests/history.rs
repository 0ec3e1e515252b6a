use std::sync::Arc;

use sterna_proto::{Error, ErrorKind};

use super::*;
use crate::disk::History;
use crate::identity::Fingerprint;

/// Returns the destination of a new session of `peer`.
fn session(directory: &TempDir, history: &Arc<History>, peer: u8) -> Destination {
    let destination = writable(directory);
    destination.set_history(history.begin(Fingerprint([peer; 32])));
    destination
}

fn version(path: &str, size: u64, version: u64) -> FileEntry {
    FileEntry { version, ..file_entry(path, size) }
}

/// Publishes a file, small or large.
fn publish(destination: &Destination, entry: &FileEntry) -> Result<(), Error> {
    let data = pattern(entry.size);
    match destination.prepare(entry, &terms(Overwrite::Always))? {
        Prepared::Packed(seen) => {
            let mut batch = destination.packed(Overwrite::Always, Checks::NONE);
            batch.add(PackedFile { entry, data: &data, blake3: None, expected: &[], seen });
            batch.publish().remove(0).map(drop)
        }
        Prepared::Incoming(file) => {
            put_block(&file, &data, 0);
            file.publish(&[]).map(drop)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_earlier_session_does_not_bring_back_an_older_version() {
    for size in [5, ONE_BLOCK] {
        let (directory, history) = (scratch(), Arc::new(History::default()));
        let earlier = session(&directory, &history, 1);
        let other_peer = session(&directory, &history, 2);
        let later = session(&directory, &history, 1);
        publish(&earlier, &version("f", size, 10)).unwrap();
        publish(&later, &version("f", size, 20)).unwrap();
        let refused = publish(&earlier, &version("f", size, 10)).unwrap_err();
        assert!(refused.kind == ErrorKind::Exists && refused.text().contains("began later"), "{refused}");
        // A file that is followed: the earlier session has a newer version.
        publish(&earlier, &version("f", size, 30)).unwrap();
        publish(&later, &version("f", size, 20)).unwrap();
        publish(&other_peer, &version("f", size, 10)).unwrap();
        publish(&later, &version("f", size, 20)).unwrap();
        // Versions that cannot be compared: from a web server, or of a growing file.
        publish(&earlier, &version("f", size, 0)).unwrap();
        publish(&later, &version("f", size, 20)).unwrap();
        drop((earlier, other_peer));
        let latest = session(&directory, &history, 1);
        publish(&latest, &version("f", size, 10)).unwrap();
    }
}

#[test]
fn a_newer_version_stays_after_the_end_of_its_session() {
    let (directory, history) = (scratch(), Arc::new(History::default()));
    let earlier = session(&directory, &history, 1);
    publish(&session(&directory, &history, 1), &version("f", 5, 20)).unwrap();
    // Another session of another peer changes nothing.
    drop(session(&directory, &history, 2));
    publish(&earlier, &version("f", 5, 10)).unwrap_err();
}

#[test]
fn a_newer_version_stays_although_it_came_by_another_location() {
    let (directory, history) = (scratch(), Arc::new(History::default()));
    std::fs::create_dir(directory.path().join("t")).unwrap();
    let earlier = session(&directory, &history, 1);
    let root = Root::open(directory.path(), Access::ReadWrite).unwrap();
    let later = Destination::resolve(&root, b"t/", Sources::Many).unwrap();
    later.set_history(history.begin(Fingerprint([1; 32])));
    publish(&later, &version("f", 5, 20)).unwrap();
    publish(&earlier, &version("t/f", 5, 10)).unwrap_err();
}

#[test]
fn another_source_with_the_same_name_at_the_destination_is_no_newer_version() {
    let (directory, history) = (scratch(), Arc::new(History::default()));
    let root = Root::open(directory.path(), Access::ReadWrite).unwrap();
    let [earlier, later] = [0, 1].map(|_| {
        let destination = Destination::resolve(&root, b"target", Sources::One).unwrap();
        destination.set_history(history.begin(Fingerprint([1; 32])));
        destination
    });
    publish(&later, &version("b", 5, 20)).unwrap();
    publish(&earlier, &version("a", 5, 10)).unwrap();
}
