//! Cancellation of work from outside: a flag that many threads read, and calls that are made when the flag is set.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::latch::Latch;

/// Ends work from outside. Clones end the same work.
#[derive(Clone, Default)]
pub struct Cancel(Arc<State>);

#[derive(Default)]
struct State {
    latch: Latch,
    calls: Mutex<Calls>,
    /// Parent, which lives as long as its children, and the place among its calls.
    at_parent: OnceLock<(Cancel, OnCancel)>,
}

/// Calls that wait for the cancellation.
#[derive(Default)]
struct Calls {
    added: u64,
    waiting: BTreeMap<u64, Box<dyn FnOnce() + Send>>,
}

/// Place of a call that waits for the cancellation. Dropping it removes the call.
#[must_use]
pub struct OnCancel {
    state: Weak<State>,
    number: u64,
}

impl Cancel {
    /// Ends the work, also work that starts later.
    pub fn cancel(&self) {
        self.0.latch.set();
        // A call that is added later finds the flag set.
        let waiting = std::mem::take(&mut self.0.calls.lock().waiting);
        waiting.into_values().for_each(|call| call());
    }

    /// Returns true if the work must end.
    pub fn is_cancelled(&self) -> bool {
        self.0.latch.is_set()
    }

    /// Returns the cancellation of a part of the work. It is cancelled together with this one, or alone.
    #[must_use]
    pub fn child(&self) -> Self {
        let child = Self::default();
        let state = Arc::downgrade(&child.0);
        let at_parent = self.on_cancel(move || {
            if let Some(state) = state.upgrade() {
                Self(state).cancel();
            }
        });
        // The cell is empty: the child was created above.
        let _ = child.0.at_parent.set((self.clone(), at_parent));
        child
    }

    /// Calls `call` at the cancellation, on the thread that cancels. If the work is cancelled already, calls it at
    /// once, on this thread. `call` must not block.
    pub fn on_cancel(&self, call: impl FnOnce() + Send + 'static) -> OnCancel {
        let mut calls = self.0.calls.lock();
        let number = calls.added;
        calls.added += 1;
        if self.is_cancelled() {
            drop(calls);
            call();
        } else {
            calls.waiting.insert(number, Box::new(call));
        }
        OnCancel { state: Arc::downgrade(&self.0), number }
    }

    /// Sends `message` at the cancellation, if anybody else can still send to that channel.
    pub(crate) fn send_to<T: Send + 'static>(&self, sender: &Arc<Sender<T>>, message: T) -> OnCancel {
        let sender = Arc::downgrade(sender);
        self.on_cancel(move || {
            if let Some(sender) = sender.upgrade() {
                // Nobody may be waiting any more.
                let _ = sender.send(message);
            }
        })
    }

    /// Waits for `time`, or until the cancellation.
    pub fn wait(&self, time: Duration) {
        self.0.latch.wait(time);
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}

impl Drop for OnCancel {
    fn drop(&mut self) {
        let removed = self.state.upgrade().and_then(|state| state.calls.lock().waiting.remove(&self.number));
        // The call may own a cancellation, whose drop takes the lock.
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn each_call_is_made_once_unless_its_place_was_dropped() {
        let (cancel, count) = (Cancel::default(), Arc::new(AtomicU32::new(0)));
        let counted = |add| {
            let count = Arc::clone(&count);
            move || {
                count.fetch_add(add, Ordering::Relaxed);
            }
        };
        let _kept = cancel.on_cancel(counted(1));
        drop(cancel.on_cancel(counted(10)));
        assert!(!cancel.is_cancelled());
        cancel.clone().cancel();
        cancel.cancel();
        assert!(cancel.is_cancelled());
        let _late = cancel.on_cancel(counted(100));
        assert_eq!(count.load(Ordering::Relaxed), 101);
    }

    #[test]
    fn a_child_is_cancelled_with_its_parent_and_not_the_other_way_round() {
        let parent = Cancel::default();
        let (one, other) = (parent.child(), parent.child());
        one.cancel();
        assert!(one.is_cancelled() && !other.is_cancelled() && !parent.is_cancelled());
        let grandchild = parent.child().child();
        parent.cancel();
        assert!(other.is_cancelled() && grandchild.is_cancelled() && parent.child().is_cancelled());
    }

    #[test]
    fn children_that_are_gone_leave_nothing_at_their_parent() {
        let parent = Cancel::default();
        let kept = parent.child();
        (0..100).for_each(|_| drop(parent.child()));
        assert_eq!(parent.0.calls.lock().waiting.len(), 1);
        drop((parent, kept.clone()));
        assert!(!kept.is_cancelled());
    }

    #[test]
    fn waits_of_other_threads_end() {
        const FOREVER: Duration = Duration::from_secs(3600);
        let cancel = Cancel::default();
        let (sender, receiver) = channel();
        let sender = Arc::new(sender);
        let message = cancel.send_to(&sender, 7);
        let waiter = cancel.clone();
        let thread = thread::spawn(move || waiter.wait(FOREVER));
        cancel.cancel();
        thread.join().unwrap();
        assert_eq!(receiver.recv(), Ok(7));
        // The message alone keeps no channel open.
        let unsent = Cancel::default().send_to(&sender, 8);
        drop(sender);
        assert!(receiver.recv().is_err());
        drop((message, unsent));
    }
}
