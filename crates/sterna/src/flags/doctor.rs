//! Flags of `sterna doctor`.

use std::time::Duration;

use clap::{Args, Subcommand};
use sterna_doctor::kernel::KernelVersion;
use sterna_doctor::plan::{RTT_MAX, RTT_MIN};
use sterna_proto::BitRate;

const PLAN_EXAMPLES: &str = "\
Examples:
  sterna doctor plan --rate 10Gbit --rtt 148ms                 # this kernel
  sterna doctor plan --rate 1Gbit --rtt 11.9ms --kernel 5.14   # another
  sterna doctor plan --rate 100Mbit --rtt 660ms --loss 1%      # a satellite";

/// Flags of `sterna doctor`.
#[derive(Debug, Args)]
pub struct DoctorFlags {
    /// Command to run.
    #[command(subcommand)]
    pub command: DoctorCommand,
}

/// The commands of the doctor.
#[derive(Debug, Subcommand)]
pub enum DoctorCommand {
    /// Compute buffers, windows, connections, ramp and loss that a rate over a path needs, without a network
    #[command(after_help = PLAN_EXAMPLES)]
    Plan(PlanFlags),
}

/// Flags of `sterna doctor plan`.
#[derive(Debug, Args)]
pub struct PlanFlags {
    /// Rate of the slowest part of the path, such as 10Gbit or 500Mbit
    #[arg(long, value_name = "RATE")]
    pub rate: BitRate,
    /// Round-trip time, such as 148ms, 11.9ms or 0.5s
    #[arg(long, value_name = "TIME", value_parser = parse_rtt)]
    pub rtt: Duration,
    /// Part of the packets that the path loses at random, such as 1e-6 or 0.1%
    #[arg(long, value_name = "PART", default_value = "0", value_parser = parse_loss)]
    pub loss: f64,
    /// Version of the Linux kernel at both ends, such as 6.1 (default: that of this host)
    #[arg(long, value_name = "VERSION")]
    pub kernel: Option<KernelVersion>,
    /// Maximum size of a packet on the path, in bytes
    #[arg(long, value_name = "BYTES", default_value = "1500", value_parser = clap::value_parser!(u16).range(576..))]
    pub mtu: u16,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Reads `148ms`, `11.9ms`, `500us` or `0.66s`.
fn parse_rtt(text: &str) -> Result<Duration, String> {
    let expected = || "expected a number and a unit (us, ms or s), such as 148ms or 11.9ms".to_owned();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err(expected()),
    };
    let number: f64 = number.parse().map_err(|_| expected())?;
    let rtt = Duration::try_from_secs_f64(number * scale).map_err(|_| expected())?;
    match (RTT_MIN..=RTT_MAX).contains(&rtt) {
        true => Ok(rtt),
        false => Err(format!("from {} us to {} s", RTT_MIN.as_micros(), RTT_MAX.as_secs())),
    }
}

/// Reads `1e-6` or `0.1%`.
fn parse_loss(text: &str) -> Result<f64, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 0.01));
    let loss = number.parse::<f64>().map(|number| number * scale);
    loss.ok()
        .filter(|loss| (0.0..1.0).contains(loss))
        .ok_or_else(|| "expected a part of the packets from 0 to below 1, such as 1e-6 or 0.1%".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_engineers_write_them() {
        assert_eq!(parse_rtt("11.9ms"), Ok(Duration::from_micros(11_900)));
        assert_eq!(
            (parse_rtt("500us"), parse_rtt("0.66s")),
            (Ok(Duration::from_micros(500)), Ok(Duration::from_millis(660)))
        );
        for wrong in ["", "148", "ms", "-1ms", "1.2.3ms", "1e3ms", "0ms", "61s", "nan", "9us"] {
            assert!(parse_rtt(wrong).is_err(), "{wrong}");
        }
        assert_eq!((parse_loss("1e-6"), parse_loss("0.1%"), parse_loss("0")), (Ok(1e-6), Ok(0.001), Ok(0.0)));
        for wrong in ["", "1", "100%", "-0.1", "nan", "inf", "%"] {
            assert!(parse_loss(wrong).is_err(), "{wrong}");
        }
    }
}
