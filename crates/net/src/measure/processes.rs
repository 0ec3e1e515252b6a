//! Processes of this host, and the sockets that they have open (`/proc`).
//!
//! Reads the descriptors of those processes that the user may inspect: the own ones, or all as root. Refuses to report
//! anything about a process beyond its number, its name and its parent.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Process with an open socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Number of the process.
    pub pid: u32,
    /// Name of its program, at most 15 bytes.
    pub name: String,
}

/// Maximum number of descriptors that are read of one process. Reason: a server may have a million.
const DESCRIPTORS_MAX: usize = 65_536;

/// Returns the processes by the inode of their sockets. If several have a socket open, the one with the lowest number
/// counts, which is usually their parent. `of`: only these processes; `None`: all.
pub fn sockets_of(of: Option<&BTreeSet<u32>>) -> BTreeMap<u64, Process> {
    let mut found: BTreeMap<u64, Process> = BTreeMap::new();
    let all = || pids().collect::<BTreeSet<u32>>();
    for pid in of.cloned().unwrap_or_else(all) {
        // Fails for processes of other users, and for one that has just ended.
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        let mut name = None;
        for descriptor in descriptors.flatten().take(DESCRIPTORS_MAX) {
            let Ok(target) = fs::read_link(descriptor.path()) else { continue };
            let Some(inode) = target.to_str().and_then(inode_of) else { continue };
            let name = name.get_or_insert_with(|| name_of(pid));
            found.entry(inode).or_insert_with(|| Process { pid, name: name.clone() });
        }
    }
    found
}

/// Returns the process and all processes that descend from it. Empty if it does not exist.
pub fn family_of(pid: u32) -> BTreeSet<u32> {
    let parents: Vec<(u32, u32)> = pids().filter_map(|pid| Some((pid, parent_of(pid)?))).collect();
    let mut family: BTreeSet<u32> = parents.iter().map(|(pid, _)| *pid).filter(|one| *one == pid).collect();
    loop {
        let size = family.len();
        let children: Vec<u32> =
            parents.iter().filter(|(_, parent)| family.contains(parent)).map(|(pid, _)| *pid).collect();
        family.extend(children);
        if family.len() == size {
            return family;
        }
    }
}

/// Returns true if a process has another network namespace than this process. Its connections are not visible then.
pub fn is_in_other_network(pid: u32) -> bool {
    let of = |pid: &str| fs::metadata(format!("/proc/{pid}/ns/net")).map(|namespace| namespace.ino()).ok();
    of(&pid.to_string()).zip(of("self")).is_some_and(|(its, ours)| its != ours)
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// Reads `socket:[1234]`.
fn inode_of(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::{AsFd, AsRawFd};

    use super::*;

    #[test]
    fn a_socket_of_this_process_is_found_with_its_name() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = format!("/proc/self/fd/{}", socket.as_fd().as_raw_fd());
        let inode = inode_of(fs::read_link(link).unwrap().to_str().unwrap()).unwrap();
        let own = std::process::id();
        let family = family_of(own);
        assert!(family.contains(&own), "{family:?}");
        let process = &sockets_of(Some(&family))[&inode];
        assert_eq!((process.pid, process.name.as_str()), (own, name_of(own).as_str()));
        assert!(sockets_of(None).contains_key(&inode) && !process.name.is_empty());
        assert!(!is_in_other_network(own));
        assert!(family_of(0).is_empty(), "no process has the number 0");
    }

    #[test]
    fn links_of_sockets_are_read_and_others_are_not() {
        assert_eq!(inode_of("socket:[1234]"), Some(1234));
        for other in ["pipe:[1234]", "socket:[]", "socket:[x]", "/tmp/socket:[1]", ""] {
            assert_eq!(inode_of(other), None, "{other}");
        }
    }
}
