//! Decisions about a session, before and during it: transport, number of lanes. Pure functions of measurements.

use std::time::Duration;

pub use crate::via::Via;

use crate::path_cache::PathRecord;
use crate::quantity::{BitRate, ByteCount, bandwidth_delay_product, readable_time};
use crate::rate::{Fairness, RateContract};

/// A value with the reason for it; the rationale is shown to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<T> {
    /// The chosen value.
    pub value: T,
    /// Reason in words.
    pub rationale: String,
}

/// Most lanes of a session. Reason: a lane costs two threads and a socket at each end; 64 fill any path that we know.
pub const LANES_MAX: u32 = 64;

/// Returns the highest rate planned for one QUIC lane when the number of lanes is chosen, in packets of `mtu` bytes.
///
/// Reason: the engine drops packets more than 128 behind the newest one as duplicates. At 21,000 packets a second (250
/// Mbit/s of 1500 bytes) that is 6 ms of reordering. More lanes cost wake-ups: 3 Gbit/s in packets of 9000 bytes took
/// two cores 9.6 s with two lanes and 13.7 s with twelve.
pub fn quic_lane_rate(mtu: u16) -> BitRate {
    BitRate(QUIC_LANE_RATE.0 * u64::from(mtu.max(MTU_LEAST)) / u64::from(MTU_USUAL))
}

/// The same for packets of [`MTU_USUAL`] bytes.
const QUIC_LANE_RATE: BitRate = BitRate::megabits(250);

/// Path MTU in bytes that is assumed if none is known.
pub const MTU_USUAL: u16 = 1500;
/// Smallest path MTU in bytes (RFC 8200; QUIC requires as much).
const MTU_LEAST: u16 = 1280;

/// Default number of lanes on a long path whose rate is unknown. Reason: above eight the published gains of parallel
/// streams end (ESnet, mscp). A single loss then halves the rate of an eighth.
const LONG_PATH_LANES: u32 = 8;

/// TCP lanes that measure TCP's rate on a long path (`trial`). Reason: TCP alone would have begun with as many.
pub const TRIAL_LANES: u32 = LONG_PATH_LANES;

/// Round-trip time from which a path counts as long. Reason: below it one window refills in the time a disk needs for a
/// block.
const LONG_PATH_RTT: Duration = Duration::from_millis(10);

/// Facts about a path for the choice of its transport.
#[derive(Clone, Copy, Debug)]
pub struct TransportFacts<'a> {
    /// Contract of the path's rate.
    pub contract: &'a RateContract,
    /// Records of earlier sessions, the newest first.
    pub remembered: &'a [PathRecord],
    /// Round-trip time, once a handshake has measured it.
    pub rtt: Option<Duration>,
    /// Seconds since 1970.
    pub now: u64,
}

/// Chooses the transport if the user has not; `None` if only a round-trip time can decide.
pub fn choose_transport(facts: &TransportFacts<'_>) -> Option<Decision<Via>> {
    let quic = |rationale: String| Some(Decision { value: Via::Quic, rationale: format!("quic: {rationale}") });
    if let Some(rate) = facts.contract.target {
        return quic(format!("the rate of the path is given ({rate}), so loss need not slow it down"));
    }
    if facts.contract.minimum.is_some() || facts.contract.fairness == Fairness::Scavenger {
        return quic("TCP can neither hold a least rate nor leave a path to others".into());
    }
    let carried = |via| facts.remembered.iter().find(|record| record.via == via);
    if let (Some(tcp), Some(quic)) = (carried(Via::Tcp), carried(Via::Quic)) {
        let (best, other) = if tcp.rate > quic.rate { (tcp, quic) } else { (quic, tcp) };
        // A rate that something else limited might have been higher than the other transport's.
        if other.is_full {
            let (most, age) = (best.shown_rate(), ago(best.age(facts.now)));
            let rationale = format!("{}: it carried {most} here {age}, {} {}", best.via, other.via, other.rate);
            return Some(Decision { value: best.via, rationale });
        }
    }
    let rtt = facts.rtt.or_else(|| facts.remembered.first().map(|record| record.rtt))?;
    let is_known = carried(Via::Quic).map_or(String::new(), |record| {
        format!("; it carried {} here {}", record.shown_rate(), ago(record.age(facts.now)))
    });
    let time = readable_time(rtt);
    if rtt >= LONG_PATH_RTT {
        return quic(format!("on a long path (RTT {time}) loss need not slow it down{is_known}"));
    }
    Some(Decision { value: Via::Tcp, rationale: format!("tcp: on a short path (RTT {time}) it costs the least CPU") })
}

