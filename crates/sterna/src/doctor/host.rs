//! `sterna doctor host`: settings of this host against the paths that it is used on.
//!
//! Reads the connections of this host for a second, the path cache and the settings; [`HostReport`] judges. Changes
//! settings only with `--apply`, after a question.

use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal, Write};
use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use sterna_doctor::host::{HostPicture, HostReport, PathUse, RTT_MIN, lines};
use sterna_net::engine::recorded_paths;
use sterna_net::measure::{Connection, Connections, backlog_drops, host_facts, memory};
use sterna_net::tuning::{self, Applied, SettingChange};
use sterna_proto::path_cache::{DataDirection, PathRecord};
use sterna_proto::{BitRate, ByteCount, Error, ErrorKind, Phase, Scope};

use super::own_kernel;
use crate::flags::HostFlags;
use crate::jobs::table::json_of;
use crate::output::{print_line, say};
use crate::state;

/// Time in which the rates of connections are measured. Reason: a person waits for it; bursts of a second are seen.
const RATES_OVER: Duration = Duration::from_secs(1);

/// Payload of a full segment on a path of the cache without an MTU, bytes.
const MSS_USUAL: u32 = 1448;

/// Headers of a segment: 20 bytes of IPv4, 20 of TCP and 12 of timestamps.
const HEADERS: u16 = 52;

/// Runs the command. Returns the exit code.
pub fn run(flags: &HostFlags) -> Result<u8, Error> {
    let state = state::directory(flags.state.as_deref())?;
    if flags.rollback {
        return roll_back(&state, flags.json);
    }
    let report = HostReport::new(&picture(&state)?, flags.rate);
    if !flags.apply {
        return show(&report, flags.json);
    }
    let changes = report.changes();
    if changes.is_empty() && flags.persist.is_none() {
        print(&Applied::default(), flags.json, &["every setting fits: nothing to change".to_owned()])?;
        return Ok(0);
    }
    if !flags.yes && !confirm(&changes)? {
        say("nothing was changed");
        return Ok(0);
    }
    let applied = tuning::apply(&state, &changes, flags.persist.as_deref())?;
    let mut text: Vec<String> = applied.changed.iter().map(change_words).collect();
    text.extend(applied.refused.iter().map(|(name, reason)| format!("net.{name} stays: {reason}")));
    text.push("`sterna doctor host --rollback` sets the values from before; open new connections now".to_owned());
    print(&applied, flags.json, &text)?;
    Ok(0)
}

fn show(report: &HostReport, json: bool) -> Result<u8, Error> {
    print(report, json, &lines(report))?;
    Ok(0)
}

fn roll_back(state: &Path, json: bool) -> Result<u8, Error> {
    let restored = tuning::rollback(state)?;
    let mut text: Vec<String> = restored.iter().map(change_words).collect();
    text.push("all settings have their values from before".to_owned());
    print(&restored, json, &text)?;
    Ok(0)
}

fn print(result: &impl Serialize, json: bool, text: &[String]) -> Result<(), Error> {
    if json {
        return print_line(json_of(result)?.as_bytes());
    }
    text.iter().try_for_each(|line| print_line(sterna_proto::file::plain(line).as_bytes()))
}

fn change_words(change: &SettingChange) -> String {
    let one_line = |value: &str| value.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("net.{}: {} -> {}", change.setting, one_line(&change.before), one_line(&change.after))
}

/// Asks whether to change settings.
fn confirm(changes: &[(String, String)]) -> Result<bool, Error> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        let text = "settings are changed after a question, and there is no terminal: give --yes";
        return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
    }
    for (setting, value) in changes {
        say(&format!("  net.{setting} = {value}"));
    }
    let mut terminal = std::io::stderr().lock();
    let asked = write!(terminal, "Set these {} values at this host? [y/N] ", changes.len());
    let failed = |e| Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, "ask on the terminal").caused_by(e);
    asked.and_then(|()| terminal.flush()).map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Returns the facts of this host. Takes [`RATES_OVER`].
