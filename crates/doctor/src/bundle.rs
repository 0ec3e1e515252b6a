//! Bundle of an examination: its evidence in a signed JSON file, from which any later release makes the report again.
//!
//! The signature is over the JSON value and not over the bytes of the file, so a file may be indented or sorted anew.
//! Signed are the members `about`, `evidence` and `format` in canonical form: members sorted by name, no white space,
//! numbers and strings as JSON writers write them. The Ed25519 key of the host signs the line
//! `sterna doctor bundle SHA-256`, with the digest of that form in hexadecimal digits.
//!
//! A signature shows that the holder of a key wrote the file and that nobody changed it since. It does not show that
//! the measurement was honest. Files come from strangers: reading one is bounded, and wrong content is an error.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sterna_net::identity::{Fingerprint, Identity, PublicKey};
use sterna_proto::file::plain;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use crate::evidence::{Evidence, Outcome};
use crate::report::About;

/// Version of the format.
pub const FORMAT: u64 = 1;

/// Maximum size of a bundle, bytes. Reason: an examination of 10 min has about 12 MB, and 64 streams some more.
pub const BYTES_MAX: usize = 64 << 20;

/// Maximum number of signatures. Reason: the host of the doctor, the agent, and witnesses.
const SIGNATURES_MAX: usize = 16;

/// Largest number in a bundle: 2^48, in bytes 281 TB. Reason: 180 s at 10 Tbit/s are less, sums over the samples of an
/// examination do not overflow, and other languages read it exactly.
const NUMBER_MAX: f64 = 281_474_976_710_656.0;

/// Maximum length of a list. Reason: an examination has some thousand numbers of lost packets, and a minute of samples;
/// each item of a list takes hundreds of bytes once it is read, however short its text is.
const ITEMS_MAX: usize = 10_000;

/// Maximum number of samples of all flows. Reason: an examination of 10 min with single streams has 24,000.
const SAMPLES_MAX: usize = 200_000;

/// Maximum number of experiments. Reason: an examination of 10 min has some dozens.
const RECORDS_MAX: usize = 256;

/// Member that may have a larger number: a flow without a maximum of bytes has the largest one.
const UNBOUNDED: &str = "bytes_max";

/// Purpose of the signature, so that it serves no other one.
const PURPOSE: &str = "sterna doctor bundle ";

/// Evidence of an examination, and its circumstances.
#[derive(Clone, Debug, PartialEq)]
pub struct Bundle {
    /// Circumstances of the examination.
    pub about: About,
    /// Evidence.
    pub evidence: Evidence,
}

/// Bundle that was read, with the proof that it is unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedBundle {
    /// Bundle.
    pub bundle: Bundle,
    /// Proof.
    pub proof: Proof,
}

/// Signatures of a bundle that were verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Proof {
    /// SHA-256 of the canonical form, hexadecimal.
    pub digest: String,
    /// Fingerprints of the keys that signed; empty: nobody did, and anybody may have changed the file.
    pub signers: Vec<String>,
}

/// Signature as the file has it.
#[derive(Serialize, Deserialize)]
struct Signature {
    /// Ed25519 public key, base64.
    key: String,
    /// Signature, base64.
    signature: String,
}

impl Bundle {
    /// Returns the bytes of the file, signed by the key of this host, and the proof.
    ///
    /// Errors: `Internal`.
    pub fn sign(&self, identity: &Identity) -> Result<(Vec<u8>, Proof), Error> {
        let internal = |e: serde_json::Error| {
            Error::new(ErrorKind::Internal, Scope::Client, Phase::Finalise, "write a bundle as JSON").caused_by(e)
        };
        let text = serde_json::to_vec(&serde_json::json!({
            "format": FORMAT,
            "about": self.about,
            "evidence": self.evidence,
        }))
        .map_err(internal)?;
        // Read back, because a reader may have another number for the digits of a fraction.
        let mut file: Map<String, Value> = serde_json::from_slice(&text).map_err(internal)?;
        let digest = digest(&file);
        let signature = Signature {
            key: STANDARD.encode(identity.public_key().0),
            signature: STANDARD.encode(identity.sign(signed_line(&digest).as_bytes())),
        };
        file.insert("signatures".to_owned(), serde_json::to_value([signature]).map_err(internal)?);
        let bytes = serde_json::to_vec(&file).map_err(internal)?;
        Ok((bytes, Proof { digest, signers: vec![identity.fingerprint().to_string()] }))
    }

    /// Reads a file and verifies all its signatures.
    ///
    /// Errors: `Limit`: too large; `Corrupt`: no bundle; `Untrusted`: a signature does not fit, because the file was
    /// changed after it was signed.
    pub fn read(bytes: &[u8]) -> Result<SignedBundle, Error> {
        if bytes.len() > BYTES_MAX {
            let text = format!("the file has more than {} MiB, and a bundle has less", BYTES_MAX >> 20);
            return Err(Error::new(ErrorKind::Limit, Scope::Client, Phase::Prepare, text));
        }
        let mut file: Map<String, Value> = serde_json::from_slice(bytes)
            .map_err(|e| corrupt("the file is no bundle of the doctor: no JSON object").caused_by(e))?;
        let format = file.get("format").and_then(Value::as_u64);
        if format != Some(FORMAT) {
            return Err(corrupt(match format {
                Some(other) => format!("the bundle has format {other}, and this release reads format {FORMAT}"),
                None => "the file is no bundle of the doctor: it names no format".to_owned(),
            }));
        }
        file.iter().try_for_each(|(name, member)| bounded(name, member)).map_err(corrupt)?;
        let proof = verify(&file)?;
        let mut member = |name: &str| file.remove(name).unwrap_or_default();
        let (about, evidence) = (member("about"), member("evidence"));
        let wrong = |name: &str| {
            let text = format!("the member \"{name}\" of the bundle cannot be read");
            move |e: serde_json::Error| corrupt(text).caused_by(e)
        };
        let bundle = Self {
            about: serde_json::from_value(about).map_err(wrong("about"))?,
            evidence: serde_json::from_value(evidence).map_err(wrong("evidence"))?,
        };
        few(&bundle.evidence).map_err(corrupt)?;
        Ok(SignedBundle { bundle, proof })
    }
}

