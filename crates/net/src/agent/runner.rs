//! Work of an agent for a command: a thread, and the control session that reports to the command.
//!
//! Stops the work when the command aborts or is gone longer than the linger time. Does not know what the work is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sterna_proto::Error;
use sterna_proto::session::{ControlEvent, ControlSide};

use super::log::SessionLog;
use crate::engine::Cancel;
use crate::latch::Latch;
use crate::session::{ControlEnd, End, Observer, SessionEvent};

/// Work that runs at this agent.
pub(super) struct Runner {
    control: Arc<ControlEnd>,
    cancel: Cancel,
    /// True if this agent is stopping. The work then reports no end, because the command continues at the restarted
    /// agent.
    leaving: AtomicBool,
    ended: Latch,
}

impl Runner {
    /// Starts `work` on a thread called `name`. `cancel` stops it; the session outlives its last lane by `linger`.
    ///
    /// Errors: the host refuses a thread.
    pub(super) fn start(
        name: &str,
        linger: Duration,
        cancel: Cancel,
        log: &Arc<SessionLog>,
        work: impl FnOnce(&Self) + Send + 'static,
    ) -> Result<Arc<Self>, Error> {
        let (stopped, log) = (cancel.clone(), Arc::clone(log));
        let handle = move |event| {
            // The agent sends all other kinds of events, and receives none of them.
            if let ControlEvent::Aborted(error) = event {
                log.session_event(SessionEvent::Aborted(error));
                stopped.cancel();
            }
        };
        let control = ControlEnd::new(ControlSide::Agent, linger, Box::new(handle));
        let (leaving, ended) = (AtomicBool::new(false), Latch::default());
        let runner = Arc::new(Self { control, cancel, leaving, ended });
        let running = Running(Arc::clone(&runner));
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || work(&running.0));
        spawned.map_err(|e| crate::no_thread("start a thread that works for a command", e))?;
        Ok(runner)
    }

    /// Returns the control session.
    pub(super) fn control(&self) -> &Arc<ControlEnd> {
        &self.control
    }

    /// Returns what stops the work.
    pub(super) fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Stops the work without a report of its end, because this agent is stopping.
    pub(super) fn leave(&self, time_max: Duration) {
        self.leaving.store(true, Ordering::Relaxed);
        self.end_within(time_max);
    }

    /// Returns true if this agent is stopping.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Returns true if the work has ended at this agent, which may be later than the end for the command.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_set()
    }

    /// Stops the work and waits for its end, at most for `time_max`.
    pub(super) fn end_within(&self, time_max: Duration) {
        self.cancel.cancel();
        // Work that waits for its command looks again.
        self.control.wake().notify();
        self.ended.wait(time_max);
    }
}

/// Records that the work has ended, also by a panic.
struct Running(Arc<Runner>);

impl Drop for Running {
    fn drop(&mut self) {
        // Has no effect if the work has already reported its end.
        if thread::panicking() {
            self.0.control.fail(crate::internal("a thread that works for a command ended by a panic"));
        }
        self.0.ended.set();
    }
}
