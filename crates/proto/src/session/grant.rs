//! Grants: a transfer service lets one agent open a session with another one, for one path in one direction.
//!
//! A client sends its grant in the hello. Encodes grants to bytes and decodes bytes to grants. Refuses to verify a
//! signature and to read a clock: the agent does both.

use super::query::{DeleteDirectories, Query};
use super::request::Request;
use crate::error::Error;
use crate::wire::{Reader, Writer};

/// First bytes of what a service signs. Reason: a signature for another purpose is no grant.
const CONTEXT: &[u8] = b"sterna grant 1\0";

/// Direction of the data, as the agent that accepts the session sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantedAccess {
    /// The holder reads the path.
    Read,
    /// The holder writes the path, and reads it.
    Write,
    /// The holder reads the path, and deletes it.
    ReadDelete,
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
    /// Path beneath the roots of the accepting agent, without wildcards.
    pub path: Vec<u8>,
    /// Time after which no session starts with the grant, in seconds since 1970.
    pub expires: u64,
}

impl Grant {
    /// Returns the bytes that the service signs.
    pub fn signed_bytes(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.raw(CONTEXT);
        self.write(&mut w);
        w.into_bytes()
    }

    /// Returns true if the grant is enough for a request.
    pub fn allows(&self, request: &Request) -> bool {
        match request {
            Request::Push { destination, several, .. } => {
                self.access == GrantedAccess::Write && !several && *destination == self.path
            }
            Request::Pull { sources, .. } => self.is_only(sources),
            Request::Query(Query::List { paths, .. }) => self.is_only(paths),
            Request::Query(Query::Delete { paths, directories }) => {
                self.access == GrantedAccess::ReadDelete
                    && *directories == DeleteDirectories::Empty
                    && self.is_only(paths)
            }
            Request::Query(Query::Rename { .. }) => false,
            Request::ThirdParty(_) | Request::Probe(_) => false,
        }
    }

    fn is_only(&self, paths: &[Vec<u8>]) -> bool {
        matches!(paths, [path] if *path == self.path)
    }

    fn write(&self, w: &mut Writer) {
        w.raw(&self.service);
        w.raw(&self.holder);
        w.raw(&self.at);
        w.byte(match self.access {
            GrantedAccess::Read => 1,
            GrantedAccess::Write => 2,
            GrantedAccess::ReadDelete => 3,
        });
        w.bytes(&self.path);
        w.integer(self.expires);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            service: r.array()?,
            holder: r.array()?,
            at: r.array()?,
            access: match r.byte()? {
                1 => GrantedAccess::Read,
                2 => GrantedAccess::Write,
                3 => GrantedAccess::ReadDelete,
                code => return Err(Error::protocol(format!("grant from the peer: unknown access {code}"))),
            },
            path: r.bytes()?.to_vec(),
            expires: r.integer()?,
        })
    }
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
    use crate::session::query::ListOptions;
    use crate::session::values::Overwrite;

    fn grant(access: GrantedAccess) -> Grant {
        Grant { service: [1; 32], holder: [2; 32], at: [3; 32], access, path: b"in/f".to_vec(), expires: 1_800_000_000 }
    }

    fn push(destination: &[u8], several: bool) -> Request {
        let (overwrite, checks) = (Overwrite::Never, Checks::NONE);
        Request::Push { destination: destination.to_vec(), several, overwrite, checks, expect: None, dry_run: false }
    }

    fn pull(sources: &[&[u8]]) -> Request {
        let sources = sources.iter().map(|source| source.to_vec()).collect();
        Request::Pull { sources, dry_run: false, compress: CompressionPolicy::Never, on_demand: false }
    }

    fn list(path: &[u8]) -> Request {
        let options = Box::new(ListOptions::new(Some(0)));
        Request::Query(Query::List { paths: vec![path.to_vec()], options })
    }

    #[test]
    fn a_grant_is_for_one_path_in_one_direction() {
        let delete =
            |path: &[u8], directories| Request::Query(Query::Delete { paths: vec![path.to_vec()], directories });
        // Request; allowed to read, to write, and to read and delete.
        for (request, to_read, to_write, to_delete) in [
            (push(b"in/f", false), false, true, false),
            (push(b"in/f", true), false, false, false),
            (push(b"in", false), false, false, false),
            (push(b"in/f/", false), false, false, false),
            (pull(&[b"in/f"]), true, true, true),
            (pull(&[b"in/g"]), false, false, false),
            (pull(&[b"in/f", b"in/f"]), false, false, false),
            (pull(&[]), false, false, false),
            (list(b"in/f"), true, true, true),
            (list(b""), false, false, false),
            (delete(b"in/f", DeleteDirectories::Empty), false, false, true),
            (delete(b"in", DeleteDirectories::Empty), false, false, false),
            (delete(b"in/f", DeleteDirectories::WithContents), false, false, false),
        ] {
            assert_eq!(grant(GrantedAccess::Read).allows(&request), to_read, "read: {request:?}");
            assert_eq!(grant(GrantedAccess::Write).allows(&request), to_write, "write: {request:?}");
            assert_eq!(grant(GrantedAccess::ReadDelete).allows(&request), to_delete, "delete: {request:?}");
        }
    }

    #[test]
    fn every_part_of_a_grant_is_signed() {
        let first = grant(GrantedAccess::Read);
        let mut others = vec![first.clone(); 6];
        others[0].service[0] ^= 1;
        others[1].holder[31] ^= 1;
        others[2].at[7] ^= 1;
        others[3].access = GrantedAccess::Write;
        others[4].path.push(b'x');
        others[5].expires += 1;
        for other in others {
            assert_ne!(other.signed_bytes(), first.signed_bytes(), "{other:?}");
        }
        let signed = SignedGrant { grant: first, signature: [9; 64] };
        let bytes = signed.encode();
        assert_eq!(SignedGrant::decode(&bytes).unwrap(), signed);
        assert!((0..bytes.len()).all(|length| SignedGrant::decode(&bytes[..length]).is_err()), "cut short");
    }
}
