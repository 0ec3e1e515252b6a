//! Rules: one for each setting, from the facts of a host to a finding.

use sterna_proto::quantity::readable_time;
use sterna_proto::{BitRate, ByteCount};

use super::facts::{Demand, Effect, Finding, HostPicture};
use crate::kernel::{self, KernelVersion};
use crate::plan::{Plan, Wish};
use crate::response::{self, Control, PathFacts};

/// Returns the findings of all rules. `paths`: the most demanding first.
pub fn check(host: &HostPicture, paths: &[Demand]) -> Vec<Finding> {
    let rule = Rule { host, paths };
    let findings = [
        rule.receive_buffer(),
        rule.send_buffer(),
        rule.buffer_of_programs("core.rmem_max", "SO_RCVBUF"),
        rule.buffer_of_programs("core.wmem_max", "SO_SNDBUF"),
        rule.receive_tuning(),
        rule.window_scaling(),
        rule.selective_acks(),
        rule.timestamps(),
        rule.slow_start_after_idle(),
        rule.mtu_probing(),
        rule.metrics(),
        rule.congestion_control(),
        rule.queueing(),
        rule.memory(),
        rule.backlog(),
    ];
    findings.into_iter().flatten().collect()
}

struct Rule<'a> {
    host: &'a HostPicture,
    paths: &'a [Demand],
}

/// First version whose bbr paces without the queueing discipline fq.
const BBR_PACES: KernelVersion = KernelVersion::new(4, 20);

/// Largest window without window scaling, in bytes (RFC 9293).
const UNSCALED: ByteCount = ByteCount(65_535);

/// Payload of a segment above which an interface has jumbo packets, in bytes.
const JUMBO_MSS: u32 = 1460;

/// Spare part of a buffer that a program sets. Reason: autotuning and its margin do not apply there.
const SPARE: f64 = 1.1;

/// Factor for the queue of arrived packets of a host that dropped some. Guess: bursts grow with the rate.
const BACKLOG_FACTOR: u64 = 4;

/// Part of the memory of a host that TCP may take. Reason: programs and the page cache need the rest.
const MEMORY_PART: u64 = 2;

/// Largest ratio of a rate to that which the loss explains, at which the loss may be its limit.
const EXPLAINED: u64 = 2;

/// Buffers are rounded up to whole mebibytes.
const MEBIBYTE: u64 = 1 << 20;

