//! The flags that describe a path, and the parsers of their values.

use std::time::Duration;

use clap::{Args as _, FromArgMatches as _};
use sterna_proto::error::ErrorKind;
use sterna_proto::{BitRate, ByteCount, Error, Phase, Scope};

use crate::lab::LabOptions;
use crate::model::{
    BurstLoss, DirectionModel, LinkModel, MTU_BYTES_MAX, MTU_BYTES_MIN, Outage, Policer, Queue, Reorder, Shaper,
    StrippedOptions,
};
use crate::profiles::Profile;

/// Flags that select and change a path. "Forward" is from host `a` to host `b`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PathArgs {
    /// Path to start from (see `profiles`) [default: a clean path, 1 Gbit/s over 100 ms]
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Rate of both directions; counts whole IP packets
    #[arg(long, value_name = "RATE")]
    pub rate: Option<BitRate>,
    /// Rate from b to a, if it differs
    #[arg(long, value_name = "RATE")]
    pub reverse_rate: Option<BitRate>,
    /// Round-trip time of the path without queueing
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub rtt: Option<Duration>,
    /// Length of the queue before the bottleneck, both directions: 0.1bdp, 64KiB or 20ms [default: 1bdp]
    #[arg(long, value_name = "LENGTH", value_parser = parse_queue)]
    pub queue: Option<Queue>,
    /// Random loss in each direction: 1% or 0.01
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub loss: Option<f64>,
    /// Random loss from b to a, if it differs
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub reverse_loss: Option<f64>,
    /// Gilbert-Elliott loss in each direction: probability of good to bad, of bad to good, of loss in bad [default: 1]
    #[arg(long, value_name = "P,R[,LOSS]", value_parser = parse_burst_loss)]
    pub burst_loss: Option<BurstLoss>,
    /// Policer (token bucket that drops), forward: 30Mbit:64KiB, or 30Mbit:64KiB:udp for UDP only
    #[arg(long, value_name = "RATE:BURST[:udp]", value_parser = parse_policer)]
    pub policer: Option<Policer>,
    /// Policer (token bucket that drops), from b to a
    #[arg(long, value_name = "RATE:BURST[:udp]", value_parser = parse_policer)]
    pub reverse_policer: Option<Policer>,
    /// Shaper (token bucket that delays), forward: BURST bytes pass at the rate of the link, the rest at RATE; packets
    /// that find QUEUE full are dropped: 30Mbit:256KiB:100ms [default of QUEUE: 1bdp of RATE]
    #[arg(long, value_name = "RATE:BURST[:QUEUE]", value_parser = parse_shaper)]
    pub shaper: Option<Shaper>,
    /// Shaper (token bucket that delays), from b to a
    #[arg(long, value_name = "RATE:BURST[:QUEUE]", value_parser = parse_shaper)]
    pub reverse_shaper: Option<Shaper>,
    /// Largest extra delay of a packet, each direction; jitter never reorders packets
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub jitter: Option<Duration>,
    /// Share of packets to delay so that later packets overtake them, and the delay; forward: 1%:5ms
    #[arg(long, value_name = "SHARE:TIME", value_parser = parse_reorder)]
    pub reorder: Option<Reorder>,
    /// Share of packets to delay so that later packets overtake them, and the delay; from b to a
    #[arg(long, value_name = "SHARE:TIME", value_parser = parse_reorder)]
    pub reverse_reorder: Option<Reorder>,
    /// Share of packets that arrive twice, each direction
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub duplicate: Option<f64>,
    /// Drop all packets from START for LENGTH, again every EVERY: 10s+5s/60s; can be repeated
    #[arg(long, value_name = "START+LENGTH[/EVERY]", value_parser = parse_outage)]
    pub outage: Vec<Outage>,
    /// MTU of both hosts
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(i64::from(MTU_BYTES_MIN)..=i64::from(MTU_BYTES_MAX)))]
    pub mtu: Option<u16>,
    /// Smaller MTU inside the path
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(68..=i64::from(MTU_BYTES_MAX)))]
    pub path_mtu: Option<u16>,
    /// Drop packets that are too large without an ICMP answer (PMTU black hole)
    #[arg(long)]
    pub no_icmp: bool,
    /// Equal-cost paths, each given by its extra round-trip time: 0ms,4ms; a flow stays on one of them
    #[arg(long, value_name = "TIME,…", value_delimiter = ',', value_parser = parse_time)]
    pub ecmp: Vec<Duration>,
    /// TCP options that a middlebox removes from SYN packets: sack, wscale, timestamps
    #[arg(long, value_name = "OPTION,…", value_delimiter = ',')]
    pub strip: Vec<TcpOption>,
    /// Largest MSS that a middlebox leaves in SYN packets, both directions
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(MSS_CLAMP_MIN..=i64::from(MTU_BYTES_MAX)))]
    pub mss_clamp: Option<u16>,
    /// Seed of all random choices
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Second network between the hosts, described by these flags in quotes: '--rate 30Mbit --rtt 60ms'
    #[arg(long, value_name = "FLAGS", value_parser = parse_second, allow_hyphen_values = true)]
    pub second: Option<Box<PathArgs>>,
}

