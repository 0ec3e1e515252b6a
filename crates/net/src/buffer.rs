//! Pooled buffers: the memory that file bytes pass through on their way to a lane.
//!
//! A buffer is taken from the pool, filled, frozen into [`bytes::Bytes`], and handed to a transport. When the transport
//! drops the last reference, the buffer returns to the pool. The pool grows to the largest number of buffers in use at
//! once, at most `KEPT_MAX`, and never shrinks.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use sterna_proto::Error;

/// Maximum number of free buffers in the pool. Reason: 512 buffers of 128 KiB are 64 MiB, the memory that a session may
/// use besides the BDP of its path.
const KEPT_MAX: usize = 512;

/// Smallest read, in bytes, for which a buffer may be replaced by a smaller one. Reason: lanes take no smaller reads,
/// except the last one of a block. That one is mostly shorter, and must not discard the buffer.
const SMALLER_FROM: usize = 32 << 10;

/// Pool of buffers of about equal size.
#[derive(Default)]
pub struct BufferPool {
    free: Mutex<Vec<Vec<u8>>>,
}

impl BufferPool {
    /// Creates an empty pool.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Takes an empty buffer.
    pub fn take(self: &Arc<Self>) -> PooledBuffer {
        let bytes = self.free.lock().pop().unwrap_or_default();
        PooledBuffer { bytes, used: 0, pool: Arc::clone(self) }
    }
}

/// Buffer that returns to its pool when it is dropped.
pub struct PooledBuffer {
    /// Stays at its full length from use to use, so that it is zeroed once and not for every block.
    bytes: Vec<u8>,
    used: usize,
    pool: Arc<BufferPool>,
}

impl PooledBuffer {
    /// Makes the buffer `size` bytes long and lets `read` fill it. The buffer still holds old bytes, so `read` must
    /// fill all of it or fail.
    pub fn fill(&mut self, size: usize, read: impl FnOnce(&mut [u8]) -> Result<(), Error>) -> Result<(), Error> {
        if self.bytes.len() < size {
            self.bytes.resize(size, 0);
        } else if size >= SMALLER_FROM && self.bytes.len() >= 4 * size {
            // Reads have become smaller, as they do with many lanes: the rest of the buffer would never be used again.
            self.bytes = vec![0; size];
        }
        self.used = size;
        read(&mut self.bytes[..size])
    }

    /// Fills the buffer with `size` zero bytes.
    pub fn zeroed(&mut self, size: usize) {
        self.bytes.clear();
        self.bytes.resize(size, 0);
        self.used = size;
    }

    /// Converts the buffer to shared bytes; it returns to its pool with the last reference.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Deref for PooledBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock();
        if free.len() < KEPT_MAX {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_follows_pieces_that_become_smaller_and_not_the_end_of_a_block() {
        let pool = BufferPool::new();
        let use_of = |size| {
            let mut piece = pool.take();
            piece.fill(size, |_| Ok(())).unwrap();
            assert_eq!(piece.len(), size);
            piece.bytes.capacity()
        };
        let (large, small) = (128 << 10, 32 << 10);
        assert_eq!(use_of(large), large);
        assert_eq!(use_of(5), large);
        assert_eq!(use_of(large), large);
        assert_eq!(use_of(small), small);
        assert_eq!(use_of(5), small);
    }
}
