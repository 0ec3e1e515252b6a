//! Record layer of TLS 1.3 (RFC 8446, section 5) with buffers that are reused.
//!
//! Encrypts plaintext into records in place, and decrypts runs of records in place so that their plaintext is
//! contiguous. Does no handshake, no key derivation (rustls does both), and no input or output.
//!
//! Reason for not using the record layer of rustls: its unbuffered interface (0.23) allocates and copies each
//! record of 16 KiB once at each end. It also needs one lock for both directions. The `kernel` interface of rustls
//! is made for a record layer outside rustls, in the kernel or here.

use std::ops::Range;

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

/// Most plaintext in a record, in bytes (RFC 8446, section 5.1).
pub(super) const RECORD_PLAIN_BYTES_MAX: usize = 1 << 14;

/// Longest record on the wire, without its head, in bytes (RFC 8446, section 5.2).
const RECORD_SEALED_BYTES_MAX: usize = RECORD_PLAIN_BYTES_MAX + 256;

/// Length of the head of a record in bytes: type, version, length.
pub(super) const RECORD_HEAD_BYTES: usize = 5;

/// Length of the tag that every cipher of TLS 1.3 adds, in bytes.
const TAG_BYTES: usize = 16;

/// Bytes that a record adds to its plaintext: head, inner type, tag.
const RECORD_OVERHEAD_BYTES: usize = RECORD_HEAD_BYTES + 1 + TAG_BYTES;

/// Number of records in the send buffer. Reason: a whole DATA frame of 256 KiB leaves in one system call. The
/// buffer and its source fit together in the L2 cache of current servers.
const SEND_BUFFER_RECORDS: usize = 16;

/// Room in the send buffer behind full records, in bytes: for a key update, a close frame and an alert.
const SEND_BUFFER_SLACK_BYTES: usize = 4096;

/// Length of the receive buffer, in bytes. Reason: the data of one system call stays in the L2 cache until it is
/// used.
const RECEIVE_BUFFER_BYTES: usize = 256 << 10;

/// Most consecutive records without data. A peer that sends more does so to waste the time of this end.
const EMPTY_RECORDS_MAX: u32 = 32;

/// Margin below the limit of a key, in records, at which the key is replaced. Reason: more than one send buffer, so
/// that one check per buffer is enough.
const KEY_MARGIN_RECORDS: u64 = 64;

/// Fewest records for one key, so that a new key does not need replacement at once.
pub(super) const KEY_RECORDS_MIN: u64 = 2 * KEY_MARGIN_RECORDS;

/// Content types (RFC 8446, section 5.1 and appendix B.1).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

/// Handshake types (RFC 8446, appendix B.3).
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// Alert `close_notify`: level warning, description 0.
const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// Key of one direction, and the number of records that it has processed.
pub(super) struct RecordKey {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    sequence: u64,
    records_max: u64,
}

