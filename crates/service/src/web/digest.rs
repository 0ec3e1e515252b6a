//! Checksums of a transfer: those that a job asks for, and the `Digest` header of storages (RFC 3230).
//!
//! A storage that does not know the wanted algorithm answers with another one: the name in the answer is compared.
//! Refuses to compute.

use hyper::header::HeaderMap;
use sterna_proto::{Algorithm, Digest, Error, ErrorKind, Phase, Scope};

use crate::checksum::{self, read_value};
use crate::job::{ChecksumPolicy, Task};

/// Header that asks for a digest.
pub(super) const WANT_DIGEST: &str = "want-digest";

/// Header with digests.
const DIGEST: &str = "digest";

/// Comparison that a job asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Check {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Digest that the user gave.
    pub given: Option<Digest>,
    /// Ends whose digests count.
    policy: ChecksumPolicy,
}

impl Check {
    /// Returns the comparison of a task; `None`: it asks for none.
    ///
    /// Errors: `Usage`, when storages do not have the algorithm, or the value is none of its values.
    pub fn of(task: &Task) -> Result<Option<Self>, Error> {
        if task.options.checksum == ChecksumPolicy::None {
            return Ok(None);
        }
        // FTS3 takes Adler-32 if a request names no algorithm.
        let text = task.checksum.as_deref().unwrap_or("ADLER32");
        let (algorithm, given) = checksum::read(text)?;
        if name_in_header(algorithm).is_none() {
            let text = format!("storages have no {algorithm} checksum: expected one of adler32, crc32c, md5, sha256");
            return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        }
        Ok(Some(Self { algorithm, given, policy: task.options.checksum }))
    }

    /// Returns true if the digest of the source counts.
    pub fn has_source(self) -> bool {
        matches!(self.policy, ChecksumPolicy::Source | ChecksumPolicy::Both)
    }

    /// Returns true if the digest of the destination counts.
    pub fn has_destination(self) -> bool {
        matches!(self.policy, ChecksumPolicy::Target | ChecksumPolicy::Both)
    }
}

/// Returns the name of an algorithm in `Want-Digest` and `Digest`; `None`: storages do not have it.
pub(super) fn name_in_header(algorithm: Algorithm) -> Option<&'static str> {
    match algorithm {
        Algorithm::Adler32 => Some("adler32"),
        Algorithm::Crc32c => Some("crc32c"),
        Algorithm::Md5 => Some("md5"),
        Algorithm::Sha256 => Some("sha-256"),
        Algorithm::Blake3 => None,
    }
}

/// Returns the digest of an algorithm in the `Digest` header of an answer.
///
/// Only an answer to a request that asked for it counts: XRootD 5.5 repeats a digest in later answers, also for other
/// files.
pub(super) fn read_header(headers: &HeaderMap, algorithm: Algorithm) -> Option<Digest> {
    let wanted = name_in_header(algorithm)?;
    let lines = headers.get_all(DIGEST).into_iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).find_map(|one| {
        let (name, value) = one.trim().split_once('=')?;
        name.trim().eq_ignore_ascii_case(wanted).then(|| read_value(algorithm, value.trim()))?
    })
}

/// Returns true if a digest is one that EOS reports before it has computed it: zero. No bytes have an Adler-32 of zero.
pub(super) fn is_unready(digest: Digest) -> bool {
    digest == Digest::Adler32(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobOptions;

    fn header(text: &str) -> HeaderMap {
        HeaderMap::from_iter([(hyper::header::HeaderName::from_static(DIGEST), text.parse().unwrap())])
    }

    #[test]
    fn digests_of_real_servers_are_read() {
        let crc = Some(Digest::Crc32c(0xc40a_d636));
        for (text, algorithm, expected) in [
            ("adler32=35070605", Algorithm::Adler32, Some(Digest::Adler32(0x3507_0605))),
            ("adler32=7061a", Algorithm::Adler32, Some(Digest::Adler32(0x0007_061a))),
            ("ADLER32=35070605", Algorithm::Adler32, Some(Digest::Adler32(0x3507_0605))),
            ("crc32c=xArWNg==", Algorithm::Crc32c, crc),
            ("crc32c=c40ad636", Algorithm::Crc32c, crc),
            ("md5=ZEvgbfxUBh/R5n9eu6vNWA==, crc32c=c40ad636", Algorithm::Crc32c, crc),
            ("adler32=35070605", Algorithm::Md5, None),
            ("md5=35070605", Algorithm::Md5, None),
            ("adler32", Algorithm::Adler32, None),
            ("", Algorithm::Adler32, None),
        ] {
            assert_eq!(read_header(&header(text), algorithm), expected, "{text}");
        }
        let md5 = read_header(&header("md5=ZEvgbfxUBh/R5n9eu6vNWA=="), Algorithm::Md5).unwrap();
        assert_eq!(md5.hex(), "644be06dfc54061fd1e67f5ebbabcd58");
        let hex = read_header(&header("md5=644be06dfc54061fd1e67f5ebbabcd58"), Algorithm::Md5);
        assert_eq!(hex, Some(md5));
    }

    #[test]
    fn a_job_names_an_algorithm_and_a_value_in_any_spelling() {
        let check = |checksum: Option<&str>, policy| {
            let options = JobOptions { checksum: policy, ..JobOptions::default() };
            Check::of(&Task { checksum: checksum.map(str::to_owned), options, ..Task::default() })
        };
        assert_eq!(check(Some("ADLER32:1"), ChecksumPolicy::None).unwrap(), None);
        let named = check(Some("ADLER32"), ChecksumPolicy::Both).unwrap().unwrap();
        assert_eq!((named.algorithm, named.given), (Algorithm::Adler32, None));
        assert!(named.has_source() && named.has_destination());
        let given = check(Some("Adler32:061A"), ChecksumPolicy::Target).unwrap().unwrap();
        assert_eq!(given.given, Some(Digest::Adler32(0x061a)));
        assert!(!given.has_source() && given.has_destination());
        let sha = check(Some(&format!("SHA-256:{}", "ab".repeat(32))), ChecksumPolicy::Source).unwrap().unwrap();
        assert_eq!(sha.algorithm, Algorithm::Sha256);
        assert_eq!(check(None, ChecksumPolicy::Both).unwrap().unwrap().algorithm, Algorithm::Adler32);
        for wrong in ["CRC7:1", "BLAKE3", "ADLER32:xyz", "MD5:12"] {
            assert_eq!(check(Some(wrong), ChecksumPolicy::Both).unwrap_err().kind, ErrorKind::Usage, "{wrong}");
        }
    }
}
