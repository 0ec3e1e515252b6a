//! Processor placement: the router has one processor, and the other processors run the hosts' receive path.
//!
//! A write to a TUN device runs the receiving host's TCP on the writer's processor. With tens of megabytes out of order
//! this takes up to 100 ms (measured: 1 Gbit/s, 260 ms, first overshoot of cubic). The router would forward nothing
//! during this time. Receive packet steering (RPS) moves this work to other processors.

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::sys;

/// Pins the calling thread, which is the router's, to one processor. Does nothing on a single-processor machine.
pub(crate) fn keep_to_one() -> io::Result<()> {
    let Some(Split { router, .. }) = split()? else { return Ok(()) };
    let mut own = CpuSet::new();
    own.set(router);
    Ok(sched_setaffinity(None, &own)?)
}

/// Makes the devices `lab0`… of the calling thread's host receive on the processors that the router does not use.
pub(crate) fn spare_the_router(device_count: usize) -> io::Result<()> {
    let Some(Split { others, .. }) = split()? else { return Ok(()) };
    sys::show_own_sysfs()?;
    for index in 0..device_count {
        fs::write(format!("/sys/class/net/lab{index}/queues/rx-0/rps_cpus"), format!("{others:x}"))?;
    }
    Ok(())
}

struct Split {
    router: usize,
    /// Bit mask of the other processors.
    others: u32,
}

/// Splits the first [`CPUS_MAX`] processors that this process may use.
fn split() -> io::Result<Option<Split>> {
    let allowed = sched_getaffinity(None)?;
    let usable: Vec<usize> = (0..CPUS_MAX).filter(|cpu| allowed.is_set(*cpu)).collect();
    let [router, others @ ..] = &usable[..] else { return Ok(None) };
    let mask = others.iter().fold(0, |mask, cpu| mask | 1 << cpu);
    Ok((mask != 0).then_some(Split { router: *router, others: mask }))
}

/// Size of one word of the kernel's mask. A lab does not need more processors for receiving.
const CPUS_MAX: usize = 32;
