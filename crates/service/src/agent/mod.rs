//! Agent of a service: dials out to it, takes orders and reports their ends. No port needs to be open for that.
//!
//! One WebSocket carries all work. Transfers go on while it is down, for the time of a lease. Refuses to run what the
//! roots of the agent do not allow: the agent checks each order.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use sterna_net::agent::Agent;
use sterna_net::engine::Cancel;
use sterna_net::identity::{Identity, PublicKey};
use sterna_proto::location::HostPort;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use tracing::{info, warn};
use uuid::Uuid;

use crate::worker::{
    FromAgent, Hello, Key, LEASE, MESSAGE_BYTES_MAX, PATH, PING_EVERY, SILENCE_MAX, SentVisit, ToAgent, decode, encode,
    from_base64,
};

mod known;
mod listings;
mod put;
mod transfers;
mod visits;

pub use visits::Visits;

use known::KnownServices;
use listings::Listings;
use transfers::{Service, Transfers};

/// Time limit for a connection with its handshakes. Reason: the longest round trip, 660 ms, several times.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(20);

/// Time between two reports of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// First and longest wait before the next dial.
const WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Maximum number of transfers in one report of progress. Reason: the maximum size of a message.
const PROGRESS_TOGETHER_MAX: usize = 5000;

/// Time that the end of the agent waits for its transfers. Reason: as for the journals of an agent.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);

/// Address of this agent for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReachableAt {
    /// The address at which it listens; if it listens on all, that of its connection to the service.
    Listening,
    /// This one.
    Address(HostPort),
    /// None: it has no open port.
    Nowhere,
}

/// Options of the connection to a service.
pub struct LinkOptions {
    /// Host and port of the service.
    pub service: HostPort,
    /// TLS settings: the authorities of the service, and the certificate of the agent.
    pub tls: Arc<ClientConfig>,
    /// Address of this agent for others.
    pub reachable_at: ReachableAt,
    /// State directory, with the keys of services.
    pub state_dir: PathBuf,
}

/// Returns the TLS settings of an agent: the authorities of its service, and the certificate of its own key.
///
/// Errors: `Internal`.
pub fn tls_settings(authorities: RootCertStore, identity: &Identity) -> Result<Arc<ClientConfig>, Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).map_err(|e| {
        let text = "make the TLS settings of the agent";
        Error::new(ErrorKind::Internal, Scope::Client, Phase::Prepare, text).caused_by(e)
    })?;
    let certificate = Arc::clone(&identity.client_config().client_auth_cert_resolver);
    let mut tls = builder.with_root_certificates(authorities).with_client_cert_resolver(certificate);
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(tls))
}

/// Connection to a service, which is kept up.
pub struct Link {
    stop: Cancel,
    transfers: Arc<Transfers>,
    visits: Visits,
    thread: JoinHandle<()>,
}

impl Link {
    /// Connects in a thread, and again whenever the connection is lost. Errors: the host gives no thread.
    pub fn start(agent: Arc<Agent>, options: LinkOptions) -> Result<Self, Error> {
        let failed = |e| {
            let text = "start the thread of the connection to the service";
            Error::new(ErrorKind::Limit, Scope::Client, Phase::Prepare, text).caused_by(e)
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, transfers) = (Cancel::default(), Transfers::new(agent));
        let known = KnownServices::new(&options.state_dir);
        let service = options.service.to_string();
        known.key(&service).into_iter().for_each(|key| transfers.agent().trust_service(&service, key));
        let visits = Visits::default();
        let keeper = Keeper {
            options,
            known,
            run: Uuid::new_v4(),
            transfers: Arc::clone(&transfers),
            visits: visits.clone(),
            lease: None,
        };
        let stopped = Arc::new(Notify::new());
        let (stopping, on_stop) = (stop.clone(), Arc::clone(&stopped));
        let run = move || {
            let _wakes = stopping.on_cancel(move || on_stop.notify_one());
            runtime.block_on(async {
                tokio::select! {
                    () = keeper.keep() => {}
                    () = stopped.notified() => {}
                }
            });
        };
        let thread = thread::Builder::new().name("service".to_owned()).spawn(run).map_err(failed)?;
        Ok(Self { stop, transfers, visits, thread })
    }

