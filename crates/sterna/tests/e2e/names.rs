//! Tests names of files: two sources with one name, and agents that send files that were not requested.

use std::fs;
use std::net::{SocketAddr, TcpListener};

use bytes::Bytes;
use sterna_net::identity::Identity;
use sterna_net::lane::tcp::{TcpOptions, accept};
use sterna_net::lane::{Lane, LaneTx};
use sterna_proto::session::{BlockData, BlockHeader, Capabilities, FileId, Frame, Message};
use sterna_proto::{Error, FileEntry};

use crate::hostile::{Deaf, entry};
use crate::site::{CopyCommand, Outcome, Site};
use crate::tree::{MIB, Seeded, write};

/// Sizes of a packed file and of a file in blocks.
const SIZES: [usize; 2] = [1000, 2 * MIB];

fn two_of_a_name(site: &Site, at: &std::path::Path, size: usize) {
    write(&at.join("p1/data.h5"), &vec![1; size]);
    write(&at.join("p2/data.h5"), &vec![2; size]);
    write(&at.join("p2/other.h5"), &vec![3; size]);
    assert!(site.root().exists());
}

/// Checks that one of two files was copied, and the other one refused with an error.
#[track_caller]
fn assert_one_refused(outcome: Outcome, copied: u64) {
    let outcome = outcome.expect(1);
    assert_eq!((&outcome.summary()["copied"], &outcome.summary()["failed"]), (&copied.into(), &1.into()));
    assert_eq!(outcome.last("unreadable")["error"]["kind"], "exists", "{}", outcome.describe());
    outcome.says("two sources have the name");
}

#[test]
fn the_second_source_of_a_name_is_refused_and_the_first_is_whole() {
    for size in SIZES {
        let site = Site::new();
        let agent = site.agent();
        two_of_a_name(&site, &site.local(), size);
        two_of_a_name(&site, &site.root(), size);
        let push = |sources: &[&str], to: &str| site.copy(&agent).args(sources).arg(agent.url(to)).run();
        assert_one_refused(push(&["p1/data.h5", "p2/data.h5"], "named/"), 1);
        assert_one_refused(push(&["p*/data.h5"], "wild/"), 1);
        assert_one_refused(push(&["p*/*"], "wilder/"), 2);
        assert_one_refused(push(&["p1/.", "p2/."], "contents/"), 2);
        let pull = |sources: &[&str], to: &str| {
            site.copy(&agent).args(sources.iter().map(|source| agent.url(source))).arg(to).run()
        };
        assert_one_refused(pull(&["p1/data.h5", "p2/data.h5"], "named/"), 1);
        assert_one_refused(pull(&["p*/data.h5"], "wild/"), 1);
        for to in ["named", "wild", "wilder", "contents"] {
            assert!(fs::read(site.root().join(to).join("data.h5")).unwrap() == vec![1; size], "{to} {size}");
        }
        for to in ["named", "wild"] {
            assert!(fs::read(site.local().join(to).join("data.h5")).unwrap() == vec![1; size], "{to} {size}");
        }
    }
}

#[test]
fn the_second_directory_of_a_name_is_refused_with_all_in_it() {
    let site = Site::new();
    let agent = site.agent();
    for name in ["a/d/x", "a/d/y", "b/d/x", "b/d/z"] {
        write(&site.local().join(name), name.as_bytes());
    }
    let pushed = site.copy(&agent).args(["a/d", "b/d"]).arg(agent.url("to/")).run();
    assert_one_refused(pushed, 2);
    let mut names: Vec<_> = fs::read_dir(site.root().join("to/d")).unwrap().map(|i| i.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["x", "y"]);
    assert_eq!(fs::read(site.root().join("to/d/x")).unwrap(), b"a/d/x");
}

#[test]
fn a_named_root_goes_by_its_name_as_any_directory() {
    let site = Site::new();
    write(&site.root().join("deep/x"), b"x");
    write(&site.root().join("y"), b"y");
    let root = format!("passes={}", site.root().display());
    let agent = site.agent_with("127.0.0.1:0", &["--root".as_ref(), root.as_ref(), "--authorize-any".as_ref()]);
    fs::create_dir(site.local().join("there")).unwrap();
    for (source, to, found) in [
        ("passes", "there", "there/passes"),
        ("passes/", "renamed", "renamed"),
        ("passes/.", "contents", "contents"),
        ("passes/*", "wild", "wild"),
    ] {
        site.copy(&agent).arg(agent.url(source)).arg(to).succeed();
        let found = site.local().join(found);
        assert_eq!(fs::read(found.join("deep/x")).unwrap(), b"x", "{source}");
        assert_eq!(fs::read(found.join("y")).unwrap(), b"y", "{source}");
    }
}

/// Agent that welcomes all peers and sends the answer of a test.
struct Liar {
    addr: SocketAddr,
    fingerprint: String,
}

