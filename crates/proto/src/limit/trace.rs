//! Recorded inputs of an [`Accountant`], one line of text each: tests replay measurements of a kernel in virtual time.
//!
//! Writes an [`Input`] as a line and reads a file of such lines. Refuses to judge, read a clock or open files. Time and
//! bytes enter and leave as text, with times since the start of the recording.
//!
//! A line has the time in µs since the start, the kind of input, and `name=number` for each field that is not zero.
//! Times are in µs, rates in bit/s, sizes in bytes. The lanes of a sample come first, one line each. The line of the
//! source ends the sample:
//!
//! ```text
//! 0 cap rate=50000000
//! 250113 report lane_time=251020 waiting=250904 window=65536
//! 300207 tcp lane=0 feeder_transport=280115 sent=712 delivered=1030976 rtt=41230 rtt_min=40077
//! 300207 source rate=0
//! ```

use std::fmt::Write;
use std::time::{Duration, Instant};

use super::{
    Accountant, LaneSample, QuicSample, ReceiverReport, SourceSample, TcpSample, TransportSample, Waits, WebSample,
};
use crate::error::{Error, ErrorKind, Phase, Scope};
use crate::rate::RateState;
use crate::session::LaneId;
use crate::{BitRate, ByteCount};

/// One input of an [`Accountant`].
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// The given rate of the session.
    RateCap(Option<BitRate>),
    /// A report of the receiver.
    Report(ReceiverReport),
    /// A sample of every lane, and of the source.
    Samples(Vec<(LaneId, LaneSample)>, SourceSample),
}

impl Input {
    /// Passes the input to `accountant`.
    pub fn apply(&self, now: Instant, accountant: &mut Accountant) {
        match self {
            Self::RateCap(rate) => accountant.set_rate_cap(*rate),
            Self::Report(report) => accountant.handle_report(now, report),
            Self::Samples(lanes, source) => accountant.handle_samples(now, lanes, source),
        }
    }

    /// Returns the input as lines, each with a line end; `at`: time since the start of the recording.
    pub fn lines(&self, at: Duration) -> String {
        let mut out = Lines { text: String::new(), at: at.as_micros() as u64 };
        match self {
            Self::RateCap(rate) => out.line("cap", &mut |fields| fields.field("rate", &mut rate.unwrap_or_default())),
            Self::Report(report) => out.line("report", &mut |fields| report_fields(&mut report.clone(), fields)),
            Self::Samples(lanes, source) => {
                for (lane, sample) in lanes {
                    let (lane, mut sample) = (*lane, *sample);
                    out.line(kind(&sample.transport), &mut |fields| {
                        lane_fields(&mut lane.clone(), &mut sample, fields)
                    });
                }
                out.line("source", &mut |fields| source_fields(&mut source.clone(), fields));
            }
        }
        out.text
    }
}

/// Reads a recording: the inputs with their times since its start.
///
/// Errors: `Usage` with the number of the first invalid line.
pub fn read_trace(text: &str) -> Result<Vec<(Duration, Input)>, Error> {
    let mut inputs = Vec::new();
    let mut lanes = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let (at, input) = read_line(line, &mut lanes).ok_or_else(|| {
            let text = format!("read line {} of a recording: {line:?} is not an input of the accountant", index + 1);
            Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
        })?;
        inputs.extend(input.map(|input| (at, input)));
    }
    Ok(inputs)
}

