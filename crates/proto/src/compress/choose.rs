//! Choice of the encoding of blocks: samples of a file show the effect of each method; the path and the cores determine
//! its value.
//!
//! The two are separate. The result of samples holds for about 256 MB of a file, and for later files of its kind. The
//! choice among methods is arithmetic and is repeated for every block, because paths change faster than data.
//!
//! Refuses to read a clock or a file. Costs, samples and path figures come in as arguments; plans and decisions leave.

use std::collections::BTreeMap;
use std::time::Duration;

use super::path::PathFacts;
use super::{Encoder, Method, SlabEncoding, Width};
use crate::file::{FileEntry, RelPath};
use crate::plan::Decision;
use crate::quantity::BitRate;
use crate::session::FileId;

/// Compression policy (`--compress`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CompressionPolicy {
    /// Compress where it makes the copy faster.
    #[default]
    Auto,
    /// Never compress.
    Never,
    /// Compress wherever the data becomes smaller.
    Always,
}

/// Size of one sample, in bytes. Reason: zstd's ratio for 128 KiB is within some percent of its ratio for a slab.
pub const SAMPLE_BYTES: usize = 128 << 10;

/// Number of samples of a block: at its start, middle and end. Reason: a header of another kind than the data spoils
/// one of three.
pub const SAMPLES: usize = 3;

/// Minimum size of a sampled block, in bytes; shorter blocks are encoded without samples. Reason: encoding takes a
/// tenth of a millisecond, and short blocks predict little about others.
const SAMPLED_MIN: u64 = 64 << 10;

/// File bytes between two samplings where encoding pays. Reason: a tenth of a second at 20 Gbit/s, against six
/// milliseconds of sampling.
const SAMPLED_EVERY: u64 = 256 << 20;

/// File bytes before the second sampling where the data did not compress; each further distance is four times as long.
/// Reason: data that begins with a compressed header is detected soon. Random data costs 0.3 ms of sampling per 16 MiB,
/// then per 64 MiB, and so on.
const BARREN_SAMPLED_FIRST: u64 = 16 << 20;

/// Maximum file bytes between two samplings of data that does not compress. Reason: at 1 Gbit/s, a file of some TB is
/// sampled about every half minute.
const BARREN_SAMPLED_LAST: u64 = 4 << 30;

/// Size from which a file is sampled itself, whatever the result for its kind. Reason: sampling costs a two-hundredth
/// of the processing of such a file.
const SAMPLED_ITSELF: u64 = 64 << 20;

/// Exponent with which the ratio of an encoded block corrects the sampled ratio. Reason: a file whose content
/// alternates settles near its mean.
const LEARNING: f64 = 0.25;

/// Ratio below which data counts as incompressible.
const BARREN: f64 = 1.05;

/// Minimum gain in goodput to start encoding. Reason: the receiver's cores pay too, and the estimate is off by some
/// percent.
const GAIN_MIN: f64 = 1.08;

/// Share of the uncompressed goodput at which encoding continues once it has started. Reason: the same estimation
/// errors, in the other direction.
const GAIN_KEPT: f64 = 0.9;

/// Minimum gain for a change of method. Reason: rates that vary by some percent must not change the method.
const CHANGE_MIN: f64 = 1.1;

/// Share of the best goodput at which a method counts as equally good. Among these, the one cheapest for the cores is
/// used.
const AS_GOOD: f64 = 0.97;

/// Level of zstd for samples. Reason: other levels of a [`Method`] differ from it by less than the data does.
const LEVEL: i8 = 1;

/// A cheap level, for paths almost too fast for compression.
const LEVEL_FAST: i8 = -1;

/// A thorough level, for paths so slow that cores are idle: it takes four times as long as level 1 and saves some
/// percent.
const LEVEL_SLOW: i8 = 3;

/// Number of files whose state is kept; the oldest is dropped first. Reason: lanes never work on more files at once,
/// and a dropped state costs one sampling.
const FILES_KEPT: usize = 256;

