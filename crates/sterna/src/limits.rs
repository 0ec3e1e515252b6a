//! Formats the limits of a copy as text.

use std::time::Duration;

use sterna_proto::limit::{Limit, LimitReport, remedy};
use sterna_proto::location::HostPort;

use crate::flags::with_advice;

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
            words.push_str(&format!(" ({})", with_advice(remedy.cause, remedy.advice)));
        }
        shown.push(words);
    }
    (!shown.is_empty()).then(|| format!("limited by: {}", shown.join(", ")))
}

/// Share of the time from which a limit of the path is worth an experiment.
const SHARE_EXAMINED_MIN: f64 = 0.3;

/// Returns a line that points to the path doctor, if the copy was limited by something that an experiment tells more
/// about.
pub fn doctor_line(report: &LimitReport, agent: &HostPort) -> Option<String> {
    if report.total.total() < TIME_SHOWN_MIN {
        return None;
    }
    let tells = [Limit::ReceiveWindow, Limit::SendBuffer, Limit::Loss, Limit::Policer, Limit::AckPath];
    let shares = report.total.shares();
    let share: f64 = shares.iter().filter(|(limit, _)| tells.contains(limit)).map(|(_, share)| share).sum();
    let text = format!("to test what limits this path, and what a fix would gain: sterna doctor sterna://{agent}");
    (share >= SHARE_EXAMINED_MIN).then_some(text)
}

/// Returns the same line for limits by name, without their causes. `None` if there is none.
pub fn line_of_names<'a>(shares: impl Iterator<Item = (&'a str, f64)>) -> Option<String> {
    let known = |name: &str| Limit::ALL.into_iter().find(|limit| limit.name() == name);
    let shown = shares.filter(|(_, share)| *share >= SHARE_SHOWN_MIN).take(LIMITS_SHOWN_MAX);
    // A later release of the service has others.
    let words = |(name, share): (&str, f64)| {
        let words = known(name).map_or_else(|| name.to_owned(), |limit| limit.words().to_owned());
        format!("{words} {:.0} %", share * 100.0)
    };
    let shown: Vec<String> = shown.map(words).collect();
    (!shown.is_empty()).then(|| format!("limited by: {}", shown.join(", ")))
}

/// Returns the leading limit of the last seconds, for the progress display.
pub fn now(report: &LimitReport) -> Option<String> {
    report.recent.first().map(|limit| format!("limited by {}", limit.words()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sterna_proto::BitRate;

    #[test]
    fn a_copy_that_its_path_limits_points_to_the_doctor() {
        let agent = HostPort { host: "hub.example.org".to_owned(), port: 7600 };
        let mut report = LimitReport::default();
        assert_eq!(doctor_line(&report, &agent), None);
        report.total.add(Limit::SourceDisk, Duration::from_secs(75));
        report.total.add(Limit::Loss, Duration::from_secs(25));
        assert_eq!(doctor_line(&report, &agent), None);
        report.total.add(Limit::Policer, Duration::from_secs(25));
        assert!(doctor_line(&report, &agent).unwrap().ends_with("sterna doctor sterna://hub.example.org:7600"));
    }

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
        report.total.add(Limit::Policer, Duration::from_secs(900));
        report.facts.policed = BitRate::megabits(30);
        let policer = "limited by: policer 90 % (drops above 30.0 Mbit/s; --via quic --rate 28Mbit avoids the losses)";
        assert!(line(&report).unwrap().starts_with(policer), "{:?}", line(&report));
    }
}
