//! Messages between the service and its agents: JSON objects, one in each text frame of a WebSocket (RFC 6455).
//!
//! A reader ignores fields that it does not know, and skips messages of an unknown type.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sterna_doctor::monitor::{Alarm, Outcome, Round};
use sterna_net::identity::Fingerprint;
use sterna_proto::Error;
use sterna_sched::queue::FileNumber;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::job::{Failure, Moved, Task};

/// Path of the WebSocket.
pub const PATH: &str = "/api/v1/agents/connect";

/// Time without a message or a pong after which either end closes the connection. Reason: four pings.
pub const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Time between two pings of an agent.
pub const PING_EVERY: Duration = Duration::from_secs(5);

/// Time that an agent runs transfers after the last ping that the service has answered. Reason: the restart of a
/// service, and most outages of a path, are shorter.
pub const LEASE: Duration = Duration::from_secs(60);

/// Time after the last sign of an agent at which its transfers start elsewhere. Reason: the agent stops them at
/// [`LEASE`], or up to [`SILENCE_MAX`] later while it connects; the end of a copy takes a few seconds.
pub const RECLAIM_AFTER: Duration = Duration::from_secs(90);

/// Maximum bytes of a message. Reason: an order has up to 100 transfers with their options; 10,000 reports of progress
/// have 300 kB.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Maximum number of transfers that an agent reports as under way. Reason: limits of endpoints are far below.
pub const RUNNING_MAX: usize = 10_000;

/// Maximum number of alarms of a visit. Reason: a path has at most one of each kind, direction and limit.
const ALARMS_MAX: usize = 16;

/// Maximum number of round trips and of throughput tests of a visit. Reason: an agent sends echoes from 16 ports, and
/// runs one test in each direction.
const ECHOES_MAX: usize = 64;
const TESTS_MAX: usize = 2;

/// Maximum characters of a remedy. Reason: those of our rules have less.
const REMEDY_CHARS_MAX: usize = 400;

/// Start of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Number of the file.
    pub file: u64,
    /// Number of the start, from 1.
    pub start: u32,
}

impl Key {
    /// Returns the key of a task.
    pub fn of(task: &Task) -> Self {
        Self { file: task.file, start: task.start }
    }

    /// Returns the number of the file.
    pub fn number(self) -> FileNumber {
        FileNumber(self.file)
    }
}

/// First message of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Release of the agent.
    pub release: String,
    /// Run of the agent: new with each start of its process.
    pub run: Uuid,
    /// Address at which other agents reach it; `None`: it has no open port.
    pub address: Option<String>,
    /// Transfers under way, and those whose end the service has not recorded.
    pub running: Vec<Key>,
    /// It lists the files beneath prefixes.
    #[serde(default)]
    pub lists: bool,
}

/// Encoded [`Visited`]. A service decodes it apart from its message: limits and alarms of a later release are then an
/// error of the visit, and the connection stays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SentVisit(serde_json::Value);

impl SentVisit {
    /// Encodes a visit. Errors: `Protocol`.
    pub fn new(visited: &Visited) -> Result<Self, Error> {
        let encoded = serde_json::to_value(visited);
        encoded.map(Self).map_err(|e| Error::protocol("encode a visit").caused_by(e))
    }

    /// Decodes the visit. Errors: `Protocol`: it is of a later release, or is no visit.
    pub fn decode(self) -> Result<Visited, Error> {
        let visited: Visited =
            serde_json::from_value(self.0).map_err(|e| Error::protocol("a visit is not understood").caused_by(e))?;
        visited.peer()?;
        Ok(visited.clipped())
    }
}

/// Visit of an agent to a peer that it monitors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Visited {
    /// Fingerprint of the peer.
    pub peer: String,
    /// Measurements.
    pub round: Round,
    /// Alarms that are open after it.
    pub alarms: Vec<Alarm>,
}

impl Visited {
    /// Returns the fingerprint of the peer. Errors: `Protocol`.
    pub fn peer(&self) -> Result<Fingerprint, Error> {
        self.peer.parse().map_err(|e| Error::protocol("the peer of a visit").caused_by(e))
    }

    /// Returns the visit with lists and texts of limited length.
    #[must_use]
    fn clipped(mut self) -> Self {
        self.alarms.truncate(ALARMS_MAX);
        self.round.outcome = match self.round.outcome {
            Outcome::Failed(failure) => Outcome::Failed(failure.cut()),
            Outcome::Measured(mut measured) => {
                measured.echoes.iter_mut().for_each(|echoes| echoes.rtt_us.truncate(ECHOES_MAX));
                measured.tests.truncate(TESTS_MAX);
                for test in &mut measured.tests {
                    test.remedy = test.remedy.chars().take(REMEDY_CHARS_MAX).collect();
                }
                Outcome::Measured(measured)
            }
        };
        self
    }
}

