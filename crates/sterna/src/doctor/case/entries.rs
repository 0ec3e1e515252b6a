//! Entries of now: author, time and text as the user gives them.

use std::io::Read;
use std::time::{SystemTime, UNIX_EPOCH};

use sterna_doctor::case::entry::{Entry, Event, TEXT_BYTES_MAX};
use sterna_doctor::case::moment::EntryTime;
use sterna_doctor::evidence::Direction;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use crate::doctor::tools;
use crate::flags::{EntryFlags, ToolDirection};

/// Returns an entry of now, or of the time that the user gives.
pub fn entry(flags: &EntryFlags, event: Event) -> Entry {
    let now = now();
    let by = flags.by.clone().unwrap_or_else(author);
    match flags.at {
        Some(at) => Entry { time: at, recorded: Some(now), by, event },
        None => Entry { time: now, recorded: None, by, event },
    }
}

fn now() -> EntryTime {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    EntryTime::from_unix(i64::try_from(seconds).unwrap_or(i64::MAX))
}

/// Returns `user@host`.
fn author() -> String {
    let user =
        ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok().filter(|user| !user.is_empty()));
    let user = user.unwrap_or_else(|| format!("user {}", rustix::process::geteuid().as_raw()));
    format!("{user}@{}", rustix::system::uname().nodename().to_string_lossy())
}

/// Returns the text that the user gives, or that of standard input for `-`. Errors: it is empty, too long, or no UTF-8.
pub fn text_of(given: &str) -> Result<String, Error> {
    let mut text = given.to_owned();
    if given == "-" {
        text.clear();
        let read = std::io::stdin().lock().take(TEXT_BYTES_MAX as u64 + 1).read_to_string(&mut text);
        read.map_err(|e| {
            let text = "read the text from standard input, in UTF-8";
            Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, text).caused_by(e)
        })?;
    }
    match text.trim() {
        "" => Err(tools::usage("the text is empty".to_owned())),
        text => Ok(text.to_owned()),
    }
}

/// Returns a direction of the data as evidence names it.
pub fn direction(given: ToolDirection) -> Direction {
    match given {
        ToolDirection::Up => Direction::Forward,
        ToolDirection::Down => Direction::Reverse,
    }
}
