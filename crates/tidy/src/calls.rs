//! Rules on calls: sans-IO code reads no clock and opens nothing, `unsafe` stays in `sys`, tests never sleep.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use crate::Finding;
use crate::source::{Source, Token};
use crate::tree::Tree;

/// Locations of sans-IO code: time is an argument, bytes enter as slices and leave as values.
const SANS_IO: [&str; 4] =
    ["crates/proto/src/", "crates/sched/src/", "crates/lab/src/model/", "crates/lab/src/model.rs"];

/// Paths banned in sans-IO code, each with the alternative; see [`PLAIN_VALUES`].
const BANNED_PATHS: [(&str, &str); 27] = [
    ("std::time::Instant::now", "take `now: Instant` as an argument"),
    ("std::time::SystemTime::now", "take the time as an argument"),
    ("std::net", "open sockets in `net`"),
    ("std::fs", "open files in `net`"),
    ("std::thread", "start threads in `net`"),
    ("std::process", "return an error; only the binary ends the process"),
    ("std::env", "take the setting as an argument"),
    ("std::io::stdin", "take the bytes as an argument"),
    ("std::io::stdout", "return the text"),
    ("std::io::stderr", "return the text"),
    ("std::os::fd", "open files in `net`"),
    ("std::sync::mpsc", "return values; the driver owns the queues"),
    ("tokio", "stay synchronous; the driver owns the runtime"),
    ("futures", "stay synchronous"),
    ("async_std", "stay synchronous"),
    ("smol", "stay synchronous"),
    ("mio", "open sockets in `net`"),
    ("socket2", "open sockets in `net`"),
    ("rustix", "call the kernel in `net`"),
    ("libc", "call the kernel in `net`"),
    ("nix", "call the kernel in `net`"),
    ("log", "return what happened; the driver logs it"),
    ("tracing", "return what happened; the driver logs it"),
    ("getrandom", "take the random bytes or a seed as an argument"),
    ("rand::random", "take a seed as an argument"),
    ("std::collections::HashMap", "use `BTreeMap`: the order of a hashed map differs from run to run"),
    ("std::collections::HashSet", "use `BTreeSet`: the order of a hashed set differs from run to run"),
];

/// Paths below the banned ones that are plain values and therefore allowed.
const PLAIN_VALUES: [&str; 9] = [
    "std::net::IpAddr",
    "std::net::Ipv4Addr",
    "std::net::Ipv6Addr",
    "std::net::SocketAddr",
    "std::net::SocketAddrV4",
    "std::net::SocketAddrV6",
    "std::net::AddrParseError",
    "std::process::ExitCode",
    "std::env::consts",
];

/// The only banned call that tests of sans-IO code may make. `Instant` has no constructor, so virtual time needs one
/// clock reading as its origin. Reading the elapsed time (`elapsed`) stays banned.
const ORIGIN_OF_VIRTUAL_TIME: &str = "std::time::Instant::now";

/// Finds clocks, sockets, files, threads, runtimes, hashed maps, async code and prints in sans-IO code.
pub fn sans_io(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in tree.sources.iter().filter(|source| SANS_IO.iter().any(|place| source.path.starts_with(place))) {
        for (path, line) in paths(source) {
            let Some(advice) = banned(&path) else { continue };
            if path == ORIGIN_OF_VIRTUAL_TIME && source.is_test_line(line) {
                continue;
            }
            findings.push(Finding::new(&source.path, line, format!("`{path}` in sans-IO code: {advice}")));
        }
        // A type of this workspace may have an `elapsed` method that subtracts two instants given as arguments.
        let has_own_elapsed = source.functions.iter().any(|function| function.name.ends_with("::elapsed"));
        for (index, token) in source.tokens.iter().enumerate() {
            let text = |ahead: usize| source.tokens.get(index + ahead).map_or("", |token| token.text.as_str());
            let advice = match (text(0), text(1), text(2)) {
                (".", "elapsed", "(") if !has_own_elapsed => "reads the clock: subtract two instants that came in",
                ("async", _, _) | (".", "await", _) => "async in sans-IO code: return what to do next",
                ("println" | "eprintln" | "print" | "eprint", "!", _) => "prints in sans-IO code: return the text",
                _ => continue,
            };
            findings.push(Finding::new(&source.path, token.line, advice));
        }
    }
    findings
}

