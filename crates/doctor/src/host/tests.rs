//! Hosts of published cases, and what was wrong with their settings.

use std::collections::BTreeMap;

use super::*;
use crate::kernel::KernelVersion;

const OLD: KernelVersion = KernelVersion::new(4, 9);

fn host(kernel: KernelVersion, settings: &[(&str, &str)], paths: Vec<PathUse>) -> HostPicture {
    let defaults = [
        ("core.rmem_max", "212992"),
        ("core.wmem_max", "212992"),
        ("core.default_qdisc", "fq_codel"),
        ("core.netdev_max_backlog", "1000"),
        ("ipv4.tcp_rmem", "4096 87380 6291456"),
        ("ipv4.tcp_wmem", "4096 16384 4194304"),
        ("ipv4.tcp_mem", "383865 511820 767730"),
        ("ipv4.tcp_window_scaling", "1"),
        ("ipv4.tcp_sack", "1"),
        ("ipv4.tcp_timestamps", "1"),
        ("ipv4.tcp_moderate_rcvbuf", "1"),
        ("ipv4.tcp_slow_start_after_idle", "1"),
        ("ipv4.tcp_mtu_probing", "0"),
        ("ipv4.tcp_no_metrics_save", "0"),
        ("ipv4.tcp_congestion_control", "cubic"),
        ("ipv4.tcp_available_congestion_control", "reno cubic"),
    ];
    let settings =
        defaults.iter().chain(settings).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let (memory, page) = (ByteCount(64 << 30), ByteCount(4096));
    HostPicture { kernel, settings, memory, page, backlog_drops: 0, paths }
}

fn path(rtt_ms: u64, rate: BitRate) -> PathUse {
    PathUse {
        remote: [192, 0, 2, 1].into(),
        rtt: Duration::from_millis(rtt_ms),
        mss: 1448,
        connections: 1,
        rate_out: rate,
        rate_in: rate,
        loss: 0.0,
        in_flight: ByteCount(0),
    }
}

fn of<'a>(report: &'a HostReport, setting: &str) -> &'a Finding {
    report.findings.iter().find(|finding| finding.setting == setting).unwrap()
}

fn third(finding: &Finding) -> u64 {
    finding.recommended.as_deref().unwrap().split(' ').nth(2).unwrap().parse().unwrap()
}

#[test]
fn grnet_learns_both_buffers_at_once() {
    // 6 MB of buffer over 8 ms gave 3072 KB and 3.15 Gbit/s; then the send buffer was the limit.
    let wish = Some(BitRate::megabits(10_000));
    let paths = vec![path(8, BitRate::megabits(3110)), path(148, BitRate::megabits(100))];
    let near = HostReport::new(&host(OLD, &[], paths[..1].to_vec()), wish);
    let receive = of(&near, "ipv4.tcp_rmem");
    assert_eq!((receive.effect, receive.held_bps.unwrap() / 10_000_000), (Effect::Hurts, 314));
    assert!(receive.reason.contains("6.29 MB gives a window of 3.15 MB: at most 3.15 Gbit/s"), "{receive:?}");
    assert_eq!(third(receive), 21 << 20, "22 MB, in whole MiB");
    let send = of(&near, "ipv4.tcp_wmem");
    assert_eq!((send.effect, send.held_bps.unwrap() / 10_000_000), (Effect::Hurts, 406));
    assert!(third(send) >= 20_000_000, "{send:?}");
    assert_eq!(near.findings[0].setting, "ipv4.tcp_rmem", "the lowest limit is the first");
    // With New York at 148 ms, the value is that of the most demanding path: 256 MB gave 7.25 Gbit/s there.
    let far = HostReport::new(&host(OLD, &[], paths), wish);
    assert!((400_000_000..420_000_000).contains(&third(of(&far, "ipv4.tcp_rmem"))), "{far:?}");
    assert_eq!(far.paths[0].rtt_us, 148_000);
    let text = lines(&far).join("\n");
    assert!(text.contains("sysctl -w net.ipv4.tcp_rmem='4096 87380 407896064'"), "{text}");
    let set = host(OLD, &[("ipv4.tcp_rmem", "4096 87380 407896064")], vec![path(8, BitRate(1)), path(148, BitRate(1))]);
    assert_eq!(of(&HostReport::new(&set, wish), "ipv4.tcp_rmem").effect, Effect::Fits, "the advice is enough");
}

#[test]
fn cern_needs_37_megabytes_and_has_4() {
    // 1 Gbit/s to Australia over 300 ms.
    let settings = [("ipv4.tcp_rmem", "4096 87380 4194304"), ("ipv4.tcp_wmem", "4096 65536 4194304")];
    let report = HostReport::new(
        &host(KernelVersion::new(2, 6), &settings, vec![path(300, BitRate::megabits(50))]),
        Some(BitRate::megabits(1000)),
    );
    assert_eq!(report.paths[0].window_bytes, 37_500_000);
    let receive = of(&report, "ipv4.tcp_rmem");
    assert_eq!(receive.held_bps.unwrap() / 1_000_000, 55, "2 MiB over 300 ms");
    assert!(third(receive) >= 75_000_000, "{receive:?}");
    // A program that sets its buffer gets less than autotuning: they found no gain.
    let programs = of(&report, "core.rmem_max");
    assert_eq!((programs.effect, programs.held_bps.unwrap() / 100_000), (Effect::Costs, 56));
}

