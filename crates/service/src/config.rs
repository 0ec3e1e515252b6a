//! Configuration file of the service, in TOML: levels of callers and issuers of tokens.
//!
//! Every key that is not known is an error: a misspelt rule must not be ignored. Refuses to hold secrets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use sterna_sched::obstacle::PATIENCE;

use crate::access::{LEVELS_DEFAULT, Rules};
use crate::auth::Issuer;
use crate::caller::{Level, Levels, Operation};
use crate::web::AddressRules;

/// Maximum bytes of the file. Reason: thousands of rules.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Levels by operation: `{ transfer = "vo", config = "all" }`.
type LevelTable = BTreeMap<String, String>;

/// Configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Levels of everybody who was authenticated by a certificate; without it as FTS3 ships them.
    everybody: Option<LevelTable>,
    /// Levels of users and roles.
    #[serde(rename = "grant")]
    grants: Vec<Grant>,
    /// Issuers of tokens.
    #[serde(rename = "issuer")]
    issuers: Vec<IssuerConfig>,
    /// Storages.
    storages: StoragesConfig,
    /// Replicas.
    replicas: ReplicasConfig,
}

/// Files with several sources.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ReplicasConfig {
    /// Time in seconds after which files leave a source that is banned, has no agent, or refuses transfers.
    patience_s: Option<u32>,
}

/// Addresses that storages may have besides public ones, and credentials for them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct StoragesConfig {
    /// Addresses of this host.
    loopback: Option<bool>,
    /// Addresses of private networks.
    private: Option<bool>,
    /// Clients are asked for proxies, which storages get.
    delegation: bool,
}

/// Levels of a user or a role.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Grant {
    /// Distinguished name, or `ISSUER SUBJECT` of a token.
    user: Option<String>,
    /// Name behind `Role=` of an attribute.
    role: Option<String>,
    /// Virtual organisation of the role: every other one may have a role of this name.
    vo: Option<String>,
    levels: LevelTable,
}

/// Issuer of tokens.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct IssuerConfig {
    /// `iss` of its tokens. Its keys are found by `URL/.well-known/openid-configuration`.
    url: String,
    /// Audiences, of which a token must have one.
    audiences: Vec<String>,
    /// Virtual organisation of its tokens.
    vo: String,
    /// Levels by scope. A token has the highest level of its scopes; one without any of them may do nothing.
    scopes: BTreeMap<String, LevelTable>,
    /// File with the keys (JSON Web Key Set), instead of those at the URL.
    keys: Option<PathBuf>,
    /// File with authorities that are accepted for the URL, in PEM, in addition to those of this host.
    authority: Option<PathBuf>,
}

fn usage(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
}

/// Returns the levels of a table. Errors: an operation or a level does not exist.
fn levels(table: &LevelTable) -> Result<Levels, Error> {
    let mut levels = [Level::None; Operation::ALL.len()];
    for (operation, level) in table {
        let known = || Operation::ALL.map(Operation::name).join(", ");
        let place = Operation::by_name(operation)
            .ok_or_else(|| usage(format!("there is no operation {operation}: expected one of {}", known())))?;
        levels[place as usize] = Level::by_name(level)
            .ok_or_else(|| usage(format!("there is no level {level}: expected none, own, vo or all")))?;
    }
    Ok(levels)
}

