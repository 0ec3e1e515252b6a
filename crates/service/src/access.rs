//! Access: turns credentials into callers, with the levels that the configuration gives them.
//!
//! Decides who is a caller. Refuses to decide what a caller may do with a job: [`Caller::check`] does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use crate::auth::{Fqan, Issuer, ServerTls, Tokens, Trust, agent_key};
use crate::caller::{Caller, Level, Levels, Method};

/// Levels of everybody who was authenticated. Source: the configuration that FTS3 ships.
pub const LEVELS_DEFAULT: Levels = [Level::Own, Level::Vo, Level::None, Level::None, Level::None];

/// Rules.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Levels of everybody who was authenticated.
    pub everybody: Levels,
    /// Levels of names: distinguished names.
    pub by_name: BTreeMap<String, Levels>,
    /// Levels of roles, by VO and the name behind `Role=` of an attribute.
    pub by_role: BTreeMap<(String, String), Levels>,
}

impl Default for Rules {
    fn default() -> Self {
        Self { everybody: LEVELS_DEFAULT, by_name: BTreeMap::new(), by_role: BTreeMap::new() }
    }
}

impl Rules {
    /// Returns the highest level of each operation for a name with attributes.
    fn levels_of(&self, name: &str, attributes: &[Fqan]) -> Levels {
        let mut levels = self.everybody;
        let of_role = |one: &Fqan| self.by_role.get(&(one.vo().to_owned(), one.role()?.to_owned()));
        let granted = self.by_name.get(name).into_iter().chain(attributes.iter().filter_map(of_role));
        for more in granted {
            levels.iter_mut().zip(more).for_each(|(level, more)| *level = (*level).max(*more));
        }
        levels
    }
}

/// Access of the interfaces.
pub struct Access {
    tls: ServerTls,
    trust: Arc<Trust>,
    rules: Rules,
    tokens: Arc<Tokens>,
}

impl Access {
    /// Creates the access of a server with these TLS settings, which verify clients by `trust`, and with these issuers
    /// of tokens.
    pub fn new(tls: ServerTls, trust: Arc<Trust>, rules: Rules, issuers: Vec<Issuer>) -> Self {
        Self { tls, trust, rules, tokens: Tokens::new(issuers) }
    }

    /// Returns the TLS settings of the next connection.
    pub fn tls(&self) -> Arc<ServerConfig> {
        self.tls.current()
    }

    /// Returns the caller of a connection with these client certificates. Without any it is nobody.
    pub fn caller_of_certificate(&self, certificates: &[CertificateDer<'_>]) -> Result<Caller, Error> {
        if certificates.is_empty() {
            return Ok(Caller { name: "anon".to_owned(), ..Caller::default() });
        }
        if let Some(key) = agent_key(certificates) {
            return Ok(Caller { method: Method::Key, name: key.to_string(), ..Caller::default() });
        }
        let identity = self.trust.identify(certificates, SystemTime::now())?;
        let credential = identity.credential_id();
        // A user without attributes is a virtual organisation of one. Source: FTS3.
        let vo = identity.vo().map_or_else(|| credential.clone(), str::to_owned);
        Ok(Caller {
            method: Method::Certificate,
            levels: self.rules.levels_of(&identity.dn, &identity.fqans),
            name: identity.dn,
            credential,
            attributes: identity.fqans,
            vos: vec![vo],
        })
    }

    /// Returns the caller of a bearer token. Its levels are those of its scopes, and no others. Errors: the token is
    /// refused, or the keys of its issuer cannot be read.
    pub async fn caller_of_token(&self, token: &str) -> Result<Caller, Error> {
        let (tokens, token) = (Arc::clone(&self.tokens), token.to_owned());
        let verified = tokio::task::spawn_blocking(move || tokens.verify(&token)).await;
        let ended = |e| {
            let text = "the verification of a token ended early";
            Error::new(ErrorKind::Internal, Scope::Service, Phase::Prepare, text).caused_by(e)
        };
        let identity = verified.map_err(ended)??;
        Ok(Caller {
            method: Method::Token,
            name: identity.name,
            credential: identity.credential,
            attributes: Vec::new(),
            vos: vec![identity.vo],
            levels: identity.levels,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::Operation;

    #[test]
    fn the_highest_level_of_name_and_roles_counts() {
        let mut rules = Rules::default();
        let config = |level| {
            let mut levels = [Level::None; Operation::ALL.len()];
            levels[Operation::Config as usize] = level;
            levels
        };
        rules.by_name.insert("/CN=boss".to_owned(), config(Level::All));
        rules.by_role.insert(("vo".to_owned(), "production".to_owned()), config(Level::Vo));
        let levels = |name: &str, attributes: &[&str]| {
            let attributes: Vec<Fqan> = attributes.iter().map(|text| Fqan::parse(text).unwrap()).collect();
            let levels = rules.levels_of(name, &attributes);
            (levels[Operation::Config as usize], levels[Operation::Transfer as usize])
        };
        assert_eq!(levels("/CN=x", &["/vo/Role=NULL/Capability=NULL"]), (Level::None, Level::Vo));
        assert_eq!(levels("/CN=x", &["/vo/Role=production/Capability=NULL"]), (Level::Vo, Level::Vo));
        assert_eq!(
            levels("/CN=x", &["/other/Role=production/Capability=NULL"]),
            (Level::None, Level::Vo),
            "another VO"
        );
        assert_eq!(levels("/CN=boss", &["/vo/Role=production"]), (Level::All, Level::Vo));
    }
}
