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

use serde::Serialize;
use serde_json::Value;
use sterna_net::engine::{CopyProgress, CopySpec};
use sterna_net::report::{self, Event, LogLine, Sample, SessionHead, WireTotals};
use sterna_proto::{Error, ErrorKind, Location, Phase, Scope};

use crate::page;

/// Most samples in memory for a page; beyond that, every second sample is dropped. Reason: the page has at most some MB
/// for any copy.
const PAGE_SAMPLES_MAX: usize = 8_000;

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
    /// Page, written at the end; holds every `stride`-th sample until then.
    Page {
        file: File,
        opening: String,
        samples: Vec<Sample>,
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
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let started = SystemTime::now();
        let head = SessionHead::new(options, host, started);
        let out = match is_page {
            true => Out::Page { file, opening: opening(&head, started), samples: Vec::new(), stride: 1, count: 0 },
            false => {
                let mut lines = BufWriter::new(file);
                write_line(&mut lines, &LogLine::Session(&head)).map_err(|e| failed(path, e))?;
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
        let sample = Sample::new(progress, self.sums.add(progress));
        match &mut self.out {
            Out::Lines(file) => write_line(file, &LogLine::Sample(&sample)).map_err(|e| failed(&self.path, e)),
            Out::Page { samples, stride, count, .. } => {
                if (*count).is_multiple_of(*stride) {
                    samples.push(sample);
                }
                *count += 1;
                if samples.len() > PAGE_SAMPLES_MAX {
                    let mut index = 0;
                    samples.retain(|_| {
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
    pub fn finish(&mut self, end: &Event, words: &[String]) -> Result<(), Error> {
        match &mut self.out {
            Out::Lines(file) => write_line(file, end),
            Out::Page { file, opening, samples, .. } => {
                let words: Vec<String> = std::iter::once(&*opening).chain(words).cloned().collect();
                // Written to the open file: its name can belong to another file by now.
                file.write_all(page::page(samples, &words).as_bytes())
            }
        }
        .map_err(|e| failed(&self.path, e))
    }
}

/// Writes one line of a log and flushes it.
fn write_line(file: &mut BufWriter<File>, report: &impl Serialize) -> io::Result<()> {
    writeln!(file, "{}", report::line(report)).and_then(|()| file.flush())
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

/// Returns the first paragraph of a page.
fn opening(head: &SessionHead, started: SystemTime) -> String {
    let (sources, started) = (head.sources.join(", "), httpdate::fmt_http_date(started));
    format!("{sources} to {}; run on {}, {started}, by sterna {}", head.destination, head.host, head.version)
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::new(ErrorKind::Io, Scope::Client, Phase::Transfer, format!("write the log {}", path.display()))
        .caused_by(error)
}

/// Totals over all lanes, of live lanes and of those that have ended.
#[derive(Default)]
struct Sums {
    live: WireTotals,
    ended: WireTotals,
}

impl Sums {
    /// Returns the totals, including lanes that have ended. A total that falls means that a lane has ended: the
    /// difference stays counted. The error is what the other lanes carried in the same tenth of a second.
    fn add(&mut self, progress: &CopyProgress) -> WireTotals {
        let live = progress.lanes.iter().fold(WireTotals::default(), |sum, lane| WireTotals {
            wire_bytes: sum.wire_bytes + lane.wire_bytes_sent.max(lane.wire_bytes_received),
            packets_sent: sum.packets_sent + lane.packets_sent,
            packets_lost: sum.packets_lost + lane.packets_lost,
        });
        let before = std::mem::replace(&mut self.live, live);
        self.ended = each(self.ended, each(before, live, u64::saturating_sub), u64::saturating_add);
        each(self.ended, live, u64::saturating_add)
    }
}

/// Applies `combine` to each of the totals.
fn each(a: WireTotals, b: WireTotals, combine: fn(u64, u64) -> u64) -> WireTotals {
    WireTotals {
        wire_bytes: combine(a.wire_bytes, b.wire_bytes),
        packets_sent: combine(a.packets_sent, b.packets_sent),
        packets_lost: combine(a.packets_lost, b.packets_lost),
    }
}

#[cfg(test)]
mod tests {
    use sterna_net::lane::LaneStats;

    use super::*;

    #[test]
    fn what_lanes_that_have_ended_carried_stays_counted() {
        let lane = |sent: u64| LaneStats { wire_bytes_sent: sent, packets_sent: sent / 10, ..LaneStats::default() };
        let (mut sums, mut progress) = (Sums::default(), CopyProgress::default());
        let mut wire = |lanes: &[u64]| {
            progress.lanes = lanes.iter().map(|sent| lane(*sent)).collect();
            let WireTotals { wire_bytes, packets_sent, packets_lost } = sums.add(&progress);
            [wire_bytes, packets_sent, packets_lost]
        };
        assert_eq!(wire(&[100, 200]), [300, 30, 0]);
        assert_eq!(wire(&[200]), [300, 30, 0]);
        assert_eq!(wire(&[250, 10]), [360, 36, 0]);
        assert_eq!(wire(&[]), [360, 36, 0]);
    }
}
