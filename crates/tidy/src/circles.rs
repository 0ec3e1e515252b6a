//! Rule on modules: no circle between the modules of a crate. The list of circles that are left may only shrink.
//!
//! A module is one file. It depends on the modules that its paths name: in `use` lines and in code, tests excluded.
//! A path through a re-export counts for the module that defines the item. `mod` and the re-export of a module's own
//! parts are no dependency: a parent may show what its parts define, and the parts may use what the parent defines.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::Finding;
use crate::source::Source;
use crate::tree::Tree;

/// List of the circles that are left: one per line, `CRATE MODULE MODULE ...`, modules sorted.
pub const EXCEPTIONS_PATH: &str = "crates/tidy/circles.txt";

/// Most re-exports that a path is followed through. Reason: no name is re-exported so often, and a loop must end.
const REEXPORTS_MAX: usize = 16;

/// Path of a module from the root of its crate; empty for the root.
type Module = Vec<String>;

/// Dependencies of modules, each with the line of its first mention.
type Edges = BTreeMap<Module, BTreeMap<Module, usize>>;

/// Finds circles that are not in `exceptions`, and lines of `exceptions` that grant more than is used.
pub fn circles(tree: &Tree, exceptions: &str) -> Vec<Finding> {
    let mut listed: BTreeMap<(String, BTreeSet<String>), usize> = BTreeMap::new();
    for (index, line) in exceptions.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let mut words = line.split_whitespace().map(str::to_owned);
        if let Some(name) = words.next() {
            listed.insert((name, words.collect()), index + 1);
        }
    }
    let mut findings = Vec::new();
    let mut found: Vec<(String, BTreeSet<String>)> = Vec::new();
    for (name, modules) in crates_of(tree) {
        let edges = edges_of(&modules);
        for circle in circles_in(&edges) {
            let members: BTreeSet<String> = circle.iter().map(shown).collect();
            if !listed.keys().any(|(other, granted)| *other == name && members.is_subset(granted)) {
                let (path, line, way) = shortest(&modules, &edges, &circle);
                let text = format!("a new circle between modules of {name}: {way}: move what they share below both");
                findings.push(Finding::new(&path, line, text));
            }
            found.push((name.clone(), members));
        }
    }
    for ((name, granted), line) in listed {
        let left: Vec<_> =
            found.iter().filter(|(other, members)| *other == name && members.is_subset(&granted)).collect();
        if left.iter().any(|(_, members)| *members == granted) {
            continue;
        }
        let now = left.iter().map(|(_, members)| {
            let words: Vec<&str> = members.iter().map(String::as_str).collect();
            format!("`{name} {}`", words.join(" "))
        });
        let now = now.collect::<Vec<_>>().join(" and ");
        let text = match now.is_empty() {
            true => "this circle does not exist: remove this line".to_owned(),
            false => format!("this circle has become smaller: write {now}"),
        };
        findings.push(Finding::new(EXCEPTIONS_PATH, line, text));
    }
    findings
}

/// Returns the name of a module as in the list.
fn shown(module: &Module) -> String {
    if module.is_empty() { "lib".to_owned() } else { module.join("/") }
}

/// File of a module, with the names that it imports.
struct ModuleFile<'a> {
    source: &'a Source,
    imports: BTreeMap<String, Vec<String>>,
    references: Vec<Reference>,
}

/// Path that a module mentions.
struct Reference {
    segments: Vec<String>,
    line: usize,
    /// True for a `use` that others may use too.
    is_reexport: bool,
}

/// Returns the modules of each crate. The files of binaries beside a library count as modules of their own crate.
fn crates_of(tree: &Tree) -> BTreeMap<String, BTreeMap<Module, ModuleFile<'_>>> {
    let mut crates: BTreeMap<String, BTreeMap<Module, ModuleFile<'_>>> = BTreeMap::new();
    for source in &tree.sources {
        let Some((name, path)) = source.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/")) else {
            continue;
        };
        let mut module: Module = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            module.pop();
        }
        let mut reader = Reader { source, imports: BTreeMap::new(), references: Vec::new() };
        reader.visit_file(&source.file);
        let Reader { imports, references, .. } = reader;
        crates.entry(name.to_owned()).or_default().insert(module, ModuleFile { source, imports, references });
    }
    crates
}