/// Flags of the hosts.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct HostArgs {
    /// Name of the lab, for `exec` and `down`
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Kernel setting of both hosts; can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_sysctl)]
    pub sysctl: Vec<(String, String)>,
    /// Kernel setting of host a only, applied after --sysctl; can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_sysctl)]
    pub sysctl_a: Vec<(String, String)>,
    /// Kernel setting of host b only, applied after --sysctl; can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_sysctl)]
    pub sysctl_b: Vec<(String, String)>,
    /// TCP congestion control of both hosts
    #[arg(long, value_name = "NAME")]
    pub cc: Option<String>,
    /// Largest TCP buffers of both hosts (raises net.core.rmem_max and wmem_max of this machine while the lab is up)
    #[arg(long, value_name = "SIZE")]
    pub buffers: Option<ByteCount>,
}

/// A TCP option that `--strip` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TcpOption {
    /// Selective acknowledgement.
    Sack,
    /// Window scaling.
    Wscale,
    /// Timestamps.
    Timestamps,
}

impl PathArgs {
    /// Returns the path that the flags describe.
    ///
    /// Errors: unknown profile; the text lists the existing ones.
    pub fn model(&self) -> Result<LinkModel, Error> {
        let mut model = match &self.profile {
            None => clean(),
            Some(name) => Profile::find(name).ok_or_else(|| unknown_profile(name))?.model(),
        };
        self.change(&mut model);
        Ok(model)
    }

    /// Applies the flags to the first network of `model`. `--seed`, `--outage`, `--mtu` and `--no-icmp` also change the
    /// second network, unless `--second` gives it separate flags.
    fn change(&self, model: &mut LinkModel) {
        self.change_direction(&mut model.forward);
        self.change_direction(&mut model.reverse);
        set(&mut model.reverse.rate, self.reverse_rate);
        set(&mut model.reverse.loss, self.reverse_loss);
        set(&mut model.forward.policer, self.policer.map(Some));
        set(&mut model.reverse.policer, self.reverse_policer.map(Some));
        set(&mut model.forward.shaper, self.shaper.map(Some));
        set(&mut model.reverse.shaper, self.reverse_shaper.map(Some));
        set(&mut model.forward.reorder, self.reorder.map(Some));
        set(&mut model.reverse.reorder, self.reverse_reorder.map(Some));
        set(&mut model.rtt, self.rtt);
        set(&mut model.path_mtu, self.path_mtu.map(Some));
        set(&mut model.mss_clamp, self.mss_clamp.map(Some));
        if !self.ecmp.is_empty() {
            model.ecmp.clone_from(&self.ecmp);
        }
        if !self.strip.is_empty() {
            model.strip = StrippedOptions {
                sack: self.strip.contains(&TcpOption::Sack),
                window_scale: self.strip.contains(&TcpOption::Wscale),
                timestamps: self.strip.contains(&TcpOption::Timestamps),
            };
        }
        self.change_both_networks(model);
        if let Some(args) = &self.second {
            let mut second = model.second.take().unwrap_or_else(|| Box::new(clean()));
            args.change(&mut second);
            second.seed = args.seed.unwrap_or(model.seed.wrapping_add(1));
            model.second = Some(second);
        } else if let Some(second) = &mut model.second {
            self.change_both_networks(second);
            // The two networks must not drop the same packets.
            second.seed = model.seed.wrapping_add(1);
        }
    }

    fn change_direction(&self, direction: &mut DirectionModel) {
        set(&mut direction.rate, self.rate);
        set(&mut direction.queue, self.queue);
        set(&mut direction.loss, self.loss);
        set(&mut direction.burst_loss, self.burst_loss.map(Some));
        set(&mut direction.jitter, self.jitter);
        set(&mut direction.duplicate, self.duplicate);
    }

    fn change_both_networks(&self, model: &mut LinkModel) {
        set(&mut model.mtu, self.mtu);
        set(&mut model.seed, self.seed);
        model.icmp &= !self.no_icmp;
        if !self.outage.is_empty() {
            model.outages.clone_from(&self.outage);
        }
    }
}

