//! Fuzzes the file of learned paths. The parser never panics, and its records round-trip through their text form.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_proto::path_cache::{PathRecords, PathRecord};

fuzz_target!(|text: &str| {
    let memory = PathRecords::parse(text);
    assert_eq!(PathRecords::parse(&memory.to_text()), memory);
    for record in text.lines().filter_map(|line| line.parse::<PathRecord>().ok()) {
        let mut learnt = memory.clone();
        learnt.learn(record);
        let recalled = learnt.recall(&record.key, record.at);
        assert!(recalled.iter().all(|found| found.key == record.key));
        assert_eq!(PathRecords::parse(&learnt.to_text()), learnt);
    }
});