impl Liar {
    fn new(answer: impl Fn(&mut dyn LaneTx) -> Result<(), Error> + Send + 'static) -> Self {
        let identity = Identity::ephemeral().unwrap();
        let fingerprint = identity.fingerprint().to_string();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(lane) = accept(stream.unwrap(), &identity, &TcpOptions::default()) else { continue };
                let Lane { mut tx, rx, .. } = lane.into_lane();
                // The client may disconnect during the answer; the test expects this.
                let welcome = Frame::Welcome(Capabilities::OURS).encode();
                let _ = tx.control(&welcome).and_then(|()| answer(&mut *tx)).and_then(|()| tx.flush());
                let _ = rx.run(&mut Deaf);
            }
        });
        Self { addr, fingerprint }
    }

    fn copy(&self, site: &Site) -> CopyCommand {
        let mut copy = site.bare_copy();
        copy.args(["--via", "tcp", "--lanes", "1", "--trust", &self.fingerprint]);
        copy
    }

    fn url(&self, path: &str) -> String {
        format!("sterna://{}/{path}", self.addr)
    }
}

/// Offers entries and sends their contents: packed entries in one block, others in one block each.
fn send(tx: &mut dyn LaneTx, files: &[(&[u8], Vec<u8>)]) -> Result<(), Error> {
    let entries: Vec<(FileId, FileEntry)> = files
        .iter()
        .enumerate()
        .map(|(index, (path, data))| (FileId(index as u64), entry(path, data.len() as u64)))
        .collect();
    let offers = entries.iter().map(|(file, entry)| Message::Offer { file: *file, entry: entry.clone() });
    let bytes = files.iter().map(|(_, data)| data.len() as u64).sum();
    let end = Message::OffersEnd { files: files.len() as u64, bytes };
    let encoded = offers.chain([end]).flat_map(|message| message.encode()).collect();
    tx.control(&Frame::Messages { first: 0, encoded }.encode())?;
    if entries.iter().all(|(_, entry)| entry.is_packed()) {
        let trailer: Vec<u8> = files.iter().flat_map(|(_, data)| *blake3::hash(data).as_bytes()).collect();
        tx.block_begin(&BlockHeader::Packed { files: entries, slab: None }.encode(), bytes)?;
        tx.block_data(files.iter().flat_map(|(_, data)| data.clone()).collect::<Vec<u8>>().into())?;
        return tx.block_end(&trailer);
    }
    for ((file, entry), (_, data)) in entries.into_iter().zip(files) {
        let header = BlockHeader::Single { file, entry, index: 0, data: BlockData::Raw };
        tx.block_begin(&header.encode(), data.len() as u64)?;
        for piece in data.chunks(128 << 10) {
            tx.block_data(Bytes::copy_from_slice(piece))?;
        }
        tx.block_end(blake3::hash(data).as_bytes())?;
    }
    Ok(())
}

#[test]
fn an_agent_cannot_write_what_a_pull_did_not_ask_for() {
    for size in [1000, MIB] {
        for (asked, sent) in [
            ("report.txt", &b".bashrc"[..]),
            ("report.txt", b".ssh/authorized_keys"),
            ("deep/*", b".ssh/authorized_keys"),
            ("tree", b"other/x"),
            ("a*/b.h5", b"a.h5"),
        ] {
            let liar = Liar::new(move |tx| send(tx, &[(sent, vec![7; size])]));
            let site = Site::new();
            let pulled = liar.copy(&site).arg(liar.url(asked)).arg(".").run().expect(5);
            assert_eq!(pulled.last("error")["error"]["kind"], "protocol");
            pulled.says("was not asked for");
            assert_eq!(fs::read_dir(site.local()).unwrap().count(), 0, "{asked}");
        }
    }
}

#[test]
fn one_path_offered_twice_is_taken_once_and_never_mixed() {
    for size in [1000, MIB] {
        let liar = Liar::new(move |tx| send(tx, &[(b"report.txt", vec![1; size]), (b"report.txt", vec![2; size])]));
        let site = Site::new();
        let pulled = liar.copy(&site).arg(liar.url("report.txt")).arg(".").run().expect(1);
        assert_eq!((&pulled.summary()["copied"], &pulled.summary()["failed"]), (&1.into(), &1.into()));
        pulled.says("two files of this name");
        assert!(fs::read(site.local().join("report.txt")).unwrap() == vec![1; size], "{size}");
    }
}

#[test]
fn where_case_is_folded_the_second_of_two_names_fails_and_the_first_stays() {
    let site = Site::new();
    let agent = site.agent();
    let (upper, lower) = (Seeded::new(1).bytes(MIB), Seeded::new(2).bytes(10));
    // Both sizes in both orders, and two Unicode forms of one name. Names are listed in byte order.
    for (name, bytes) in
        [("A", &upper), ("B", &lower), ("a", &lower), ("b", &upper), ("e\u{301}", &lower), ("\u{e9}", &upper)]
    {
        write(&site.root().join("tree").join(name), bytes);
    }
    let (folding, _top) = match crate::disks::folding() {
        Ok(folding) => folding,
        Err(reason) => {
            println!("left out: no directory here folds case: {reason}");
            return;
        }
    };
    let target = folding.point().join("d");
    for _ in 0..2 {
        let outcome = site.copy(&agent).arg(agent.url("tree/.")).arg(&target).run().expect(1);
        outcome.says("takes both names for one");
        assert_eq!(outcome.summary()["failed"], 3);
        assert!(std::fs::read(target.join("A")).unwrap() == upper && std::fs::read(target.join("B")).unwrap() == lower);
    }
}
