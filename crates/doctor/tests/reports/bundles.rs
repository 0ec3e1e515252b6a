//! Signed bundles, and files that are none.

use serde_json::Value;
use sterna_doctor::bundle::{BYTES_MAX, Bundle};
use sterna_net::identity::Identity;
use sterna_proto::ErrorKind;
use sterna_seeded::{Seeded, for_seeds};

use super::examined::{about, policed};
use super::pages::drawn;

/// Number of damaged files of each kind.
const FILES: u64 = 160;

fn bundle() -> Bundle {
    Bundle { about: about(), evidence: policed() }
}

fn failure(bytes: &[u8]) -> (ErrorKind, String) {
    let error = Bundle::read(bytes).unwrap_err();
    (error.kind, error.chain())
}

#[test]
fn a_bundle_comes_back_with_its_signer() {
    let identity = Identity::ephemeral().unwrap();
    let (bytes, proof) = bundle().sign(&identity).unwrap();
    let read = Bundle::read(&bytes).unwrap();
    assert_eq!((&read.bundle, &read.proof), (&bundle(), &proof));
    assert_eq!(proof.signers, [identity.fingerprint().to_string()]);
    assert!(proof.require(&identity.fingerprint()).is_ok());
    let other = Identity::ephemeral().unwrap().fingerprint();
    assert_eq!(proof.require(&other).unwrap_err().kind, ErrorKind::Untrusted);
}

#[test]
fn the_layout_of_the_file_is_not_signed() {
    let (bytes, proof) = bundle().sign(&Identity::ephemeral().unwrap()).unwrap();
    let value: Value = serde_json::from_slice(&bytes).unwrap();
    let indented = serde_json::to_vec_pretty(&value).unwrap();
    assert_ne!(indented, bytes);
    assert_eq!(Bundle::read(&indented).unwrap().proof, proof);
}

#[test]
fn a_changed_bundle_is_an_error_that_names_the_signer() {
    let identity = Identity::ephemeral().unwrap();
    let (bytes, _) = bundle().sign(&identity).unwrap();
    let changes: [fn(&mut Value); 4] = [
        |file| file["about"]["address"] = "192.0.2.8:7373".into(),
        |file| file["evidence"]["records"][1]["outcome"]["flow"]["sender"]["streams"][0]["mss"] = 1400.into(),
        |file| file["evidence"]["new"] = 1.into(),
        |file| {
            file["evidence"]["records"].as_array_mut().unwrap().pop();
        },
    ];
    for change in changes {
        let mut file: Value = serde_json::from_slice(&bytes).unwrap();
        change(&mut file);
        let (kind, text) = failure(&serde_json::to_vec(&file).unwrap());
        assert_eq!(kind, ErrorKind::Untrusted);
        assert!(text.contains("was changed after") && text.contains(&identity.fingerprint().to_string()), "{text}");
    }
}

#[test]
fn a_bundle_without_a_signature_has_no_signer() {
    let (bytes, _) = bundle().sign(&Identity::ephemeral().unwrap()).unwrap();
    let mut file: Value = serde_json::from_slice(&bytes).unwrap();
    file.as_object_mut().unwrap().remove("signatures");
    let read = Bundle::read(&serde_json::to_vec(&file).unwrap()).unwrap();
    assert!(read.proof.signers.is_empty());
    assert!(read.proof.require(&Identity::ephemeral().unwrap().fingerprint()).is_err());
}

/// Makes a list of `count` copies of its first item.
fn repeat(list: &mut Value, count: usize) {
    *list = vec![list[0].clone(); count].into();
}

