//! Checksums as jobs and storages write them: `ALGORITHM:value`, or `ALGORITHM` alone.
//!
//! Refuses to compute.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sterna_proto::{Algorithm, Digest, Error, ErrorKind, Phase, Scope};

fn usage(text: String) -> Error {
    Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
}

/// Reads an algorithm, in any case and with or without a hyphen, and the value if there is one.
///
/// Errors: `Usage`, with the names of the algorithms, or for a value that the algorithm does not have.
pub fn read(text: &str) -> Result<(Algorithm, Option<Digest>), Error> {
    let (name, value) = text.split_once(':').map_or((text, ""), |(name, value)| (name, value));
    let Ok(algorithm) = name.to_ascii_lowercase().replace('-', "").parse::<Algorithm>() else {
        let shown: String = name.chars().take(32).collect();
        let known = Algorithm::ALL.map(Algorithm::name).join(", ");
        return Err(usage(format!("the checksum {shown:?} is not known: expected one of {known}")));
    };
    if value.is_empty() {
        return Ok((algorithm, None));
    }
    let digest = read_value(algorithm, value);
    digest.map(|digest| (algorithm, Some(digest))).ok_or_else(|| {
        let shown: String = value.chars().take(140).collect();
        usage(format!("{shown:?} is no {algorithm} checksum"))
    })
}

/// Reads a value: hexadecimal, perhaps without leading zeros, or base64. XRootD writes CRC-32C in base64 up to 5.8.0,
/// and in hexadecimal later.
pub fn read_value(algorithm: Algorithm, value: &str) -> Option<Digest> {
    if let Ok(digest) = format!("{algorithm}:{value}").parse() {
        return Some(digest);
    }
    let bytes = STANDARD.decode(value).ok()?;
    match algorithm {
        Algorithm::Adler32 => Some(Digest::Adler32(u32::from_be_bytes(bytes.try_into().ok()?))),
        Algorithm::Crc32c => Some(Digest::Crc32c(u32::from_be_bytes(bytes.try_into().ok()?))),
        Algorithm::Md5 => Some(Digest::Md5(bytes.try_into().ok()?)),
        Algorithm::Sha256 => Some(Digest::Sha256(bytes.try_into().ok()?)),
        Algorithm::Blake3 => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_name_their_algorithm_in_any_spelling() {
        for (text, algorithm, digest) in [
            ("ADLER32:1a2b3c4d", Algorithm::Adler32, Some(Digest::Adler32(0x1a2b_3c4d))),
            ("adler32:061A", Algorithm::Adler32, Some(Digest::Adler32(0x061a))),
            ("ADLER32", Algorithm::Adler32, None),
            ("ADLER32:", Algorithm::Adler32, None),
            ("SHA-256", Algorithm::Sha256, None),
            ("Crc32C:xArWNg==", Algorithm::Crc32c, Some(Digest::Crc32c(0xc40a_d636))),
        ] {
            assert_eq!(read(text).unwrap(), (algorithm, digest), "{text}");
        }
        let unknown = read("WHIRLPOOL:00").unwrap_err();
        let expected = r#"the checksum "WHIRLPOOL" is not known: expected one of adler32, crc32c, md5, sha256, blake3"#;
        assert_eq!((unknown.kind, unknown.text()), (ErrorKind::Usage, expected));
        for wrong in ["", ":1", "adler32:xyz", "MD5:12", "blake3:zz"] {
            assert_eq!(read(wrong).unwrap_err().kind, ErrorKind::Usage, "{wrong}");
        }
    }
}
