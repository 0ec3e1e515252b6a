//! Commands in the documents and in the help texts: every `sterna …` that they show must parse, and every flag exist.
//!
//! Reads a shell line as far as documents need it: quotes, line continuations, comments, pipes, redirections and
//! command substitutions. Refuses to expand variables and wildcards.

use clap::{CommandFactory, Parser};

use crate::flags::Flags;

/// Value of a command substitution and of a shortened fingerprint.
const FINGERPRINT: &str = "SHA256:PXnRV7Viz07LCS3q+EGKVef/8GfRAaO0qTW3vRXksbU";

/// Value of a shortened digest.
const DIGEST: &str = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

/// Returns the commands of a shell line, as words. The commands of substitutions come before the command around them.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut done, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut quote = None;
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match (quote, c) {
            (Some('\''), '\'') | (Some('"'), '"') => quote = None,
            (Some('\''), _) => word.get_or_insert_default().push(c),
            (_, '$') if rest.peek() == Some(&'(') => {
                done.extend(commands(&substitution(&mut rest)));
                word.get_or_insert_default().push_str(FINGERPRINT);
            }
            (_, '\\') => word.get_or_insert_default().extend(rest.next()),
            (Some(_), _) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | '&' | ';' | '>' | '<' | '(' | ')') => {
                words.extend(word.take());
                done.push(std::mem::take(&mut words));
            }
            (None, _) if c.is_whitespace() => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    done.push(words);
    done
}

/// Takes a command substitution from `rest`, and returns its text without the parentheses.
fn substitution(rest: &mut impl Iterator<Item = char>) -> String {
    let (mut depth, mut text) = (0, String::new());
    for c in rest {
        depth += i32::from(c == '(') - i32::from(c == ')');
        text.push(c);
        if depth == 0 {
            break;
        }
    }
    text.trim_start_matches('(').strip_suffix(')').unwrap_or_default().to_owned()
}

/// Parses every call of `sterna` in a shell line, also one behind another command such as `sterna lab exec b --`.
/// Returns the number of calls.
///
/// Errors: the call that does not parse, and the message of the parser.
pub fn parse(line: &str) -> Result<usize, String> {
    let line = line.replace("SHA256:…", FINGERPRINT).replace("sha256:9f86d0…", DIGEST);
    let mut count = 0;
    for words in commands(&line) {
        for (at, _) in words.iter().enumerate().filter(|(_, word)| *word == "sterna") {
            // A `sterna` at the end is the name of a package or file.
            if at + 1 < words.len() {
                parse_one(&words[at..])?;
                count += 1;
            }
        }
    }
    Ok(count)
}

fn parse_one(words: &[String]) -> Result<(), String> {
    use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
    match Flags::try_parse_from(words) {
        Err(error) if !matches!(error.kind(), DisplayHelp | DisplayVersion) => {
            Err(format!("{}: {error}", words.join(" ")))
        }
        _ => Ok(()),
    }
}

/// Returns the flags that a document names in its sentences and that no command has.
fn unknown_flags(document: &str) -> Vec<String> {
    let (sentences, known) = (document.split("```").step_by(2), flag_names(&Flags::command()));
    let spans = sentences.flat_map(|text| text.split('`').skip(1).step_by(2));
    let flags =
        spans.filter_map(|span| span.strip_prefix("--")?.split(|c: char| !(c == '-' || c.is_alphanumeric())).next());
    flags.filter(|flag| !known.iter().any(|name| name == flag)).map(str::to_owned).collect()
}

/// Returns the names of the flags of a command and its subcommands.
fn flag_names(command: &clap::Command) -> Vec<String> {
    let own = command.get_arguments().filter_map(clap::Arg::get_long).map(str::to_owned);
    own.chain(["help".to_owned()]).chain(command.get_subcommands().flat_map(flag_names)).collect()
}

