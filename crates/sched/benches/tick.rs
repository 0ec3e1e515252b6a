//! Time of a turn of the scheduler over a million files that wait on a thousand links. Prints one line of JSON.
//!
//! `cargo bench -p sterna-sched --bench tick`

// A benchmark prints.
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use sterna_proto::ByteCount;
use sterna_sched::queue::{FileNumber, QueuedFile};
use sterna_sched::scheduler::Scheduler;
use sterna_sched::settings::{EndpointLimits, Limits, Link, QueueName, Shares};
use sterna_sched::time::UnixTime;

const FILES: u64 = 1_000_000;
const LINKS: u64 = 1_000;
const TURNS: usize = 101;

fn main() {
    let start = UnixTime(1_800_000_000_000);
    let endpoint = EndpointLimits { inbound: 20, outbound: 20 };
    let mut scheduler =
        Scheduler::new(Limits { all: 10_000, link: 10, endpoint, ..Limits::default() }, Shares::default());
    let filled = Instant::now();
    for number in 0..FILES {
        let (link, vo, activity) = (number % LINKS, number / LINKS % 5, number / LINKS % 3);
        let queue = QueueName {
            link: Link { source: format!("s{}", link / 32).into(), destination: format!("d{}", link % 32).into() },
            vo: format!("vo{vo}").into(),
            activity: format!("activity{activity}").into(),
        };
        let file = QueuedFile {
            number: FileNumber(number),
            size: Some(ByteCount(1 + number % 1_000_000_000)),
            priority: 1 + (number % 5) as u8,
            submitted: start,
            deadline: None,
            not_before: start,
            group: None,
        };
        scheduler.handle_queued(queue, file, start);
    }
    let filled = filled.elapsed();
    let mut running: Vec<FileNumber> = scheduler.poll(start).iter().map(|start| start.file).collect();
    let mut times = Vec::with_capacity(TURNS);
    let mut now = start;
    for _ in 0..TURNS {
        now = now + Duration::from_secs(1);
        // A tenth of the transfers ends, and as many start.
        let ended = running.len() / 10;
        for file in running.drain(..ended) {
            scheduler.handle_ended(file, Ok(ByteCount(1)), None, now);
        }
        let began = Instant::now();
        let starts = black_box(scheduler.poll(now));
        times.push(began.elapsed());
        running.extend(starts.iter().map(|start| start.file));
    }
    times.sort_unstable();
    println!(
        "{{\"files\":{FILES},\"links\":{LINKS},\"running\":{},\"fill_s\":{:.2},\"tick_ms_median\":{:.2},\"tick_ms_max\":{:.2}}}",
        running.len(),
        filled.as_secs_f64(),
        times[TURNS / 2].as_secs_f64() * 1e3,
        times[TURNS - 1].as_secs_f64() * 1e3
    );
}
