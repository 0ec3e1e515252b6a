//! Sessions of a later release: recorded ones, with everything added that a reader of version 1 has to skip.

use sterna_proto::session::{BlockHeader, Capabilities, Features, FileId, Frame, Hello, Message};
use sterna_proto::wire::{Reader, Writer};
use sterna_proto::{Error, FileEntry};

use crate::recording::{Item, Recording, Step};

/// Type of an optional frame or message, and number of an optional field, that version 1 does not know.
const LATER: u8 = 200;

/// Returns the session as a later release would speak it to a peer of version 1.
pub fn of(recording: &Recording) -> Recording {
    let mut later = Recording { outcomes: recording.outcomes.clone(), ..Recording::default() };
    for Step { side, lane, item } in &recording.steps {
        let mut push = |item| later.steps.push(Step { side: *side, lane: *lane, item });
        match item {
            Item::Frame(frame) => {
                let frame = later_frame(frame);
                let is_hello = matches!(Frame::decode(&frame), Ok(Some(Frame::Hello(_) | Frame::Welcome(_))));
                push(Item::Frame(frame));
                // The first frame of a lane is a hello or a welcome.
                if is_hello {
                    push(Item::Frame(vec![LATER, 1, 2, 3]));
                }
            }
            Item::Block { header, data_len, trailer } => {
                let header = later_header(header, *data_len);
                push(Item::Block { header, data_len: *data_len, trailer: trailer.clone() });
            }
            item => push(item.clone()),
        }
    }
    later
}

/// Returns a field that version 1 does not know.
fn field() -> Vec<u8> {
    [&[LATER, 5][..], b"later"].concat()
}

/// Returns an area with that field, behind reserved attributes of an entry.
fn area() -> Vec<u8> {
    let fields = [&[128, 4][..], b"mila", &[135, 1, 9], &field()].concat();
    let mut w = Writer::default();
    w.bytes(&fields);
    w.into_bytes()
}

fn encoded(entry: &FileEntry) -> Vec<u8> {
    let mut w = Writer::default();
    w.entry(entry);
    w.into_bytes()
}

/// Replaces the empty area at the end of the encoding of each entry.
fn with_attributes(bytes: &[u8], entries: &[&FileEntry]) -> Vec<u8> {
    let (mut later, mut rest) = (Vec::new(), bytes);
    for entry in entries {
        let entry = encoded(entry);
        let at = rest.windows(entry.len()).position(|window| window == entry).expect("the entry that was read");
        later.extend_from_slice(&rest[..at + entry.len() - 1]);
        later.extend(area());
        rest = &rest[at + entry.len()..];
    }
    [&later[..], rest].concat()
}

fn later_header(header: &[u8], data_len: u64) -> Vec<u8> {
    let read = BlockHeader::decode(header, data_len).unwrap();
    let entries: Vec<&FileEntry> = match &read {
        BlockHeader::Single { entry, .. } | BlockHeader::Tail { entry, .. } => vec![entry],
        BlockHeader::Packed { files, .. } => files.iter().map(|(_, entry)| entry).collect(),
    };
    [with_attributes(header, &entries), field()].concat()
}

fn later_frame(frame: &[u8]) -> Vec<u8> {
    let capabilities = Capabilities { lowest: 1, highest: 9, features: Features(u64::MAX) };
    let later = match Frame::decode(frame).unwrap().expect("of version 1") {
        Frame::Hello(hello) => Frame::Hello(Hello { capabilities, ..hello }).encode(),
        Frame::Welcome(_) => Frame::Welcome(capabilities).encode(),
        // Each message follows one that is skipped, so its number doubles.
        Frame::Messages { first, encoded } => {
            return Frame::Messages { first: first * 2, encoded: later_messages(&encoded) }.encode();
        }
        _ => frame.to_vec(),
    };
    [later, field()].concat()
}

fn later_messages(encoded: &[u8]) -> Vec<u8> {
    let known = Message::decode_all(encoded).unwrap();
    let mut r = Reader::new(encoded);
    let mut w = Writer::default();
    for message in &known {
        w.byte(LATER);
        w.bytes(b"a message of a later release");
        w.byte(r.byte().unwrap());
        w.bytes(&[later_body(r.bytes().unwrap(), message), field()].concat());
    }
    w.into_bytes()
}

fn later_body(body: &[u8], message: &Message) -> Vec<u8> {
    match message {
        Message::Offer { entry, .. } | Message::Ended { entry, .. } => with_attributes(body, &[entry]),
        Message::Failed { file, error } => [later_file(*file), later_error(error)].concat(),
        Message::Withdraw { file, error } => [later_file(*file), later_error(error)].concat(),
        Message::Unreadable { error } | Message::Abort { error } => later_error(error),
        _ => body.to_vec(),
    }
}

fn later_file(file: FileId) -> Vec<u8> {
    let mut w = Writer::default();
    w.integer(file.0);
    w.into_bytes()
}

/// Returns the encoding of an error with a setting and a field that version 1 does not know.
fn later_error(error: &Error) -> Vec<u8> {
    let mut settings = Writer::default();
    settings.bytes(b"warp");
    error.settings().iter().for_each(|setting| settings.bytes(setting.name().as_bytes()));
    let mut area = Writer::default();
    area.byte(128);
    area.bytes(&settings.into_bytes());
    area.raw(&field());
    let mut w = Writer::default();
    for code in [error.kind.code(), error.scope.code(), error.phase.code(), error.retry.code()] {
        w.byte(code);
    }
    w.bytes(error.text().as_bytes());
    w.bytes(&area.into_bytes());
    w.into_bytes()
}
