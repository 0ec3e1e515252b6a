//! Findings of the rules, and their words.

use sterna_proto::BitRate;

use crate::verdict::{Cause, RttMode};
pub(super) use crate::words::{percent, time};

/// Limit or trouble that a rule found.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    pub(super) cause: Cause,
    /// Payload rate to which it holds one connection by its model, bit/s; `None`: no effect on the rate is known.
    pub(super) limits_to: Option<f64>,
    /// It explains the rate of the baseline.
    pub(super) binds: bool,
    pub(super) confidence: f64,
    pub(super) evidence: Vec<String>,
    pub(super) remedy: String,
    pub(super) detail: Detail,
}

/// Numbers of a finding.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Detail {
    pub(super) rate_bps: Option<f64>,
    pub(super) burst_bytes: Option<f64>,
    pub(super) packets: Option<f64>,
    pub(super) modes: Vec<RttMode>,
    /// Rate once the cause is gone, where an experiment or the remedy itself gives it.
    pub(super) reached_bps: Option<f64>,
}

impl Finding {
    pub(super) fn new(cause: Cause, remedy: impl Into<String>) -> Self {
        Self {
            cause,
            limits_to: None,
            binds: false,
            confidence: 0.5,
            evidence: Vec::new(),
            remedy: remedy.into(),
            detail: Detail::default(),
        }
    }

    pub(super) fn limits_to(mut self, bps: f64, binds: bool) -> Self {
        self.limits_to = Some(bps);
        self.binds = binds;
        self
    }

    /// Returns the rate to which it holds a connection that has `rate`, bit/s; `None`: no effect on the rate is known.
    /// A limit that binds holds it to the rate that it has, whatever a model says. Disks are measured apart from it.
    pub(super) fn holds_to(&self, rate: f64) -> Option<f64> {
        match self.cause {
            Cause::DiskRead | Cause::DiskWrite => self.limits_to,
            _ if self.binds => Some(rate),
            _ => self.allows(rate),
        }
    }

    /// Returns the rate up to which it lets a connection that has `rate` become faster, bit/s, by its model.
    pub(super) fn allows(&self, rate: f64) -> Option<f64> {
        self.limits_to.filter(|limit| limit.is_finite()).map(|limit| limit.max(rate))
    }

    pub(super) fn because(mut self, text: impl Into<String>) -> Self {
        self.evidence.push(text.into());
        self
    }

    pub(super) fn sure(mut self, confidence: f64) -> Self {
        self.confidence = confidence;
        self
    }
}

/// Returns a rate as a flag takes it, rounded down to three digits: `28.5Mbit`.
pub(super) fn flag(bps: f64) -> String {
    let (unit, scale) = if bps >= 1e6 { ("Mbit", 1e6) } else { ("kbit", 1e3) };
    let value = bps / scale;
    let digits = if value >= 100.0 {
        1.0
    } else if value >= 10.0 {
        10.0
    } else {
        100.0
    };
    format!("{}{unit}", (value * digits).floor() / digits)
}

/// Returns a rate for people.
pub(super) fn shown(bps: f64) -> String {
    BitRate(bps as u64).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_flags_are_never_above_those_of_the_path() {
        let flags = [28_543_210.0, 3_999_999.0, 950_600.0, 1_234_567_890.0, 7_000_000.0].map(flag);
        assert_eq!(flags, ["28.5Mbit", "3.99Mbit", "950kbit", "1234Mbit", "7Mbit"]);
        assert!(flags.iter().all(|text| text.parse::<BitRate>().is_ok()));
    }
}
