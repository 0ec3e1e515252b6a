//! The hello: the session that a lane belongs to, the request of the session, and the path of the lane.

use super::SessionId;
use super::message::{Request, read_flag};
use crate::error::Error;
use crate::quantity::BitRate;
use crate::rate::{Manner, RateContract};
use crate::wire::{Reader, Writer};

/// First frame that a client sends on every lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The session. The first hello to arrive starts the session; later ones join it.
    pub session: SessionId,
    /// True if the agent has welcomed a lane of this session before. The agent refuses the lane if it no longer has the
    /// session.
    pub rejoin: bool,
    /// SHA-256 of the public key of another peer that asked this client for the session. The agent grants only the
    /// rights that both of them have. The agent cannot verify this value, but the value can only reduce rights.
    pub on_behalf_of: Option<[u8; 32]>,
    /// The request; the same in every hello of a session.
    pub request: Request,
    /// Path of the lane.
    pub path: PathNumber,
    /// Rate contract of that path, for an agent that sends. The last hello of a path counts.
    pub contract: RateContract,
}

/// Number of a path in a session, from 0 and below [`PATHS_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathNumber(pub u8);

/// Maximum number of paths in a session. Reason: a site has two networks, a ship or a plane four; each path has state
/// at both ends.
pub const PATHS_MAX: u8 = 8;

/// Maximum loss that a contract may call noise: one half (see [`RateContract`]).
const LOSS_CEILING_PPM_MAX: u64 = 500_000;

impl Hello {
    /// Returns a first hello, on the only path, with the default contract.
    pub fn new(session: SessionId, request: Request) -> Self {
        let (path, contract) = (PathNumber::default(), RateContract::default());
        Self { session, rejoin: false, on_behalf_of: None, request, path, contract }
    }

    pub(super) fn write(&self, w: &mut Writer) {
        w.raw(&self.session.0);
        w.byte(u8::from(self.rejoin));
        w.byte(u8::from(self.on_behalf_of.is_some()));
        self.on_behalf_of.iter().for_each(|key| w.raw(key));
        self.request.write(w);
        w.byte(self.path.0);
        write_contract(w, &self.contract);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let session = SessionId(r.array()?);
        let rejoin = read_flag(r)?;
        let on_behalf_of = read_flag(r)?.then(|| r.array()).transpose()?;
        let request = Request::read(r)?;
        let path = match r.byte()? {
            number @ 0..PATHS_MAX => PathNumber(number),
            number => {
                return Err(Error::protocol(format!("hello from the peer: path {number}, of at most {PATHS_MAX}")));
            }
        };
        Ok(Self { session, rejoin, on_behalf_of, request, path, contract: read_contract(r)? })
    }
}

/// Writes a rate contract without `expected_rtt`, which stays local.
pub(super) fn write_contract(w: &mut Writer, contract: &RateContract) {
    let RateContract { ceiling, minimum, target, remembered, loss_ceiling_ppm, manner, expected_rtt: _ } = *contract;
    for rate in [ceiling, minimum, target, remembered] {
        w.integer(rate.map_or(0, |rate| rate.0));
    }
    w.integer(u64::from(loss_ceiling_ppm));
    w.byte(u8::from(manner == Manner::Polite));
}

/// Reads a rate contract; `expected_rtt` is `None`.
pub(super) fn read_contract(r: &mut Reader<'_>) -> Result<RateContract, Error> {
    let mut rate = || Ok::<_, Error>(Some(BitRate(r.integer()?)).filter(|rate| rate.0 > 0));
    let (ceiling, minimum, target, remembered) = (rate()?, rate()?, rate()?, rate()?);
    let loss_ceiling_ppm = r.integer_up_to(LOSS_CEILING_PPM_MAX)? as u32;
    let manner = if read_flag(r)? { Manner::Polite } else { Manner::Fair };
    let expected_rtt = None;
    Ok(RateContract { ceiling, minimum, target, remembered, loss_ceiling_ppm, manner, expected_rtt })
}
