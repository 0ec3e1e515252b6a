//! What a TCP lane carries never panics the decoder, and gives the same events however it is cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_net::lane::frame::FrameDecoder;

/// Every event as text, and whether the stream broke the protocol.
fn events(pieces: &[&[u8]]) -> (String, bool) {
    let mut decoder = FrameDecoder::new();
    let mut seen = String::new();
    for piece in pieces {
        let mut rest = *piece;
        loop {
            match decoder.next(&mut rest) {
                Ok(Some(event)) => {
                    let shown = format!("{event:?};");
                    // Data comes in pieces of any size: only that it comes counts.
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
