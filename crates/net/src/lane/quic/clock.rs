//! Runtime of the engine: tokio, with timers that fire early rather than late.
//!
//! Timers of tokio fire up to 2 ms late. A lane that is paced in bursts of 1.6 ms loses the credit of the time that
//! it waits too long: 250 Mbit/s became 184 Mbit/s. A timer that fires early costs the engine one look at its
//! clock.

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use noq::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::time::{Sleep, sleep_until};

/// Tokio runtime with [`EarlyTimer`]s.
#[derive(Debug)]
pub(super) struct LaneRuntime;

impl Runtime for LaneRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(EarlyTimer(Box::pin(sleep_until(early(at).into()))))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Box<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }
}

/// Timer that fires up to two ticks early. A timer set less than a tick ahead fires up to two ticks late.
#[derive(Debug)]
struct EarlyTimer(Pin<Box<Sleep>>);

impl AsyncTimer for EarlyTimer {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        self.0.as_mut().reset(early(at).into());
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Future::poll(self.0.as_mut(), cx)
    }
}

/// Returns the time to fire instead of at `at`. A time nearer than a tick stays unchanged. Reason: the engine sets
/// a timer that fired early again, and must not spin.
fn early(at: Instant) -> Instant {
    let now = Instant::now();
    if at.saturating_duration_since(now) > TICK { (at - TICK * 2).max(now) } else { at }
}

/// Granularity of tokio's timers and of the kernel's wait. Both are rounded up to a multiple of it.
const TICK: Duration = Duration::from_millis(1);
