//! The congestion controller of one lane.

use std::time::{Duration, Instant};

use crate::limit::RateState;
use crate::{BitRate, ByteCount};

/// What the operator and the path say before the first packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateConfig {
    /// The lane's share of the rate of the path, on the wire; `None`: it is found by trains.
    pub given: Option<BitRate>,
    /// Loss that is noise, as a fraction of packets in [0, 0.5).
    pub loss_ceiling: f64,
    /// Size of a full packet on the wire, in bytes.
    pub packet_bytes: u64,
    /// Round-trip time if it is known from before; the handshake corrects it.
    pub expected_rtt: Option<Duration>,
}

/// One packet that the peer acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckedPacket {
    /// Its number; numbers rise in the order of sending.
    pub number: u64,
    /// When it was sent.
    pub sent: Instant,
    /// Its size on the wire in bytes.
    pub bytes: u64,
}

/// Rate and window of one lane.
///
/// Full given rate from the first packet. What comes back is judged in *rounds* of at least one RTT and
/// [`ROUND_PACKETS_MIN`] packets:
/// - loss up to the ceiling (and what chance adds to it) changes nothing;
/// - loss above it, or a queue that grows because less is delivered than sent, sets the rate to what was delivered, a bit under;
/// - a clean round afterwards takes a step back up: 5 %, then 10, 20, 40; a step that fails waits longer before the next;
/// - loss that does not fall when the rate falls by a quarter is not ours: it becomes the ceiling, up to [`NOISE_MAX`].
///
/// Without a given rate it sends *trains* first: [`TRAIN_TIME`] of packets at a pace that is tried, then little until they are
/// back. A train that comes as fast as it went is followed by a faster one; the first that does not tells by its length what the
/// path carries. A train drops no more than itself into a queue that is too short, where doubling loses products of the path.
///
/// After a silence (an outage) what was in flight is no evidence about the rate: it goes on where it was.
/// Cost: O(1) per acknowledged or lost packet. Units: bytes on the wire.
#[derive(Clone, Debug)]
pub struct RateControl {
    config: RateConfig,
    /// The rate aimed at: the share of the given rate, or infinite.
    aim: f64,
    /// What the path has shown to carry; the rate is the smaller of the two. Bytes per second.
    limit: f64,
    search: Option<Train>,
    round: Round,
    trial: Option<Trial>,
    /// Loss taken for noise now, as a fraction.
    noise: f64,
    noise_since: Option<Instant>,
    step: f64,
    hold: Duration,
    hold_until: Option<Instant>,
    probing: bool,
    /// What came through when the rate was last cut; infinite when a later round went beyond it.
    carried: f64,
    rtt_min: MinimumRtt,
    rtt_latest: Duration,
    largest_sent: u64,
    last_sent: Option<Instant>,
    last_ack: Option<Instant>,
}

/// Start-up without a given rate: packets sent at a pace that is tried.
#[derive(Clone, Copy, Debug)]
struct Train {
    /// Bytes per second.
    pace: f64,
    /// Number of its last packet; those after it go at the rate that is known.
    last: u64,
    /// How fast it came, bytes per second: the best of what was known when half of it was there and later. The acknowledgement
    /// of its last packets waits for more packets, and says nothing about the path.
    came: f64,
    /// A later packet has come. Numbers are also spent on packets that nobody acknowledges, so that counting is not enough.
    is_passed: bool,
}

/// A cut, to be judged by the loss of the round after it.
#[derive(Clone, Copy, Debug)]
struct Trial {
    cuts: u32,
    loss_before: f64,
}

/// What came back of the packets after `after`, up to `until`.
#[derive(Clone, Copy, Debug)]
struct Round {
    after: u64,
    until: u64,
    acked_packets: u64,
    lost_packets: u64,
    first_ack: Option<Instant>,
    last_ack: Option<Instant>,
    /// Bytes acknowledged later than `first_ack`: those that took `last_ack - first_ack` to come.
    bytes: u64,
    rtt_min: Duration,
    app_limited: bool,
}

impl Round {
    fn starting(after: u64) -> Self {
        Self {
            after,
            until: u64::MAX,
            acked_packets: 0,
            lost_packets: 0,
            first_ack: None,
            last_ack: None,
            bytes: 0,
            rtt_min: Duration::MAX,
            app_limited: false,
        }
    }

