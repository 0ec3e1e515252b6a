//! Remedies for a limit: the cause in words and numbers, and the advice as a value.

use std::time::Duration;

use serde::Serialize;

use super::Limit;
use crate::quantity::readable_time;
use crate::{BitRate, ByteCount};

/// Explanation of a limit, and the action against it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedy {
    /// Cause, with its numbers. Names no flag.
    pub cause: String,
    /// Action that the user can take with settings of Sterna; `None` if no setting helps, or if the cause names the
    /// action.
    pub advice: Option<Advice>,
}

/// Action against a limit by settings of Sterna. A user interface writes it in its own words.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Advice {
    /// More memory for data in flight at this end.
    Memory,
    /// More memory for data in flight at the receiver.
    MemoryOfReceiver,
    /// A higher loss ceiling: the rate yields to more loss than that, and to losses beside a queue.
    LossCeiling,
    /// QUIC, which sends fewer acknowledgements than TCP.
    QuicForFewerAcknowledgements,
    /// QUIC, which spreads packets and finds the rate.
    QuicForPacing,
    /// QUIC, which has no window of 64 KiB.
    QuicForWindow,
    /// QUIC with the rate of the path, which does not slow down for isolated loss.
    QuicAtPathRate,
    /// QUIC at a rate that a policer lets through.
    QuicBelowPolicer {
        /// The rate, bit/s.
        rate_bps: u64,
    },
}

impl Remedy {
    fn new(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), advice: None }
    }

    fn advise(self, advice: Advice) -> Self {
        Self { advice: Some(advice), ..self }
    }
}

/// Measurements for the remedies; zero if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Facts {
    /// Smallest round-trip time.
    pub rtt: Duration,
    /// Mean delivery rate of all lanes together in the last seconds.
    pub rate: BitRate,
    /// Mean rate of all delivered data, on the wire, in the time with something to send.
    pub reached: BitRate,
    /// The given rate.
    pub rate_cap: BitRate,
    /// Rate of a policer on the wire, as far as it is known.
    pub policed: BitRate,
    /// True if `policed` is a lower bound: the policer's rate may be higher.
    pub policed_is_least: bool,
    /// True if the policer was seen to drop packets of QUIC.
    pub policed_over_quic: bool,
    /// Read rate of the source, over the time in which the lanes waited for it.
    pub source: BitRate,
    /// Write rate of the destination.
    pub destination: BitRate,
    /// Largest window that the receiver announced to one lane.
    pub receive_window: ByteCount,
    /// Receive buffer of such a lane.
    pub receive_buffer: ByteCount,
    /// Size up to which the receiver's kernel lets this buffer grow.
    pub receive_buffer_max: ByteCount,
    /// Send buffer of a lane.
    pub send_buffer: ByteCount,
    /// Size up to which the sender's kernel lets this buffer grow.
    pub send_buffer_max: ByteCount,
    /// Share of the session's packets that were lost, in parts per million.
    pub loss_ppm: u64,
    /// Number of these lost packets.
    pub lost: u64,
    /// Packets that the path delivered and the receiving host dropped; not included in `lost`.
    pub overrun: u64,
    /// Lanes that are up.
    pub lanes: u64,
    /// True if the lanes are QUIC lanes.
    pub is_quic: bool,
    /// True if the congestion window still grew for most of the time in which it was the limit.
    pub is_growing: bool,
    /// True if the receiver's processors were short, not the sender's.
    pub cpu_at_receiver: bool,
    /// True if windows are not scaled: a lane has at most 64 KiB in flight, for any size of its buffers.
    pub is_unscaled: bool,
    /// True if the lanes read from web servers and write here: windows and processors are those of this host.
    pub is_web: bool,
    /// Part of the time waited for web servers in which packets arrived out of order, in parts per million.
    pub disordered_ppm: u64,
}

/// Share of a receive buffer that is payload in flight, if it was not measured. Reason: a receive window was half of
/// its buffer up to Linux 6.5 and starts there since.
pub const RECEIVE_SHARE: f64 = 0.5;

