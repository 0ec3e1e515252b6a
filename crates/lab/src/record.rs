//! Record files of running labs: one small file for each lab. Other processes find the lab by its file, and cleanup
//! uses it.
//!
//! `sterna lab exec` finds the hosts through this file (`/proc/PID/fd/N` of the lab's process are the namespaces). If
//! that process died before it could clean up, the start of the next lab cleans up instead. It ends the programs that
//! still run on the hosts, restores the machine-wide settings and removes the file.

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

use crate::error::cannot;

/// Environment variable that names the lab on its hosts.
pub const NAME_VARIABLE: &str = "STERNA_LAB";

/// Directory of the records. Like the labs, its content disappears at a reboot.
const DIRECTORY: &str = "/run/sterna-lab";

/// A lab's record file. Dropping the record restores machine-wide settings and removes the file.
pub(crate) struct Record {
    content: Content,
    path: PathBuf,
}

/// Content of a record file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Content {
    pub(crate) name: String,
    pub(crate) pid: u32,
    /// Start time of the process in clock ticks since boot. Distinguishes the process from a later one with the same
    /// PID.
    started: u64,
    /// Descriptors of the two namespaces in that process, and their inodes.
    namespaces: [(i32, u64); 2],
    pub(crate) addresses: [Vec<Ipv4Addr>; 2],
    pub(crate) environment: Vec<(String, String)>,
    /// Machine-wide settings and their values before the first lab changed them.
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

    /// Changes a machine-wide setting and records its value from before the first lab changed it.
    ///
    /// Never lowers a setting that another running lab has raised.
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

    /// Allows hosts to use a congestion control that the machine reserves for privileged programs.
    ///
    /// Linux refuses such an algorithm as the default of any namespace except the first, even for root.
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
        // The start of the next lab removes a record that remains.
        drop(fs::remove_file(&self.path));
    }
}

impl Content {
    /// Returns true if the lab's process still runs.
    pub(crate) fn is_alive(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// Returns the file through which another process enters host 0 (`a`) or 1 (`b`).
    pub(crate) fn namespace_path(&self, host: usize) -> PathBuf {
        format!("/proc/{}/fd/{}", self.pid, self.namespaces[host].0).into()
    }

    fn undo_settings(&self) {
        let others: Vec<Content> =
            all().into_iter().filter(|other| other.name != self.name && other.is_alive()).collect();
        for (key, before) in &self.settings {
            let held = others.iter().any(|other| other.settings.iter().any(|(held, _)| held == key));
            if !held {
                // An error cannot be reported here. It is unlikely, because the same setting was written before.
                drop(write_setting(key, before));
            }
        }
    }

    /// Ends every process that runs in one of the namespaces and has the lab's name in its environment.
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
                    // An error means that the process has already ended.
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
        // The kernel reuses inode numbers of namespaces. The name in the environment confirms the match.
        let marker = format!("{NAME_VARIABLE}={}", self.name);
        inside
            && fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == marker.as_bytes()))
    }
}

/// Cleans up after labs whose process is gone.
pub(crate) fn sweep() {
    for content in all().into_iter().filter(|content| !content.is_alive()) {
        content.end_programs();
        content.undo_settings();
        drop(fs::remove_file(Path::new(DIRECTORY).join(format!("{}.json", content.name))));
    }
}

/// Returns all recorded labs, alive or not.
pub(crate) fn all() -> Vec<Content> {
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return Vec::new() };
    let paths =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "json"));
    paths.filter_map(|path| read(&path)).collect()
}

fn read(path: &Path) -> Option<Content> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Returns the start time of a process in clock ticks since boot; `None` if the process does not exist or is a zombie.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain any character, so fields are counted from the last parenthesis (proc(5)).
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" { None } else { fields.nth(18)?.parse().ok() }
}

fn read_setting(key: &str) -> Result<String, Error> {
    let value = fs::read_to_string(setting_path(key)).map_err(|e| cannot(&format!("read the setting {key}"), e))?;
    Ok(value.trim().to_owned())
}

/// Writes a kernel setting in the calling thread's network namespace.
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

/// Number of rounds: programs on the hosts get the first half (one second) to end on SIGTERM, then follows SIGKILL.
const END_ROUNDS: u32 = 40;
const END_ROUND: std::time::Duration = std::time::Duration::from_millis(50);
