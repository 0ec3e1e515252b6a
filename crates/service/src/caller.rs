//! Callers of the interfaces: who they are, and what they may do.
//!
//! Decides by operation and level. Refuses to authenticate: that is done before.

use sterna_proto::{Error, ErrorKind, Phase, Scope};

use crate::auth::Fqan;
use crate::job::Owner;

/// Operation that is allowed or refused. Source of the names: FTS3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Delegating credentials.
    Deleg,
    /// Jobs.
    Transfer,
    /// Limits, shares, links, bans and the audit log.
    Config,
    /// Names at storages.
    DataManagement,
    /// Everything else that an administrator does.
    Admin,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 5] = [Self::Deleg, Self::Transfer, Self::Config, Self::DataManagement, Self::Admin];

    /// Returns the name in configuration and replies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deleg => "deleg",
            Self::Transfer => "transfer",
            Self::Config => "config",
            Self::DataManagement => "datamanagement",
            Self::Admin => "admin",
        }
    }

    /// Returns the operation of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.name() == name)
    }
}

/// Whose resources an operation may touch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Nobody's.
    #[default]
    None,
    /// The caller's own.
    Own,
    /// Those of the caller's virtual organisation.
    Vo,
    /// Everybody's.
    All,
}

impl Level {
    /// Returns the level of this name in a configuration.
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Self::None),
            "own" | "" => Some(Self::Own),
            "vo" => Some(Self::Vo),
            "all" => Some(Self::All),
            _ => None,
        }
    }

    /// Returns the name in replies of FTS3, which calls the own level by an empty name.
    pub fn fts_name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Own => Some(""),
            Self::Vo => Some("vo"),
            Self::All => Some("all"),
        }
    }
}

/// Levels of a caller, in the order of [`Operation::ALL`].
pub type Levels = [Level; Operation::ALL.len()];

/// How a caller was authenticated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Not at all.
    #[default]
    None,
    /// By a client certificate, or a proxy of one.
    Certificate,
    /// By a bearer token.
    Token,
    /// By the key of an agent; its name is the fingerprint.
    Key,
}

/// Caller.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Caller {
    /// Method.
    pub method: Method,
    /// Distinguished name, or issuer and subject of a token.
    pub name: String,
    /// Credential: 16 hexadecimal digits; empty for a caller that was not authenticated.
    pub credential: String,
    /// Attributes that VOMS servers signed.
    pub attributes: Vec<Fqan>,
    /// Virtual organisations; the first one counts for jobs and bans.
    pub vos: Vec<String>,
    /// Levels of the operations, in the order of [`Operation::ALL`].
    pub levels: Levels,
}

impl Caller {
    /// Returns the level of an operation.
    pub fn level(&self, operation: Operation) -> Level {
        self.levels[operation as usize]
    }

    /// Returns true for a user who was authenticated.
    pub fn is_user(&self) -> bool {
        matches!(self.method, Method::Certificate | Method::Token)
    }

    /// Returns the virtual organisation that counts.
    pub fn vo(&self) -> &str {
        self.vos.first().map_or("", String::as_str)
    }

    /// Returns the owner of a job that this caller submits.
    pub fn owner(&self) -> Owner {
        Owner { credential: self.credential.clone(), name: self.name.clone(), vo: self.vo().to_owned() }
    }

    /// Checks that the caller may do an operation on resources of an owner. Errors: `Denied`.
    pub fn check(&self, operation: Operation, owner: &Owner) -> Result<(), Error> {
        let is_allowed = match self.level(operation) {
            Level::None => false,
            Level::Own => self.owns(owner),
            Level::Vo => self.owns(owner) || self.vos.contains(&owner.vo),
            Level::All => true,
        };
        if is_allowed { Ok(()) } else { Err(self.denied(operation)) }
    }

    /// Checks that the caller may do an operation at this level at least. Errors: `Denied`.
    pub fn check_level(&self, operation: Operation, least: Level) -> Result<(), Error> {
        if self.level(operation) >= least { Ok(()) } else { Err(self.denied(operation)) }
    }

    fn owns(&self, owner: &Owner) -> bool {
        !self.credential.is_empty() && self.credential == owner.credential
    }

    fn denied(&self, operation: Operation) -> Error {
        let text = match self.method {
            Method::None => "Not enough permissions: no certificate and no token was given".to_owned(),
            _ => format!("Not enough permissions: {} may not do {} here", self.name, operation.name()),
        };
        Error::new(ErrorKind::Denied, Scope::Client, Phase::Prepare, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(credential: &str, vo: &str) -> Owner {
        Owner { credential: credential.to_owned(), name: credential.to_owned(), vo: vo.to_owned() }
    }

    /// Every level against jobs of the caller, of its VO and of another VO.
    #[test]
    fn a_level_reaches_its_own_its_vo_or_all() {
        for (level, own, of_vo, of_others) in [
            (Level::None, false, false, false),
            (Level::Own, true, false, false),
            (Level::Vo, true, true, false),
            (Level::All, true, true, true),
        ] {
            for operation in Operation::ALL {
                let mut caller = Caller { credential: "me".to_owned(), ..Caller::default() };
                caller.vos = vec!["a".to_owned(), "b".to_owned()];
                caller.levels[operation as usize] = level;
                let may = |owner: &Owner| caller.check(operation, owner).is_ok();
                assert_eq!(may(&owner("me", "c")), own, "{level:?}, own");
                assert_eq!(may(&owner("other", "b")), of_vo, "{level:?}, of the VO");
                assert_eq!(may(&owner("other", "c")), of_others, "{level:?}, of others");
                for other in Operation::ALL.into_iter().filter(|other| *other != operation) {
                    assert!(caller.check(other, &owner("me", "a")).is_err(), "{other:?} was not granted");
                }
            }
        }
    }

    #[test]
    fn nobody_owns_jobs_without_a_credential() {
        let caller = Caller { levels: [Level::Own; Operation::ALL.len()], ..Caller::default() };
        assert!(caller.check(Operation::Transfer, &owner("", "")).is_err());
    }
}
