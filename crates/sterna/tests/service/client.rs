//! Starts `sterna serve --dev`, and runs real clients against it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// Maximum number of looks at a job that should end. Reason: a busy machine; a test that passes needs a few hundred.
const LOOKS_MAX: usize = 20_000;

/// Service of a test.
pub struct Serve {
    process: Child,
    state: TempDir,
    /// Values of the line that says that it is ready.
    url: String,
    capath: String,
    cert: String,
    key: String,
    token: String,
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
        let variables: Vec<_> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), value.to_path_buf())).collect();
        let (process, ready) = start(state.path(), &variables);
        let value = |name: &str| {
            let mut words = ready.split_whitespace().skip_while(|word| *word != name);
            words.nth(1).unwrap_or_else(|| panic!("no {name} in {ready}")).to_owned()
        };
        let url = value("ready").replace("127.0.0.1", "localhost");
        let (capath, cert, key) = (value("capath"), value("cert"), value("key"));
        Self { process, url, capath, cert, key, token: value("token"), state, variables }
    }

    /// Returns the state directory.
    pub fn state_dir(&self) -> &Path {
        self.state.path()
    }

    /// Ends the process as a power cut would, and starts another one on the same state.
    pub fn kill_and_start(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let (process, ready) = start(self.state.path(), &self.variables);
        self.process = process;
        let url = ready.split_whitespace().nth(1).unwrap_or_default();
        self.url = url.replace("127.0.0.1", "localhost");
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
    }
}

/// Starts a service, and returns it with its first line.
fn start(state: &Path, variables: &[(String, PathBuf)]) -> (Child, String) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_sterna"))
        .args(["serve", "--dev", "--listen", "127.0.0.1:0", "--state"])
        .arg(state)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.starts_with("ready "), "{ready}");
    (process, ready)
}