impl Config {
    /// Reads a file. Errors: it cannot be read, is no TOML, or has a key or a value that is not known.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let tried = || format!("read the configuration {}", path.display());
        let failed = |e: std::io::Error| Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, tried()).caused_by(e);
        let bytes = std::fs::metadata(path).map_err(failed)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(usage(format!("{}: {bytes} bytes, the maximum is {FILE_BYTES_MAX}", tried())));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        Self::parse(&text).map_err(|e| usage(format!("{}: {}", tried(), e.text())))
    }

    fn parse(text: &str) -> Result<Self, Error> {
        let config: Self = toml::from_str(text).map_err(|e| usage(e.to_string()))?;
        config.rules()?;
        config.issuers()?;
        for issuer in &config.issuers {
            if issuer.audiences.is_empty() {
                let text =
                    format!("the issuer {} needs audiences: tokens for other services must not count", issuer.url);
                return Err(usage(text));
            }
        }
        Ok(config)
    }

    /// Returns the time after which files leave a source with an obstacle.
    pub fn patience(&self) -> Duration {
        self.replicas.patience_s.map_or(PATIENCE, |seconds| Duration::from_secs(u64::from(seconds)))
    }

    /// Returns the issuers of tokens. Errors: a level or an operation does not exist.
    pub fn issuers(&self) -> Result<Vec<Issuer>, Error> {
        let issuer = |issuer: &IssuerConfig| {
            let scope = |(scope, table): (&String, &LevelTable)| Ok((scope.clone(), levels(table)?));
            Ok(Issuer {
                url: issuer.url.clone(),
                audiences: issuer.audiences.clone(),
                vo: issuer.vo.clone(),
                scopes: issuer.scopes.iter().map(scope).collect::<Result<_, Error>>()?,
                keys: issuer.keys.clone(),
                authority: issuer.authority.clone(),
            })
        };
        self.issuers.iter().map(issuer).collect()
    }

    /// Returns the addresses that storages may have. `default`: those without a configuration.
    pub fn addresses(&self, default: AddressRules) -> AddressRules {
        AddressRules {
            loopback: self.storages.loopback.unwrap_or(default.loopback),
            private: self.storages.private.unwrap_or(default.private),
        }
    }

    /// Returns true if storages need proxies of users.
    pub fn wants_delegation(&self) -> bool {
        self.storages.delegation
    }

    /// Returns the rules of access. Errors: a grant names no user and no role with its VO, or both.
    pub fn rules(&self) -> Result<Rules, Error> {
        let everybody = self.everybody.as_ref().map(levels).transpose()?.unwrap_or(LEVELS_DEFAULT);
        let mut rules = Rules { everybody, ..Rules::default() };
        for grant in &self.grants {
            let levels = levels(&grant.levels)?;
            match (&grant.user, &grant.role, &grant.vo) {
                (Some(user), None, None) => drop(rules.by_name.insert(user.clone(), levels)),
                (None, Some(role), Some(vo)) => drop(rules.by_role.insert((vo.clone(), role.clone()), levels)),
                _ => return Err(usage("a grant needs a user, or a role with its vo, and not both")),
            }
        }
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        everybody = { deleg = "own", transfer = "own" }
        [[grant]]
        user = "/DC=ch/CN=Boss"
        levels = { config = "all" }
        [[grant]]
        role = "production"
        vo = "testvo"
        levels = { transfer = "vo" }
        [[issuer]]
        url = "https://iam.example"
        audiences = ["https://fts.example:8446"]
        vo = "testvo"
        scopes = { "fts" = { transfer = "own", deleg = "own" } }
        [storages]
        loopback = true
    "#;

    #[test]
    fn a_file_becomes_rules_and_issuers() {
        let config = Config::parse(GOOD).unwrap();
        let rules = config.rules().unwrap();
        assert_eq!(rules.everybody[Operation::Transfer as usize], Level::Own);
        assert_eq!(rules.by_name["/DC=ch/CN=Boss"][Operation::Config as usize], Level::All);
        assert_eq!(
            rules.by_role[&("testvo".to_owned(), "production".to_owned())][Operation::Transfer as usize],
            Level::Vo
        );
        assert_eq!((config.issuers.len(), config.issuers[0].vo.as_str()), (1, "testvo"));
        assert_eq!(config.addresses(AddressRules::default()), AddressRules { loopback: true, private: true });
        assert_eq!(Config::parse("").unwrap().addresses(AddressRules::default()), AddressRules::default());
        assert_eq!(Config::parse("").unwrap().rules().unwrap().everybody, LEVELS_DEFAULT);
    }

    #[test]
    fn whatever_is_not_understood_is_an_error() {
        for (text, expected) in [
            ("evrybody = {}", "unknown field"),
            ("everybody = { transfers = \"own\" }", "there is no operation transfers"),
            ("everybody = { transfer = \"mine\" }", "there is no level mine"),
            ("[[grant]]\nlevels = {}", "a grant needs a user, or a role with its vo"),
            ("[[grant]]\nrole = \"production\"\nlevels = {}", "a grant needs a user, or a role with its vo"),
            ("[[issuer]]\nurl = \"x\"\naudiences = []\nvo = \"v\"\nscopes = {}", "needs audiences"),
            ("[storages]\nlocal = true", "unknown field"),
            ("= 1", "TOML"),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(error.text().contains(expected), "{text}: {error}");
        }
    }
}
