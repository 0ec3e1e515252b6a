//! Reply of a third-party copy: performance markers, and the verdict as the last line.
//!
//! The status of the reply says only that the copy began. Refuses to judge: the caller decides what a verdict, or its
//! absence, means.

use std::collections::BTreeMap;

/// Maximum bytes of a line that is read. Reason: verdicts repeat the answer of the other storage; the rest is dropped.
const LINE_BYTES_MAX: usize = 16 << 10;

/// Maximum number of stripes that count. Reason: XRootD has up to 100 streams; a hostile storage could name any number.
const STRIPES_MAX: usize = 1000;

/// Verdict of a third-party copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The active party has moved all bytes.
    Success,
    /// It has failed, with this text.
    Failure(String),
}

/// Reader of a reply.
#[derive(Debug, Default)]
pub(super) struct Markers {
    line: Vec<u8>,
    stripe: u64,
    stripes: BTreeMap<u64, u64>,
    /// Number of stripes that the storage reports.
    stripe_count: Option<u64>,
    /// Number of markers that are complete.
    pub count: u64,
    /// True after a marker or a verdict. A reply without any is of a server that copies nothing to others.
    pub is_third_party: bool,
    /// Verdict, once it was read.
    pub verdict: Option<Verdict>,
}

impl Markers {
    /// Adds bytes of the reply.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => self.end_line(),
                byte if self.line.len() < LINE_BYTES_MAX => self.line.push(*byte),
                _ => {}
            }
        }
    }

    /// Records the end of the reply: XRootD ends the verdict without a line feed.
    pub fn handle_end(&mut self) {
        self.end_line();
    }

    /// Returns the bytes that have moved, over all stripes.
    pub fn bytes(&self) -> u64 {
        self.stripes.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Returns the number of stripes; `None`: no marker has come.
    pub fn stripes(&self) -> Option<u32> {
        let seen = Some(self.stripes.len() as u64).filter(|seen| *seen > 0);
        self.stripe_count.max(seen).map(|count| u32::try_from(count).unwrap_or(u32::MAX))
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        let line = line.trim();
        let lower = line.to_ascii_lowercase();
        let begins = |word: &str| lower.starts_with(word);
        if begins("success") {
            self.verdict = Some(Verdict::Success);
        } else if ["failure", "failed", "aborted"].into_iter().any(begins) {
            let text = line.split_once(':').map_or(line, |(_, text)| text);
            self.verdict = Some(Verdict::Failure(text.trim().to_owned()));
        } else if let Some((name, value)) = lower.split_once(':') {
            // A negative number stands for an unknown one.
            let number = value.trim().parse::<u64>().ok();
            match (name, number) {
                ("stripe index", Some(index)) => self.stripe = index,
                ("stripe bytes transferred", Some(bytes)) => self.handle_stripe(bytes),
                ("total stripe count", Some(count)) => self.stripe_count = Some(count),
                _ => {}
            }
        }
        self.count += u64::from(lower == "end");
        self.is_third_party |= begins("perf marker") || self.verdict.is_some();
    }

    fn handle_stripe(&mut self, bytes: u64) {
        if self.stripes.len() < STRIPES_MAX || self.stripes.contains_key(&self.stripe) {
            self.stripes.insert(self.stripe, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Markers {
        let mut markers = Markers::default();
        // One byte at a time: frames end anywhere.
        text.as_bytes().chunks(1).for_each(|byte| markers.handle_bytes(byte));
        markers.handle_end();
        markers
    }

    #[test]
    fn markers_of_xrootd_and_dcache_give_the_bytes_and_the_verdict() {
        let xrootd = "Perf Marker\nTimestamp: 1795425084\nStripe Index: 0\nStripe Bytes Transferred: 4400000\n\
             Total Stripe Count: 1\nRemoteConnections: tcp:127.0.0.1:8443\nEnd\nsuccess: Created";
        let markers = read(xrootd);
        assert_eq!((markers.bytes(), markers.stripes(), markers.count), (4_400_000, Some(1), 1));
        assert_eq!(markers.verdict, Some(Verdict::Success));
        let dcache = "Perf Marker\r\n    Timestamp: 1\r\n    State: 1\r\n    State description: querying\r\n    \
             Stripe Index: 0\r\n    Total Stripe Count: 1\r\nEnd\r\nPerf Marker\n    Stripe Index: 0\n    \
             Stripe Bytes Transferred: 7\nEnd\nPerf Marker\n    Stripe Index: 1\n    \
             Stripe Bytes Transferred: 5\nEnd\nFailure: rejected GET: 403 Forbidden\n";
        let markers = read(dcache);
        assert_eq!(markers.bytes(), 12);
        assert_eq!(markers.verdict, Some(Verdict::Failure("rejected GET: 403 Forbidden".to_owned())));
    }

    #[test]
    fn a_reply_without_a_verdict_has_none() {
        let cut = read("Perf Marker\nStripe Index: 0\nStripe Bytes Transferred: -1\nEnd\n");
        assert_eq!((cut.bytes(), cut.verdict, cut.is_third_party), (0, None, true));
        let page = read("<html>Created: /f</html>\n");
        assert!(!page.is_third_party && page.verdict.is_none());
        assert!(!read("").is_third_party);
        assert_eq!(read("aborted").verdict, Some(Verdict::Failure("aborted".to_owned())));
    }

    #[test]
    fn a_hostile_reply_takes_no_memory() {
        let mut markers = Markers::default();
        for index in 0..100_000 {
            markers.handle_bytes(format!("Stripe Index: {index}\nStripe Bytes Transferred: {}\n", u64::MAX).as_bytes());
        }
        markers.handle_bytes(&vec![b'x'; 1 << 20]);
        assert!(markers.stripes.len() <= STRIPES_MAX && markers.line.len() <= LINE_BYTES_MAX);
        assert_eq!(markers.bytes(), u64::MAX);
    }
}
