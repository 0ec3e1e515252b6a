//! Real storages on loopback: XRootD, which copies to and from others, and nginx, which does not.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

/// Most attempts to start a server on another port. Reason: another process can take a free port before the server uses
/// it.
const PORT_TRIES_MAX: u32 = 10;

/// User of XRootD, which refuses to run as root.
const USER: &str = "nobody";

/// Running storage; ended when dropped.
pub struct Storage {
    process: Child,
    directory: TempDir,
    /// Scheme, host and port.
    origin: String,
}

impl Storage {
    /// Starts XRootD, where everybody reads and writes. It speaks HTTP and HTTPS.
    pub fn xrootd() -> Self {
        let directory = served_directory();
        let config = format!("xrd.tlsca certfile {}/ca.pem\n", directory.path().display());
        Self::xrootd_in(directory, &config)
    }

    /// Starts XRootD, where one user reads and writes, by a certificate. `users`: authority of users. It
    /// makes macaroons.
    pub fn xrootd_of(user: &str, users: &Path) -> Self {
        let directory = served_directory();
        let at = directory.path();
        // The second is for the other storage, from which a third-party copy reads.
        let authorities = fs::read_to_string(users).unwrap() + &authority().pem();
        fs::write(at.join("authorities.pem"), authorities).unwrap();
        fs::write(at.join("gridmap"), format!("\"{user}\" owner\n")).unwrap();
        fs::write(at.join("rights"), "u owner / a\n").unwrap();
        let made = Command::new("openssl").args(["rand", "-base64", "-out"]).arg(at.join("secret")).arg("64").status();
        assert!(made.unwrap().success());
        fs::set_permissions(at.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
        let path = at.display();
        let config = format!(
            "xrd.tlsca certfile {path}/authorities.pem\nhttp.gridmap {path}/gridmap\nofs.authorize 1\n\
             ofs.authlib libXrdMacaroons.so\nacc.authdb {path}/rights\nmacaroons.secretkey {path}/secret\n\
             http.exthandler xrdmacaroons libXrdMacaroons.so\n"
        );
        Self::xrootd_in(directory, &config)
    }

    fn xrootd_in(directory: TempDir, more: &str) -> Self {
        let at = directory.path();
        fs::create_dir(at.join("admin")).unwrap();
        certificates(at);
        for _ in 0..PORT_TRIES_MAX {
            let port = free_port();
            let path = at.display();
            let config = format!(
                "all.export /\nall.sitename TEST\noss.localroot {path}/data\nall.adminpath {path}/admin\n\
                 all.pidpath {path}/admin\nxrd.network nodnr\nxrd.port {port}\nxrd.tls {path}/host.pem {path}/host.key\n\
                 xrd.protocol http libXrdHttp.so\n\
                 http.exthandler xrdtpc libXrdHttpTPC.so\nhttp.header2cgi Authorization authz\n\
                 xrootd.chksum max 4 adler32 md5 crc32c\ntpc.allow local\n{more}"
            );
            fs::write(at.join("xrootd.cfg"), config).unwrap();
            let mut command = Command::new("xrootd");
            if rustix::process::geteuid().is_root() {
                let owned = Command::new("chown").args(["-R", USER]).arg(at).status().unwrap();
                assert!(owned.success());
                command.args(["-R", USER]);
            }
            command.args(["-n", "test", "-c"]).arg(at.join("xrootd.cfg")).current_dir(at);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            let mut process =
                command.spawn().unwrap_or_else(|e| panic!("start xrootd: {e}; scripts/setup.sh test installs it"));
            if has_initialised(&mut process) {
                return Self { process, directory, origin: format!("http://localhost:{port}") };
            }
            let _ = process.wait();
        }
        panic!("xrootd does not start");
    }

    /// Starts nginx with WebDAV. `more` is additional configuration of the server.
    pub fn nginx(more: &str) -> Self {
        let directory = served_directory();
        let at = directory.path();
        for _ in 0..PORT_TRIES_MAX {
            let (port, path) = (free_port(), at.display());
            let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
            let config = format!(
                "daemon off; {user} worker_processes 1; pid {path}/pid; error_log {path}/error.log;
                events {{ worker_connections 256; }}
                http {{
                    access_log off; default_type application/octet-stream; client_max_body_size 0;
                    client_body_temp_path {path}/body; proxy_temp_path {path}/proxy; fastcgi_temp_path {path}/fastcgi;
                    uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi;
                    server {{
                        listen 127.0.0.1:{port}; root {path}/data;
                        dav_methods PUT DELETE MKCOL COPY MOVE;
                        {more}
                    }}
                }}"
            );
            fs::write(at.join("nginx.conf"), config).unwrap();
            let program = ["/usr/sbin/nginx", "/usr/local/sbin/nginx"].map(Path::new);
            let program = program.into_iter().find(|path| path.exists()).unwrap_or(Path::new("nginx"));
            let mut command = Command::new(program);
            command.arg("-p").arg(at).arg("-e").arg(at.join("error.log")).arg("-c").arg(at.join("nginx.conf"));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut process =
                command.spawn().unwrap_or_else(|e| panic!("start nginx: {e}; scripts/setup.sh test installs it"));
            // The file is written when the server listens.
            while process.try_wait().unwrap().is_none() {
                if at.join("pid").exists() {
                    return Self { process, directory, origin: format!("http://localhost:{port}") };
                }
                thread::yield_now();
            }
        }
        let log = fs::read_to_string(at.join("error.log")).unwrap_or_default();
        panic!("nginx does not start: {log}");
    }

    /// Returns the location of a file.
    pub fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.origin)
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.origin.rsplit(':').next().unwrap().parse().unwrap()
    }

    /// Returns the location of a file with another scheme.
    pub fn url_with(&self, scheme: &str, name: &str) -> String {
        self.url(name).replacen("http", scheme, 1)
    }

    /// Returns the path of a file on this host.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("data").join(name)
    }

    /// Stores a file.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    /// Returns the content of a file.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.path(name)).ok()
    }

    /// Returns the names in the directory of the storage.
    pub fn names(&self) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = fs::read_dir(self.path("")).unwrap().map(name).collect();
        names.sort_unstable();
        names
    }

    /// Returns the file with the authority of its certificate, which all storages have.
    pub fn authority(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// Ends the server at once, with all its connections.
    pub fn stop(&mut self) {
        // SIGTERM, so that the workers of nginx end too.
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.stop();
        }
    }
}

