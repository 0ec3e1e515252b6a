//! How long a thread has computed, or waited for a processor to do so, as another thread may ask.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The account that the kernel keeps of a thread (`/proc/PID/task/TID/schedstat`).
#[derive(Debug)]
pub struct ThreadClock(File);

impl ThreadClock {
    /// The clock of the calling thread; `None` where the kernel keeps no such account.
    pub fn of_this_thread() -> Option<Self> {
        File::open("/proc/thread-self/schedstat").ok().map(Self)
    }

    /// Time that the thread wanted a processor: had one, or waited for one. `None` once it has ended.
    ///
    /// Cost: one system call of some microseconds.
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
