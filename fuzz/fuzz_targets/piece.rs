//! The decoder of pieces never panics and never writes beyond the room it is given, and what is encoded decodes to what it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_proto::compress::{Decoder, Encoder, Method, PieceEncoding, Width};

fuzz_target!(|input: (u8, u16, &[u8])| {
    let (code, length, bytes) = input;
    let Ok(encoding) = PieceEncoding::from_code(code) else { return };
    let mut decoder = Decoder::default();
    // Whatever a peer sends, in a room of any size.
    let mut room = vec![0x5a; usize::from(length) + 16];
    let _ = decoder.decode(encoding, bytes, &mut room[..usize::from(length)]);
    assert!(room[usize::from(length)..].iter().all(|byte| *byte == 0x5a), "written beyond its room");
    let method = match encoding {
        PieceEncoding::Raw => Method::Raw,
        PieceEncoding::Zstd => Method::Zstd { level: 1 },
        PieceEncoding::Shuffled(width) => Method::Shuffled { width, level: if width == Width::Two { -1 } else { 1 } },
    };
    let mut encoded = vec![0; bytes.len()];
    let piece = Encoder::default().encode(method, bytes, &mut encoded);
    let carried = if piece.encoding == PieceEncoding::Raw { bytes } else { &encoded[..piece.length as usize] };
    let mut back = vec![0; bytes.len()];
    decoder.decode(piece.encoding, carried, &mut back).expect("our own piece");
    assert_eq!(back, bytes);
});