    /// Returns the way of visits to the service.
    pub fn visits(&self) -> Visits {
        self.visits.clone()
    }

    /// Stops the transfers and the connection. What has arrived stays in the journals of the receivers.
    pub fn stop(self) {
        self.stop.cancel();
        self.transfers.drop_all();
        self.transfers.wait_until_idle(STOP_TIME_MAX);
        // A thread that has panicked has ended, too.
        let _ = self.thread.join();
    }
}

/// WebSocket to the service.
type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// Keeps the connection to a service.
struct Keeper {
    options: LinkOptions,
    known: KnownServices,
    /// Run of this agent.
    run: Uuid,
    transfers: Arc<Transfers>,
    visits: Visits,
    /// Time of the last ping that the service has answered; `None`: no transfer has a lease.
    lease: Option<Instant>,
}

/// State of one connection.
struct Connected {
    socket: Socket,
    service: Option<Service>,
    address: SocketAddr,
    /// Time at which the hello was sent.
    born: Instant,
    /// Ends that were sent on this connection.
    sent: BTreeSet<Key>,
    /// Time of the last message.
    heard: Instant,
    /// Pings that were not answered: number and time.
    pings: Vec<(u64, Instant)>,
    next_ping: u64,
    listings: Listings,
}

fn failed(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unreachable, Scope::Service, Phase::Prepare, text)
}

impl Keeper {
    async fn keep(mut self) {
        let (first, longest) = WAITS;
        let mut wait = first;
        loop {
            let born = Instant::now();
            let name = self.options.service.to_string();
            let ended = match self.connect().await {
                Ok(connected) => {
                    info!("connected to the service at {name}");
                    self.serve(connected).await
                }
                Err(error) => error,
            };
            if born.elapsed() > longest {
                wait = first;
            }
            warn!("service at {name}: {}; trying again in {} s", ended.chain(), wait.as_secs());
            self.wait(wait).await;
            wait = (wait * 2).min(longest);
        }
    }

