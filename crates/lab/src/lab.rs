//! A lab in operation: two hosts in network namespaces of their own and the router between them.
//!
//! What it does: makes the hosts, gives them addresses and kernel settings, starts the router, runs programs inside.
//! What it refuses to do: leave anything behind. Namespaces and TUN devices have no name in the system: they live by the
//! descriptors of this process and die with it, even by SIGKILL; what else a lab changes is in its [`crate::record`].

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;

use sterna_proto::error::ErrorKind;
use sterna_proto::{ByteCount, Error, Phase, Scope};

use crate::cpus;
use crate::model::{Direction, LinkModel};
use crate::record::{self, Record};
use crate::router::{self, Attachment, Counters, RouterHandle};
use crate::sys;

/// Settings of a lab beside the path itself.
#[derive(Clone, Debug, Default)]
pub struct LabOptions {
    /// Name by which `sterna lab exec` finds it; made up when empty.
    pub name: Option<String>,
    /// Kernel settings (`net.ipv4.tcp_rmem`, value) of both hosts. A setting that the kernel has only once for the whole
    /// machine (`net.core.rmem_max`) is set there and put back at the end.
    pub sysctls: Vec<(String, String)>,
    /// TCP congestion control of both hosts (`cubic`, `bbr`, `reno`); the kernel's default when `None`.
    pub congestion_control: Option<String>,
    /// Largest TCP buffers of both hosts, for sending and receiving, by autotuning and by hand.
    pub buffers: Option<ByteCount>,
}

/// Two hosts and the path between them; dropping it ends the programs inside and removes everything.
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
    /// Makes the hosts and starts the router.
    ///
    /// Errors: one sentence that says what is missing (root, `/dev/net/tun`), or which setting the kernel refused.
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

    /// The name of this lab.
    pub fn name(&self) -> &str {
        self.record.name()
    }

    /// Host `a`: where data comes from in every profile.
    pub fn host_a(&self) -> &Host {
        &self.hosts[0]
    }

    /// Host `b`: where data goes to.
    pub fn host_b(&self) -> &Host {
        &self.hosts[1]
    }

    /// Figures of the path, at most 100 ms old.
    pub fn counters(&self) -> Counters {
        self.router.counters()
    }

    /// Ends the programs inside, stops the router and returns its last figures.
    ///
    /// Errors: a router that ended by itself (a device failed) says why.
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
    /// A command that will run on this host, with the `STERNA_LAB…` variables that name the lab and its addresses.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        sys::start_inside(&mut command, self.namespace.as_raw_fd());
        command.envs(self.environment.iter().map(|(key, value)| (key, value)));
        command
    }

    /// Does `work` on a thread of this host and returns what it makes: sockets stay on the host that they were made on.
    ///
    /// Example: `lab.host_b().inside(|| TcpListener::bind("0.0.0.0:7373"))?`. Errors: those of `work`, and the kernel's
    /// when it does not let the thread in.
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

    /// Its address on the first network.
    pub fn address(&self) -> Ipv4Addr {
        self.addresses[0]
    }

    /// Its addresses, one for each network.
    pub fn addresses(&self) -> &[Ipv4Addr] {
        &self.addresses
    }
}

/// What both hosts are built from.
struct Plan<'a> {
    networks: &'a [LinkModel],
    options: &'a LabOptions,
}

impl Plan<'_> {
    fn addresses(&self, host: u8) -> Vec<Ipv4Addr> {
        (0..self.networks.len()).map(|index| network_address(index, host, 1)).collect()
    }

    /// Settings in the order in which they are applied: what was asked for by name comes last and wins.
    fn sysctls(&self) -> Vec<(String, String)> {
        let mut settings: Vec<(String, String)> = Vec::new();
        let mut set = |key: &str, value: String| settings.push((key.into(), value));
        // Each run stands for itself: the kernel must not remember the window of the one before.
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

    /// Applies the settings: machine-wide ones here, which hosts may depend on, then the others on each host.
    fn apply_settings(&self, record: &mut Record, namespaces: &[Arc<OwnedFd>; 2]) -> Result<(), Error> {
        let settings = self.sysctls();
        if let Some(name) = &self.options.congestion_control {
            record.allow_congestion_control(name)?;
        }
        for (key, value) in settings.iter().filter(|(key, _)| is_machine_wide(key)) {
            record.set_machine_wide(key, value)?;
        }
        for namespace in namespaces {
            let own = settings.iter().filter(|(key, _)| !is_machine_wide(key));
            on_host_thread(|| {
                sys::enter_network(namespace.as_raw_fd()).map_err(|e| cannot("enter a host of the lab", e))?;
                own.clone().try_for_each(|(key, value)| record::write_setting(key, value))
            })?;
        }
        Ok(())
    }

    /// Makes a host and moves the calling thread into it.
    fn build_inside(&self, host: u8) -> Result<(OwnedFd, Vec<OwnedFd>), Error> {
        sys::unshare_network().map_err(needs_root)?;
        let namespace =
            std::fs::File::open("/proc/thread-self/ns/net").map_err(|e| cannot("open a network namespace", e))?;
        // IPv6 would add router and neighbour chatter to the counters; kernels without it have no such setting.
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
        // Without it the lab works too, a little less punctually.
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

/// Runs `work` on a thread that may change its namespace and ends.
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

/// 10.77.x.y on the first network, 10.78.x.y on the second.
fn network_address(network: usize, third: u8, fourth: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77 + network as u8, third, fourth)
}

/// Settings that Linux has once for all namespaces (they are seen in each but can be written in the first one only).
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

pub(crate) fn cannot(action: &str, error: io::Error) -> Error {
    Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, format!("cannot {action}")).caused_by(error)
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

/// Most that one direction may hold: 10 Gbit/s over 1 s with a queue of one BDP fit, and so does the machine's memory.
const PATH_BYTES_MAX: usize = 2 << 30;