impl RecordKey {
    /// Creates a key from the secrets that rustls derived. `records_max` is the most records that the cipher allows
    /// for one key.
    pub(super) fn new(sequence: u64, secrets: ConnectionTrafficSecrets, records_max: u64) -> Result<Self, Error> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(internal("use a cipher that this build does not have")),
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| internal("use the key of a lane"))?;
        let iv = iv.as_ref().try_into().map_err(|_| internal("use the nonce of a lane"))?;
        Ok(Self { key: LessSafeKey::new(key), iv, sequence, records_max })
    }

    /// Returns true if the key has to be replaced before much more is encrypted with it.
    pub(super) fn is_worn(&self) -> bool {
        self.sequence.saturating_add(KEY_MARGIN_RECORDS) >= self.records_max
    }

    /// Returns the nonce of the next record; each nonce is used once.
    fn next_nonce(&mut self) -> Result<Nonce, Error> {
        let sequence = self.sequence;
        if sequence >= self.records_max {
            return Err(Error::protocol("a key of the lane is used up"));
        }
        self.sequence += 1;
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(sequence.to_be_bytes()) {
            *byte ^= number;
        }
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

/// Sending side: plaintext enters, and encrypted records are ready to be written.
///
/// The buffer holds encrypted records, followed by at most one open record whose plaintext is still growing.
pub(super) struct Sealer {
    key: RecordKey,
    buffer: Box<[u8]>,
    sealed_bytes: usize,
    open_bytes: usize,
}

impl Sealer {
    pub(super) fn new(key: RecordKey) -> Self {
        let length = SEND_BUFFER_RECORDS * (RECORD_PLAIN_BYTES_MAX + RECORD_OVERHEAD_BYTES) + SEND_BUFFER_SLACK_BYTES;
        Self { key, buffer: vec![0; length].into_boxed_slice(), sealed_bytes: 0, open_bytes: 0 }
    }

    /// Takes as much of `bytes` as there is room for, and encrypts each record that becomes full.
    pub(super) fn push(&mut self, bytes: &mut &[u8]) -> Result<(), Error> {
        let full_bytes = RECORD_PLAIN_BYTES_MAX + RECORD_OVERHEAD_BYTES;
        while !bytes.is_empty() && self.sealed_bytes + full_bytes + SEND_BUFFER_SLACK_BYTES <= self.buffer.len() {
            let (taken, rest) = bytes.split_at(bytes.len().min(RECORD_PLAIN_BYTES_MAX - self.open_bytes));
            let at = self.sealed_bytes + RECORD_HEAD_BYTES + self.open_bytes;
            self.buffer[at..at + taken.len()].copy_from_slice(taken);
            self.open_bytes += taken.len();
            *bytes = rest;
            if self.open_bytes == RECORD_PLAIN_BYTES_MAX {
                self.seal(APPLICATION_DATA)?;
            }
        }
        Ok(())
    }

    /// Encrypts the open record, even if it is short.
    pub(super) fn seal_open(&mut self) -> Result<(), Error> {
        if self.open_bytes > 0 { self.seal(APPLICATION_DATA) } else { Ok(()) }
    }

    /// Returns the records that are ready to be written.
    pub(super) fn sealed(&self) -> &[u8] {
        &self.buffer[..self.sealed_bytes]
    }

    /// Removes the first `bytes` of the ready records, because they have been written. Range: at most the length of
    /// `sealed`.
    pub(super) fn written(&mut self, bytes: usize) {
        let left = bytes..self.sealed_bytes + RECORD_HEAD_BYTES + self.open_bytes;
        self.buffer.copy_within(left, 0);
        self.sealed_bytes -= bytes;
    }

    /// Returns true if the key has to be replaced.
    pub(super) fn key_is_worn(&self) -> bool {
        self.key.is_worn()
    }

    /// Adds a key update for the peer, and encrypts all later records with `key`.
    pub(super) fn update_key(&mut self, key: RecordKey) -> Result<(), Error> {
        // The last byte is `update_not_requested`: each end replaces its key when it needs to.
        self.seal_message(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0])?;
        self.key = key;
        Ok(())
    }

    /// Adds the alert `close_notify`: no more data follows.
    pub(super) fn close_notify(&mut self) -> Result<(), Error> {
        self.seal_message(ALERT, &CLOSE_NOTIFY)
    }

    fn seal_message(&mut self, content_type: u8, message: &[u8]) -> Result<(), Error> {
        self.seal_open()?;
        let at = self.sealed_bytes + RECORD_HEAD_BYTES;
        self.buffer[at..at + message.len()].copy_from_slice(message);
        self.open_bytes = message.len();
        self.seal(content_type)
    }

    /// Makes a record from the open plaintext.
    fn seal(&mut self, content_type: u8) -> Result<(), Error> {
        let plain_bytes = self.open_bytes + 1;
        let [high, low] = ((plain_bytes + TAG_BYTES) as u16).to_be_bytes();
        let head = [APPLICATION_DATA, 3, 3, high, low];
        let record = &mut self.buffer[self.sealed_bytes..][..RECORD_HEAD_BYTES + plain_bytes + TAG_BYTES];
        let (record_head, rest) = record.split_at_mut(RECORD_HEAD_BYTES);
        let (plain, tag) = rest.split_at_mut(plain_bytes);
        record_head.copy_from_slice(&head);
        plain[plain_bytes - 1] = content_type;
        let nonce = self.key.next_nonce()?;
        let made = self.key.key.seal_in_place_separate_tag(nonce, Aad::from(head), plain);
        tag.copy_from_slice(made.map_err(|_| internal("seal a record"))?.as_ref());
        self.sealed_bytes += RECORD_HEAD_BYTES + plain_bytes + TAG_BYTES;
        self.open_bytes = 0;
        Ok(())
    }
}

