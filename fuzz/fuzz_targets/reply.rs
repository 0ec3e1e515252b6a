//! Fuzzes the response head of a web server. The parser never panics and its result is consistent. A redirect never
//! downgrades from HTTPS.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_net::fuzzing::{web_redirect, web_reply};

fuzz_target!(|bytes: &[u8]| {
    web_reply(bytes);
    if let Ok(location) = std::str::from_utf8(bytes) {
        web_redirect(location);
    }
});
