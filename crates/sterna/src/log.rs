//! Writes `--log FILE`: the samples of a session, one JSON object per line. If the name ends in `.html`, FILE becomes a
//! page with plots.
//!
//! Refuses to overwrite a file that is not a log of Sterna. Snapshots enter as arguments; reads the clock once, for the
//! start time in the header.

use std::fs::{self, File, Metadata};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};
use sterna_net::engine::{CopyProgress, CopySpec};
use sterna_net::lane::LaneStats;
use sterna_proto::limit::{LaneJudgement, TransportSample};
use sterna_proto::{Error, ErrorKind, Location, Phase, Scope};

use crate::{limits, page};

/// Most lines in memory for a page; beyond that, every second line is dropped. Reason: the page has at most some MB for
/// any copy.
const PAGE_LINES_MAX: usize = 8_000;

/// Bytes that are read to identify an existing log. Reason: the first line lists all sources of the command line, which
/// the kernel limits to a few MiB.
const HEAD_BYTES_MAX: u64 = 16 << 20;

/// Log of samples.
pub struct SampleLog {
    path: PathBuf,
    out: Out,
    number: Option<u64>,
    sums: Sums,
}

enum Out {
    Lines(BufWriter<File>),
    /// Page, written at the end; holds every `stride`-th line until then.
    Page {
        file: File,
        head: String,
        lines: Vec<Value>,
        stride: u64,
        count: u64,
    },
}

impl SampleLog {
    /// Creates the file and records the sources and the destination in it. Overwrites a log of an earlier copy.
    ///
    /// Errors: `Usage` if the file is something else, which stays unchanged; other kinds if this host denies the
    /// access.
    pub fn create(path: &Path, options: &CopySpec) -> Result<Self, Error> {
        let file = open(path, options)?;
        let is_page = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("html"));
        let head = Head::new(options);
        let out = match is_page {
            true => Out::Page { file, head: head.line(), lines: Vec::new(), stride: 1, count: 0 },
            false => {
                let mut lines = BufWriter::new(file);
                writeln!(lines, "{}", head.value()).and_then(|()| lines.flush()).map_err(|e| failed(path, e))?;
                Out::Lines(lines)
            }
        };
        Ok(Self { path: path.to_owned(), out, number: None, sums: Sums::default() })
    }

    /// Adds a snapshot if it is new. Errors: the write fails.
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

    /// Ends the log with the result of the whole copy. Errors: the write fails.
    pub fn finish(&mut self, end: &Value, words: &[String]) -> Result<(), Error> {
        match &mut self.out {
            Out::Lines(file) => writeln!(file, "{end}").and_then(|()| file.flush()),
            Out::Page { file, head, lines, .. } => {
                let words: Vec<String> = std::iter::once(&*head).chain(words).cloned().collect();
                // Written to the open file: its name can belong to another file by now.
                file.write_all(page::page(lines, &words).as_bytes())
            }
        }
        .map_err(|e| failed(&self.path, e))
    }
}

/// Opens the file of a log and truncates it. Truncates only an empty file or a log of Sterna. Reason: arguments in the
/// wrong order must not destroy a file.
fn open(path: &Path, options: &CopySpec) -> Result<File, Error> {
    let refused = |what: &str| {
        let text = format!(
            "--log {}: {what}; it was left as it is and nothing was sent: give a name that is not taken, or that of an old log",
            path.display()
        );
        Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
    };
    let found = match fs::metadata(path) {
        Ok(found) => Some(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(path, error)),
    };
    let mut ends = options.sources.iter().chain([&options.destination]);
    if ends.any(|end| is_file_of(end, path, found.as_ref())) {
        return refused("this is what is to be copied");
    }
    match found.map(|found| found.file_type()) {
        None => {}
        Some(kind) if kind.is_file() => {}
        // A device such as /dev/null holds no data.
        Some(kind) if kind.is_char_device() => {
            return File::options().write(true).open(path).map_err(|e| failed(path, e));
        }
        Some(kind) if kind.is_dir() => return refused("this is a directory, and a log needs a file"),
        // Opening a pipe without a reader blocks for ever.
        Some(_) => return refused("this is a pipe, a socket or a device, and a log needs a file"),
    }
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
    let mut file = file.map_err(|e| failed(path, e))?;
    if !is_empty_or_log(&file).map_err(|e| failed(path, e))? {
        return refused("this file holds something else than a log of sterna");
    }
    file.set_len(0).and_then(|()| file.rewind()).map_err(|e| failed(path, e))?;
    Ok(file)
}

/// Returns true if the source or destination `end` is the local file `path`, by name or by inode.
fn is_file_of(end: &Location, path: &Path, found: Option<&Metadata>) -> bool {
    let Location::Local(local) = end else { return false };
    let id = |file: &Metadata| (file.dev(), file.ino());
    local == path
        || found.is_some_and(|found| found.is_file() && fs::metadata(local).is_ok_and(|local| id(&local) == id(found)))
}

/// Returns true if a file is empty, or begins like a log of Sterna.
fn is_empty_or_log(file: &File) -> io::Result<bool> {
    let mut head = Vec::new();
    BufReader::new(file).take(HEAD_BYTES_MAX).read_until(b'\n', &mut head)?;
    let is_session = |line: &[u8]| serde_json::from_slice(line).is_ok_and(|line: Value| line["event"] == "session");
    if head.is_empty() || is_session(&head) {
        return Ok(true);
    }
    let mut file = file;
    file.rewind()?;
    head.clear();
    file.take(page::HEAD.len() as u64).read_to_end(&mut head)?;
    Ok(head == page::HEAD.as_bytes())
}

/// Description of the copy at the start of a log, for readers years later.
struct Head {
    host: String,
    started: SystemTime,
    sources: Vec<String>,
    destination: String,
}

impl Head {
    fn new(options: &CopySpec) -> Self {
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

/// Totals over all lanes: bytes on the wire, packets sent, packets lost.
#[derive(Default)]
struct Sums {
    live: [u64; 3],
    ended: [u64; 3],
}

impl Sums {
    /// Returns the totals, including lanes that have ended. A total that falls means that a lane has ended: the
    /// difference stays counted. The error is what the other lanes carried in the same tenth of a second.
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

/// Returns one line of the log. Units: bytes, bit/s, seconds. Counts are since the start of the session; those of a
/// lane are since the start of the lane.
fn sample(progress: &CopyProgress, [wire_bytes, packets_sent, packets_lost]: [u64; 3]) -> Value {
    let session = &progress.session;
    let rtts: Vec<f64> = progress.lanes.iter().map(|lane| lane.rtt.as_secs_f64()).filter(|rtt| *rtt > 0.0).collect();
    json!({
        "event": "sample",
        "elapsed_s": progress.elapsed.as_secs_f64(),
        "bytes_carried": session.counters.bytes_brought(),
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