/// Returns the shell lines of a document: lines of code blocks that begin with a prompt or with `sterna`, and code in
/// sentences that is more than the name of a command and a flag. Leaves out lines with placeholders: `…` in a sentence,
/// and shell variables in lower case.
fn shell_lines(document: &str) -> Vec<String> {
    let (mut found, mut is_code) = (Vec::new(), false);
    for line in document.replace("\\\n", " ").lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            let command = line.strip_prefix("$ ").or_else(|| line.starts_with("sterna ").then_some(line));
            found.extend(command.map(str::to_owned));
        } else {
            let spans = line.split('`').skip(1).step_by(2).filter(|span| span.starts_with("sterna "));
            let is_name = |span: &&str| span.chars().all(|c| c.is_ascii_lowercase() || c == ' ' || c == '-');
            found.extend(spans.filter(|span| !is_name(span) && !span.contains('…')).map(str::to_owned));
        }
    }
    let is_template =
        |line: &String| line.split('$').skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()));
    found.retain(|line| !is_template(line));
    found
}

#[test]
fn every_command_and_flag_in_the_documents_exists() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = [
        ("README.md", 8),
        ("docs/cookbook.md", 30),
        ("docs/operating.md", 10),
        ("docs/http.md", 3),
        ("docs/tuning.md", 5),
        ("docs/service.md", 5),
        ("CONTRIBUTING.md", 4),
    ];
    let mut wrong = Vec::new();
    for (page, least) in pages {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        let mut count = 0;
        for line in shell_lines(&text) {
            match parse(&line) {
                Ok(calls) => count += calls,
                Err(why) => wrong.push(format!("{page}: {why}")),
            }
        }
        wrong.extend(unknown_flags(&text).into_iter().map(|flag| format!("{page}: no command has --{flag}")));
        assert!(count >= least, "{page}: found {count} commands, of at least {least}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_flag_of_a_command_is_in_a_page() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let pages = ["operating.md", "cookbook.md", "http.md", "tuning.md", "storage.md", "json.md", "service.md"];
    let text: String = pages.iter().map(|page| std::fs::read_to_string(docs.join(page)).unwrap()).collect();
    let is_named =
        |name: String| text.split(|c: char| !(c == '-' || c.is_ascii_alphanumeric())).any(|word| word == name);
    let command = Flags::command();
    let (mut count, mut missing) = (0, Vec::new());
    let commands =
        ["copy", "agent", "serve", "submit", "status", "list", "watch", "cancel", "explain", "ban", "config"];
    let named = |command: &&clap::Command| commands.contains(&command.get_name());
    let of_users = command.get_subcommands().filter(named);
    for command in of_users.flat_map(|command| [command].into_iter().chain(command.get_subcommands())) {
        for flag in command.get_arguments().filter(|flag| !flag.is_hide_set()) {
            let Some(long) = flag.get_long() else { continue };
            let has_short = flag.get_short().is_some_and(|short| is_named(format!("-{short}")));
            count += 1;
            if !has_short && !is_named(format!("--{long}")) {
                missing.push(format!("sterna {} --{long}", command.get_name()));
            }
        }
    }
    assert!(count >= 90 && missing.is_empty(), "of {count} flags, these are in no page: {missing:?}");
}

#[test]
fn shell_lines_are_split_as_a_shell_does() {
    let words = |line: &str| commands(line).into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>();
    assert_eq!(words("sterna copy 'a b' \"c\"d sterna://h/ # why"), [["sterna", "copy", "a b", "cd", "sterna://h/"]]);
    assert_eq!(words("a > b | c &"), [["a"], ["b"], ["c"]]);
    assert_eq!(
        words("a --trust $(sterna id --state x)"),
        [vec!["sterna", "id", "--state", "x"], vec!["a", "--trust", FINGERPRINT]]
    );
    assert_eq!(parse("sterna lab exec b -- sterna id"), Ok(2));
    assert!(parse("sterna lab exec b -- sterna id --no-such-flag").is_err());
    assert!(parse("sterna copy --rate 5Mbit only-one-end --no-such-flag").is_err());
}