/// Reads one line. The line of a lane is kept in `lanes` until the line of the source comes.
fn read_line(line: &str, lanes: &mut Vec<(LaneId, LaneSample)>) -> Option<(Duration, Option<Input>)> {
    let mut words = line.split(' ');
    let at = Duration::from_micros(words.next()?.parse().ok()?);
    let kind = words.next()?;
    let pairs = words.map(|word| word.split_once('=').and_then(|(name, number)| Some((name, number.parse().ok()?))));
    let mut fields = Given { pairs: pairs.collect::<Option<Vec<_>>>()? };
    let input = match kind {
        "cap" => {
            let mut rate = BitRate(0);
            fields.field("rate", &mut rate);
            Some(Input::RateCap((rate.0 > 0).then_some(rate)))
        }
        "report" => {
            let mut report = ReceiverReport::default();
            report_fields(&mut report, &mut fields);
            Some(Input::Report(report))
        }
        "source" => {
            let mut source = SourceSample::default();
            if fields.pairs.iter().any(|(name, _)| *name == "web") {
                source.web = Some(WebSample::default());
            }
            source_fields(&mut source, &mut fields);
            Some(Input::Samples(std::mem::take(lanes), source))
        }
        "tcp" | "quic" | "inside" => {
            let transport = match kind {
                "tcp" => TransportSample::Tcp(TcpSample::default()),
                "quic" => TransportSample::Quic(QuicSample::default()),
                _ => TransportSample::InProcess,
            };
            let (mut lane, mut sample) = (LaneId(0), LaneSample { feeder: Waits::default(), transport });
            lane_fields(&mut lane, &mut sample, &mut fields);
            lanes.push((lane, sample));
            None
        }
        _ => return None,
    };
    // A name that no field has taken is a mistake.
    fields.pairs.is_empty().then_some((at, input))
}

/// Action on each field of a sample, by its name: the field is written or read.
trait Fields {
    fn field(&mut self, name: &'static str, value: &mut dyn Number);
}

/// Quantity as the number in a line; 0 if unknown.
trait Number {
    fn number(&self) -> u64;
    fn set(&mut self, number: u64);
}

impl Number for u64 {
    fn number(&self) -> u64 {
        *self
    }
    fn set(&mut self, number: u64) {
        *self = number;
    }
}

impl Number for bool {
    fn number(&self) -> u64 {
        u64::from(*self)
    }
    fn set(&mut self, number: u64) {
        *self = number != 0;
    }
}

impl Number for Duration {
    fn number(&self) -> u64 {
        self.as_micros() as u64
    }
    fn set(&mut self, number: u64) {
        *self = Self::from_micros(number);
    }
}

impl Number for ByteCount {
    fn number(&self) -> u64 {
        self.0
    }
    fn set(&mut self, number: u64) {
        self.0 = number;
    }
}

impl Number for BitRate {
    fn number(&self) -> u64 {
        self.0
    }
    fn set(&mut self, number: u64) {
        self.0 = number;
    }
}

impl Number for Option<BitRate> {
    fn number(&self) -> u64 {
        self.unwrap_or_default().0
    }
    fn set(&mut self, number: u64) {
        *self = Some(BitRate(number));
    }
}

impl Number for LaneId {
    fn number(&self) -> u64 {
        u64::from(self.0)
    }
    fn set(&mut self, number: u64) {
        self.0 = number as u32;
    }
}

/// `Searching` is 0. A policer is encoded by its rate, which is far above the numbers of the other states.
impl Number for RateState {
    fn number(&self) -> u64 {
        match self {
            Self::Searching => 0,
            Self::Given => 1,
            Self::Found => 2,
            Self::Losing => 3,
            Self::Policed(rate) => rate.0.max(4),
        }
    }
    fn set(&mut self, number: u64) {
        *self = match number {
            0 => Self::Searching,
            1 => Self::Given,
            2 => Self::Found,
            3 => Self::Losing,
            rate => Self::Policed(BitRate(rate)),
        };
    }
}

/// Text of the lines written so far.
struct Lines {
    text: String,
    at: u64,
}

impl Lines {
    fn line(&mut self, kind: &str, fields: &mut dyn FnMut(&mut dyn Fields)) {
        // Writing to a string always succeeds.
        let _ = write!(self.text, "{} {kind}", self.at);
        fields(self);
        self.text.push('\n');
    }
}

impl Fields for Lines {
    fn field(&mut self, name: &'static str, value: &mut dyn Number) {
        if value.number() > 0 {
            let _ = write!(self.text, " {name}={}", value.number());
        }
    }
}

/// Fields of a line that were not taken yet.
struct Given<'a> {
    pairs: Vec<(&'a str, u64)>,
}

impl Fields for Given<'_> {
    fn field(&mut self, name: &'static str, value: &mut dyn Number) {
        if let Some(index) = self.pairs.iter().position(|(given, _)| *given == name) {
            value.set(self.pairs.swap_remove(index).1);
        }
    }
}

