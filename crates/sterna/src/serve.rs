//! Runs `sterna serve`: opens the store, and serves the interfaces until a signal arrives. Its log goes to stderr.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sterna_net::agent::WebServers;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use sterna_service::access::{Access, Rules};
use sterna_service::api::{self, App};
use sterna_service::auth::{Issuer, ServerFiles, ServerTls, Trust, TrustDirs};
use sterna_service::caller::{Level, Operation};
use sterna_service::config::Config;
use sterna_service::delegation::Delegations;
use sterna_service::dev::{self, Dev};
use sterna_service::runner::Runner;
use sterna_service::store::SqliteStore;
use sterna_service::web::{AddressRules, ConnectRules, Web};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::flags::{SERVICE_PORT, ServeFlags};
use crate::output::print_line;
use crate::{agent_log, state};

/// Directory of the service in the state directory.
pub const SERVICE_DIR: &str = "service";

/// Database in the directory of the service.
const DATABASE_FILE: &str = "sterna.db";

/// Runs the service until SIGTERM or SIGINT.
pub fn run(flags: &ServeFlags) -> Result<u8, Error> {
    agent_log::start(flags.log_format, flags.log_level.filter())?;
    let directory = state::directory(flags.state.as_deref())?.join(SERVICE_DIR);
    // Jobs have tokens, and delegated proxies their keys.
    let created = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    created.map_err(|e| failed(&format!("create {}", directory.display())).caused_by(e))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| failed("start the threads of the service").caused_by(e))?;
    runtime.block_on(serve(flags, &directory))
}

fn failed(tried: &str) -> Error {
    Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, tried)
}

