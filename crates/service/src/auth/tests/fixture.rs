//! Certificates of tests, with every field free: rcgen refuses names with two CNs, which every proxy has.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use base64::Engine;
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use rustls::pki_types::CertificateDer;
use tempfile::TempDir;
use time::OffsetDateTime;
use time::format_description::well_known::{Iso8601, iso8601};

use crate::auth::der::{self, SEQUENCE, SET, encode};
use crate::auth::{Trust, TrustDirs};

/// Time of all tests: 2026-09-21T14:13:20Z.
pub const NOW: i64 = 1_790_000_000;

/// Seconds of an hour.
pub const HOUR: i64 = 3600;

pub const INHERIT_ALL: &str = "1.3.6.1.5.5.7.21.1";
pub const INDEPENDENT: &str = "1.3.6.1.5.5.7.21.2";
pub const LIMITED: &str = "1.3.6.1.4.1.3536.1.1.1.9";
pub const PROXY_CERT_INFO: &str = "1.3.6.1.5.5.7.1.14";
pub const KEY_USAGE: &str = "2.5.29.15";
pub const BASIC_CONSTRAINTS: &str = "2.5.29.19";
pub const EXTENDED_KEY_USAGE: &str = "2.5.29.37";
pub const CLIENT_AUTH: &str = "1.3.6.1.5.5.7.3.2";
pub const SERVER_AUTH: &str = "1.3.6.1.5.5.7.3.1";

/// Value of a key usage: digitalSignature.
pub const SIGNATURE: [u8; 4] = [3, 2, 7, 0x80];
/// Value of a key usage: keyEncipherment.
pub const ENCIPHERMENT: [u8; 4] = [3, 2, 5, 0x20];
/// Value of a key usage: keyCertSign and cRLSign.
pub const AUTHORITY: [u8; 4] = [3, 2, 1, 0x06];

/// Algorithm identifier of ECDSA with SHA-256.
const ECDSA_SHA256: [u8; 12] = [0x30, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];

/// Returns the time of all tests, some seconds later.
pub fn at(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs((NOW + seconds) as u64)
}

/// Returns the content of an OID.
pub fn oid_content(dotted: &str) -> Vec<u8> {
    let arcs: Vec<u64> = dotted.split('.').map(|arc| arc.parse().unwrap()).collect();
    let mut content = Vec::new();
    for arc in std::iter::once(arcs[0] * 40 + arcs[1]).chain(arcs[2..].iter().copied()) {
        let groups = (1..10).rev().map(|group| (arc >> (7 * group)) as u8 & 0x7f | 0x80);
        content.extend(groups.skip_while(|byte| *byte == 0x80));
        content.push(arc as u8 & 0x7f);
    }
    content
}

/// Returns an OID in DER.
pub fn oid(dotted: &str) -> Vec<u8> {
    encode(der::OBJECT_IDENTIFIER, &oid_content(dotted))
}

/// Returns a SEQUENCE of encoded elements.
pub fn sequence(elements: &[&[u8]]) -> Vec<u8> {
    encode(SEQUENCE, &elements.concat())
}

/// Returns an attribute of a name. `tag`: that of the string.
pub fn attribute(dotted: &str, tag: u8, value: &[u8]) -> Vec<u8> {
    sequence(&[&oid(dotted), &encode(tag, value)])
}

/// Returns the RDN of one attribute.
pub fn rdn(dotted: &str, tag: u8, value: &[u8]) -> Vec<u8> {
    encode(SET, &attribute(dotted, tag, value))
}

/// Returns a name in DER from its slash form, with values without slashes.
pub fn name(slashes: &str) -> Vec<u8> {
    /// Tag of an IA5String.
    const IA5: u8 = 0x16;
    let rdns = slashes.split('/').skip(1).map(|part| {
        let (kind, value) = part.split_once('=').unwrap();
        let (dotted, tag) = match kind {
            "CN" => ("2.5.4.3", der::UTF8_STRING),
            "O" => ("2.5.4.10", der::UTF8_STRING),
            "OU" => ("2.5.4.11", der::UTF8_STRING),
            "DC" => ("0.9.2342.19200300.100.1.25", IA5),
            other => panic!("{other} in {slashes}"),
        };
        rdn(dotted, tag, value.as_bytes())
    });
    encode(SEQUENCE, &rdns.collect::<Vec<_>>().concat())
}