impl Rule<'_> {
    fn finding(&self, setting: &str, effect: Effect, reason: impl Into<String>) -> Finding {
        let value = self.host.text(setting).unwrap_or_default().to_owned();
        let (setting, reason) = (setting.to_owned(), reason.into());
        Finding { setting, value, effect, path: None, held_bps: None, recommended: None, reason }
    }

    /// Returns the path that a window holds furthest below its target, and the rate there.
    fn hurt_by(&self, window: ByteCount) -> Option<(&Demand, BitRate)> {
        let held = self.paths.iter().map(|path| (path, path.held(window)));
        held.filter(|(path, held)| held.0 < path.target_bps).min_by(|one, other| part(one).total_cmp(&part(other)))
    }

    fn plan(&self, path: &Demand) -> Plan {
        let facts = PathFacts { rtt: path.rtt, mss: path.mss, loss: 0.0 };
        Plan::new(&Wish { rate: BitRate(path.target_bps), path: facts, kernel: self.host.kernel })
    }

    /// Checks a maximum of three numbers: what a window under it does, and the maximum that every path needs.
    fn buffer(&self, setting: &str, window: ByteCount, name: &str, needed: fn(&Plan) -> u64) -> Option<Finding> {
        let numbers = self.host.numbers(setting);
        let &[least, middle, max] = numbers.as_slice() else { return None };
        let allows = format!("a maximum of {} gives {name} of {window}", ByteCount(max));
        let Some((path, held)) = self.hurt_by(window) else {
            return Some(self.finding(setting, Effect::Fits, allows));
        };
        let most = self.paths.iter().map(|path| needed(&self.plan(path))).max().unwrap_or(0);
        let most = most.max(max).next_multiple_of(MEBIBYTE).min(kernel::BUFFER_MAX.0);
        let held_words = if self.paths.iter().any(|path| path.window_bytes > kernel::WINDOW_MAX.0) {
            "; the largest window of TCP is 1 GiB, so use several connections too"
        } else {
            ""
        };
        let reason = format!(
            "{allows}: at most {held} a connection to {}, of {}{held_words}",
            path.words(),
            BitRate(path.target_bps)
        );
        Some(Finding {
            path: Some(path.remote),
            held_bps: Some(held.0),
            recommended: (most > max).then(|| format!("{least} {middle} {most}")),
            ..self.finding(setting, Effect::Hurts, reason)
        })
    }

    fn receive_buffer(&self) -> Option<Finding> {
        self.buffer("ipv4.tcp_rmem", self.host.window_in(), "a window", |plan| plan.receive_buffer_bytes)
    }

    fn send_buffer(&self) -> Option<Finding> {
        let window = self.host.window_out();
        self.buffer("ipv4.tcp_wmem", window, "data in flight", |plan| plan.send_buffer_with_recovery_bytes)
    }

    /// Checks the maximum for programs that set a buffer. The kernel doubles their number.
    fn buffer_of_programs(&self, setting: &str, option: &str) -> Option<Finding> {
        let max = self.host.number(setting)?;
        let buffer = ByteCount(max.saturating_mul(2));
        let window = match option {
            "SO_SNDBUF" => kernel::in_flight_of(buffer),
            _ => kernel::window_of(buffer, self.host.kernel),
        };
        let allows = format!("a program that sets {option} gets at most {window} in flight");
        let Some((path, held)) = self.hurt_by(window) else {
            return Some(self.finding(setting, Effect::Fits, allows));
        };
        let needed = self.paths.iter().map(|path| path.window().0).max().unwrap_or(0) as f64 * SPARE;
        let needed = (needed as u64).next_multiple_of(MEBIBYTE).min(kernel::BUFFER_MAX.0);
        let reason = format!("{allows}: {held} to {}; others are not affected", path.words());
        Some(Finding {
            path: Some(path.remote),
            held_bps: Some(held.0),
            recommended: (needed > max).then(|| needed.to_string()),
            ..self.finding(setting, Effect::Costs, reason)
        })
    }

    /// Checks a switch that must be on. `off`: window while it is off, and the words for that.
    fn switch(&self, setting: &str, window: ByteCount, off: &str, on: &str) -> Option<Finding> {
        if self.host.number(setting)? != 0 {
            return Some(self.finding(setting, Effect::Fits, on));
        }
        let recommended = Some("1".to_owned());
        Some(match self.hurt_by(window) {
            Some((path, held)) => Finding {
                path: Some(path.remote),
                held_bps: Some(held.0),
                recommended,
                ..self.finding(setting, Effect::Hurts, format!("{off}: {held} to {}", path.words()))
            },
            None => Finding { recommended, ..self.finding(setting, Effect::Costs, off) },
        })
    }

    fn receive_tuning(&self) -> Option<Finding> {
        let start = self.host.numbers("ipv4.tcp_rmem").get(1).copied().unwrap_or(131_072);
        let window = kernel::window_of(ByteCount(start), self.host.kernel);
        let off = format!("windows stay at {window}, the middle value of tcp_rmem");
        self.switch("ipv4.tcp_moderate_rcvbuf", window, &off, "windows grow with the rate")
    }

    fn window_scaling(&self) -> Option<Finding> {
        let off = "no window above 64 KiB in either direction";
        self.switch("ipv4.tcp_window_scaling", UNSCALED, off, "windows above 64 KiB are possible")
    }

    fn selective_acks(&self) -> Option<Finding> {
        let on = "losses of one round trip are repaired together";
        let found = self.switch("ipv4.tcp_sack", kernel::WINDOW_MAX, "one loss is repaired per round trip", on)?;
        let is_lossy = self.paths.iter().find(|path| path.loss > 0.0);
        Some(match (found.effect, is_lossy) {
            (Effect::Costs, Some(path)) => Finding { effect: Effect::Hurts, path: Some(path.remote), ..found },
            _ => found,
        })
    }

    fn timestamps(&self) -> Option<Finding> {
        let off = match self.paths.iter().map(|path| path.target_bps).max() {
            Some(rate) if rate > 0 => {
                let wraps = BitRate(rate).time_for(ByteCount(1 << 32));
                format!("sequence numbers wrap after {} without protection (RFC 7323)", readable_time(wraps))
            }
            _ => "round trips are measured less often (RFC 7323)".to_owned(),
        };
        self.switch("ipv4.tcp_timestamps", kernel::WINDOW_MAX, &off, "round trips are measured with each segment")
    }

    fn control(&self) -> &str {
        self.host.text("ipv4.tcp_congestion_control").unwrap_or("cubic")
    }

    fn slow_start_after_idle(&self) -> Option<Finding> {
        let setting = "ipv4.tcp_slow_start_after_idle";
        let is_on = self.host.number(setting)? != 0;
        let longest = self.paths.iter().map(|path| {
            let facts = PathFacts { rtt: path.rtt, mss: path.mss, loss: 0.0 };
            (response::ramp(path.window(), &facts), path)
        });
        Some(match longest.max_by_key(|(ramp, _)| *ramp) {
            _ if !is_on => self.finding(setting, Effect::Fits, "a pause does not cost the congestion window"),
            _ if self.control().starts_with("bbr") => {
                self.finding(setting, Effect::Fits, "bbr keeps its rate through a pause")
            }
            Some((ramp, path)) if !ramp.is_zero() => {
                let reason = format!(
                    "after a pause of some round trips a connection starts again: {} to its rate to {}",
                    readable_time(ramp),
                    path.words()
                );
                let recommended = Some("0".to_owned());
                Finding { path: Some(path.remote), recommended, ..self.finding(setting, Effect::Costs, reason) }
            }
            _ => self.finding(setting, Effect::Fits, "these paths reach their rate in the first round trip"),
        })
    }

    fn mtu_probing(&self) -> Option<Finding> {
        let setting = "ipv4.tcp_mtu_probing";
        let is_off = self.host.number(setting)? == 0;
        let jumbo = self.paths.iter().find(|path| path.mss > JUMBO_MSS);
        Some(match jumbo.filter(|_| is_off) {
            Some(path) => {
                let reason = format!(
                    "a connection to {} with segments of {} bytes hangs where a link drops them without a message",
                    path.words(),
                    path.mss
                );
                let recommended = Some("1".to_owned());
                Finding { path: Some(path.remote), recommended, ..self.finding(setting, Effect::Costs, reason) }
            }
            None => self.finding(setting, Effect::Fits, "no path has packets above 1500 bytes, or probing is on"),
        })
    }

    fn metrics(&self) -> Option<Finding> {
        let setting = "ipv4.tcp_no_metrics_save";
        if self.host.number(setting)? != 0 || self.paths.is_empty() {
            return Some(self.finding(setting, Effect::Fits, "connections do not inherit from earlier ones"));
        }
        let reason = "a connection starts with round trips, reordering and (before 5.8) a slow start threshold of an \
                      earlier one to the same host, which may have been a bad one";
        Some(Finding { recommended: Some("1".to_owned()), ..self.finding(setting, Effect::Costs, reason) })
    }

    fn congestion_control(&self) -> Option<Finding> {
        let setting = "ipv4.tcp_congestion_control";
        let name = self.host.text(setting)?;
        if name.starts_with("bbr") {
            return Some(self.finding(setting, Effect::Fits, "bbr does not slow down for isolated losses"));
        }
        let control = if name == "reno" { Control::Reno } else { Control::Cubic };
        let held = self.paths.iter().filter(|path| path.loss > 0.0).filter_map(|path| {
            let facts = PathFacts { rtt: path.rtt, mss: path.mss, loss: path.loss };
            let held = response::of_loss(control, &facts, BitRate(path.target_bps)) as u64;
            // A faster connection shows that its losses are not the limit.
            let is_limit = held < path.target_bps && path.rate_out_bps <= held.saturating_mul(EXPLAINED);
            is_limit.then_some((path, BitRate(held)))
        });
        let Some((path, held)) = held.min_by(|one, other| part(one).total_cmp(&part(other))) else {
            return Some(self.finding(setting, Effect::Fits, "no path has losses that hold it down"));
        };
        let available = self.host.text("ipv4.tcp_available_congestion_control").unwrap_or_default();
        let has_bbr = available.split_whitespace().any(|one| one == "bbr");
        let how = if has_bbr { "" } else { "; load the module tcp_bbr, which is not there yet" };
        let reason = format!(
            "a loss of {:.3} % holds {name} at {held} a connection to {}; bbr does not slow down for isolated \
             losses{how}",
            path.loss * 100.0,
            path.words()
        );
        Some(Finding {
            path: Some(path.remote),
            held_bps: Some(held.0),
            recommended: has_bbr.then(|| "bbr".to_owned()),
            ..self.finding(setting, Effect::Hurts, reason)
        })
    }

    fn queueing(&self) -> Option<Finding> {
        let setting = "core.default_qdisc";
        let value = self.host.text(setting)?;
        if self.control().starts_with("bbr") && self.host.kernel < BBR_PACES && value != "fq" {
            let reason = format!("before kernel {BBR_PACES}, bbr is paced by fq only; new interfaces get it");
            return Some(Finding {
                recommended: Some("fq".to_owned()),
                ..self.finding(setting, Effect::Hurts, reason)
            });
        }
        Some(self.finding(setting, Effect::Fits, "TCP paces by itself where it must; fq paces with less work"))
    }

    fn memory(&self) -> Option<Finding> {
        let setting = "ipv4.tcp_mem";
        let numbers = self.host.numbers(setting);
        let &[_, pressure, _] = numbers.as_slice() else { return None };
        let page = self.host.page.0.max(1);
        let has = ByteCount(pressure.saturating_mul(page));
        let of_path = |path: &Demand| {
            let plan = self.plan(path);
            plan.receive_buffer_bytes.max(plan.send_buffer_bytes).saturating_mul(path.connections.max(1) as u64)
        };
        let needed = ByteCount(self.paths.iter().map(of_path).fold(0, u64::saturating_add));
        if needed <= has {
            let reason = format!("all of TCP has {has} before it shrinks windows; these paths need {needed}");
            return Some(self.finding(setting, Effect::Fits, reason));
        }
        let reason = format!("these connections need {needed} of buffers, and TCP shrinks windows from {has} on");
        let pages = needed.0.div_ceil(page);
        let most = pages.saturating_add(pages / 2);
        let fits = most.saturating_mul(page) <= self.host.memory.0 / MEMORY_PART;
        let reason = match fits {
            true => reason,
            false => format!("{reason}; the host has {}: use fewer connections at a time", self.host.memory),
        };
        Some(Finding {
            recommended: fits.then(|| format!("{} {pages} {most}", pages / 4 * 3)),
            ..self.finding(setting, Effect::Costs, reason)
        })
    }

    fn backlog(&self) -> Option<Finding> {
        let setting = "core.netdev_max_backlog";
        let value = self.host.number(setting)?;
        if self.host.backlog_drops == 0 {
            return Some(self.finding(setting, Effect::Fits, "the queue of arrived packets was never full"));
        }
        let reason = format!("the queue of arrived packets was full: {} were dropped here", self.host.backlog_drops);
        Some(Finding {
            recommended: Some(value.saturating_mul(BACKLOG_FACTOR).min(i32::MAX as u64).to_string()),
            ..self.finding(setting, Effect::Costs, reason)
        })
    }
}

/// Returns the part of its target that a path has.
fn part((path, held): &(&Demand, BitRate)) -> f64 {
    held.0 as f64 / path.target_bps.max(1) as f64
}
