//! Rules on plain English in comments. The list of files that do not follow them yet may only shrink.
//!
//! Reads comments that stand on lines of their own. Refuses to judge grammar: a comment does not open with a question word, and its lines
//! have at most [`COLUMNS_MAX`] columns.

use std::collections::BTreeMap;

use crate::Finding;
use crate::tree::Tree;

/// Most columns of a line of a comment. Reason: two windows side by side.
pub const COLUMNS_MAX: usize = 120;

/// List of exceptions: `COUNT PATH` on each line, where COUNT is the exact number of findings in the file.
pub const EXCEPTIONS_PATH: &str = "crates/tidy/prose.txt";

/// Openings that hide the noun or the verb.
const OPENINGS: [&str; 3] = ["What ", "Whether ", "Of "];

/// Finds comments that open with a question word or are too wide, in files without an exception for exactly so many.
pub fn prose(tree: &Tree, exceptions: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut granted: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (index, line) in exceptions.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.is_empty()) {
        match line.split_once(' ').and_then(|(count, path)| Some((count.parse().ok()?, path))) {
            Some((count, path)) => drop(granted.insert(path, (count, index + 1))),
            None => findings.push(Finding::new(EXCEPTIONS_PATH, index + 1, "expected `COUNT PATH`")),
        }
    }
    for source in &tree.sources {
        let found = in_file(&source.path, &source.lines);
        let (allowed, at_line) = granted.remove(source.path.as_str()).unwrap_or_default();
        if found.len() > allowed {
            findings.extend(found);
        } else if found.len() < allowed {
            let text =
                format!("{} is down to {} findings: lower the number or remove the line", source.path, found.len());
            findings.push(Finding::new(EXCEPTIONS_PATH, at_line, text));
        }
    }
    for (path, (_, at_line)) in granted {
        findings.push(Finding::new(EXCEPTIONS_PATH, at_line, format!("{path} does not exist: remove the line")));
    }
    findings
}

fn in_file(path: &str, lines: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut before = "";
    for (index, line) in lines.iter().enumerate() {
        let (marker, text) = split_comment(line);
        let is_opening = marker != before;
        before = marker;
        if marker.is_empty() {
            continue;
        }
        if is_opening && let Some(opening) = OPENINGS.iter().find(|opening| text.starts_with(**opening)) {
            let text = format!("a comment opens with `{}`: start with the noun, or with a verb", opening.trim());
            findings.push(Finding::new(path, index + 1, text));
        }
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            let text = format!("a comment has {columns} columns, at most {COLUMNS_MAX}: break the line");
            findings.push(Finding::new(path, index + 1, text));
        }
    }
    findings
}

/// Marker and text of a comment that stands on its own line; an empty marker for other lines.
fn split_comment(line: &str) -> (&str, &str) {
    let line = line.trim_start();
    let marker = ["//!", "///", "//"].into_iter().find(|marker| line.starts_with(marker)).unwrap_or_default();
    (marker, line[marker.len()..].trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::sample;

    const PATH: &str = "crates/x/src/a.rs";

    fn count(text: &str, exceptions: &str) -> usize {
        prose(&sample(&[(PATH, text)]), exceptions).len()
    }

    #[test]
    fn openings_and_wide_lines_are_found() {
        let wide = format!("// {}", "x".repeat(118));
        for (text, found) in [
            ("/// What the path carries.", 1),
            ("    // Whether it is over.", 1),
            ("//! Of a lane, which is dead.", 1),
            ("/// Rate of the path.\n/// What follows is its continuation.", 0),
            ("// Reason.\n\n/// What it is.", 1),
            ("/// Offset in bytes.", 0),
            ("const A: &str = \"What \";", 0),
            (&wide, 1),
            (&wide[..120], 0),
        ] {
            assert_eq!(count(&format!("{text}\nstruct A;"), ""), found, "{text}");
        }
    }

    #[test]
    fn an_exception_grants_exactly_what_is_found() {
        let text = "/// What it is.\nfn f() {}\n/// Whether it is.\nfn g() {}";
        for (exceptions, found) in [("2", 0), ("1", 2), ("3", 1)] {
            assert_eq!(count(text, &format!("# files\n{exceptions} {PATH}\n")), found, "{exceptions}");
        }
        assert_eq!(count("fn f() {}", &format!("2 {PATH}")), 1);
        assert_eq!(count("fn f() {}", "2 crates/x/src/gone.rs"), 1);
        assert_eq!(count("fn f() {}", "two x"), 1);
    }
}
