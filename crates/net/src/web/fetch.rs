//! Reads of a file for a measurement: the bytes are dropped, and the sockets can be observed.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use sterna_proto::Error;
use sterna_proto::web::WebLocation;

use super::WebOptions;
use super::exchange::{Ask, Body, Exchange, Fault};
use crate::observer::{Observer, SessionEvent};

/// Time for which a server may be silent.
const PATIENCE: Duration = Duration::from_secs(5);

/// File on a web server, as its server describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Location after all redirects.
    pub(crate) at: WebLocation,
    /// Size of the file; `None`: not announced.
    pub(crate) size: Option<u64>,
    /// The server sends ranges of the file.
    pub(crate) takes_ranges: bool,
    /// Connections end at a proxy.
    pub(crate) is_proxied: bool,
}

/// Client for one file.
pub(crate) struct Fetcher {
    exchange: Exchange,
    at: WebLocation,
}

/// Observer of a measurement, which shows no messages.
struct Nobody;

impl Observer for Nobody {
    fn session_event(&self, _event: SessionEvent) {}
}

impl Fetcher {
    /// Creates the client, without credentials. `connections`: most requests at once. Errors: `Usage`: a proxy of the
    /// environment that cannot be used.
    pub(crate) fn new(at: &WebLocation, connections: u32) -> Result<Self, Error> {
        let options = WebOptions {
            token: None,
            uses_netrc: false,
            hosts: None,
            authority: None,
            connections,
            patience: PATIENCE,
            // A page is as good as a file here.
            is_expected: true,
        };
        let exchange = Exchange::new(&options, std::slice::from_ref(at), Arc::new(Nobody))?;
        Ok(Self { exchange, at: at.clone() })
    }

    /// Asks for the first byte, and follows redirects. Errors: the server refuses the file, or cannot be reached.
    pub(crate) fn find(&self) -> Result<Found, Error> {
        let ask = Ask { named: &self.at, at: &self.at, range: Some((0, Some(1))), version: None, lane: None };
        let answer = self.exchange.get(&ask).map_err(|fault: Fault| fault.error)?;
        let takes_ranges = answer.reply.status == 206;
        let found =
            Found { at: answer.at, size: answer.reply.size, takes_ranges, is_proxied: self.exchange.is_proxied() };
        if takes_ranges {
            answer.body.read_past();
        }
        Ok(found)
    }

    /// Requests the file from an offset on; `None`: the whole file. Errors: the server refuses, or cannot be reached.
    pub(crate) fn open(&self, from: Option<u64>) -> Result<FetchBody, Error> {
        let range = from.map(|from| (from, None));
        let ask = Ask { named: &self.at, at: &self.at, range, version: None, lane: None };
        match self.exchange.get(&ask) {
            Ok(answer) => Ok(FetchBody(answer.body)),
            Err(fault) => Err(fault.error),
        }
    }

    /// Returns the sockets of the open connections.
    pub(crate) fn sockets(&self) -> Vec<Arc<TcpStream>> {
        self.exchange.sockets()
    }

    /// Ends all reads.
    pub(crate) fn stop(&self) {
        self.exchange.stop();
    }
}

/// Body of an answer.
pub(crate) struct FetchBody(Body);

impl FetchBody {
    /// Reads some bytes; 0: the body has ended. Errors: the body was cut.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}