/// Number of file kinds that are remembered; no more are added. Reason: a manifest has so many kinds only if its
/// extensions mean nothing.
const KINDS_KEPT: usize = 256;

/// Longest file name extension that counts as a kind, in bytes.
const KIND_BYTES_MAX: usize = 16;

/// Maximum number of decisions reported to the user; later decisions only take effect. Reason: a user reads no more.
const TOLD_MAX: usize = 64;

/// Result of one method on samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Method of encoding.
    pub method: Method,
    /// Encoded bytes per file byte: the inverse of the ratio.
    pub shrunk: f64,
    /// Core time per file byte, in seconds.
    pub seconds_per_byte: f64,
}

impl Measured {
    /// Returns the compression ratio: file bytes per byte on a lane.
    pub fn ratio(&self) -> f64 {
        1.0 / self.shrunk
    }
}

/// Treatment of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// The caller encodes the block with this method.
    Encode(Method),
    /// The caller samples the block, passes the results to [`Chooser::handle_measured`], and asks again.
    Sample,
}

/// Returns the offsets of the samples in a block of `length` bytes. Returns fewer if they would overlap.
pub fn sample_offsets(length: usize) -> Vec<usize> {
    let last = length.saturating_sub(SAMPLE_BYTES);
    if length < SAMPLES * SAMPLE_BYTES { vec![0] } else { vec![0, last / 2, last] }
}

/// Tries every promising method on samples of a block.
///
/// `clock` returns the time spent by this core. `encoded` must be at least as long as the longest sample. Cost: about
/// 0.3 ms for incompressible data, 6 ms for other data.
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
        // A shuffle that gains nothing on one sample is not tried on the others.
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

/// Returns the goodput of `measured` on this path, in bytes/s, and its bottleneck.
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

/// A block without encoding.
const UNENCODED: Measured = Measured { method: Method::Raw, shrunk: 1.0, seconds_per_byte: 0.0 };

/// Returns the method with the highest goodput. `current` stays unless another method is clearly better.
pub fn choose(
    policy: CompressionPolicy,
    measured: &[Measured],
    facts: &PathFacts,
    current: Option<Method>,
) -> Decision<Method> {
    let none = |rationale: String| Decision { value: Method::Raw, rationale: format!("none, {rationale}") };
    if policy == CompressionPolicy::Never {
        return none("as given".to_owned());
    }
    let rate = |method: &Measured| delivered(method, facts).0;
    let top = measured.iter().map(rate).fold(0.0, f64::max);
    let as_good = measured.iter().filter(|method| rate(method) >= top * AS_GOOD);
    let best = as_good.min_by(|a, b| a.seconds_per_byte.total_cmp(&b.seconds_per_byte));
    let densest = measured.iter().map(Measured::ratio).fold(1.0, f64::max);
    let Some(best) = best.filter(|_| densest >= BARREN) else {
        return none(format!("since the data does not compress ({} at best)", shown(densest)));
    };
    let kept = measured.iter().find(|method| Some(method.method) == current);
    let best = kept.filter(|kept| rate(best) < rate(kept) * CHANGE_MIN).unwrap_or(best);
    let (bytes_per_second, bound) = delivered(best, facts);
    let plain = rate(&UNENCODED);
    let needed = if current.is_some_and(|method| method != Method::Raw) { GAIN_KEPT } else { GAIN_MIN };
    let (path, brings) = (as_rate(facts.net_bytes_per_second()), as_rate(bytes_per_second));
    if policy == CompressionPolicy::Auto && bytes_per_second < plain * needed {
        return none(match bound {
            Bound::Cores => format!("since the path takes {path} and these cores would compress {brings}"),
            Bound::Path => format!("since {} is not worth it", shown(best.ratio())),
        });
    }
    let why = match bound {
        Bound::Path => format!("so that a path of {path} brings {brings}"),
        Bound::Cores => format!("so that these cores bring {brings} over a path of {path}"),
    };
    Decision { value: best.method, rationale: format!("{}, {}, {why}", best.method, shown(best.ratio())) }
}

