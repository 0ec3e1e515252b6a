//! Upper bound of this host: copies one file to another over loopback with minimal work per byte.
//!
//! `cargo bench -p sterna-net --bench floor -- STEPS LANES FROM TO` copies FROM to TO over LANES TCP connections to the
//! same process. There is no session, no journal, no resume and no second file. Each lane reads a buffer, sends,
//! receives and writes it. STEPS names the steps that both ends add: `copy` (none), `hash` (BLAKE3), `seal`
//! (AES-128-GCM in records of 16 KiB, as in TLS 1.3) or `both`.
//!
//! The difference between `sterna copy` and `both` is the cost of Sterna. The difference between `both` and `copy` is
//! the cost of encryption and verification in any tool.

#![allow(clippy::print_stdout, reason = "it prints figures")]

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// Block size that Sterna uses for a file of 4 GB.
const BLOCK_BYTES: u64 = 16 << 20;
/// Fits into a core's second-level cache, as the buffers of the lanes do.
const PIECE_BYTES: usize = 128 << 10;
const RECORD_BYTES: usize = 16 << 10;
const TAG_BYTES: usize = 16;

#[derive(Clone, Copy)]
struct Steps {
    hash: bool,
    seal: bool,
}

fn main() -> io::Result<()> {
    // `cargo bench` and `cargo test` add flags for the standard harness, which this program does not use.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let [steps, lanes, from, to] = &args[..] else {
        println!("floor: nothing measured; give copy|hash|seal|both LANES FROM TO");
        return Ok(());
    };
    let steps = match &steps[..] {
        "copy" => Steps { hash: false, seal: false },
        "hash" => Steps { hash: true, seal: false },
        "seal" => Steps { hash: false, seal: true },
        "both" => Steps { hash: true, seal: true },
        other => panic!("{other} is not copy, hash, seal or both"),
    };
    let lanes: u32 = lanes.parse().expect("a number of lanes");
    let (from, to) = (Arc::new(File::open(from)?), Arc::new(File::create(to)?));
    let bytes = from.metadata()?.len();
    let next = Arc::new(AtomicU64::new(0));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let started = Instant::now();
    let mut ends = Vec::new();
    for _ in 0..lanes {
        let (from, next) = (Arc::clone(&from), Arc::clone(&next));
        ends.push(thread::spawn(move || send(steps, address, &from, bytes, &next)));
        let (stream, _) = listener.accept()?;
        let to = Arc::clone(&to);
        ends.push(thread::spawn(move || receive(steps, stream, &to)));
    }
    for end in ends {
        end.join().expect("no panic")?;
    }
    let mbit_s = (bytes as f64 * 8.0 / started.elapsed().as_secs_f64() / 1e6).round() as u64;
    println!("{}", serde_json::json!({ "mbit_s": mbit_s }));
    Ok(())
}

/// A key and its last nonce. Both ends count nonces in the same way.
struct Key(LessSafeKey, u64);

impl Key {
    fn new() -> Self {
        Self(LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &[7; 16]).expect("a key")), 0)
    }

    fn nonce(&mut self) -> Nonce {
        self.1 += 1;
        let mut nonce = [0; NONCE_LEN];
        nonce[4..].copy_from_slice(&self.1.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Returns the length of `plain` bytes after encryption.
fn sealed_bytes(plain: usize) -> usize {
    plain + plain.div_ceil(RECORD_BYTES) * TAG_BYTES
}

/// Sends blocks until none remain: offset and length, the data (encrypted if `seal` is on), the digest.
fn send(steps: Steps, address: SocketAddr, from: &File, bytes: u64, next: &AtomicU64) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    let mut key = Key::new();
    let (mut piece, mut sealed) = (vec![0; PIECE_BYTES], vec![0; sealed_bytes(PIECE_BYTES)]);
    loop {
        let offset = next.fetch_add(BLOCK_BYTES, Ordering::Relaxed);
        if offset >= bytes {
            return Ok(());
        }
        let length = BLOCK_BYTES.min(bytes - offset);
        stream.write_all(&offset.to_be_bytes())?;
        stream.write_all(&length.to_be_bytes())?;
        let mut hasher = blake3::Hasher::new();
        let mut done = 0;
        while done < length {
            let piece = &mut piece[..PIECE_BYTES.min((length - done) as usize)];
            from.read_exact_at(piece, offset + done)?;
            done += piece.len() as u64;
            if steps.hash {
                hasher.update(piece);
            }
            if !steps.seal {
                stream.write_all(piece)?;
                continue;
            }
            let sealed = &mut sealed[..sealed_bytes(piece.len())];
            for (plain, record) in piece.chunks(RECORD_BYTES).zip(sealed.chunks_mut(RECORD_BYTES + TAG_BYTES)) {
                let (text, tag) = record.split_at_mut(plain.len());
                text.copy_from_slice(plain);
                let nonce = key.nonce();
                let made = key.0.seal_in_place_separate_tag(nonce, Aad::empty(), text).expect("a record");
                tag.copy_from_slice(made.as_ref());
            }
            stream.write_all(sealed)?;
        }
        stream.write_all(hasher.finalize().as_bytes())?;
    }
}

/// Receives blocks until the sender closes the connection.
fn receive(steps: Steps, mut stream: TcpStream, to: &File) -> io::Result<()> {
    let mut key = Key::new();
    let mut buffer = vec![0; sealed_bytes(PIECE_BYTES)];
    loop {
        let mut head = [0; 16];
        match stream.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        let offset = u64::from_be_bytes(head[..8].try_into().expect("8 bytes"));
        let length = u64::from_be_bytes(head[8..].try_into().expect("8 bytes"));
        let mut hasher = blake3::Hasher::new();
        let mut done = 0;
        while done < length {
            let plain_bytes = PIECE_BYTES.min((length - done) as usize);
            let piece = &mut buffer[..if steps.seal { sealed_bytes(plain_bytes) } else { plain_bytes }];
            stream.read_exact(piece)?;
            if steps.seal {
                for (index, start) in (0..plain_bytes).step_by(RECORD_BYTES).enumerate() {
                    let record = RECORD_BYTES.min(plain_bytes - start) + TAG_BYTES;
                    let nonce = key.nonce();
                    // Decrypts directly behind the previous record, so that the plaintext is contiguous.
                    let sealed_at = index * TAG_BYTES;
                    let in_out = &mut piece[start..start + sealed_at + record];
                    key.0.open_within(nonce, Aad::empty(), in_out, sealed_at..).expect("an unchanged record");
                }
            }
            let plain = &piece[..plain_bytes];
            to.write_all_at(plain, offset + done)?;
            done += plain.len() as u64;
            if steps.hash {
                hasher.update(plain);
            }
        }
        let mut digest = [0; 32];
        stream.read_exact(&mut digest)?;
        assert_eq!(digest, *hasher.finalize().as_bytes(), "a block has changed");
    }
}
