//! Generates shell completions and manual pages for packages, from the table of flags.

use std::io;
use std::path::Path;

use clap::CommandFactory;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use crate::flags::{Flags, Shell};

/// Prints the completion script of `shell`.
pub fn completions(shell: Shell) -> Result<u8, Error> {
    crate::output::print_line(script(shell).trim_end().as_bytes())?;
    Ok(0)
}

/// Writes one page per command into `directory`; creates the directory if it is missing.
pub fn manual(directory: &Path) -> Result<u8, Error> {
    // A page for `help` would repeat the help of each command.
    let mut command = Flags::command().disable_help_subcommand(true);
    command.build();
    std::fs::create_dir_all(directory).and_then(|()| write_pages(&command, directory)).map_err(|e| {
        let text = format!("write the manual to {}", directory.display());
        Error::new(ErrorKind::Io, Scope::Client, Phase::Finalise, text).caused_by(e)
    })?;
    Ok(0)
}

/// Writes the pages of `command` and of its subcommands.
fn write_pages(command: &clap::Command, directory: &Path) -> io::Result<()> {
    let source = concat!("sterna ", env!("CARGO_PKG_VERSION"));
    let man = clap_mangen::Man::new(command.clone()).source(source).manual("Sterna");
    let mut page = Vec::new();
    man.render(&mut page)?;
    // The text after the help begins with examples. Readers of manual pages look for this section title.
    let page = String::from_utf8_lossy(&page).replace("\n.SH EXTRA\n", "\n.SH EXAMPLES AND NOTES\n");
    let page = with_literal_lines(&page);
    std::fs::write(directory.join(man.get_filename()), page)?;
    command.get_subcommands().try_for_each(|command| write_pages(command, directory))
}

/// Puts indented lines, such as examples, between `.nf` and `.fi`: readers of manual pages otherwise fill and hyphenate
/// them.
fn with_literal_lines(page: &str) -> String {
    let (mut text, mut is_literal) = (String::with_capacity(page.len()), false);
    for line in page.lines() {
        let is_indented = line.starts_with("  ");
        if is_indented != is_literal {
            text.push_str(if is_indented { ".nf\n" } else { ".fi\n" });
            is_literal = is_indented;
        }
        text.push_str(line);
        text.push('\n');
    }
    if is_literal {
        text.push_str(".fi\n");
    }
    text
}

