//! Series of rounds on paths that stay and on paths that change, by random seeds.

use sterna_seeded::{Seeded, for_seeds};

use super::*;
use crate::evidence::Direction;
use crate::verdict::Cause;

/// Path of a simulation.
#[derive(Clone, Copy)]
struct Path {
    /// Round trips in microseconds, and the parts of the flows in a thousand that have the second one.
    rtt_us: (u64, u64),
    second: u64,
    hops: u8,
    /// Lost packets of a million, there and back.
    loss_ppm: [u64; 2],
}

const QUIET: Path = Path { rtt_us: (7_900, 7_900), second: 0, hops: 9, loss_ppm: [0; 2] };

const EVERY_S: u64 = 300;

const START: u64 = 1_800_000_000;

/// Ports that keep their route from round to round, as with a fixed port of the peer, or that draw a new one each time.
#[derive(Clone, Copy)]
enum Ports {
    Fixed,
    New,
}

struct Simulation {
    series: Series,
    random: Seeded,
    at: u64,
    ports: Ports,
}

impl Simulation {
    fn new(seed: u64, ports: Ports) -> Self {
        Self { series: Series::default(), random: Seeded::new(seed), at: START, ports }
    }

    fn lost(&mut self, of: u64, ppm: u64) -> u64 {
        (0..of).filter(|_| self.random.below(1_000_000) < ppm).count() as u64
    }

    fn echoes(&mut self, path: &Path) -> Echoes {
        // One round of a hundred meets a queue, which all ports see.
        let queue = if self.random.chance(10) { self.random.below(30_000) } else { 0 };
        let mut rtt_us: Vec<u64> = (0..16)
            .map(|port| {
                let draw = match self.ports {
                    Ports::Fixed => port * 1000 / 16,
                    Ports::New => self.random.below(1000),
                };
                let base = if draw < path.second { path.rtt_us.1 } else { path.rtt_us.0 };
                base + self.random.below(150) + queue
            })
            .collect();
        rtt_us.sort_unstable();
        let reflected = 320 - self.lost(320, path.loss_ppm[0]);
        let returned = reflected - self.lost(reflected, path.loss_ppm[1]);
        let hops = Some(path.hops);
        Echoes { sent: 320, reflected, returned, rtt_us, forward_hops: hops, reverse_hops: hops }
    }

    /// Runs rounds until one has changes. Returns their number and the changes.
    fn run(&mut self, path: &Path, rounds: usize) -> (usize, Vec<Change>) {
        for round in 1..=rounds {
            self.at += EVERY_S;
            let measured =
                Measured { echoes: Some(self.echoes(path)), tests: Vec::new(), bytes: 81_920, test_bytes: 0 };
            let changes = self.series.observe(&Round { at: self.at, outcome: Outcome::Measured(measured) });
            if !changes.is_empty() {
                return (round, changes);
            }
        }
        (rounds, Vec::new())
    }

    fn test(&mut self, limit: Cause, rate_bps: u64) -> Vec<Change> {
        self.at += EVERY_S;
        let test = Test {
            direction: Direction::Forward,
            rate_bps,
            cap_bps: 100_000_000,
            loss: 0.0,
            limit,
            remedy: "grow".to_owned(),
        };
        let measured = Measured { echoes: None, tests: vec![test], bytes: 25_000_000, test_bytes: 25_000_000 };
        self.series.observe(&Round { at: self.at, outcome: Outcome::Measured(measured) })
    }

    fn fail(&mut self, text: &str) -> Vec<Change> {
        self.at += EVERY_S;
        let failure = Failure::Unreachable(text.to_owned());
        self.series.observe(&Round { at: self.at, outcome: Outcome::Failed(failure) })
    }
}

fn words(changes: &[Change]) -> String {
    changes.iter().map(Change::words).collect::<Vec<_>>().join("\n")
}

