//! Which way of encoding pays: samples of a file say what each way makes of it, the path and the cores say what that is worth.
//!
//! The two are kept apart. What samples have shown holds for some 256 MB of a file and for the files of its kind that follow; the
//! choice among the ways is arithmetic, and is made anew for every block, since paths change faster than data.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::path::PathFacts;
use super::{Encoder, Method, Width};
use crate::file::{FileEntry, RelPath};
use crate::plan::Decision;
use crate::quantity::BitRate;
use crate::session::FileId;

/// `--compress`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Wish {
    /// Where it makes the copy faster.
    #[default]
    Auto,
    /// Nowhere.
    Never,
    /// Wherever the data becomes smaller.
    Always,
}

/// Bytes of one sample. Reason: what zstd makes of 128 KiB is within some percent of what it makes of a piece.
pub const SAMPLE_BYTES: usize = 128 << 10;

/// Samples of a block: its first, middle and last bytes. Reason: a header of another kind than the data spoils one of three.
pub const SAMPLES: usize = 3;

/// File bytes after which samples are taken again where encoding pays. Reason: a tenth of a second at 20 Gbit/s, and six
/// milliseconds of samples.
const SAMPLED_EVERY: u64 = 256 << 20;

/// The same where the data did not compress, the first time; four times as long each time after that. Reason: data that begins with
/// a compressed header is found out soon, and random data costs 0.3 ms of samples in the time that 16 MiB take, then in 64 MiB, and so on.
const BARREN_SAMPLED_FIRST: u64 = 16 << 20;

/// The longest such stretch. Reason: a file of some TB is looked at every minute at 1 Gbit/s.
const BARREN_SAMPLED_LAST: u64 = 4 << 30;

/// Size from which a file gets samples of its own, whatever its kind has shown. Reason: samples cost a two-hundredth of what
/// the rest of such a file does.
const SAMPLED_ITSELF: u64 = 64 << 20;

/// Ratio below which samples count as data that does not compress.
const BARREN: f64 = 1.05;

/// Gain for which it is worth to encode at all. Reason: the receiver's cores pay too, and the estimate errs by some percent.
const GAIN_MIN: f64 = 1.05;

/// Gain for which another way takes the place of the one in use. Reason: rates that swing by some percent change nothing.
const CHANGE_MIN: f64 = 1.1;

/// Ways that deliver this share of the best are as good: the cheapest of them for the cores is taken.
const AS_GOOD: f64 = 0.97;

/// zstd's level for samples. Reason: [`Method`]s of other levels differ from it by less than the data does.
const LEVEL: i8 = 1;

/// A cheap level, for paths that are nearly too fast.
const LEVEL_FAST: i8 = -1;

/// A thorough level, for paths so slow that cores are idle: it takes four times the time of level 1 for some percent.
const LEVEL_SLOW: i8 = 3;

/// Files whose state is kept; the state of the oldest goes first. Reason: more are never under way on all lanes, and one that is
/// forgotten costs samples.
const FILES_KEPT: usize = 256;

/// Kinds of files that are remembered; beyond it no more are learnt. Reason: a manifest has that many kinds only if its names mean nothing.
const KINDS_KEPT: usize = 256;

/// Longest last part of a name that counts as a kind.
const KIND_BYTES_MAX: usize = 16;

/// Decisions that are told; later ones are only followed. Reason: a person reads no more.
const TOLD_MAX: usize = 64;

/// What one method made of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// How they were encoded.
    pub method: Method,
    /// What one byte becomes: the inverse of the ratio.
    pub shrunk: f64,
    /// Time of one core for one byte.
    pub seconds_per_byte: f64,
}

impl Measured {
    /// File bytes for each byte on a lane.
    pub fn ratio(&self) -> f64 {
        1.0 / self.shrunk
    }
}

/// What to do with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Encodes it so.
    Encode(Method),
    /// Takes samples of it, says with [`Chooser::handle_measured`] what they have shown, and asks again.
    Sample,
}

/// Where in a block of `length` bytes the samples begin; fewer when they would overlap.
pub fn sample_offsets(length: usize) -> Vec<usize> {
    let last = length.saturating_sub(SAMPLE_BYTES);
    if length < SAMPLES * SAMPLE_BYTES { vec![0] } else { vec![0, last / 2, last] }
}

