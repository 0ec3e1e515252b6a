//! Recorded sessions: what travelled on each lane, in order, and the outcomes at both ends.
//!
//! A file holds values of [`sterna_proto::wire`]. The data of blocks is left out, because the session never reads it.

use sterna_proto::Error;
use sterna_proto::session::LaneId;
use sterna_proto::wire::{Reader, Writer};

/// One end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Agent,
}

/// Something that an end sends on a lane, or does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A control frame.
    Frame(Vec<u8>),
    /// A block: its header, the length of its data, and its trailer.
    Block { header: Vec<u8>, data_len: u64, trailer: Vec<u8> },
    /// The lane ends.
    Down,
    /// The driver of the end goes on: it grows files, and reports.
    Turn,
}

/// An item with its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub side: Side,
    pub lane: LaneId,
    pub item: Item,
}

/// A whole session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    pub steps: Vec<Step>,
    /// Outcomes at the client and at the agent, as text, sorted.
    pub outcomes: [Vec<String>; 2],
}

impl Recording {
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.integer(self.steps.len() as u64);
        for Step { side, lane, item } in &self.steps {
            w.byte(u8::from(*side == Side::Agent));
            w.integer(u64::from(lane.0));
            match item {
                Item::Frame(frame) => {
                    w.byte(1);
                    w.bytes(frame);
                }
                Item::Block { header, data_len, trailer } => {
                    w.byte(2);
                    w.bytes(header);
                    w.integer(*data_len);
                    w.bytes(trailer);
                }
                Item::Down => w.byte(3),
                Item::Turn => w.byte(4),
            }
        }
        for outcomes in &self.outcomes {
            w.integer(outcomes.len() as u64);
            outcomes.iter().for_each(|outcome| w.bytes(outcome.as_bytes()));
        }
        w.into_bytes()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut r = Reader::new(bytes);
        let mut recording = Self::default();
        for _ in 0..r.integer()? {
            let side = if r.byte()? == 0 { Side::Client } else { Side::Agent };
            let lane = LaneId(r.integer()? as u32);
            let item = match r.byte()? {
                1 => Item::Frame(r.bytes()?.to_vec()),
                2 => Item::Block { header: r.bytes()?.to_vec(), data_len: r.integer()?, trailer: r.bytes()?.to_vec() },
                3 => Item::Down,
                4 => Item::Turn,
                other => return Err(Error::protocol(format!("recording with an item {other}"))),
            };
            recording.steps.push(Step { side, lane, item });
        }
        for outcomes in &mut recording.outcomes {
            for _ in 0..r.integer()? {
                outcomes.push(String::from_utf8_lossy(r.bytes()?).into_owned());
            }
        }
        r.finish()?;
        Ok(recording)
    }
}
