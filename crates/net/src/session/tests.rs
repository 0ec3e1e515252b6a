//! Tests of what lanes and their session owe each other when a thread panics or a lane is slow to close.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
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

/// A lane whose close takes until every other one closes too.
struct SlowToClose {
    together: Arc<Barrier>,
    closed: AtomicBool,
}

impl LaneHandle for SlowToClose {
    fn transport(&self) -> Transport {
        Transport::Tcp
    }
    fn local_addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], 1).into()
    }
    fn peer_addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], 2).into()
    }
    fn stats(&self) -> LaneStats {
        LaneStats::default()
    }
    fn set_rate(&self, _: Option<BitRate>) {}
    fn close(&self, _: &str) {
        self.together.wait();
        self.closed.store(true, Ordering::Relaxed);
    }
}

#[test]
fn lanes_that_are_slow_to_close_do_not_wait_for_each_other() {
    let together = Arc::new(Barrier::new(8));
    let lane = || Arc::new(SlowToClose { together: Arc::clone(&together), closed: AtomicBool::new(false) });
    let lanes: Vec<Arc<SlowToClose>> = (0..8).map(|_| lane()).collect();
    close_all(lanes.iter().map(|lane| Arc::clone(lane) as Arc<dyn LaneHandle>), "over");
    assert!(lanes.iter().all(|lane| lane.closed.load(Ordering::Relaxed)));
}