#[test]
fn paths_that_stay_have_no_alarm() {
    for_seeds("paths_that_stay_have_no_alarm", 24, |seed| {
        let lossy = Path { loss_ppm: [3000, 100], ..QUIET };
        let two = Path { rtt_us: (7_900, 11_900), ..QUIET };
        let paths = [
            QUIET,
            lossy,
            Path { second: 500, ..two },
            Path { second: 63, ..two },
            Path { second: 8, ..two },
            Path { rtt_us: (60, 60), ..QUIET },
        ];
        for (index, path) in paths.iter().enumerate() {
            for ports in [Ports::Fixed, Ports::New] {
                let mut simulation = Simulation::new(seed * 100 + index as u64, ports);
                let (round, changes) = simulation.run(path, 600);
                assert!(changes.is_empty(), "path {index}, round {round}: {}", words(&changes));
            }
        }
    });
}

#[test]
fn a_longer_route_of_all_flows_is_found_and_so_is_its_end() {
    for_seeds("a_longer_route_of_all_flows_is_found_and_so_is_its_end", 30, |seed| {
        let mut simulation = Simulation::new(seed, Ports::New);
        assert_eq!(simulation.run(&QUIET, 120).1, []);
        let longer = Path { rtt_us: (11_900, 11_900), hops: 12, ..QUIET };
        let (round, changes) = simulation.run(&longer, 8);
        assert!(round >= 3 && changes[0].turn == Turn::Raised, "{round}: {}", words(&changes));
        let said = words(&changes);
        assert!(said.contains("rerouted: 8.0") || said.contains("rerouted: 7.9"), "{said}");
        assert!(said.contains("→ 12.0") || said.contains("→ 11.9"), "{said}");
        assert!(said.contains("on 16 of 16 ports") && said.contains("hops 9 → 12"), "{said}");
        assert_eq!((simulation.series.alarms().len(), simulation.run(&longer, 100).1), (1, vec![]));
        let (round, changes) = simulation.run(&QUIET, 14);
        assert!(round >= 3 && changes[0].turn == Turn::Cleared, "{round}: {}", words(&changes));
        assert_eq!((simulation.run(&QUIET, 100).1, simulation.series.alarms()), (vec![], &[][..]));
    });
}

/// GRNET: one of sixteen flows takes a longer way, by as many routers.
#[test]
fn a_longer_route_of_one_flow_is_found() {
    for_seeds("a_longer_route_of_one_flow_is_found", 30, |seed| {
        let one = Path { rtt_us: (7_900, 11_900), second: 60, ..QUIET };
        for (ports, rounds) in [(Ports::Fixed, 8), (Ports::New, 36)] {
            let mut simulation = Simulation::new(seed, ports);
            assert_eq!(simulation.run(&QUIET, 200).1, []);
            let (_, changes) = simulation.run(&one, rounds);
            let said = words(&changes);
            assert!(said.contains("longer round trip: 8.0"), "{said}");
            let Alarm::Rerouted { ports, of: 16, to_s, .. } = changes[0].alarm else { panic!("{said}") };
            assert!((1..=4).contains(&ports) && (0.0119..0.0121).contains(&to_s), "{said}");
        }
    });
}

#[test]
fn new_loss_is_found_in_its_direction_and_so_is_its_end() {
    for_seeds("new_loss_is_found_in_its_direction_and_so_is_its_end", 20, |seed| {
        for (loss_ppm, rounds) in [(3_000, 30), (20_000, 8)] {
            let mut simulation = Simulation::new(seed, Ports::New);
            assert_eq!(simulation.run(&QUIET, 150).1, []);
            let lossy = Path { loss_ppm: [loss_ppm, 0], ..QUIET };
            let (_, changes) = simulation.run(&lossy, rounds);
            assert!(words(&changes).contains("new loss: ") && words(&changes).contains("to the agent"), "{changes:?}");
            assert_eq!(simulation.run(&lossy, 100).1, []);
            // It may become less before it is over.
            let is_over = (0..60).any(|_| {
                simulation.run(&QUIET, 1);
                simulation.series.alarms().is_empty()
            });
            assert!(is_over, "{:?}", simulation.series.alarms());
        }
    });
}

