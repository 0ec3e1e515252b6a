//! Receiving half of a TCP lane.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sterna_proto::Error;

use super::record::{Opener, Run, RunEnd};
use super::shared::{Ending, Half, Shared};
use crate::lane::frame::{FrameDecoder, FrameEvent};
use crate::lane::{LaneRx, LaneSink};
use crate::sys;

/// Number of path checks within the time after which a path is dead, while no data arrives.
const PATH_CHECKS: u32 = 6;

/// Receiving half, as the driver uses it.
pub(super) struct TcpRx {
    pub(super) shared: Arc<Shared>,
    pub(super) opener: Opener,
    pub(super) dead_after: Duration,
}

impl LaneRx for TcpRx {
    fn run(mut self: Box<Self>, sink: &mut dyn LaneSink) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let _reading = shared.start_reading();
        let mut decoder = FrameDecoder::new();
        let result = self.read_all(&mut decoder, sink);
        let ending = shared.ending();
        match (result, ending) {
            (Ok(()), _) => close_open_block(&decoder, sink),
            // One end has closed the lane. The way in which the connection then ended is not an error.
            (Err(Failure::Lane(_)), Some(Ending::ByUs { .. } | Ending::ByPeer { .. })) => {
                close_open_block(&decoder, sink)
            }
            (Err(Failure::Lane(error)), _) => Err(error),
            (Err(Failure::Reported(error)), _) => {
                // The sink failed or the peer broke the protocol of the lane. The peer gets the reason if it still
                // reads.
                shared.close(error.text());
                if let Some(Ending::ByUs { deadline, .. }) = shared.ending() {
                    shared.drain(deadline);
                }
                Err(error)
            }
        }
    }
}

/// Reason why the reading stopped; it decides if the peer gets a report.
enum Failure {
    /// The lane is gone.
    Lane(Error),
    /// The lane still works, and this end reports the error to the peer.
    Reported(Error),
}

/// State of the peer's direction: open while the peer may send more.
enum Progress {
    Open,
    Closed,
}

/// Reports to the sink that a block which was open at an orderly end stays incomplete.
fn close_open_block(decoder: &FrameDecoder, sink: &mut dyn LaneSink) -> Result<(), Error> {
    decoder.open_block().map_or(Ok(()), |block| sink.block_abandoned(block))
}

impl TcpRx {
    /// Reads until the peer closes its direction.
    fn read_all(&mut self, decoder: &mut FrameDecoder, sink: &mut dyn LaneSink) -> Result<(), Failure> {
        loop {
            if let Progress::Closed = self.hand_on(decoder, sink)? {
                return Ok(());
            }
            self.shared.listens.store(true, Ordering::Relaxed);
            let count = self.read_some().map_err(Failure::Lane)?;
            self.shared.listens.store(false, Ordering::Relaxed);
            self.opener.filled(count);
        }
    }

    /// Passes on all complete records that were read.
    fn hand_on(&mut self, decoder: &mut FrameDecoder, sink: &mut dyn LaneSink) -> Result<Progress, Failure> {
        loop {
            let run = self.opener.open().map_err(Failure::Reported)?;
            self.hand_on_run(&run, decoder, sink).map_err(Failure::Reported)?;
            match run.end {
                RunEnd::NeedMore => return Ok(Progress::Open),
                RunEnd::KeyUpdate { requested } => {
                    self.opener.update_key(self.shared.connection.next_rx_key(requested).map_err(Failure::Reported)?);
                }
                RunEnd::CloseNotify => {
                    // Has no effect after a close frame, which carried a reason.
                    self.shared.closed_by_peer("");
                    return Ok(Progress::Closed);
                }
            }
        }
    }

    fn hand_on_run(&self, run: &Run, decoder: &mut FrameDecoder, sink: &mut dyn LaneSink) -> Result<(), Error> {
        let mut plaintext = self.opener.plaintext(run);
        while let Some(event) = decoder.next(&mut plaintext)? {
            match event {
                FrameEvent::Control(frame) => sink.control(frame)?,
                FrameEvent::BlockBegin { block, header, data_len } => sink.block_begin(block, header, data_len)?,
                FrameEvent::Data { block, offset, data } => sink.block_data(block, offset, data)?,
                FrameEvent::BlockEnd { block, trailer } => sink.block_end(block, trailer)?,
                FrameEvent::Abandoned { block } => sink.block_abandoned(block)?,
                FrameEvent::Alive => {}
                FrameEvent::Closed { reason } => self.shared.closed_by_peer(reason),
            }
        }
        Ok(())
    }

