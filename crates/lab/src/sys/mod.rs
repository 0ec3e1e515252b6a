//! Kernel calls without a safe wrapper: network namespaces, TUN devices, interface settings.
//!
//! This module holds the only unsafe code of the crate. Each function does one thing and returns the kernel's error
//! unchanged.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Moves the calling thread into a new network namespace.
pub(crate) fn unshare_network() -> io::Result<()> {
    // SAFETY: plain system call without pointers; CLONE_NEWNET changes only the thread's network namespace.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}

/// Moves the calling thread into the network namespace of the descriptor `namespace`.
pub(crate) fn enter_network(namespace: RawFd) -> io::Result<()> {
    // SAFETY: plain system call without pointers; the kernel refuses a descriptor that is not a namespace.
    check(unsafe { libc::setns(namespace, libc::CLONE_NEWNET) }).map(drop)
}

/// Makes `command` start in the network namespace of the descriptor `namespace`. The descriptor must stay open until
/// then.
pub(crate) fn start_inside(command: &mut Command, namespace: RawFd) {
    // SAFETY: the closure runs between fork and exec and makes one async-signal-safe system call; it does not allocate.
    unsafe { command.pre_exec(move || enter_network(namespace)) };
}

/// Makes the kernel send SIGTERM to `command` when the calling thread ends for any reason.
pub(crate) fn end_with_parent(command: &mut Command) {
    // SAFETY: as above, one async-signal-safe system call with integer arguments.
    unsafe {
        command.pre_exec(|| check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM as libc::c_ulong)).map(drop));
    }
}

/// Lets the calling thread wake within a microsecond of its timer and before ordinary threads, where permitted.
///
/// Uses real-time scheduling. Reason: on a busy machine even a thread with the highest nice priority waits for
/// milliseconds (measured: 6 ms on average with compilers on both processors). Linux always reserves 5 % of the time
/// for other threads.
pub(crate) fn make_thread_prompt() {
    // SAFETY: plain system call without pointers; failure leaves the thread unchanged and only reduces precision.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    // SAFETY: `sched_param` is plain data for which all zeroes is a valid value.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = 1;
    // SAFETY: reads one `sched_param`, which lives on our stack for the call; 0 is the calling thread.
    let real_time = check(unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) });
    if real_time.is_err() {
        // SAFETY: plain system calls without pointers; failure only reduces precision, as above.
        unsafe {
            let thread = libc::syscall(libc::SYS_gettid) as libc::id_t;
            libc::setpriority(libc::PRIO_PROCESS, thread, -20);
        }
    }
}

/// Gives the calling thread a `/sys` that shows the devices of its new network namespace.
///
/// No other thread sees this `/sys`, because the thread gets a separate mount namespace.
pub(crate) fn show_own_sysfs() -> io::Result<()> {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    // SAFETY: plain system call without pointers; the thread leaves the shared mount table and working directory.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None::<&std::ffi::CStr>)?;
    Ok(())
}

/// Creates the TUN device `name` in the thread's network namespace. Packets carry the kernel's offload header.
///
/// The kernel leaves checksums to the reader. It passes TCP, and UDP where it can, in super-packets. The descriptor is
/// non-blocking. The device exists as long as the descriptor.
pub(crate) fn create_tun(name: &str) -> io::Result<OwnedFd> {
    let file = File::options().read(true).write(true).open("/dev/net/tun")?;
    let mut request = interface(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives on our stack for the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4;
    let with_udp = tcp | TUN_F_USO4 | TUN_F_USO6;
    // SAFETY: TUNSETOFFLOAD takes its flags by value.
    let set = |flags: libc::c_uint| check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, flags) });
    // Kernels before 6.2 do not support UDP segmentation on TUN. UDP then arrives one packet at a time.
    set(with_udp).or_else(|_| set(tcp))?;
    rustix::io::ioctl_fionbio(&file, true)?;
    Ok(file.into())
}

/// Sets address, MTU and queue length of the interface and brings it up.
pub(crate) fn bring_up(name: &str, address: Option<(Ipv4Addr, u16)>) -> io::Result<()> {
    let socket = inet_socket()?;
    let mut request = interface(name)?;
    if let Some((address, mtu)) = address {
        request.ifr_ifru.ifru_addr = socket_address(address);
        interface_call(&socket, libc::SIOCSIFADDR, &mut request)?;
        request.ifr_ifru.ifru_addr = socket_address(Ipv4Addr::BROADCAST);
        interface_call(&socket, libc::SIOCSIFNETMASK, &mut request)?;
        request.ifr_ifru.ifru_mtu = libc::c_int::from(mtu);
        interface_call(&socket, libc::SIOCSIFMTU, &mut request)?;
        request.ifr_ifru.ifru_metric = DEVICE_QUEUE_PACKETS;
        interface_call(&socket, libc::SIOCSIFTXQLEN, &mut request)?;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    interface_call(&socket, libc::SIOCSIFFLAGS, &mut request)
}

/// Routes all traffic for `network`/`mask` through the interface `name`.
pub(crate) fn add_route(name: &str, network: Ipv4Addr, mask: Ipv4Addr) -> io::Result<()> {
    let socket = inet_socket()?;
    let device = std::ffi::CString::new(name)?;
    // SAFETY: `rtentry` is plain data for which all zeroes is a valid value.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    route.rt_dst = socket_address(network);
    route.rt_genmask = socket_address(mask);
    route.rt_flags = libc::RTF_UP;
    route.rt_dev = device.as_ptr().cast_mut();
    // SAFETY: SIOCADDRT reads one `rtentry` and the device name in it, both alive for the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT, &raw const route) }).map(drop)
}

fn inet_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?)
}

fn interface(name: &str) -> io::Result<libc::ifreq> {
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `ifreq` is plain data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn interface_call(socket: impl AsFd, call: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: these calls read and write one `ifreq`, which the caller owns.
    check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), call as _, &raw mut *request) }).map(drop)
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (to, from) in data[2..6].iter_mut().zip(address.octets()) {
        *to = from as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Kernel queue of packets that wait for the router. The router reads every 200 us, which is 42 packets at 2.5 Gbit/s
/// and 1500 bytes. The rest covers times when the machine does not schedule the router.
const DEVICE_QUEUE_PACKETS: libc::c_int = 10_000;

/// From <linux/if_tun.h>, since Linux 6.2.
const TUN_F_USO4: libc::c_uint = 0x20;
const TUN_F_USO6: libc::c_uint = 0x40;