/// Reason why a run of data records ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunEnd {
    /// No further complete record is there: read more.
    NeedMore,
    /// The peer replaced its key: pass the next one to [`Opener::update_key`] before opening more.
    KeyUpdate {
        /// True if the peer requests that this end replaces its key too.
        requested: bool,
    },
    /// The peer sends no more data.
    CloseNotify,
}

/// Run of decrypted records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Range of their contiguous plaintext: see [`Opener::plaintext`].
    pub(super) data: Range<usize>,
    /// Reason why the run ended.
    pub(super) end: RunEnd,
}

/// Receiving side: records enter, and plaintext is ready to be used.
pub(super) struct Opener {
    key: RecordKey,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    empty_records: u32,
}

impl Opener {
    /// Creates the receiving side. `early` holds the bytes that were read from the socket after the handshake.
    pub(super) fn new(key: RecordKey, early: &[u8]) -> Self {
        let mut buffer = vec![0; RECEIVE_BUFFER_BYTES.max(early.len())].into_boxed_slice();
        buffer[..early.len()].copy_from_slice(early);
        Self { key, buffer, start: 0, end: early.len(), empty_records: 0 }
    }

    /// Returns the space to read into, never empty. The caller reports the number of bytes read with
    /// [`Opener::filled`].
    pub(super) fn space(&mut self) -> &mut [u8] {
        // Less than one record is left here: `open` takes every complete record, and the buffer holds several.
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        &mut self.buffer[self.end..]
    }

    /// Records that `bytes` bytes were read into [`Opener::space`].
    pub(super) fn filled(&mut self, bytes: usize) {
        self.end = (self.end + bytes).min(self.buffer.len());
    }

    /// Returns the plaintext of a run.
    pub(super) fn plaintext(&self, run: &Run) -> &[u8] {
        &self.buffer[run.data.clone()]
    }

    /// Switches to the next key of the peer.
    pub(super) fn update_key(&mut self, key: RecordKey) {
        self.key = key;
    }

    /// Decrypts complete records until none is left, or until one is not data.
    ///
    /// Errors: the peer broke TLS, or a record was changed on the way.
    pub(super) fn open(&mut self) -> Result<Run, Error> {
        let mut data = self.start..self.start;
        loop {
            let Some(record_bytes) = complete_record(&self.buffer[self.start..self.end])? else {
                return Ok(Run { data, end: RunEnd::NeedMore });
            };
            let record = self.start..self.start + record_bytes;
            self.start = record.end;
            let (content_type, plain_bytes) = self.open_record(data.end, record)?;
            let plain = data.end..data.end + plain_bytes;
            match content_type {
                APPLICATION_DATA => {
                    self.count_empty(plain_bytes == 0)?;
                    data.end = plain.end;
                }
                HANDSHAKE => {
                    self.count_empty(true)?;
                    if let Some(requested) = read_handshake(&self.buffer[plain])? {
                        return Ok(Run { data, end: RunEnd::KeyUpdate { requested } });
                    }
                }
                ALERT => match &self.buffer[plain] {
                    [_, 0] => return Ok(Run { data, end: RunEnd::CloseNotify }),
                    [_, code] => return Err(alert_error(*code)),
                    _ => return Err(Error::protocol("peer sent a TLS alert of a wrong length")),
                },
                other => return Err(Error::protocol(format!("peer sent a TLS record of kind {other}"))),
            }
        }
    }