/// Message of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromAgent {
    /// First message.
    Hello(Hello),
    /// Bytes of transfers under way.
    Progress {
        /// Start and bytes of each.
        transfers: Vec<(Key, u64)>,
    },
    /// A transfer has ended.
    Ended {
        /// Start.
        key: Key,
        /// Bytes and limits.
        moved: Moved,
        /// Failure, if it failed.
        failure: Option<Failure>,
    },
    /// Files beneath a prefix. The agent sends at most [`crate::listing::BATCHES_MAX`] of these before the service asks
    /// for more.
    Found {
        /// Listing.
        listing: Uuid,
        /// Path beneath the prefix, percent-encoded as in a location, and size of each.
        files: Vec<(String, u64)>,
    },
    /// A listing has ended.
    Listed {
        /// Listing.
        listing: Uuid,
        /// Failure, if it failed.
        failure: Option<Failure>,
    },
    /// An order to delete a file was carried out, or has failed.
    Deleted {
        /// Number of the file.
        file: u64,
        /// Failure, if it failed.
        failure: Option<Failure>,
    },
    /// A peer was visited.
    Visited {
        /// Visit.
        visit: SentVisit,
    },
    /// A message of a later release.
    #[serde(other)]
    Unknown,
}

/// End of a transfer, or of a path, at one of its agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It has the source, and pushes.
    Source,
    /// It has the destination, and pulls.
    Destination,
}

impl End {
    /// Returns the name, as in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
        }
    }
}

/// Other end of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "at", rename_all = "snake_case")]
pub enum Other {
    /// Another agent.
    Agent {
        /// Address.
        address: String,
        /// Fingerprint.
        key: String,
        /// Grant for it: a `SignedGrant` of the wire protocol, in base64.
        grant: String,
    },
    /// A web server.
    Web {
        /// Bearer token of the user for it.
        token: Option<String>,
    },
}

/// Order to run transfers in one session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Transfers: at least one, and only one with a web server.
    pub tasks: Vec<Task>,
    /// End at the agent that gets the order.
    pub end: End,
    /// Other end.
    pub other: Other,
}

/// Message of the service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToAgent {
    /// Answer to the hello.
    Welcome {
        /// Public key of the service, which signs grants: Ed25519, in base64.
        key: String,
        /// Sites of the agent.
        sites: Vec<String>,
    },
    /// Runs transfers.
    Run(Box<Order>),
    /// Stops a transfer, and those that share its session. Their ends are reported.
    Cancel {
        /// Start.
        key: Key,
    },
    /// The end of a transfer is on disk at the service.
    Recorded {
        /// Start.
        key: Key,
    },
    /// Deletes a file of a site of the agent: a copy between the hops of a job.
    Delete {
        /// Number of the file that wrote it.
        file: u64,
        /// Location.
        location: String,
        /// Minimum age of the copy, in milliseconds. A younger file is another one, and stays.
        age_ms: u64,
    },
    /// Lists the files beneath a prefix, until the end of the connection at the latest.
    List {
        /// Listing.
        listing: Uuid,
        /// Location of the prefix.
        prefix: String,
    },
    /// One more message with files can come.
    More {
        /// Listing.
        listing: Uuid,
    },
    /// Stops a listing. Its end is not reported.
    StopList {
        /// Listing.
        listing: Uuid,
    },
    /// A message of a later release.
    #[serde(other)]
    Unknown,
}

/// Encodes bytes for a field of a message.
pub fn to_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Decodes bytes of a field of a message. Errors: `Protocol`.
pub fn from_base64(text: &str) -> Result<Vec<u8>, Error> {
    STANDARD.decode(text).map_err(|e| Error::protocol("a field is no base64").caused_by(e))
}

/// Encodes a message.
pub fn encode<T: Serialize>(message: &T) -> Result<String, Error> {
    serde_json::to_string(message).map_err(|e| Error::protocol("encode a message").caused_by(e))
}

/// Decodes a message. Errors: `Protocol`.
pub fn decode<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|e| Error::protocol("a message is not understood").caused_by(e))
}

#[cfg(test)]
mod tests {
    use sterna_doctor::monitor;

