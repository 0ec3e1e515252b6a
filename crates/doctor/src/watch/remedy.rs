//! Verdicts on a path that was observed: evidence, remedy, and the rate that follows.

use std::net::IpAddr;
use std::time::Instant;

use serde::Serialize;
use sterna_proto::limit::{Facts, Limit, remedy};
use sterna_proto::quantity::{bandwidth_delay_product, readable_time};
use sterna_proto::{BitRate, ByteCount};

use super::bound::Bound;
use super::ends::{Direction, HostLimits};
use super::share::Share;
use crate::kernel::{self, KernelVersion};
use crate::response::{self, Control, PathFacts};

/// Limit of a path, with what follows from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Limit.
    pub limit: Bound,
    /// Share of the time, from 0 to 1.
    pub share: f64,
    /// Strength of the evidence.
    pub basis: Basis,
    /// Observations.
    pub evidence: Vec<String>,
    /// Action, in words and numbers for this path and kernel.
    pub remedy: String,
    /// Rate after the action, bit/s; `None` if it cannot be predicted from outside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_bps: Option<u64>,
}

/// Strength of the evidence for a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Both ends were visible, or the kernel counts the time.
    Counted,
    /// Concluded from windows, round trips and losses. An experiment would prove it.
    Inferred,
}

/// Properties of the connections of a path.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Congestion control.
    pub congestion: String,
    /// Payload of a full segment, bytes.
    pub mss: u32,
    /// Shift count of the receiver's windows.
    pub receiver_scale: u8,
    /// Largest window of the receiver, and the time at which it last rose by a tenth.
    pub window: Option<(ByteCount, Instant)>,
    /// True if a program has set its send buffer.
    pub is_send_buffer_set: bool,
    /// Largest receive buffer of a receiver on this host, and the time at which it last rose.
    pub buffer: Option<(ByteCount, Instant)>,
}

/// Path with its measurements, as the input of a verdict.
pub struct Case<'a> {
    /// Direction of the data.
    pub direction: Direction,
    /// Measurements of the accountant.
    pub facts: Facts,
    /// Properties of the connections.
    pub seen: &'a Seen,
    /// Settings of this host.
    pub host: &'a HostLimits,
    /// Address of the other host.
    pub remote: IpAddr,
    /// Mean rate of all connections.
    pub rate: BitRate,
    /// Number of connections.
    pub connections: usize,
    /// True if the receiver is on this host.
    pub is_receiver_here: bool,
    /// True if the receive window does not grow any more.
    pub is_window_settled: bool,
    /// True if the receive buffer of a receiver on this host does not grow any more.
    pub is_buffer_settled: bool,
}

/// Last version of the kernel that gives half of a receive buffer as window.
const HALF: KernelVersion = KernelVersion::new(6, 5);

/// First version that measures the ratio of window to buffer.
const MEASURES: KernelVersion = KernelVersion::new(6, 6);

/// Window scale with the smallest default maximum of Linux since 2.6.17, 4 MB.
const SCALE_OF_DEFAULT: u8 = 7;

/// Part of a policed rate at which packets pass without loss; see SMART-1.
const BELOW_POLICER: f64 = 0.95;

/// Rate of a path without a round trip, or of a limit that does not bind.
const UNBOUNDED: BitRate = BitRate(u64::MAX);

/// Returns the verdict on a limit.
pub fn verdict(share: Share, case: &Case<'_>) -> Verdict {
    let (basis, evidence, (remedy, predicted)) = match share.limit {
        Bound::ReceiveWindow => case.receive_window(),
        Bound::SendBuffer => case.send_buffer(),
        Bound::Reader => case.reader(),
        Bound::Writer => case.writer(),
        Bound::Growing => case.growing(),
        Bound::Loss => case.loss(),
        Bound::Policer => case.policer(),
        other => (Basis::Inferred, Vec::new(), (case.plain(other), None)),
    };
    let limit = match share.limit {
        Bound::ReceiveWindow if case.facts.is_unscaled => Bound::NoWindowScaling,
        limit => limit,
    };
    Verdict { limit, share: share.share, basis, evidence, remedy, predicted_bps: predicted }
}

type Finding = (Basis, Vec<String>, (String, Option<u64>));