    /// Decrypts the record at `record` so that its plaintext starts at `to`, right behind the plaintext of the
    /// record before it.
    ///
    /// Returns its content type and the length of its plaintext.
    fn open_record(&mut self, to: usize, record: Range<usize>) -> Result<(u8, usize), Error> {
        let mut head = [0; RECORD_HEAD_BYTES];
        head.copy_from_slice(&self.buffer[record.start..record.start + RECORD_HEAD_BYTES]);
        let nonce = self.key.next_nonce()?;
        let in_out = &mut self.buffer[to..record.end];
        let sealed_at = record.start + RECORD_HEAD_BYTES - to;
        let plain = self
            .key
            .key
            .open_within(nonce, Aad::from(head), in_out, sealed_at..)
            .map_err(|_| Error::protocol("a TLS record was changed on the way, or is not of this lane"))?;
        // Zeros behind the content type are padding (RFC 8446, section 5.4).
        let at = plain.iter().rposition(|byte| *byte != 0);
        let at = at.ok_or_else(|| Error::protocol("peer sent a TLS record without a kind"))?;
        if at > RECORD_PLAIN_BYTES_MAX {
            return Err(Error::protocol(format!("peer sent a TLS record of {at} bytes")));
        }
        Ok((plain[at], at))
    }

    fn count_empty(&mut self, is_empty: bool) -> Result<(), Error> {
        self.empty_records = if is_empty { self.empty_records + 1 } else { 0 };
        if self.empty_records > EMPTY_RECORDS_MAX {
            return Err(Error::protocol(format!(
                "peer sent over {EMPTY_RECORDS_MAX} TLS records without data in a row"
            )));
        }
        Ok(())
    }
}

/// Returns the length of the record at the front of `bytes`, head included; `None` unless it is complete.
fn complete_record(bytes: &[u8]) -> Result<Option<usize>, Error> {
    let Some((&[kind, _, _, high, low], rest)) = bytes.split_first_chunk::<RECORD_HEAD_BYTES>() else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if kind != APPLICATION_DATA {
        return Err(Error::protocol(format!("peer sent a TLS record of kind {kind} that is not sealed")));
    }
    if !(TAG_BYTES + 1..=RECORD_SEALED_BYTES_MAX).contains(&length) {
        return Err(Error::protocol(format!("peer announced a TLS record of {length} bytes")));
    }
    Ok((rest.len() >= length).then_some(RECORD_HEAD_BYTES + length))
}

/// Reads the handshake messages of one record. Returns `Some` for a key update, with true if the peer requests an
/// update of this end's key too.
///
/// Skips tickets, because no TLS session is ever resumed. Refuses messages that continue in the next record,
/// because no message that is valid here is that long.
fn read_handshake(mut messages: &[u8]) -> Result<Option<bool>, Error> {
    let wrong = |what: &str| Error::protocol(format!("peer sent {what} after the TLS handshake"));
    if messages.is_empty() {
        return Err(wrong("an empty handshake record"));
    }
    while let Some((&[kind, a, b, c], rest)) = messages.split_first_chunk() {
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let (body, rest) = rest.split_at_checked(length).ok_or_else(|| wrong("a handshake message in pieces"))?;
        messages = rest;
        match (kind, body) {
            (NEW_SESSION_TICKET, _) => {}
            // A key update is the last message of its record: later data has another key (RFC 8446, section 5.1).
            (KEY_UPDATE, [request @ (0 | 1)]) if rest.is_empty() => return Ok(Some(*request == 1)),
            (KEY_UPDATE, _) => return Err(wrong("a malformed key update")),
            _ => return Err(wrong(&format!("a handshake message of kind {kind}"))),
        }
    }
    if messages.is_empty() { Ok(None) } else { Err(wrong("a handshake message in pieces")) }
}

/// Returns the error for an alert other than `close_notify`. Codes: RFC 8446, section 6.
pub(super) fn alert_error(code: u8) -> Error {
    let name = rustls::AlertDescription::from(code);
    // bad_certificate to certificate_unknown, unknown_ca, access_denied, certificate_required.
    let kind = if matches!(code, 42..=46 | 48 | 49 | 116) { ErrorKind::Untrusted } else { ErrorKind::Protocol };
    Error::new(kind, Scope::Path, Phase::Transfer, format!("peer ended the lane with TLS alert {code} ({name:?})"))
}