    /// Reads the available bytes; checks the path while there are none.
    fn read_some(&mut self) -> Result<usize, Error> {
        let mut watch = PathMonitor::new(self.dead_after);
        let waiting_since = Instant::now();
        loop {
            self.arm_timeout(watch.interval())?;
            match (&self.shared.connection.stream).read(self.opener.space()) {
                Ok(0) => return Err(self.shared.cut(Half::Receiving, &io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let info = sys::tcp_info(&self.shared.connection.stream)
                        .map_err(|e| self.shared.cut(Half::Receiving, &e))?;
                    if let Some(silence) = watch.look(&info, Instant::now()) {
                        let what =
                            format!("the path is dead: nothing was acknowledged for {:.0} s", silence.as_secs_f64());
                        return Err(self.shared.cut_because(what));
                    }
                    // The peer's kernel may acknowledge data for a long time. A live peer process sends a sign of
                    // life.
                    if waiting_since.elapsed() >= self.dead_after {
                        let what =
                            format!("the peer is stuck: not a word from it for {:.0} s", self.dead_after.as_secs_f64());
                        return Err(self.shared.cut_because(what));
                    }
                }
                Err(error) => return Err(self.shared.cut(Half::Receiving, &error)),
            }
        }
    }

    /// Sets the timeout of the next read: until the next path check, or until the close deadline if that is
    /// earlier.
    fn arm_timeout(&self, interval: Duration) -> Result<(), Error> {
        let timeout = match self.shared.ending() {
            Some(Ending::ByUs { deadline, .. }) => deadline.saturating_duration_since(Instant::now()).min(interval),
            _ => interval,
        };
        if timeout.is_zero() {
            return Err(self.shared.cut(Half::Receiving, &io::ErrorKind::TimedOut.into()));
        }
        self.shared.connection.stream.set_read_timeout(Some(timeout)).map_err(|e| self.shared.cut(Half::Receiving, &e))
    }
}

/// Detects a dead path from the kernel's state of the connection.
///
/// Does not use `TCP_USER_TIMEOUT`, which also ends the lane of a live peer that does not read for a while. Does
/// not use the kernel's timeout of 15 minutes either. A path is dead when data, or probes of a closed window, wait
/// for an acknowledgement and none arrives for the given time. An outage that ends before that costs nothing.
#[derive(Debug)]
struct PathMonitor {
    dead_after: Duration,
    silent_since: Option<Instant>,
}

impl PathMonitor {
    /// Unanswered probes of a closed window that count as waiting. Reason: one probe is always in flight.
    const PROBES_WAITING: u8 = 2;

    fn new(dead_after: Duration) -> Self {
        Self { dead_after, silent_since: None }
    }

    fn interval(&self) -> Duration {
        (self.dead_after / PATH_CHECKS).max(Duration::from_millis(10))
    }

    /// Checks the connection. Returns the time for which the path has been silent, once it reaches the limit.
    fn look(&mut self, info: &sys::TcpInfo, now: Instant) -> Option<Duration> {
        let is_waiting = info.unacked > 0 || info.probes >= Self::PROBES_WAITING;
        if !is_waiting || info.since_ack_received < self.interval() {
            self.silent_since = None;
            return None;
        }
        let silence = now.saturating_duration_since(*self.silent_since.get_or_insert(now));
        (silence >= self.dead_after).then_some(silence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD_AFTER: Duration = Duration::from_secs(30);

    /// Checks at every interval a connection with the state `info` at each time. Returns the time at which it is
    /// found dead.
    fn dead_at(info: impl Fn(Duration) -> sys::TcpInfo) -> Option<Duration> {
        let mut watch = PathMonitor::new(DEAD_AFTER);
        let start = Instant::now();
        let times = (1..1000).map(|look| watch.interval() * look).collect::<Vec<_>>();
        times.into_iter().find(|time| watch.look(&info(*time), start + *time).is_some())
    }

    #[test]
    fn a_silent_path_is_dead_in_time_and_not_before() {
        let silent = |time| sys::TcpInfo { unacked: 10, since_ack_received: time, ..Default::default() };
        let found = dead_at(silent).unwrap();
        assert!(found >= DEAD_AFTER && found <= DEAD_AFTER * 3 / 2, "{found:?}");
        let closed_window = |time| sys::TcpInfo { probes: 3, since_ack_received: time, ..Default::default() };
        assert!(dead_at(closed_window).is_some());
    }

    #[test]
    fn an_idle_lane_and_a_peer_that_does_not_read_are_alive() {
        let idle = |time| sys::TcpInfo { since_ack_received: time, ..Default::default() };
        assert_eq!(dead_at(idle), None);
        // The window is closed. The peer answers every probe, and the probes are up to two minutes apart.
        let not_reading = |time| sys::TcpInfo { probes: 1, since_ack_received: time, ..Default::default() };
        assert_eq!(dead_at(not_reading), None);
    }

    #[test]
    fn outages_of_ten_seconds_and_first_data_after_an_hour_are_survived() {
        // The kernel retries 15 s after the start of the outage and gets the answer 660 ms later.
        let outage = |time: Duration| {
            let since_ack_received = Duration::from_millis(time.as_millis() as u64 % 15_660);
            sys::TcpInfo { unacked: 10, since_ack_received, ..Default::default() }
        };
        assert_eq!(dead_at(outage), None);
        let late = |time: Duration| {
            let hour = Duration::from_secs(3600);
            let since_ack_received = if time < Duration::from_secs(6) { hour } else { Duration::ZERO };
            sys::TcpInfo { unacked: 1, since_ack_received, ..Default::default() }
        };
        assert_eq!(dead_at(late), None);
    }
}
