//! What the system must remember of a lab: a small file for each, so that others find it and what it changed is undone.
//!
//! `sterna lab exec` finds the hosts through it (`/proc/PID/fd/N` of the lab's process are the namespaces). When that
//! process died without a chance to clean up, the next lab's start does: it ends the programs that still run inside,
//! puts the machine-wide settings back and removes the file.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sterna_proto::error::ErrorKind;
use sterna_proto::{Error, Phase, Scope};

use crate::lab::cannot;

/// The variable that names the lab inside its hosts.
pub const NAME_VARIABLE: &str = "STERNA_LAB";

/// Where records are: gone after a restart, as labs are.
const DIRECTORY: &str = "/run/sterna-lab";

/// A lab as the system remembers it. Dropping it undoes machine-wide settings and removes the file.
pub(crate) struct Record {
    content: Content,
    path: PathBuf,
}

/// The content of a record's file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Content {
    pub(crate) name: String,
    pub(crate) pid: u32,
    /// Start of the process in clock ticks since boot: tells it from a later one with the same number.
    started: u64,
    /// Descriptors of the two namespaces in that process, and their inodes.
    namespaces: [(i32, u64); 2],
    pub(crate) addresses: [Vec<Ipv4Addr>; 2],
    pub(crate) environment: Vec<(String, String)>,
    /// Machine-wide settings with the value they had before any lab.
    settings: Vec<(String, String)>,
}

impl Record {
    pub(crate) fn new(
        name: String,
        namespaces: [&OwnedFd; 2],
        addresses: [Vec<Ipv4Addr>; 2],
        environment: &Arc<Vec<(String, String)>>,
    ) -> Result<Self, Error> {
        if name.is_empty()
            || name.len() > NAME_BYTES_MAX
            || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        {
            let text =
                format!("\"{name}\" is no name for a lab: use up to {NAME_BYTES_MAX} letters, digits and hyphens");
            return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        }
        let pid = std::process::id();
        let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| (fd.as_raw_fd(), stat.st_ino));
        let inodes = inode(namespaces[0]).and_then(|a| Ok([a, inode(namespaces[1])?]));
        let content = Content {
            name: name.clone(),
            pid,
            started: started(pid).unwrap_or(0),
            namespaces: inodes.map_err(|e| cannot("look at a namespace of the lab", e.into()))?,
            addresses,
            environment: environment.to_vec(),
            settings: Vec::new(),
        };
        fs::create_dir_all(DIRECTORY).map_err(|e| cannot(&format!("create {DIRECTORY}"), e))?;
        let path = Path::new(DIRECTORY).join(format!("{name}.json"));
        if let Some(other) = read(&path).filter(Content::is_alive) {
            let text =
                format!("a lab named {name} is already up (process {}): use another --name, or lab down", other.pid);
            return Err(Error::new(ErrorKind::Busy, Scope::Client, Phase::Prepare, text));
        }
        let record = Self { content, path };
        record.save()?;
        Ok(record)
    }

    pub(crate) fn name(&self) -> &str {
        &self.content.name
    }

    /// Changes a setting of the whole machine and remembers what it was before any lab changed it.
    ///
    /// While another lab has raised the same setting, it is never lowered.
    pub(crate) fn set_machine_wide(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let now = read_setting(key)?;
        let others = all().into_iter().filter(|other| other.name != self.content.name && other.is_alive());
        let held = others.flat_map(|other| other.settings).find(|(held, _)| held == key);
        if !self.content.settings.iter().any(|(known, _)| known == key) {
            let before = held.as_ref().map_or_else(|| now.clone(), |(_, before)| before.clone());
            self.content.settings.push((key.to_owned(), before));
            self.save()?;
        }
        let is_higher = now.parse::<u64>().is_ok_and(|now| value.parse::<u64>().is_ok_and(|value| now > value));
        if held.is_some() && is_higher {
            return Ok(());
        }
        write_setting(key, value)
    }

    /// Lets hosts use a congestion control that the machine keeps for privileged programs.
    ///
    /// Linux refuses such a one as the default of any namespace but the first, root or not.
    pub(crate) fn allow_congestion_control(&mut self, name: &str) -> Result<(), Error> {
        let allowed = read_setting(ALLOWED_CONGESTION_CONTROL)?;
        if allowed.split_whitespace().any(|known| known == name) {
            return Ok(());
        }
        self.set_machine_wide(ALLOWED_CONGESTION_CONTROL, &format!("{allowed} {name}"))
    }

    /// Ends the programs that still run on the hosts.
    pub(crate) fn end_programs(&self) {
        self.content.end_programs();
    }

    fn save(&self) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(&self.content).map_err(|e| cannot("write the lab's record", e.into()))?;
        let fresh = self.path.with_extension("new");
        fs::write(&fresh, text)
            .and_then(|()| fs::rename(&fresh, &self.path))
            .map_err(|e| cannot(&format!("write {}", self.path.display()), e))
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.content.undo_settings();
        // A record that stays is removed by the next lab's start.
        drop(fs::remove_file(&self.path));
    }
}

