//! `--log FILE`: what was sampled of a session, as one JSON line each; as a page with plots when FILE ends in `.html`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};
use sterna_net::client::{CopyOptions, CopyProgress};
use sterna_net::lane::LaneStats;
use sterna_proto::limit::{LaneJudgement, TransportSample};
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use crate::{limits, page};

/// Lines that a page is drawn from, at most; of more, every second one is dropped. Reason: a page of some MB, whatever the copy.
const PAGE_LINES_MAX: usize = 8_000;

/// Where samples go.
pub struct SampleLog {
    path: PathBuf,
    out: Out,
    number: Option<u64>,
    sums: Sums,
}

enum Out {
    Lines(BufWriter<File>),
    /// Kept until the end; every `stride`-th line.
    Page {
        head: String,
        lines: Vec<Value>,
        stride: u64,
        count: u64,
    },
}

impl SampleLog {
    /// Makes the file, and says in it what is copied. Errors: this host does not let us.
    pub fn create(path: &Path, options: &CopyOptions) -> Result<Self, Error> {
        let file = File::create(path).map_err(|e| failed(path, e))?;
        let is_page = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("html"));
        let mut lines = BufWriter::new(file);
        let head = Head::new(options);
        let out = match is_page {
            true => Out::Page { head: head.line(), lines: Vec::new(), stride: 1, count: 0 },
            false => {
                writeln!(lines, "{}", head.value()).and_then(|()| lines.flush()).map_err(|e| failed(path, e))?;
                Out::Lines(lines)
            }
        };
        Ok(Self { path: path.to_owned(), out, number: None, sums: Sums::default() })
    }

    /// Takes a snapshot, if there is anything new in it. Errors: of writing.
    pub fn add(&mut self, progress: &CopyProgress) -> Result<(), Error> {
        if self.number.replace(progress.limits.number) == Some(progress.limits.number) {
            return Ok(());
        }
        let line = sample(progress, self.sums.add(progress));
        match &mut self.out {
            Out::Lines(file) => writeln!(file, "{line}").and_then(|()| file.flush()).map_err(|e| failed(&self.path, e)),
            Out::Page { lines, stride, count, .. } => {
                if (*count).is_multiple_of(*stride) {
                    lines.push(line);
                }
                *count += 1;
                if lines.len() > PAGE_LINES_MAX {
                    let mut index = 0;
                    lines.retain(|_| {
                        index += 1;
                        index % 2 == 1
                    });
                    *stride *= 2;
                }
                Ok(())
            }
        }
    }

    /// Ends the log with what the whole copy was. Errors: of writing.
    pub fn finish(&mut self, end: &Value, words: &[String]) -> Result<(), Error> {
        match &mut self.out {
            Out::Lines(file) => writeln!(file, "{end}").and_then(|()| file.flush()),
            Out::Page { head, lines, .. } => {
                let words: Vec<String> = std::iter::once(&*head).chain(words).cloned().collect();
                std::fs::write(&self.path, page::page(lines, &words))
            }
        }
        .map_err(|e| failed(&self.path, e))
    }
}

/// What a log is of: who finds it a year later needs to know.
struct Head {
    host: String,
    started: SystemTime,
    sources: Vec<String>,
    destination: String,
}

impl Head {
    fn new(options: &CopyOptions) -> Self {
        Self {
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            started: SystemTime::now(),
            sources: options.sources.iter().map(ToString::to_string).collect(),
            destination: options.destination.to_string(),
        }
    }

    fn value(&self) -> Value {
        let started = self.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        json!({
            "event": "session",
            "version": env!("CARGO_PKG_VERSION"),
            "host": self.host,
            "started_unix_s": started.as_secs_f64(),
            "sources": self.sources,
            "destination": self.destination,
        })
    }

    fn line(&self) -> String {
        let (sources, started) = (self.sources.join(", "), httpdate::fmt_http_date(self.started));
        format!(
            "{sources} to {}; run on {}, {started}, by sterna {}",
            self.destination,
            self.host,
            env!("CARGO_PKG_VERSION")
        )
    }
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::new(ErrorKind::Io, Scope::Client, Phase::Transfer, format!("write the log {}", path.display()))
        .caused_by(error)
}

/// What all lanes have carried together: bytes on the wire, packets sent, packets lost.
#[derive(Default)]
struct Sums {
    live: [u64; 3],
    ended: [u64; 3],
}

