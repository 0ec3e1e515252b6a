//! Binary messages of a test: random bytes, in messages that grow with the bytes sent.

use sterna_proto::Error;
use tungstenite::Bytes;

/// Size of the first messages. Source: the specification.
const MESSAGE_BYTES_FIRST: usize = 1 << 13;

/// Maximum size of a message. Source: `ndt-server`.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// A message grows while it is at most this part of the bytes sent. Source: appendix of the specification.
const GROWS_BELOW: u64 = 16;

/// Returns binary messages to send.
pub(super) fn messages() -> Result<Messages, Error> {
    let mut random = vec![0; MESSAGE_BYTES_MAX];
    getrandom::fill(&mut random).map_err(|e| crate::internal("ask the kernel for random bytes").caused_by(e))?;
    Ok(Messages { random: random.into(), size: MESSAGE_BYTES_FIRST })
}

/// Binary messages that grow with the bytes sent.
pub(super) struct Messages {
    random: Bytes,
    size: usize,
}

impl Messages {
    /// Returns the next message, after this number of bytes.
    pub(super) fn next(&mut self, sent: u64) -> Bytes {
        while self.size < MESSAGE_BYTES_MAX && self.size as u64 <= sent / GROWS_BELOW {
            self.size *= 2;
        }
        self.random.slice(..self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_grow_with_the_bytes_sent() {
        let mut messages = messages().unwrap();
        let sizes = [0, 1 << 16, 1 << 17, 1 << 20, 1 << 30].map(|sent| messages.next(sent).len());
        assert_eq!(sizes, [1 << 13, 1 << 13, 1 << 14, 1 << 17, 1 << 20]);
    }
}
