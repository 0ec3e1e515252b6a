//! Formats the limits of a copy, as text and as JSON.

use std::time::Duration;

use serde_json::{Map, Value, json};
use sterna_proto::BitRate;
use sterna_proto::limit::{Facts, Limit, LimitReport, LimitTimes, remedy};

/// Smallest share of a limit in the text.
const SHARE_SHOWN_MIN: f64 = 0.05;

/// Smallest time with lanes up that gives a text. Reason: the text needs some samples, and no user asks about a shorter
/// copy.
const TIME_SHOWN_MIN: Duration = Duration::from_millis(500);

/// Most limits in the text.
const LIMITS_SHOWN_MAX: usize = 3;

/// Returns a line such as `limited by: receive window 71 % (peer rmem max 6.29 MB; …), source disk 22 %`. `None` if
/// there is too little data.
pub fn line(report: &LimitReport) -> Option<String> {
    if report.total.total() < TIME_SHOWN_MIN {
        return None;
    }
    let shares = report.total.shares();
    let mut shown = Vec::new();
    for (limit, share) in shares.into_iter().filter(|(_, share)| *share >= SHARE_SHOWN_MIN).take(LIMITS_SHOWN_MAX) {
        let mut words = format!("{} {:.0} %", limit.words(), share * 100.0);
        if let Some(remedy) = remedy(limit, &report.facts) {
            words.push_str(&format!(" ({remedy})"));
        }
        shown.push(words);
    }
    (!shown.is_empty()).then(|| format!("limited by: {}", shown.join(", ")))
}

/// Returns the leading limit of the last seconds, for the progress display.
pub fn now(report: &LimitReport) -> Option<String> {
    report.recent.first().map(|limit| format!("limited by {}", limit.words()))
}

/// Returns all shares, the leading limit, the remedies and the facts behind them.
pub fn value(report: &LimitReport) -> Value {
    let first = report.total.first();
    json!({
        "first": first.map(Limit::name),
        "shares": shares(&report.total),
        "remedies": remedies(report),
        "facts": facts(&report.facts),
    })
}

/// Returns the shares by name of limit.
pub fn shares(times: &LimitTimes) -> Value {
    let shares = times.shares().into_iter();
    Value::Object(shares.map(|(limit, share)| (limit.name().to_owned(), json!(rounded(share)))).collect::<Map<_, _>>())
}

fn remedies(report: &LimitReport) -> Value {
    let limits = report.total.shares().into_iter().map(|(limit, _)| limit);
    let words = limits.filter_map(|limit| Some((limit.name().to_owned(), json!(remedy(limit, &report.facts)?))));
    Value::Object(words.collect::<Map<_, _>>())
}

/// Returns the smallest and the largest rate of the policer. The largest is null if the policer passes at least the
/// smallest.
fn policed(facts: &Facts) -> Value {
    let rate = facts.policed.0;
    json!([rate, (!facts.policed_is_least).then_some(rate)])
}

/// Returns the smallest and the largest rate of a disk, in bytes/s.
fn disk(facts: &Facts, rate: BitRate) -> Value {
    let (least, most) = facts.disk_range(rate);
    json!([least.0 / 8, most.0 / 8])
}

fn facts(facts: &Facts) -> Value {
    let (least, most) = facts.loss_range_ppm();
    json!({
        "rtt_s": facts.rtt.as_secs_f64(),
        "rate_bps": facts.rate.0,
        "rate_cap_bps": facts.rate_cap.0,
        "policed_bps": policed(facts),
        "reached_bps": facts.reached.0,
        "source_bytes_per_s": disk(facts, facts.source),
        "destination_bytes_per_s": disk(facts, facts.destination),
        "receive_window_bytes": facts.receive_window.0,
        "receive_buffer_bytes": facts.receive_buffer.0,
        "receive_buffer_max_bytes": facts.receive_buffer_max.0,
        "send_buffer_bytes": facts.send_buffer.0,
        "send_buffer_max_bytes": facts.send_buffer_max.0,
        "loss": [least as f64 / 1e6, most as f64 / 1e6],
        "overrun_packets": facts.overrun,
        "cpu_at_receiver": facts.cpu_at_receiver,
        "lanes": facts.lanes,
        "is_growing": facts.is_growing,
        "is_unscaled": facts.is_unscaled,
    })
}

/// Rounds to three decimals.
fn rounded(share: f64) -> f64 {
    (share * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_at_most_three_limits_and_none_below_a_twentieth() {
        let mut report = LimitReport::default();
        assert_eq!(line(&report), None);
        for (limit, percent) in [(Limit::SourceDisk, 22), (Limit::Cpu, 71), (Limit::Loss, 4), (Limit::NothingToSend, 3)]
        {
            report.total.add(limit, Duration::from_secs(percent));
        }
        let cpu = "CPU 71 % (the sender's processors are busy)";
        assert_eq!(line(&report).unwrap(), format!("limited by: {cpu}, source disk 22 %"));
        report.facts.source = BitRate::megabits(80);
        assert!(line(&report).unwrap().ends_with(", source disk 22 % (it reads 10.0 MB/s)"));
        assert_eq!(value(&report)["first"], "cpu");
        assert_eq!(value(&report)["shares"]["loss"], 0.04);
    }
}
