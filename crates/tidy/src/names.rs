//! Rules on names: one word per idea, and no empty words.

use syn::visit::{self, Visit};

use crate::Finding;
use crate::source::Source;
use crate::tree::Tree;

/// Words without meaning, banned in all names.
const EMPTY_WORDS: [&str; 7] = ["util", "utils", "helper", "helpers", "misc", "manager", "mgr"];

/// Words without meaning as the name of a crate, module or type. They may describe a function (`common_prefix`).
const EMPTY_WORDS_OF_THINGS: [&str; 2] = ["common", "stuff"];

/// Abbreviations that textbooks do not use.
const ABBREVIATIONS: [&str; 3] = ["xfer", "cfg", "ep"];

/// Words that other tools use for a block.
const SYNONYMS_OF_BLOCK: [&str; 8] = ["chunk", "chunks", "part", "parts", "segment", "segments", "piece", "pieces"];

/// Words that permit such a synonym: TCP segments, segmentation offload, names in the style of the standard library.
const SYNONYMS_ALLOWED_WITH: [&str; 7] = ["tcp", "mss", "gso", "gro", "udp", "from", "into"];

/// Finds crates, files, modules, types, traits and functions named by an empty word or a private abbreviation. Also
/// finds functions that start with `get_` and tests that start with `test_`.
pub fn empty_names(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        for folder in source.path.trim_end_matches(".rs").split('/').skip(1) {
            if let Some(word) = first_of(folder, &[&EMPTY_WORDS[..], &EMPTY_WORDS_OF_THINGS]) {
                findings.push(Finding::new(
                    &source.path,
                    0,
                    format!("\"{word}\" says nothing: name the file by its idea"),
                ));
            }
        }
        for name in declared(source) {
            findings.extend(judge(&name).map(|text| Finding::new(&source.path, name.line, text)));
        }
    }
    findings
}

/// Finds public items that use a synonym of "block".
pub fn synonyms_of_block(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in
        tree.sources.iter().filter(|source| source.path.starts_with("crates/") && !source.path.ends_with("/s3.rs"))
    {
        for name in declared(source).into_iter().filter(|name| name.public) {
            let allowed = words(&name.text).iter().any(|word| SYNONYMS_ALLOWED_WITH.contains(&word.as_str()));
            if let (Some(word), false) = (first_of(&name.text, &[&SYNONYMS_OF_BLOCK]), allowed) {
                let text = format!("`{}`: \"{word}\" is not a word of ours: a unit of planning is a block", name.text);
                findings.push(Finding::new(&source.path, name.line, text));
            }
        }
    }
    findings
}

#[derive(PartialEq, Eq)]
enum Kind {
    Thing,
    Function,
    Test,
}

struct Name {
    text: String,
    line: usize,
    kind: Kind,
    public: bool,
}

fn judge(name: &Name) -> Option<String> {
    let banned = match name.kind {
        Kind::Thing => first_of(&name.text, &[&EMPTY_WORDS, &EMPTY_WORDS_OF_THINGS, &ABBREVIATIONS]),
        Kind::Function | Kind::Test => first_of(&name.text, &[&EMPTY_WORDS, &ABBREVIATIONS]),
    };
    if let Some(word) = banned {
        return Some(format!("`{}`: \"{word}\" is banned: say what it is", name.text));
    }
    match name.kind {
        Kind::Function if name.text.starts_with("get_") => Some(format!("`{}`: drop the `get_`", name.text)),
        Kind::Test if name.text.starts_with("test_") => {
            Some(format!("`{}`: a test is named by its promise", name.text))
        }
        _ => None,
    }
}

fn first_of(name: &str, lists: &[&[&str]]) -> Option<String> {
    words(name).into_iter().find(|word| lists.iter().any(|list| list.contains(&word.as_str())))
}

/// Splits a name in snake, kebab or camel case into words in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = vec![String::new()];
    for c in name.chars() {
        if !c.is_alphanumeric() {
            words.push(String::new());
            continue;
        }
        if c.is_uppercase() && !name.chars().all(|c| c.is_uppercase() || !c.is_alphabetic()) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn declared(source: &Source) -> Vec<Name> {
    let mut walk = Walk { names: Vec::new() };
    walk.visit_file(&source.file);
    walk.names
}

struct Walk {
    names: Vec<Name>,
}

impl Walk {
    fn add(&mut self, ident: &syn::Ident, kind: Kind, visibility: Option<&syn::Visibility>) {
        let public = matches!(visibility, Some(syn::Visibility::Public(_)));
        self.names.push(Name { text: ident.to_string(), line: ident.span().start().line, kind, public });
    }
}

impl<'ast> Visit<'ast> for Walk {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let is_test = item.attrs.iter().any(|a| a.path().segments.last().is_some_and(|last| last.ident == "test"));
        self.add(&item.sig.ident, if is_test { Kind::Test } else { Kind::Function }, Some(&item.vis));
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig.ident, Kind::Function, Some(&item.vis));
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        // The trait names the functions of its implementations, and the trait may be external.
        if item.trait_.is_none() {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.add(&item.sig.ident, Kind::Function, None);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.add(&item.ident, Kind::Thing, Some(&item.vis));
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.add(&item.ident, Kind::Thing, Some(&item.vis));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.add(&item.ident, Kind::Thing, Some(&item.vis));
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.add(&item.ident, Kind::Thing, Some(&item.vis));
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.add(&item.ident, Kind::Thing, Some(&item.vis));
        visit::visit_item_mod(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::sample;

    fn empty(path: &str, text: &str) -> usize {
        empty_names(&sample(&[(path, text)])).len()
    }

    #[test]
    fn names_that_say_nothing_are_found() {
        for text in [
            "struct LaneManager;",
            "enum TransferHelper {}",
            "mod util;",
            "mod common { }",
            "fn get_rate() {}",
            "struct A; impl A { pub fn get_rate(&self) {} }",
            "fn lane_helper() {}",
            "struct Xfer;",
            "#[test]\nfn test_1() {}",
            "trait T { fn get_x(&self); }",
        ] {
            assert_eq!(empty("crates/x/src/a.rs", text), 1, "{text}");
        }
        assert_eq!(empty("crates/x/src/helpers.rs", ""), 1);
        assert_eq!(empty("crates/common/src/lib.rs", ""), 1);
    }

    #[test]
    fn names_that_say_something_pass() {
        for text in [
            "struct RateBudget; impl RateBudget { fn get(&self) {} fn common_prefix() {} }",
            "impl Foreign for A { fn get_mut(&self) {} }",
            "#[cfg(test)] mod tests { #[test] fn resume_rereads_nothing() {} }",
        ] {
            assert_eq!(empty("crates/x/src/a.rs", text), 0, "{text}");
        }
    }

    #[test]
    fn synonyms_of_block_are_found_in_public_names_only() {
        for (text, count) in [
            ("pub struct ChunkPlan;", 1),
            ("pub fn next_segment() {}", 1),
            ("pub enum Piece {}", 1),
            ("struct ChunkPlan;", 0),
            ("pub struct TcpSegmentCount;", 0),
            ("impl A { pub fn into_parts(self) {} }", 0),
            ("pub fn partial() {}", 0),
        ] {
            assert_eq!(synonyms_of_block(&sample(&[("crates/x/src/a.rs", text)])).len(), count, "{text}");
        }
    }
}
