//! The runtime as the engine sees it: tokio, with timers that come early rather than late.
//!
//! Timers of tokio end up to 2 ms after their time. A lane that is paced in bursts of 1.6 ms would lose the credit of what it waits too
//! long: 250 Mbit/s came out as 184. One that ends early costs the engine a look at its clock.

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use noq::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::time::{Sleep, sleep_until};

/// Tokio with [`EarlyTimer`]s.
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

/// A timer that ends up to two ticks before its time, or, set less than a tick ahead, up to two after it.
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

/// When to end instead of at `at`. What is nearer than a tick is not made earlier: the engine sets a timer that came early once more, and is not to
/// spin.
fn early(at: Instant) -> Instant {
    let now = Instant::now();
    if at.saturating_duration_since(now) > TICK { (at - TICK * 2).max(now) } else { at }
}

/// What tokio's timers are a multiple of; so is how long the kernel is asked to wait, and both are rounded up.
const TICK: Duration = Duration::from_millis(1);
