//! Plan of a path: buffers, windows, lanes, ramp and loss that a rate needs, without a network.

use std::time::Duration;

use serde::Serialize;
use sterna_proto::quantity::{bandwidth_delay_product, readable_time};
use sterna_proto::{BitRate, ByteCount};

use crate::kernel::{self, Buffers, KernelVersion};
use crate::response::{self, Control, PathFacts};

/// Spare part of a receive buffer. Reason: autotuning stops a little below its maximum.
const SPARE: f64 = 1.1;

/// Maximum number of connections that a plan recommends. Reason: servers and middleboxes count them; above it other
/// fixes are better.
const STREAMS_MAX: u64 = 64;

/// Size of the product whose transfer the plan predicts. Source: mean product of the Copernicus hubs.
const PRODUCT: ByteCount = ByteCount(700_000_000);

/// Question: a rate over a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wish {
    /// Rate of the slowest part of the path, and the wish, bit/s.
    pub rate: BitRate,
    /// Path.
    pub path: PathFacts,
    /// Kernel of both hosts.
    pub kernel: KernelVersion,
}

/// Limit of one TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanLimit {
    /// Receive buffer of the kernel's default.
    ReceiveBuffer,
    /// Send buffer of the kernel's default.
    SendBuffer,
    /// Largest window that TCP can announce.
    LargestWindow,
    /// Random loss with CUBIC.
    RandomLoss,
    /// Rate of the path.
    Path,
}

/// Limit with its rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Limit.
    pub limit: PlanLimit,
    /// Rate to which it holds one connection, bit/s.
    pub rate_bps: u64,
}

/// Answer. Sizes are bytes, rates bit/s, times seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Window that fills the path (bandwidth-delay product).
    pub window_bytes: u64,
    /// Receive buffer: third value of `net.ipv4.tcp_rmem` at the receiver.
    pub receive_buffer_bytes: u64,
    /// Send buffer: third value of `net.ipv4.tcp_wmem` at the sender.
    pub send_buffer_bytes: u64,
    /// The same with room for a recovery from losses.
    pub send_buffer_with_recovery_bytes: u64,
    /// Connections that fill the path with the kernel's defaults; `None`: more than is sensible.
    pub streams_with_defaults: Option<u64>,
    /// Time in which slow start fills the path.
    pub ramp_s: f64,
    /// Time in which CUBIC has its window again after a loss.
    pub recovery_s: f64,
    /// Mean rate of a new connection for a product of 700 MB, if nothing else limits it.
    pub product_bps: u64,
    /// Largest random loss with which one connection has the rate, by congestion control.
    pub loss_budget: LossBudget,
    /// Limits of one connection with the kernel's defaults, the lowest first. Below the first rate nothing limits.
    pub ladder: Vec<Step>,
}

/// Largest random loss, as part of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LossBudget {
    /// With Reno.
    pub reno: f64,
    /// With CUBIC.
    pub cubic: f64,
    /// With BBR.
    pub bbr: f64,
}

impl Plan {
    /// Computes the answer.
    pub fn new(wish: &Wish) -> Self {
        let Wish { rate, path, kernel } = wish;
        let window = bandwidth_delay_product(*rate, path.rtt);
        let defaults = Buffers::default_of(*kernel);
        let one = window.min(kernel::WINDOW_MAX);
        let send_buffer = kernel::send_buffer_for(one).0;
        let received = kernel::window_of(defaults.receive_max, *kernel);
        let sent = kernel::in_flight_of(defaults.send_max);
        let streams = window.0.div_ceil(received.0.min(sent.0).max(1)).max(1);
        let budget = |control| response::loss_budget(control, *rate, path);
        Self {
            window_bytes: window.0,
            receive_buffer_bytes: times(kernel::buffer_for(one, *kernel), SPARE).min(kernel::BUFFER_MAX.0),
            send_buffer_bytes: send_buffer,
            send_buffer_with_recovery_bytes: send_buffer.saturating_mul(2).min(kernel::BUFFER_MAX.0),
            streams_with_defaults: (streams <= STREAMS_MAX).then_some(streams),
            ramp_s: response::ramp(window, path).as_secs_f64(),
            recovery_s: response::cubic_recovery(window, path.mss).as_secs_f64(),
            product_bps: response::of_new_connection(PRODUCT, *rate, path) as u64,
            loss_budget: LossBudget {
                reno: budget(Control::Reno),
                cubic: budget(Control::Cubic),
                bbr: budget(Control::Bbr),
            },
            ladder: ladder(wish, received, sent),
        }
    }
}

