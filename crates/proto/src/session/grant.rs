//! Grants: a transfer service lets one agent open a session with another one, for some paths in one direction.
//!
//! A client sends its grant in the hello. Encodes grants to bytes and decodes bytes to grants. Refuses to verify a
//! signature and to read a clock: the agent does both.

use super::query::Query;
use super::request::Request;
use super::values::{Overwrite, SOURCES_MAX, read_many, read_overwrite, write_overwrite};
use crate::error::{Error, ErrorKind, Phase, Scope};
use crate::wire::{Reader, Writer};

/// First bytes of what a service signs. Reason: a signature for another purpose is no grant.
const CONTEXT: &[u8] = b"sterna grant 1\0";

/// Direction of the data, as the agent that accepts the session sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantedAccess {
    /// The holder reads the path.
    Read,
    /// The holder writes the path, and reads it. The policy is for a file that exists there.
    Write(Overwrite),
}

/// Content of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// SHA-256 of the public key of the service that signs.
    pub service: [u8; 32],
    /// SHA-256 of the public key of the agent that opens the session.
    pub holder: [u8; 32],
    /// SHA-256 of the public key of the agent that accepts it.
    pub at: [u8; 32],
    /// Direction.
    pub access: GrantedAccess,
    /// Paths beneath the roots of the accepting agent, without wildcards.
    pub paths: Vec<Vec<u8>>,
    /// Time after which no session starts with the grant, in seconds since 1970.
    pub expires: u64,
    /// Random number. Reason: a grant to write starts one session, and each start of a transfer needs another grant.
    pub nonce: [u8; 16],
}

impl Grant {
    /// Returns the bytes that the service signs.
    pub fn signed_bytes(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.raw(CONTEXT);
        self.write(&mut w);
        w.into_bytes()
    }

    /// Checks that the grant is enough for a request. Errors: `Denied`.
    pub fn check(&self, request: &Request) -> Result<(), Error> {
        let refused = |text: &str| {
            let text = format!("the grant of the service {text}");
            Err(Error::new(ErrorKind::Denied, Scope::Service, Phase::Prepare, text))
        };
        let is_named = match request {
            // Without targets, a directory could be meant.
            Request::Push { targets, .. } => self.has(targets.iter().map(|target| &target.path)),
            Request::Pull { sources, numbered, .. } => *numbered && self.has(sources.iter()),
            Request::Query(Query::List { paths, .. }) => self.has(paths.iter()),
            Request::Query(Query::Delete { .. } | Query::Rename { .. }) => false,
            Request::ThirdParty(_) | Request::Probe(_) => false,
        };
        match (request, self.access) {
            _ if !is_named => refused("is for another path or direction"),
            (Request::Push { .. }, GrantedAccess::Read) => refused("is for another path or direction"),
            (Request::Push { overwrite, .. }, GrantedAccess::Write(granted)) if !includes(granted, *overwrite) => {
                refused("does not allow to replace files")
            }
            (Request::Query(Query::List { options, .. }), _) if options.depth != Some(0) => {
                refused("is for the files that it names, and not for what is in a directory")
            }
            _ => Ok(()),
        }
    }

    /// Returns true if there are paths, and all of them are granted.
    fn has<'a>(&self, mut paths: impl ExactSizeIterator<Item = &'a Vec<u8>>) -> bool {
        paths.len() > 0 && paths.all(|path| self.paths.contains(path))
    }

    fn write(&self, w: &mut Writer) {
        w.raw(&self.service);
        w.raw(&self.holder);
        w.raw(&self.at);
        w.byte(match self.access {
            GrantedAccess::Read => 1,
            GrantedAccess::Write(_) => 2,
        });
        if let GrantedAccess::Write(overwrite) = self.access {
            write_overwrite(w, overwrite);
        }
        w.integer(self.paths.len() as u64);
        self.paths.iter().for_each(|path| w.bytes(path));
        w.integer(self.expires);
        w.raw(&self.nonce);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            service: r.array()?,
            holder: r.array()?,
            at: r.array()?,
            access: match r.byte()? {
                1 => GrantedAccess::Read,
                2 => GrantedAccess::Write(read_overwrite(r)?),
                code => return Err(Error::protocol(format!("grant from the peer: unknown access {code}"))),
            },
            paths: read_many(r, SOURCES_MAX, |r| r.bytes().map(<[u8]>::to_vec))?,
            expires: r.integer()?,
            nonce: r.array()?,
        })
    }
}

/// Returns true if a granted policy includes a wanted one: `Always` replaces each file that `IfChanged` replaces.
fn includes(granted: Overwrite, wanted: Overwrite) -> bool {
    granted == wanted || granted == Overwrite::Always || wanted == Overwrite::Never
}

/// Grant with the Ed25519 signature of its service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedGrant {
    /// Content.
    pub grant: Grant,
    /// Signature of [`Grant::signed_bytes`].
    pub signature: [u8; 64],
}

