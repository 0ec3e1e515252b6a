//! `sterna doctor history`: the paths that an agent of this host monitors, from the rounds in its state directory.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use sterna_doctor::report::history::{HEADS, PathHistory, history, page};
use sterna_net::identity::KnownHosts;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::bundle;
use crate::flags::HistoryFlags;
use crate::jobs::table::Table;
use crate::monitor::store::Journal;
use crate::output::{print_line, say};
use crate::state;

/// History for programs.
#[derive(Serialize)]
struct Histories<'a> {
    paths: &'a [PathHistory],
}

/// Shows the history. Returns the exit code.
///
/// Errors: `NotFound`: no path, or not that one, is monitored; of the storage.
pub fn run(flags: &HistoryFlags) -> Result<u8, Error> {
    let directory = state::directory(flags.state.as_deref())?;
    let wanted = flags.peer.as_ref().map(KnownHosts::name_of);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let since = now.saturating_sub(flags.since.as_secs());
    let mut paths = Vec::new();
    for (peer, journal) in Journal::all(&directory)? {
        if wanted.as_ref().is_none_or(|wanted| *wanted == peer) {
            paths.push(history(peer, journal.rounds()?, since));
        }
    }
    if paths.is_empty() {
        let what = wanted.map_or("no path".to_owned(), |peer| format!("no path to {peer}"));
        let text = format!(
            "{what} has rounds in {}: start an agent with --monitor, or give its --state here",
            directory.display()
        );
        return Err(Error::new(ErrorKind::NotFound, Scope::Client, Phase::Prepare, text));
    }
    if let Some(file) = &flags.html {
        bundle::write(file, page(&paths).as_bytes())?;
        say(&format!("wrote {}", file.display()));
    }
    if flags.json {
        return bundle::print_json(&Histories { paths: &paths });
    }
    let mut table = Table::new(&["path to", HEADS[0], HEADS[1], HEADS[2], HEADS[3], "alarms"], 5..6);
    for path in &paths {
        let [trips, loss, there, back] = path.cells();
        table.add(vec![path.peer.clone(), trips, loss, there, back, path.present.alarms.len().to_string()]);
    }
    print_line(table.text().as_bytes())?;
    let lines = paths.iter().flat_map(PathHistory::lines);
    lines.map(|line| sterna_proto::file::plain(&line).into_owned()).try_for_each(|line| print_line(line.as_bytes()))?;
    Ok(0)
}