    fn elapsed(&self) -> Duration {
        match (self.first_ack, self.last_ack) {
            (Some(first), Some(last)) => last.saturating_duration_since(first),
            _ => Duration::ZERO,
        }
    }

    fn loss(&self) -> f64 {
        self.lost_packets as f64 / (self.lost_packets + self.acked_packets).max(1) as f64
    }

    /// Bytes per second that arrived.
    fn delivered(&self) -> f64 {
        self.bytes as f64 / self.elapsed().as_secs_f64().max(1e-6)
    }
}

impl RateControl {
    /// A controller that starts at the given rate, or at [`START_RATE`] with a train.
    pub fn new(config: RateConfig) -> Self {
        let aim = config.given.map_or(f64::INFINITY, bytes_per_second);
        let limit = if aim.is_finite() { aim } else { bytes_per_second(START_RATE) };
        let mut control = Self {
            config,
            aim,
            limit,
            search: None,
            round: Round::starting(0),
            trial: None,
            noise: config.loss_ceiling,
            noise_since: None,
            step: STEP_MIN,
            hold: Duration::ZERO,
            hold_until: None,
            probing: false,
            carried: f64::INFINITY,
            rtt_min: MinimumRtt::default(),
            rtt_latest: config.expected_rtt.unwrap_or(RTT_UNKNOWN),
            largest_sent: 0,
            last_sent: None,
            last_ack: None,
        };
        if aim.is_infinite() {
            control.start_train(bytes_per_second(TRAIN_FIRST));
        }
        control
    }

    /// Changes the lane's share of the given rate. What the path has shown to carry scales with it: when half of the
    /// lanes stop, those that are left may carry twice as much each.
    pub fn set_aim(&mut self, aim: Option<BitRate>) {
        let aim = aim.map_or(f64::INFINITY, |rate| bytes_per_second(rate).max(RATE_MIN));
        if aim == self.aim {
            return;
        }
        if self.aim.is_finite() && aim.is_finite() {
            self.limit *= aim / self.aim;
        } else if aim.is_finite() {
            (self.limit, self.search) = (aim, None);
            self.round = Round::starting(self.largest_sent);
        }
        self.aim = aim;
    }

    /// Loss that counts as noise from now on, as a fraction.
    pub fn set_loss_ceiling(&mut self, ceiling: f64) {
        if self.noise_since.is_none() {
            self.noise = ceiling;
        }
        self.config.loss_ceiling = ceiling;
    }

    /// Changes the size of a full packet on the wire (path MTU discovery).
    pub fn set_packet_bytes(&mut self, bytes: u64) {
        self.config.packet_bytes = bytes;
    }

    /// Packets up to `largest` have been sent.
    pub fn handle_sent(&mut self, now: Instant, largest: u64) {
        if let Some(train) = self.search
            && self.largest_sent < train.last
            && self.last_sent.is_some_and(|last| now.saturating_duration_since(last) > TRAIN_GAP)
        {
            // There was nothing to send: a train with a gap tells nothing.
            self.start_train(train.pace);
        }
        self.largest_sent = self.largest_sent.max(largest);
        self.last_sent = Some(now);
    }

    /// The peer has `packet`.
    pub fn handle_acked(&mut self, now: Instant, packet: AckedPacket) {
        self.notice_silence(now);
        let rtt = now.saturating_duration_since(packet.sent);
        self.rtt_latest = rtt;
        self.rtt_min.add(now, rtt);
        if let Some(train) = &mut self.search {
            train.is_passed |= packet.number > train.last;
        }
        let round = &mut self.round;
        if packet.number <= round.after || packet.number > round.until {
            return;
        }
        round.acked_packets += 1;
        round.rtt_min = round.rtt_min.min(rtt);
        if *round.first_ack.get_or_insert(now) != now {
            round.bytes += packet.bytes;
        }
        round.last_ack = Some(now);
    }

    /// Packet `number` is taken for lost.
    pub fn handle_lost(&mut self, number: u64) {
        if number > self.round.after && number <= self.round.until {
            self.round.lost_packets += 1;
        }
    }

    /// The network marked a packet (ECN): as good as a loss.
    pub fn handle_marked(&mut self, number: u64) {
        self.handle_lost(number);
    }

