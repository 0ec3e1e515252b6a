//! Ends of the lanes of a client: the agent aborts the session of a client that has left, and keeps that of a client
//! that may come back.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sterna_net::identity::Identity;
use sterna_net::lane::quic::{QuicOptions, SharedRate};
use sterna_net::lane::tcp::ConnectOptions;
use sterna_net::lane::{Lane, LaneHandle, LaneSink, LaneTx, quic, tcp};
use sterna_proto::plan::Via;
use sterna_proto::rate::RateContract;
use sterna_proto::session::{Frame, Hello, Message, Overwrite, Request, SessionId};
use sterna_proto::{Checks, Error};

use crate::served::Served;

/// Time after which a test fails that would hang.
const HANG: Duration = Duration::from_secs(120);

/// Lane of a client that the test plays.
struct ClientLane {
    tx: Box<dyn LaneTx>,
    handle: Arc<dyn LaneHandle>,
    frames: Receiver<Frame>,
    reader: JoinHandle<()>,
}

/// Sends the frames of the agent to the test.
struct Frames(Sender<Frame>);

impl LaneSink for Frames {
    fn control(&mut self, frame: &[u8]) -> Result<(), Error> {
        // The test that receives the frames may be over.
        Frame::decode(frame)?.into_iter().for_each(|frame| drop(self.0.send(frame)));
        Ok(())
    }
    fn block_begin(&mut self, _: u64, _: &[u8], _: u64) -> Result<(), Error> {
        Ok(())
    }
    fn block_data(&mut self, _: u64, _: u64, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn block_end(&mut self, _: u64, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn block_abandoned(&mut self, _: u64) -> Result<(), Error> {
        Ok(())
    }
}

impl ClientLane {
    /// Connects a lane of a push, and waits for the welcome of the agent.
    fn join(served: &Served, identity: &Identity, via: Via, rejoin: bool) -> Self {
        let addr = served.addr();
        let Lane { tx, rx, handle, .. } = match via {
            Via::Tcp => tcp::connect(&ConnectOptions::new(addr), identity).unwrap().into_lane(),
            Via::Quic => {
                quic::connect(&QuicOptions::new(addr, SharedRate::new(RateContract::default())), identity).unwrap()
            }
        };
        let (sender, frames) = channel();
        let reader = thread::spawn(move || drop(rx.run(&mut Frames(sender))));
        let mut lane = Self { tx, handle, frames, reader };
        let request = Request::Push {
            destination: b"to/".to_vec(),
            several: true,
            overwrite: Overwrite::Always,
            checks: Checks::NONE,
            expect: None,
            dry_run: false,
            targets: Vec::new(),
        };
        lane.send(&Frame::Hello(Hello { rejoin, ..Hello::new(SessionId([1; 16]), request) }));
        lane.wait_for(|frame| matches!(frame, Frame::Welcome(_)));
        lane
    }

    fn send(&mut self, frame: &Frame) {
        self.tx.control(&frame.encode()).and_then(|()| self.tx.flush()).unwrap();
    }

    fn wait_for(&self, is_it: impl Fn(&Frame) -> bool) {
        while !is_it(&self.frames.recv_timeout(HANG).expect("a frame of the agent")) {}
    }

    /// Closes the lane in order, and waits until the agent has closed it too.
    fn close(self, reason: &str) {
        self.handle.close(reason);
        self.reader.join().unwrap();
    }
}

#[test]
fn a_client_that_has_left_without_a_word_leaves_no_session() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path());
    for via in [Via::Tcp, Via::Quic] {
        let identity = Identity::ephemeral().unwrap();
        let lanes = [false, true].map(|rejoin| ClientLane::join(&served, &identity, via, rejoin));
        // The reason of one lane is enough.
        for (lane, reason) in lanes.into_iter().zip(["session over", "lane ended"]) {
            lane.close(reason);
        }
        served.wait_until_idle();
    }
}

#[test]
fn a_client_whose_lanes_have_ended_may_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path());
    for via in [Via::Tcp, Via::Quic] {
        let identity = Identity::ephemeral().unwrap();
        ClientLane::join(&served, &identity, via, false).close("lane ended");
        let mut again = ClientLane::join(&served, &identity, via, true);
        // Only a live session finishes the copy.
        again.send(&Frame::Messages { first: 0, encoded: Message::OffersEnd { files: 0, bytes: 0 }.encode() });
        again.wait_for(|frame| match frame {
            Frame::Messages { encoded, .. } => {
                Message::decode_all(encoded).unwrap().iter().any(|message| matches!(message, Message::Finished))
            }
            _ => false,
        });
        again.close("session over");
        served.wait_until_idle();
    }
}
