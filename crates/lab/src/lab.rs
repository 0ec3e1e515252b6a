//! A running lab: two hosts, each in its own network namespace, and the router between them.
//!
//! Creates the hosts, assigns addresses and kernel settings, starts the router and runs programs on the hosts.
//!
//! Refuses to leave anything behind. Namespaces and TUN devices have no name in the system. They exist only as
//! descriptors of this process, and the kernel removes them when the process ends, even by SIGKILL. [`crate::record`]
//! lists the other changes that a lab makes.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;

use sterna_proto::error::ErrorKind;
use sterna_proto::{ByteCount, Error, Phase, Scope};

use crate::cpus;
use crate::error::cannot;
use crate::model::{Direction, LinkModel};
use crate::record::{self, Record};
use crate::router::{self, Attachment, Counters, RouterHandle};
use crate::sys;

/// Settings of a lab, except for the path.
#[derive(Clone, Debug, Default)]
pub struct LabOptions {
    /// Name of the lab for `sterna lab exec`; `lab-PID` when `None`.
    pub name: Option<String>,
    /// Kernel settings (`net.ipv4.tcp_rmem`, value) of both hosts. Some settings exist only once for the whole machine
    /// (`net.core.rmem_max`). The lab changes them there and restores them at the end.
    pub sysctls: Vec<(String, String)>,
    /// Kernel settings of host `a` only and of host `b` only, applied after those of both hosts.
    pub host_sysctls: [Vec<(String, String)>; 2],
    /// TCP congestion control of both hosts (`cubic`, `bbr`, `reno`); the kernel's default when `None`.
    pub congestion_control: Option<String>,
    /// Largest TCP send and receive buffers of both hosts, for autotuning and for `setsockopt`.
    pub buffers: Option<ByteCount>,
}

/// Two hosts and the path between them. Dropping the lab ends the programs on the hosts and removes everything.
pub struct Lab {
    router: RouterHandle,
    hosts: [Host; 2],
    record: Record,
}

/// One of the two hosts.
#[derive(Clone, Debug)]
pub struct Host {
    namespace: Arc<OwnedFd>,
    addresses: Vec<Ipv4Addr>,
    environment: Arc<Vec<(String, String)>>,
}

impl Lab {
    /// Creates the hosts and starts the router.
    ///
    /// Errors: one sentence that names what is missing (root, `/dev/net/tun`) or the setting that the kernel refused.
    pub fn start(model: &LinkModel, options: &LabOptions) -> Result<Self, Error> {
        record::sweep();
        let networks: Vec<LinkModel> =
            std::iter::once(model.clone()).chain(model.second.iter().map(|m| (**m).clone())).collect();
        networks.iter().try_for_each(refuse_beyond_memory)?;
        let plan = Plan { networks: &networks, options };
        let (namespace_a, tuns_a) = on_host_thread(|| plan.build_inside(0))?;
        let (namespace_b, tuns_b) = on_host_thread(|| plan.build_inside(1))?;
        let name = options.name.clone().unwrap_or_else(|| format!("lab-{}", std::process::id()));
        let namespaces = [Arc::new(namespace_a), Arc::new(namespace_b)];
        let addresses = [plan.addresses(0), plan.addresses(1)];
        let environment = Arc::new(environment(&name, &addresses));
        let mut record = Record::new(name, [&namespaces[0], &namespaces[1]], addresses.clone(), &environment)?;
        plan.apply_settings(&mut record, &namespaces)?;
        let attachments = networks.iter().zip(tuns_a.into_iter().zip(tuns_b)).enumerate();
        let attachments = attachments.map(|(index, (model, (a, b)))| Attachment {
            model: model.clone(),
            a,
            b,
            router_address: network_address(index, 255, 254).octets(),
        });
        let router = router::spawn(attachments.collect()).map_err(|e| cannot("start the lab's router", e))?;
        let hosts = std::array::from_fn(|index| Host {
            namespace: Arc::clone(&namespaces[index]),
            addresses: addresses[index].clone(),
            environment: Arc::clone(&environment),
        });
        Ok(Self { router, hosts, record })
    }

    /// Returns the name of this lab.
    pub fn name(&self) -> &str {
        self.record.name()
    }

    /// Returns host `a`, the source of the data in every profile.
    pub fn host_a(&self) -> &Host {
        &self.hosts[0]
    }

    /// Returns host `b`, the destination of the data in every profile.
    pub fn host_b(&self) -> &Host {
        &self.hosts[1]
    }