    use super::*;
    use crate::job::JobOptions;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let key = Key { file: 7, start: 2 };
        let task = Task {
            file: 7,
            start: 2,
            attempt: 1,
            notes_replaced: false,
            source: "sterna://a/f".to_owned(),
            destination: "sterna://b/g".to_owned(),
            size: Some(1),
            checksum: None,
            options: JobOptions::default(),
            ..Task::default()
        };
        let other = Other::Agent { address: "b:7373".to_owned(), key: "x".to_owned(), grant: "y".to_owned() };
        let order = Order { tasks: vec![task.clone(), task], end: End::Source, other };
        let (listing, prefix) = (Uuid::from_u128(7), "sterna://a/d/".to_owned());
        for message in [
            ToAgent::Run(Box::new(order)),
            ToAgent::Cancel { key },
            ToAgent::Recorded { key },
            ToAgent::List { listing, prefix },
            ToAgent::More { listing },
            ToAgent::StopList { listing },
            ToAgent::Delete { file: 7, location: "sterna://a/f".to_owned(), age_ms: 9 },
        ] {
            let text = encode(&message).unwrap();
            assert_eq!(decode::<ToAgent>(&text).unwrap(), message, "{text}");
        }
        let ended = FromAgent::Ended { key, moved: Moved::default(), failure: None };
        let found = FromAgent::Found { listing, files: vec![("a%0A/b".to_owned(), 5)] };
        let listed = FromAgent::Listed { listing, failure: None };
        let deleted = FromAgent::Deleted { file: 7, failure: None };
        let outcome = Outcome::Failed(monitor::Failure::Unreachable("no".to_owned()));
        let alarm = Alarm::Unreachable { since: 7, reason: "no".to_owned() };
        let (peer, round) = (Fingerprint([3; 32]).to_string(), Round { at: 9, outcome });
        let visit = Visited { peer, round, alarms: vec![alarm] };
        let sent = SentVisit::new(&visit).unwrap();
        assert_eq!(sent.clone().decode().unwrap(), visit);
        let visited = FromAgent::Visited { visit: sent };
        for message in [FromAgent::Progress { transfers: vec![(key, 5)] }, ended, deleted, found, listed, visited] {
            let text = encode(&message).unwrap();
            assert_eq!(decode::<FromAgent>(&text).unwrap(), message, "{text}");
        }
    }

    #[test]
    fn a_visit_is_clipped() {
        let test = monitor::Test {
            direction: sterna_doctor::evidence::Direction::Forward,
            rate_bps: 1,
            cap_bps: 2,
            loss: 0.0,
            limit: sterna_doctor::verdict::Cause::Clean,
            remedy: "ä".repeat(9000),
        };
        let echoes = monitor::Echoes { rtt_us: vec![5; 9000], ..monitor::Echoes::default() };
        let measured = monitor::Measured { echoes: Some(echoes), tests: vec![test; 9], ..monitor::Measured::default() };
        let alarm = Alarm::Refused { since: 1, reason: String::new() };
        let round = Round { at: 1, outcome: Outcome::Measured(measured) };
        let visited = Visited { peer: "x".to_owned(), round, alarms: vec![alarm; 900] };
        assert!(visited.peer().is_err());
        let clipped = visited.clone().clipped();
        assert!(SentVisit::new(&visited).unwrap().decode().is_err(), "its peer is no fingerprint");
        let Outcome::Measured(measured) = clipped.round.outcome else { panic!("measured") };
        assert_eq!((clipped.alarms.len(), measured.tests.len()), (ALARMS_MAX, TESTS_MAX));
        assert_eq!(measured.tests[0].remedy.chars().count(), REMEDY_CHARS_MAX);
        assert_eq!(measured.echoes.unwrap().rtt_us.len(), ECHOES_MAX);
    }

    #[test]
    fn messages_of_a_later_release_are_skipped_and_others_refused() {
        assert_eq!(decode::<ToAgent>(r#"{"type": "prepare", "key": 7}"#).unwrap(), ToAgent::Unknown);
        assert_eq!(decode::<FromAgent>(r#"{"type": "later"}"#).unwrap(), FromAgent::Unknown);
        // The connection stays, whatever a visit of a later release has.
        let later = r#"{"type": "visited", "visit": {"peer": "x", "round": {"at": 1, "later": {}}, "alarms": []}}"#;
        let FromAgent::Visited { visit } = decode::<FromAgent>(later).unwrap() else { panic!("a visit") };
        assert!(visit.decode().is_err());
        for wrong in ["", "{}", "[]", r#"{"type": "ended"}"#, r#"{"type": "progress", "transfers": [[1, 2]]}"#] {
            assert!(decode::<FromAgent>(wrong).is_err(), "{wrong}");
        }
    }
}