async fn serve(flags: &ServeFlags, directory: &Path) -> Result<u8, Error> {
    let identity = Identity::of(flags, directory)?;
    let database = match &flags.database {
        Some(given) => database_of(given)?,
        None => directory.join(DATABASE_FILE),
    };
    // Held until the end of the process.
    let _lock = lock(&database)?;
    let store = SqliteStore::open(&database).await?;
    let trust = Arc::new(Trust::open(identity.trust.clone(), SystemTime::now())?);
    let tls = ServerTls::open(identity.server.clone(), Arc::clone(&trust))?;
    let access = Arc::new(Access::new(tls, Arc::clone(&trust), identity.rules(&trust)?, identity.issuers()?));
    let host = host_name();
    let signer = state::identity(flags.state.as_deref())?;
    // The key makes the name of this service unique, and the same after a restart.
    let rules = ConnectRules { hosts: WebServers::Any, addresses: identity.addresses() };
    let web = Web::open(Some(trust), rules, &signer.fingerprint().to_string()).await?;
    let (service, runner, agents) = Runner::new(store, signer, web, host, identity.config.patience());
    let delegations = Arc::new(Delegations::new(identity.config.wants_delegation()));
    let default = if flags.dev { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
    let listen = flags.listen.unwrap_or(SocketAddr::new(IpAddr::V4(default), SERVICE_PORT));
    let listener = TcpListener::bind(listen).await.map_err(|e| failed(&format!("listen on {listen}")).caused_by(e))?;
    let address = listener.local_addr().map_err(|e| failed("read the address of the service").caused_by(e))?;
    print_line(identity.ready(address).as_bytes())?;
    let deaf = |e: std::io::Error| failed("listen for signals").caused_by(e);
    let mut terminated = signal(SignalKind::terminate()).map_err(deaf)?;
    let mut interrupted = signal(SignalKind::interrupt()).map_err(deaf)?;
    tokio::select! {
        served = api::serve(listener, App { service, access, agents, delegations }) => served.map(|()| 0),
        () = runner.run() => Ok(0),
        _ = terminated.recv() => Ok(0),
        _ = interrupted.recv() => Ok(0),
    }
}

/// Identity of the server, and those whom it trusts.
struct Identity {
    server: ServerFiles,
    trust: TrustDirs,
    config: Config,
    dev: Option<Dev>,
}

impl Identity {
    /// Returns the files that the flags give, or those of a trial.
    fn of(flags: &ServeFlags, directory: &Path) -> Result<Self, Error> {
        if flags.dev {
            return Self::of_trial(flags, directory);
        }
        let needed = |given: &Option<PathBuf>, flag: &str| {
            given.clone().ok_or_else(|| {
                let text =
                    format!("the service needs {flag}; for a trial, `sterna serve --dev` makes all that it needs");
                Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
            })
        };
        Ok(Self {
            server: ServerFiles {
                certificate: needed(&flags.tls_cert, "--tls-cert FILE")?,
                key: needed(&flags.tls_key, "--tls-key FILE")?,
            },
            trust: TrustDirs {
                authorities: needed(&flags.client_ca, "--client-ca DIR")?,
                voms: flags.voms_dir.clone(),
            },
            config: flags.config.as_deref().map(Config::read).transpose()?.unwrap_or_default(),
            dev: None,
        })
    }

    /// Makes the identity of a trial.
    fn of_trial(flags: &ServeFlags, directory: &Path) -> Result<Self, Error> {
        let address = flags.listen.map(|listen| listen.ip()).filter(|address| !address.is_unspecified());
        let dev = Dev::make(directory, address, SystemTime::now())?;
        Ok(Self {
            server: ServerFiles { certificate: dev.server_cert.clone(), key: dev.server_key.clone() },
            trust: TrustDirs { authorities: dev.capath.clone(), voms: None },
            config: flags.config.as_deref().map(Config::read).transpose()?.unwrap_or_default(),
            dev: Some(dev),
        })
    }

    /// Returns the rules of access. The only user of a trial may do everything.
    fn rules(&self, trust: &Trust) -> Result<Rules, Error> {
        let mut rules = self.config.rules()?;
        if let Some(dev) = &self.dev {
            let damaged = |e| failed(&format!("read {}", dev.cert.display())).caused_by(e);
            let chain = CertificateDer::pem_file_iter(&dev.cert).and_then(|chain| chain.collect::<Result<Vec<_>, _>>());
            let user = trust.identify(&chain.map_err(damaged)?, SystemTime::now())?;
            rules.by_name.insert(user.dn, [Level::All; Operation::ALL.len()]);
        }
        Ok(rules)
    }

    /// Returns the addresses that storages may have. Those of a trial are often on this host.
    fn addresses(&self) -> AddressRules {
        let default = AddressRules::default();
        self.config.addresses(AddressRules { loopback: default.loopback || self.dev.is_some(), ..default })
    }

    /// Returns the issuers of tokens. That of a trial gives all rights.
    fn issuers(&self) -> Result<Vec<Issuer>, Error> {
        let mut issuers = self.config.issuers()?;
        issuers.extend(self.dev.as_ref().map(|dev| Issuer {
            url: dev::TOKEN_ISSUER.to_owned(),
            audiences: vec![dev::TOKEN_AUDIENCE.to_owned()],
            vo: "dev".to_owned(),
            scopes: BTreeMap::from([(dev::TOKEN_SCOPE.to_owned(), [Level::All; Operation::ALL.len()])]),
            keys: Some(dev.issuer_keys.clone()),
            authority: None,
        }));
        Ok(issuers)
    }

    /// Returns the line that says that the service is ready.
    fn ready(&self, address: SocketAddr) -> String {
        let url = format!("https://{address}");
        match &self.dev {
            Some(dev) => format!(
                "ready {url} ui {url}/ui/ capath {} cert {} key {} token {}",
                dev.capath.display(),
                dev.cert.display(),
                dev.key.display(),
                dev.token.display()
            ),
            None => format!("ready {url} ui {url}/ui/"),
        }
    }
}

/// Returns the file of a database: a file path, or `sqlite:` and a file path.
fn database_of(given: &str) -> Result<PathBuf, Error> {
    let path = given.strip_prefix("sqlite://").or_else(|| given.strip_prefix("sqlite:")).unwrap_or(given);
    if path.is_empty() || path.contains("://") {
        let text = format!("--database {given}: expected a file, or sqlite://FILE");
        return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
    }
    Ok(PathBuf::from(path))
}

/// Locks a database for this process. Errors: `Busy`: another service uses it.
fn lock(database: &Path) -> Result<File, Error> {
    // Beside the database: SQLite has its own locks on that file.
    let mut path = database.as_os_str().to_owned();
    path.push("-lock");
    let path = PathBuf::from(path);
    let opened = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = opened.map_err(|e| failed(&format!("open {}", path.display())).caused_by(e))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| match e {
        Errno::WOULDBLOCK => {
            let shown = database.display();
            let text = format!("another `sterna serve` uses {shown}; stop it, or give another --state or --database");
            Error::new(ErrorKind::Busy, Scope::Client, Phase::Prepare, text)
        }
        _ => failed(&format!("lock {}", path.display())).caused_by(e),
    })?;
    Ok(file)
}

/// Returns the name of this host.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}
