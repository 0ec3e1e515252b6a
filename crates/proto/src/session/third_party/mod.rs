//! Third-party copies: a command asks one agent to run a session with another one.
//!
//! The agent that is asked is the *active* one; it is the client of an ordinary session with the *passive* one. Between the
//! command and the active agent no block travels: the request goes one way, and what happens ([`Told`], [`Snapshot`],
//! [`Conclusion`]) comes back, in the control log and so over any number of lanes that die. [`WatchSession`] is either end of that.

mod told;
mod watch;

pub use told::{Conclusion, Counts, IpBytes, LaneFigures, PeerAddress, Snapshot, Subject, Told};
pub use watch::{WatchEvent, WatchSession, WatchSide};

use std::time::Duration;

use super::hello::{read_contract, write_contract};
use super::message::{
    Overwrite, SOURCES_MAX, read_checks, read_expect, read_flag, read_overwrite, read_wish, write_checks, write_expect,
    write_overwrite, write_wish,
};
use crate::compress::Wish;
use crate::digest::{Checks, Digest};
use crate::error::Error;
use crate::limit::{read_time, write_time};
use crate::location::HostPort;
use crate::plan::{LANES_MAX, Via};
use crate::rate::RateContract;
use crate::wire::{Reader, Writer};

/// Most keys that the passive agent may have. Reason: several hosts behind one name; nobody compares more.
pub const KEYS_MAX: usize = 16;

/// Most files that a request leaves out. Reason: 16 bytes each, beside [`SOURCES_MAX`] sources in one control frame.
pub const SETTLED_TOLD_MAX: usize = 8192;

/// Longest name of a host, in bytes: that of DNS (RFC 1035, section 2.3.4), with a zone behind an IPv6 address.
const HOST_BYTES_MAX: usize = 300;

/// Longest name of a congestion control, in bytes: Linux's TCP_CA_NAME_MAX.
const CONGESTION_BYTES_MAX: usize = 16;

/// The end of the copy that the active agent has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActiveEnd {
    /// It has the sources, and pushes.
    Source,
    /// It has the destination, and pulls.
    Destination,
}

/// The agent that the active one is to reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassiveAgent {
    /// Its name or address, as the person wrote it.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// SHA-256 of its public key: the session ends at an agent with one of these or not at all.
    pub keys: Vec<[u8; 32]>,
}

/// What a command asks the active agent for. Paths are beneath the roots of the agent that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThirdParty {
    /// Which end the agent that is asked has.
    pub active: ActiveEnd,
    /// The other agent.
    pub passive: PassiveAgent,
    /// What to copy, with wildcards.
    pub sources: Vec<Vec<u8>>,
    /// Where to.
    pub destination: Vec<u8>,
    /// What to do when a file exists.
    pub overwrite: Overwrite,
    /// Digests wanted beside BLAKE3.
    pub checks: Checks,
    /// The digest that the one file must have.
    pub expect: Option<Digest>,
    /// Nothing is written.
    pub dry_run: bool,
    /// Whether the sending agent compresses.
    pub compress: Wish,
    /// The transport; `None`: the active agent decides.
    pub via: Option<Via>,
    /// How many lanes; `None`: it decides.
    pub lanes: Option<u32>,
    /// Congestion control of TCP lanes.
    pub congestion: Option<String>,
    /// What is agreed about the rate of the path between the agents.
    pub contract: RateContract,
    /// How long their session outlives its last lane.
    pub linger: Duration,
    /// Files that are left out, since an earlier session of the same copy has settled them: the first 16 bytes of the BLAKE3 of
    /// their paths.
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
            settled: read_many(r, SETTLED_TOLD_MAX, Reader::array)?,
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

/// Reads a count of at most `most` and so many values.
fn read_many<'a, T>(
    r: &mut Reader<'a>,
    most: usize,
    mut read: impl FnMut(&mut Reader<'a>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let count = r.integer_up_to(most as u64)?;
    // Not reserved: a count alone is no reason to.
    (0..count).map(|_| read(r)).collect()
}

fn malformed(what: std::fmt::Arguments<'_>) -> Error {
    Error::protocol(format!("request of a third-party copy from the peer: {what}"))
}