/// Returns an age in words. Records have a resolution of one second.
fn ago(age: Duration) -> String {
    if age < Duration::from_secs(1) { "just now".to_owned() } else { format!("{} ago", readable_time(age)) }
}

/// Returns the most QUIC lanes while the rate is not known from the start, on a host with `cores`. Reason: each lane
/// takes its part of the memory at once, and a thread.
pub fn quic_lanes_found_most(cores: u32) -> u32 {
    cores.clamp(4, 8)
}

/// Facts about a QUIC path whose rate was found.
#[derive(Clone, Copy, Debug)]
pub struct FoundPath {
    /// Rate of the path.
    pub rate: BitRate,
    /// Path MTU in bytes.
    pub mtu: u16,
    /// Smallest round-trip time seen.
    pub rtt: Duration,
    /// Memory that one lane may hold.
    pub lane_memory: ByteCount,
}

/// Chooses the number of QUIC lanes of a running session on `path`, if more than `lanes`; at most `most`.
pub fn choose_more_quic_lanes(lanes: u32, path: &FoundPath, most: u32) -> Option<Decision<u32>> {
    let (rate, lane_rate) = (path.rate, quic_lane_rate(path.mtu));
    let by_packets = rate.0.div_ceil(lane_rate.0);
    // A window for the data in flight, and as much for the data that waits behind a loss.
    let by_memory = (bandwidth_delay_product(rate, path.rtt).0 * 2).div_ceil(path.lane_memory.0.max(1));
    let value = by_packets.max(by_memory).min(u64::from(most)) as u32;
    let each = match by_memory > by_packets {
        true => format!("with {} of memory each", path.lane_memory),
        false => format!("at up to {lane_rate} a lane"),
    };
    let rationale = format!("{value}, for the {rate} that were found, {each}");
    (value > lanes).then_some(Decision { value, rationale })
}

/// Chooses the number of QUIC lanes for a given or remembered rate, in packets of `mtu` bytes.
pub fn choose_quic_lanes(rate: Option<BitRate>, mtu: u16) -> Decision<u32> {
    let Some(rate) = rate else {
        return Decision { value: 1, rationale: "1, until the rate of the path is found".into() };
    };
    let lane_rate = quic_lane_rate(mtu);
    let lanes = rate.0.div_ceil(lane_rate.0).clamp(1, u64::from(LANES_MAX)) as u32;
    let rationale = format!("{lanes}, for {rate} at up to {lane_rate} a lane");
    Decision { value: lanes, rationale }
}

/// Returns the expected time of `bytes` of files over paths with these rates on the wire; `rtt`: of the longest path.
///
/// Never less than three round trips: handshake, request and last answer.
pub fn expect_time(bytes: ByteCount, rates: &[BitRate], rtt: Duration) -> Duration {
    let rate: f64 = rates.iter().map(|rate| rate.0 as f64).sum();
    rtt * ROUND_TRIPS_MIN + Duration::from_secs_f64((bytes.0 as f64 * 8.0 / (rate * FILE_SHARE).max(1.0)).min(TIME_MAX))
}

/// Round trips of an empty copy: handshake, request, last answer.
const ROUND_TRIPS_MIN: u32 = 3;

/// Part of a path's rate that is file data. Reason: headers and repeats. Benchmarks show 91 to 93 % over the length of
/// a copy (bench/runs/2026-11-22-vm-late).
const FILE_SHARE: f64 = 0.93;

/// Longest expected time, in seconds: a hundred years, which any clock can represent.
const TIME_MAX: f64 = 3.2e9;