fn kind(transport: &TransportSample) -> &'static str {
    match transport {
        TransportSample::Tcp(_) => "tcp",
        TransportSample::Quic(_) => "quic",
        TransportSample::InProcess => "inside",
    }
}

/// Passes fields to `$to` by their own names.
macro_rules! each {
    ($to:ident, $of:expr, $($name:ident),+) => {{
        let of = $of;
        $($to.field(stringify!($name), &mut of.$name);)+
    }};
}

fn lane_fields(lane: &mut LaneId, sample: &mut LaneSample, to: &mut dyn Fields) {
    to.field("lane", lane);
    to.field("feeder_storage", &mut sample.feeder.storage);
    to.field("feeder_compute", &mut sample.feeder.compute);
    to.field("feeder_transport", &mut sample.feeder.transport);
    to.field("feeder_idle", &mut sample.feeder.idle);
    match &mut sample.transport {
        TransportSample::Tcp(tcp) => each!(
            to,
            tcp,
            rwnd_limited,
            sndbuf_limited,
            sent,
            lost,
            delivered,
            rtt,
            rtt_min,
            window,
            in_flight,
            unsent,
            receive_window,
            send_buffer,
            send_buffer_max,
            send_queued,
            cap,
            is_growing,
            is_unscaled,
            yields_to_loss
        ),
        TransportSample::Quic(quic) => {
            each!(to, quic, engine, sent, lost, wire_bytes, heard, rtt, rtt_min, window, in_flight, rate, state, memory)
        }
        TransportSample::InProcess => {}
    }
}

fn report_fields(report: &mut ReceiverReport, to: &mut dyn Fields) {
    each!(
        to, report, sent_at, lane_time, waiting, storage, publishing, engine, written, buffer, buffer_max, unread,
        window, dropped
    );
}

fn source_fields(source: &mut SourceSample, to: &mut dyn Fields) {
    to.field("rate", &mut source.rate);
    if let Some(web) = &mut source.web {
        to.field("web", &mut true);
        each!(to, web, waited, window_full, disordered, rtt_min, receive_window, receive_buffer, is_unscaled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_not_an_input_is_refused_with_its_line() {
        let tcp = TcpSample { sent: 7, rtt: RTT, cap: Some(BitRate(9)), is_growing: true, ..TcpSample::default() };
        let quic = QuicSample { lost: 3, state: RateState::Policed(BitRate(80_000)), ..QuicSample::default() };
        let feeder = Waits { transport: RTT, ..Waits::default() };
        let lanes = [TransportSample::Tcp(tcp), TransportSample::Quic(quic), TransportSample::InProcess];
        let lane = |(index, transport)| (LaneId(index), LaneSample { feeder, transport });
        let web = Some(WebSample { waited: RTT, is_unscaled: true, ..WebSample::default() });
        let inputs = [
            Input::RateCap(Some(BitRate(50))),
            Input::RateCap(None),
            Input::Report(ReceiverReport { window: ByteCount(5), ..ReceiverReport::default() }),
            Input::Samples((0..).zip(lanes).map(lane).collect(), SourceSample { rate: BitRate(4), web }),
            Input::Samples(Vec::new(), SourceSample::default()),
        ];
        let text: String = inputs.iter().map(|input| input.lines(RTT)).collect();
        assert_eq!(read_trace(&text).unwrap(), inputs.map(|input| (RTT, input)), "{text}");
        for wrong in ["", "x cap", "1 nothing", "1 cap rate", "1 cap rate=x", "1 cap speed=3"] {
            let error = read_trace(&format!("# a comment\n0 cap\n{wrong}\n")).unwrap_err();
            assert!(error.to_string().contains("line 3 of a recording"), "{error}");
        }
    }

    const RTT: Duration = Duration::from_micros(40_123);
}
