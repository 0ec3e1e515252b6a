//! Named paths, each with the source of its figures.

use std::time::Duration;

use sterna_proto::{BitRate, ByteCount};

use crate::model::{LinkModel, Policer, Queue, Reorder};

/// A path that exists, or that a benchmark uses.
pub struct Profile {
    /// Value for `--profile`.
    pub name: &'static str,
    /// Description of the path and source of its figures.
    pub source: &'static str,
    build: fn() -> LinkModel,
}

impl Profile {
    /// Returns the model of the path.
    pub fn model(&self) -> LinkModel {
        (self.build)()
    }

    /// Returns the profile with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|profile| profile.name == name)
    }
}

/// All profiles, in display order.
pub const PROFILES: &[Profile] = &[
    Profile { name: "lan", source: "two hosts of one site: 1 Gbit/s, 0.2 ms", build: || path_us(1000, 200) },
    Profile {
        name: "trollsat",
        source: "TrollSat (Antarctica) to Goddard by satellite and Internet: 660 ms, 50 Mbit/s allocated, no congestion \
                 (McLemore, Wood, Kranacs, \"Use of Open Networks and Delay-Tolerant Protocol to Decrease WAN Latency of EOS \
                 Near Real-Time Data\", section VI)",
        build: || path(50, 660),
    },
    Profile {
        name: "two-networks",
        source: "an EDOS ground station with a closed and an open network to Goddard: 60 Mbit/s closed, 150 Mbit/s open \
                 (same paper, sections IV and V); round trips of 80 and 60 ms are assumed (White Sands, Alaska)",
        build: || {
            let mut closed = path(60, 80);
            let mut open = path(150, 60);
            // The two networks must not drop the same packets.
            open.seed = closed.seed + 1;
            closed.second = Some(Box::new(open));
            closed
        },
    },
    Profile {
        name: "grnet-8ms",
        source: "between two GRNET data centres, 200 miles: 10 Gbit/s, most of 128 paths take 7.8 ms, some 11.9 ms over a \
                 longer optical route (Argyropoulos, \"Transferring Earth observation data around the globe\"). At MTU \
                 9000 the lab carries 9 Gbit/s of it on two idle processors",
        build: || {
            let mut model = path_us(10_000, 7_800);
            model.mtu = 9000;
            model.ecmp = [0, 0, 0, 0, 0, 0, 0, 4_100].map(Duration::from_micros).to_vec();
            model
        },
    },
    Profile {
        name: "grnet-newyork",
        source: "GRNET data centre to ESnet New York: 148 ms, 10 Gbit/s, clean research networks (same talk). At MTU \
                 9000 the lab carries 7 Gbit/s of it on two idle processors; those who measured got 7.25",
        build: || {
            let mut model = path(10_000, 148);
            model.mtu = 9000;
            model
        },
    },
    Profile {
        name: "tigo",
        source: "TIGO (Chile) to JIVE (Netherlands) over REUNA and RedCLARA: 0.5 to 2 % loss on 20 Oct 2006, 90 Mbit/s \
                 without loss between SWITCH and RedCLARA (PERT report on the SMART-1 transfers, 2006). 100 Mbit/s, 0.5 % loss; 320 ms is \
                 assumed, the report gives no round trip",
        build: || {
            let mut model = path(100, 320);
            model.forward.loss = 0.005;
            model.reverse.loss = 0.005;
            model
        },
    },
    Profile {
        name: "tigo-policer",
        source: "the same path while a rate limiter with an unusually low burst was in force (same report, 30 Aug 2006): \
                 policer of 30 Mbit/s with a bucket of 64 KiB; both figures stand for those not reported",
        build: || {
            let mut model = path(100, 320);
            model.forward.policer = Some(policer(30, ByteCount(64 << 10)));
            model
        },
    },
    Profile {
        name: "tigo-5mbit",
        source: "the same path with the limiter of TIGO's access, removed on 22 Aug 2006 (same report): policer of \
                 5 Mbit/s; the bucket of ten packets is assumed, the report calls that of a later limiter unusually low",
        build: || {
            let mut model = path(100, 320);
            model.forward.policer = Some(policer(5, ByteCount(15_000)));
            model
        },
    },
    Profile {
        name: "tigo-lifted",
        source: "the same path on 31 Aug 2006, after the limit was lifted to 155 Mbit/s with a burst of 16 MB (same \
                 report): the access circuit of 155 Mbit/s and its limiter",
        build: || {
            let mut model = path(155, 320);
            model.forward.policer = Some(policer(155, ByteCount(16_000_000)));
            model
        },
    },
    Profile {
        name: "tigo-acks",
        source: "the same path with the asymmetric limiter found on 9 Oct 2006, which may have hit acknowledgements (same report): \
                 100 Mbit/s forward, 1 Mbit/s back; the low figure is assumed",
        build: || {
            let mut model = path(100, 320);
            model.reverse.rate = BitRate::megabits(1);
            model
        },
    },
    Profile {
        name: "tigo-asymmetric",
        source: "the same finding as a policer: the limiter drops the acknowledgements that it does not let through \
                 (same report, 9 Oct 2006); 1 Mbit/s back with a bucket of ten packets is assumed",
        build: || {
            let mut model = path(100, 320);
            model.reverse.policer = Some(policer(1, ByteCount(15_000)));
            model
        },
    },
    Profile {
        name: "cern-tokyo",
        source: "CERN to Tokyo, a WLCG transfer (CERN openlab summer student report on FTS3, 2015): 1 Gbit/s; 260 ms and \
                 0.01 % loss are those of the benchmark",
        build: || {
            let mut model = path(1000, 260);
            model.forward.loss = 0.0001;
            model.reverse.loss = 0.0001;
            model
        },
    },
    Profile {
        name: "cern-australia",
        source: "CERN to Australia, a WLCG transfer (same report): 4 MB of buffer against 37 MB; 1 Gbit/s and 300 ms are \
                 assumed, over which 37 MB is the bandwidth-delay product",
        build: || path(1000, 300),
    },
    Profile {
        name: "gigabit-150ms",
        source: "benchmark of many small files: 1 Gbit/s, 150 ms",
        build: || path(1000, 150),
    },
    Profile {
        name: "gigabit-reorder",
        source: "benchmark of reordering: 1 Gbit/s, 150 ms, 1 % of the packets 5 ms late",
        build: || {
            let mut model = path(1000, 150);
            model.forward.reorder = Some(Reorder { probability: 0.01, delay: Duration::from_millis(5) });
            model
        },
    },
    Profile {
        name: "gigabit-shallow",
        source: "benchmark of a shallow queue: 1 Gbit/s, 150 ms, a queue of 0.1 BDP",
        build: || {
            let mut model = path(1000, 150);
            model.forward.queue = Queue::Bdp(0.1);
            model
        },
    },
];

fn path(rate_mbit: u64, rtt_ms: u64) -> LinkModel {
    path_us(rate_mbit, rtt_ms * 1000)
}

fn path_us(rate_mbit: u64, rtt_us: u64) -> LinkModel {
    LinkModel::clean(BitRate::megabits(rate_mbit), Duration::from_micros(rtt_us))
}

fn policer(rate_mbit: u64, burst: ByteCount) -> Policer {
    Policer { rate: BitRate::megabits(rate_mbit), burst, udp_only: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_has_its_own_name_a_source_and_a_path_that_carries() {
        for (index, profile) in PROFILES.iter().enumerate() {
            assert!(PROFILES[..index].iter().all(|other| other.name != profile.name), "{} comes twice", profile.name);
            assert!(profile.source.len() > 20, "{} says where its figures come from", profile.name);
            let model = profile.model();
            assert!(model.forward.rate.0 > 0 && model.reverse.rate.0 > 0 && !model.rtt.is_zero());
            assert_eq!(Profile::find(profile.name).map(Profile::model), Some(model));
        }
    }
}
