//! Real web servers on loopback, nginx and Apache, and a proxy in front of them that changes answers as a test
//! requests.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::site::free_port;

/// Longest head of a request or an answer.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Most attempts to start a server on another port. Reason: another process can take a free port before the server uses
/// it.
const PORT_TRIES_MAX: u32 = 10;

/// Type of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Nginx,
    /// nginx with TLS; the additional configuration names the certificate.
    NginxTls,
    Apache,
}

/// Running web server; ended when dropped.
pub struct WebServer {
    child: Child,
    pub addr: SocketAddr,
    directory: TempDir,
    scheme: &'static str,
}

impl WebServer {
    /// Starts a server for the files in [`WebServer::root`].
    pub fn start(kind: Kind) -> Self {
        Self::start_with(kind, "")
    }

    pub fn start_with(kind: Kind, more: &str) -> Self {
        Self::start_on(&|program| Command::new(program), Ipv4Addr::LOCALHOST.into(), kind, more)
    }

    /// Starts a server on another host, where `command` starts programs; `more` is additional configuration.
    pub fn start_on(command: &dyn Fn(&Path) -> Command, at: IpAddr, kind: Kind, more: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // The workers of the server run as another user than the test.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(directory.path().join("www")).unwrap();
        for _ in 0..PORT_TRIES_MAX {
            let addr = SocketAddr::new(at, free_port("127.0.0.1"));
            let mut child = configured(command, kind, directory.path(), addr, more).spawn().unwrap_or_else(|error| {
                panic!("start {kind:?}: {error}; scripts/setup.sh test installs it");
            });
            loop {
                // Both servers write the file when they listen.
                if directory.path().join("pid").exists() && child.try_wait().unwrap().is_none() {
                    let scheme = if kind == Kind::NginxTls { "https" } else { "http" };
                    return Self { child, addr, directory, scheme };
                }
                if child.try_wait().unwrap().is_some() {
                    break;
                }
                thread::yield_now();
            }
        }
        let log = fs::read_to_string(directory.path().join("error.log")).unwrap_or_default();
        panic!("{kind:?} does not start: {log}");
    }

    /// Returns the directory that the server serves.
    pub fn root(&self) -> PathBuf {
        self.directory.path().join("www")
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}://{}/{path}", self.scheme, self.addr)
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        // SIGTERM, so that the workers end too.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

fn configured(
    command: &dyn Fn(&Path) -> Command,
    kind: Kind,
    directory: &Path,
    addr: SocketAddr,
    more: &str,
) -> Command {
    let at = directory.display();
    let is_root = rustix::process::geteuid().is_root();
    let (program, text, flags) = match kind {
        Kind::Nginx | Kind::NginxTls => {
            let tls = if kind == Kind::NginxTls { "ssl" } else { "" };
            let user = if is_root { "user root;" } else { "" };
            let text = format!(
                "daemon off; {user} worker_processes 1; pid {at}/pid; error_log {at}/error.log;
                events {{ worker_connections 256; }}
                http {{
                    access_log off; default_type application/octet-stream;
                    types {{ text/html html; }}
                    client_body_temp_path {at}/body; proxy_temp_path {at}/proxy; fastcgi_temp_path {at}/fastcgi;
                    uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;
                    server {{ listen {addr} {tls}; root {at}/www; {more} }}
                }}"
            );
            (
                "nginx",
                text,
                vec!["-p".to_owned(), at.to_string(), "-e".to_owned(), format!("{at}/error.log"), "-c".to_owned()],
            )
        }
        Kind::Apache => {
            let modules = "/usr/lib/apache2/modules";
            let user = if is_root { "User www-data\nGroup www-data" } else { "" };
            let text = format!(
                "ServerRoot {at}\nServerName localhost\nListen {addr}\nPidFile {at}/pid\nErrorLog {at}/error.log\n{user}
                LoadModule mpm_event_module {modules}/mod_mpm_event.so
                LoadModule authz_core_module {modules}/mod_authz_core.so
                DefaultRuntimeDir {at}
                DocumentRoot {at}/www
                <Directory {at}/www>\nRequire all granted\n</Directory>\n{more}\n"
            );
            ("apache2", text, vec!["-DFOREGROUND".to_owned(), "-f".to_owned()])
        }
    };
    let config = directory.join("server.conf");
    fs::write(&config, text).unwrap();
    let path = ["/usr/sbin", "/usr/local/sbin"].iter().map(|place| Path::new(place).join(program));
    let program = path.into_iter().find(|path| path.exists()).unwrap_or_else(|| program.into());
    let mut command = command(&program);
    command.args(flags).arg(config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Request that the proxy received.
#[derive(Clone, Debug)]
pub struct Request {
    /// Number of earlier requests.
    pub number: usize,
    /// Request line and headers.
    pub head: String,
}

impl Request {
    /// Returns the value of the header `name`, compared without case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    }

    /// Returns the requested path.
    pub fn path(&self) -> &str {
        self.head.split_whitespace().nth(1).unwrap_or_default()
    }
}

/// Action of the proxy for a request.
pub enum Verdict {
    /// Passes the answer of the server.
    Pass,
    /// Passes the answer of the server, and cuts the connection after this many bytes of the body.
    Cut(u64),
    /// Sends this head to the server instead of the request.
    Ask(String),
    /// Passes the answer of the server with a changed head.
    Edit(fn(String) -> String),
    /// Answers with these bytes, without the server.
    Answer(String),
}

type Rule = Box<dyn Fn(&Request) -> Verdict + Send + Sync>;

struct Shared {
    target: SocketAddr,
    rule: Rule,
    seen: Mutex<Vec<Request>>,
    /// Body bytes that may still pass.
    allowance: AtomicU64,
    released: (Mutex<()>, Condvar),
    open: AtomicUsize,
    open_most: AtomicUsize,
    is_over: AtomicBool,
}

/// Proxy on a separate port; each connection has one request.
pub struct FaultProxy {
    shared: Arc<Shared>,
    pub addr: SocketAddr,
}

impl FaultProxy {
    pub fn new(target: SocketAddr, rule: impl Fn(&Request) -> Verdict + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target,
            rule: Box::new(rule),
            seen: Mutex::default(),
            allowance: AtomicU64::new(u64::MAX),
            released: Default::default(),
            open: AtomicUsize::new(0),
            open_most: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&accepting);
                thread::spawn(move || shared.serve(client));
            }
        });
        Self { shared, addr }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.addr)
    }

    /// Returns all requests until now.
    pub fn seen(&self) -> Vec<Request> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Lets this many body bytes pass, then holds the rest; `u64::MAX` passes all.
    pub fn allow(&self, bytes: u64) {
        self.shared.allowance.store(bytes, Ordering::SeqCst);
        self.shared.released.1.notify_all();
    }

    /// Returns true if all allowed bytes have passed.
    pub fn is_spent(&self) -> bool {
        self.shared.allowance.load(Ordering::SeqCst) == 0
    }

    /// Returns the largest number of concurrent requests since the last call.
    pub fn most_at_once(&self) -> usize {
        self.shared.open_most.swap(self.shared.open.load(Ordering::SeqCst), Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.allow(u64::MAX);
        let _ = TcpStream::connect(self.addr);
    }
}

