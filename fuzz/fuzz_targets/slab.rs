//! Fuzzes the slab decoder. The decoder never panics and never writes beyond its output buffer. Encoded data decodes to
//! the original.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_proto::compress::{Decoder, Encoder, Method, SlabEncoding, Width};

fuzz_target!(|input: (u8, u16, &[u8])| {
    let (code, length, bytes) = input;
    let Ok(encoding) = SlabEncoding::from_code(code) else { return };
    let mut decoder = Decoder::default();
    // Any input from a peer, into a buffer of any size.
    let mut room = vec![0x5a; usize::from(length) + 16];
    let _ = decoder.decode(encoding, bytes, &mut room[..usize::from(length)]);
    assert!(room[usize::from(length)..].iter().all(|byte| *byte == 0x5a), "written beyond its room");
    let method = match encoding {
        SlabEncoding::Raw => Method::Raw,
        SlabEncoding::Zstd => Method::Zstd { level: 1 },
        SlabEncoding::Shuffled(width) => Method::Shuffled { width, level: if width == Width::Two { -1 } else { 1 } },
    };
    let mut encoded = vec![0; bytes.len()];
    let slab = Encoder::default().encode(method, bytes, &mut encoded);
    let carried = if slab.encoding == SlabEncoding::Raw { bytes } else { &encoded[..slab.length as usize] };
    let mut back = vec![0; bytes.len()];
    decoder.decode(slab.encoding, carried, &mut back).expect("our own slab");
    assert_eq!(back, bytes);
});
