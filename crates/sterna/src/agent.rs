//! Runs `sterna agent`: checks its flags, opens the roots, and serves until a signal arrives. Its log goes to stderr.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use sterna_net::agent::{Admission, Agent, AgentOptions, NamedRoot, Reachable, ThirdPartyRules, WebServers};
use sterna_net::disk::{Access, Root};
use sterna_net::identity::{Authorized, Identity};
use sterna_net::measure::StampReflector;
use sterna_proto::location::HostPort;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use sterna_service::agent::{Link, LinkOptions, ReachableAt, tls_settings};

use crate::flags::service::ServiceUrl;
use crate::flags::{AgentFlags, ThirdPartyFlag};
use crate::jobs::credentials;
use crate::monitor::Monitor;
use crate::output::{print_line, say};
use crate::{agent_log, state};

/// Runs the agent until SIGTERM or SIGINT.
pub fn run(flags: AgentFlags) -> Result<u8, Error> {
    if flags.authorize.is_none() && !flags.authorize_any && flags.service.is_none() {
        return Err(usage(
            "nobody may use this agent yet: give --authorize FILE with a fingerprint a line (`sterna id` on the other \
             host prints it), --service URL to work for a transfer service, or --authorize-any to let everybody in",
        ));
    }
    let roots = flags.roots.iter().map(parse_root).collect::<Result<Vec<_>, _>>()?;
    check_names(&roots)?;
    let admission = match &flags.authorize {
        Some(file) => {
            let names = roots.iter().filter_map(|root| root.name.clone()).collect();
            Admission::Listed(Authorized::open(file, names).map_err(with_file_to_make)?)
        }
        None if flags.authorize_any => Admission::Anybody,
        None => Admission::Granted,
    };
    let identity = state::identity(flags.state.as_deref())?;
    let fingerprint = identity.fingerprint();
    let third_party = ThirdPartyRules {
        reachable: reachable(&flags.third_party),
        path_cache: state::directory(flags.state.as_deref()).ok(),
    };
    let link = flags.service.as_ref().map(|service| link_options(service, &flags, &identity)).transpose()?;
    let web = match flags.web.iter().any(|host| host == "any") {
        true => WebServers::Any,
        false => WebServers::These(flags.web.clone()),
    };
    let options = AgentOptions {
        roots,
        listen: flags.listen,
        admission,
        linger: flags.linger,
        third_party,
        web,
        measure_port: flags.measure_port,
    };
    agent_log::start(flags.log_format, flags.log_level())?;
    let deaf = |e: std::io::Error| {
        Error::new(ErrorKind::Internal, Scope::Service, Phase::Prepare, "listen for signals").caused_by(e)
    };
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(deaf)?;
    let agent = Arc::new(Agent::start(options, identity.clone())?);
    if let Some(listen) = flags.iperf3 {
        agent.answer_iperf3(listen)?;
    }
    if let Some(listen) = flags.ndt7 {
        agent.answer_ndt7(listen)?;
    }
    // They run until the agent ends.
    let _reflectors = reflectors(&flags.stamp)?;
    let link = link.map(|link| Link::start(Arc::clone(&agent), link)).transpose()?;
    let visits = link.as_ref().map(Link::visits);
    let monitor =
        Monitor::start(&flags.monitor, &agent, &identity, &state::directory(flags.state.as_deref())?, visits)?;
    let stopped = Arc::clone(&agent);
    let wait = move || {
        signals.forever().next();
        monitor.iter().for_each(Monitor::stop);
        link.into_iter().for_each(Link::stop);
        stopped.stop();
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(deaf)?;
    let listening = format!("listening sterna://{} fingerprint {fingerprint}", agent.local_addr());
    if let Err(error) = print_line(listening.as_bytes()) {
        say(&format!("{listening}; {}", error.chain()));
    }
    agent.run();
    Ok(0)
}

/// Starts the reflectors of STAMP.
fn reflectors(addresses: &[SocketAddr]) -> Result<Vec<StampReflector>, Error> {
    let start = |address: &SocketAddr| {
        let reflector = StampReflector::start(*address)?;
        tracing::info!("answers STAMP at {}", reflector.local_addr());
        Ok(reflector)
    };
    addresses.iter().map(start).collect()
}

/// Returns the options of the connection to a service. Errors: `Usage`, if the authorities cannot be read.
fn link_options(service: &ServiceUrl, flags: &AgentFlags, identity: &Identity) -> Result<LinkOptions, Error> {
    let roots = credentials::root_store(flags.capath.as_deref())?;
    Ok(LinkOptions {
        service: HostPort { host: service.host.clone(), port: service.port },
        tls: tls_settings(roots, identity)?,
        reachable_at: flags.reachable_at.clone().unwrap_or(ReachableAt::Listening),
        state_dir: state::directory(flags.state.as_deref())?,
    })
}

/// Converts `--third-party`: the agents that third-party copies may reach from this host.
fn reachable(flags: &[ThirdPartyFlag]) -> Reachable {
    let hosts = flags.iter().map(|flag| match flag {
        ThirdPartyFlag::Any => None,
        ThirdPartyFlag::Host(host) => Some(host.clone()),
    });
    hosts.collect::<Option<Vec<_>>>().map_or(Reachable::Any, Reachable::These)
}

/// Reads `[NAME=]DIR[:ro]`.
fn parse_root(text: &OsString) -> Result<NamedRoot, Error> {
    let bytes = text.as_bytes();
    let (bytes, access) = match bytes.strip_suffix(b":ro") {
        Some(rest) => (rest, Access::ReadOnly),
        None => (bytes, Access::ReadWrite),
    };
    // A directory with a = in its file path is given as ./a=b or /x/a=b.
    let (name, path) = match bytes.iter().position(|&b| b == b'=') {
        Some(end) if !bytes[..end].contains(&b'/') => {
            let name = String::from_utf8(bytes[..end].to_vec())
                .ok()
                .filter(|name| !name.is_empty() && !name.chars().any(|c| c.is_control()))
                .ok_or_else(|| {
                    usage(&format!(
                        "--root {}: a root needs a name before the = (NAME=DIR), or no = (DIR); for a directory with a \
                         = in its name, write ./a=b",
                        text.display()
                    ))
                })?;
            (Some(name), &bytes[end + 1..])
        }
        _ => (None, bytes),
    };
    let path = OsString::from_vec(path.to_vec());
    let root = Root::open(Path::new::<OsStr>(&path), access).map_err(of_this_host)?;
    Ok(NamedRoot { name, root })
}

/// Adds the next step to the error of a file of authorized keys that does not exist.
fn with_file_to_make(error: Error) -> Error {
    if error.kind != ErrorKind::NotFound {
        return error;
    }
    let next = "create it with one fingerprint per line, as `sterna id` at a client prints it";
    let text = format!("{}; {next}", error.text());
    error.reworded(text)
}

/// Sets the scope of a failure at startup to this host: its command line names the directory, and no copy is involved.
fn of_this_host(mut error: Error) -> Error {
    error.scope = Scope::Client;
    error
}

fn check_names(roots: &[NamedRoot]) -> Result<(), Error> {
    if roots.len() > 1 && roots.iter().any(|root| root.name.is_none()) {
        return Err(usage("several roots need a name each: --root NAME=DIR"));
    }
    let mut names: Vec<_> = roots.iter().map(|root| root.name.as_deref()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            Err(usage(&format!("two roots have the name {}: give each its own", pair[0].unwrap_or_default())))
        }
        None => Ok(()),
    }
}

fn usage(text: &str) -> Error {
    Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
}
