//! The hello: the capabilities of an end, the session that a lane belongs to, its request, and the path of the lane.

use super::SessionId;
use super::grant::SignedGrant;
use super::request::Request;
use crate::error::Error;
use crate::rate::RateContract;
use crate::session::values::{read_contract, read_flag, write_contract};
use crate::wire::{Reader, Writer};

/// Versions of the protocol and features of one end. A client sends them at the start of its hello, and an agent in its
/// welcome. The encoding never changes, because a reader of any version reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Lowest version that the end speaks. A client uses this version until it has received the welcome.
    pub lowest: u64,
    /// Highest version that the end speaks.
    pub highest: u64,
    /// Features that the end has.
    pub features: Features,
}

/// Set of features, one bit each. Bits that this version does not know are kept and have no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// Requests of kind *query*, and their answers.
    pub const QUERIES: Self = Self(1);
    /// Requests of kind *probe*.
    pub const PROBES: Self = Self(2);
    /// [`super::Message::Contract`]: the rate of a path changes in mid-session.
    pub const CONTRACTS: Self = Self(4);

    /// Returns true if all features of `other` are in this set.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Version and features that both ends of a session use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Highest version that both ends speak.
    pub version: u64,
    /// Features that both ends have.
    pub features: Features,
}

impl Capabilities {
    /// Capabilities of this build.
    pub const OURS: Self = Self {
        lowest: 1,
        highest: 1,
        features: Features(Features::QUERIES.0 | Features::PROBES.0 | Features::CONTRACTS.0),
    };

    /// Returns the version and the features that ends with `self` and `other` use; `None` without a common version.
    pub fn agree(&self, other: &Self) -> Option<Agreed> {
        let version = self.highest.min(other.highest);
        let features = Features(self.features.0 & other.features.0);
        (version >= self.lowest.max(other.lowest)).then_some(Agreed { version, features })
    }

    pub(super) fn write(&self, w: &mut Writer) {
        w.integer(self.lowest);
        w.integer(self.highest);
        w.integer(self.features.0);
    }

    /// Reads the capabilities of the peer. `roles`: that of the peer and ours, for the text of an error.
    ///
    /// Errors: the ends have no common version. The text names both ranges and the end to update.
    pub(super) fn read(r: &mut Reader<'_>, roles: [&str; 2]) -> Result<Self, Error> {
        let (lowest, highest) = (r.integer()?, r.integer()?);
        if lowest > highest {
            return Err(Error::protocol(format!("versions from the peer: {lowest} to {highest} is no range")));
        }
        // A peer of another version may encode the rest in another way.
        let (peer, ours) = (Self { lowest, highest, features: Features::default() }, Self::OURS);
        if ours.agree(&peer).is_none() {
            let [them, us] = roles;
            let older = if highest < ours.lowest { them } else { us };
            return Err(Error::protocol(format!(
                "the {them} has {} of the protocol, the {us} has {}: update sterna at the {older}",
                peer.versions(),
                ours.versions()
            )));
        }
        Ok(Self { features: Features(r.integer()?), ..peer })
    }

    fn versions(&self) -> String {
        match self.lowest == self.highest {
            true => format!("version {}", self.lowest),
            false => format!("versions {} to {}", self.lowest, self.highest),
        }
    }
}

/// First frame that a client sends on every lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Capabilities of the client.
    pub capabilities: Capabilities,
    /// The session. The first hello to arrive starts the session; later ones join it.
    pub session: SessionId,
    /// True if the agent has welcomed a lane of this session before. The agent refuses the lane if it no longer has the
    /// session.
    pub rejoin: bool,
    /// SHA-256 of the public key of another peer that asked this client for the session. The agent grants only the
    /// rights that both of them have. The agent cannot verify this value, but the value can only reduce rights.
    pub on_behalf_of: Option<[u8; 32]>,
    /// Grant of a transfer service, on which the rights of the client rest. An agent of an earlier release ignores it.
    pub grant: Option<Box<SignedGrant>>,
    /// The request; the same in every hello of a session.
    pub request: Request,
    /// Path of the lane.
    pub path: PathNumber,
    /// Rate contract of that path, for an agent that sends. The last hello of a path counts.
    pub contract: RateContract,
}

/// Field of a hello: the grant of a transfer service.
const GRANT: u8 = 128;

/// Number of a path in a session, from 0 and below [`PATHS_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathNumber(pub u8);

/// Maximum number of paths in a session. Reason: a site has two networks, a ship or a plane four; each path has state
/// at both ends.
pub const PATHS_MAX: u8 = 8;