impl HostArgs {
    /// Returns the settings that the flags describe.
    pub fn options(&self) -> LabOptions {
        LabOptions {
            name: self.name.clone(),
            sysctls: self.sysctl.clone(),
            host_sysctls: [self.sysctl_a.clone(), self.sysctl_b.clone()],
            congestion_control: self.cc.clone(),
            buffers: self.buffers,
        }
    }
}

/// Returns the default path, used when no profile is given.
fn clean() -> LinkModel {
    LinkModel::clean(BitRate::megabits(1000), Duration::from_millis(100))
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

fn unknown_profile(name: &str) -> Error {
    let names: Vec<&str> = crate::profiles::PROFILES.iter().map(|profile| profile.name).collect();
    let text = format!("there is no profile \"{name}\"; there are {}", names.join(", "));
    Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
}

/// Parses the flags of a second network.
fn parse_second(text: &str) -> Result<Box<PathArgs>, String> {
    let command = PathArgs::augment_args(clap::Command::new("--second").no_binary_name(true).disable_help_flag(true));
    let parsed = command.try_get_matches_from(text.split_whitespace());
    let args = parsed.and_then(|matches| PathArgs::from_arg_matches(&matches));
    let args = args.map_err(|e| e.to_string().lines().next().unwrap_or_default().to_owned())?;
    match (&args.profile, &args.second) {
        (None, None) => Ok(Box::new(args)),
        _ => Err("a second network has no profile, and no second network of its own".to_owned()),
    }
}

/// Parses `660ms`, `1.5s`, `200us`.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is not a time such as 660ms, 1.5s or 200us");
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    // Rounds to the nanosecond: 7.8 ms must not become 7.799999 ms.
    let nanos = (number * scale * 1e9).round();
    if nanos > TIME_NANOS_MAX { Err(wrong()) } else { Ok(Duration::from_nanos(nanos as u64)) }
}

/// Parses `1%` or `0.01`.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let wrong = || format!("\"{text}\" is not a share such as 1% or 0.01");
    let (number, scale) = match text.strip_suffix('%') {
        Some(number) => (number, 0.01),
        None => (text, 1.0),
    };
    let share = number.parse::<f64>().map_err(|_| wrong())? * scale;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(wrong()) }
}

fn parse_queue(text: &str) -> Result<Queue, String> {
    if let Some(share) = text.strip_suffix("bdp") {
        let share: f64 = share.parse().map_err(|_| format!("\"{text}\" is not a queue such as 0.1bdp"))?;
        return if (0.0..=QUEUE_BDP_MAX).contains(&share) {
            Ok(Queue::Bdp(share))
        } else {
            Err(format!("\"{text}\" is not between 0bdp and {QUEUE_BDP_MAX}bdp"))
        };
    }
    if let Ok(bytes) = text.parse::<ByteCount>() {
        return Ok(Queue::Bytes(bytes));
    }
    parse_time(text).map(Queue::Time).map_err(|_| format!("\"{text}\" is not a queue such as 0.1bdp, 64KiB or 20ms"))
}

fn parse_burst_loss(text: &str) -> Result<BurstLoss, String> {
    let shares: Vec<f64> = text.split(',').map(parse_share).collect::<Result<_, _>>()?;
    match shares[..] {
        [to_bad, to_good] => Ok(BurstLoss { to_bad, to_good, loss_bad: 1.0 }),
        [to_bad, to_good, loss_bad] => Ok(BurstLoss { to_bad, to_good, loss_bad }),
        _ => Err(format!("\"{text}\" is not two or three shares such as 0.1%,25%")),
    }
}

fn parse_policer(text: &str) -> Result<Policer, String> {
    let (rate, burst) = text.split_once(':').ok_or(format!("\"{text}\" is not a policer such as 30Mbit:64KiB"))?;
    let rate = rate.parse().map_err(|e: sterna_proto::quantity::ParseQuantityError| e.to_string())?;
    let (burst, udp_only) = burst.strip_suffix(":udp").map_or((burst, false), |burst| (burst, true));
    let burst = burst.parse().map_err(|e: sterna_proto::quantity::ParseQuantityError| e.to_string())?;
    Ok(Policer { rate, burst, udp_only })
}