/// Reads the paths of a file.
struct Reader<'a> {
    source: &'a Source,
    imports: BTreeMap<String, Vec<String>>,
    references: Vec<Reference>,
}

impl Reader<'_> {
    fn import(&mut self, tree: &syn::UseTree, before: &[String], is_reexport: bool) {
        let mut segments = before.to_vec();
        let (name, line) = match tree {
            syn::UseTree::Path(path) => {
                segments.push(path.ident.to_string());
                return self.import(&path.tree, &segments, is_reexport);
            }
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|item| self.import(item, before, is_reexport));
            }
            syn::UseTree::Name(name) if name.ident == "self" => (segments.last().cloned(), tree.span().start().line),
            syn::UseTree::Name(name) => {
                segments.push(name.ident.to_string());
                (segments.last().cloned(), tree.span().start().line)
            }
            syn::UseTree::Rename(rename) => {
                segments.push(rename.ident.to_string());
                (Some(rename.rename.to_string()), tree.span().start().line)
            }
            syn::UseTree::Glob(_) => (None, tree.span().start().line),
        };
        name.map(|name| self.imports.insert(name, segments.clone()));
        self.references.push(Reference { segments, line, is_reexport });
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !self.source.is_test_line(item.span().start().line) {
            self.import(&item.tree, &[], !matches!(item.vis, syn::Visibility::Inherited));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let line = path.span().start().line;
        if path.segments.len() > 1 && path.leading_colon.is_none() && !self.source.is_test_line(line) {
            let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.references.push(Reference { segments, line, is_reexport: false });
        }
        visit::visit_path(self, path);
    }

    /// A scope is no dependency.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

/// Returns the module of this crate that a path from `from` leads to; `None` for another crate or a local name.
fn resolve(
    modules: &BTreeMap<Module, ModuleFile<'_>>,
    from: &Module,
    segments: &[String],
    depth: usize,
) -> Option<Module> {
    if depth > REEXPORTS_MAX {
        return None;
    }
    let mut at = from.clone();
    for (index, segment) in segments.iter().enumerate() {
        let is_below = |at: &Module| {
            let below = [at.as_slice(), std::slice::from_ref(segment)].concat();
            modules.contains_key(&below).then_some(below)
        };
        match segment.as_str() {
            "crate" if index == 0 => at = Module::new(),
            "self" if index == 0 => {}
            "super" => drop(at.pop()?),
            _ => match (is_below(&at), modules.get(&at)) {
                (Some(below), _) => at = below,
                (None, _) if index == 0 => return None,
                (None, Some(file)) if file.imports.contains_key(segment) => {
                    return resolve(modules, &at, &file.imports[segment], depth + 1);
                }
                (None, _) => return Some(at),
            },
        }
    }
    Some(at)
}

fn edges_of(modules: &BTreeMap<Module, ModuleFile<'_>>) -> Edges {
    let mut edges = Edges::new();
    for (module, file) in modules {
        for Reference { segments, line, is_reexport } in &file.references {
            let Some(to) = resolve(modules, module, segments, 0) else { continue };
            let is_own_part = *is_reexport && to.starts_with(module);
            if to != *module && !is_own_part {
                edges.entry(module.clone()).or_default().entry(to).or_insert(*line);
            }
        }
    }
    edges
}

/// Returns the groups of modules that each depend on all others of the group.
fn circles_in(edges: &Edges) -> Vec<BTreeSet<Module>> {
    let reach: BTreeMap<&Module, BTreeSet<&Module>> =
        edges.keys().map(|module| (module, reached(edges, module))).collect();
    let depends = |from: &Module, on: &Module| reach.get(from).is_some_and(|reached| reached.contains(on));
    let mut circles: Vec<BTreeSet<Module>> = Vec::new();
    for module in edges.keys().filter(|module| depends(module, module)) {
        if circles.iter().any(|circle| circle.contains(module)) {
            continue;
        }
        let both_ways = |other: &&Module| depends(module, other) && depends(other, module);
        circles.push(edges.keys().filter(both_ways).cloned().collect());
    }
    circles
}