/// Returns a ratio as text for users, with two or three digits.
fn shown(ratio: f64) -> String {
    if ratio < 9.995 { format!("{ratio:.2} : 1") } else { format!("{ratio:.0} : 1") }
}

fn as_rate(bytes_per_second: f64) -> BitRate {
    BitRate::from_bytes_per_second(bytes_per_second as u64)
}

/// State of a file, or of a kind of files.
#[derive(Clone, Debug, Default)]
struct Track {
    measured: Vec<Measured>,
    /// Method of the last block.
    method: Option<Method>,
    /// File bytes until the next sampling.
    left: u64,
    /// Last distance between samplings while the data did not compress; otherwise 0.
    barren: u64,
    /// True if the last samples did not compress and those before did.
    doubted: bool,
}

impl Track {
    fn handle_measured(&mut self, measured: Vec<Measured>) {
        let is_barren = |measured: &[Measured]| measured.iter().all(|method| method.ratio() < BARREN);
        if is_barren(&measured) && !self.doubted && !is_barren(&self.measured) {
            // A local exception, such as one picture among arrays: slabs that do not shrink travel raw, and the next
            // samples decide.
            self.doubted = true;
            self.left = BARREN_SAMPLED_FIRST;
            return;
        }
        self.doubted = false;
        let barren = (self.barren * 4).clamp(BARREN_SAMPLED_FIRST, BARREN_SAMPLED_LAST);
        self.barren = if is_barren(&measured) { barren } else { 0 };
        self.left = if self.barren > 0 { self.barren } else { SAMPLED_EVERY };
        self.measured = measured;
    }

    /// Records the result of a block encoded with `method`. If it differs from the sampled result, the results of all
    /// methods are corrected.
    fn handle_encoded(&mut self, method: Method, shrunk: f64) {
        let Some(promised) = self.measured.iter().find(|measured| measured.method == method) else { return };
        let error = (shrunk / promised.shrunk).powf(LEARNING);
        for measured in &mut self.measured {
            measured.shrunk = (measured.shrunk * error).min(1.0);
        }
        if shrunk * BARREN > 1.0 {
            self.left = self.left.min(BARREN_SAMPLED_FIRST);
        }
    }
}

/// Chooses the encoding of every block of a session.
#[derive(Debug)]
pub struct Chooser {
    policy: CompressionPolicy,
    files: BTreeMap<FileId, Track>,
    kinds: BTreeMap<Vec<u8>, Track>,
    told: BTreeMap<Vec<u8>, SlabEncoding>,
    decisions: Vec<Decision<Method>>,
    told_count: usize,
}

impl Chooser {
    /// Returns a chooser without any samples.
    pub fn new(policy: CompressionPolicy) -> Self {
        Self {
            policy,
            files: BTreeMap::new(),
            kinds: BTreeMap::new(),
            told: BTreeMap::new(),
            decisions: Vec::new(),
            told_count: 0,
        }
    }