fn internal(text: &str) -> Error {
    Error::new(ErrorKind::Internal, Scope::Path, Phase::Transfer, text)
}

#[cfg(test)]
mod tests {
    use rustls::crypto::cipher::{AeadKey, Iv};

    use super::*;

    fn key(seed: u8) -> RecordKey {
        let secrets =
            ConnectionTrafficSecrets::Chacha20Poly1305 { key: AeadKey::from([seed; 32]), iv: Iv::from([seed; 12]) };
        RecordKey::new(0, secrets, u64::MAX).unwrap()
    }

    /// Decrypts `wire`, given in slices of `slice_bytes`. Returns the data of all runs and the last end.
    fn open_all(wire: &[u8], slice_bytes: usize) -> Result<(Vec<u8>, RunEnd), Error> {
        let mut opener = Opener::new(key(1), &[]);
        let mut data = Vec::new();
        let mut end = RunEnd::NeedMore;
        for slice in wire.chunks(slice_bytes) {
            opener.space()[..slice.len()].copy_from_slice(slice);
            opener.filled(slice.len());
            loop {
                let run = opener.open()?;
                data.extend_from_slice(opener.plaintext(&run));
                end = run.end;
                match end {
                    RunEnd::NeedMore => break,
                    RunEnd::KeyUpdate { .. } => opener.update_key(key(2)),
                    RunEnd::CloseNotify => return Ok((data, end)),
                }
            }
        }
        Ok((data, end))
    }

    fn message(content_type: u8, message: &[u8]) -> Vec<u8> {
        let mut sealer = Sealer::new(key(1));
        sealer.seal_message(content_type, message).unwrap();
        sealer.sealed().to_vec()
    }