/// Returns the modules on which `module` depends, directly or not.
fn reached<'a>(edges: &'a Edges, module: &Module) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&Module> = edges.get(module).into_iter().flat_map(BTreeMap::keys).collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(edges.get(module).into_iter().flat_map(BTreeMap::keys));
        }
    }
    reached
}

/// Returns the shortest way around from the first module of a circle: path and line of its first step, and its text.
fn shortest(
    modules: &BTreeMap<Module, ModuleFile<'_>>,
    edges: &Edges,
    circle: &BTreeSet<Module>,
) -> (String, usize, String) {
    let Some(first) = circle.first() else { return Default::default() };
    let mut ways: VecDeque<Vec<&Module>> = VecDeque::from([vec![first]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        let from = way[way.len() - 1];
        for to in edges.get(from).into_iter().flat_map(BTreeMap::keys).filter(|to| circle.contains(*to)) {
            let way = [way.as_slice(), &[to]].concat();
            if to == first {
                let steps: Vec<String> = way.iter().map(|module| shown(module)).collect();
                let path = modules[first].source.path.clone();
                return (path, edges[first][way[1]], steps.join(" -> "));
            }
            if seen.insert(to) {
                ways.push_back(way);
            }
        }
    }
    Default::default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::sample;

    fn findings(files: &[(&str, &str)], exceptions: &str) -> Vec<String> {
        let files: Vec<(String, &str)> =
            files.iter().map(|(path, text)| (format!("crates/x/src/{path}"), *text)).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        circles(&sample(&files), exceptions).iter().map(ToString::to_string).collect()
    }

    const CIRCLE: [(&str, &str); 4] = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "pub struct B(super::c::C);"),
        ("c.rs", "pub struct C; fn f() { crate::a::g(); }"),
    ];

    #[test]
    fn a_circle_is_found_with_the_way_around() {
        let text = "a new circle between modules of x: a -> b -> c -> a: move what they share below both";
        assert_eq!(findings(&CIRCLE, ""), [format!("crates/x/src/a.rs:1: {text}")]);
        assert_eq!(findings(&CIRCLE, "# comment\nx a b c\n"), [""; 0]);
        assert_eq!(findings(&CIRCLE, "y a b c\n").len(), 2);
    }

    #[test]
    fn a_line_that_grants_more_than_is_used_is_found() {
        let smaller = findings(&CIRCLE, "x a b c d\n");
        assert!(smaller.len() == 1 && smaller[0].ends_with("smaller: write `x a b c`"), "{smaller:?}");
        let gone = findings(&CIRCLE[..3], "x a b c\n");
        assert!(gone.len() == 1 && gone[0].ends_with("does not exist: remove this line"), "{gone:?}");
    }

    #[test]
    fn a_reexport_counts_for_the_module_that_defines_the_item() {
        let through_parent = |parent: &'static str| {
            [
                ("lib.rs", "mod a; mod b;"),
                ("a/mod.rs", parent),
                ("a/c.rs", "pub struct C;"),
                ("b.rs", "use crate::a::C;"),
            ]
        };
        // `a` uses `b`, and `b` only uses what `a` re-exports.
        assert_eq!(findings(&through_parent("mod c; pub use c::C; use crate::b::f;"), ""), [""; 0]);
        assert_eq!(findings(&through_parent("mod c; pub struct C; use crate::b::f;"), "").len(), 1);
    }

    #[test]
    fn a_parent_may_show_its_parts_and_not_use_them_when_they_use_it() {
        let parent = |text: &'static str| [("lib.rs", text), ("a.rs", "use super::B; pub fn f() {}")];
        assert_eq!(findings(&parent("mod a; pub use a::f; pub struct B;"), ""), [""; 0]);
        assert_eq!(findings(&parent("mod a; pub struct B; fn g() { a::f(); }"), "").len(), 1);
        assert_eq!(findings(&parent("mod a; pub struct B; use self::a::f;"), "").len(), 1);
    }

    #[test]
    fn tests_and_scopes_are_no_dependency() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "pub(in crate::a) struct B; #[cfg(test)] mod tests { use crate::a; }"),
        ];
        assert_eq!(findings(&files, ""), [""; 0]);
    }
}