impl Case<'_> {
    /// Returns the rate at which a window holds one connection.
    fn of_window(&self, window: ByteCount) -> BitRate {
        match self.facts.rtt.is_zero() {
            true => UNBOUNDED,
            false => BitRate(response::of_window(window, self.facts.rtt) as u64),
        }
    }

    /// Returns the largest window that the receiver can ever announce on these connections.
    fn window_ceiling(&self) -> ByteCount {
        kernel::window_of_scale(self.seen.receiver_scale).min(kernel::WINDOW_MAX)
    }

    /// Returns twice a rate of one connection for all connections, but at most the rate of the next limit, with the
    /// words for that.
    fn doubled(&self, now: BitRate, next: BitRate, name: &str) -> (u64, String) {
        let all = |rate: u64| rate.saturating_mul(self.connections.max(1) as u64);
        let twice = now.0.saturating_mul(2);
        match next.0 < twice {
            true => (all(next.0), format!(" Then the {name} binds, at {next} a connection.")),
            false => (all(twice), String::new()),
        }
    }

    fn place_of_receiver(&self) -> String {
        if self.is_receiver_here { "this host".to_owned() } else { self.remote.to_string() }
    }

    fn receive_window(&self) -> Finding {
        let Self { facts, seen, .. } = self;
        let window = facts.receive_window;
        let most = self.of_window(window);
        let rtt = readable_time(facts.rtt);
        let mut evidence = vec![format!("the largest window is {window}: at most {most} a connection over {rtt}")];
        let basis = if self.direction == Direction::Out { Basis::Counted } else { Basis::Inferred };
        let place = self.place_of_receiver();
        if facts.is_unscaled {
            let text = format!(
                "Window scaling is off: set net.ipv4.tcp_window_scaling to 1 at both ends, and have the option of the \
                 SYN passed by the devices between. Until then, n connections carry n times {most}."
            );
            return (basis, evidence, (text, None));
        }
        if self.is_receiver_here && self.is_buffer_settled && self.is_below(facts.receive_buffer) {
            let allowed = kernel::window_of(self.host.buffers.receive_max, self.host.kernel);
            let text = format!(
                "The program at {place} holds its receive buffer at {}: remove its setting (SO_RCVBUF), and the \
                 kernel tunes the window up to {allowed}.",
                facts.receive_buffer
            );
            return (basis, evidence, (text, Some(self.of_window(allowed).0)));
        }
        if !self.is_window_settled {
            let text = "The window still grows, as fast as the program reads: longer transfers get more. A window \
                        that is ready at the start needs a larger middle value of net.ipv4.tcp_rmem at the receiver.";
            return (basis, evidence, (text.to_owned(), None));
        }
        let scale = seen.receiver_scale;
        if !self.is_receiver_here && scale > 0 {
            let setting = kernel::setting_of_scale(scale);
            evidence.push(format!(
                "its window scale is {scale}: the larger of tcp_rmem max and rmem_max there is {setting}"
            ));
            if scale < SCALE_OF_DEFAULT {
                let text = format!(
                    "The buffer at {place} is below the default of Linux: the program there sets it (SO_RCVBUF). \
                     Remove that setting, or raise it."
                );
                return (basis, evidence, (text, None));
            }
        }
        let wanted = ByteCount(window.0.saturating_mul(2)).min(kernel::WINDOW_MAX);
        let sends = kernel::in_flight_of(self.host.buffers.send_max);
        let next = if self.direction == Direction::Out { self.of_window(sends) } else { UNBOUNDED };
        let (predicted, then) = self.doubled(most, next, "send buffer of this host");
        let setting = |version| kernel::receive_setting(kernel::buffer_for(wanted, version));
        let settings = match self.is_receiver_here {
            true => setting(self.host.kernel),
            false => format!("{} (from kernel 6.6 on), or {} (before)", setting(MEASURES), setting(HALF)),
        };
        let text = format!(
            "At {place}: {settings}, for twice the window; then open new connections, because the scale of a window \
             is fixed at its start. Without that setting, n connections carry n times {most}.{then}"
        );
        (basis, evidence, (text, Some(predicted)))
    }

    /// Returns true if a receive buffer is well below the maximum of this host.
    fn is_below(&self, buffer: ByteCount) -> bool {
        (1..self.host.buffers.receive_max.0 / 10 * 9).contains(&buffer.0)
    }

    fn send_buffer(&self) -> Finding {
        let Self { facts, seen, host, .. } = self;
        let in_flight = kernel::in_flight_of(facts.send_buffer);
        let most = self.of_window(in_flight);
        let rtt = readable_time(facts.rtt);
        let buffer = facts.send_buffer;
        let evidence = vec![format!(
            "a send buffer of {buffer} holds {in_flight} in flight: at most {most} a connection over {rtt}"
        )];
        let next = self.of_window(self.window_ceiling());
        if seen.is_send_buffer_set {
            let allowed = kernel::in_flight_of(host.buffers.send_max);
            let rate = self.of_window(allowed).min(next);
            let text = format!(
                "The program holds its send buffer at {buffer}: remove its setting (SO_SNDBUF), and the kernel tunes \
                 it up to {}, for {rate} a connection.",
                host.buffers.send_max
            );
            return (Basis::Inferred, evidence, (text, Some(rate.0)));
        }
        let (predicted, then) = self.doubled(most, next, "receive window");
        let setting = kernel::send_setting(ByteCount(buffer.0.saturating_mul(2)).min(kernel::BUFFER_MAX));
        let text = format!(
            "At this host: {setting}, for twice the data in flight. Without that setting, n connections carry n times \
             {most}.{then}"
        );
        (Basis::Counted, evidence, (text, Some(predicted)))
    }

    fn reader(&self) -> Finding {
        let place = self.place_of_receiver();
        let (basis, evidence) = match self.is_receiver_here {
            true => (Basis::Counted, "data that arrived is not read: its receive buffer is filled".to_owned()),
            false => (
                Basis::Inferred,
                format!("the window closes, although up to {} was announced", self.facts.receive_window),
            ),
        };
        let text = format!(
            "The program at {place} reads late: look at its disk and processors. A larger buffer does not help."
        );
        (basis, vec![evidence], (text, None))
    }

    fn writer(&self) -> Finding {
        let evidence = vec!["nothing waited to be sent, and neither window nor buffer was full".to_owned()];
        let text = "The program that sends gives too little data: look at its disk, its processors, and whether it \
                    waits for an answer before it sends more. Over a long path, requests in parallel help.";
        (Basis::Counted, evidence, (text.to_owned(), None))
    }

    fn growing(&self) -> Finding {
        let Self { facts, seen, .. } = self;
        let path = PathFacts { rtt: facts.rtt, mss: seen.mss.max(1), loss: 0.0 };
        let window = bandwidth_delay_product(facts.rate.max(self.rate), facts.rtt);
        let ramp = readable_time(response::ramp(window, &path));
        let evidence = vec![format!(
            "neither losses nor a queue stop the congestion window yet; slow start to {window} takes {ramp}"
        )];
        let text = "Longer transfers get more: send more files on one connection, and set \
                    net.ipv4.tcp_slow_start_after_idle to 0 at the sender, so that a pause does not start again.";
        (Basis::Inferred, evidence, (text.to_owned(), None))
    }

    fn loss(&self) -> Finding {
        let Self { facts, seen, .. } = self;
        let loss = facts.loss_ppm as f64 / 1e6;
        let path = PathFacts { rtt: facts.rtt, mss: seen.mss.max(1), loss };
        let control = if seen.congestion.starts_with("reno") { Control::Reno } else { Control::Cubic };
        let held = BitRate(response::of_loss(control, &path, UNBOUNDED).min(1e15) as u64);
        let evidence = vec![format!(
            "{:.3} % of the segments were sent again, without a queue before; {} then has about {held} a connection",
            loss * 100.0,
            seen.congestion
        )];
        let text = "Find where packets are lost: error counters of the links, optics, cables. Until then, bbr \
                    (net.ipv4.tcp_congestion_control at the sender) does not slow down for isolated losses, and n \
                    connections carry n times as much.";
        (Basis::Inferred, evidence, (text.to_owned(), None))
    }

    fn policer(&self) -> Finding {
        let Self { facts, .. } = self;
        let below = BitRate((facts.policed.0 as f64 * BELOW_POLICER) as u64);
        let rate = if facts.policed_is_least { " or above" } else { "" };
        let rtt = readable_time(facts.rtt);
        let bucket = bandwidth_delay_product(facts.policed, facts.rtt);
        let evidence = vec![format!("losses come in bursts or evenly, as of a policer at{rate} {}", facts.policed)];
        let text = format!(
            "Have the limit lifted, or its burst raised to {bucket} ({rtt} at that rate). Until then, send at {below} \
             (tc-fq maxrate, or SO_MAX_PACING_RATE): nothing is dropped there."
        );
        (Basis::Inferred, evidence, (text, (facts.policed.0 > 0).then_some(below.0)))
    }

    /// Returns the remedy of a limit that needs no arithmetic here.
    fn plain(&self, limit: Bound) -> String {
        let of_accountant = |limit| remedy(limit, &self.facts).map(|remedy| remedy.cause).unwrap_or_default();
        match limit {
            Bound::Full => {
                let rate = self.facts.rate.max(self.rate);
                format!("The path is full at {rate}: nothing at the hosts helps. Look for what else fills it.")
            }
            Bound::AckPath => "Acknowledgements wait in the return direction: look for what fills it.".to_owned(),
            Bound::RateCap => {
                "The program capped its rate (SO_MAX_PACING_RATE): raise the cap if the path carries more.".to_owned()
            }
            Bound::SenderOrPath => format!(
                "Nothing at this host holds the data up ({}). Run the same command at {}.",
                of_accountant(Limit::ServerOrPath),
                self.remote
            ),
            Bound::Silence => {
                format!("Nothing came back from {}: look at the path and at that host.", self.remote)
            }
            _ => "This host was busy or stopped: look at its processors.".to_owned(),
        }
    }
}
