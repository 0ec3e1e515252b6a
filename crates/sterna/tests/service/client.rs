//! Starts `sterna serve --dev`, and runs real clients against it.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::Value;
use tempfile::TempDir;

use crate::http::Http;

/// Maximum number of looks at a job that should end. Reason: a busy machine; a test that passes needs a few hundred.
const LOOKS_MAX: usize = 20_000;

/// Service of a test.
pub struct Serve {
    process: Child,
    /// The same after a restart.
    port: u16,
    state: TempDir,
    /// Values of the line that says that it is ready.
    url: String,
    capath: String,
    cert: String,
    key: String,
    token: String,
    /// Arguments of `sterna serve`, without the address.
    arguments: Vec<String>,
    /// Files that the service reads.
    _files: Option<TempDir>,
    /// Variables of the environment of the service.
    variables: Vec<(String, PathBuf)>,
}

/// Output of a client.
#[derive(Debug)]
pub struct Run {
    pub success: bool,
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// Returns all that the client printed.
    pub fn all(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// Stream of events that is open.
pub struct Events {
    process: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Events {
    /// Returns the data of the next event.
    pub fn next(&mut self) -> Value {
        let line = self.lines.by_ref().map(Result::unwrap).find(|line| line.starts_with("data:"));
        let line = line.unwrap_or_else(|| panic!("the stream has ended"));
        serde_json::from_str(line.trim_start_matches("data:")).unwrap_or_else(|e| panic!("{e}: {line}"))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Client that will run.
pub struct Client(Command);

impl Client {
    pub fn run(mut self) -> Run {
        let output =
            self.0.output().unwrap_or_else(|e| panic!("run {:?}: {e}; scripts/setup.sh test installs it", self.0));
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (success, code) = (output.status.success(), output.status.code());
        Run { success, code, stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Runs, and returns what it printed on stdout. Panics unless it succeeds.
    pub fn succeed(self) -> String {
        let run = self.run();
        assert!(run.success, "{run:?}");
        run.stdout
    }
}

/// Returns the directory with the programs of the FTS3 client.
fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fts3-client/bin")
}

impl Serve {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a service with variables in its environment.
    pub fn start_with(variables: &[(&str, &Path)]) -> Self {
        let state = tempfile::tempdir().unwrap();
        let port = free_port();
        let arguments = vec!["--dev".to_owned()];
        let variables: Vec<_> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), value.to_path_buf())).collect();
        let (process, ready) = start(state.path(), port, &arguments, &variables);
        let value = |name: &str| {
            let mut words = ready.split_whitespace().skip_while(|word| *word != name);
            words.nth(1).unwrap_or_else(|| panic!("no {name} in {ready}")).to_owned()
        };
        let url = value("ready").replace("127.0.0.1", "localhost");
        let (capath, cert, key) = (value("capath"), value("cert"), value("key"));
        Self { process, port, url, capath, cert, key, token: value("token"), state, arguments, _files: None, variables }
    }

    /// Starts a service that is no trial, with the certificates of one. `files`: directory of the configuration.
    pub fn start_with_users(config: &Path, files: TempDir, arguments: &[&str]) -> Self {
        let mut serve = Self::start();
        let dev = serve.state.path().join("service/dev");
        let path = |name: &str| dev.join(name).to_str().unwrap().to_owned();
        let flags = [
            ("--tls-cert", path("server.pem")),
            ("--tls-key", path("server.key")),
            ("--client-ca", path("certificates")),
            ("--config", config.to_str().unwrap().to_owned()),
        ];
        serve.arguments = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        serve.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        serve._files = Some(files);
        serve.kill_and_start();
        serve
    }

    /// Returns the certificate and the key of the user.
    pub fn pair(&self) -> (PathBuf, PathBuf) {
        (PathBuf::from(&self.cert), PathBuf::from(&self.key))
    }

    /// Returns a client with the certificate of the user.
    pub fn http(&self) -> Http {
        Http::new(&self.url, Path::new(&self.capath), Some((Path::new(&self.cert), Path::new(&self.key))))
    }

    /// Returns the log of the service.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.state.path().join("log")).unwrap()
    }

    /// Returns the URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the state directory.
    pub fn state_dir(&self) -> &Path {
        self.state.path()
    }

    /// Ends the process as a power cut would.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Ends the process as a power cut would, and starts another one on the same state.
    pub fn kill_and_start(&mut self) {
        self.kill();
        self.process = start(self.state.path(), self.port, &self.arguments, &self.variables).0;
    }

    /// Starts the trial again with a variable in its environment, and with a configuration.
    pub fn restart_with(&mut self, variable: (&str, &Path), config: &str) {
        let file = self.state.path().join("serve.toml");
        std::fs::write(&file, config).unwrap();
        self.variables = vec![(variable.0.to_owned(), variable.1.to_owned())];
        self.arguments = ["--dev", "--config", file.to_str().unwrap()].map(str::to_owned).to_vec();
        self.kill_and_start();
    }

    /// Returns a command of the FTS3 client, with the endpoint and the credentials of the trial.
    pub fn client(&self, program: &str, arguments: &[&str]) -> Client {
        let mut command = Command::new(programs().join(program));
        command.args(["-s", &self.url, "--capath", &self.capath, "--cert", &self.cert, "--key", &self.key]);
        command.args(arguments);
        Client(command)
    }

    /// Returns a command of this program, with the service and the state directory of the trial in its environment.
    pub fn sterna(&self, arguments: &[&str]) -> Client {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sterna"));
        for name in ["X509_USER_PROXY", "X509_USER_CERT", "X509_USER_KEY", "X509_CERT_DIR"] {
            command.env_remove(name);
        }
        command.env("STERNA_SERVICE", &self.url).env("STERNA_STATE", self.state.path()).args(arguments);
        Client(command)
    }

    /// Returns the directory with the authority of the trial.
    pub fn capath(&self) -> &str {
        &self.capath
    }

    /// Returns a Python script that gets the endpoint, certificate, key and authorities as its first arguments.
    pub fn python(&self, script: &str, arguments: &[&str]) -> Client {
        let mut command = Command::new(programs().join("python"));
        command.args(["-c", script, &self.url, &self.cert, &self.key, &self.capath]).args(arguments);
        Client(command)
    }

    /// Returns the script that drives the service by the transfer tool of Rucio. `home` receives its configuration.
    pub fn rucio(&self, home: &Path) -> Client {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/service/transfertool.py");
        let mut command = Command::new(programs().join("python"));
        command.args(["-W", "ignore"]).arg(script).args([&self.url, &self.cert, &self.key]).arg(home);
        Client(command)
    }

    /// Sends a request with the certificate of the user. Returns the status and the body.
    pub fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.send(method, path, body, &["--cert", &self.cert, "--key", &self.key])
    }

    /// Returns the token of the trial.
    pub fn token(&self) -> String {
        std::fs::read_to_string(&self.token).unwrap()
    }

    /// Returns a command of the FTS3 client that authenticates by a token.
    pub fn token_client(&self, program: &str, token: &str, arguments: &[&str]) -> Client {
        let mut command = Command::new(programs().join(program));
        command.args(["-s", &self.url, "--capath", &self.capath, "--fts-access-token", token]).args(arguments);
        Client(command)
    }

    /// Sends a request with a token.
    pub fn request_with_token(&self, token: &str, method: &str, path: &str) -> (u16, String) {
        self.send(method, path, "", &["-H", &format!("Authorization: Bearer {token}")])
    }

    /// Opens a stream of events, and reads the head of the reply. Returns the lines that follow.
    pub fn events(&self, path: &str) -> Events {
        let mut command = Command::new("curl");
        command.args(["-sS", "-N", "-i", "-H", "Accept: text/event-stream", "--capath", &self.capath]);
        command.args(["--cert", &self.cert, "--key", &self.key]).arg(format!("{}{path}", self.url));
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let head: Vec<String> = lines.by_ref().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
        assert!(head.iter().any(|line| line.contains("text/event-stream")), "{head:?}");
        Events { process, lines }
    }

    /// Sends a request without a certificate.
    pub fn request_as_nobody(&self, method: &str, path: &str) -> (u16, String) {
        self.send(method, path, if method == "POST" { "{}" } else { "" }, &[])
    }

    fn send(&self, method: &str, path: &str, body: &str, credentials: &[&str]) -> (u16, String) {
        let body_file = self.state.path().join("request");
        std::fs::write(&body_file, body).unwrap();
        let mut command = Command::new("curl");
        command.args(["-sS", "--path-as-is", "-X", method, "-w", "\n%{http_code}", "--capath", &self.capath]);
        command.args(credentials).arg(format!("{}{path}", self.url));
        if !body.is_empty() {
            command.args(["-H", "Content-Type: application/json", "--data-binary"]);
            command.arg(format!("@{}", body_file.display()));
        }
        let said = Client(command).succeed();
        let (reply, status) = said.rsplit_once('\n').unwrap_or_else(|| panic!("{said}"));
        (status.parse().unwrap(), reply.to_owned())
    }

    /// Waits until a job has ended. Returns it.
    pub fn wait_for_end(&self, id: &str) -> Value {
        for _ in 0..LOOKS_MAX {
            let (status, body) = self.request("GET", &format!("/jobs/{id}"), "");
            assert_eq!(status, 200, "{body}");
            let job: Value = serde_json::from_str(&body).unwrap();
            if !job["job_finished"].is_null() {
                return job;
            }
        }
        panic!("the job {id} does not end");
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let log = self.log();
        if std::thread::panicking() {
            // Tests show what they print when they fail.
            #[allow(clippy::print_stdout)]
            {
                println!("log of the service:\n{log}");
            }
        } else {
            assert!(!log.contains("panicked"), "{log}");
        }
    }
}

/// Returns a free port below those that the kernel gives to connections, so that a restarted service finds it free.
/// Agents of other tests take higher ones.
fn free_port() -> u16 {
    const PORTS: std::ops::Range<u16> = 16_000..20_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id().wrapping_mul(61) % u32::from(PORTS.end - PORTS.start)) as u16;
    loop {
        let number = first + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = PORTS.start + number % (PORTS.end - PORTS.start);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Starts a service, and returns it with its first line.
fn start(state: &Path, port: u16, arguments: &[String], variables: &[(String, PathBuf)]) -> (Child, String) {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(state.join("log")).unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_sterna"))
        .args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--state"])
        .arg(state)
        .args(arguments)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.starts_with("ready "), "{ready}");
    (process, ready)
}