#[test]
fn a_full_window_is_a_wish_for_more_and_a_free_one_is_none() {
    let mut used = path(60, BitRate::megabits(400));
    let free = HostReport::new(&host(OLD, &[], vec![used.clone()]), None);
    assert_eq!(free.paths[0].basis, DemandBasis::Measured);
    used.in_flight = ByteCount(3_000_000);
    let full = HostReport::new(&host(OLD, &[], vec![used]), None);
    assert_eq!((full.paths[0].basis, full.paths[0].target_bps), (DemandBasis::TwiceMeasured, 800_000_000));
    assert_eq!(of(&full, "ipv4.tcp_rmem").effect, Effect::Hurts);
}

#[test]
fn switches_that_are_off_have_their_price() {
    let off = [
        ("ipv4.tcp_window_scaling", "0"),
        ("ipv4.tcp_sack", "0"),
        ("ipv4.tcp_timestamps", "0"),
        ("ipv4.tcp_moderate_rcvbuf", "0"),
    ];
    let lossy = PathUse { loss: 1e-4, mss: 8948, ..path(320, BitRate::megabits(5)) };
    let report = HostReport::new(&host(OLD, &off, vec![lossy]), Some(BitRate::megabits(1000)));
    let scaling = of(&report, "ipv4.tcp_window_scaling");
    assert_eq!((scaling.held_bps, scaling.recommended.as_deref()), (Some(1_638_375), Some("1")));
    assert_eq!(of(&report, "ipv4.tcp_sack").effect, Effect::Hurts, "SMART-1: SACK brought 12 to 18 Mbit/s");
    assert!(of(&report, "ipv4.tcp_timestamps").reason.contains("wrap after 34 s"), "{report:?}");
    assert_eq!(of(&report, "ipv4.tcp_moderate_rcvbuf").held_bps.unwrap() / 1000, 1092);
    assert_eq!(of(&report, "ipv4.tcp_mtu_probing").recommended.as_deref(), Some("1"));
    let control = of(&report, "ipv4.tcp_congestion_control");
    assert!(control.effect == Effect::Hurts && control.recommended.is_none(), "no bbr on this host: {control:?}");
    let with_bbr = [("ipv4.tcp_available_congestion_control", "reno cubic bbr")];
    let lossy = PathUse { loss: 1e-4, ..path(320, BitRate::megabits(5)) };
    let report = HostReport::new(&host(OLD, &with_bbr, vec![lossy]), Some(BitRate::megabits(1000)));
    assert_eq!(of(&report, "ipv4.tcp_congestion_control").recommended.as_deref(), Some("bbr"));
    let changed: Vec<String> = report.changes().into_iter().map(|(name, _)| name).collect();
    assert!(changed.contains(&"ipv4.tcp_slow_start_after_idle".to_owned()), "{changed:?}");
}

#[test]
fn memory_is_given_to_tcp_only_as_far_as_the_host_has_it() {
    let wish = Some(BitRate::megabits(10_000));
    let many = PathUse { connections: 40, ..path(148, BitRate::megabits(100)) };
    let large = HostReport::new(&host(OLD, &[], vec![many.clone()]), wish);
    let memory = of(&large, "ipv4.tcp_mem");
    assert!(memory.effect == Effect::Costs && memory.recommended.is_some(), "{memory:?}");
    let small = HostPicture { memory: ByteCount(8 << 30), ..host(OLD, &[], vec![many]) };
    let report = HostReport::new(&small, wish);
    let memory = of(&report, "ipv4.tcp_mem");
    assert!(memory.recommended.is_none() && memory.reason.contains("fewer connections"), "{memory:?}");
}

#[test]
fn settings_that_are_absent_or_strange_and_hosts_without_paths_are_no_error() {
    let empty = HostPicture { settings: BTreeMap::new(), ..host(OLD, &[], vec![path(8, BitRate::megabits(1))]) };
    assert_eq!(HostReport::new(&empty, None).findings, []);
    let strange: Vec<(&str, &str)> = ["ipv4.tcp_rmem", "ipv4.tcp_mem", "core.rmem_max", "ipv4.tcp_sack"]
        .iter()
        .map(|name| (*name, "18446744073709551616 -1 x"))
        .collect();
    HostReport::new(&host(OLD, &strange, vec![path(8, BitRate(u64::MAX))]), Some(BitRate(u64::MAX)));
    let report = HostReport::new(&host(OLD, &[], Vec::new()), None);
    assert!(report.findings.iter().all(|finding| finding.effect == Effect::Fits), "{report:?}");
    assert!(lines(&report)[0].contains("no path is known"));
}
