//! Waits for a socket within the runtime, for one direction only and only while it is needed.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Socket that the runtime watches until this value is dropped.
pub type Readiness = AsyncFd<Arc<UdpSocket>>;

/// Watches `socket`, which must be non-blocking, for `interest`. Must be called within a runtime. A descriptor can be
/// watched only once at a time.
///
/// Errors: those of the system.
pub fn readiness_of(socket: &Arc<UdpSocket>, interest: Interest) -> io::Result<Readiness> {
    // SAFETY: the shared socket keeps its only descriptor open for as long as the `AsyncFd` holds the socket.
    #[allow(unsafe_code)]
    let watch = unsafe { AsyncFd::register_with_interest(Arc::clone(socket), interest) };
    watch.map_err(io::Error::from)
}