/// Finds `unsafe` outside `crates/*/src/sys/`.
pub fn unsafe_only_in_sys(tree: &Tree) -> Vec<Finding> {
    let in_sys = |source: &&Source| {
        let mut folders = source.path.split('/').skip(2);
        folders.next() == Some("src") && matches!(folders.next(), Some("sys" | "sys.rs"))
    };
    let mut findings = Vec::new();
    for source in tree.sources.iter().filter(|source| !in_sys(source)) {
        for token in source.tokens.iter().filter(|token| token.text == "unsafe") {
            findings.push(Finding::new(
                &source.path,
                token.line,
                "`unsafe` outside `src/sys/`: move it behind a safe call",
            ));
        }
    }
    findings
}

/// Finds calls of `sleep` in test code.
pub fn no_sleep_in_tests(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        for pair in source.tokens.windows(2) {
            if is_call(pair, &["sleep", "sleep_ms", "sleep_until"]) && source.is_test_line(pair[0].line) {
                let text = "a test sleeps: wait for the event itself, or use virtual time";
                findings.push(Finding::new(&source.path, pair[0].line, text));
            }
        }
    }
    findings
}

/// Finds assertions on measured time in test code: on `elapsed`, or on a variable whose `let` statement calls it.
/// Excludes `proto`, whose tests use virtual time only.
pub fn no_measured_time_in_asserts(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in tree.sources.iter().filter(|source| !source.path.starts_with("crates/proto/")) {
        let measured = measured_names(&source.tokens);
        for (index, pair) in source.tokens.windows(2).enumerate() {
            let is_assert =
                ["assert", "assert_eq", "assert_ne"].contains(&pair[0].text.as_str()) && pair[1].text == "!";
            let is_measured = |token: &Token| token.text == "elapsed" || measured.contains(token.text.as_str());
            let mut depth = 0_usize;
            let mut inside = source.tokens[index + 2..].iter().take_while(|token| {
                depth = (depth + usize::from(is_opening(token))).saturating_sub(usize::from(is_closing(token)));
                depth > 0
            });
            if is_assert && source.is_test_line(pair[0].line) && inside.any(is_measured) {
                let text = "a test asserts a time that the clock measured: wait for the event, use virtual time, or measure in bench/";
                findings.push(Finding::new(&source.path, pair[0].line, text));
            }
        }
    }
    findings
}

/// Returns the names of variables whose `let` statement contains a call of `elapsed`.
fn measured_names(tokens: &[Token]) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for (index, _) in tokens.iter().enumerate().filter(|(_, token)| token.text == "let") {
        let mut statement = tokens[index + 1..].iter().take_while(|token| token.text != ";" && token.text != "{");
        let name = statement.find(|token| token.text != "mut").map(|token| token.text.as_str());
        if statement.any(|token| token.text == "elapsed") {
            names.extend(name);
        }
    }
    names
}

fn is_opening(token: &Token) -> bool {
    matches!(token.text.as_str(), "(" | "[" | "{")
}

fn is_closing(token: &Token) -> bool {
    matches!(token.text.as_str(), ")" | "]" | "}")
}

fn is_call(pair: &[Token], names: &[&str]) -> bool {
    names.contains(&pair[0].text.as_str()) && pair[1].text == "("
}

/// Returns the alternative to `path`, if sans-IO code may not use this path.
fn banned(path: &str) -> Option<&'static str> {
    let beneath = |path: &str, top: &str| path.strip_prefix(top).is_some_and(|r| r.is_empty() || r.starts_with("::"));
    if PLAIN_VALUES.iter().any(|plain| beneath(path, plain)) {
        return None;
    }
    let hit = BANNED_PATHS.iter().find(|(top, _)| beneath(path, top))?;
    Some(hit.1)
}