/// Returns the value of proxyCertInfo.
pub fn proxy_cert_info(path_length: Option<u8>, policy: &str) -> Vec<u8> {
    let length = path_length.map(|length| encode(der::INTEGER, &[length])).unwrap_or_default();
    sequence(&[&length, &sequence(&[&oid(policy)])])
}

/// Returns the value of an extended key usage.
pub fn purposes(purposes: &[&str]) -> Vec<u8> {
    encode(SEQUENCE, &purposes.iter().map(|purpose| oid(purpose)).collect::<Vec<_>>().concat())
}

/// Returns an extension.
pub fn extension(dotted: &str, is_critical: bool, value: &[u8]) -> Vec<u8> {
    let critical = if is_critical { encode(der::BOOLEAN, &[0xff]) } else { Vec::new() };
    sequence(&[&oid(dotted), &critical, &encode(der::OCTET_STRING, value)])
}

/// Returns a time as digits: `20260921141320Z`.
pub fn digits(seconds: i64) -> String {
    const CONFIG: iso8601::EncodedConfig = iso8601::Config::DEFAULT
        .set_use_separators(false)
        .set_time_precision(iso8601::TimePrecision::Second { decimal_digits: None })
        .encode();
    let text = OffsetDateTime::from_unix_timestamp(seconds).unwrap().format(&Iso8601::<CONFIG>).unwrap();
    text.replace('T', "")
}

/// Returns a signed object: body, algorithm, signature.
pub fn signed(body: &[u8], key: &KeyPair) -> Vec<u8> {
    let signature = [&[0], &key.sign(body).unwrap()[..]].concat();
    sequence(&[body, &ECDSA_SHA256, &encode(der::BIT_STRING, &signature)])
}

/// Algorithm that [`signed`] does not use: ECDSA with SHA-384, in DER.
pub const OTHER_ALGORITHM: [u8; 12] = [0x30, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3];

/// Algorithm that [`signed`] uses, in DER.
pub fn algorithm() -> &'static [u8] {
    &ECDSA_SHA256
}

/// Certificate that is not yet signed.
#[derive(Clone)]
pub struct Draft {
    /// Number of the version: 2 for version 3.
    pub version: u8,
    pub serial: u8,
    /// Algorithm in the signed bytes.
    pub algorithm: Vec<u8>,
    pub subject: Vec<u8>,
    pub issuer: Vec<u8>,
    pub start: i64,
    pub end: i64,
    pub extensions: Vec<Vec<u8>>,
    /// Bytes after the extensions.
    pub rest: Vec<u8>,
    pub key: Vec<u8>,
}

impl Draft {
    /// Creates a draft that is valid for a day, from an hour ago.
    pub fn new(subject: &str, issuer: &str, key: &KeyPair) -> Self {
        Self {
            version: 2,
            serial: 7,
            algorithm: algorithm().to_vec(),
            subject: name(subject),
            issuer: name(issuer),
            start: NOW - HOUR,
            end: NOW + 24 * HOUR,
            extensions: Vec::new(),
            rest: Vec::new(),
            key: key.subject_public_key_info(),
        }
    }

    /// Adds an extension.
    pub fn with(mut self, dotted: &str, is_critical: bool, value: &[u8]) -> Self {
        self.extensions.push(extension(dotted, is_critical, value));
        self
    }

    pub fn sign(&self, key: &KeyPair) -> CertificateDer<'static> {
        /// Tag of a UTCTime.
        const UTC_TIME: u8 = 0x17;
        let time = |seconds| encode(UTC_TIME, &digits(seconds).as_bytes()[2..]);
        let version = encode(0xa0, &encode(der::INTEGER, &[self.version]));
        let serial = encode(der::INTEGER, &[self.serial]);
        let validity = sequence(&[&time(self.start), &time(self.end)]);
        let extensions = match self.extensions.is_empty() {
            true => Vec::new(),
            false => encode(0xa3, &encode(SEQUENCE, &self.extensions.concat())),
        };
        let begin = [&version, &serial, &self.algorithm, &self.issuer, &validity, &self.subject];
        let body = [&begin[..], &[&self.key, &extensions, &self.rest]].concat();
        let body: Vec<&[u8]> = body.into_iter().map(Vec::as_slice).collect();
        CertificateDer::from(signed(&sequence(&body), key))
    }
}

