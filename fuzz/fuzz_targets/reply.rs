//! The head of a web server's answer never panics, and what is read of it does not contradict itself; a redirect never leaves encryption.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_net::fuzzing::{web_redirect, web_reply};

fuzz_target!(|bytes: &[u8]| {
    web_reply(bytes);
    if let Ok(location) = std::str::from_utf8(bytes) {
        web_redirect(location);
    }
});
