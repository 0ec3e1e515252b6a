//! Examinations recorded in the lab: the same evidence gives the imposed verdict.
//!
//! Each file of `bundles/` is the evidence of one run of bench/doctor.py, compressed by zstd. Its name starts with the
//! imposed causes, the first one first, and their direction (`both` for causes without one):
//! `receive_buffer+random_loss.forward.…`.

#![allow(clippy::print_stdout)]

use std::fs;
use std::path::{Path, PathBuf};

use sterna_doctor::evidence::Evidence;
use sterna_doctor::rules::diagnose;
use sterna_doctor::verdict::Cause;

/// Largest evidence, bytes.
const EVIDENCE_BYTES_MAX: usize = 16 << 20;

fn bundles() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bundles");
    let mut paths: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn evidence(path: &Path) -> Evidence {
    let mut json = vec![0; EVIDENCE_BYTES_MAX];
    let compressed = fs::read(path).unwrap();
    let length = zstd_safe::decompress(&mut json[..], &compressed);
    let length = length.unwrap_or_else(|code| panic!("{}: {code}", path.display()));
    serde_json::from_slice(&json[..length]).unwrap()
}

#[test]
fn recorded_examinations_have_the_imposed_verdicts() {
    let mut wrong = Vec::new();
    let paths = bundles();
    assert!(paths.len() >= 10, "{paths:?}");
    for path in &paths {
        let name = path.file_name().unwrap().to_str().unwrap();
        let mut words = name.split('.');
        let imposed: Vec<&str> = words.next().unwrap().split('+').collect();
        let direction = words.next().unwrap();
        let found = diagnose(&evidence(path));
        let first = &found.verdicts[0];
        let is_direction = direction == "both" || first.direction.name() == direction;
        let named: Vec<String> = found.verdicts.iter().map(|verdict| verdict.limit.name()).collect();
        let words = found.verdicts.iter().map(|verdict| {
            format!("\n    {} {}: {:?}", verdict.limit.name(), verdict.direction.name(), verdict.evidence)
        });
        println!("{name}: {}", words.collect::<String>());
        if first.limit.name() != imposed[0] || !is_direction {
            wrong.push(format!("{name}: {:?} {}", first.limit, first.direction.name()));
        }
        if imposed == ["clean"] && found.verdicts.iter().any(|verdict| verdict.limit != Cause::Clean) {
            wrong.push(format!("{name}: trouble on a clean path: {named:?}"));
        }
        let ladder: Vec<&str> = imposed.iter().copied().filter(|one| named.iter().any(|name| name == one)).collect();
        if direction != "both" && ladder != imposed {
            // The second cause may be a step of the ladder only.
            let steps = found.ladder.iter().filter(|step| step.direction.name() == direction);
            let steps: Vec<String> = steps.map(|step| step.limit.name()).collect();
            if !imposed.iter().all(|one| named.iter().chain(&steps).any(|name| name == one)) {
                wrong.push(format!("{name}: {named:?}, {steps:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), paths.len(), wrong.join("\n"));
}
