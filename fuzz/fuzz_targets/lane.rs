//! Fuzzes the frame decoder of a TCP lane. The decoder never panics, and its events do not depend on how the input is
//! split.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_net::lane::frame::FrameDecoder;

/// Returns every event as text, and true if the stream violated the protocol.
fn events(pieces: &[&[u8]]) -> (String, bool) {
    let mut decoder = FrameDecoder::new();
    let mut seen = String::new();
    for piece in pieces {
        let mut rest = *piece;
        loop {
            match decoder.next(&mut rest) {
                Ok(Some(event)) => {
                    let shown = format!("{event:?};");
                    // Data arrives in fragments of any size, so the number of data events is not compared.
                    if !shown.contains("Data") {
                        seen.push_str(&shown);
                    }
                }
                Ok(None) => break,
                Err(_) => return (seen, true),
            }
        }
    }
    (seen, false)
}

fuzz_target!(|input: (u16, &[u8])| {
    let (cut, bytes) = input;
    let (head, tail) = bytes.split_at(usize::from(cut).min(bytes.len()));
    assert_eq!(events(&[bytes]), events(&[head, tail]));
});