impl Proof {
    /// Requires the signature of a key. Errors: `Untrusted`.
    pub fn require(&self, key: &Fingerprint) -> Result<(), Error> {
        if self.signers.contains(&key.to_string()) {
            return Ok(());
        }
        let signed = match self.signers.first() {
            Some(signer) => format!("is signed by {signer}"),
            None => "is not signed".to_owned(),
        };
        Err(untrusted(format!("the bundle {signed}, not by {key}")))
    }
}

/// Returns the proof of the signatures; an error if one of them does not fit.
fn verify(file: &Map<String, Value>) -> Result<Proof, Error> {
    let digest = digest(file);
    let signatures: Vec<Signature> = match file.get("signatures") {
        None => Vec::new(),
        Some(value) => serde_json::from_value(value.clone())
            .map_err(|e| corrupt("the signatures of the bundle cannot be read").caused_by(e))?,
    };
    if signatures.len() > SIGNATURES_MAX {
        return Err(corrupt(format!("the bundle has more than {SIGNATURES_MAX} signatures")));
    }
    let mut signers = Vec::new();
    for signature in signatures {
        let key = PublicKey(decoded(&signature.key).ok_or_else(|| corrupt("a key in the bundle is not Ed25519"))?);
        let bytes = decoded(&signature.signature).ok_or_else(|| corrupt("a signature in the bundle is not Ed25519"))?;
        key.verify(signed_line(&digest).as_bytes(), &bytes).map_err(|e| {
            let text = format!("the bundle was changed after {} signed it: do not use it", key.fingerprint());
            untrusted(text).caused_by(e)
        })?;
        signers.push(key.fingerprint().to_string());
    }
    Ok(Proof { digest, signers })
}

fn decoded<const N: usize>(text: &str) -> Option<[u8; N]> {
    STANDARD.decode(text).ok()?.try_into().ok()
}

/// Returns the text that a key signs.
fn signed_line(digest: &str) -> String {
    format!("{PURPOSE}{digest}\n")
}

/// Returns the SHA-256 of the signed members in canonical form.
fn digest(file: &Map<String, Value>) -> String {
    let mut text = String::from("{");
    for (index, name) in ["about", "evidence", "format"].into_iter().enumerate() {
        text.push_str(if index > 0 { "," } else { "" });
        canonical(&Value::from(name), &mut text);
        text.push(':');
        canonical(file.get(name).unwrap_or(&Value::Null), &mut text);
    }
    text.push('}');
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Appends the canonical form of a value. The reader has bounded its depth.
fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index > 0 { "," } else { "" });
                canonical(item, text);
            }
            text.push(']');
        }
        Value::Object(members) => {
            // A feature of the JSON crate that any crate of the program may switch on keeps the order of the file.
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| *name);
            text.push('{');
            for (index, (name, member)) in sorted.into_iter().enumerate() {
                text.push_str(if index > 0 { "," } else { "" });
                canonical(&Value::from(name.as_str()), text);
                text.push(':');
                canonical(member, text);
            }
            text.push('}');
        }
        other => text.push_str(&other.to_string()),
    }
}

/// Refuses numbers with which later sums would overflow, and lists that would take much memory.
fn bounded(name: &str, value: &Value) -> Result<(), String> {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(number) if number.abs() <= NUMBER_MAX || name == UNBOUNDED => Ok(()),
            _ => Err(format!("the bundle has the number {number} as \"{}\": no examination has that", plain(name))),
        },
        Value::Array(items) if items.len() > ITEMS_MAX => {
            Err(format!("the bundle has a list of {} items as \"{}\": at most {ITEMS_MAX}", items.len(), plain(name)))
        }
        Value::Array(items) => items.iter().try_for_each(|item| bounded(name, item)),
        Value::Object(members) => members.iter().try_for_each(|(name, member)| bounded(name, member)),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

/// Refuses evidence whose views would take long: they look at every sample of every stream of every experiment.
fn few(evidence: &Evidence) -> Result<(), String> {
    if evidence.records.len() > RECORDS_MAX {
        return Err(format!("the bundle has {} experiments: at most {RECORDS_MAX}", evidence.records.len()));
    }
    let streams = evidence.records.iter().filter_map(|record| match &record.outcome {
        Outcome::Flow(pair) => Some(pair.sender.streams.iter().chain(&pair.receiver.streams)),
        _ => None,
    });
    let samples: usize = streams.flatten().map(|stream| stream.samples.len()).sum();
    match samples > SAMPLES_MAX {
        true => Err(format!("the bundle has {samples} samples: at most {SAMPLES_MAX}")),
        false => Ok(()),
    }
}

fn corrupt(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, Scope::Client, Phase::Prepare, text)
}

fn untrusted(text: String) -> Error {
    Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, text)
}