    /// Returns counters of the path, at most 100 ms old.
    pub fn counters(&self) -> Counters {
        self.router.counters()
    }

    /// Cuts both directions of network `network` (0 is the first) until [`Lab::connect`]. Packets that are in flight
    /// still arrive. Panics if there is no such network.
    pub fn cut(&self, network: usize) {
        self.router.set_cut(network, true);
    }

    /// Ends the outage of [`Lab::cut`]. Outages of the model keep their times.
    pub fn connect(&self, network: usize) {
        self.router.set_cut(network, false);
    }

    /// Ends the programs on the hosts, stops the router and returns the final counters.
    ///
    /// Errors: the cause, if the router ended early because a device failed.
    pub fn finish(mut self) -> Result<Counters, Error> {
        self.record.end_programs();
        self.router.stop().map_err(|e| cannot("keep the lab's router going", e))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.record.end_programs();
    }
}

impl Host {
    /// Returns a command that runs on this host. The `STERNA_LAB…` variables in its environment name the lab and its
    /// addresses.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        sys::start_inside(&mut command, self.namespace.as_raw_fd());
        command.envs(self.environment.iter().map(|(key, value)| (key, value)));
        command
    }

    /// Runs `work` on a thread of this host and returns the result. Sockets stay on the host that created them.
    ///
    /// Example: `lab.host_b().inside(|| TcpListener::bind("0.0.0.0:7373"))?`. Errors: those of `work`, and the kernel's
    /// error when the thread may not enter the namespace.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let done = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                sys::enter_network(self.namespace.as_raw_fd())?;
                work()
            });
            thread.join()
        });
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Returns the host's address on the first network.
    pub fn address(&self) -> Ipv4Addr {
        self.addresses[0]
    }

    /// Returns the host's addresses, one for each network.
    pub fn addresses(&self) -> &[Ipv4Addr] {
        &self.addresses
    }
}

/// Description from which both hosts are built.
struct Plan<'a> {
    networks: &'a [LinkModel],
    options: &'a LabOptions,
}

impl Plan<'_> {
    fn addresses(&self, host: u8) -> Vec<Ipv4Addr> {
        (0..self.networks.len()).map(|index| network_address(index, host, 1)).collect()
    }

    /// Returns the settings in the order in which they are applied. Settings requested by name come last and override
    /// others.
    fn sysctls(&self) -> Vec<(String, String)> {
        let mut settings: Vec<(String, String)> = Vec::new();
        let mut set = |key: &str, value: String| settings.push((key.into(), value));
        // Runs are independent: the kernel must not reuse the window of the previous run.
        set("net.ipv4.tcp_no_metrics_save", "1".into());
        if let Some(bytes) = self.options.buffers {
            let most = bytes.0.min(BUFFER_BYTES_MAX);
            set("net.ipv4.tcp_rmem", format!("4096 131072 {most}"));
            set("net.ipv4.tcp_wmem", format!("4096 16384 {most}"));
            set("net.core.rmem_max", most.to_string());
            set("net.core.wmem_max", most.to_string());
        }
        if let Some(name) = &self.options.congestion_control {
            set("net.ipv4.tcp_congestion_control", name.clone());
        }
        settings.extend(self.options.sysctls.iter().cloned());
        settings
    }

    /// Applies machine-wide settings first, because hosts may depend on them, then the other settings on each host.
    fn apply_settings(&self, record: &mut Record, namespaces: &[Arc<OwnedFd>; 2]) -> Result<(), Error> {
        let settings = self.sysctls();
        self.options.host_sysctls.iter().flatten().try_for_each(refuse_machine_wide)?;
        if let Some(name) = &self.options.congestion_control {
            record.allow_congestion_control(name)?;
        }
        for (key, value) in settings.iter().filter(|(key, _)| is_machine_wide(key)) {
            record.set_machine_wide(key, value)?;
        }
        for (namespace, of_host) in namespaces.iter().zip(&self.options.host_sysctls) {
            let own = settings.iter().filter(|(key, _)| !is_machine_wide(key)).chain(of_host);
            on_host_thread(|| {
                sys::enter_network(namespace.as_raw_fd()).map_err(|e| cannot("enter a host of the lab", e))?;
                own.clone().try_for_each(|(key, value)| record::write_setting(key, value))
            })?;
        }
        Ok(())
    }

    /// Creates a host and moves the calling thread into it.
    fn build_inside(&self, host: u8) -> Result<(OwnedFd, Vec<OwnedFd>), Error> {
        sys::unshare_network().map_err(needs_root)?;
        let namespace =
            std::fs::File::open("/proc/thread-self/ns/net").map_err(|e| cannot("open a network namespace", e))?;
        // IPv6 would add router and neighbour discovery to the counters. Kernels without IPv6 do not have this setting.
        drop(record::write_setting("net.ipv6.conf.all.disable_ipv6", "1"));
        sys::bring_up("lo", None).map_err(|e| cannot("bring up lo on a host of the lab", e))?;
        let mut tuns = Vec::new();
        for (index, model) in self.networks.iter().enumerate() {
            let device = format!("lab{index}");
            let tun = sys::create_tun(&device).map_err(needs_tun)?;
            let address = network_address(index, host, 1);
            let ready = sys::bring_up(&device, Some((address, model.mtu))).and_then(|()| {
                if index == 0 {
                    sys::add_route(&device, Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED)
                } else {
                    sys::add_route(&device, network_address(index, 0, 0), Ipv4Addr::new(255, 255, 0, 0))
                }
            });
            ready.map_err(|e| cannot(&format!("bring up {device} ({address}) on a host of the lab"), e))?;
            tuns.push(tun);
        }
        // The lab also works without this step, with slightly less exact timing.
        drop(cpus::spare_the_router(self.networks.len()));
        Ok((namespace.into(), tuns))
    }
}

