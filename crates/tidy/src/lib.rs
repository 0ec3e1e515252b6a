//! The house style as a test: checks every rule that `CONTRIBUTING.md` marks as checked.
//!
//! Reads all Rust sources of the workspace and the output of `cargo metadata`. Returns a [`Finding`] for each
//! violation. Refuses to format, to fix and to judge taste; rustfmt and clippy have separate checks.
//! [`tree::Tree::read`] reads the files and [`layering::metadata`] calls `cargo`. Nothing is written.
//!
//! A separate crate, so that it builds and runs in seconds without the rest: `cargo test -p sterna-tidy`.

use std::fmt;

pub mod calls;
pub mod circles;
pub mod comments;
pub mod layering;
pub mod names;
pub mod prose;
pub mod sizes;
pub mod source;
pub mod tree;

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path from the root of the workspace.
    pub path: String,
    /// Line number, from 1; 0 if the finding concerns the whole file.
    pub line: usize,
    /// Description of the problem and how to fix it.
    pub text: String,
}

impl Finding {
    /// Creates a finding at `line` of `path`.
    pub fn new(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            write!(f, "{}: {}", self.path, self.text)
        } else {
            write!(f, "{}:{}: {}", self.path, self.line, self.text)
        }
    }
}
