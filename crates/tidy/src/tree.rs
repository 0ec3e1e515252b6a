//! The source files of the workspace.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::source::Source;

/// Folders with source code.
const CODE_FOLDERS: [&str; 5] = ["crates", "fuzz", "bench", "scripts", "python"];

/// Folders with build results or downloads, at any depth.
const BUILT_FOLDERS: [&str; 6] = ["target", "artifacts", "corpus", "node_modules", "__pycache__", "runs"];

/// Extensions of the text files that the comment rules read.
const TEXT_ENDINGS: [&str; 7] = ["rs", "toml", "py", "sh", "ts", "cpp", "conf"];

/// Largest folder depth. Reason: the deepest folder today is 6, and a loop of links must end.
const DEPTH_MAX: usize = 16;

/// All files that the rules read.
pub struct Tree {
    /// All Rust files.
    pub sources: Vec<Source>,
    /// All text files, Rust included, keyed by the path from the workspace root.
    pub texts: BTreeMap<String, String>,
}

impl Tree {
    /// Reads the workspace at `root`.
    ///
    /// Errors: a file that is unreadable or not valid Rust; the message names the file.
    pub fn read(root: &Path) -> Result<Self, String> {
        let mut texts = BTreeMap::new();
        for name in ["Cargo.toml", "Makefile", ".ci/run", "deny.toml", "clippy.toml", "rustfmt.toml"] {
            if root.join(name).exists() {
                texts.insert(name.to_owned(), read_text(&root.join(name))?);
            }
        }
        for folder in CODE_FOLDERS {
            let mut paths = Vec::new();
            collect(&root.join(folder), DEPTH_MAX, &mut paths)?;
            for path in paths {
                // Every collected path starts with the root from which it was collected.
                let relative = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
                texts.insert(relative, read_text(&path)?);
            }
        }
        Self::from_texts(texts)
    }

    /// Builds a tree from these texts. The tests of the rules use it.
    pub fn from_texts(texts: BTreeMap<String, String>) -> Result<Self, String> {
        let is_rust = |path: &&String| path.ends_with(".rs");
        let mut sources = Vec::new();
        for path in texts.keys().filter(is_rust) {
            sources.push(Source::parse(path, &texts[path], false)?);
        }
        let test_modules: Vec<String> = sources.iter().flat_map(Source::test_modules).collect();
        for source in &mut sources {
            let stem = source.path.trim_end_matches(".rs").trim_end_matches("/mod").to_owned();
            let in_tests = test_modules.iter().any(|m| stem == *m || stem.starts_with(&format!("{m}/")));
            if in_tests {
                *source = Source::parse(&source.path, &texts[&source.path], true)?;
            }
        }
        Ok(Self { sources, texts })
    }
}

fn read_text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn collect(folder: &Path, depth: usize, paths: &mut Vec<PathBuf>) -> Result<(), String> {
    if !folder.is_dir() || depth == 0 {
        return Ok(());
    }
    let wrong = |e: std::io::Error| format!("{}: {e}", folder.display());
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let kind = entry.file_type().map_err(wrong)?;
        if kind.is_dir() && !BUILT_FOLDERS.contains(&name.as_str()) && !name.starts_with('.') {
            collect(&path, depth - 1, paths)?;
        } else if kind.is_file() && path.extension().is_some_and(|e| TEXT_ENDINGS.contains(&&*e.to_string_lossy())) {
            paths.push(path);
        }
    }
    Ok(())
}

/// Builds a tree from these files, for the tests of the rules.
#[cfg(test)]
pub(crate) fn sample(files: &[(&str, &str)]) -> Tree {
    Tree::from_texts(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_declared_for_tests_is_test_code_in_its_own_file() {
        let tree = sample(&[
            ("crates/x/src/lib.rs", "#[cfg(test)]\nmod far;\n"),
            ("crates/x/src/far.rs", "mod near;\n"),
            ("crates/x/src/far/near.rs", "fn f() {}\n"),
            ("crates/x/src/other.rs", "fn f() {}\n"),
        ]);
        let in_tests: Vec<bool> = tree.sources.iter().map(|source| source.is_test_line(1)).collect();
        let paths: Vec<&str> = tree.sources.iter().map(|source| source.path.as_str()).collect();
        assert_eq!(
            paths,
            ["crates/x/src/far.rs", "crates/x/src/far/near.rs", "crates/x/src/lib.rs", "crates/x/src/other.rs"]
        );
        assert_eq!(in_tests, [true, true, true, false]);
    }
}