impl PlanLimit {
    /// Returns the limit in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::ReceiveBuffer => "receive buffer",
            Self::SendBuffer => "send buffer",
            Self::LargestWindow => "largest window of TCP (1 GiB): use several connections",
            Self::RandomLoss => "random loss, with CUBIC",
            Self::Path => "the path",
        }
    }
}

/// Returns the plan in lines for people.
pub fn lines(wish: &Wish, plan: &Plan) -> Vec<String> {
    let bytes = ByteCount;
    let row = |name: &str, value: String, text: &str| format!("  {name:<16}{value:<12}{text}").trim_end().to_owned();
    let time = |seconds: f64| readable_time(Duration::from_secs_f64(seconds));
    let part = |loss: f64| format!("{loss:.1e}");
    let Wish { rate, path, kernel } = wish;
    let loss = if path.loss > 0.0 { format!(", loss {}", part(path.loss)) } else { String::new() };
    let streams = match plan.streams_with_defaults {
        Some(count) => count.to_string(),
        None => format!("over {STREAMS_MAX}"),
    };
    let defaults = Buffers::default_of(*kernel);
    // A setting below the default would take something away.
    let set = |setting: fn(ByteCount) -> String, most: u64, default: ByteCount| match most <= default.0 {
        true => format!("      the default of this kernel, {default}, is enough"),
        false => format!("      {}", setting(ByteCount(most))),
    };
    let mut lines = vec![
        format!("{rate} over {}{loss}, segments of {} bytes, kernel {kernel}", readable_time(path.rtt), path.mss),
        row("window", bytes(plan.window_bytes).to_string(), "fills the path"),
        row("receive buffer", bytes(plan.receive_buffer_bytes).to_string(), "at the receiver, at least:"),
        set(kernel::receive_setting, plan.receive_buffer_bytes, defaults.receive_max),
        row(
            "send buffer",
            bytes(plan.send_buffer_bytes).to_string(),
            "at the sender; twice that, if the path loses packets:",
        ),
        set(kernel::send_setting, plan.send_buffer_with_recovery_bytes, defaults.send_max),
        row("connections", streams, "fill the path with the kernel's default buffers"),
        row("slow start", time(plan.ramp_s), "until one connection fills the path"),
        row(
            "700 MB",
            BitRate(plan.product_bps).to_string(),
            "is the mean rate of such a file over a new connection without losses",
        ),
        row("recovery", time(plan.recovery_s), "after one loss, until CUBIC fills the path again"),
        row("loss", part(plan.loss_budget.cubic), "of the packets at most for this rate with CUBIC,"),
    ];
    let others = format!("{} with Reno, {} with BBR", part(plan.loss_budget.reno), part(plan.loss_budget.bbr));
    lines.push(row("", String::new(), &others));
    lines.push("limits of one connection with the kernel's default buffers, the lowest first:".to_owned());
    lines.extend(
        plan.ladder.iter().map(|step| format!("  {:<16}{}", BitRate(step.rate_bps).to_string(), step.limit.text())),
    );
    lines
}

/// Returns the limits of one connection that are not above the rate of the path, the lowest first.
fn ladder(wish: &Wish, received: ByteCount, sent: ByteCount) -> Vec<Step> {
    let Wish { rate, path, .. } = wish;
    let of = |window| response::of_window(window, path.rtt);
    let mut limits = vec![
        (PlanLimit::ReceiveBuffer, of(received)),
        (PlanLimit::SendBuffer, of(sent)),
        (PlanLimit::LargestWindow, of(kernel::WINDOW_MAX)),
        (PlanLimit::RandomLoss, response::of_loss(Control::Cubic, path, *rate)),
    ];
    limits.retain(|(_, limit)| *limit < rate.0 as f64);
    limits.sort_by(|a, b| a.1.total_cmp(&b.1));
    limits.push((PlanLimit::Path, rate.0 as f64));
    limits.into_iter().map(|(limit, rate)| Step { limit, rate_bps: rate as u64 }).collect()
}

fn times(bytes: ByteCount, factor: f64) -> u64 {
    (bytes.0 as f64 * factor) as u64
}

/// Returns the payload of a full segment on a path with an MTU: headers of IPv4 or IPv6, of TCP, and timestamps.
pub fn mss_of(mtu: u16) -> u32 {
    // 20 bytes of IPv4, 20 of TCP and 12 of timestamps.
    u32::from(mtu).saturating_sub(52).max(1)
}