#[test]
fn other_files_are_errors_with_a_reason() {
    let (bytes, _) = bundle().sign(&Identity::ephemeral().unwrap()).unwrap();
    let edited = |edit: fn(&mut Value)| {
        let mut file: Value = serde_json::from_slice(&bytes).unwrap();
        edit(&mut file);
        serde_json::to_vec(&file).unwrap()
    };
    let unsigned = |edit: fn(&mut Value)| {
        let mut file: Value = serde_json::from_slice(&bytes).unwrap();
        file.as_object_mut().unwrap().remove("signatures");
        edit(&mut file["evidence"]);
        serde_json::to_vec(&file).unwrap()
    };
    let deep = format!("{{\"format\":1,\"about\":{}", "[".repeat(100_000));
    for (file, kind, said) in [
        (Vec::new(), ErrorKind::Corrupt, "no JSON object"),
        (b"[1, 2]".to_vec(), ErrorKind::Corrupt, "no JSON object"),
        (bytes[..bytes.len() / 2].to_vec(), ErrorKind::Corrupt, "no JSON object"),
        (deep.into_bytes(), ErrorKind::Corrupt, "no JSON object"),
        (b"{}".to_vec(), ErrorKind::Corrupt, "names no format"),
        (edited(|file| file["format"] = 9.into()), ErrorKind::Corrupt, "has format 9"),
        (
            edited(|file| file["signatures"] = "me".into()),
            ErrorKind::Corrupt,
            "signatures of the bundle cannot be read",
        ),
        (edited(|file| file["signatures"][0]["key"] = "AAAA".into()), ErrorKind::Corrupt, "a key in the bundle"),
        (
            edited(|file| file["evidence"]["connect_us"] = u64::MAX.into()),
            ErrorKind::Corrupt,
            "no examination has that",
        ),
        (unsigned(|evidence| repeat(&mut evidence["records"], 257)), ErrorKind::Corrupt, "257 experiments"),
        (
            unsigned(|evidence| {
                let mut flow = evidence["records"].as_array_mut().unwrap().iter_mut();
                let flow = flow.find(|record| record["outcome"].get("flow").is_some()).unwrap();
                repeat(&mut flow["outcome"]["flow"]["receiver"]["streams"], 65);
            }),
            ErrorKind::Corrupt,
            "a list of more than 64 items",
        ),
        (vec![b' '; BYTES_MAX + 1], ErrorKind::Limit, "more than 64 MiB"),
    ] {
        let (found, text) = failure(&file);
        assert!(found == kind && text.contains(said), "{found:?}: {text}");
    }
}

#[test]
fn damaged_files_are_errors_and_no_panics() {
    let (bytes, _) = bundle().sign(&Identity::ephemeral().unwrap()).unwrap();
    for_seeds("doctor: damaged bundle", FILES, |seed| {
        let draw = &mut Seeded::new(seed);
        let mut damaged = bytes.clone();
        for _ in 0..=draw.below(3) {
            let at = draw.index(damaged.len());
            match draw.below(4) {
                0 => damaged[at] ^= 1 << draw.below(8),
                1 => drop(damaged.remove(at)),
                2 => damaged.insert(at, draw.draw() as u8),
                _ => damaged.truncate(at),
            }
            if damaged.is_empty() {
                break;
            }
        }
        if let Ok(read) = Bundle::read(&damaged) {
            assert!(read.bundle == bundle() || read.proof.signers.is_empty(), "a change that no signature shows");
        }
    });
}

#[test]
fn any_numbers_in_a_bundle_have_a_page() {
    let identity = Identity::ephemeral().unwrap();
    let whole = serde_json::to_value(policed()).unwrap();
    for_seeds("doctor: any numbers", FILES / 4, |seed| {
        let draw = &mut Seeded::new(seed);
        let mut evidence = whole.clone();
        let share = [1, 20, 300, 1000][draw.index(4)];
        scramble("", &mut evidence, draw, share);
        // Numbers that a field cannot have are refused by the reader.
        let Ok(evidence) = serde_json::from_value(evidence) else { return };
        let (bytes, _) = Bundle { about: about(), evidence }.sign(&identity).unwrap();
        if let Ok(read) = Bundle::read(&bytes) {
            let (page, figures) = drawn(&read.bundle.evidence, &read.bundle.about);
            assert!(!page.contains("NaN"), "{page}");
            figures.iter().for_each(|figure| drop(figure.file()));
        }
    });
}

/// Members whose type takes no large number somewhere.
const SMALL: [&str; 15] = [
    "mss",
    "path_mtu",
    "processors",
    "version",
    "streams",
    "ports",
    "per_port",
    "packet_bytes",
    "bytes",
    "port",
    "peer_scale",
    "own_scale",
    "sent",
    "received",
    "interval_us",
];

/// Replaces numbers, `per_mille` of a thousand, and shortens some lists. `name`: member that has the value.
fn scramble(name: &str, value: &mut Value, draw: &mut Seeded, per_mille: u64) {
    let most = if SMALL.contains(&name) { 255 } else { 1 << 48 };
    match value {
        Value::Number(number) if draw.chance(per_mille) => {
            let next = match draw.below(5) {
                0 => 0,
                1 => 1,
                2 => number.as_u64().unwrap_or(0).saturating_mul(1000),
                3 => most,
                _ => draw.below(1 << 16),
            };
            *value = next.min(most).into();
        }
        Value::Array(items) => {
            if draw.chance(per_mille / 20) {
                items.truncate(draw.index(items.len() + 1));
            }
            items.iter_mut().for_each(|item| scramble(name, item, draw, per_mille));
        }
        Value::Object(members) => {
            members.iter_mut().for_each(|(name, member)| scramble(name, member, draw, per_mille));
        }
        _ => {}
    }
}
