//! A parsed Rust file: lines, tokens, functions, and the lines that are test code.

use std::ops::RangeInclusive;
use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A Rust file.
pub struct Source {
    /// Path from the root of the workspace, with forward slashes.
    pub path: String,
    /// Lines of the file; line number `n` is `lines[n - 1]`.
    pub lines: Vec<String>,
    /// Tokens in order, including delimiters and the content of macros, without comments.
    pub tokens: Vec<Token>,
    /// Syntax tree.
    pub file: syn::File,
    /// Functions of the file.
    pub functions: Vec<Function>,
    /// Lines of each statement; inner statements follow outer ones.
    statements: Vec<RangeInclusive<usize>>,
    test_lines: Vec<RangeInclusive<usize>>,
}

/// A token of the language: a word, a literal or a punctuation mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Spelling of the token; a literal keeps its quotes.
    pub text: String,
    /// First line of the token, from 1.
    pub line: usize,
    /// Last line of the token.
    pub line_end: usize,
}

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// `name`, or `Type::name` inside an `impl` or a `trait`.
    pub name: String,
    /// Line of the `fn` keyword, from 1.
    pub line: usize,
    /// Lines with code from `fn` to the closing brace, without blank and comment lines.
    pub code_lines: usize,
}

impl Source {
    /// Parses `text`. `in_tests` marks the whole file as test code (another file declares it with `#[cfg(test)] mod`).
    ///
    /// Errors: the text is not valid Rust; the message names the line.
    pub fn parse(path: &str, text: &str, in_tests: bool) -> Result<Self, String> {
        let wrong = |line: usize, why: String| format!("{path}:{line}: {why}");
        let file = syn::parse_file(text).map_err(|e| wrong(e.span().start().line, e.to_string()))?;
        let stream = TokenStream::from_str(text).map_err(|e| wrong(0, e.to_string()))?;
        let mut tokens = Vec::new();
        flatten(stream, &mut tokens);
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut walk = Walk::default();
        walk.visit_file(&file);
        let mut test_lines = walk.test_lines;
        if in_tests || is_test_path(path) {
            test_lines = vec![RangeInclusive::new(1, lines.len())];
        }
        let functions = walk.functions;
        let mut source = Self {
            path: path.to_owned(),
            lines,
            tokens,
            file,
            functions: vec![],
            statements: walk.statements,
            test_lines,
        };
        source.functions = functions
            .into_iter()
            .map(|(name, lines)| Function { name, line: *lines.start(), code_lines: source.code_lines_in(&lines) })
            .collect();
        Ok(source)
    }

    /// Returns true if `line` is test code: in a test file, or in an item with `#[test]` or `#[cfg(test)]`.
    pub fn is_test_line(&self, line: usize) -> bool {
        self.test_lines.iter().any(|lines| lines.contains(&line))
    }

    /// Returns true if a comment is directly above `line`, or directly above the statement that contains `line`.
    pub fn has_comment_above(&self, line: usize) -> bool {
        let statement = self.statements.iter().rev().find(|lines| lines.contains(&line));
        let starts = [Some(line), statement.map(|lines| *lines.start())];
        starts.into_iter().flatten().any(|start| start >= 2 && is_plain_comment(&self.lines[start - 2]))
    }

    /// Returns the files (paths without extension) of the modules that this file declares only for tests.
    pub fn test_modules(&self) -> Vec<String> {
        let stem = self.path.trim_end_matches(".rs");
        let folder = match stem.rsplit_once('/') {
            Some((folder, "mod" | "lib" | "main")) => folder.to_owned(),
            _ => stem.to_owned(),
        };
        let is_test_module = |item: &syn::Item| match item {
            syn::Item::Mod(module) if module.content.is_none() && has_test_attribute(&module.attrs) => {
                Some(format!("{folder}/{}", module.ident))
            }
            _ => None,
        };
        self.file.items.iter().filter_map(is_test_module).collect()
    }

    fn code_lines_in(&self, lines: &RangeInclusive<usize>) -> usize {
        let mut code: Vec<usize> = Vec::new();
        for token in self.tokens.iter().filter(|token| lines.contains(&token.line)) {
            code.extend(token.line..=token.line_end);
        }
        code.sort_unstable();
        code.dedup();
        // A doc comment is also a token (an attribute), but not a line of code.
        code.iter().filter(|&&line| !self.lines[line - 1].trim_start().starts_with("//")).count()
    }
}

/// Returns true if the location of this path makes everything below it test code.
fn is_test_path(path: &str) -> bool {
    path.split('/').any(|folder| folder == "tests" || folder == "benches")
}