impl Shared {
    fn serve(&self, mut client: TcpStream) {
        let Some((head, _)) = read_head(&mut client) else { return };
        let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        self.open_most.fetch_max(open, Ordering::SeqCst);
        let request = {
            let mut seen = self.seen.lock().unwrap();
            let request = Request { number: seen.len(), head };
            seen.push(request.clone());
            request
        };
        // Many tests have a client that disconnects.
        let _ = self.answer(&mut client, &request);
        self.open.fetch_sub(1, Ordering::SeqCst);
    }

    fn answer(&self, client: &mut TcpStream, request: &Request) -> std::io::Result<()> {
        let (mut head, mut cut, mut edit): (_, _, fn(String) -> String) = (request.head.clone(), u64::MAX, |head| head);
        match (self.rule)(request) {
            Verdict::Pass => {}
            Verdict::Cut(bytes) => cut = bytes,
            Verdict::Ask(other) => head = other,
            Verdict::Edit(change) => edit = change,
            Verdict::Answer(text) => return client.write_all(text.as_bytes()),
        }
        let mut server = TcpStream::connect(self.target)?;
        let head = head.trim_end().to_owned() + "\r\nConnection: close\r\n\r\n";
        server.write_all(head.as_bytes())?;
        let Some((head, body)) = read_head(&mut server) else { return Ok(()) };
        client.write_all((edit(head.trim_end().to_owned()) + "\r\n\r\n").as_bytes())?;
        self.pass_body(client, &mut server, body, cut)
    }

    fn pass_body(
        &self,
        client: &mut TcpStream,
        server: &mut TcpStream,
        first: Vec<u8>,
        cut: u64,
    ) -> std::io::Result<()> {
        let (mut left, mut bytes) = (cut, first);
        let mut buffer = vec![0; 16 << 10];
        loop {
            let count = (bytes.len() as u64).min(left);
            self.spend(count);
            client.write_all(&bytes[..count as usize])?;
            left -= count;
            let read = server.read(&mut buffer)?;
            if read == 0 || left == 0 {
                return Ok(());
            }
            bytes = buffer[..read].to_vec();
        }
    }

    /// Waits until `bytes` are allowed to pass, and deducts them.
    fn spend(&self, bytes: u64) {
        let (lock, bell) = &self.released;
        let mut held = lock.lock().unwrap();
        loop {
            let allowed = self.allowance.load(Ordering::SeqCst);
            if allowed == u64::MAX {
                return;
            }
            if allowed >= bytes {
                self.allowance.store(allowed - bytes, Ordering::SeqCst);
                return;
            }
            self.allowance.store(0, Ordering::SeqCst);
            held = bell.wait_timeout(held, Duration::from_millis(20)).unwrap().0;
        }
    }
}

/// Reads up to the empty line. Returns the head, and the bytes received after it.
fn read_head(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let body = bytes.split_off(end + 4);
            return Some((String::from_utf8(bytes).unwrap(), body));
        }
        assert!(bytes.len() < HEAD_BYTES_MAX, "a head without end");
        match stream.read(&mut buffer) {
            Ok(0) => return None,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}