fn refuse_beyond_memory(model: &LinkModel) -> Result<(), Error> {
    let most = Direction::forward(model).bytes_in_flight_max().max(Direction::reverse(model).bytes_in_flight_max());
    if most <= PATH_BYTES_MAX {
        return Ok(());
    }
    let (most, limit) = (ByteCount(most as u64), ByteCount(PATH_BYTES_MAX as u64));
    let text =
        format!("this path holds up to {most} under way; the lab keeps at most {limit}: lower rate, rtt or queue");
    Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
}

/// Refuses a setting of one host that Linux keeps once for all namespaces.
fn refuse_machine_wide((key, _): &(String, String)) -> Result<(), Error> {
    if !is_machine_wide(key) {
        return Ok(());
    }
    let text = format!("{key} exists once for the whole machine, not for one host: set it with --sysctl");
    Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
}

/// Runs `work` on a temporary thread, which may change its namespace.
fn on_host_thread<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    done.map_err(|_| cannot("set up a host of the lab", io::Error::other("its thread panicked")))?
}

fn environment(name: &str, addresses: &[Vec<Ipv4Addr>; 2]) -> Vec<(String, String)> {
    let mut environment = vec![(record::NAME_VARIABLE.to_owned(), name.to_owned())];
    for (host, addresses) in ["A", "B"].iter().zip(addresses) {
        for (index, address) in addresses.iter().enumerate() {
            let suffix = if index == 0 { String::new() } else { (index + 1).to_string() };
            environment.push((format!("STERNA_LAB_{host}{suffix}"), address.to_string()));
        }
    }
    environment
}

/// Returns 10.77.x.y for the first network, 10.78.x.y for the second.
fn network_address(network: usize, third: u8, fourth: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77 + network as u8, third, fourth)
}

/// Returns true for settings that Linux keeps once for all namespaces. Every namespace can read them, but only the
/// first one can write them.
fn is_machine_wide(key: &str) -> bool {
    [
        "net.core.rmem_max",
        "net.core.wmem_max",
        "net.core.rmem_default",
        "net.core.wmem_default",
        "net.core.optmem_max",
        "net.core.netdev_max_backlog",
        "net.ipv4.tcp_mem",
        "net.ipv4.udp_mem",
    ]
    .contains(&key)
}

fn needs_root(error: io::Error) -> Error {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return cannot("make a network namespace", error);
    }
    let text = "the lab needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN) to make network namespaces: run it with sudo";
    Error::new(ErrorKind::Denied, Scope::Client, Phase::Prepare, text).caused_by(error)
}

fn needs_tun(error: io::Error) -> Error {
    let text = "the lab needs TUN devices, and /dev/net/tun does not work here: load the module tun, or allow the device in this container";
    Error::new(ErrorKind::NotFound, Scope::Client, Phase::Prepare, text).caused_by(error)
}

/// Linux keeps buffer sizes in a signed 32-bit number.
const BUFFER_BYTES_MAX: u64 = i32::MAX as u64;

/// Memory limit for the packets in flight in one direction. 10 Gbit/s over 1 s with a queue of one BDP fits, and this
/// amount still fits into the machine's memory.
const PATH_BYTES_MAX: usize = 2 << 30;