    /// Every acknowledgement of one arrival has been given; `app_limited`: the lane had nothing to send meanwhile.
    pub fn handle_end_of_acks(&mut self, now: Instant, app_limited: bool) {
        if let Some(train) = self.search {
            self.judge_train(now, train);
            return;
        }
        self.round.app_limited |= app_limited;
        let packets = self.round.acked_packets + self.round.lost_packets;
        if packets < ROUND_PACKETS_MIN || self.round.elapsed() < self.rtt_min().max(ROUND_MIN) {
            return;
        }
        self.judge(now);
    }

    /// The rate to send at, on the wire.
    pub fn rate(&self) -> BitRate {
        let rate = match self.search {
            Some(train) if self.largest_sent < train.last => train.pace,
            _ => self.limit,
        };
        BitRate((rate.min(self.aim).max(RATE_MIN) * 8.0) as u64)
    }

    /// Bytes on the wire that may be in flight: twice the rate times the smallest RTT, and what acknowledgements that
    /// come in batches need. It bounds what is sent into an outage and any queue that the path builds.
    pub fn window(&self) -> ByteCount {
        let rate = self.limit.min(self.aim).max(RATE_MIN);
        let batches = ACK_BATCH_TIME.as_secs_f64() * rate;
        let floor = (WINDOW_PACKETS_MIN * self.config.packet_bytes) as f64;
        let train = self.search.map_or(0.0, |train| train.pace * TRAIN_TIME.as_secs_f64());
        ByteCount((2.0 * rate * self.rtt_min().as_secs_f64() + batches.max(floor) + train) as u64)
    }

    /// The smallest RTT of the last [`RTT_KEPT`], or what was expected before the first sample.
    pub fn rtt_min(&self) -> Duration {
        self.rtt_min.value().unwrap_or(self.config.expected_rtt.unwrap_or(RTT_UNKNOWN))
    }

    /// Whether the lane sends less than it was given because the path does not deliver it.
    pub fn yields(&self) -> bool {
        self.limit < self.aim * 0.999
    }

    /// Where the search for the path's rate stands.
    pub fn state(&self) -> RateState {
        match (self.search, self.yields()) {
            (Some(_), _) => RateState::Searching,
            (None, false) => RateState::Given,
            (None, true) if self.trial.is_some() => RateState::Losing,
            (None, true) => RateState::Found,
        }
    }

    /// After a silence the packets from before it tell nothing about the rate that the path carries.
    fn notice_silence(&mut self, now: Instant) {
        if self.search.is_some() {
            return;
        }
        let rate = self.limit.min(self.aim).max(RATE_MIN);
        let packet_time = Duration::from_secs_f64(self.config.packet_bytes as f64 / rate);
        let silence = SILENCE_MIN.max(packet_time * 8).max(self.rtt_min() / 2);
        if self.last_ack.is_some_and(|last| now.saturating_duration_since(last) > silence) {
            self.round = Round::starting(self.largest_sent);
        }
        self.last_ack = Some(now);
    }

    /// Sends the next packets at `pace`, as one train.
    fn start_train(&mut self, pace: f64) {
        let bytes = pace * TRAIN_TIME.as_secs_f64();
        let packets = ((bytes / self.config.packet_bytes as f64) as u64).max(TRAIN_PACKETS_MIN);
        let last = self.largest_sent + packets;
        self.search = Some(Train { pace, last, came: 0.0, is_passed: false });
        self.round = Round { until: last, ..Round::starting(self.largest_sent) };
    }

    /// What has come of the train; when all of it is back: a faster one, or the rate.
    fn judge_train(&mut self, now: Instant, mut train: Train) {
        let round = self.round;
        let packets = train.last - round.after;
        let is_back = train.is_passed || round.acked_packets + round.lost_packets >= packets;
        if round.elapsed() > Duration::ZERO && (is_back || round.acked_packets * 2 > packets) {
            train.came = train.came.max(round.delivered());
        }
        self.search = Some(train);
        if !is_back {
            return;
        }
        if train.came < train.pace * TRAIN_KEEPS_UP {
            self.search = None;
            (self.carried, self.limit) = (train.came, (train.came * FIRST_CUT).max(RATE_MIN));
            self.hold_until = Some(now + HOLD_MIN.max(self.rtt_min() * 2));
            self.round = Round::starting(self.largest_sent);
        } else {
            self.limit = train.came.min(train.pace);
            self.start_train(train.pace * TRAIN_FACTOR);
        }
    }