    /// Waits before the next dial. Ends transfers when their lease is over.
    async fn wait(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.check_lease();
            tokio::time::sleep(PROGRESS_EVERY.min(until.saturating_duration_since(Instant::now()))).await;
        }
        self.check_lease();
    }

    /// Ends transfers when their lease is over. Returns true if it did.
    fn check_lease(&mut self) -> bool {
        let is_over = self.lease.is_some_and(|since| since.elapsed() >= LEASE);
        if is_over {
            warn!("the service has not answered for {} s: transfers for it stop", LEASE.as_secs());
            self.transfers.drop_all();
            self.lease = None;
        }
        is_over
    }

    /// Connects and sends the hello.
    async fn connect(&mut self) -> Result<Connected, Error> {
        let HostPort { host, port } = &self.options.service;
        let connect = async {
            let tcp = TcpStream::connect((host.as_str(), *port)).await.map_err(|e| failed("connect").caused_by(e))?;
            tcp.set_nodelay(true).map_err(|e| failed("set TCP_NODELAY").caused_by(e))?;
            let local = tcp.local_addr().map_err(|e| failed("read the local address").caused_by(e))?;
            let address = tcp.peer_addr().map_err(|e| failed("read the address of the service").caused_by(e))?;
            let name = ServerName::try_from(host.clone());
            let name = name.map_err(|e| failed(format!("the host {host}")).caused_by(e))?;
            let tls = TlsConnector::from(Arc::clone(&self.options.tls));
            let tls = tls.connect(name, tcp).await;
            let text = "TLS handshake (the authorities of --capath count)";
            let tls = tls.map_err(|e| failed(text).caused_by(e))?;
            let url = format!("wss://{}{PATH}", self.options.service);
            let limits = WebSocketConfig::default()
                .max_message_size(Some(MESSAGE_BYTES_MAX))
                .max_frame_size(Some(MESSAGE_BYTES_MAX));
            let upgraded = client_async_with_config(url, tls, Some(limits)).await;
            let (socket, _) = upgraded.map_err(refused)?;
            Ok::<_, Error>((socket, address, local))
        };
        let connected = timeout(CONNECT_TIME_MAX, connect).await;
        let (socket, address, local) =
            connected.map_err(|_| failed(format!("no connection within {} s", CONNECT_TIME_MAX.as_secs())))??;
        self.check_lease();
        let hello = FromAgent::Hello(Hello {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            run: self.run,
            address: self.address(local.ip()),
            running: self.transfers.keys(),
            lists: true,
        });
        let mut connected = Connected {
            socket,
            service: None,
            address,
            born: Instant::now(),
            sent: BTreeSet::new(),
            heard: Instant::now(),
            pings: Vec::new(),
            next_ping: 0,
            listings: Listings::default(),
        };
        connected.send(&hello).await?;
        Ok(connected)
    }

    /// Returns the address of this agent for others. `local`: that of the connection to the service.
    fn address(&self, local: IpAddr) -> Option<String> {
        let listening = self.transfers.agent().local_addr();
        match &self.options.reachable_at {
            ReachableAt::Address(address) => Some(address.to_string()),
            ReachableAt::Nowhere => None,
            ReachableAt::Listening if listening.ip().is_unspecified() => {
                Some(SocketAddr::new(local, listening.port()).to_string())
            }
            ReachableAt::Listening => Some(listening.to_string()),
        }
    }

    /// Serves a connection to its end. Returns the reason of the end.
    async fn serve(&mut self, mut connected: Connected) -> Error {
        let mut progress = tokio::time::interval(PROGRESS_EVERY);
        let mut pings = tokio::time::interval(PING_EVERY);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let transfers = Arc::clone(&self.transfers);
        loop {
            let turn = tokio::select! {
                received = connected.socket.next() => match received {
                    None => Err(failed("the service has closed the connection")),
                    Some(Err(tungstenite::Error::Io(e))) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                        Err(failed("the service has closed the connection"))
                    }
                    Some(Err(e)) => Err(failed("receive").caused_by(e)),
                    Some(Ok(message)) => self.handle(&mut connected, message),
                },
                () = transfers.wait_for_end() => connected.send_ends(&transfers).await,
                Some(message) = connected.listings.next() => connected.send(&message).await,
                _ = progress.tick() => self.handle_tick(&mut connected).await,
                _ = pings.tick() => connected.ping().await,
            };
            if let Err(error) = turn {
                return error;
            }
        }
    }

    /// Handles a message of the service.
    fn handle(&mut self, connected: &mut Connected, message: Message) -> Result<(), Error> {
        connected.heard = Instant::now();
        let text = match message {
            Message::Text(text) => text,
            Message::Pong(payload) => {
                if let Some(sent) = connected.take_ping(&payload) {
                    self.lease = Some(sent);
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        match (decode(&text)?, connected.service) {
            (ToAgent::Welcome { key, sites }, _) => {
                let key = <[u8; 32]>::try_from(from_base64(&key)?.as_slice())
                    .map_err(|_| Error::protocol("the key of the service has not 32 bytes"))?;
                let key = PublicKey(key);
                info!("agent of {} for the service {}", sites.join(", "), key.fingerprint());
                let service = self.options.service.to_string();
                self.transfers.agent().trust_service(&service, key);
                if let Err(error) = self.known.record(&service, key) {
                    warn!("{}; a restarted agent accepts no grants until it is connected", error.chain());
                }
                self.lease = Some(connected.born);
                connected.service = Some(Service { key: key.fingerprint(), address: connected.address });
            }
            (ToAgent::Run(order), Some(service)) => self.transfers.start(service, *order),
            (ToAgent::List { listing, prefix }, Some(service)) => {
                connected.listings.start(self.transfers.shared_agent(), service, listing, prefix);
            }
            (ToAgent::More { listing }, _) => connected.listings.more(listing),
            (ToAgent::StopList { listing }, _) => connected.listings.stop(listing),
            (ToAgent::Run(_) | ToAgent::List { .. }, None) => {
                return Err(Error::protocol("an order before the welcome"));
            }
            (ToAgent::Cancel { key }, _) => self.transfers.cancel(key),
            (ToAgent::Recorded { key }, _) => {
                connected.sent.remove(&key);
                self.transfers.handle_recorded(key);
            }
            (ToAgent::Delete { file, location, age_ms }, Some(service)) => {
                self.transfers.delete(service, file, location, Duration::from_millis(age_ms));
            }
            (ToAgent::Delete { .. }, None) => return Err(Error::protocol("an order before the welcome")),
            (ToAgent::Unknown, _) => {}
        }
        Ok(())
    }

    async fn handle_tick(&mut self, connected: &mut Connected) -> Result<(), Error> {
        if self.check_lease() {
            // The hello of this connection named these transfers as under way. The next one does not.
            return Err(failed("the lease of the transfers is over"));
        }
        if connected.heard.elapsed() >= SILENCE_MAX {
            return Err(failed(format!("nothing has arrived for {} s", SILENCE_MAX.as_secs())));
        }
        if connected.service.is_none() {
            return Ok(());
        }
        connected.send_ends(&self.transfers).await?;
        for transfers in self.transfers.take_progress().chunks(PROGRESS_TOGETHER_MAX) {
            connected.send(&FromAgent::Progress { transfers: transfers.to_vec() }).await?;
        }
        while let Some(visited) = self.visits.take() {
            connected.send(&FromAgent::Visited { visit: SentVisit::new(&visited)? }).await?;
        }
        Ok(())
    }
}

impl Connected {
    async fn send(&mut self, message: &FromAgent) -> Result<(), Error> {
        let text = encode(message)?;
        self.send_frame(Message::Text(text.into())).await
    }

    async fn send_frame(&mut self, frame: Message) -> Result<(), Error> {
        let sent = timeout(SILENCE_MAX, self.socket.send(frame)).await;
        let sent = sent.map_err(|_| failed(format!("it has read nothing for {} s", SILENCE_MAX.as_secs())))?;
        sent.map_err(|e| failed("send").caused_by(e))
    }

    async fn ping(&mut self) -> Result<(), Error> {
        self.next_ping += 1;
        self.pings.push((self.next_ping, Instant::now()));
        self.send_frame(Message::Ping(self.next_ping.to_be_bytes().to_vec().into())).await
    }

    /// Returns the time at which a ping was sent that is answered now.
    fn take_ping(&mut self, payload: &[u8]) -> Option<Instant> {
        let number = u64::from_be_bytes(payload.try_into().ok()?);
        let sent = self.pings.iter().find(|(sent, _)| *sent == number).map(|(_, at)| *at)?;
        self.pings.retain(|(sent, _)| *sent > number);
        Some(sent)
    }

    /// Sends the ends that were not sent on this connection, and the outcomes of deletions.
    async fn send_ends(&mut self, transfers: &Transfers) -> Result<(), Error> {
        if self.service.is_none() {
            return Ok(());
        }
        for (key, ended) in transfers.ends() {
            if self.sent.insert(key) {
                self.send(&ended).await?;
            }
        }
        for deleted in transfers.take_deleted() {
            self.send(&deleted).await?;
        }
        Ok(())
    }
}

/// Returns the error of a service that does not accept the connection, with its own reason.
fn refused(error: tungstenite::Error) -> Error {
    let tungstenite::Error::Http(reply) = error else { return failed("open the WebSocket").caused_by(error) };
    let said = reply.body().as_deref().and_then(|body| serde_json::from_slice::<serde_json::Value>(body).ok());
    let said = said.as_ref().and_then(|problem| problem["text"].as_str()).unwrap_or("no reason was given");
    let text = format!("it refuses this agent ({}): {said}", reply.status());
    Error::new(ErrorKind::Denied, Scope::Service, Phase::Prepare, text)
}