/// Returns a new key: ECDSA with P-256.
pub fn new_key() -> KeyPair {
    KeyPair::generate().unwrap()
}

/// Certificate, its key and its subject.
pub struct Credential {
    pub cert: CertificateDer<'static>,
    pub key: KeyPair,
    pub subject: String,
}

impl Credential {
    /// Creates an authority that issues itself.
    pub fn authority(subject: &str) -> Self {
        let key = new_key();
        let draft = authority_draft(subject, subject, &key);
        Self { cert: draft.sign(&key), key, subject: subject.to_owned() }
    }

    /// Returns a draft that this credential can sign as its issuer.
    pub fn draft(&self, subject: &str, key: &KeyPair) -> Draft {
        Draft::new(subject, &self.subject, key)
    }

    /// Issues a certificate after changes of its draft.
    pub fn issue(&self, subject: &str, change: impl FnOnce(Draft) -> Draft) -> Self {
        let key = new_key();
        let cert = change(self.draft(subject, &key)).sign(&self.key);
        Self { cert, key, subject: subject.to_owned() }
    }

    /// Issues a certificate of a user.
    pub fn user(&self, subject: &str) -> Self {
        self.issue(subject, of_user)
    }

    /// Issues a proxy with this common name after changes of its draft.
    pub fn proxy(&self, common_name: &str, change: impl FnOnce(Draft) -> Draft) -> Self {
        let subject = format!("{}/CN={common_name}", self.subject);
        self.issue(&subject, change)
    }
}

/// Completes the draft of an authority.
pub fn authority_draft(subject: &str, issuer: &str, key: &KeyPair) -> Draft {
    let is_ca = sequence(&[&encode(der::BOOLEAN, &[0xff])]);
    Draft::new(subject, issuer, key).with(BASIC_CONSTRAINTS, true, &is_ca).with(KEY_USAGE, true, &AUTHORITY)
}

/// Completes the draft of a user.
pub fn of_user(draft: Draft) -> Draft {
    draft.with(KEY_USAGE, true, &SIGNATURE).with(EXTENDED_KEY_USAGE, false, &purposes(&[CLIENT_AUTH]))
}

/// Completes the draft of a proxy that inherits all rights.
pub fn full(draft: Draft) -> Draft {
    draft.with(PROXY_CERT_INFO, true, &proxy_cert_info(None, INHERIT_ALL)).with(KEY_USAGE, true, &SIGNATURE)
}

/// Authority, user, and the directories of a service that trusts them.
pub struct World {
    pub authority: Credential,
    pub user: Credential,
    pub dir: TempDir,
}

impl World {
    pub fn new() -> Self {
        let authority = Credential::authority("/DC=org/DC=example/CN=Test Authority");
        let user = authority.user("/DC=ch/DC=cern/CN=Test User");
        let world = Self { authority, user, dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(world.authorities()).unwrap();
        write_pem(&world.authorities().join("ca.pem"), &[&world.authority.cert]);
        world
    }

    /// Directory of authorities.
    pub fn authorities(&self) -> PathBuf {
        self.dir.path().join("certificates")
    }

    /// Directory of servers of VOs.
    pub fn voms(&self) -> PathBuf {
        self.dir.path().join("vomsdir")
    }

    pub fn trust(&self) -> Trust {
        let dirs = TrustDirs { authorities: self.authorities(), voms: Some(self.voms()) };
        Trust::open(dirs, at(0)).unwrap()
    }
}

/// Returns a section of PEM.
pub fn pem(label: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// Writes certificates to a file.
pub fn write_pem(path: &Path, certificates: &[&CertificateDer<'_>]) {
    let text: String = certificates.iter().map(|der| pem("CERTIFICATE", der)).collect();
    std::fs::write(path, text).unwrap();
}

/// Result of the program `openssl`.
pub struct Answer {
    pub is_ok: bool,
    pub stdout: String,
    pub stderr: String,
}

/// Runs the program `openssl`, the second opinion of these tests.
pub fn openssl(args: &[&str], stdin: &[u8]) -> Answer {
    let mut command = Command::new("openssl");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| {
        panic!("run openssl, which these tests need ({error}): install it with apt-get install openssl")
    });
    // The program may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Answer { is_ok: output.status.success(), stdout: text(output.stdout), stderr: text(output.stderr) }
}