fn is_plain_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//") && !line.starts_with("///") && line.trim_start_matches('/').trim().len() >= 3
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    let push = |text: String, span: proc_macro2::Span, tokens: &mut Vec<Token>| {
        tokens.push(Token { text, line: span.start().line, line_end: span.end().line });
    };
    for tree in stream {
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                push(open.to_owned(), group.span_open(), tokens);
                flatten(group.stream(), tokens);
                push(close.to_owned(), group.span_close(), tokens);
            }
            TokenTree::Ident(ident) => push(ident.to_string(), ident.span(), tokens),
            TokenTree::Punct(punct) => push(punct.as_char().to_string(), punct.span(), tokens),
            TokenTree::Literal(literal) => push(literal.to_string(), literal.span(), tokens),
        }
    }
}

/// Returns true if one of `attributes` is `#[test]`, `#[cfg(test)]` or another `…::test`.
fn has_test_attribute(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::Path(path) => path.segments.last().is_some_and(|last| last.ident == "test"),
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let inside = list.tokens.to_string();
            inside == "test" || (inside.starts_with("all") || inside.starts_with("any")) && inside.contains("test")
        }
        _ => false,
    })
}

#[derive(Default)]
struct Walk {
    functions: Vec<(String, RangeInclusive<usize>)>,
    statements: Vec<RangeInclusive<usize>>,
    test_lines: Vec<RangeInclusive<usize>>,
    owner: Option<String>,
}

impl Walk {
    fn function(&mut self, signature: &syn::Signature, body: &syn::Block, attributes: &[syn::Attribute]) {
        let name = match &self.owner {
            Some(owner) => format!("{owner}::{}", signature.ident),
            None => signature.ident.to_string(),
        };
        let lines = signature.fn_token.span.start().line..=body.brace_token.span.close().end().line;
        if has_test_attribute(attributes) {
            self.test_lines.push(lines.clone());
        }
        self.functions.push((name, lines));
    }

    fn within(&mut self, owner: Option<String>, visit: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.owner, owner);
        visit(self);
        self.owner = outer;
    }
}

impl<'ast> Visit<'ast> for Walk {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Const(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if has_test_attribute(attributes) {
            let span = item.span();
            self.test_lines.push(span.start().line..=span.end().line);
        }
        visit::visit_item(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block, &item.attrs);
        self.within(Some(item.sig.ident.to_string()), |walk| visit::visit_item_fn(walk, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block, &item.attrs);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.sig, body, &item.attrs);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let owner = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        self.within(owner, |walk| visit::visit_item_impl(walk, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.within(Some(item.ident.to_string()), |walk| visit::visit_item_trait(walk, item));
    }

    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        let span = statement.span();
        self.statements.push(span.start().line..=span.end().line);
        visit::visit_stmt(self, statement);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_and_comment_lines_are_not_code() {
        let text = "/// Doc.\nfn f(\n    a: u8,\n) -> u8 {\n    // why\n\n    let s = \"x\n  y\";\n    a\n}\n";
        let source = Source::parse("a.rs", text, false).unwrap();
        assert_eq!(source.functions, [Function { name: "f".into(), line: 2, code_lines: 7 }]);
    }

    #[test]
    fn functions_carry_the_name_of_their_type() {
        let text = "struct A; impl A { fn g(&self) {} } trait T { fn h() {} fn i(); } fn f() { fn j() {} }";
        let source = Source::parse("a.rs", text, false).unwrap();
        let names: Vec<&str> = source.functions.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["A::g", "T::h", "f", "f::j"]);
    }

    #[test]
    fn code_of_tests_is_known_by_attribute_place_and_declaration() {
        let text =
            "fn f() {}\n#[cfg(test)]\nmod tests {\n  fn g() {}\n}\n#[cfg(test)]\nmod far;\n#[test]\nfn h() {\n}\n";
        let source = Source::parse("crates/x/src/a.rs", text, false).unwrap();
        let tests: Vec<bool> = (1..=9).map(|line| source.is_test_line(line)).collect();
        assert_eq!(tests, [false, true, true, true, true, true, true, true, true]);
        assert_eq!(source.test_modules(), ["crates/x/src/a/far"]);
        assert!(Source::parse("crates/x/tests/a.rs", "fn f() {}", false).unwrap().is_test_line(1));
        assert!(Source::parse("crates/x/src/a/far.rs", "fn f() {}", true).unwrap().is_test_line(1));
    }

    #[test]
    fn a_comment_counts_above_the_line_or_its_statement() {
        let text = "fn f() {\n    // It holds because x.\n    a\n        .b()\n        .c();\n    d();\n}\n";
        let source = Source::parse("a.rs", text, false).unwrap();
        assert!(source.has_comment_above(5));
        assert!(!source.has_comment_above(6));
    }
}
