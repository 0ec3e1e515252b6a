//! Tests a writer that is faster than the path: its data waits in the file, and arrives.

use std::fs::{self, File};
use std::io::Write;

use crate::tree::{MIB, Seeded, assert_same_file};
use crate::{Site, agent, alone, copy, lab, path};

#[test]
fn a_capture_that_outruns_its_path_arrives_whole() {
    let _alone = alone();
    for via in ["tcp", "quic"] {
        let Some(lab) = lab(&format!("follow-{via}"), &path(50, 100), &[]) else { return };
        let site = Site::new();
        let agent = agent(&site, &lab);
        let mut seeded = Seeded::new(1);
        let source = site.local().join("capture.dat");
        let mut capture = File::create(&source).unwrap();
        capture.write_all(&seeded.bytes(MIB)).unwrap();
        let mut following = copy(&site, &lab, &agent, &["--via", via, "--follow", "--rate", "50Mbit"]);
        let mut following = following.arg("capture.dat").arg(agent.url("")).start();
        following.wait_for("a lane", |event| event["event"] == "lane_up");
        // Writes without a pause. The client reports the new size long before the data has arrived.
        for _ in 0..3 {
            capture.write_all(&seeded.bytes(4 * MIB)).unwrap();
            let written = fs::metadata(&source).unwrap().len();
            following.wait_for("what was written", |event| {
                event["event"] == "progress" && event["bytes_known"].as_u64().unwrap() + MIB as u64 >= written
            });
        }
        drop(capture);
        let outcome = following.finish().expect(0);
        assert_same_file(&source, &site.root().join("capture.dat"));
        assert_eq!(outcome.summary()["bytes"], 13 * MIB as u64);
    }
}