impl PathNumber {
    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        match r.byte()? {
            number @ 0..PATHS_MAX => Ok(Self(number)),
            number => Err(Error::protocol(format!("path {number} from the peer: the highest is {}", PATHS_MAX - 1))),
        }
    }
}

impl Hello {
    /// Returns a first hello of this build, on the only path, with the default contract.
    pub fn new(session: SessionId, request: Request) -> Self {
        let (path, contract) = (PathNumber::default(), RateContract::default());
        let capabilities = Capabilities::OURS;
        Self { capabilities, session, rejoin: false, on_behalf_of: None, grant: None, request, path, contract }
    }

    pub(super) fn write(&self, w: &mut Writer) {
        self.capabilities.write(w);
        w.raw(&self.session.0);
        w.byte(u8::from(self.rejoin));
        w.byte(u8::from(self.on_behalf_of.is_some()));
        self.on_behalf_of.iter().for_each(|key| w.raw(key));
        self.request.write(w);
        w.byte(self.path.0);
        write_contract(w, &self.contract);
        self.grant.iter().for_each(|grant| w.field(GRANT, |w| grant.write(w)));
    }

    /// Reads a hello, up to the end of its frame.
    pub(super) fn read(mut r: Reader<'_>) -> Result<Self, Error> {
        let capabilities = Capabilities::read(&mut r, ["client", "agent"])?;
        let session = SessionId(r.array()?);
        let rejoin = read_flag(&mut r)?;
        let on_behalf_of = read_flag(&mut r)?.then(|| r.array()).transpose()?;
        let request = Request::read(&mut r)?;
        let path = PathNumber::read(&mut r)?;
        let contract = read_contract(&mut r)?;
        let mut grant = None;
        r.fields(|number, value| {
            if number == GRANT {
                grant = Some(Box::new(SignedGrant::read(value)?));
            }
            Ok(number == GRANT)
        })?;
        Ok(Self { capabilities, session, rejoin, on_behalf_of, grant, request, path, contract })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::message::Frame;

    const fn speaks(lowest: u64, highest: u64, features: u64) -> Capabilities {
        Capabilities { lowest, highest, features: Features(features) }
    }

    #[test]
    fn ends_use_the_highest_common_version_and_only_common_features() {
        let agreed = |a: Capabilities, b: Capabilities| {
            assert_eq!(a.agree(&b), b.agree(&a), "both ends decide the same");
            a.agree(&b).map(|agreed| (agreed.version, agreed.features.0))
        };
        assert_eq!(agreed(speaks(1, 1, 0), speaks(1, 1, 0)), Some((1, 0)));
        assert_eq!(agreed(speaks(1, 3, 0b110), speaks(2, 9, 0b011)), Some((3, 0b010)));
        assert_eq!(agreed(speaks(2, 2, 1), speaks(1, 5, 1 << 63 | 1)), Some((2, 1)));
        assert_eq!(agreed(speaks(1, 2, 1), speaks(3, 4, 1)), None);
    }

    #[test]
    fn a_peer_without_a_common_version_reads_both_ranges_and_the_end_to_update() {
        let mut bytes = Frame::Welcome(speaks(7, 9, 0)).encode();
        let text = |bytes: &[u8]| Frame::decode(bytes).unwrap_err().text().to_owned();
        assert_eq!(
            text(&bytes),
            "the agent has versions 7 to 9 of the protocol, the client has version 1: update sterna at the client"
        );
        // The rest may be encoded in another way.
        bytes.truncate(3);
        bytes[0] = 1;
        assert_eq!(
            text(&bytes),
            "the client has versions 7 to 9 of the protocol, the agent has version 1: update sterna at the agent"
        );
        let older = Frame::Welcome(speaks(0, 0, 0)).encode();
        assert!(text(&older).ends_with("update sterna at the agent"));
        assert!(text(&Frame::Welcome(speaks(2, 1, 0)).encode()).contains("no range"));
    }

    #[test]
    fn a_newer_peer_with_a_common_version_is_read() {
        let newer = speaks(0, 9, u64::MAX);
        let mut bytes = Frame::Welcome(newer).encode();
        bytes.extend([200, 2, b'h', b'i']);
        let Some(Frame::Welcome(read)) = Frame::decode(&bytes).unwrap() else { panic!("it is a welcome") };
        assert_eq!((read, Capabilities::OURS.agree(&read).unwrap().version), (newer, 1));
    }
}
