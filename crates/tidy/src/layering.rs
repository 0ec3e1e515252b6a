//! Rules on dependencies: crates depend only on lower layers, and crates have no features yet.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::Finding;

/// Dependencies that each crate of this workspace may have. A new crate needs an entry here.
const LAYERS: [(&str, &[&str]); 9] = [
    ("sterna-proto", &[]),
    ("sterna-net", &["sterna-proto"]),
    ("sterna-lab", &["sterna-proto"]),
    ("sterna-sched", &["sterna-proto"]),
    ("sterna-doctor", &["sterna-net", "sterna-proto"]),
    ("sterna-service", &["sterna-doctor", "sterna-net", "sterna-sched", "sterna-proto"]),
    ("sterna", &["sterna-service", "sterna-doctor", "sterna-net", "sterna-proto", "sterna-lab"]),
    ("sterna-seeded", &[]),
    ("sterna-tidy", &[]),
];

/// Additional dependencies that every crate may use in its tests (`[dev-dependencies]`), except for the crate itself.
const FOR_TESTS: [&str; 2] = ["sterna-lab", "sterna-seeded"];

/// Dependencies that would give the sans-IO core access to sockets, a runtime or kernel calls.
const BANNED_IN_CORE: [&str; 11] =
    ["tokio", "futures", "async-std", "smol", "mio", "socket2", "rustix", "libc", "nix", "log", "tracing"];

/// Returns the output of `cargo metadata` for the workspace at `root`, without external dependencies.
///
/// Errors: cargo could not run or did not print JSON; the message includes cargo's output.
pub fn metadata(root: &Path) -> Result<Value, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).current_dir(root);
    let output = command.output().map_err(|e| format!("run cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

/// Finds dependencies that are not on a lower layer. Only the binary and tests may use the lab.
pub fn layers(metadata: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in list(metadata, "packages") {
        let (name, path) = (word(package, "name"), manifest(package));
        if name.ends_with("-fuzz") {
            continue;
        }
        let Some((_, allowed)) = LAYERS.iter().find(|(crate_name, _)| *crate_name == name) else {
            findings.push(Finding::new(
                &path,
                0,
                format!("{name} has no place in the layers: give it one in layering.rs"),
            ));
            continue;
        };
        for dependency in list(package, "dependencies") {
            let to = word(dependency, "name");
            let is_for_tests = word(dependency, "kind") == "dev";
            let is_ours = LAYERS.iter().any(|(crate_name, _)| *crate_name == to);
            let is_allowed = allowed.contains(&to) || is_for_tests && FOR_TESTS.contains(&to) && to != name;
            if is_ours && !is_allowed {
                findings.push(Finding::new(
                    &path,
                    0,
                    format!("illegal edge {name} -> {to}: see ARCHITECTURE.md, Crates"),
                ));
            }
            if ["sterna-proto", "sterna-sched"].contains(&name) && BANNED_IN_CORE.contains(&to) {
                findings.push(Finding::new(&path, 0, format!("illegal edge {name} -> {to}: proto is sans-IO")));
            }
        }
    }
    findings
}

/// Finds crates with features. A feature may add an API but never change behaviour, and so far none is needed.
pub fn features(metadata: &Value) -> Vec<Finding> {
    let has_features = |package: &&Value| package["features"].as_object().is_some_and(|features| !features.is_empty());
    let finding = |package: &Value| {
        Finding::new(&manifest(package), 0, "[features] is not empty: argue for it in ARCHITECTURE.md")
    };
    list(metadata, "packages").iter().filter(has_features).map(finding).collect()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn manifest(package: &Value) -> String {
    let path = word(package, "manifest_path");
    path.find("/crates/").map_or(path, |at| &path[at + 1..]).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<Value> =
            dependencies.iter().map(|(name, kind)| serde_json::json!({ "name": name, "kind": kind })).collect();
        serde_json::json!({ "packages": [{
            "name": name, "manifest_path": "/x/crates/y/Cargo.toml", "features": {}, "dependencies": dependencies,
        }] })
    }

    #[test]
    fn an_upward_edge_is_named() {
        for (from, to, kind) in [
            ("sterna-proto", "sterna-net", None),
            ("sterna-net", "sterna-lab", None),
            ("sterna-net", "sterna-lab", Some("build")),
            ("sterna-net", "sterna", Some("dev")),
            ("sterna-lab", "sterna-net", None),
            ("sterna-lab", "sterna-lab", Some("dev")),
            ("sterna-doctor", "sterna-service", None),
            ("sterna-proto", "tokio", None),
        ] {
            let found = layers(&package(from, &[(to, kind)]));
            assert_eq!(found.len(), 1, "{from} -> {to}");
            assert!(found[0].text.contains(&format!("illegal edge {from} -> {to}")), "{}", found[0]);
        }
    }

    #[test]
    fn downward_edges_and_the_lab_in_tests_pass() {
        for (from, to, kind) in [
            ("sterna-net", "sterna-proto", None),
            ("sterna-net", "tokio", None),
            ("sterna-net", "sterna-lab", Some("dev")),
            ("sterna-proto", "sterna-lab", Some("dev")),
            ("sterna", "sterna-lab", None),
        ] {
            assert_eq!(layers(&package(from, &[(to, kind)])), [], "{from} -> {to}");
        }
    }

    #[test]
    fn a_crate_without_a_place_and_a_feature_are_found() {
        assert_eq!(layers(&package("sterna-new", &[])).len(), 1);
        let mut with_feature = package("sterna-net", &[]);
        with_feature["packages"][0]["features"] = serde_json::json!({ "fast": [] });
        assert_eq!(features(&with_feature).len(), 1);
        assert_eq!(features(&package("sterna-net", &[])), []);
    }
}
