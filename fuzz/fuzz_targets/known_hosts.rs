//! Fuzzes the file of known hosts. The parser never panics. A host whose line is added matches its key and no other.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_net::identity::{Fingerprint, KnownHost, KnownHosts};

fuzz_target!(|text: &str| {
    let (host, key, other) = ("host.example:7373", Fingerprint([7; 32]), Fingerprint([8; 32]));
    let Ok(before) = KnownHosts::find_in(text, host, &key) else { return };
    let text = format!("{text}\n{host} {key}\n");
    assert_eq!(KnownHosts::find_in(&text, host, &key).ok(), Some(KnownHost::Match));
    if before == KnownHost::Unknown {
        assert_eq!(KnownHosts::find_in(&text, host, &other).ok(), Some(KnownHost::Changed { expected: key }));
    }
});