/// Share of a full send buffer that is payload in flight. Measured on Linux 6.18: 0.983 at MTU 1500, 0.970 at 9000.
pub const SEND_SHARE: f64 = 0.97;

/// Share of payload in packets on the wire: full packets at MTU 1500, with the largest overhead of a transport.
const PAYLOAD_MIN: f64 = 0.95;

/// Largest window without window scaling, in bytes (RFC 9293).
const UNSCALED_WINDOW: u64 = 65_535;

/// Reordering worth a message, in parts per million of the time. Reason: one loss in a copy of seconds explains
/// nothing.
const DISORDER_MIN: u64 = 50_000;

/// Smallest round-trip time for which the effect of a larger buffer is reported. Reason: within a host that rate
/// exceeds any other limit.
const RTT_TOLD_MIN: Duration = Duration::from_micros(100);

/// Ratio of TCP's rate to the policed rate of QUIC, above which TCP is not policed too. Reason: the policer's token
/// bucket, and measurement errors.
const MORE: f64 = 1.1;

/// Part of a policed rate at which packets pass without loss. Source: SMART-1 report; the reserve covers bursts.
const BELOW_POLICER: f64 = 0.95;

/// Returns the explanation of `limit` and its remedy; `None` if the name is enough.
pub fn remedy(limit: Limit, facts: &Facts) -> Option<Remedy> {
    match limit {
        Limit::ReceiveWindow if facts.is_quic => {
            Some(Remedy::new(format!("{} in flight on a lane", facts.receive_window)).advise(Advice::MemoryOfReceiver))
        }
        Limit::ReceiveWindow if facts.is_unscaled => Some(Remedy::new(unscaled(facts)).advise(Advice::QuicForWindow)),
        Limit::SendBuffer if facts.is_quic => {
            Some(Remedy::new("the memory for data in flight is in use").advise(Advice::Memory))
        }
        Limit::Loss => Some(loss(facts)),
        Limit::Policer => (facts.policed.0 > 0).then(|| policer(facts)),
        Limit::AckPath => Some(ack_path(facts)),
        _ => cause(limit, facts).map(Remedy::new),
    }
}

/// Returns the explanation of a limit that no setting of Sterna changes; `None` if the name is enough.
fn cause(limit: Limit, facts: &Facts) -> Option<String> {
    match limit {
        Limit::ReceiveWindow => receive_window(facts),
        Limit::SendBuffer => send_buffer(facts),
        Limit::CongestionWindow if facts.is_growing => Some("it is still growing: longer copies get more".to_owned()),
        Limit::CongestionWindow => (facts.rate.0 > 0).then(|| format!("the path is full at {}", facts.rate)),
        Limit::SourceDisk => disk("it reads", facts.disk_range(facts.source)),
        Limit::DestinationDisk => disk("it takes", facts.disk_range(facts.destination)),
        Limit::Cpu if facts.is_web => Some("the processors of this host are busy".to_owned()),
        Limit::Cpu => Some(match facts.cpu_at_receiver {
            true if facts.overrun > 0 => format!(
                "the receiver's processors are busy: its sockets dropped {} packets that the path had brought",
                facts.overrun
            ),
            true => "the receiver's processors are busy".to_owned(),
            false => "the sender's processors are busy".to_owned(),
        }),
        Limit::RateCap => (facts.rate_cap.0 > 0).then(|| format!("{} as given", facts.rate_cap)),
        Limit::Loss | Limit::Policer | Limit::AckPath | Limit::NothingToSend => None,
        Limit::ServerOrPath => Some(server_or_path(facts)),
        Limit::Silence => Some("nothing came back: the path was away, or the host at its other end".to_owned()),
    }
}