    /// Decides at the end of a round, then starts the next one.
    fn judge(&mut self, now: Instant) {
        let round = self.round;
        self.round = Round::starting(round.after);
        if self.noise_since.is_some_and(|since| now.saturating_duration_since(since) > NOISE_KEPT) {
            (self.noise, self.noise_since) = (self.config.loss_ceiling, None);
        }
        if self.loses_too_much(&round) {
            self.handle_excess(now, &round);
        } else if self.is_queueing(&round) {
            self.cut(now, &round, QUEUE_CUT);
        } else {
            self.trial = None;
            self.rise(now, &round);
        }
    }

    /// Loss above the ceiling by more than chance explains (three standard deviations and one packet).
    fn loses_too_much(&self, round: &Round) -> bool {
        let packets = (round.acked_packets + round.lost_packets) as f64;
        let expected = packets * self.noise;
        round.lost_packets as f64 > expected + 3.0 * expected.sqrt() + 1.0
    }

    /// A queue stood during the whole round, and less than our rate came through.
    fn is_queueing(&self, round: &Round) -> bool {
        let base = self.rtt_min();
        let delay = round.rtt_min.saturating_sub(base);
        let rate = self.limit.min(self.aim);
        !round.app_limited && delay > (base / 4).max(QUEUE_MIN) && round.delivered() < rate * KEEPS_UP
    }

    fn handle_excess(&mut self, now: Instant, round: &Round) {
        let loss = round.loss();
        let before = self.trial;
        match before {
            Some(trial) if trial.cuts >= 3 && loss > trial.loss_before * 0.7 && loss < NOISE_MAX => {
                // A quarter less was sent and as much of it was lost: somebody else's loss, or the radio's.
                (self.noise, self.noise_since) = (loss * 1.3, Some(now));
                self.trial = None;
                self.hold = Duration::ZERO;
                self.hold_until = None;
            }
            Some(Trial { cuts: 2.., .. }) => self.cut(now, round, TRIAL_CUT),
            Some(_) => self.cut(now, round, SECOND_CUT),
            None => self.cut(now, round, FIRST_CUT),
        }
    }

    /// Falls to `factor` of what came through; what is in flight was sent faster and is not held against the new rate.
    fn cut(&mut self, now: Instant, round: &Round, factor: f64) {
        let cuts = self.trial.map_or(1, |trial| trial.cuts.saturating_add(1));
        self.trial = Some(Trial { cuts, loss_before: round.loss() });
        self.carried = round.delivered();
        self.limit = (self.carried * factor).clamp(RATE_MIN, self.limit.min(self.aim).max(RATE_MIN));
        // A step up that failed is tried again later and later: a policer is not to be flooded every round.
        self.hold = if self.probing { (self.hold * 2).clamp(HOLD_MIN, HOLD_MAX) } else { HOLD_MIN };
        self.hold_until = Some(now + self.hold.max(self.rtt_min() * 2));
        self.step = STEP_MIN;
        self.probing = false;
        self.round = Round::starting(self.largest_sent);
    }

    /// A clean round: goes back towards the aim.
    fn rise(&mut self, now: Instant, round: &Round) {
        let keeps_up = round.delivered() >= self.limit.min(self.aim) * (1.0 - self.noise) * KEEPS_UP;
        if self.limit >= self.aim {
            self.probing = false;
            self.hold = Duration::ZERO;
            return;
        }
        let held = self.hold_until.is_some_and(|until| now < until);
        if held || (self.aim.is_infinite() && !keeps_up) {
            return;
        }
        let just_below = self.carried * FIRST_CUT;
        let next = self.limit * (1.0 + self.step);
        if self.limit < just_below && next > just_below {
            // Back to what is known to come through; beyond it only by the smallest step.
            (self.limit, self.step) = (just_below.min(self.aim), STEP_MIN);
            self.hold_until = Some(now + self.hold);
        } else {
            if self.limit > self.carried * 1.03 {
                self.carried = f64::INFINITY;
            }
            (self.limit, self.step) = (next.min(self.aim), (self.step * 2.0).min(STEP_MAX));
            self.probing = self.limit > just_below || self.carried.is_infinite();
        }
        self.round = Round::starting(self.largest_sent);
    }
}