    /// Returns the treatment of the next block of `file`, `bytes` long. For a packed block, `file` is one of its files.
    pub fn plan(&mut self, file: FileId, entry: &FileEntry, bytes: u64, facts: &PathFacts) -> Plan {
        if self.policy == CompressionPolicy::Never {
            return Plan::Encode(Method::Raw);
        }
        let Self { files, kinds, policy, .. } = self;
        let kind = kind_of(&entry.path);
        let track = files.entry(file).or_insert_with(|| {
            let mut track = kinds.get(kind).cloned().unwrap_or_default();
            track.left = if entry.size < SAMPLED_ITSELF { track.left } else { 0 };
            track
        });
        if bytes < SAMPLED_MIN && track.left < bytes {
            return Plan::Encode(Method::Zstd { level: LEVEL });
        }
        if track.left < bytes {
            // Other lanes that ask before the samples are measured continue as before, if earlier results exist.
            track.left = if track.measured.is_empty() { 0 } else { SAMPLED_EVERY };
            return Plan::Sample;
        }
        track.left -= bytes;
        // The next file of the same kind continues the count of this one.
        if let Some(kind) = kinds.get_mut(kind) {
            kind.left = track.left.min(kind.left);
        }
        if facts.looks && *policy == CompressionPolicy::Auto {
            return Plan::Encode(Method::Raw);
        }
        let decision = choose(*policy, &track.measured, facts, track.method);
        track.method = Some(decision.value);
        let method = decision.value;
        if files.len() > FILES_KEPT {
            files.pop_first();
        }
        self.tell(kind, decision);
        Plan::Encode(method)
    }

    /// Records the results of samples of a block of `file`.
    pub fn handle_measured(&mut self, file: FileId, path: &RelPath, measured: Vec<Measured>) {
        let track = self.files.entry(file).or_default();
        track.handle_measured(measured);
        let kind = kind_of(path);
        if self.kinds.contains_key(kind) || self.kinds.len() < KINDS_KEPT {
            self.kinds.insert(kind.to_vec(), track.clone());
        }
    }

    /// Records that a block of `file` was encoded with `method` from `bytes` to `encoded` bytes. Data that has changed
    /// is sampled again soon.
    pub fn handle_encoded(&mut self, file: FileId, method: Method, bytes: u64, encoded: u64) {
        if let Some(track) = self.files.get_mut(&file)
            && bytes >= SAMPLED_MIN
        {
            track.handle_encoded(method, encoded as f64 / bytes as f64);
        }
    }

    /// Drops the state of a file that has its outcome.
    pub fn forget(&mut self, file: FileId) {
        self.files.remove(&file);
    }

    /// Returns the next decision to report to the user.
    pub fn poll_decision(&mut self) -> Option<Decision<Method>> {
        (!self.decisions.is_empty()).then(|| self.decisions.remove(0))
    }

    fn tell(&mut self, kind: &[u8], decision: Decision<Method>) {
        if self.told_count >= TOLD_MAX || self.told.get(kind) == Some(&decision.value.encoding()) {
            return;
        }
        self.told_count += 1;
        self.told.insert(kind.to_vec(), decision.value.encoding());
        let of = if kind.is_empty() { String::new() } else { format!(" (*.{})", String::from_utf8_lossy(kind)) };
        self.decisions.push(Decision { value: decision.value, rationale: format!("{}{of}", decision.rationale) });
    }
}

/// Returns the kind of a file: its name extension if that is short and alphanumeric, otherwise empty. Reason: the kind
/// appears in messages, and a longer text may be a secret.
fn kind_of(path: &RelPath) -> &[u8] {
    let bytes = path.as_bytes();
    let name = bytes.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let kind = name.iter().rposition(|&byte| byte == b'.').map_or(&[][..], |dot| &name[dot + 1..]);
    if kind.len() <= KIND_BYTES_MAX && kind.iter().all(u8::is_ascii_alphanumeric) { kind } else { &[] }
}

#[cfg(test)]
mod tests {
    use sterna_seeded::Seeded;

    use super::*;
    use crate::file::{EntryKind, FileTime};

    fn facts(megabits: u64, cores: f64) -> PathFacts {
        let net = Some(BitRate::megabits(megabits));
        PathFacts { net, cores, base_seconds_per_byte: 0.7e-9, looks: false }
    }

    /// Result of a method with compression ratio `ratio` at `rate` MB/s per core.
    fn measured(method: Method, ratio: f64, rate: f64) -> Measured {
        Measured { method, shrunk: 1.0 / ratio, seconds_per_byte: 1e-6 / rate }
    }

