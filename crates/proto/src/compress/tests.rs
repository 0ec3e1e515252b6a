use sterna_seeded::Seeded;

use super::*;

/// Returns samples of a slow wave with four bits of noise, `width` bytes each.
fn samples(seeded: &mut Seeded, count: usize, width: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count + width);
    for time in 0.. {
        if bytes.len() >= count {
            break;
        }
        let value = ((time as f64 / 3000.0).sin() * 8000.0) as i64 + seeded.below(16) as i64;
        bytes.extend_from_slice(&value.to_le_bytes()[..width]);
    }
    bytes.truncate(count);
    bytes
}

fn methods() -> Vec<Method> {
    let zstd = [-1, 1, 3].map(|level| Method::Zstd { level });
    let shuffled = Width::ALL.map(|width| Method::Shuffled { width, level: 1 });
    [Method::Raw].into_iter().chain(zstd).chain(shuffled).collect()
}

/// Every encoded slab decodes to its input, for all data, methods and lengths.
#[test]
fn every_slab_comes_back() {
    let mut seeded = Seeded::new(1);
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    for round in 0..200 {
        // Lengths near zero, of one byte, and of a whole slab.
        let length = match round % 8 {
            0 => seeded.index(3),
            1 => SLAB_BYTES as usize - seeded.index(3),
            _ => 1 + seeded.index(200_000),
        };
        let raw = match seeded.index(4) {
            0 => vec![0; length],
            1 => seeded.bytes(length),
            2 => samples(&mut seeded, length, 2),
            _ => samples(&mut seeded, length, 4),
        };
        for method in methods() {
            let mut encoded = vec![0xa5; length];
            let slab = encoder.encode(method, &raw, &mut encoded);
            let bytes = match slab.encoding {
                SlabEncoding::Raw => &raw,
                _ => &encoded[..slab.length as usize],
            };
            assert_eq!(bytes.len(), slab.length as usize);
            if length > 0 {
                assert_eq!(encoded_length(&[slab], length as u64).unwrap(), u64::from(slab.length), "{method}");
            }
            let mut back = vec![0x5a; length];
            decoder.decode(slab.encoding, bytes, &mut back).unwrap();
            assert!(back == raw, "round {round}: {length} bytes by {method}");
        }
    }
}

#[test]
fn noise_travels_as_it_is_and_samples_gain_by_the_shuffle_of_their_width() {
    let mut seeded = Seeded::new(2);
    let (noise, samples) = (seeded.bytes(1 << 20), samples(&mut seeded, 1 << 20, 2));
    let mut encoder = Encoder::default();
    let mut encoded = vec![0; 1 << 20];
    for method in methods() {
        assert_eq!(encoder.encode(method, &noise, &mut encoded), Slab { encoding: SlabEncoding::Raw, length: 1 << 20 });
    }
    let mut length = |method| encoder.encode(method, &samples, &mut encoded).length;
    let plain = length(Method::Zstd { level: 1 });
    let shuffled = length(Method::Shuffled { width: Width::Two, level: 1 });
    assert!(shuffled * 5 < plain * 4, "{shuffled} and {plain}");
}

/// A wrong decoded length from a peer never causes a write beyond the target.
#[test]
fn what_decodes_to_another_length_is_an_error() {
    let zeros = vec![0; SLAB_BYTES as usize];
    let mut encoded = vec![0; SLAB_BYTES as usize];
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    // A decompression bomb: 1 MiB in some tens of bytes.
    for method in [Method::Zstd { level: 1 }, Method::Shuffled { width: Width::Four, level: 1 }] {
        let slab = encoder.encode(method, &zeros, &mut encoded);
        assert!(slab.length < 200, "{}", slab.length);
        let bytes = &encoded[..slab.length as usize];
        for expected in [0, 1, 1000, SLAB_BYTES as usize - 1] {
            let mut guarded = vec![7; SLAB_BYTES as usize];
            assert!(decoder.decode(slab.encoding, bytes, &mut guarded[..expected]).is_err(), "{expected} bytes");
            assert!(guarded[expected..].iter().all(|byte| *byte == 7));
        }
        let mut larger = vec![0; SLAB_BYTES as usize + 1];
        assert!(decoder.decode(slab.encoding, bytes, &mut larger).is_err(), "too short");
        // Two copies of a frame decode to twice the length.
        assert!(decoder.decode(slab.encoding, &[bytes, bytes].concat(), &mut larger).is_err());
        for cut in 0..bytes.len() {
            assert!(decoder.decode(slab.encoding, &bytes[..cut], &mut larger[..zeros.len()]).is_err(), "cut at {cut}");
        }
        // The decoder still works after these errors.
        let mut back = vec![1; zeros.len()];
        decoder.decode(slab.encoding, bytes, &mut back).unwrap();
        assert!(back == zeros);
    }
    assert!(decoder.decode(SlabEncoding::Raw, b"abc", &mut [0; 2]).is_err());
    assert!(decoder.decode(SlabEncoding::Raw, b"abc", &mut [0; 4]).is_err());
}

#[test]
fn no_bytes_make_the_decoder_panic_or_write_elsewhere() {
    let mut seeded = Seeded::new(3);
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    let raw = samples(&mut seeded, 60_000, 4);
    let mut encoded = vec![0; raw.len()];
    let mut failed = 0;
    for round in 0..3000 {
        let width = Width::ALL[round % 3];
        let slab = encoder.encode(Method::Shuffled { width, level: 1 }, &raw, &mut encoded);
        let mut bytes = encoded[..slab.length as usize].to_vec();
        for _ in 0..1 + seeded.index(4) {
            let at = seeded.index(bytes.len());
            match seeded.index(3) {
                0 => bytes[at] = seeded.draw() as u8,
                1 => bytes.truncate(at.max(1)),
                _ => bytes[at] ^= 1 << seeded.index(8),
            }
        }
        let mut back = vec![0; raw.len()];
        failed += u32::from(decoder.decode(slab.encoding, &bytes, &mut back).is_err());
    }
    // The others decode to wrong bytes, which the digest of the block detects.
    assert!(failed > 500, "{failed} of 3000");
}