/// Returns a directory that another user may enter, with a directory for files.
fn served_directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(directory.path().join("data")).unwrap();
    directory
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Waits until XRootD works, or has ended. Its log is read until then, and thrown away later.
fn has_initialised(process: &mut Child) -> bool {
    let log = BufReader::new(process.stderr.take().unwrap());
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in log.lines().map_while(Result::ok) {
            if line.contains("initialization completed") {
                let _ = sender.send(true);
            } else if line.contains("initialization failed") {
                let _ = sender.send(false);
            }
        }
    });
    receiver.recv().unwrap_or(false)
}

/// Returns the authority of all storages.
fn authority() -> &'static CertifiedIssuer<'static, KeyPair> {
    static AUTHORITY: OnceLock<CertifiedIssuer<'static, KeyPair>> = OnceLock::new();
    AUTHORITY.get_or_init(|| {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Authority of storages");
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    })
}

/// Writes the authority and a certificate of this host.
fn certificates(at: &Path) {
    let mut params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "localhost");
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority()).unwrap();
    for (name, text) in
        [("ca.pem", authority().pem()), ("host.pem", certificate.pem()), ("host.key", key.serialize_pem())]
    {
        fs::write(at.join(name), text).unwrap();
    }
    // XRootD refuses a key that others can read.
    fs::set_permissions(at.join("host.key"), fs::Permissions::from_mode(0o600)).unwrap();
}