/// Shortest round trip that a plan accepts. Reason: below it the formulas describe switches, not paths.
pub const RTT_MIN: Duration = Duration::from_micros(10);

/// Longest round trip that a plan accepts. Reason: that to Mars is longer, and TCP does not work there.
pub const RTT_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(rate_mbit: u64, rtt_ms: u64, loss: f64, kernel: KernelVersion) -> Plan {
        let path = PathFacts { rtt: Duration::from_millis(rtt_ms), mss: mss_of(1500), loss };
        Plan::new(&Wish { rate: BitRate::megabits(rate_mbit), path, kernel })
    }

    #[test]
    fn the_second_limit_is_known_before_the_first_is_fixed() {
        // GRNET: 10 Gbit/s over 8 ms with the defaults of its time.
        let old = plan(10_000, 8, 0.0, KernelVersion::new(4, 9));
        let ladder: Vec<_> = old.ladder.iter().map(|step| (step.limit, step.rate_bps / 10_000_000)).collect();
        let expected = [(PlanLimit::ReceiveBuffer, 314), (PlanLimit::SendBuffer, 406), (PlanLimit::Path, 1000)];
        assert_eq!(ladder, expected);
        // From 6.16 on, the send buffer is the first.
        let new = plan(10_000, 148, 1e-6, KernelVersion::new(6, 18));
        let ladder: Vec<_> = new.ladder.iter().map(|step| step.limit).collect();
        use PlanLimit::{Path, RandomLoss, ReceiveBuffer, SendBuffer};
        assert_eq!(ladder, [SendBuffer, RandomLoss, ReceiveBuffer, Path]);
    }

    #[test]
    fn a_plan_reads_as_the_paper_of_an_engineer() {
        // Computed apart from this code.
        let path = PathFacts { rtt: Duration::from_millis(148), mss: mss_of(1500), loss: 1e-6 };
        let wish = Wish { rate: BitRate::megabits(10_000), path, kernel: KernelVersion::new(6, 1) };
        let text = lines(&wish, &Plan::new(&wish)).join("\n");
        let expected = "\
10.0 Gbit/s over 148 ms, loss 1.0e-6, segments of 1448 bytes, kernel 6.1
  window          185 MB      fills the path
  receive buffer  407 MB      at the receiver, at least:
      sysctl -w net.ipv4.tcp_rmem='4096 131072 407000000'
  send buffer     191 MB      at the sender; twice that, if the path loses packets:
      sysctl -w net.ipv4.tcp_wmem='4096 16384 381443300'
  connections     59          fill the path with the kernel's default buffers
  slow start      2 s         until one connection fills the path
  700 MB          2.30 Gbit/s is the mean rate of such a file over a new connection without losses
  recovery        46 s        after one loss, until CUBIC fills the path again
  loss            2.5e-8      of the packets at most for this rate with CUBIC,
                              9.1e-11 with Reno, 1.5e-1 with BBR
limits of one connection with the kernel's default buffers, the lowest first:
  170 Mbit/s      receive buffer
  220 Mbit/s      send buffer
  622 Mbit/s      random loss, with CUBIC
  10.0 Gbit/s     the path";
        assert_eq!(text, expected);
        let short =
            Wish { rate: BitRate::megabits(1000), path: PathFacts { rtt: Duration::from_millis(8), ..path }, ..wish };
        let text = lines(&short, &Plan::new(&short)).join("\n");
        assert!(text.contains("the default of this kernel, 6.29 MB, is enough") && !text.contains("sysctl"), "{text}");
    }

    #[test]
    fn buffers_are_those_of_the_published_tables() {
        let old = plan(10_000, 148, 0.0, KernelVersion::new(6, 1));
        assert_eq!(old.window_bytes, 185_000_000);
        assert_eq!(old.receive_buffer_bytes, 407_000_000);
        assert_eq!(old.streams_with_defaults, Some(59));
        let fast = plan(100_000, 148, 0.0, KernelVersion::new(6, 1));
        assert_eq!((fast.streams_with_defaults, fast.receive_buffer_bytes), (None, 2_147_483_647));
        assert!(fast.ladder.iter().any(|step| step.limit == PlanLimit::LargestWindow), "{fast:?}");
        let short = plan(1000, 8, 0.0, KernelVersion::new(6, 18));
        assert_eq!(short.streams_with_defaults, Some(1));
        assert_eq!(short.ladder, [Step { limit: PlanLimit::Path, rate_bps: 1_000_000_000 }]);
        assert!(short.send_buffer_bytes > 1_000_000 && short.send_buffer_with_recovery_bytes > 2_000_000);
    }
}