impl SignedGrant {
    /// Encodes the grant.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        self.write(&mut w);
        w.into_bytes()
    }

    /// Decodes a grant. Errors: `Protocol`.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut r = Reader::new(bytes);
        let grant = Self::read(&mut r)?;
        r.skip_fields()?;
        Ok(grant)
    }

    pub(super) fn write(&self, w: &mut Writer) {
        self.grant.write(w);
        w.raw(&self.signature);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self { grant: Grant::read(r)?, signature: r.array()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::CompressionPolicy;
    use crate::digest::Checks;
    use crate::session::query::{DeleteDirectories, ListOptions};
    use crate::session::request::Target;

    fn grant(access: GrantedAccess) -> Grant {
        let paths = vec![b"in/f".to_vec(), b"in/g".to_vec()];
        Grant { service: [1; 32], holder: [2; 32], at: [3; 32], access, paths, expires: 1_800_000_000, nonce: [4; 16] }
    }

    fn paths(paths: &[&[u8]]) -> Vec<Vec<u8>> {
        paths.iter().map(|path| path.to_vec()).collect()
    }

    fn push(destination: &[u8], targets: &[&[u8]]) -> Request {
        push_with(Overwrite::Never, destination, targets)
    }

    fn push_with(overwrite: Overwrite, destination: &[u8], targets: &[&[u8]]) -> Request {
        Request::Push {
            destination: destination.to_vec(),
            several: false,
            overwrite,
            checks: Checks::NONE,
            expect: None,
            dry_run: false,
            targets: paths(targets).into_iter().map(|path| Target { path, expect: None }).collect(),
        }
    }

    fn pull(sources: &[&[u8]], numbered: bool) -> Request {
        let compress = CompressionPolicy::Never;
        Request::Pull { sources: paths(sources), dry_run: false, compress, on_demand: false, numbered }
    }

    fn list(of: &[&[u8]]) -> Request {
        list_to(Some(0), of)
    }

    fn list_to(depth: Option<u32>, of: &[&[u8]]) -> Request {
        Request::Query(Query::List { paths: paths(of), options: Box::new(ListOptions::new(depth)) })
    }

    #[test]
    fn a_grant_is_for_its_paths_in_one_direction() {
        let directories = DeleteDirectories::Empty;
        let delete = |of: &[&[u8]]| Request::Query(Query::Delete { paths: paths(of), directories });
        // Request; allowed to read, and to write.
        for (request, to_read, to_write) in [
            (push(b"", &[b"in/f"]), false, true),
            (push(b"", &[b"in/g", b"in/f"]), false, true),
            (push(b"", &[b"in/f", b"in/h"]), false, false),
            (push(b"in/f", &[]), false, false),
            (push(b"", &[b"in"]), false, false),
            (push(b"", &[b"in/f/"]), false, false),
            (pull(&[b"in/f"], true), true, true),
            (pull(&[b"in/g", b"in/f"], true), true, true),
            (pull(&[b"in/f"], false), false, false),
            (pull(&[b"in/h"], true), false, false),
            (pull(&[b"in/f", b"in/h"], true), false, false),
            (pull(&[], true), false, false),
            (list(&[b"in/f"]), true, true),
            (list(&[b"in/g", b""]), false, false),
            (list(&[b""]), false, false),
            (list_to(Some(1), &[b"in/f"]), false, false),
            (list_to(None, &[b"in/f"]), false, false),
            (delete(&[b"in/f"]), false, false),
        ] {
            assert_eq!(grant(GrantedAccess::Read).check(&request).is_ok(), to_read, "read: {request:?}");
            let write = GrantedAccess::Write(Overwrite::Never);
            assert_eq!(grant(write).check(&request).is_ok(), to_write, "write: {request:?}");
        }
    }

    #[test]
    fn a_grant_replaces_no_more_than_its_policy() {
        use Overwrite::{Always, IfChanged, Never};
        for (granted, allowed) in
            [(Never, [true, false, false]), (IfChanged, [true, true, false]), (Always, [true, true, true])]
        {
            for (wanted, is_allowed) in [Never, IfChanged, Always].into_iter().zip(allowed) {
                let checked = grant(GrantedAccess::Write(granted)).check(&push_with(wanted, b"", &[b"in/f"]));
                assert_eq!(checked.is_ok(), is_allowed, "{granted:?}: {wanted:?}");
            }
        }
    }

    #[test]
    fn every_part_of_a_grant_is_signed() {
        let first = grant(GrantedAccess::Read);
        let mut others = vec![first.clone(); 8];
        others[0].service[0] ^= 1;
        others[1].holder[31] ^= 1;
        others[2].at[7] ^= 1;
        others[3].access = GrantedAccess::Write(Overwrite::Never);
        others[4].paths[1].push(b'x');
        others[5].expires += 1;
        others[6].access = GrantedAccess::Write(Overwrite::Always);
        others[7].nonce[15] ^= 1;
        for (at, other) in others.iter().enumerate() {
            assert_ne!(other.signed_bytes(), first.signed_bytes(), "{other:?}");
            let is_new = others[..at].iter().all(|earlier| earlier.signed_bytes() != other.signed_bytes());
            assert!(is_new, "{other:?}");
        }
        let signed = SignedGrant { grant: others.remove(6), signature: [9; 64] };
        let bytes = signed.encode();
        assert_eq!(SignedGrant::decode(&bytes).unwrap(), signed);
        assert!((0..bytes.len()).all(|length| SignedGrant::decode(&bytes[..length]).is_err()), "cut short");
    }
}
