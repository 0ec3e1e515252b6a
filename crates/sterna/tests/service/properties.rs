//! Generated requests: schemathesis sends what the descriptions allow and what they do not. The service never fails.
//!
//! `scripts/schemathesis.sh` installs it. Each run has a new seed, which is printed: `STERNA_SEED` repeats a run, and
//! `STERNA_EXAMPLES` sets the number of requests for each operation.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::client::Serve;

/// Number of requests for each operation. Reason: a minute for both interfaces; more are for a run by hand.
const EXAMPLES: &str = "20";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the directory with the programs, which the script installs.
fn programs() -> PathBuf {
    root().join("target/schemathesis/bin")
}

fn setting(name: &str, default: impl FnOnce() -> String) -> String {
    std::env::var(name).unwrap_or_else(|_| default())
}

/// Returns a new seed. Its randomness is that of the keys of hashed maps.
fn new_seed() -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    (RandomState::new().build_hasher().finish() % 1_000_000_000).to_string()
}

/// Runs schemathesis on a description, with these checks.
fn run(serve: &Serve, description: &str, checks: &str) {
    let seed = setting("STERNA_SEED", new_seed);
    let examples = setting("STERNA_EXAMPLES", || EXAMPLES.to_owned());
    let (cert, key) = serve.pair();
    let authority = std::fs::read_dir(serve.capath()).unwrap().next().unwrap().unwrap().path();
    let mut command = Command::new(programs().join("schemathesis"));
    command.args(["run", &format!("{}{description}", serve.url()), "--checks", checks, "--phases", "coverage,fuzzing"]);
    command.args(["--max-examples", &examples, "--seed", &seed, "--request-timeout", "60", "--no-color"]);
    command.arg("--request-cert").arg(cert).arg("--request-cert-key").arg(key).arg("--tls-verify").arg(&authority);
    // Changes go on for ever as a stream.
    command.current_dir(serve.state_dir()).env("REQUESTS_CA_BUNDLE", &authority);
    let output = command.output().unwrap_or_else(|e| panic!("{e}; scripts/schemathesis.sh installs schemathesis"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "STERNA_SEED={seed} repeats the run: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn generated_requests_never_make_the_native_interface_fail() {
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";
    run(&Serve::start(), "/api/v1/openapi.json", checks);
}

#[test]
fn generated_requests_never_make_the_fts3_interface_fail() {
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";
    run(&Serve::start(), "/api-docs/openapi.json", checks);
}

#[test]
fn both_descriptions_are_valid() {
    let serve = Serve::start();
    let http = serve.http();
    for path in crate::http::DESCRIPTIONS {
        let file = serve.state_dir().join("openapi.json");
        std::fs::write(&file, http.send("GET", path, None, b"").body).unwrap();
        let output = Command::new(programs().join("openapi-spec-validator")).arg(&file).output();
        let output = output.unwrap_or_else(|e| panic!("{e}; scripts/schemathesis.sh installs the validator"));
        assert!(output.status.success(), "{path}: {output:?}");
    }
    // Rules beyond the standard: operations are told apart, and say what they do.
    let mut names = std::collections::BTreeSet::new();
    for (method, path, operation) in crate::http::operations(&http) {
        let text = |key: &str| operation[key].as_str().unwrap_or_default().to_owned();
        let interface = path.starts_with("/api/v1") || path.starts_with("/ui");
        assert!(names.insert((interface, text("operationId"))), "{method} {path}: the operationId is taken");
        assert!(!text("summary").is_empty(), "{method} {path} has no summary");
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(parameter["description"].is_string(), "{method} {path}: {parameter} has no description");
        }
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with('2') || status.starts_with('3')), "{method} {path}");
        for (status, response) in responses {
            let is_described = response["description"].as_str().is_some_and(|text| !text.is_empty());
            assert!(is_described, "{method} {path}: {status} has no description");
        }
    }
    let schema = http.send("GET", "/api-docs/schema/submit", None, b"").json();
    let file = serve.state_dir().join("schema.json");
    std::fs::write(&file, schema.to_string()).unwrap();
    let check =
        "import json, jsonschema, sys; jsonschema.Draft202012Validator.check_schema(json.load(open(sys.argv[1])))";
    let output = Command::new(programs().join("python")).args(["-c", check]).arg(&file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
