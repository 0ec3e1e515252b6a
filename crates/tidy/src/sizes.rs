//! Rules on size: limits for functions and files. The list of exceptions may only shrink.

use std::collections::BTreeMap;

use crate::Finding;
use crate::tree::Tree;

/// Most lines of code in a function, without blank and comment lines. Reason: one screen. A longer function mixes
/// decisions with effects.
pub const FUNCTION_LINES_MAX: usize = 70;

/// Most lines of a file, all lines counted. Reason: a longer file holds two ideas. Review a file at 600 lines.
pub const FILE_LINES_MAX: usize = 1000;

/// List of exceptions: one per line, `function LINES PATH NAME reason` or `file LINES PATH reason`.
pub const EXCEPTIONS_PATH: &str = "crates/tidy/exceptions.txt";

/// Finds functions and files that exceed their limit or the size granted in `exceptions`.
///
/// Also finds exceptions that grant more than is used, so that the list only shrinks.
pub fn sizes(tree: &Tree, exceptions: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut granted: BTreeMap<String, Granted> = BTreeMap::new();
    for (index, line) in exceptions.lines().enumerate() {
        match Granted::read(line, index + 1) {
            Ok(Some((key, exception))) => drop(granted.insert(key, exception)),
            Ok(None) => {}
            Err(why) => findings.push(Finding::new(EXCEPTIONS_PATH, index + 1, why)),
        }
    }
    for (key, measured) in measure(tree) {
        let exception = granted.remove(&key);
        let allowed = exception.as_ref().map_or(measured.limit, |exception| exception.lines);
        if measured.lines > allowed {
            let text = format!("{key}: {} lines, at most {allowed}: split it", measured.lines);
            findings.push(Finding::new(&measured.path, measured.line, text));
        } else if let Some(exception) = exception
            && measured.lines < exception.lines
        {
            let text = match measured.lines <= measured.limit {
                true => format!("{key} is {} lines, within the limit: remove this line", measured.lines),
                false => format!("{key} is down to {} lines: lower the number on this line", measured.lines),
            };
            findings.push(Finding::new(EXCEPTIONS_PATH, exception.at_line, text));
        }
    }
    for (key, exception) in granted {
        findings.push(Finding::new(
            EXCEPTIONS_PATH,
            exception.at_line,
            format!("{key} does not exist: remove this line"),
        ));
    }
    findings
}

struct Granted {
    lines: usize,
    at_line: usize,
}

impl Granted {
    fn read(line: &str, at_line: usize) -> Result<Option<(String, Self)>, String> {
        if line.trim().is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let expected = "expected `function LINES PATH NAME reason` or `file LINES PATH reason`";
        let words: Vec<&str> = line.split_whitespace().collect();
        let (key, limit, reason) = match words.as_slice() {
            ["function", _, path, name, reason @ ..] => (format!("function {path} {name}"), FUNCTION_LINES_MAX, reason),
            ["file", _, path, reason @ ..] => (format!("file {path}"), FILE_LINES_MAX, reason),
            _ => return Err(expected.to_owned()),
        };
        let lines: usize = words[1].parse().map_err(|_| expected.to_owned())?;
        if reason.len() < 2 {
            return Err(format!("{key}: an exception gives its reason"));
        }
        if lines <= limit {
            return Err(format!("{key}: {lines} is within the limit of {limit}: remove this line"));
        }
        Ok(Some((key, Self { lines, at_line })))
    }
}

struct Measured {
    path: String,
    line: usize,
    lines: usize,
    limit: usize,
}

/// Returns all files and functions by key. Of functions with the same name in one file, the longest counts.
fn measure(tree: &Tree) -> BTreeMap<String, Measured> {
    let mut measured: BTreeMap<String, Measured> = BTreeMap::new();
    for source in &tree.sources {
        let path = source.path.clone();
        let key = format!("file {path}");
        measured.insert(key, Measured { path, line: 0, lines: source.lines.len(), limit: FILE_LINES_MAX });
        for function in &source.functions {
            let key = format!("function {} {}", source.path, function.name);
            let (line, lines) = (function.line, function.code_lines);
            if measured.get(&key).is_none_or(|other| other.lines < lines) {
                measured.insert(key, Measured { path: source.path.clone(), line, lines, limit: FUNCTION_LINES_MAX });
            }
        }
    }
    measured
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::sample;

    const PATH: &str = "crates/x/src/a.rs";

    /// Returns a function of exactly `count` lines of code.
    fn function_of(count: usize) -> String {
        format!("fn f() {{\n{}}}\n", "    g();\n\n    // why\n".repeat(count - 2))
    }

    fn findings(text: &str, exceptions: &str) -> Vec<String> {
        sizes(&sample(&[(PATH, text)]), exceptions).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_function_may_have_70_lines_and_not_71() {
        assert_eq!(findings(&function_of(70), ""), [""; 0]);
        assert_eq!(
            findings(&function_of(71), ""),
            [format!("{PATH}:1: function {PATH} f: 71 lines, at most 70: split it")]
        );
    }

    #[test]
    fn a_file_may_have_1000_lines_and_not_1001() {
        assert_eq!(findings(&"// x\n".repeat(1000), ""), [""; 0]);
        assert_eq!(findings(&"// x\n".repeat(1001), "").len(), 1);
    }

    #[test]
    fn an_exception_grants_exactly_what_is_used() {
        let exception = format!("function 75 {PATH} f a table of cases\n");
        assert_eq!(findings(&function_of(75), &exception), [""; 0]);
        for (lines, said) in [(76, "split it"), (74, "lower the number"), (70, "remove this line")] {
            let found = findings(&function_of(lines), &exception);
            assert!(found.len() == 1 && found[0].contains(said), "{lines}: {found:?}");
        }
    }

    #[test]
    fn an_exception_for_nothing_or_without_a_reason_is_found() {
        for exception in [
            format!("function 75 {PATH} gone a table of cases"),
            format!("function 75 {PATH} f"),
            format!("function 60 {PATH} f a table of cases"),
            "class 75 x".to_owned(),
        ] {
            assert_eq!(findings("fn f() {}", &exception).len(), 1, "{exception}");
        }
    }
}