impl Sums {
    /// The sums with those of the lanes that have ended. A sum that is smaller than it was has lost a lane: what that one had carried stays counted,
    /// but for what the others carried in the same tenth of a second.
    fn add(&mut self, progress: &CopyProgress) -> [u64; 3] {
        let sum = |of: fn(&LaneStats) -> u64| progress.lanes.iter().map(of).sum();
        let live = [
            sum(|lane| lane.wire_bytes_sent.max(lane.wire_bytes_received)),
            sum(|lane| lane.packets_sent),
            sum(|lane| lane.packets_lost),
        ];
        for (ended, (before, now)) in self.ended.iter_mut().zip(self.live.into_iter().zip(live)) {
            *ended += before.saturating_sub(now);
        }
        self.live = live;
        std::array::from_fn(|index| self.ended[index] + live[index])
    }
}

/// One line: sizes in bytes, rates in bit/s, times in seconds; counts are since the start, those of a lane since its own.
fn sample(progress: &CopyProgress, [wire_bytes, packets_sent, packets_lost]: [u64; 3]) -> Value {
    let session = &progress.session;
    let not_carried = session.bytes_held + session.bytes_up_to_date + session.bytes_holes;
    let rtts: Vec<f64> = progress.lanes.iter().map(|lane| lane.rtt.as_secs_f64()).filter(|rtt| *rtt > 0.0).collect();
    json!({
        "event": "sample",
        "elapsed_s": progress.elapsed.as_secs_f64(),
        "bytes_carried": session.bytes_done.saturating_sub(not_carried),
        "wire_bytes": wire_bytes,
        "rtt_s": (!rtts.is_empty()).then(|| rtts.iter().sum::<f64>() / rtts.len() as f64),
        "packets_sent": packets_sent,
        "packets_lost": packets_lost,
        "recent": limits::shares(&progress.limits.report.recent),
        "lanes": progress.limits.lanes.iter().map(lane).collect::<Vec<_>>(),
    })
}

fn lane(judged: &LaneJudgement) -> Value {
    let feeder = &judged.sample.feeder;
    let mut value = json!({
        "lane": judged.lane.0,
        "limit": judged.limit.name(),
        "storage_s": feeder.storage.as_secs_f64(),
        "compute_s": feeder.compute.as_secs_f64(),
        "transport_s": feeder.transport.as_secs_f64(),
        "idle_s": feeder.idle.as_secs_f64(),
    });
    let more = match &judged.sample.transport {
        TransportSample::Tcp(tcp) => json!({
            "transport": "tcp",
            "rtt_s": tcp.rtt.as_secs_f64(),
            "rtt_min_s": tcp.rtt_min.as_secs_f64(),
            "window_bytes": tcp.window.0,
            "in_flight_bytes": tcp.in_flight.0,
            "unsent_bytes": tcp.unsent.0,
            "receive_window_bytes": tcp.receive_window.0,
            "send_buffer_bytes": tcp.send_buffer.0,
            "send_queued_bytes": tcp.send_queued.0,
            "rwnd_limited_s": tcp.rwnd_limited.as_secs_f64(),
            "sndbuf_limited_s": tcp.sndbuf_limited.as_secs_f64(),
            "packets_sent": tcp.sent,
            "packets_lost": tcp.lost,
            "delivered_bytes": tcp.delivered,
            "cap_bps": tcp.cap.map(|cap| cap.0),
            "is_growing": tcp.is_growing,
            "yields_to_loss": tcp.yields_to_loss,
        }),
        TransportSample::Quic(quic) => json!({
            "transport": "quic",
            "rtt_s": quic.rtt.as_secs_f64(),
            "rtt_min_s": quic.rtt_min.as_secs_f64(),
            "window_bytes": quic.window.0,
            "in_flight_bytes": quic.in_flight.0,
            "pace_bps": quic.rate.0,
            "state": format!("{:?}", quic.state).to_lowercase(),
            "engine_s": quic.engine.as_secs_f64(),
            "packets_sent": quic.sent,
            "packets_lost": quic.lost,
            "wire_bytes": quic.wire_bytes,
        }),
        TransportSample::Inside => json!({ "transport": "inside" }),
    };
    if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
        value.extend(more);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lanes_that_have_ended_carried_stays_counted() {
        let lane = |sent: u64| LaneStats { wire_bytes_sent: sent, packets_sent: sent / 10, ..LaneStats::default() };
        let (mut sums, mut progress) = (Sums::default(), CopyProgress::default());
        let mut wire = |lanes: &[u64]| {
            progress.lanes = lanes.iter().map(|sent| lane(*sent)).collect();
            sums.add(&progress)
        };
        assert_eq!(wire(&[100, 200]), [300, 30, 0]);
        assert_eq!(wire(&[200]), [300, 30, 0]);
        assert_eq!(wire(&[250, 10]), [360, 36, 0]);
        assert_eq!(wire(&[]), [360, 36, 0]);
    }
}
