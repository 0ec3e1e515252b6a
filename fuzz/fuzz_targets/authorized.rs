//! Fuzzes the file of authorized peers. The parser never panics, and grants nothing to a peer without a line. A line of
//! another peer never changes a grant.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_net::identity::{Fingerprint, Rights, grants_in};

fuzz_target!(|text: &str| {
    let roots = ["in".to_owned(), "out".to_owned()];
    let Ok(grants) = grants_in(text, &roots) else { return };
    let other = Fingerprint([7; 32]);
    let more = grants_in(&format!("{text}\n{other} none # added\n"), &roots);
    for (peer, grant) in &grants {
        let names = |line: &str| line.split_whitespace().next().is_some_and(|word| word.parse() == Ok(*peer));
        assert!(text.lines().any(|line| names(line.split('#').next().unwrap_or_default())), "{peer}");
        if let Ok(more) = &more {
            assert_eq!(more.get(peer), Some(grant));
        }
    }
    if !grants.contains_key(&other) {
        assert_eq!(more.map(|more| more[&other].rights("in")).ok(), Some(Rights::None));
    }
});