fn picture(state: &Path) -> Result<HostPicture, Error> {
    let mut paths: BTreeMap<IpAddr, PathUse> = BTreeMap::new();
    let mut connections = Connections::open()?;
    let (begun, before) = (Instant::now(), connections.read()?);
    thread::sleep(RATES_OVER);
    let (time, now) = (begun.elapsed(), connections.read()?);
    let before: BTreeMap<u64, &Connection> = before.iter().map(|one| (one.cookie, one)).collect();
    for connection in &now {
        add_connection(&mut paths, connection, before.get(&connection.cookie).copied(), time);
    }
    finish_loss(&mut paths, &now);
    for record in recorded_paths(state) {
        add_record(&mut paths, &record);
    }
    Ok(HostPicture {
        kernel: own_kernel::version()?,
        settings: host_facts().settings,
        memory: memory(),
        page: ByteCount(rustix::param::page_size() as u64),
        backlog_drops: backlog_drops(),
        paths: paths.into_values().collect(),
    })
}

fn path_of(paths: &mut BTreeMap<IpAddr, PathUse>, remote: IpAddr) -> &mut PathUse {
    paths.entry(remote).or_insert_with(|| PathUse {
        remote,
        rtt: Duration::MAX,
        mss: MSS_USUAL,
        connections: 0,
        rate_out: BitRate(0),
        rate_in: BitRate(0),
        loss: 0.0,
        in_flight: ByteCount(0),
    })
}

/// Adds a connection. `before`: the same one, `time` earlier. The rates of a path are the sums of its connections.
fn add_connection(
    paths: &mut BTreeMap<IpAddr, PathUse>,
    now: &Connection,
    before: Option<&Connection>,
    time: Duration,
) {
    let rtt = now.rtt_min();
    if rtt < RTT_MIN {
        return;
    }
    let path = path_of(paths, now.remote.ip());
    path.rtt = path.rtt.min(rtt);
    path.mss = now.info.snd_mss.max(1);
    path.connections += 1;
    let Some(before) = before else { return };
    let moved = |now: Option<ByteCount>, before: Option<ByteCount>| {
        ByteCount(now.unwrap_or_default().0.saturating_sub(before.unwrap_or_default().0))
    };
    let rate_in = BitRate::mean(moved(now.info.bytes_received, before.info.bytes_received), time);
    path.rate_out.0 += BitRate::mean(moved(now.info.bytes_acked, before.info.bytes_acked), time).0;
    path.rate_in.0 += rate_in.0;
    path.in_flight = path.in_flight.max(now.sample().in_flight).max(rate_in.bytes_in(rtt));
}

/// Sets the losses of paths: segments sent again, of all segments of their connections.
fn finish_loss(paths: &mut BTreeMap<IpAddr, PathUse>, connections: &[Connection]) {
    let mut segments: BTreeMap<IpAddr, (u64, u64)> = BTreeMap::new();
    for connection in connections {
        let sample = connection.sample();
        let (sent, lost) = segments.entry(connection.remote.ip()).or_default();
        (*sent, *lost) = (*sent + sample.sent, *lost + sample.lost);
    }
    for path in paths.values_mut() {
        let (sent, lost) = segments.get(&path.remote).copied().unwrap_or_default();
        path.loss = lost.min(sent) as f64 / sent.max(1) as f64;
    }
}

/// Adds what a copy has recorded about a path.
fn add_record(paths: &mut BTreeMap<IpAddr, PathUse>, record: &PathRecord) {
    if record.rtt < RTT_MIN {
        return;
    }
    let path = path_of(paths, record.key.remote.ip());
    path.rtt = path.rtt.min(record.rtt);
    if path.connections == 0 && record.mtu > HEADERS {
        path.mss = u32::from(record.mtu - HEADERS);
    }
    let rate = match record.key.direction {
        DataDirection::Out => &mut path.rate_out,
        DataDirection::In => &mut path.rate_in,
    };
    *rate = (*rate).max(record.rate);
    path.loss = path.loss.max(f64::from(record.loss_ppm) / 1e6);
}