fn parse_shaper(text: &str) -> Result<Shaper, String> {
    let mut parts = text.splitn(3, ':');
    let (Some(rate), Some(burst)) = (parts.next(), parts.next()) else {
        return Err(format!("\"{text}\" is not a shaper such as 30Mbit:256KiB or 30Mbit:256KiB:100ms"));
    };
    let rate = rate.parse().map_err(|e: sterna_proto::quantity::ParseQuantityError| e.to_string())?;
    let burst = burst.parse().map_err(|e: sterna_proto::quantity::ParseQuantityError| e.to_string())?;
    let queue = parts.next().map_or(Ok(Queue::Bdp(1.0)), parse_queue)?;
    Ok(Shaper { rate, burst, queue })
}

fn parse_reorder(text: &str) -> Result<Reorder, String> {
    let (share, delay) = text.split_once(':').ok_or(format!("\"{text}\" is not a reordering such as 1%:5ms"))?;
    Ok(Reorder { probability: parse_share(share)?, delay: parse_time(delay)? })
}

fn parse_outage(text: &str) -> Result<Outage, String> {
    let (start, rest) = text.split_once('+').ok_or(format!("\"{text}\" is not an outage such as 10s+5s/60s"))?;
    let (length, every) = match rest.split_once('/') {
        Some((length, every)) => (length, Some(parse_time(every)?)),
        None => (rest, None),
    };
    Ok(Outage { start: parse_time(start)?, length: parse_time(length)?, every })
}

