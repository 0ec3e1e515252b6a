//! The house style as a test: what `CONTRIBUTING.md` marks as checked is checked here.
//!
//! What it does: reads every Rust source of the workspace and the answer of `cargo metadata`, and returns a [`Finding`]
//! for each place that breaks a rule. What it refuses to do: format, fix, or judge taste; clippy and rustfmt keep theirs.
//! Files enter in [`tree::Tree::read`], `cargo` is called in [`layering::metadata`]; nothing is written.
//!
//! It is a crate of its own so that it builds and runs in seconds without the rest: `cargo test -p sterna-tidy`.

use std::fmt;

pub mod calls;
pub mod comments;
pub mod layering;
pub mod names;
pub mod sizes;
pub mod source;
pub mod tree;

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path from the root of the workspace.
    pub path: String,
    /// Line, from 1; 0 when the finding is about the file as a whole.
    pub line: usize,
    /// What is wrong and what to do about it.
    pub text: String,
}

impl Finding {
    /// A finding at `line` of `path`.
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
