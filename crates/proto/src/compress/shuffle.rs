//! Byte shuffle: the first bytes of all elements, then all second bytes, and so on. Neighbouring samples differ in
//! their low bytes and agree in their high bytes; the shuffle places the equal bytes side by side.
//!
//! Plain loops over groups of fixed size, which the compiler turns into vector code. It allocates nothing; bytes go
//! from slice to slice.

use super::Width;

/// Number of elements processed at once. Reason: they fill whole vector registers at every width and fit in the
/// first-level cache.
const GROUP: usize = 64;

/// Shuffles `raw` by elements of `width` into `shuffled`, which has the same length. Bytes after the last whole element
/// stay at the end.
pub fn shuffle(width: Width, raw: &[u8], shuffled: &mut [u8]) {
    assert_eq!(raw.len(), shuffled.len(), "a shuffle keeps the length");
    match width {
        Width::Two => two::shuffle(raw, shuffled),
        Width::Four => four::shuffle(raw, shuffled),
        Width::Eight => eight::shuffle(raw, shuffled),
    }
}

/// Reverses [`shuffle`].
pub fn unshuffle(width: Width, shuffled: &[u8], raw: &mut [u8]) {
    assert_eq!(raw.len(), shuffled.len(), "a shuffle keeps the length");
    match width {
        Width::Two => two::unshuffle(shuffled, raw),
        Width::Four => four::unshuffle(shuffled, raw),
        Width::Eight => eight::unshuffle(shuffled, raw),
    }
}

/// Both directions for elements of one width. Elements are handled as integers: the compiler vectorizes shifts, but not
/// steps over single bytes. Measured: 3 to 8 GB/s instead of 2 GB/s.
macro_rules! by_width {
    ($module:ident, $element:ty) => {
        mod $module {
            use super::GROUP;

            const WIDTH: usize = size_of::<$element>();

            pub(super) fn shuffle(raw: &[u8], shuffled: &mut [u8]) {
                let (elements, tail) = raw.as_chunks::<WIDTH>();
                let (planes, end) = shuffled.split_at_mut(elements.len() * WIDTH);
                end.copy_from_slice(tail);
                for (number, group) in elements.chunks(GROUP).enumerate() {
                    let mut values = [0; GROUP];
                    values.iter_mut().zip(group).for_each(|(value, bytes)| *value = <$element>::from_le_bytes(*bytes));
                    for (byte, plane) in planes.chunks_mut(elements.len()).enumerate() {
                        let plane = &mut plane[number * GROUP..][..group.len()];
                        plane.iter_mut().zip(&values).for_each(|(out, value)| *out = (value >> (8 * byte)) as u8);
                    }
                }
            }

            pub(super) fn unshuffle(shuffled: &[u8], raw: &mut [u8]) {
                let (elements, tail) = raw.as_chunks_mut::<WIDTH>();
                let (planes, end) = shuffled.split_at(elements.len() * WIDTH);
                tail.copy_from_slice(end);
                let count = elements.len();
                for (number, group) in elements.chunks_mut(GROUP).enumerate() {
                    let mut values: [$element; GROUP] = [0; GROUP];
                    for (byte, plane) in planes.chunks(count).enumerate() {
                        let plane = &plane[number * GROUP..][..group.len()];
                        values
                            .iter_mut()
                            .zip(plane)
                            .for_each(|(value, from)| *value |= <$element>::from(*from) << (8 * byte));
                    }
                    group.iter_mut().zip(values).for_each(|(bytes, value)| *bytes = value.to_le_bytes());
                }
            }
        }
    };
}

by_width!(two, u16);
by_width!(four, u32);

/// Both directions for elements of 8 bytes: a group of eight is an 8 x 8 byte matrix, transposed in registers.
mod eight {
    pub(super) fn shuffle(raw: &[u8], shuffled: &mut [u8]) {
        let (elements, tail) = raw.as_chunks::<8>();
        let count = elements.len();
        let (planes, end) = shuffled.split_at_mut(count * 8);
        end.copy_from_slice(tail);
        let (squares, rest) = elements.as_chunks::<8>();
        for (number, square) in squares.iter().enumerate() {
            let turned = turn(square.map(u64::from_le_bytes));
            for (byte, row) in turned.iter().enumerate() {
                planes[byte * count + number * 8..][..8].copy_from_slice(&row.to_le_bytes());
            }
        }
        for (number, element) in rest.iter().enumerate() {
            for (byte, value) in element.iter().enumerate() {
                planes[byte * count + squares.len() * 8 + number] = *value;
            }
        }
    }

    pub(super) fn unshuffle(shuffled: &[u8], raw: &mut [u8]) {
        let (elements, tail) = raw.as_chunks_mut::<8>();
        let count = elements.len();
        let (planes, end) = shuffled.split_at(count * 8);
        tail.copy_from_slice(end);
        let (squares, rest) = elements.as_chunks_mut::<8>();
        let done = squares.len() * 8;
        for (number, square) in squares.iter_mut().enumerate() {
            let mut rows = [0; 8];
            for (byte, row) in rows.iter_mut().enumerate() {
                *row = eight_bytes(planes, byte * count + number * 8);
            }
            *square = turn(rows).map(u64::to_le_bytes);
        }
        for (number, element) in rest.iter_mut().enumerate() {
            for (byte, out) in element.iter_mut().enumerate() {
                *out = planes[byte * count + done + number];
            }
        }
    }

    fn eight_bytes(bytes: &[u8], at: usize) -> u64 {
        let mut row = [0; 8];
        row.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(row)
    }

    /// Transposes the 8 x 8 byte matrix whose rows are `rows`, lowest byte first: by halves, quarters, then single
    /// bytes.
    fn turn(mut rows: [u64; 8]) -> [u64; 8] {
        for (distance, mask) in [(4, 0x0000_0000_ffff_ffff), (2, 0x0000_ffff_0000_ffff), (1, 0x00ff_00ff_00ff_00ff)] {
            let bits = 8 * distance;
            for upper in (0..8).filter(|row| row & distance == 0) {
                let swapped = ((rows[upper] >> bits) ^ rows[upper + distance]) & mask;
                rows[upper + distance] ^= swapped;
                rows[upper] ^= swapped << bits;
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_puts_the_bytes_of_a_place_side_by_side() {
        let mut shuffled = [0; 11];
        shuffle(Width::Four, b"abcdABCDxyz", &mut shuffled);
        assert_eq!(&shuffled, b"aAbBcCdDxyz");
        shuffle(Width::Two, b"aAbBcCdDeEx", &mut shuffled);
        assert_eq!(&shuffled, b"abcdeABCDEx");
    }

    #[test]
    fn every_length_comes_back() {
        let raw: Vec<u8> = (0..1500_u32).map(|i| (i * 7 + i / 256) as u8).collect();
        // Lengths around zero, whole elements and whole groups.
        for length in (0..20).chain(120..140).chain(250..260).chain([511, 512, 513, 1024, 1025, 1500]) {
            for width in Width::ALL {
                let (mut shuffled, mut back) = (vec![0; length], vec![0; length]);
                shuffle(width, &raw[..length], &mut shuffled);
                unshuffle(width, &shuffled, &mut back);
                assert_eq!(back, &raw[..length], "{length} bytes by {width:?}");
            }
        }
    }
}