    const PLAIN: Method = Method::Zstd { level: 1 };
    const SLOW: Method = Method::Zstd { level: 3 };
    const BY_TWO: Method = Method::Shuffled { width: Width::Two, level: 1 };

    /// Results for 16-bit samples with four bits of noise, as measured on one core.
    fn sensor() -> Vec<Measured> {
        vec![measured(PLAIN, 1.22, 610.0), measured(BY_TWO, 1.95, 1080.0), measured(SLOW, 1.6, 140.0)]
    }

    fn noise() -> Vec<Measured> {
        vec![measured(PLAIN, 1.0, 4000.0), measured(BY_TWO, 1.0, 3000.0)]
    }

    fn chosen(measured: &[Measured], facts: &PathFacts) -> Method {
        choose(CompressionPolicy::Auto, measured, facts, None).value
    }

    #[test]
    fn a_path_faster_than_the_cores_compress_gets_the_files_as_they_are() {
        assert_eq!(chosen(&sensor(), &facts(50, 2.0)), BY_TWO);
        assert_eq!(chosen(&sensor(), &facts(1000, 2.0)), BY_TWO);
        assert_eq!(chosen(&sensor(), &facts(25_000, 2.0)), Method::Raw);
        // With 32 cores, compression keeps up with the path.
        assert_eq!(chosen(&sensor(), &facts(25_000, 32.0)), BY_TWO);
        assert_eq!(chosen(&noise(), &facts(1, 32.0)), Method::Raw);
        assert_eq!(chosen(&[], &facts(1, 32.0)), Method::Raw);
    }

    #[test]
    fn idle_cores_are_worth_a_thorough_level_and_busy_ones_a_fast_one() {
        let text =
            [measured(Method::Zstd { level: -1 }, 2.0, 900.0), measured(PLAIN, 2.5, 400.0), measured(SLOW, 3.0, 150.0)];
        assert_eq!(chosen(&text, &facts(100, 2.0)), SLOW);
        assert_eq!(chosen(&text, &facts(1500, 2.0)), PLAIN);
        assert_eq!(chosen(&text, &facts(4000, 2.0)), Method::Zstd { level: -1 });
    }

    #[test]
    fn what_is_as_good_costs_the_cores_least() {
        let alike = [measured(SLOW, 2.02, 140.0), measured(PLAIN, 2.0, 500.0)];
        assert_eq!(chosen(&alike, &facts(50, 2.0)), PLAIN);
    }

    #[test]
    fn always_means_wherever_it_is_smaller() {
        let always =
            |measured: &[Measured]| choose(CompressionPolicy::Always, measured, &facts(25_000, 2.0), None).value;
        assert_eq!((always(&sensor()), always(&noise())), (BY_TWO, Method::Raw));
        assert_eq!(choose(CompressionPolicy::Never, &sensor(), &facts(1, 2.0), None).value, Method::Raw);
    }

    #[test]
    fn rates_that_swing_change_nothing() {
        let near = [measured(PLAIN, 2.0, 500.0), measured(SLOW, 2.1, 300.0)];
        assert_eq!(choose(CompressionPolicy::Auto, &near, &facts(50, 2.0), None).value, SLOW);
        assert_eq!(choose(CompressionPolicy::Auto, &near, &facts(50, 2.0), Some(PLAIN)).value, PLAIN);
    }

    #[test]
    fn a_rationale_says_what_the_path_brings() {
        let said = |megabits| choose(CompressionPolicy::Auto, &sensor(), &facts(megabits, 2.0), None).rationale;
        assert_eq!(said(100), "shuffle 2 and zstd 1, 1.95 : 1, so that a path of 100 Mbit/s brings 195 Mbit/s");
        assert_eq!(said(20_000), "none, since the path takes 20.0 Gbit/s and these cores would compress 9.84 Gbit/s");
        let none = choose(CompressionPolicy::Auto, &noise(), &facts(100, 2.0), None).rationale;
        assert_eq!(none, "none, since the data does not compress (1.00 : 1 at best)");
    }