/// Tries every method that may pay on samples of a block.
///
/// `clock` says how much time of this core has been spent; `encoded` is as long as the longest sample at least. Cost: about 0.3 ms
/// for data that does not compress, 6 ms for other data.
pub fn measure(
    encoder: &mut Encoder,
    samples: &[&[u8]],
    encoded: &mut [u8],
    mut clock: impl FnMut() -> Duration,
) -> Vec<Measured> {
    let mut try_on = |samples: &[&[u8]], method| {
        let (start, mut raw, mut length) = (clock(), 0_usize, 0_usize);
        for sample in samples {
            raw += sample.len();
            length += encoder.encode(method, sample, encoded).length as usize;
        }
        let seconds = clock().saturating_sub(start).as_secs_f64();
        let raw = raw.max(1) as f64;
        Measured { method, shrunk: (length as f64 / raw).max(f64::MIN_POSITIVE), seconds_per_byte: seconds / raw }
    };
    let middle = &samples[samples.len() / 2..][..1];
    let plain_middle = try_on(middle, Method::Zstd { level: LEVEL });
    let mut found = vec![try_on(samples, Method::Zstd { level: LEVEL })];
    for width in Width::ALL {
        let method = Method::Shuffled { width, level: LEVEL };
        // Where a shuffle shows nothing on one sample it is not tried on the others.
        if try_on(middle, method).shrunk < plain_middle.shrunk {
            found.push(try_on(samples, method));
        }
    }
    let densest = found.iter().min_by(|a, b| a.shrunk.total_cmp(&b.shrunk)).map(|best| (best.method, best.ratio()));
    if let Some((method, ratio)) = densest
        && ratio >= BARREN
    {
        for level in [LEVEL_FAST, LEVEL_SLOW] {
            let method = match method {
                Method::Shuffled { width, .. } => Method::Shuffled { width, level },
                _ => Method::Zstd { level },
            };
            found.push(try_on(samples, method));
        }
    }
    found
}

/// File bytes per second that `measured` delivers on this path, and what bounds them there.
fn delivered(measured: &Measured, facts: &PathFacts) -> (f64, Bound) {
    let by_path = facts.net_bytes_per_second() / measured.shrunk;
    let by_cores = facts.cores / (facts.base_seconds_per_byte + measured.seconds_per_byte).max(f64::MIN_POSITIVE);
    if by_path <= by_cores { (by_path, Bound::Path) } else { (by_cores, Bound::Cores) }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    Path,
    Cores,
}

/// A block as it is.
const UNENCODED: Measured = Measured { method: Method::Raw, shrunk: 1.0, seconds_per_byte: 0.0 };

/// The method that delivers most file bytes per second; `current` stays unless another is clearly better.
pub fn choose(wish: Wish, measured: &[Measured], facts: &PathFacts, current: Option<Method>) -> Decision<Method> {
    let none = |rationale: String| Decision { value: Method::Raw, rationale: format!("none, {rationale}") };
    if wish == Wish::Never {
        return none("as asked for with --compress".to_owned());
    }
    let rate = |method: &Measured| delivered(method, facts).0;
    let top = measured.iter().map(rate).fold(0.0, f64::max);
    let as_good = measured.iter().filter(|method| rate(method) >= top * AS_GOOD);
    let best = as_good.min_by(|a, b| a.seconds_per_byte.total_cmp(&b.seconds_per_byte));
    let densest = measured.iter().map(Measured::ratio).fold(1.0, f64::max);
    let Some(best) = best.filter(|_| densest >= BARREN) else {
        return none(format!("since the data does not compress ({densest:.2} : 1 at best)"));
    };
    let kept = measured.iter().find(|method| Some(method.method) == current);
    let best = kept.filter(|kept| rate(best) < rate(kept) * CHANGE_MIN).unwrap_or(best);
    let (bytes_per_second, bound) = delivered(best, facts);
    let plain = rate(&UNENCODED);
    let needed = if current.is_some_and(|method| method != Method::Raw) { 1.0 } else { GAIN_MIN };
    let (path, brings) = (as_rate(facts.net_bytes_per_second()), as_rate(bytes_per_second));
    if wish == Wish::Auto && bytes_per_second < plain * needed {
        return none(match bound {
            Bound::Cores => format!("since the path takes {path} and these cores would compress {brings}"),
            Bound::Path => format!("since {:.2} : 1 is not worth it", best.ratio()),
        });
    }
    let why = match bound {
        Bound::Path => format!("so that a path of {path} brings {brings}"),
        Bound::Cores => format!("so that these cores bring {brings} over a path of {path}"),
    };
    Decision { value: best.method, rationale: format!("{}, {:.2} : 1, {why}", best.method, best.ratio()) }
}

fn as_rate(bytes_per_second: f64) -> BitRate {
    BitRate::from_bytes_per_second(bytes_per_second as u64)
}

/// What is known of a file, or of a kind of files.
#[derive(Clone, Debug, Default)]
struct Track {
    measured: Vec<Measured>,
    /// The method of the last block.
    method: Option<Method>,
    /// File bytes until samples are taken again.
    left: u64,
    /// How long the last stretch between samples was, while the data did not compress.
    barren: u64,
}