/// Returns all paths in `source` with their lines, also those inside macros. Paths are expanded by the `use`
/// declarations.
fn paths(source: &Source) -> Vec<(String, usize)> {
    let mut uses = Uses::default();
    uses.visit_file(&source.file);
    let mut found = uses.lines.clone();
    let tokens = &source.tokens;
    let mut index = 0;
    while index < tokens.len() {
        let (start, mut path) = (index, tokens[index].text.clone());
        index += 1;
        if !is_word(&path) {
            continue;
        }
        while index + 2 < tokens.len()
            && tokens[index].text == ":"
            && tokens[index + 1].text == ":"
            && is_word(&tokens[index + 2].text)
        {
            path = format!("{path}::{}", tokens[index + 2].text);
            index += 3;
        }
        let is_method = start > 0 && tokens[start - 1].text == ".";
        let first = path.split("::").next().unwrap_or_default();
        let is_local_name = !path.contains("::") && !uses.full.contains_key(first);
        if is_method || is_local_name {
            continue;
        }
        if let Some(full) = uses.full.get(first) {
            path = format!("{full}{}", &path[first.len()..]);
        }
        // A glob import (`use super::*`) may import these two names.
        if matches!(path.as_str(), "Instant::now" | "SystemTime::now") {
            path = format!("std::time::{path}");
        }
        found.push((path.replacen("core::", "std::", 1), tokens[start].line));
    }
    // A module of this workspace may have the same name as a banned crate.
    found.retain(|(path, _)| path.split("::").next().is_none_or(|first| !uses.modules.contains(first)));
    found.sort();
    found.dedup();
    found
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names that the `use` declarations of a file import.
#[derive(Default)]
struct Uses {
    /// Full path, keyed by local name.
    full: BTreeMap<String, String>,
    /// Full path and line of each declaration.
    lines: Vec<(String, usize)>,
    /// Modules declared in the file.
    modules: BTreeSet<String>,
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.modules.insert(item.ident.to_string());
        visit::visit_item_mod(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add(&item.tree, "");
        visit::visit_item_use(self, item);
    }
}

impl Uses {
    fn add(&mut self, tree: &syn::UseTree, prefix: &str) {
        let join = |name: &syn::Ident| if prefix.is_empty() { name.to_string() } else { format!("{prefix}::{name}") };
        let (full, local) = match tree {
            syn::UseTree::Path(path) => return self.add(&path.tree, &join(&path.ident)),
            syn::UseTree::Group(group) => return group.items.iter().for_each(|item| self.add(item, prefix)),
            syn::UseTree::Glob(glob) => {
                self.lines.push((prefix.to_owned(), glob.star_token.spans[0].start().line));
                return;
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                (prefix.to_owned(), syn::Ident::new(prefix.rsplit("::").next().unwrap_or("x"), name.ident.span()))
            }
            syn::UseTree::Name(name) => (join(&name.ident), name.ident.clone()),
            syn::UseTree::Rename(rename) => (join(&rename.ident), rename.rename.clone()),
        };
        self.lines.push((full.clone(), local.span().start().line));
        self.full.insert(local.to_string(), full);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::sample;

    fn sans_io_lines(path: &str, text: &str) -> Vec<usize> {
        sans_io(&sample(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn every_way_to_a_clock_socket_file_runtime_or_random_order_is_found() {
        for (text, line) in [
            ("fn f() { let t = std::time::Instant::now(); }", 1),
            ("use std::time::Instant;\nfn f() { let t = Instant::now(); }", 2),
            ("use std::time::{Duration, Instant as I};\nfn f() { assert!(I::now() > t); }", 2),
            ("use std::time;\nfn f() { time::SystemTime::now(); }", 2),
            ("fn f(t: Instant) {\n t.elapsed(); }", 2),
            ("use std::{\n net::TcpStream, fmt };", 2),
            ("use std::net::*;", 1),
            ("fn f() { std::fs::read(p); }", 1),
            ("use std::thread::sleep;", 1),
            ("async fn f() {}", 1),
            ("fn f() { tokio::spawn(x); }", 1),
            ("use log::info;", 1),
            ("use std::{\n collections::{BTreeMap, HashMap} };", 2),
            ("fn f() { std::collections::HashSet::new(); }", 1),
            ("fn f() { println!(\"x\"); }", 1),
        ] {
            assert!(sans_io_lines("crates/proto/src/a.rs", text).contains(&line), "not found in: {text}");
            assert!(!sans_io_lines("crates/lab/src/model/a.rs", text).is_empty(), "not found in the model: {text}");
            assert!(sans_io_lines("crates/net/src/a.rs", text).is_empty(), "found where it is allowed: {text}");
        }
    }

    #[test]
    fn plain_values_and_virtual_time_are_allowed() {
        for text in [
            "use std::net::SocketAddr;\nuse std::time::{Duration, Instant};\nfn f(now: Instant) {}",
            "use std::time::Instant;\n#[cfg(test)]\nmod tests {\n use super::*;\n fn f() { Instant::now(); }\n}",
            "// Instant::now and std::fs in a comment\nconst S: &str = \"std::fs\";",
            "fn f(x: &Log) { x.log(); let fs = 3; }",
            "impl Round { fn elapsed(&self) -> Duration { self.end - self.start } fn f(&self) { self.elapsed(); } }",
            "pub mod log;\npub use log::ControlLog;",
        ] {
            assert_eq!(sans_io_lines("crates/proto/src/a.rs", text), [0; 0], "{text}");
        }
    }

    #[test]
    fn tests_of_sans_io_code_read_no_clock_but_an_origin() {
        let text = "#[cfg(test)]\nmod tests {\n fn f() { std::time::SystemTime::now(); }\n}";
        assert_eq!(sans_io_lines("crates/proto/src/a.rs", text), [3]);
    }

    #[test]
    fn unsafe_is_found_everywhere_but_in_sys() {
        let text = "fn f() { unsafe { g() } }";
        for (path, count) in [
            ("crates/net/src/disk.rs", 1),
            ("crates/net/src/lane/sys/a.rs", 1),
            ("crates/net/tests/a.rs", 1),
            ("crates/net/src/sys/a.rs", 0),
            ("crates/lab/src/sys.rs", 0),
        ] {
            assert_eq!(unsafe_only_in_sys(&sample(&[(path, text)])).len(), count, "{path}");
        }
    }

    #[test]
    fn an_assertion_of_a_measured_time_is_found_and_a_wait_is_not() {
        for (text, count) in [
            ("fn f() { assert!(began.elapsed() < LIMIT); }", 1),
            ("fn f() {\n let took = began.elapsed();\n assert_eq!(took.as_secs(), 1, \"{x}\");\n}", 1),
            ("fn f() { let mut took = 8.0 / began.elapsed().as_secs_f64(); assert!([took][0] > 1.0); }", 1),
            ("fn f() { let rate = 3; began.elapsed(); assert!(rate > 1); drop(began.elapsed()); }", 0),
            ("fn f() { assert!(event[\"elapsed\"].is_number()); wait_until(|| began.elapsed() > LIMIT); }", 0),
        ] {
            assert_eq!(no_measured_time_in_asserts(&sample(&[("crates/net/tests/a.rs", text)])).len(), count, "{text}");
            assert_eq!(no_measured_time_in_asserts(&sample(&[("crates/net/src/a.rs", text)])).len(), 0, "{text}");
        }
    }

    #[test]
    fn a_sleeping_test_is_found_and_sleeping_code_is_not() {
        let call = "fn f() { thread::sleep(x); }";
        assert_eq!(no_sleep_in_tests(&sample(&[("crates/net/tests/a.rs", call)])).len(), 1);
        assert_eq!(no_sleep_in_tests(&sample(&[("crates/net/src/a.rs", call)])).len(), 0);
    }
}
