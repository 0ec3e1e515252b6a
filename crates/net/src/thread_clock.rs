//! Time that a thread has computed or has waited for a processor, readable from another thread.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Scheduler statistics that the kernel keeps for a thread (`/proc/PID/task/TID/schedstat`).
#[derive(Debug)]
pub struct ThreadClock(File);

impl ThreadClock {
    /// Opens the clock of the calling thread; `None` if the kernel does not keep these statistics.
    pub fn of_this_thread() -> Option<Self> {
        File::open("/proc/thread-self/schedstat").ok().map(Self)
    }

    /// Returns the time in which the thread had a processor or waited for one. `None` after the thread has ended.
    ///
    /// Cost: one system call of a few microseconds.
    pub fn wanted(&self) -> Option<Duration> {
        let mut text = [0; 96];
        let length = self.0.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..length]).ok()?;
        let mut numbers = text.split_whitespace().map(str::parse::<u64>);
        let (computed, waited) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some(Duration::from_nanos(computed.saturating_add(waited)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_computes_is_seen_from_another() {
        let Some(clock) = ThreadClock::of_this_thread() else { return };
        let before = clock.wanted().unwrap();
        let mut value = 1_u64;
        while clock.wanted().unwrap() == before {
            value = (0..100_000).fold(value, |value, index| value.rotate_left(5) ^ index);
        }
        assert_ne!(value, 0);
        let seen = std::thread::scope(|scope| scope.spawn(|| clock.wanted()).join());
        assert!(seen.unwrap().unwrap() > before);
    }
}
