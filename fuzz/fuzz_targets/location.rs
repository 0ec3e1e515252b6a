//! Fuzzes locations. The parser never panics, and the text of a parsed location parses to an equal location.
#![no_main]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use libfuzzer_sys::fuzz_target;
use sterna_proto::Location;
use sterna_proto::location::RemoteLocation;

fuzz_target!(|bytes: &[u8]| {
    let Ok(Location::Remote(remote)) = Location::parse(OsStr::from_bytes(bytes)) else { return };
    let shown = remote.to_string();
    assert_eq!(RemoteLocation::parse(shown.as_bytes()).ok(), Some(remote), "{shown}");
});
