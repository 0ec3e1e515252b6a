//! Pooled buffers: the memory that file bytes pass through on their way to a lane.
//!
//! A buffer is taken from the pool, filled, frozen into [`bytes::Bytes`] and handed to a transport; when the transport drops the
//! last reference, it goes back to the pool. The pool holds what is in use at most, and never shrinks below that.

use std::ops::Deref;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sterna_proto::Error;

use crate::session::lock;

/// Buffers kept for reuse at most. Reason: 512 of 128 KiB are 64 MiB, the memory a session may use beside its path's product.
const KEPT_MAX: usize = 512;

/// A buffer is made smaller for pieces from this size on. Reason: the smallest pieces that lanes take; the last piece of a block is
/// mostly shorter, and must not cost the buffer.
const SMALLER_FROM: usize = 32 << 10;

/// A pool of buffers of about equal size.
#[derive(Default)]
pub struct BufferPool {
    free: Mutex<Vec<Vec<u8>>>,
}

impl BufferPool {
    /// An empty pool.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// A buffer, empty.
    pub fn take(self: &Arc<Self>) -> PooledBuffer {
        let bytes = lock(&self.free).pop().unwrap_or_default();
        PooledBuffer { bytes, used: 0, pool: Arc::clone(self) }
    }
}

/// A buffer that goes back to its pool when it is dropped.
pub struct PooledBuffer {
    /// Kept at its full length from use to use, so that it is zeroed once and not for every block.
    bytes: Vec<u8>,
    used: usize,
    pool: Arc<BufferPool>,
}

impl PooledBuffer {
    /// Makes the buffer `size` bytes long and lets `read` fill all of them; what it leaves is whatever was there before, so
    /// `read` must fill everything or fail.
    pub fn fill(&mut self, size: usize, read: impl FnOnce(&mut [u8]) -> Result<(), Error>) -> Result<(), Error> {
        if self.bytes.len() < size {
            self.bytes.resize(size, 0);
        } else if size >= SMALLER_FROM && self.bytes.len() >= 4 * size {
            // Pieces have become smaller, as they do with many lanes: the rest of the buffer would never be used again.
            self.bytes = vec![0; size];
        }
        self.used = size;
        read(&mut self.bytes[..size])
    }

    /// Makes the buffer `size` zero bytes.
    pub fn zeroed(&mut self, size: usize) {
        self.bytes.clear();
        self.bytes.resize(size, 0);
        self.used = size;
    }

    /// The bytes, shared; the buffer returns to its pool with the last reference.
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
        let mut free = lock(&self.pool.free);
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