#[test]
fn a_limit_that_was_gone_is_back() {
    let mut simulation = Simulation::new(1, Ports::Fixed);
    // A limit that was always there is no alarm, and its end is good news.
    let tests = |simulation: &mut Simulation, limit, rate, count: usize| -> Vec<Change> {
        (0..count).flat_map(|_| simulation.test(limit, rate)).collect()
    };
    assert_eq!(tests(&mut simulation, Cause::Policer, 7_000_000, 1), []);
    assert!(!simulation.series.wants_test(), "nothing is usual yet");
    assert_eq!(tests(&mut simulation, Cause::Policer, 7_000_000, 39), []);
    assert!(!simulation.series.wants_test());
    let better = tests(&mut simulation, Cause::RateCap, 98_000_000, 60);
    assert_eq!(better.iter().map(|change| change.turn).collect::<Vec<_>>(), [Turn::Improved], "{better:?}");
    // A single test is none either, but it is repeated soon.
    assert_eq!(tests(&mut simulation, Cause::Policer, 7_100_000, 1), []);
    assert!(simulation.series.wants_test());
    let back = tests(&mut simulation, Cause::Policer, 7_100_000, 3);
    let said = words(&back);
    assert!(said.contains("the limit is back: policer, 7.10 Mbit/s to the agent since"), "{said}");
    assert!(said.ends_with("; do: grow") && !simulation.series.wants_test(), "{said}");
    let new = tests(&mut simulation, Cause::ReceiveBuffer, 50_000_000, 6);
    assert!(words(&new).contains("new limit: receive buffer, 50.0 Mbit/s"), "{}", words(&new));
    assert!(words(&new).contains("over: the limit is back: policer"), "{}", words(&new));
}

#[test]
fn a_peer_that_does_not_answer_is_an_alarm_from_the_third_time_until_it_does() {
    let mut simulation = Simulation::new(1, Ports::Fixed);
    assert_eq!(simulation.run(&QUIET, 3).1, []);
    assert!(simulation.fail("reset").is_empty() && simulation.fail("refused").is_empty());
    let changes = simulation.fail("refused");
    assert!(words(&changes).contains("UTC: refused"), "{changes:?}");
    assert_eq!(changes[0].alarm.since(), START + 4 * EVERY_S);
    assert!(simulation.fail("no route").is_empty());
    assert_eq!(simulation.run(&QUIET, 1).1[0].turn, Turn::Cleared);
    let counts = simulation.series.present().counts;
    assert_eq!((counts.rounds, counts.failures), (4, 4));
}

#[test]
fn metrics_are_lines_with_types_and_escaped_labels() {
    let mut simulation = Simulation::new(1, Ports::Fixed);
    simulation.run(&Path { loss_ppm: [0, 10_000], ..QUIET }, 20);
    simulation.test(Cause::SendBuffer, 80_000_000);
    (0..3).for_each(|_| drop(simulation.fail("x")));
    let text = metrics::text(&[("a\\b\"c\nd:7373".to_owned(), simulation.series.present())]);
    for expected in [
        "# TYPE sterna_path_rtt_seconds gauge\nsterna_path_rtt_seconds{peer=\"a\\\\b\\\"c\\nd:7373\",mode=\"fastest\"} 0.007",
        ",direction=\"forward\"} 10000000\n",
        ",direction=\"forward\",limit=\"send_buffer\"} 1\n",
        ",kind=\"unreachable\",direction=\"\",limit=\"\"} 1\n",
        "# TYPE sterna_path_rounds_total counter\n",
        ",direction=\"reverse\"} 9\n",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
    for line in text.lines() {
        let is_comment = line.starts_with("# HELP ") || line.starts_with("# TYPE ");
        let value = line.rsplit(' ').next().unwrap_or_default();
        assert!(is_comment || line.starts_with("sterna_path_") && value.parse::<f64>().is_ok(), "{line}");
    }
    assert!(text.ends_with('\n') && !metrics::text(&[]).contains('{'));
}