    /// Returns wire bytes and plaintext of records of many lengths, with a key update in between and a close.
    fn sample() -> (Vec<u8>, Vec<u8>) {
        let (mut wire, mut plain) = (Vec::new(), Vec::new());
        let mut sealer = Sealer::new(key(1));
        for (round, length) in
            [1, 5, 300, RECORD_PLAIN_BYTES_MAX, 3 * RECORD_PLAIN_BYTES_MAX + 7].into_iter().enumerate()
        {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + round) as u8).collect();
            let mut rest = bytes.as_slice();
            sealer.push(&mut rest).unwrap();
            assert!(rest.is_empty());
            wire.extend_from_slice(sealer.sealed());
            sealer.written(sealer.sealed().len());
            plain.extend_from_slice(&bytes);
            if round == 2 {
                sealer.update_key(key(2)).unwrap();
            }
        }
        sealer.close_notify().unwrap();
        wire.extend_from_slice(sealer.sealed());
        (wire, plain)
    }

    #[test]
    fn every_split_of_the_records_opens_to_the_same_plaintext() {
        let (wire, plain) = sample();
        for slice_bytes in [1, 2, 7, 23, 1000, 16_405, 16_406, 16_407, 40_000, wire.len()] {
            let (data, end) = open_all(&wire, slice_bytes).unwrap();
            assert!(data == plain, "slices of {slice_bytes}");
            assert_eq!(end, RunEnd::CloseNotify);
        }
    }

    #[test]
    fn the_plaintext_of_several_records_lies_in_one_piece() {
        let mut sealer = Sealer::new(key(1));
        let bytes = vec![5; 10 * RECORD_PLAIN_BYTES_MAX];
        sealer.push(&mut bytes.as_slice()).unwrap();
        let mut opener = Opener::new(key(1), sealer.sealed());
        let run = opener.open().unwrap();
        assert!(opener.plaintext(&run) == bytes);
        assert_eq!(run.end, RunEnd::NeedMore);
    }

    #[test]
    fn a_full_send_buffer_takes_no_more_until_it_is_written() {
        let mut sealer = Sealer::new(key(1));
        let bytes = vec![5; (SEND_BUFFER_RECORDS + 1) * RECORD_PLAIN_BYTES_MAX];
        let mut rest = bytes.as_slice();
        sealer.push(&mut rest).unwrap();
        assert_eq!(rest.len(), RECORD_PLAIN_BYTES_MAX);
        sealer.written(sealer.sealed().len());
        sealer.push(&mut rest).unwrap();
        assert!(rest.is_empty());
    }

    #[test]
    fn any_changed_bit_is_an_error() {
        let (wire, plain) = sample();
        for at in (0..wire.len()).step_by(17) {
            let mut changed = wire.clone();
            changed[at] ^= 1 << (at % 8);
            // A changed length may wait for bytes that never arrive. The data decrypted before it is right.
            match open_all(&changed, wire.len()) {
                Ok((data, end)) => assert!(end == RunEnd::NeedMore && plain.starts_with(&data), "byte {at}"),
                Err(error) => assert_eq!(error.kind, ErrorKind::Protocol, "byte {at}"),
            }
        }
        let twice = [&wire[..27], &wire].concat();
        assert!(open_all(&twice, wire.len()).is_err(), "a record that comes twice is an error");
    }

    #[test]
    fn padding_is_taken_off_and_records_without_a_kind_are_refused() {
        // Plaintext: "abc", the content type of data, zeros. `seal_message` adds the last zero.
        let (data, _) = open_all(&message(0, b"abc\x17\0\0"), 1000).unwrap();
        assert_eq!(data, b"abc");
        assert!(open_all(&message(0, &[0; 20]), 1000).unwrap_err().text().contains("without a kind"));
    }

    #[test]
    fn messages_after_the_handshake_are_few_and_strict() {
        let ticket = [4, 0, 0, 2, 9, 9];
        assert_eq!(open_all(&message(HANDSHAKE, &[ticket, ticket].concat()), 1000).unwrap().1, RunEnd::NeedMore);
        let (_, end) = open_all(&message(HANDSHAKE, &[&ticket[..], &[24, 0, 0, 1, 1]].concat()), 1000).unwrap();
        assert_eq!(end, RunEnd::NeedMore, "the key update before it was taken");
        let wrong: [&[u8]; 7] = [
            &[],
            &[4, 0, 0],
            &[4, 0, 0, 9, 1],
            &[24, 0, 0, 1, 2],
            &[24, 0, 0, 0],
            &[24, 0, 0, 1, 0, 4, 0, 0, 0],
            &[1, 0, 0, 0],
        ];
        for message_bytes in wrong {
            let error = open_all(&message(HANDSHAKE, message_bytes), 1000).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Protocol, "{message_bytes:?}");
        }
        assert!(open_all(&message(ALERT, &[2, 42]), 1000).unwrap_err().kind == ErrorKind::Untrusted);
        assert!(open_all(&message(ALERT, &[2]), 1000).is_err());
        assert!(open_all(&message(99, &[2]), 1000).unwrap_err().text().contains("kind 99"));
    }

    #[test]
    fn a_flood_of_empty_records_is_cut_off() {
        let mut sealer = Sealer::new(key(1));
        for _ in 0..=EMPTY_RECORDS_MAX {
            sealer.seal_message(HANDSHAKE, &[4, 0, 0, 0]).unwrap();
        }
        assert!(open_all(sealer.sealed(), 1 << 20).unwrap_err().text().contains("without data in a row"));
    }

    #[test]
    fn a_key_is_worn_before_it_is_used_up() {
        let mut key = key(1);
        key.records_max = KEY_RECORDS_MIN;
        let mut used = 0;
        while !key.is_worn() {
            key.next_nonce().unwrap();
            used += 1;
        }
        assert_eq!(used, KEY_RECORDS_MIN - KEY_MARGIN_RECORDS);
        for _ in 0..KEY_MARGIN_RECORDS {
            key.next_nonce().unwrap();
        }
        assert!(key.next_nonce().is_err());
    }
}
