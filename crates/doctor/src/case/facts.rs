//! Facts about networks as their operators state them.

use std::fmt;

use serde::{Deserialize, Serialize};
use sterna_proto::{BitRate, ByteCount};

use crate::evidence::Direction;
use crate::report::text;

/// Maximum length of a key, bytes. Reason: a column of a table.
const KEY_BYTES_MAX: usize = 40;

/// Maximum length of a value in words, bytes. Reason: a cell of a table.
const VALUE_BYTES_MAX: usize = 400;

/// Fact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// Network, such as `geant.net`, or a host.
    pub domain: String,
    /// Direction that the fact is about; absent: both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// Property.
    pub key: FactKey,
    /// Value.
    pub value: FactValue,
}

/// Property of a network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum FactKey {
    /// Rate of a policer or shaper, bit/s.
    RateLimit,
    /// Bucket of a policer or shaper, bytes.
    Burst,
    /// Buffer of a host or device, bytes.
    Buffer,
    /// Largest packet, bytes.
    Mtu,
    /// Any other property, in words.
    Other(String),
}

/// Value of a fact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FactValue {
    /// Number in the unit of its key.
    Number(u64),
    /// Words.
    Text(String),
    /// No limit: `none`.
    Unlimited,
}

impl FactKey {
    /// Returns the name.
    pub fn name(&self) -> &str {
        match self {
            Self::RateLimit => "rate_limit",
            Self::Burst => "burst",
            Self::Buffer => "buffer",
            Self::Mtu => "mtu",
            Self::Other(name) => name,
        }
    }
}

impl From<FactKey> for String {
    fn from(key: FactKey) -> Self {
        key.name().to_owned()
    }
}

impl TryFrom<String> for FactKey {
    type Error = String;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        Ok(match name.as_str() {
            "rate_limit" => Self::RateLimit,
            "burst" => Self::Burst,
            "buffer" => Self::Buffer,
            "mtu" => Self::Mtu,
            "" => return Err("a key is missing: expected KEY=VALUE, such as rate_limit=90Mbit".to_owned()),
            other if other.len() > KEY_BYTES_MAX || !other.chars().all(is_valid) => {
                return Err(format!(
                    "{other:?} is no key: expected rate_limit, burst, buffer, mtu, or another name of a-z, 0-9 and _"
                ));
            }
            _ => Self::Other(name),
        })
    }
}

/// Property and value, as the user gives them.
#[derive(Clone, Debug, PartialEq)]
pub struct FactPair {
    /// Property.
    pub key: FactKey,
    /// Value.
    pub value: FactValue,
}

impl std::str::FromStr for FactPair {
    type Err = String;

    /// Reads `rate_limit=90Mbit`, `burst=16MB`, `rate_limit=none` or `kernel=6.1`.
    fn from_str(given: &str) -> Result<Self, Self::Err> {
        let (key, value) =
            given.split_once('=').ok_or_else(|| format!("{given:?} is no KEY=VALUE, such as rate_limit=90Mbit"))?;
        let (key, value) = (FactKey::try_from(key.trim().to_owned())?, value.trim());
        if value.is_empty() || value.len() > VALUE_BYTES_MAX {
            return Err(format!("the value of {} has from 1 to {VALUE_BYTES_MAX} bytes", key.name()));
        }
        let bytes = || value.parse::<ByteCount>().map(|count| FactValue::Number(count.0)).map_err(|e| e.to_string());
        let value = match &key {
            FactKey::RateLimit | FactKey::Burst if value == "none" => FactValue::Unlimited,
            FactKey::RateLimit => FactValue::Number(value.parse::<BitRate>().map_err(|e| e.to_string())?.0),
            FactKey::Burst | FactKey::Buffer | FactKey::Mtu => bytes()?,
            FactKey::Other(_) => FactValue::Text(value.to_owned()),
        };
        Ok(Self { key, value })
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} = {}", self.domain, name(&self.key, self.direction), shown(&self.key, &self.value))
    }
}

/// Returns a value in words, with its unit.
pub fn shown(key: &FactKey, value: &FactValue) -> String {
    match (key, value) {
        (_, FactValue::Unlimited) => "none".to_owned(),
        (_, FactValue::Text(text)) => text.clone(),
        (FactKey::RateLimit, FactValue::Number(bps)) => text::rate(*bps),
        (FactKey::Mtu, FactValue::Number(bytes)) => format!("{bytes} bytes"),
        (_, FactValue::Number(bytes)) => ByteCount(*bytes).to_string(),
    }
}

/// Returns the name of a fact, with its direction.
pub fn name(key: &FactKey, direction: Option<Direction>) -> String {
    match direction {
        Some(direction) => format!("{}, {}", key.name(), text::arrow(direction)),
        None => key.name().to_owned(),
    }
}
