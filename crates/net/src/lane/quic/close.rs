//! Close of a connection on the wire: its code, and the reason for users.

use noq::VarInt;

/// Code of a lane that ends in order.
pub(super) const CODE_ORDERLY: VarInt = VarInt::from_u32(0);

/// Code of a receiver that could not continue.
pub(super) const CODE_FAULT: VarInt = VarInt::from_u32(1);

/// Code of an end that has left and did not wait to send its remaining data.
pub(super) const CODE_LEFT: VarInt = VarInt::from_u32(2);

/// Returns the longest part of a reason that fits into one packet.
pub(super) fn shortened(reason: &str) -> &[u8] {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason.as_bytes()[..end]
}

/// Longest reason of a close, in bytes: it has to fit into one packet of 1200 bytes.
const REASON_BYTES_MAX: usize = 512;
