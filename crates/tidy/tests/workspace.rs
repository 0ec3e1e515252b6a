//! Runs all rules on this workspace. The unit tests of each module prove that its rules work.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use sterna_tidy::tree::Tree;
use sterna_tidy::{Finding, calls, circles, comments, layering, names, prose, sizes};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn tree() -> Tree {
    Tree::read(&root()).unwrap()
}

/// Fails if there are findings, and prints each finding on a separate line.
fn assert_none(findings: &[Finding]) {
    let lines = findings.iter().fold(String::new(), |mut lines, finding| {
        let _ = writeln!(lines, "  {finding}");
        lines
    });
    assert!(findings.is_empty(), "{} findings:\n{lines}", findings.len());
}

#[test]
fn the_tree_is_read() {
    let tree = tree();
    for path in ["crates/proto/src/lib.rs", "crates/tidy/src/tree.rs"] {
        assert!(tree.sources.iter().any(|source| source.path == path), "{path} was not read");
    }
}

#[test]
fn crates_depend_downwards_only() {
    assert_none(&layering::layers(&layering::metadata(&root()).unwrap()));
}

#[test]
fn modules_have_no_circles_and_exceptions_only_shrink() {
    let exceptions = std::fs::read_to_string(root().join(circles::EXCEPTIONS_PATH)).unwrap();
    assert_none(&circles::circles(&tree(), &exceptions));
}

#[test]
fn no_crate_has_features() {
    assert_none(&layering::features(&layering::metadata(&root()).unwrap()));
}

#[test]
fn sans_io_code_reads_no_clock_and_opens_nothing() {
    assert_none(&calls::sans_io(&tree()));
}

#[test]
fn unsafe_stays_in_sys() {
    assert_none(&calls::unsafe_only_in_sys(&tree()));
}

#[test]
fn tests_do_not_sleep() {
    assert_none(&calls::no_sleep_in_tests(&tree()));
}

#[test]
fn tests_assert_no_measured_time() {
    assert_none(&calls::no_measured_time_in_asserts(&tree()));
}

#[test]
fn debts_name_their_issue() {
    assert_none(&comments::debts(&tree()));
}

#[test]
fn every_unwrap_says_why_it_holds() {
    assert_none(&comments::unwraps(&tree()));
}

#[test]
fn names_say_what_things_are() {
    assert_none(&names::empty_names(&tree()));
}

#[test]
fn a_block_is_called_a_block() {
    assert_none(&names::synonyms_of_block(&tree()));
}

#[test]
fn functions_and_files_fit_and_exceptions_only_shrink() {
    let exceptions = std::fs::read_to_string(root().join(sizes::EXCEPTIONS_PATH)).unwrap();
    assert_none(&sizes::sizes(&tree(), &exceptions));
}

#[test]
fn comments_are_plain_english_and_exceptions_only_shrink() {
    let exceptions = std::fs::read_to_string(root().join(prose::EXCEPTIONS_PATH)).unwrap();
    assert_none(&prose::prose(&tree(), &exceptions));
}