    fn entry(name: &str, size: u64) -> FileEntry {
        let (path, mtime) = (RelPath::new(name.as_bytes()).unwrap(), FileTime { seconds: 1, nanoseconds: 0 });
        FileEntry {
            path,
            kind: EntryKind::File,
            size,
            mtime,
            mode: 0o644,
            allocated: size,
            inode: 1,
            version: 1,
            growth: None,
        }
    }

    /// Plans all blocks of a file of `size` bytes. Returns the number of sampled blocks and the method of the last one.
    fn run(chooser: &mut Chooser, id: u64, name: &str, size: u64, shows: &[Measured]) -> (u32, Method) {
        let (entry, id, mut samples, mut last) = (entry(name, size), FileId(id), 0, Method::Raw);
        for block in 0..size.div_ceil(1 << 20) {
            let length = (size - (block << 20)).min(1 << 20);
            loop {
                match chooser.plan(id, &entry, length, &facts(100, 2.0)) {
                    Plan::Encode(method) => {
                        last = method;
                        break;
                    }
                    Plan::Sample => {
                        samples += 1;
                        chooser.handle_measured(id, &entry.path, shows.to_vec());
                    }
                }
            }
        }
        chooser.forget(id);
        (samples, last)
    }

    #[test]
    fn samples_are_seldom_and_fewer_where_nothing_compresses() {
        let mut chooser = Chooser::new(CompressionPolicy::Auto);
        assert_eq!(run(&mut chooser, 0, "a.h5", 1 << 30, &sensor()), (4, BY_TWO));
        // Samplings after 16 MiB, then 64, 256 and 1024.
        let mut chooser = Chooser::new(CompressionPolicy::Auto);
        assert_eq!(run(&mut chooser, 0, "a.bin", 1 << 30, &noise()), (4, Method::Raw));
    }

    #[test]
    fn files_of_one_kind_follow_each_other() {
        let mut chooser = Chooser::new(CompressionPolicy::Auto);
        let mut samples = 0;
        for id in 0..100 {
            let (sampled, method) = run(&mut chooser, id, &format!("d/{id}.i16"), 1 << 20, &sensor());
            samples += sampled;
            assert_eq!(method, BY_TWO);
        }
        assert_eq!(samples, 1);
        // Another kind is sampled separately, and so is a large file of any kind.
        assert_eq!(run(&mut chooser, 100, "d/x.jpg", 1 << 20, &noise()), (1, Method::Raw));
        assert_eq!(run(&mut chooser, 101, "d/y.jpg", 64 << 20, &sensor()).1, BY_TWO);
        assert_eq!(chooser.files.len(), 0, "what has settled is forgotten");
    }

    #[test]
    fn data_that_turns_to_noise_is_sampled_soon() {
        let mut chooser = Chooser::new(CompressionPolicy::Auto);
        let (file, entry) = (FileId(0), entry("a.h5", 1 << 40));
        let block = 1 << 24;
        assert_eq!(chooser.plan(file, &entry, block, &facts(100, 2.0)), Plan::Sample);
        chooser.handle_measured(file, &entry.path, sensor());
        assert_eq!(chooser.plan(file, &entry, block, &facts(100, 2.0)), Plan::Encode(BY_TWO));
        chooser.handle_encoded(file, BY_TWO, block, block);
        assert_eq!(chooser.plan(file, &entry, block, &facts(100, 2.0)), Plan::Encode(BY_TWO));
        assert_eq!(chooser.plan(file, &entry, block, &facts(100, 2.0)), Plan::Sample);
        // The second sampling decides.
        chooser.handle_measured(file, &entry.path, noise());
        assert_eq!(chooser.plan(file, &entry, block, &facts(100, 2.0)), Plan::Encode(BY_TWO));
        assert_eq!(chooser.plan(file, &entry, block, &facts(100, 2.0)), Plan::Sample);
        chooser.handle_measured(file, &entry.path, noise());
        assert_eq!(chooser.plan(file, &entry, block, &facts(100, 2.0)), Plan::Encode(Method::Raw));
    }