/// Facts about a TCP path for the choice of its lanes.
#[derive(Clone, Copy, Debug)]
pub struct TcpPath {
    /// Round-trip time of the first lane.
    pub rtt: Duration,
    /// Given rate of the path.
    pub rate: Option<BitRate>,
    /// Most bytes that one connection can have in flight, as measured: the smaller of the limits of our send buffer and
    /// of the peer's window. `None` if the kernel does not report them.
    pub window_max: Option<ByteCount>,
    /// Processor cores of this host.
    pub cores: u32,
}

/// Chooses the number of TCP lanes.
pub fn choose_tcp_lanes(path: &TcpPath) -> Decision<u32> {
    // Encryption and hashing of one lane keep one core busy, so a short path needs a lane for each core.
    let floor = path.cores.clamp(1, 4);
    let by_window = match (path.rate, path.window_max) {
        (Some(rate), Some(window)) if window.0 > 0 => {
            bandwidth_delay_product(rate, path.rtt).0.div_ceil(window.0).clamp(1, u64::from(LANES_MAX)) as u32
        }
        _ => 1,
    };
    let is_short = path.rtt < LONG_PATH_RTT;
    if by_window > if is_short { floor } else { LONG_PATH_LANES } {
        let window = path.window_max.unwrap_or_default();
        let rtt = readable_time(path.rtt);
        let rationale = format!("{by_window}, since one connection holds at most {window} in a round trip of {rtt}");
        return Decision { value: by_window, rationale };
    }
    let rtt = readable_time(path.rtt);
    if is_short {
        let rationale = format!("{floor}, one for each core on a short path (RTT {rtt})");
        return Decision { value: floor, rationale };
    }
    let rationale = format!("{LONG_PATH_LANES}, so that one loss slows an eighth of a long path (RTT {rtt})");
    Decision { value: LONG_PATH_LANES, rationale }
}

/// Default number of connections to a web server. Reason: one loss then slows a sixteenth. aria2 uses at most as many,
/// and administrators of archives are used to it.
pub const WEB_LANES: u32 = 16;

/// Chooses the number of lanes that read from web servers.
pub fn choose_web_lanes() -> Decision<u32> {
    let rationale = format!(
        "{WEB_LANES} at most to a web server, each with a part of a file; one for each MiB where a file is small, one alone where \
         the server sends no parts"
    );
    Decision { value: WEB_LANES, rationale }
}

/// TCP lanes of a running session that are all limited by their window.
#[derive(Clone, Copy, Debug)]
pub struct HeldLanes {
    /// Number of lanes.
    pub lanes: u32,
    /// Window that limits one of them, as measured meanwhile.
    pub window: ByteCount,
    /// Smallest round-trip time seen.
    pub rtt: Duration,
    /// Given rate of the path.
    pub rate: Option<BitRate>,
}

/// Chooses the number of TCP lanes of a running session, if more than now: as many as fill the path with their measured
/// windows. Without a given rate the number doubles.
pub fn choose_more_tcp_lanes(held: &HeldLanes) -> Option<Decision<u32>> {
    let wanted = match held.rate {
        Some(rate) => bandwidth_delay_product(rate, held.rtt).0.div_ceil(held.window.0.max(1)),
        None => u64::from(held.lanes) * 2,
    };
    let value = wanted.min(u64::from(LANES_MAX)) as u32;
    let (window, rtt) = (held.window, readable_time(held.rtt));
    let rationale = format!("{value}, since each is held to a window of {window}, measured, in a round trip of {rtt}");
    (value > held.lanes).then_some(Decision { value, rationale })
}

/// Segments from which the loss of a lane is significant. Reason: at the loss from which we act, some are lost by then.
const LOSS_SAMPLE_SEGMENTS: u64 = 5_000;

/// Share of segments sent again from which a long path counts as lossy. Reason: at 10^-4 and 100 ms the response
/// function of cubic (RFC 9438) limits one flow to 20 Mbit/s on any path.
const LOSSY: f64 = 1e-4;

