//! Tests of what lanes and their session owe each other when a thread panics.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;

use super::*;
use crate::buffer::BufferPool;
use crate::identity::Fingerprint;
use crate::lane::{LaneRx, LaneStats};

struct Silent;

impl Observer for Silent {
    fn session_event(&self, _: SessionEvent) {}
}

/// A lane without a transport, which knows whether it was closed.
#[derive(Default)]
struct Unplugged {
    is_closed: AtomicBool,
}

impl LaneHandle for Unplugged {
    fn transport(&self) -> Transport {
        Transport::Tcp
    }
    fn local_addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], 1).into()
    }
    fn peer_addr(&self) -> SocketAddr {
        self.local_addr()
    }
    fn stats(&self) -> LaneStats {
        LaneStats::default()
    }
    fn set_rate(&self, _: Option<BitRate>) {}
    fn close(&self, _: &str) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}

/// Panics when it is fed.
struct PanickingTx;

impl LaneTx for PanickingTx {
    fn control(&mut self, _: &[u8]) -> Result<(), Error> {
        panic!("a bug in the feeding half of a lane");
    }
    fn block_begin(&mut self, _: &[u8], _: u64) -> Result<(), Error> {
        Ok(())
    }
    fn block_data(&mut self, _: bytes::Bytes) -> Result<(), Error> {
        Ok(())
    }
    fn block_end(&mut self, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn block_abandon(&mut self) -> Result<(), Error> {
        Ok(())
    }
    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Reads until the lane is closed, and then ends in order or by a panic.
struct ClosedRx {
    lane: Arc<Unplugged>,
    panics: bool,
}

impl LaneRx for ClosedRx {
    fn run(self: Box<Self>, _: &mut dyn LaneSink) -> Result<(), Error> {
        while !self.panics && !self.lane.is_closed.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        assert!(!self.panics, "a bug in the reading half of a lane");
        Ok(())
    }
}

#[test]
fn a_panic_of_either_half_takes_the_lane_down() {
    for panics in [true, false] {
        let pool = BufferPool::new();
        let linger = Duration::from_secs(600);
        let end = Sender::start(Vec::new(), linger, false, Arc::default(), pool, Arc::new(Silent)).unwrap();
        let handle = Arc::new(Unplugged::default());
        let lane = Lane {
            peer: Fingerprint([0; 32]),
            tx: Box::new(PanickingTx),
            rx: Box::new(ClosedRx { lane: Arc::clone(&handle), panics }),
            handle: Arc::clone(&handle) as Arc<dyn LaneHandle>,
        };
        let (joined, id) = (Arc::clone(&end) as Arc<dyn End>, LaneId(1));
        let first = Some(Frame::Welcome);
        let ended = catch_unwind(AssertUnwindSafe(|| attach(joined, id, lane, first, &|| {})));
        assert_eq!(ended.is_err(), panics);
        assert!(handle.is_closed.load(Ordering::Relaxed));
        assert_eq!(end.progress().lanes, 0, "panics: {panics}");
    }
}