fn script(shell: Shell) -> String {
    use clap_complete::Shell as Generator;
    let generator = match shell {
        Shell::Bash => Generator::Bash,
        Shell::Zsh => Generator::Zsh,
        Shell::Fish => Generator::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(generator, &mut Flags::command(), PROGRAM, &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if shell == Shell::Fish {
        add_deep_flags(&Flags::command(), &mut Vec::new(), &mut script);
    }
    script
}

/// Adds the flags of commands at the third level, such as `sterna doctor case run`: the generator for fish ends at the
/// second one.
fn add_deep_flags(command: &clap::Command, parents: &mut Vec<String>, script: &mut String) {
    if let [first, others @ ..] = parents.as_slice()
        && others.len() == DEEP - 1
    {
        let seen = others.iter().map(|name| format!("; and __fish_seen_subcommand_from {name}")).collect::<String>();
        for flag in command.get_arguments().filter(|flag| !flag.is_hide_set()) {
            let Some(long) = flag.get_long() else { continue };
            let help = flag.get_help().map(ToString::to_string).unwrap_or_default().replace('\'', "\\'");
            let value = if flag.get_action().takes_values() { " -r" } else { "" };
            script.push_str(&format!(
                "complete -c {PROGRAM} -n \"__fish_{PROGRAM}_using_subcommand {first}{seen}\" -l {long} -d '{help}'{value}\n"
            ));
        }
    }
    for subcommand in command.get_subcommands() {
        parents.push(subcommand.get_name().to_owned());
        add_deep_flags(subcommand, parents, script);
        parents.pop();
    }
}

/// Level of commands whose flags the generator for fish leaves out.
const DEEP: usize = 3;

/// Program name in the completion scripts.
const PROGRAM: &str = "sterna";

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Returns each command as its words, with its long flags.
    fn commands() -> Vec<(Vec<String>, Vec<String>)> {
        fn visit(command: &clap::Command, words: &[String], found: &mut Vec<(Vec<String>, Vec<String>)>) {
            let words: Vec<String> = words.iter().cloned().chain([command.get_name().to_owned()]).collect();
            // Flags for developers are in no page.
            let shown = command.get_arguments().filter(|flag| !flag.is_hide_set());
            let longs = shown.filter_map(|flag| flag.get_long()).map(str::to_owned).collect();
            found.push((words.clone(), longs));
            command.get_subcommands().for_each(|command| visit(command, &words, found));
        }
        let mut found = Vec::new();
        let mut flags = Flags::command().disable_help_subcommand(true);
        flags.build();
        visit(&flags, &[], &mut found);
        assert!(found.iter().any(|(words, longs)| words.ends_with(&["run".into()]) && longs.contains(&"rtt".into())));
        found
    }

    /// Returns the completions of bash for `--` after `words`.
    fn offered_by_bash(script: &Path, words: &[String]) -> Vec<String> {
        let ask = "source \"$0\"; COMP_WORDS=(\"$@\" --); COMP_CWORD=$#; _sterna sterna -- \"${!#}\"; echo \"${COMPREPLY[@]}\"";
        let output = Command::new("bash").args(["--norc", "-c", ask]).arg(script).args(words).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn shells_complete_every_flag_of_every_command() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sterna.bash");
        std::fs::write(&path, script(Shell::Bash)).unwrap();
        let checked = Command::new("bash").arg("-n").arg(&path).output().unwrap();
        assert!(checked.status.success() && checked.stderr.is_empty(), "{}", String::from_utf8_lossy(&checked.stderr));
        let (zsh, fish) = (script(Shell::Zsh), script(Shell::Fish));
        for (words, longs) in commands() {
            let offered = offered_by_bash(&path, &words);
            for long in longs {
                assert!(offered.contains(&format!("--{long}")), "bash, {words:?} --{long}: {offered:?}");
                assert!(zsh.contains(&format!("--{long}=[")) || zsh.contains(&format!("--{long}[")), "zsh, --{long}");
                assert!(fish.contains(&format!(" -l {long} ")), "fish, --{long}");
            }
        }
    }

    #[test]
    fn the_manual_has_a_page_for_each_command_with_every_flag() {
        let directory = tempfile::tempdir().unwrap();
        let pages = directory.path().join("share/man1");
        assert_eq!(manual(&pages).unwrap(), 0);
        let commands = commands();
        assert_eq!(std::fs::read_dir(&pages).unwrap().count(), commands.len());
        for (words, longs) in commands {
            let page = std::fs::read_to_string(pages.join(format!("{}.1", words.join("-")))).unwrap();
            // Pages escape a hyphen that users type.
            assert!(page.contains("\"sterna ") && !page.contains(".SH EXTRA"), "{page}");
            let options = page.split_once("\n.SH OPTIONS\n").map(|(_, options)| options.to_owned()).unwrap_or_default();
            for long in longs {
                let flag = format!("\\fB\\-\\-{}\\fR", long.replace('-', "\\-"));
                assert!(options.contains(&flag), "{words:?} --{long}: {page}");
            }
        }
    }

    #[test]
    fn readers_of_the_manual_neither_fill_nor_hyphenate_examples() {
        let text = ".SH EXAMPLES\nExamples:\n  sterna id \\-\\-state x\n  sterna man\n\nText\n  last";
        let expected =
            ".SH EXAMPLES\nExamples:\n.nf\n  sterna id \\-\\-state x\n  sterna man\n.fi\n\nText\n.nf\n  last\n.fi\n";
        assert_eq!(with_literal_lines(text), expected);
        let directory = tempfile::tempdir().unwrap();
        manual(directory.path()).unwrap();
        let page = std::fs::read_to_string(directory.path().join("sterna-copy.1")).unwrap();
        let (_, examples) = page.split_once("\nExamples:\n.nf\n").unwrap();
        let (examples, _) = examples.split_once("\n.fi\n").unwrap();
        assert!(examples.lines().count() > 5 && examples.lines().all(|line| line.starts_with("  ")), "{examples}");
        assert!(examples.contains("\\-\\-rate 50Mbit") && !examples.contains(" --"), "{examples}");
    }

    #[test]
    fn a_manual_that_cannot_be_written_says_where() {
        let error = manual(Path::new("/dev/null/man1")).unwrap_err();
        assert!(error.chain().starts_with("write the manual to /dev/null/man1: "), "{}", error.chain());
        assert_eq!(error.exit_code(), 74);
    }
}
