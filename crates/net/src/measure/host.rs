//! Facts of this host that bear on transfers.

use std::collections::BTreeMap;
use std::fs;
use std::thread::available_parallelism;

use sterna_proto::ByteCount;

use super::message::{HostFacts, VERSION};

/// Settings of the kernel that bear on transfers.
const SETTINGS: [&str; 22] = [
    "core.default_qdisc",
    "core.netdev_max_backlog",
    "core.optmem_max",
    "core.rmem_default",
    "core.rmem_max",
    "core.wmem_default",
    "core.wmem_max",
    "ipv4.tcp_adv_win_scale",
    "ipv4.tcp_available_congestion_control",
    "ipv4.tcp_congestion_control",
    "ipv4.tcp_mem",
    "ipv4.tcp_moderate_rcvbuf",
    "ipv4.tcp_mtu_probing",
    "ipv4.tcp_no_metrics_save",
    "ipv4.tcp_reordering",
    "ipv4.tcp_rmem",
    "ipv4.tcp_sack",
    "ipv4.tcp_slow_start_after_idle",
    "ipv4.tcp_timestamps",
    "ipv4.tcp_window_scaling",
    "ipv4.tcp_wmem",
    "ipv4.tcp_limit_output_bytes",
];

/// `CAP_NET_ADMIN` of include/uapi/linux/capability.h.
const CAP_NET_ADMIN: u32 = 12;

/// Returns the facts of this host. A setting that cannot be read is absent.
pub fn facts() -> HostFacts {
    let setting = |name: &&str| {
        let text = fs::read_to_string(format!("/proc/sys/net/{}", name.replace('.', "/"))).ok()?;
        Some(((*name).to_owned(), text.split_whitespace().collect::<Vec<_>>().join(" ")))
    };
    HostFacts {
        version: VERSION,
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        sterna: env!("CARGO_PKG_VERSION").to_owned(),
        processors: available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX)),
        settings: SETTINGS.iter().filter_map(setting).collect::<BTreeMap<_, _>>(),
        may_force_buffers: has_capability(CAP_NET_ADMIN),
    }
}

/// Returns true if every user of this host may choose a congestion control. The kernel makes this check for processes
/// without `CAP_NET_ADMIN` only; for others it also loads modules.
pub(super) fn allows_congestion(name: &str) -> bool {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap_or_default();
    text.split_whitespace().any(|allowed| allowed == name)
}

/// Returns the memory of this host; zero if it cannot be read.
pub fn memory() -> ByteCount {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
    ByteCount(total.unwrap_or(0_u64).saturating_mul(1024))
}

/// Returns the packets that this host has dropped since its start because its queue of arrived packets was full.
pub fn backlog_drops() -> u64 {
    // One line for each processor, in hexadecimal; the second number counts drops.
    let text = fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let drops = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    text.lines().filter_map(drops).sum()
}

/// Returns true if the process has a capability in its effective set.
fn has_capability(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:")).map(str::trim);
    mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).is_some_and(|mask| mask >> number & 1 == 1)
}

/// Returns the time in microseconds that all processors of the host were not idle since its start.
pub(super) fn busy_us() -> u64 {
    // Fields of the first line: user, nice, system, idle, iowait, irq, softirq, steal, in hundredths of a second.
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let values: Vec<u64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .map_while(|value| value.parse().ok())
        .collect();
    let busy: u64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|index| values.get(*index)).sum();
    busy * 10_000
}

/// Returns the time in microseconds that this process has used of the processors.
pub(super) fn cpu_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1000
}