/// Describes a policer. A proposed rate is never below the rate that the copy reached with its losses.
fn policer(facts: &Facts) -> Remedy {
    let passes_tcp = facts.policed_over_quic && !facts.is_quic && facts.rate.0 as f64 > facts.policed.0 as f64 * MORE;
    if passes_tcp {
        let asked = "TCP passes, and carries the rest; have it lifted for UDP";
        return Remedy::new(format!("drops QUIC above {}; {asked}", facts.policed));
    }
    if facts.policed_is_least {
        let most = facts.policed.max(facts.reached);
        let remedy = Remedy::new(format!("it lets at least {most} through, and drops bursts"));
        return if facts.is_quic { remedy } else { remedy.advise(Advice::QuicForPacing) };
    }
    let below = BitRate((facts.policed.0 as f64 * BELOW_POLICER) as u64).max(facts.reached);
    Remedy::new(format!("drops above {}", facts.policed)).advise(Advice::QuicBelowPolicer { rate_bps: below.0 })
}

fn ack_path(facts: &Facts) -> Remedy {
    let waits = "acknowledgements wait in a full return direction";
    match facts.is_quic {
        true => Remedy::new(format!("{waits}: look for what fills it")),
        false => Remedy::new(waits).advise(Advice::QuicForFewerAcknowledgements),
    }
}

fn server_or_path(facts: &Facts) -> String {
    match facts.disordered_ppm {
        ..DISORDER_MIN => "nothing at this end held it back".to_owned(),
        share => format!(
            "packets were lost or overtaken in {:.0} % of its time; a server with bbr does not slow down for losses",
            share as f64 / 10_000.0
        ),
    }
}

fn receive_window(facts: &Facts) -> Option<String> {
    if facts.receive_buffer_max.0 == 0 {
        let window = (facts.receive_window.0 > 0).then(|| format!("{} in flight at most", facts.receive_window));
        return window;
    }
    let share = measured_share(facts.receive_window, facts.receive_buffer).unwrap_or(RECEIVE_SHARE);
    let name = if facts.is_web { "tcp_rmem max of this host" } else { "peer rmem max" };
    // Another maximum does not help while the kernel has not used half of this one.
    if facts.receive_buffer.0 > 0 && facts.receive_buffer.0 < facts.receive_buffer_max.0 / 2 {
        return Some(format!("still growing; {name} {}", facts.receive_buffer_max));
    }
    Some(buffer_words(name, facts.receive_buffer_max, share, facts))
}

/// Returns the rate of a window of 16 bits, and the cause of the missing option for a larger one (RFC 7323).
fn unscaled(facts: &Facts) -> String {
    let carries = |rtt: Duration| BitRate((UNSCALED_WINDOW as f64 * 8.0 / rtt.as_secs_f64()) as u64);
    let rate = match facts.rtt {
        Duration::ZERO => String::new(),
        rtt => format!(", {} at {}", carries(rtt), readable_time(rtt)),
    };
    format!(
        "no window scaling: 64 KiB in flight on a lane{rate}; a middlebox on the path strips the option, or net.ipv4.tcp_window_scaling is 0 at \
         an end"
    )
}

fn send_buffer(facts: &Facts) -> Option<String> {
    let known = facts.send_buffer_max.0 > 0;
    let in_flight = facts.rate.0 as f64 / 8.0 * facts.rtt.as_secs_f64() / facts.lanes.max(1) as f64;
    let share = measured_share(ByteCount(in_flight as u64), facts.send_buffer_max).unwrap_or(SEND_SHARE);
    known.then(|| buffer_words("tcp_wmem max", facts.send_buffer_max, share, facts))
}

fn measured_share(window: ByteCount, buffer: ByteCount) -> Option<f64> {
    let share = window.0 as f64 / buffer.0 as f64;
    (0.2..=1.0).contains(&share).then_some(share)
}

