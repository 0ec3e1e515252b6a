//! Sites: their agents, and which virtual organisations may read and write there.
//!
//! Decides by VO and file path. Refuses to know who a caller is, and what an agent allows: the agent decides that.

use serde::{Deserialize, Serialize};
use sterna_net::identity::Fingerprint;

/// Right of a virtual organisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SiteRight {
    /// Sources.
    Read,
    /// Sources and destinations.
    Write,
}

/// Access of a virtual organisation to file paths of a site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteAccess {
    /// Virtual organisation.
    pub vo: String,
    /// Right.
    pub right: SiteRight,
    /// Directory beneath which it holds; empty: all paths.
    #[serde(default)]
    pub path: String,
}

/// Agents of a site, and the access to it, as stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SiteSettings {
    /// Fingerprints of the agents.
    pub agents: Vec<String>,
    /// Access; empty: every user of the service reads and writes.
    #[serde(default)]
    pub access: Vec<SiteAccess>,
}

/// Site.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Site {
    /// Agents.
    pub agents: Vec<Fingerprint>,
    /// Access; empty: every user of the service reads and writes.
    pub access: Vec<SiteAccess>,
}

impl From<SiteSettings> for Site {
    fn from(settings: SiteSettings) -> Self {
        let agents = settings.agents.iter().filter_map(|agent| agent.parse().ok()).collect();
        Self { agents, access: settings.access }
    }
}

impl Site {
    /// Returns true if a virtual organisation has a right to a file path.
    pub fn allows(&self, vo: &str, path: &str, right: SiteRight) -> bool {
        let is_granted =
            |access: &SiteAccess| access.right >= right && access.vo == vo && is_beneath(path, &access.path);
        self.access.is_empty() || self.access.iter().any(is_granted)
    }
}

/// Returns true if a file path is a directory or beneath it. One that leads upward is beneath none.
fn is_beneath(path: &str, directory: &str) -> bool {
    let names = |path: &str| -> Vec<String> {
        path.split('/').filter(|name| !matches!(*name, "" | ".")).map(str::to_owned).collect()
    };
    let (path, directory) = (names(path), names(directory));
    path.starts_with(&directory) && !path.iter().any(|name| name == "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vo_reaches_the_paths_that_it_was_given() {
        let access = |vo: &str, right, path: &str| SiteAccess { vo: vo.to_owned(), right, path: path.to_owned() };
        let site = Site {
            agents: Vec::new(),
            access: vec![
                access("atlas", SiteRight::Write, "data/atlas/"),
                access("atlas", SiteRight::Read, ""),
                access("cms", SiteRight::Read, "/data/cms"),
            ],
        };
        // VO, path; may read, may write.
        for (vo, path, reads, writes) in [
            ("atlas", "data/atlas/f", true, true),
            ("atlas", "/data//./atlas/f", true, true),
            ("atlas", "data/atlas", true, true),
            ("atlas", "data/atlas2/f", true, false),
            ("atlas", "data/atlas/../cms/f", false, false),
            ("atlas", "data/*/f", true, false),
            ("cms", "data/cms/f", true, false),
            ("cms", "data/f", false, false),
            ("lhcb", "data/atlas/f", false, false),
        ] {
            let may = |right| site.allows(vo, path, right);
            assert_eq!((may(SiteRight::Read), may(SiteRight::Write)), (reads, writes), "{vo} {path}");
        }
        assert!(Site::default().allows("x", "any/../where", SiteRight::Write), "no access is given: everybody");
    }
}