impl Content {
    /// Whether the lab's process still runs.
    pub(crate) fn is_alive(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// The file through which another process enters host 0 (`a`) or 1 (`b`).
    pub(crate) fn namespace_path(&self, host: usize) -> PathBuf {
        format!("/proc/{}/fd/{}", self.pid, self.namespaces[host].0).into()
    }

    fn undo_settings(&self) {
        let others: Vec<Content> =
            all().into_iter().filter(|other| other.name != self.name && other.is_alive()).collect();
        for (key, before) in &self.settings {
            let held = others.iter().any(|other| other.settings.iter().any(|(held, _)| held == key));
            if !held {
                // Nobody is left to tell; the setting was written before, so it can be again.
                drop(write_setting(key, before));
            }
        }
    }

    /// Ends every process in one of the namespaces that carries the lab's name in its environment.
    fn end_programs(&self) {
        for round in 0..END_ROUNDS {
            let programs = self.programs();
            if programs.is_empty() {
                return;
            }
            let signal =
                if round < END_ROUNDS / 2 { rustix::process::Signal::TERM } else { rustix::process::Signal::KILL };
            if round == 0 || round == END_ROUNDS / 2 {
                for pid in programs.iter().filter_map(|pid| rustix::process::Pid::from_raw(*pid as i32)) {
                    // One that has ended by itself meanwhile is as good.
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
            std::thread::sleep(END_ROUND);
        }
    }

    fn programs(&self) -> Vec<u32> {
        let own = std::process::id();
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| *pid != own && self.is_inside(*pid)).collect()
    }

    fn is_inside(&self, pid: u32) -> bool {
        let inode = fs::metadata(format!("/proc/{pid}/ns/net")).map(|meta| meta.ino());
        let inside = inode.is_ok_and(|inode| self.namespaces.iter().any(|(_, own)| *own == inode));
        // Inode numbers of namespaces are used again: the name in the environment makes sure.
        let marker = format!("{NAME_VARIABLE}={}", self.name);
        inside
            && fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == marker.as_bytes()))
    }
}

/// Undoes what labs left whose process is gone.
pub(crate) fn sweep() {
    for content in all().into_iter().filter(|content| !content.is_alive()) {
        content.end_programs();
        content.undo_settings();
        drop(fs::remove_file(Path::new(DIRECTORY).join(format!("{}.json", content.name))));
    }
}

/// Every lab on record, alive or not.
pub(crate) fn all() -> Vec<Content> {
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return Vec::new() };
    let paths =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "json"));
    paths.filter_map(|path| read(&path)).collect()
}

fn read(path: &Path) -> Option<Content> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// When a process started, in clock ticks since boot; `None` when there is none or it only waits to be collected.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, so fields are counted from the last parenthesis (proc(5)).
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" { None } else { fields.nth(18)?.parse().ok() }
}

fn read_setting(key: &str) -> Result<String, Error> {
    let value = fs::read_to_string(setting_path(key)).map_err(|e| cannot(&format!("read the setting {key}"), e))?;
    Ok(value.trim().to_owned())
}

/// Writes a kernel setting as seen from the calling thread's network namespace.
pub(crate) fn write_setting(key: &str, value: &str) -> Result<(), Error> {
    let known = key.starts_with("net.") && !key.contains('/');
    let result = if known { fs::write(setting_path(key), value) } else { Err(io::ErrorKind::InvalidInput.into()) };
    result.map_err(|error| {
        let text = format!("the kernel refuses {key}={value} on a host of the lab");
        Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text).caused_by(error)
    })
}

fn setting_path(key: &str) -> PathBuf {
    Path::new("/proc/sys").join(key.replace('.', "/"))
}

const ALLOWED_CONGESTION_CONTROL: &str = "net.ipv4.tcp_allowed_congestion_control";

const NAME_BYTES_MAX: usize = 40;

/// Programs inside get half of these rounds to end on SIGTERM before SIGKILL: one second.
const END_ROUNDS: u32 = 40;
const END_ROUND: std::time::Duration = std::time::Duration::from_millis(50);
