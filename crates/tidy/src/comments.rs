//! Rules on comments: a debt names its issue, and an `unwrap` has a reason.

use crate::Finding;
use crate::tree::Tree;

// Spelled in two halves so that this file complies with the rule.
const DEBT: &str = concat!("TO", "DO");
const DEFECT: &str = concat!("FIX", "ME");

/// Finds debts without an issue such as `(#12)`, known defects, and debugging prints.
pub fn debts(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in &tree.texts {
        for (index, line) in text.lines().enumerate() {
            if has_word(line, DEFECT) {
                findings.push(Finding::new(
                    path,
                    index + 1,
                    format!("{DEFECT} never lands: mend it, or file an issue"),
                ));
            }
            if has_word(line, DEBT) && !names_issue(line) {
                findings.push(Finding::new(path, index + 1, format!("{DEBT} without an issue: write {DEBT}(#12)")));
            }
        }
    }
    for source in &tree.sources {
        for pair in source.tokens.windows(2).filter(|pair| pair[0].text == "dbg" && pair[1].text == "!") {
            findings.push(Finding::new(&source.path, pair[0].line, "a debugging print never lands"));
        }
    }
    findings
}

/// Finds `unwrap` and `expect` outside tests without a comment directly above that gives the reason why they hold.
pub fn unwraps(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in tree.sources.iter().filter(|source| source.path.starts_with("crates/")) {
        for call in source.tokens.windows(3) {
            let name = call[1].text.as_str();
            let is_call = call[0].text == "." && call[2].text == "(";
            if !is_call || !matches!(name, "unwrap" | "expect" | "unwrap_err" | "expect_err") {
                continue;
            }
            let line = call[1].line;
            if !source.is_test_line(line) && !source.has_comment_above(line) {
                let text = format!("`{name}` without a comment directly above that says why it holds");
                findings.push(Finding::new(&source.path, line, text));
            }
        }
    }
    findings
}

fn has_word(line: &str, word: &str) -> bool {
    let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word)
        .any(|(at, _)| !is_letter(line[..at].chars().next_back()) && !is_letter(line[at + word.len()..].chars().next()))
}

fn names_issue(line: &str) -> bool {
    line.split('#').skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::sample;

    #[test]
    fn a_debt_without_issue_a_defect_and_a_debugging_print_are_found() {
        for (line, count) in [
            (format!("// {DEBT}: later"), 1),
            (format!("// {DEBT}(#12): later"), 0),
            (format!("// {DEFECT}(#12): broken"), 1),
            ("fn f() { dbg!(x); }".to_owned(), 1),
            (format!("const {DEBT}S: u8 = 0;"), 0),
        ] {
            assert_eq!(debts(&sample(&[("crates/x/src/a.rs", &line)])).len(), count, "{line}");
        }
        assert_eq!(debts(&sample(&[("scripts/a.sh", &format!("# {DEBT} x"))])).len(), 1);
    }

    #[test]
    fn an_unwrap_without_a_reason_is_found() {
        for (text, count) in [
            ("fn f() {\n    a.unwrap();\n}", 1),
            ("fn f() {\n    // Never empty: checked by the caller.\n    a.unwrap();\n}", 0),
            ("fn f() {\n    // Never empty.\n    b();\n    a.unwrap();\n}", 1),
            ("/// Doc.\nfn f() { a.expect(\"x\"); }", 1),
            ("fn f() {\n    x!(a.unwrap());\n}", 1),
            ("fn f() {\n    a.unwrap_or(3);\n}", 0),
            ("#[test]\nfn f() {\n    a.unwrap();\n}", 0),
        ] {
            assert_eq!(unwraps(&sample(&[("crates/x/src/a.rs", text)])).len(), count, "{text}");
        }
    }
}