    #[test]
    fn blocks_correct_what_samples_have_promised() {
        let mut chooser = Chooser::new(CompressionPolicy::Auto);
        let (file, entry) = (FileId(0), entry("a.grib", 1 << 40));
        assert_eq!(chooser.plan(file, &entry, 1 << 20, &facts(100, 2.0)), Plan::Sample);
        chooser.handle_measured(file, &entry.path, sensor());
        // Every second block is noise: the ratio 1.95 : 1 becomes 1.32 : 1.
        for block in 0..64 {
            let encoded = if block % 2 == 0 { 1 << 20 } else { (1 << 20) * 20 / 39 };
            chooser.handle_encoded(file, BY_TWO, 1 << 20, encoded);
        }
        let ratio = chooser.files[&file].measured[1].ratio();
        assert!((1.2..1.5).contains(&ratio), "{ratio}");
    }

    #[test]
    fn the_last_bytes_of_a_file_say_nothing_of_others() {
        let mut chooser = Chooser::new(CompressionPolicy::Auto);
        let size = (1 << 20) + 1;
        assert_eq!(run(&mut chooser, 0, "a.i16", size, &sensor()), (1, BY_TWO));
        let (file, entry) = (FileId(1), entry("b.xyz", size));
        assert_eq!(chooser.plan(file, &entry, 1, &facts(100, 2.0)), Plan::Encode(PLAIN));
        assert_eq!(chooser.plan(file, &entry, 1 << 20, &facts(100, 2.0)), Plan::Sample);
    }

    #[test]
    fn each_choice_is_reported_once() {
        let mut chooser = Chooser::new(CompressionPolicy::Auto);
        for id in 0..200 {
            run(&mut chooser, 2 * id, "a.i16", 1 << 20, &sensor());
            run(&mut chooser, 2 * id + 1, &format!("a.{id}"), 1 << 20, &noise());
        }
        let told = std::iter::from_fn(|| chooser.poll_decision()).collect::<Vec<_>>();
        assert_eq!(told.len(), TOLD_MAX);
        assert!(told[0].rationale.ends_with("brings 195 Mbit/s (*.i16)"), "{}", told[0].rationale);
        assert!(chooser.kinds.len() <= KINDS_KEPT);
    }

    #[test]
    fn samples_lie_within_their_block() {
        for length in [1, SAMPLE_BYTES - 1, SAMPLE_BYTES, SAMPLES * SAMPLE_BYTES - 1, SAMPLES * SAMPLE_BYTES, 1 << 24] {
            let offsets = sample_offsets(length);
            assert!(offsets.windows(2).all(|two| two[0] + SAMPLE_BYTES <= two[1]), "{length}: {offsets:?}");
            assert!(offsets.iter().all(|offset| offset + SAMPLE_BYTES.min(length) <= length), "{length}: {offsets:?}");
        }
    }

    #[test]
    fn noise_is_known_by_few_samples() {
        let noise = Seeded::new(1).bytes(SAMPLES * SAMPLE_BYTES);
        let samples: Vec<&[u8]> = noise.chunks(SAMPLE_BYTES).collect();
        let mut reads = 0;
        let found = measure(&mut Encoder::default(), &samples, &mut vec![0; SAMPLE_BYTES], || {
            reads += 1;
            Duration::from_millis(reads)
        });
        assert!(found.iter().all(|measured| measured.ratio() < 1.01), "{found:?}");
        // Plain zstd on the middle sample and on all, each shuffle on the middle sample.
        assert_eq!((found.len(), reads), (1, 10));
    }
}
