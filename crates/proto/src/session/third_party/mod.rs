//! Third-party copies: a client (the *command*) asks one agent to run a session with another agent.
//!
//! The agent that is asked is the *active* one. It is the client of an ordinary session with the *passive* one. No
//! block travels between the command and the active agent. The request goes to the active agent; events
//! ([`AgentReport`]), progress ([`Snapshot`]) and the result ([`Conclusion`]) come back. Events and result travel in
//! the control log, so they survive the loss of lanes. [`ControlSession`] is either end of this exchange.
//!
//! Refuses to open a connection, or trust a count or a length that the peer sent. Bytes and time come in as arguments.

mod control;
mod report;

pub use control::{ControlEvent, ControlSession, ControlSide};
pub use report::{AgentReport, Conclusion, IpBytes, LaneFigures, PeerAddress, Snapshot, Subject};

use crate::session::values::{
    Overwrite, SOURCES_MAX, read_checks, read_contract, read_expect, read_flag, read_many, read_overwrite, read_wish,
    write_checks, write_contract, write_expect, write_overwrite, write_wish,
};
use std::time::Duration;

use crate::compress::CompressionPolicy;
use crate::digest::{Checks, Digest};
use crate::error::Error;
use crate::limit::{read_time, write_time};
use crate::location::HostPort;
use crate::plan::{LANES_MAX, Via};
use crate::rate::RateContract;
use crate::wire::{Reader, Writer};

/// Maximum number of keys of the passive agent. Reason: one name may stand for several hosts; users compare no more
/// keys.
pub const KEYS_MAX: usize = 16;

/// Maximum number of files that a request excludes. Reason: 16 bytes each, in one control frame together with
/// [`SOURCES_MAX`] sources.
pub const SETTLED_REPORTED_MAX: usize = 8192;

/// Maximum length of a host name, in bytes: a DNS name (RFC 1035, section 2.3.4), or an IPv6 address with a zone.
const HOST_BYTES_MAX: usize = 300;

/// Size limit of a congestion-control name, in bytes, including a terminating NUL: Linux's TCP_CA_NAME_MAX.
const CONGESTION_BYTES_MAX: usize = 16;

/// End of the copy at the active agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActiveEnd {
    /// The active agent has the sources and pushes.
    Source,
    /// The active agent has the destination and pulls.
    Destination,
}

/// The agent that the active agent connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassiveAgent {
    /// Name or address of the agent, as the user wrote it.
    pub host: String,
    /// Port of the agent.
    pub port: u16,
    /// SHA-256 of its accepted public keys. The session is only opened with an agent that has one of them.
    pub keys: Vec<[u8; 32]>,
}

/// Request of a command to the active agent. Paths are beneath the roots of the agent that has the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThirdParty {
    /// End of the copy at the agent that is asked.
    pub active: ActiveEnd,
    /// The other agent.
    pub passive: PassiveAgent,
    /// Paths of the sources, with wildcards.
    pub sources: Vec<Vec<u8>>,
    /// Destination path.
    pub destination: Vec<u8>,
    /// Policy for files that exist.
    pub overwrite: Overwrite,
    /// Digests to compute in addition to BLAKE3.
    pub checks: Checks,
    /// Digest that the single file must have.
    pub expect: Option<Digest>,
    /// True if nothing is written.
    pub dry_run: bool,
    /// Compression policy of the sending agent.
    pub compress: CompressionPolicy,
    /// Transport; `None`: the active agent decides.
    pub via: Option<Via>,
    /// Number of lanes; `None`: the active agent decides.
    pub lanes: Option<u32>,
    /// Congestion control of TCP lanes.
    pub congestion: Option<String>,
    /// Rate contract of the path between the agents.
    pub contract: RateContract,
    /// Time that the agents' session outlives its last lane.
    pub linger: Duration,
    /// Files to exclude because an earlier session of the same copy has settled them: the first 16 bytes of the BLAKE3
    /// of each path.
    pub settled: Vec<[u8; 16]>,
}

impl ThirdParty {
    pub(super) fn write(&self, w: &mut Writer) {
        w.byte(match self.active {
            ActiveEnd::Source => 1,
            ActiveEnd::Destination => 2,
        });
        let PassiveAgent { host, port, keys } = &self.passive;
        w.bytes(host.as_bytes());
        w.integer(u64::from(*port));
        w.integer(keys.len() as u64);
        keys.iter().for_each(|key| w.raw(key));
        w.integer(self.sources.len() as u64);
        self.sources.iter().for_each(|source| w.bytes(source));
        w.bytes(&self.destination);
        write_overwrite(w, self.overwrite);
        write_checks(w, self.checks);
        write_expect(w, self.expect);
        w.byte(u8::from(self.dry_run));
        write_wish(w, self.compress);
        w.byte(match self.via {
            None => 0,
            Some(Via::Tcp) => 1,
            Some(Via::Quic) => 2,
        });
        w.integer(u64::from(self.lanes.unwrap_or(0)));
        w.bytes(self.congestion.as_deref().unwrap_or_default().as_bytes());
        write_contract(w, &self.contract);
        write_time(w, self.linger);
        w.integer(self.settled.len() as u64);
        self.settled.iter().for_each(|path| w.raw(path));
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            active: match r.byte()? {
                1 => ActiveEnd::Source,
                2 => ActiveEnd::Destination,
                code => return Err(malformed(format_args!("end {code}"))),
            },
            passive: read_passive(r)?,
            sources: read_many(r, SOURCES_MAX, |r| r.bytes().map(<[u8]>::to_vec))?,
            destination: r.bytes()?.to_vec(),
            overwrite: read_overwrite(r)?,
            checks: read_checks(r)?,
            expect: read_expect(r)?,
            dry_run: read_flag(r)?,
            compress: read_wish(r)?,
            via: match r.byte()? {
                0 => None,
                1 => Some(Via::Tcp),
                2 => Some(Via::Quic),
                code => return Err(malformed(format_args!("transport {code}"))),
            },
            lanes: Some(r.integer_up_to(u64::from(LANES_MAX))? as u32).filter(|lanes| *lanes > 0),
            congestion: read_congestion(r)?,
            contract: read_contract(r)?,
            linger: read_time(r)?,
            settled: read_many(r, SETTLED_REPORTED_MAX, Reader::array)?,
        })
    }
}

fn read_passive(r: &mut Reader<'_>) -> Result<PassiveAgent, Error> {
    let host = r.bytes()?;
    let host = std::str::from_utf8(host).ok().filter(|host| host.len() <= HOST_BYTES_MAX);
    let host = host.filter(|host| HostPort::is_host(host)).ok_or_else(|| malformed(format_args!("host")))?;
    let port = r.integer_up_to(u64::from(u16::MAX))? as u16;
    let keys: Vec<_> = read_many(r, KEYS_MAX, Reader::array)?;
    if port == 0 || keys.is_empty() {
        return Err(malformed(format_args!("an agent without port or key")));
    }
    Ok(PassiveAgent { host: host.to_owned(), port, keys })
}

fn read_congestion(r: &mut Reader<'_>) -> Result<Option<String>, Error> {
    let name = r.bytes()?;
    match std::str::from_utf8(name) {
        Ok("") => Ok(None),
        Ok(text) if name.len() < CONGESTION_BYTES_MAX && text.bytes().all(|b| b.is_ascii_graphic()) => {
            Ok(Some(text.to_owned()))
        }
        _ => Err(malformed(format_args!("name of a congestion control"))),
    }
}

fn malformed(what: std::fmt::Arguments<'_>) -> Error {
    Error::protocol(format!("request of a third-party copy from the peer: {what}"))
}
