//! Values that requests, messages and headers share, and their encoding.
//!
//! Refuses to trust a length, a count or a code that the peer sent. It holds no state and needs no time.

use crate::compress::CompressionPolicy;
use crate::digest::{Checks, Digest, FileDigests};
use crate::error::Error;
use crate::file::drives_terminal;
use crate::quantity::BitRate;
use crate::rate::{Fairness, RateContract};
use crate::wire::{Reader, Writer};

/// Maximum loss that a contract may call noise: one half (see [`RateContract`]).
const LOSS_CEILING_PPM_MAX: u64 = 500_000;

/// Maximum number of sources in one request. Reason: they fit in one control frame with room to spare.
pub const SOURCES_MAX: usize = 4096;

/// Maximum length of a text for users in a message, in characters. Reason: room for a path and a sentence.
const TEXT_CHARS_MAX: usize = 4096;

/// Policy of a receiver for a file that exists at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// Keeps the existing file and reports an error.
    Never,
    /// Replaces the existing file.
    Always,
    /// Replaces the existing file if size or modification time differ. Otherwise the file counts as done.
    IfChanged,
}

pub(in crate::session) fn write_overwrite(w: &mut Writer, overwrite: Overwrite) {
    w.byte(match overwrite {
        Overwrite::Never => 1,
        Overwrite::Always => 2,
        Overwrite::IfChanged => 3,
    });
}

pub(in crate::session) fn read_overwrite(r: &mut Reader<'_>) -> Result<Overwrite, Error> {
    match r.byte()? {
        1 => Ok(Overwrite::Never),
        2 => Ok(Overwrite::Always),
        3 => Ok(Overwrite::IfChanged),
        code => Err(Error::protocol(format!("request from the peer: overwrite rule {code}"))),
    }
}

pub(in crate::session) fn write_expect(w: &mut Writer, expect: Option<Digest>) {
    w.bytes(expect.map_or(String::new(), |digest| digest.to_string()).as_bytes());
}

pub(in crate::session) fn read_expect(r: &mut Reader<'_>) -> Result<Option<Digest>, Error> {
    match r.bytes()? {
        b"" => Ok(None),
        text => String::from_utf8_lossy(text).parse().map(Some),
    }
}

pub(in crate::session) fn write_wish(w: &mut Writer, policy: CompressionPolicy) {
    w.byte(match policy {
        CompressionPolicy::Auto => 1,
        CompressionPolicy::Never => 2,
        CompressionPolicy::Always => 3,
    });
}

pub(in crate::session) fn read_wish(r: &mut Reader<'_>) -> Result<CompressionPolicy, Error> {
    match r.byte()? {
        1 => Ok(CompressionPolicy::Auto),
        2 => Ok(CompressionPolicy::Never),
        3 => Ok(CompressionPolicy::Always),
        code => Err(Error::protocol(format!("request from the peer: compression {code}"))),
    }
}

/// Reads a text for users. Drops characters that would control a terminal, and everything beyond [`TEXT_CHARS_MAX`].
pub(in crate::session) fn read_text(r: &mut Reader<'_>) -> Result<String, Error> {
    let text = String::from_utf8_lossy(r.bytes()?);
    Ok(text.chars().filter(|c| !drives_terminal(*c)).take(TEXT_CHARS_MAX).collect())
}

pub(in crate::session) fn read_flag(r: &mut Reader<'_>) -> Result<bool, Error> {
    Ok(r.integer_up_to(1)? == 1)
}

pub(in crate::session) fn write_checks(w: &mut Writer, checks: Checks) {
    w.byte(check_bits(checks));
}

fn check_bits(checks: Checks) -> u8 {
    let kinds = [checks.adler32, checks.crc32c, checks.md5, checks.sha256];
    kinds.iter().enumerate().fold(0, |bits, (bit, wanted)| bits | u8::from(*wanted) << bit)
}

pub(in crate::session) fn read_checks(r: &mut Reader<'_>) -> Result<Checks, Error> {
    let bits = r.byte()?;
    if bits > 0b1111 {
        return Err(Error::protocol(format!("digests from the peer: unknown kinds {bits:#b}")));
    }
    let wanted = |bit: u8| bits >> bit & 1 == 1;
    Ok(Checks { adler32: wanted(0), crc32c: wanted(1), md5: wanted(2), sha256: wanted(3) })
}

pub(in crate::session) fn write_digests(w: &mut Writer, digests: &FileDigests) {
    let FileDigests { blake3, adler32, crc32c, md5, sha256 } = digests;
    w.byte(check_bits(Checks {
        adler32: adler32.is_some(),
        crc32c: crc32c.is_some(),
        md5: md5.is_some(),
        sha256: sha256.is_some(),
    }));
    w.raw(blake3);
    adler32.iter().chain(crc32c).for_each(|sum| w.raw(&sum.to_be_bytes()));
    md5.iter().for_each(|sum| w.raw(sum));
    sha256.iter().for_each(|sum| w.raw(sum));
}

pub(in crate::session) fn read_digests(r: &mut Reader<'_>) -> Result<FileDigests, Error> {
    let checks = read_checks(r)?;
    Ok(FileDigests {
        blake3: r.array()?,
        adler32: checks.adler32.then(|| r.array().map(u32::from_be_bytes)).transpose()?,
        crc32c: checks.crc32c.then(|| r.array().map(u32::from_be_bytes)).transpose()?,
        md5: checks.md5.then(|| r.array()).transpose()?,
        sha256: checks.sha256.then(|| r.array()).transpose()?,
    })
}

/// Reads a count of at most `most`, then that many values.
pub(in crate::session) fn read_many<'a, T>(
    r: &mut Reader<'a>,
    most: usize,
    mut read: impl FnMut(&mut Reader<'a>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let count = r.integer_up_to(most as u64)?;
    // No memory is reserved: a count without data must not cost memory.
    (0..count).map(|_| read(r)).collect()
}

/// Writes a rate contract without `expected_rtt`, which stays local.
pub(in crate::session) fn write_contract(w: &mut Writer, contract: &RateContract) {
    let RateContract { ceiling, minimum, target, remembered, loss_ceiling_ppm, fairness, expected_rtt: _ } = *contract;
    for rate in [ceiling, minimum, target, remembered] {
        w.integer(rate.map_or(0, |rate| rate.0));
    }
    w.integer(u64::from(loss_ceiling_ppm));
    w.byte(u8::from(fairness == Fairness::Scavenger));
}

/// Reads a rate contract; `expected_rtt` is `None`.
pub(in crate::session) fn read_contract(r: &mut Reader<'_>) -> Result<RateContract, Error> {
    let mut rate = || Ok::<_, Error>(Some(BitRate(r.integer()?)).filter(|rate| rate.0 > 0));
    let (ceiling, minimum, target, remembered) = (rate()?, rate()?, rate()?, rate()?);
    let loss_ceiling_ppm = r.integer_up_to(LOSS_CEILING_PPM_MAX)? as u32;
    let fairness = if read_flag(r)? { Fairness::Scavenger } else { Fairness::Fair };
    let expected_rtt = None;
    Ok(RateContract { ceiling, minimum, target, remembered, loss_ceiling_ppm, fairness, expected_rtt })
}