/// Returns text such as `peer rmem max 6.29 MB; 16.8 MB would allow 8.39 Gbit/s at 8 ms`.
fn buffer_words(name: &str, max: ByteCount, share: f64, facts: &Facts) -> String {
    let mut words = format!("{name} {max}");
    if facts.rtt < RTT_TOLD_MIN {
        return words;
    }
    let lanes = facts.lanes.max(1) as f64;
    // The larger of the need of the given rate and twice the maximum, rounded up to a power of two.
    let needed = (facts.rate_cap.0 as f64 / 8.0 * facts.rtt.as_secs_f64() / share / lanes) as u64;
    let larger = max.0.saturating_mul(2).max(needed).checked_next_power_of_two().unwrap_or(u64::MAX);
    let allowed = BitRate((larger as f64 * share * 8.0 * lanes / facts.rtt.as_secs_f64()) as u64);
    words.push_str(&format!("; {} would allow {allowed} at {}", ByteCount(larger), readable_time(facts.rtt)));
    words
}

impl Facts {
    /// Returns the lowest and the highest possible rate of a disk. Reason: the kernel works for the disk also while no
    /// lane waits. So `rate`, taken over the time waited, is the upper bound, and the rate that the copy reached the
    /// lower.
    pub fn disk_range(&self, rate: BitRate) -> (BitRate, BitRate) {
        let payload = BitRate((self.reached.0 as f64 * PAYLOAD_MIN) as u64);
        if payload.0 == 0 { (rate, rate) } else { (payload.min(rate), rate) }
    }

    /// Returns the lowest and the highest loss of the path, in parts per million, estimated from the packets of this
    /// session. One session in twenty is outside this interval (Wilson, 1927).
    pub fn loss_range_ppm(&self) -> (u64, u64) {
        let (lost, share) = (self.lost as f64, self.loss_ppm as f64 / 1e6);
        if lost == 0.0 || share == 0.0 {
            return (self.loss_ppm, self.loss_ppm);
        }
        let (sent, z) = (lost / share, 1.96_f64);
        let middle = share + z * z / (2.0 * sent);
        let spread = z * (share * (1.0 - share) / sent + (z / (2.0 * sent)).powi(2)).sqrt();
        let ppm = |bound: f64| (bound / (1.0 + z * z / sent) * 1e6).round() as u64;
        (ppm(middle - spread), ppm(middle + spread))
    }
}

fn loss(facts: &Facts) -> Remedy {
    let percent = |ppm: u64| match ppm as f64 / 10_000.0 {
        percent if percent < 0.095 => format!("{percent:.3}"),
        percent => format!("{percent:.1}"),
    };
    let share = match facts.loss_range_ppm() {
        (least, most) if most > least + facts.loss_ppm / 5 => format!("{} to {} %", percent(least), percent(most)),
        _ => format!("{} %", percent(facts.loss_ppm)),
    };
    let advice = if facts.is_quic { Advice::LossCeiling } else { Advice::QuicAtPathRate };
    Remedy::new(format!("{share} of packets")).advise(advice)
}