/// The smallest RTT of the last one to two [`RTT_KEPT`], kept in two halves so that it can rise when the path changes.
#[derive(Clone, Copy, Debug, Default)]
struct MinimumRtt {
    current: Option<(Instant, Duration)>,
    previous: Option<Duration>,
}

impl MinimumRtt {
    fn add(&mut self, now: Instant, rtt: Duration) {
        match &mut self.current {
            Some((since, least)) if now.saturating_duration_since(*since) < RTT_KEPT => *least = (*least).min(rtt),
            current => {
                self.previous = current.map(|(_, least)| least);
                *current = Some((now, rtt));
            }
        }
    }

    fn value(&self) -> Option<Duration> {
        let current = self.current.map(|(_, least)| least);
        match (current, self.previous) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

fn bytes_per_second(rate: BitRate) -> f64 {
    rate.0 as f64 / 8.0
}

/// Rate at which a lane without a given rate goes on behind its first train. Guess: what any path of today carries for one
/// round trip.
const START_RATE: BitRate = BitRate::megabits(1);

/// Pace of the first train, and by how much the next one is faster. Reason: 200 kB, and 10 Gbit/s are tried in the fourth.
const TRAIN_FIRST: BitRate = BitRate::megabits(50);
const TRAIN_FACTOR: f64 = 8.0;

/// How long a train is, at its pace. Reason: what busy hosts and acknowledgements for 50 packets blur is some milliseconds.
const TRAIN_TIME: Duration = Duration::from_millis(32);

/// Packets of a train at least: three acknowledgements.
const TRAIN_PACKETS_MIN: u64 = 128;

/// A train keeps up when it comes at this part of its pace.
const TRAIN_KEEPS_UP: f64 = 0.7;

/// Time without a packet that ends a train: pacers wake at least every 10 ms.
const TRAIN_GAP: Duration = Duration::from_millis(15);

/// Least rate, in bytes per second: a lane never stops for good (64 kbit/s).
const RATE_MIN: f64 = 8_000.0;

/// Packets in a round: below this, chance says more than the path.
pub(super) const ROUND_PACKETS_MIN: u64 = 64;

/// Least length of a round; below it the batches of acknowledgements blur rates.
const ROUND_MIN: Duration = Duration::from_millis(20);

/// RTT assumed before the first sample (RFC 9002, section 6.2.2).
const RTT_UNKNOWN: Duration = Duration::from_millis(333);

/// How long the smallest RTT is believed. Guess: routes change less often, queues drain within it.
const RTT_KEPT: Duration = Duration::from_secs(30);

/// Factors on the delivered rate at the first, second and third cut in a row. The third is a trial: a loss that does not
/// care about a quarter less is not caused by our rate.
const FIRST_CUT: f64 = 0.97;
const SECOND_CUT: f64 = 0.9;
const TRIAL_CUT: f64 = 0.75;

/// Factor on the delivered rate when a queue stands: the 10 % below drain it.
const QUEUE_CUT: f64 = 0.9;

/// Delay above the smallest RTT that counts as a queue, at least. Busy hosts delay by some milliseconds without one.
const QUEUE_MIN: Duration = Duration::from_millis(25);

/// Delivery keeps up when it reaches this part of the rate: bursts and late wake-ups cost a few per cent.
const KEEPS_UP: f64 = 0.9;

/// Most loss that may ever be taken for noise.
const NOISE_MAX: f64 = 0.15;

/// How long loss above the ceiling is taken for noise before it has to prove itself again.
const NOISE_KEPT: Duration = Duration::from_secs(60);

/// Steps back up, as fractions of the rate.
const STEP_MIN: f64 = 0.05;
const STEP_MAX: f64 = 0.4;

/// Waiting times before a step up after a cut; doubled by each step that failed.
const HOLD_MIN: Duration = Duration::from_millis(500);
const HOLD_MAX: Duration = Duration::from_secs(16);

/// No acknowledgement for this long with packets in flight is an outage.
const SILENCE_MIN: Duration = Duration::from_millis(300);

/// Packets in the window at least: some batches of acknowledgements.
const WINDOW_PACKETS_MIN: u64 = 64;

/// Time that acknowledgements may lag behind because they come in batches, and a host because it is busy.
const ACK_BATCH_TIME: Duration = Duration::from_millis(30);
