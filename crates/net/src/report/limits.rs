//! JSON of the limits of a copy.

use std::collections::BTreeMap;

use serde::Serialize;
use sterna_proto::BitRate;
use sterna_proto::limit::{Advice, Facts, Limit, LimitReport, LimitTimes, Remedy, remedy};

/// Share of the time by name of limit, from 0 to 1, with three decimals; limits without time are absent.
pub type Shares = BTreeMap<&'static str, f64>;

/// Limits of a whole copy.
#[derive(Clone, Debug, Serialize)]
pub struct Limits {
    /// Limit with the largest share.
    pub first: Option<Limit>,
    /// Shares of the limits.
    pub shares: Shares,
    /// Explanations and remedies for people, by name of limit. They have no [`advice`](Self::advice) until the user
    /// interface adds it in its own words.
    pub remedies: BTreeMap<&'static str, String>,
    /// Actions against the limits, by name of limit.
    #[serde(skip)]
    pub advice: BTreeMap<&'static str, Advice>,
    /// Measurements behind the remedies.
    pub facts: LimitFacts,
}

impl From<&LimitReport> for Limits {
    fn from(report: &LimitReport) -> Self {
        let limits = report.total.shares().into_iter().map(|(limit, _)| limit);
        let found: Vec<(&'static str, Remedy)> =
            limits.filter_map(|limit| Some((limit.name(), remedy(limit, &report.facts)?))).collect();
        Self {
            first: report.total.first(),
            shares: shares(&report.total),
            advice: found.iter().filter_map(|(name, remedy)| Some((*name, remedy.advice?))).collect(),
            remedies: found.into_iter().map(|(name, remedy)| (name, remedy.cause)).collect(),
            facts: (&report.facts).into(),
        }
    }
}

/// Returns the shares of the limits.
pub fn shares(times: &LimitTimes) -> Shares {
    let rounded = |share: f64| (share * 1000.0).round() / 1000.0;
    times.shares().into_iter().map(|(limit, share)| (limit.name(), rounded(share))).collect()
}

/// Measurements behind the remedies; zero if unknown. Pairs are the least and the most: one copy measures only a range.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LimitFacts {
    /// Smallest RTT; `None`: not measured.
    pub rtt_s: Option<f64>,
    /// Mean delivery rate of all lanes in the last seconds.
    pub rate_bps: u64,
    /// The given rate.
    pub rate_cap_bps: u64,
    /// Rate of a policer on the wire; the most is `None` if the policer lets at least the first value through.
    pub policed_bps: (u64, Option<u64>),
    /// Mean rate of the copy on the wire.
    pub reached_bps: u64,
    /// Read rate of the source, bytes/s.
    pub source_bytes_per_s: (u64, u64),
    /// Write rate of the destination, bytes/s.
    pub destination_bytes_per_s: (u64, u64),
    /// Largest window that the receiver announced to one lane.
    pub receive_window_bytes: u64,
    /// Receive buffer of such a lane.
    pub receive_buffer_bytes: u64,
    /// Size to which the receiver's kernel lets this buffer grow.
    pub receive_buffer_max_bytes: u64,
    /// Send buffer of a lane.
    pub send_buffer_bytes: u64,
    /// Size to which the sender's kernel lets this buffer grow.
    pub send_buffer_max_bytes: u64,
    /// Share of the packets that the path lost.
    pub loss: (f64, f64),
    /// Packets that the path delivered and the receiving host dropped; no `loss` includes them.
    pub overrun_packets: u64,
    /// True if the receiver's processors were short, not the sender's.
    pub cpu_at_receiver: bool,
    /// Lanes that are up.
    pub lanes: u64,
    /// True if the congestion window still grew for most of the time in which it was the limit.
    pub is_growing: bool,
    /// True if TCP windows are not scaled: a lane has at most 64 KiB in flight.
    pub is_unscaled: bool,
}

impl From<&Facts> for LimitFacts {
    fn from(facts: &Facts) -> Self {
        let policed = facts.policed.0;
        let (least_lost, most_lost) = facts.loss_range_ppm();
        let disk = |rate: BitRate| {
            let (least, most) = facts.disk_range(rate);
            (least.0 / 8, most.0 / 8)
        };
        Self {
            rtt_s: super::measured(facts.rtt),
            rate_bps: facts.rate.0,
            rate_cap_bps: facts.rate_cap.0,
            policed_bps: (policed, (!facts.policed_is_least).then_some(policed)),
            reached_bps: facts.reached.0,
            source_bytes_per_s: disk(facts.source),
            destination_bytes_per_s: disk(facts.destination),
            receive_window_bytes: facts.receive_window.0,
            receive_buffer_bytes: facts.receive_buffer.0,
            receive_buffer_max_bytes: facts.receive_buffer_max.0,
            send_buffer_bytes: facts.send_buffer.0,
            send_buffer_max_bytes: facts.send_buffer_max.0,
            loss: (least_lost as f64 / 1e6, most_lost as f64 / 1e6),
            overrun_packets: facts.overrun,
            cpu_at_receiver: facts.cpu_at_receiver,
            lanes: facts.lanes,
            is_growing: facts.is_growing,
            is_unscaled: facts.is_unscaled,
        }
    }
}