impl Track {
    fn handle_measured(&mut self, measured: Vec<Measured>) {
        let densest = measured.iter().map(Measured::ratio).fold(1.0, f64::max);
        self.barren =
            if densest >= BARREN { 0 } else { (self.barren * 4).clamp(BARREN_SAMPLED_FIRST, BARREN_SAMPLED_LAST) };
        self.left = if self.barren > 0 { self.barren } else { SAMPLED_EVERY };
        self.measured = measured;
    }
}

/// Chooses for every block of a session how it is encoded.
#[derive(Debug)]
pub struct Chooser {
    wish: Wish,
    files: BTreeMap<FileId, Track>,
    kinds: HashMap<Vec<u8>, Track>,
    told: HashMap<Vec<u8>, Method>,
    decisions: Vec<Decision<Method>>,
    told_count: usize,
}

impl Chooser {
    /// A chooser that has seen nothing.
    pub fn new(wish: Wish) -> Self {
        Self {
            wish,
            files: BTreeMap::new(),
            kinds: HashMap::new(),
            told: HashMap::new(),
            decisions: Vec::new(),
            told_count: 0,
        }
    }

    /// What to do with the next block, `bytes` long, of `file`; of small files that share a block, of the first of them.
    pub fn plan(&mut self, file: FileId, entry: &FileEntry, bytes: u64, facts: &PathFacts) -> Plan {
        if self.wish == Wish::Never {
            return Plan::Encode(Method::Raw);
        }
        let Self { files, kinds, wish, .. } = self;
        let kind = kind_of(&entry.path);
        let track = files.entry(file).or_insert_with(|| {
            let mut track = kinds.get(kind).cloned().unwrap_or_default();
            track.left = if entry.size < SAMPLED_ITSELF { track.left } else { 0 };
            track
        });
        if track.left < bytes {
            // Other lanes that ask before the samples are measured go on as before, if there was something before.
            track.left = if track.measured.is_empty() { 0 } else { SAMPLED_EVERY };
            return Plan::Sample;
        }
        track.left -= bytes;
        // The next file of its kind goes on where this one is.
        if let Some(kind) = kinds.get_mut(kind) {
            kind.left = track.left.min(kind.left);
        }
        if facts.looks && *wish == Wish::Auto {
            return Plan::Encode(Method::Raw);
        }
        let decision = choose(*wish, &track.measured, facts, track.method);
        track.method = Some(decision.value);
        let method = decision.value;
        if files.len() > FILES_KEPT {
            files.pop_first();
        }
        self.tell(kind, decision);
        Plan::Encode(method)
    }

    /// Samples of a block of `file` were tried.
    pub fn handle_measured(&mut self, file: FileId, path: &RelPath, measured: Vec<Measured>) {
        let track = self.files.entry(file).or_default();
        track.handle_measured(measured);
        let kind = kind_of(path);
        if self.kinds.contains_key(kind) || self.kinds.len() < KINDS_KEPT {
            self.kinds.insert(kind.to_vec(), track.clone());
        }
    }

    /// A block of `file` was encoded as planned: `bytes` of it have become `encoded`. Data that has changed its nature is sampled soon.
    pub fn handle_encoded(&mut self, file: FileId, bytes: u64, encoded: u64) {
        if let Some(track) = self.files.get_mut(&file)
            && encoded as f64 * BARREN > bytes as f64
        {
            track.left = track.left.min(BARREN_SAMPLED_FIRST);
        }
    }

    /// A file has its outcome.
    pub fn forget(&mut self, file: FileId) {
        self.files.remove(&file);
    }

    /// The next decision that the person is told of.
    pub fn poll_decision(&mut self) -> Option<Decision<Method>> {
        (!self.decisions.is_empty()).then(|| self.decisions.remove(0))
    }

    fn tell(&mut self, kind: &[u8], decision: Decision<Method>) {
        if self.told_count >= TOLD_MAX || self.told.get(kind) == Some(&decision.value) {
            return;
        }
        self.told_count += 1;
        self.told.insert(kind.to_vec(), decision.value);
        let of = if kind.is_empty() { String::new() } else { format!(" (*.{})", String::from_utf8_lossy(kind)) };
        self.decisions.push(Decision { value: decision.value, rationale: format!("{}{of}", decision.rationale) });
    }
}

/// The kind of a file: what is behind the last dot of its name, if that is short and no secret of its own.
fn kind_of(path: &RelPath) -> &[u8] {
    let bytes = path.as_bytes();
    let name = bytes.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let kind = name.iter().rposition(|&byte| byte == b'.').map_or(&[][..], |dot| &name[dot + 1..]);
    if kind.len() <= KIND_BYTES_MAX && kind.iter().all(u8::is_ascii_alphanumeric) { kind } else { &[] }
}