fn parse_sysctl(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or(format!("\"{text}\" is not a setting such as net.ipv4.tcp_sack=0"))?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// One hour: longer than any path, and short enough that sums of times never overflow.
const TIME_NANOS_MAX: f64 = 3600e9;

/// Smallest MSS that a middlebox may leave. Reason: Linux ignores smaller values (`TCP_MIN_SND_MSS`).
const MSS_CLAMP_MIN: i64 = 48;

/// A longer queue only uses memory.
const QUEUE_BDP_MAX: f64 = 20.0;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        path: PathArgs,
        #[command(flatten)]
        host: HostArgs,
    }

    fn flags(line: &str) -> Result<Flags, clap::Error> {
        Flags::try_parse_from(std::iter::once("lab").chain(line.split_whitespace()))
    }

    fn model(line: &str) -> LinkModel {
        flags(line).unwrap().path.model().unwrap()
    }

    #[test]
    fn every_field_of_a_profile_can_be_changed() {
        let changed = model(
            "--profile trollsat --rate 1Gbit --reverse-rate 2Mbit --rtt 7.8ms --queue 0.1bdp --loss 1% --burst-loss 0.1%,25% \
             --policer 30Mbit:64KiB --reverse-policer 1Mbit:3000:udp --shaper 50Mbit:256KiB:100ms --reverse-shaper 2Mbit:0 --jitter 2ms --reorder 1%:5ms --reverse-reorder 2%:4ms --duplicate 0.1% --mtu 9000 \
             --path-mtu 1400 --no-icmp --ecmp 0ms,4.1ms --strip sack,timestamps --mss-clamp 1200 --outage 10s+5s/60s --outage 1min+1s --seed 9",
        );
        let expected = LinkModel {
            forward: DirectionModel {
                rate: BitRate(1_000_000_000),
                queue: Queue::Bdp(0.1),
                loss: 0.01,
                burst_loss: Some(BurstLoss { to_bad: 0.001, to_good: 0.25, loss_bad: 1.0 }),
                policer: Some(Policer { rate: BitRate(30_000_000), burst: ByteCount(65_536), udp_only: false }),
                shaper: Some(Shaper {
                    rate: BitRate(50_000_000),
                    burst: ByteCount(262_144),
                    queue: Queue::Time(Duration::from_millis(100)),
                }),
                jitter: Duration::from_millis(2),
                reorder: Some(Reorder { probability: 0.01, delay: Duration::from_millis(5) }),
                duplicate: 0.001,
            },
            reverse: DirectionModel {
                rate: BitRate(2_000_000),
                queue: Queue::Bdp(0.1),
                loss: 0.01,
                burst_loss: Some(BurstLoss { to_bad: 0.001, to_good: 0.25, loss_bad: 1.0 }),
                policer: Some(Policer { rate: BitRate(1_000_000), burst: ByteCount(3000), udp_only: true }),
                shaper: Some(Shaper { rate: BitRate(2_000_000), burst: ByteCount(0), queue: Queue::Bdp(1.0) }),
                jitter: Duration::from_millis(2),
                reorder: Some(Reorder { probability: 0.02, delay: Duration::from_millis(4) }),
                duplicate: 0.001,
            },
            rtt: Duration::from_micros(7800),
            mtu: 9000,
            path_mtu: Some(1400),
            icmp: false,
            ecmp: vec![Duration::ZERO, Duration::from_micros(4100)],
            strip: StrippedOptions { sack: true, window_scale: false, timestamps: true },
            mss_clamp: Some(1200),
            outages: vec![
                Outage {
                    start: Duration::from_secs(10),
                    length: Duration::from_secs(5),
                    every: Some(Duration::from_secs(60)),
                },
                Outage { start: Duration::from_secs(60), length: Duration::from_secs(1), every: None },
            ],
            second: None,
            seed: 9,
        };
        assert_eq!(changed, expected);
    }

    #[test]
    fn loss_is_that_of_both_directions_unless_the_reverse_has_its_own() {
        let both = model("--loss 1%");
        assert_eq!((both.forward.loss, both.reverse.loss), (0.01, 0.01));
        let forward = model("--loss 1% --reverse-loss 0");
        assert_eq!((forward.forward.loss, forward.reverse.loss), (0.01, 0.0));
    }

    #[test]
    fn a_queue_is_a_share_a_size_or_a_time() {
        assert_eq!(model("--queue 64KiB").forward.queue, Queue::Bytes(ByteCount(65_536)));
        assert_eq!(model("--queue 20ms").forward.queue, Queue::Time(Duration::from_millis(20)));
        assert_eq!(model("--queue 2bdp").forward.queue, Queue::Bdp(2.0));
    }

    #[test]
    fn a_second_network_has_flags_of_its_own() {
        let command = |words: &[&str]| {
            let command = PathArgs::augment_args(clap::Command::new("lab").no_binary_name(true));
            command.try_get_matches_from(words).map(|matches| PathArgs::from_arg_matches(&matches).unwrap())
        };
        let args = command(&["--rate", "50Mbit", "--outage", "1s+1s", "--second", "--rate 30Mbit --rtt 60ms"]).unwrap();
        let networks = args.model().unwrap();
        let second = networks.second.unwrap();
        assert_eq!((second.forward.rate, second.rtt), (BitRate::megabits(30), Duration::from_millis(60)));
        assert_eq!((networks.outages.len(), second.outages.len()), (1, 0));
        assert_ne!(networks.seed, second.seed);
        for wrong in ["--profile trollsat", "--second --mtu", "--rat 3", "--rate fast"] {
            assert!(command(&["--second", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_two_networks_of_a_profile_lose_different_packets() {
        let networks = model("--profile two-networks --seed 4 --mtu 9000");
        let second = networks.second.unwrap();
        assert_eq!((networks.seed, second.seed, second.mtu), (4, 5, 9000));
        assert_ne!(networks.forward.rate, second.forward.rate);
    }

    #[test]
    fn wrong_flags_name_what_was_given() {
        for (line, given) in [
            ("--loss 101%", "101%"),
            ("--loss=-1%", "-1%"),
            ("--rtt 660", "660"),
            ("--rtt 99999s", "99999s"),
            ("--rtt nanms", "nanms"),
            ("--queue 99bdp", "99bdp"),
            ("--queue deep", "deep"),
            ("--policer 30Mbit", "30Mbit"),
            ("--burst-loss 1%", "1%"),
            ("--reorder 5ms", "5ms"),
            ("--shaper 30Mbit", "30Mbit"),
            ("--shaper 30Mbit:x", "x"),
            ("--shaper 30Mbit:64KiB:deep", "deep"),
            ("--mss-clamp 47", "47"),
            ("--outage 10s", "10s"),
            ("--mtu 9001", "9001"),
            ("--strip ecn", "ecn"),
            ("--sysctl net.ipv4.tcp_sack", "net.ipv4.tcp_sack"),
            ("--sysctl-b net.ipv4.tcp_sack", "net.ipv4.tcp_sack"),
        ] {
            let error = flags(line).err().unwrap_or_else(|| panic!("{line} was taken")).to_string();
            assert!(error.contains(given), "{line}: {error}");
        }
        let unknown = flags("--profile mars").unwrap().path.model().unwrap_err();
        assert!(unknown.text().contains("\"mars\"") && unknown.text().contains("trollsat"));
    }

    #[test]
    fn host_flags_become_options() {
        let options =
            flags("--name x --cc cubic --buffers 512MiB --sysctl net.ipv4.tcp_rmem=1,2 --sysctl-b net.ipv4.tcp_sack=0")
                .unwrap();
        let options = options.host.options();
        assert_eq!(options.buffers, Some(ByteCount(512 << 20)));
        assert_eq!(options.sysctls, [("net.ipv4.tcp_rmem".to_owned(), "1,2".to_owned())]);
        let [a, b] = options.host_sysctls;
        assert_eq!((a.len(), b), (0, vec![("net.ipv4.tcp_sack".to_owned(), "0".to_owned())]));
    }
}
