//! Fuzzes control frames. The decoder never panics. A decoded frame and its messages encode to bytes that decode to
//! equal values.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_proto::session::{Frame, Message};

fuzz_target!(|bytes: &[u8]| {
    let Ok(Some(frame)) = Frame::decode(bytes) else { return };
    let again = Frame::decode(&frame.encode()).map(|again| format!("{again:?}"));
    assert_eq!(again.ok(), Some(format!("{:?}", Some(&frame))));
    if let Frame::Messages { encoded, .. } = &frame
        && let Ok(messages) = Message::decode_all(encoded)
    {
        let written: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
        let again = Message::decode_all(&written).map(|again| format!("{again:?}"));
        assert_eq!(again.ok(), Some(format!("{messages:?}")));
    }
});
