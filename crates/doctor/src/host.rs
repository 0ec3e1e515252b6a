//! Settings of a host against the paths that it is used on: rules from facts to findings.
//!
//! Its input is a snapshot of the kernel's settings and of the paths ([`HostPicture`]), its output a [`Finding`] for
//! each setting: the value, the path that it hurts and by how much, and the value that the most demanding path needs.
//! Refuses to read or change a setting.

mod facts;
mod rules;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::Serialize;
use sterna_proto::{BitRate, ByteCount};

pub use self::facts::{Demand, DemandBasis, Effect, Finding, HostPicture, PathUse};

/// Result for a host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostReport {
    /// Paths, the most demanding first.
    pub paths: Vec<Demand>,
    /// Findings, those that hurt most first.
    pub findings: Vec<Finding>,
}

/// Shortest round trip of a path that is checked. Reason: below it no window limits, and rates are those of memory.
pub const RTT_MIN: Duration = Duration::from_micros(100);

impl HostReport {
    /// Computes the findings. `wish`: rate that one connection shall have on every path.
    pub fn new(host: &HostPicture, wish: Option<BitRate>) -> Self {
        let mut paths: Vec<Demand> = host
            .paths
            .iter()
            .filter(|path| path.rtt >= RTT_MIN)
            .map(|path| Demand::new(path, host, wish))
            .filter(|demand| demand.target_bps > 0)
            .collect();
        paths.sort_by_key(|path| std::cmp::Reverse(path.window_bytes));
        let mut findings = rules::check(host, &paths);
        findings.sort_by_key(|finding| (finding.effect, finding.held_bps.unwrap_or(u64::MAX)));
        Self { paths, findings }
    }

    /// Returns the settings to change, with their values.
    pub fn changes(&self) -> Vec<(String, String)> {
        let change = |finding: &Finding| Some((finding.setting.clone(), finding.recommended.clone()?));
        self.findings.iter().filter_map(change).collect()
    }
}

/// Returns the report in lines for people.
pub fn lines(report: &HostReport) -> Vec<String> {
    let mut lines = vec!["paths, the most demanding first:".to_owned()];
    if report.paths.is_empty() {
        lines = vec![
            "no path is known: nothing is connected, and no copy was measured; `sterna doctor plan` computes a path"
                .to_owned(),
        ];
    }
    for path in report.paths.iter().take(PATHS_SHOWN_MAX) {
        let basis = match path.basis {
            DemandBasis::Asked => "asked for",
            DemandBasis::Measured => "measured",
            DemandBasis::TwiceMeasured => "twice the measured rate, at which a window of this host was full",
        };
        lines.push(format!(
            "  {:<40} {} needs a window of {} ({basis})",
            path.words(),
            BitRate(path.target_bps),
            ByteCount(path.window_bytes)
        ));
    }
    if report.paths.len() > PATHS_SHOWN_MAX {
        lines.push(format!("  and {} more", report.paths.len() - PATHS_SHOWN_MAX));
    }
    for (effect, title) in [
        (Effect::Hurts, "settings that hold paths below that:"),
        (Effect::Costs, "settings that cost something:"),
        (Effect::Fits, "settings that fit:"),
    ] {
        let findings: Vec<&Finding> = report.findings.iter().filter(|finding| finding.effect == effect).collect();
        if findings.is_empty() {
            continue;
        }
        lines.push(title.to_owned());
        for finding in findings {
            lines.push(format!("  net.{} = {}", finding.setting, finding.value));
            lines.push(format!("      {}", finding.reason));
            let set = |value: &String| format!("      sysctl -w net.{}='{value}'", finding.setting);
            lines.extend(finding.recommended.as_ref().map(set));
        }
    }
    lines
}

/// Maximum number of paths in the text. Reason: they fit on a screen; the report has all.
const PATHS_SHOWN_MAX: usize = 8;