fn disk(what: &str, (least, most): (BitRate, BitRate)) -> Option<String> {
    let of_most = format!("{}/s", ByteCount(most.0 / 8));
    (most.0 > 0).then(|| match least.0 * 10 < most.0 * 9 {
        true => format!("{what} {}/s to {of_most}", ByteCount(least.0 / 8)),
        false => format!("{what} {of_most}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_are_those_of_the_cases_that_people_solved_by_hand() {
        let facts = Facts {
            rtt: Duration::from_millis(8),
            receive_buffer: ByteCount(6_291_456),
            receive_buffer_max: ByteCount(6_291_456),
            receive_window: ByteCount(3_145_728),
            send_buffer_max: ByteCount(4_194_304),
            lanes: 1,
            ..Facts::default()
        };
        // GRNET: 6 MB are a window of 3 MB; 16 MiB would have allowed 8.39 Gbit/s.
        let cause = |limit, facts: &Facts| remedy(limit, facts).unwrap().cause;
        let said = cause(Limit::ReceiveWindow, &facts);
        assert_eq!(said, "peer rmem max 6.29 MB; 16.8 MB would allow 8.39 Gbit/s at 8 ms");
        let said = cause(Limit::SendBuffer, &facts);
        assert_eq!(said, "tcp_wmem max 4.19 MB; 8.39 MB would allow 8.14 Gbit/s at 8 ms");
        let unscaled = Facts { is_unscaled: true, rtt: Duration::from_millis(200), ..facts };
        assert_eq!(remedy(Limit::ReceiveWindow, &unscaled).unwrap().advice, Some(Advice::QuicForWindow));
        let said = cause(Limit::ReceiveWindow, &unscaled);
        assert!(said.starts_with("no window scaling: 64 KiB in flight on a lane, 2.62 Mbit/s at 200 ms; "), "{said}");
        let growing = Facts { receive_buffer: ByteCount(500_000), ..facts };
        assert_eq!(cause(Limit::ReceiveWindow, &growing), "still growing; peer rmem max 6.29 MB");
        let asked = Facts { rate_cap: BitRate::megabits(10_000), rtt: Duration::from_millis(148), ..facts };
        let said = cause(Limit::ReceiveWindow, &asked);
        assert_eq!(said, "peer rmem max 6.29 MB; 537 MB would allow 14.5 Gbit/s at 148 ms");
    }

    #[test]
    fn other_remedies_have_the_numbers_of_what_to_do() {
        let facts = Facts {
            rate: BitRate::megabits(940),
            policed: BitRate::megabits(30),
            source: BitRate::megabits(160),
            loss_ppm: 5000,
            ..Facts::default()
        };
        let of = |limit, facts: &Facts| remedy(limit, facts).map(|remedy| (remedy.cause, remedy.advice)).unwrap();
        let said = |limit| of(limit, &facts);
        let alone = |cause: &str| (cause.to_owned(), None);
        let with = |cause: &str, advice| (cause.to_owned(), Some(advice));
        let below = |rate_bps| with("drops above 30.0 Mbit/s", Advice::QuicBelowPolicer { rate_bps });
        assert_eq!(said(Limit::CongestionWindow), alone("the path is full at 940 Mbit/s"));
        assert_eq!(said(Limit::Policer), below(28_500_000));
        let reached = Facts { reached: BitRate(29_400_000), ..facts };
        assert_eq!(of(Limit::Policer, &reached), below(29_400_000), "no less than it had");
        let of_udp = Facts { policed_over_quic: true, is_quic: false, rate: BitRate(facts.policed.0 * 8), ..facts };
        let (words, advice) = of(Limit::Policer, &of_udp);
        assert!(words.contains("TCP passes") && advice.is_none(), "{words}");
        let least = of(Limit::Policer, &Facts { policed_is_least: true, ..facts });
        assert_eq!(least, with("it lets at least 30.0 Mbit/s through, and drops bursts", Advice::QuicForPacing));
        assert_eq!(said(Limit::SourceDisk), alone("it reads 20.0 MB/s"));
        let slower = Facts { reached: BitRate::megabits(100), ..facts };
        assert_eq!(of(Limit::SourceDisk, &slower), alone("it reads 11.9 MB/s to 20.0 MB/s"));
        assert_eq!(said(Limit::Loss), with("0.5 % of packets", Advice::QuicAtPathRate));
        let few = Facts { lost: 20, ..facts };
        assert_eq!(of(Limit::Loss, &few), with("0.3 to 0.8 % of packets", Advice::QuicAtPathRate));
        let over_quic = Facts { is_quic: true, receive_window: ByteCount(1_000_000), ..facts };
        assert_eq!(of(Limit::Loss, &over_quic), with("0.5 % of packets", Advice::LossCeiling));
        let window = of(Limit::ReceiveWindow, &over_quic);
        assert_eq!(window, with("1.00 MB in flight on a lane", Advice::MemoryOfReceiver));
        assert_eq!(of(Limit::SendBuffer, &over_quic).1, Some(Advice::Memory));
        assert_eq!(remedy(Limit::NothingToSend, &facts), None);
    }
}