/// Chooses another congestion control for a TCP lane: bbr on a long path that loses packets, otherwise `None`.
///
/// `sent` and `sent_again` count segments of the lane. Source: at 660 ms and 1 % of loss, curl with cubic reached 1 %
/// of the link and with bbr 65 %.
pub fn choose_congestion(rtt: Duration, sent: u64, sent_again: u64) -> Option<Decision<&'static str>> {
    if rtt < LONG_PATH_RTT || sent < LOSS_SAMPLE_SEGMENTS || (sent_again as f64) < sent as f64 * LOSSY {
        return None;
    }
    let percent = sent_again as f64 / sent as f64 * 100.0;
    let rtt = readable_time(rtt);
    let rationale =
        format!("bbr: {percent:.2} % of segments were sent again over {rtt}, which slows others to a crawl");
    Some(Decision { value: "bbr", rationale })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path_cache::{DataDirection, PathKey};

    #[test]
    fn the_time_of_a_copy_is_that_of_all_paths_together_and_some_round_trips() {
        let expected = |bytes, rates: &[u64], rtt_ms| {
            let rates: Vec<BitRate> = rates.iter().map(|rate| BitRate::megabits(*rate)).collect();
            expect_time(ByteCount(bytes), &rates, Duration::from_millis(rtt_ms)).as_millis()
        };
        assert_eq!(expected(0, &[50], 660), 1980);
        assert_eq!(expected(200_000_000, &[50], 660), 1980 + 34_408);
        assert_eq!(expected(200_000_000, &[50, 30], 100), 300 + 21_505);
        assert!(expected(u64::MAX, &[], 0) > 0);
    }

    #[test]
    fn more_lanes_come_for_a_rate_that_was_found_as_far_as_there_may_be() {
        let (rtt, lane_memory) = (Duration::from_millis(50), ByteCount::mebibytes(32));
        let found = |mbit| FoundPath { rate: BitRate::megabits(mbit), mtu: 1500, rtt, lane_memory };
        let more = |lanes, mbit, most| choose_more_quic_lanes(lanes, &found(mbit), most).map(|more| more.value);
        assert_eq!((more(1, 1000, 8), more(1, 10_000, 8), more(1, 1000, 2)), (Some(4), Some(8), Some(2)));
        assert_eq!((more(1, 250, 8), more(4, 1000, 8), more(1, 1000, 1)), (None, None, None));
        let jumbo = FoundPath { mtu: 9000, ..found(3000) };
        assert_eq!(choose_more_quic_lanes(1, &jumbo, 8).map(|more| more.value), Some(2), "as many packets a lane");
        let far = FoundPath { rtt: Duration::from_millis(300), ..jumbo };
        let more = choose_more_quic_lanes(1, &far, 8);
        assert_eq!(
            more.map(|more| more.rationale).unwrap(),
            "7, for the 3.00 Gbit/s that were found, with 33.6 MB of memory each"
        );
    }

    #[test]
    fn quic_lanes_follow_the_rate() {
        for (rate, lanes) in [(1, 1), (250, 1), (251, 2), (1000, 4), (100_000, 64)] {
            assert_eq!(choose_quic_lanes(Some(BitRate::megabits(rate)), 1500).value, lanes, "{rate} Mbit/s");
        }
        assert_eq!(choose_quic_lanes(Some(BitRate::megabits(3000)), 9000).value, 2);
    }

    #[test]
    fn the_transport_follows_what_is_agreed_then_what_was_learnt_then_the_round_trip() {
        let key = PathKey {
            direction: DataDirection::Out,
            local: [10, 0, 0, 1].into(),
            remote: ([10, 0, 0, 2], 7373).into(),
        };
        let record = |via, mbit, rtt_ms| PathRecord {
            key,
            via,
            rate: BitRate::megabits(mbit),
            is_full: true,
            rtt: Duration::from_millis(rtt_ms),
            loss_ppm: 0,
            mtu: 1500,
            at: 0,
        };
        let free = RateContract::default();
        let polite = RateContract { fairness: Fairness::Scavenger, ..free };
        let given = RateContract::of_rate(Some(BitRate::megabits(50)));
        let choose = |contract: &RateContract, remembered: &[PathRecord], rtt_ms: Option<u64>| {
            let rtt = rtt_ms.map(Duration::from_millis);
            choose_transport(&TransportFacts { contract, remembered, rtt, now: 7200 }).map(|choice| choice.value)
        };
        assert_eq!(choose(&free, &[], None), None);
        assert_eq!(choose(&free, &[], Some(1)), Some(Via::Tcp));
        assert_eq!(choose(&free, &[], Some(100)), Some(Via::Quic));
        assert_eq!(choose(&given, &[], Some(1)), Some(Via::Quic));
        assert_eq!(choose(&polite, &[], Some(1)), Some(Via::Quic));
        let both = [record(Via::Tcp, 900, 100), record(Via::Quic, 300, 100)];
        assert_eq!(choose(&free, &both, None), Some(Via::Tcp));
        let capped = [both[0], PathRecord { is_full: false, ..both[1] }];
        assert_eq!(choose(&free, &capped, None), Some(Via::Quic), "it might carry more");
        assert_eq!(choose(&free, &[PathRecord { is_full: false, ..both[0] }, both[1]], None), Some(Via::Tcp));
        assert_eq!(choose(&free, &both[1..], None), Some(Via::Quic));
        assert_eq!(choose(&free, &both[..1], None), Some(Via::Quic), "the other one was never tried");
        assert_eq!(choose(&free, &[record(Via::Quic, 300, 1)], None), Some(Via::Tcp));
        let said = choose_transport(&TransportFacts { contract: &free, remembered: &both, rtt: None, now: 7200 });
        let said = said.map(|choice| choice.rationale);
        assert_eq!(said.as_deref(), Some("tcp: it carried 900 Mbit/s here 2 h ago, quic 300 Mbit/s"));
    }

    #[test]
    fn a_rationale_reads_well_behind_its_subject() {
        let path = TcpPath { rtt: Duration::from_nanos(10_400), rate: None, window_max: None, cores: 2 };
        let said = |decision: Decision<u32>| format!("lanes: {}", decision.rationale);
        assert_eq!(said(choose_tcp_lanes(&path)), "lanes: 2, one for each core on a short path (RTT 10 µs)");
        let long = TcpPath { rtt: Duration::from_micros(660_400), ..path };
        assert_eq!(
            said(choose_tcp_lanes(&long)),
            "lanes: 8, so that one loss slows an eighth of a long path (RTT 660 ms)"
        );
        let rate = Some(BitRate::megabits(300));
        assert_eq!(said(choose_quic_lanes(rate, 1500)), "lanes: 2, for 300 Mbit/s at up to 250 Mbit/s a lane");
    }

    #[test]
    fn only_a_long_lossy_path_gets_bbr() {
        let ms = Duration::from_millis;
        assert_eq!(choose_congestion(ms(660), 10_000, 100).map(|d| d.value), Some("bbr"));
        for (rtt, sent, again) in [(ms(1), 10_000, 100), (ms(660), 100, 50), (ms(660), 1_000_000, 99), (ms(660), 0, 0)]
        {
            assert_eq!(choose_congestion(rtt, sent, again), None);
        }
    }

    #[test]
    fn lanes_that_are_held_by_their_windows_get_company() {
        let held = HeldLanes {
            lanes: 8,
            window: ByteCount::mebibytes(4),
            rtt: Duration::from_millis(148),
            rate: Some(BitRate::megabits(10_000)),
        };
        let more = |held: HeldLanes| choose_more_tcp_lanes(&held).map(|decision| decision.value);
        assert_eq!(more(held), Some(45));
        assert_eq!(more(HeldLanes { lanes: 45, ..held }), None);
        assert_eq!(more(HeldLanes { rate: None, ..held }), Some(16));
        assert_eq!(more(HeldLanes { rate: None, lanes: 40, ..held }), Some(LANES_MAX));
        assert_eq!(more(HeldLanes { rate: None, lanes: LANES_MAX, ..held }), None);
        assert_eq!(more(HeldLanes { window: ByteCount(0), ..held }), Some(LANES_MAX));
    }

    #[test]
    fn tcp_lanes_cover_the_product_that_one_window_cannot() {
        let path = TcpPath {
            rtt: Duration::from_millis(148),
            rate: Some(BitRate::megabits(10_000)),
            window_max: Some(ByteCount::mebibytes(4)),
            cores: 2,
        };
        assert_eq!(choose_tcp_lanes(&path).value, 45);
        assert_eq!(choose_tcp_lanes(&TcpPath { rate: None, ..path }).value, 8);
        assert_eq!(choose_tcp_lanes(&TcpPath { rate: None, rtt: Duration::from_micros(60), ..path }).value, 2);
    }
}
