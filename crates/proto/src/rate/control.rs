//! The congestion controller of a path.

use std::time::{Duration, Instant};

use super::contract::{Manner, RATE_LEAST, RateContract};
use super::evidence::{AckBatch, Losses, MinimumRtt, Round};
use super::neighbours::{Look, Neighbours};
use super::path::TrainOrder;
use crate::{BitRate, ByteCount};

/// The rate of a path, found and kept.
///
/// A target is sent in full from the first packet. What comes back is judged in *rounds* of at least one RTT and
/// [`ROUND_PACKETS_MIN`] packets a lane, and over all rounds since the rate last changed:
/// - loss up to the ceiling (and what chance adds to it) changes nothing;
/// - loss above it, or a queue that stands while less is delivered than sent, sets the rate to what was delivered, a bit under;
/// - otherwise, after a while, a *probe* goes a step up. It is kept when what it adds is delivered, and taken back to where it
///   came from when not; then the next one waits longer. When some in a row are kept, trains go on (see below);
/// - loss that does not fall when the rate falls by a quarter is not ours: it becomes the ceiling, up to [`NOISE_MAX`].
///
/// Without a target it sends *trains* first: [`TRAIN_TIME`] of packets at a pace that is tried, then little until they are
/// back. A train that comes as fast as it went is followed by a faster one; the first that does not tells by its length what the
/// path carries. A train drops no more than itself into a queue that is too short, where doubling loses products of the path.
///
/// What counts as delivered is what would have been if this host had sent all the time, and a round does not end while what
/// piled up in a gap is still coming: a host that is late is not a path that carries less.
///
/// After a silence (an outage) what was in flight is no evidence about the rate: it goes on where it was.
/// Cost: O(lanes) per batch of acknowledgements. Units: bytes on the wire.
#[derive(Clone, Debug)]
pub struct RateControl {
    contract: RateContract,
    /// The part of the contract's ceiling that is for the lanes here.
    fraction: f64,
    packet_bytes: u64,
    /// What the path has shown to carry, bytes per second; the rate is the smaller of it and the ceiling.
    limit: f64,
    phase: Phase,
    epoch: u64,
    round: Round,
    /// Losses of the epoch, older ones fading.
    standing: Losses,
    /// Rounds in a row with a queue, and when the first of them ended.
    queued_rounds: u32,
    queued_since: Option<Instant>,
    /// Those who use the path too.
    neighbours: Neighbours,
    trial: Option<Trial>,
    /// Loss taken for noise now, as a fraction.
    noise: f64,
    noise_since: Option<Instant>,
    /// The next step up, as a fraction.
    step: f64,
    hold: Duration,
    hold_until: Option<Instant>,
    /// What came through when the rate was last found too high; infinite when a probe went beyond it.
    carried: f64,
    /// That was told by losses: a bucket of tokens may let more pass for a while.
    carried_by_loss: bool,
    /// What was sent before losses took more than half of it away at once; 0 once a train has told what is carried since.
    fallen_from: f64,
    policer: PolicerWatch,
    rtt_min: MinimumRtt,
    /// With an empty queue: the smallest of a longer time.
    rtt_empty: MinimumRtt,
    rtt_latest: Duration,
}

/// What the rate of a path rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateState {
    /// It is still looked for.
    #[default]
    Searching,
    /// It is the one that was given.
    Given,
    /// It is below what was given, or was found: the path carried no more.
    Found,
    /// The same, while packets are lost beyond what counts as noise.
    Losing,
    /// A policer drops what exceeds this.
    Policed(BitRate),
}

/// What the controller is doing.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Looking for the rate.
    Search(Train),
    /// Sending at the rate.
    Cruise,
    /// Sending above the rate that is known to be carried, to see whether more is.
    Probe {
        /// That rate, and the loss that it had.
        from: f64,
        loss_before: f64,
        since: Instant,
    },
}

/// Start-up without a target: packets sent at a pace that is tried.
#[derive(Clone, Copy, Debug)]
struct Train {
    /// Bytes per second.
    pace: f64,
    packets: u64,
    /// How fast it came, bytes per second: the best of what was known when half of it was there and later. The acknowledgement
    /// of its last packets waits for more packets, and says nothing about the path.
    came: f64,
    /// Bytes per second that are known to come through.
    proven: f64,
    /// How often it has been sent before because a host stalled while it came, and the least that came then.
    repeats: u32,
    least: f64,
}

/// A cut, to be judged by the loss of the round after it.
#[derive(Clone, Copy, Debug)]
struct Trial {
    cuts: u32,
    loss_before: f64,
    since: Instant,
}

/// What a cut has done to the loss that it was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cure {
    /// Most of it is gone: it was caused by our rate.
    Done,
    Unknown,
    /// As much is lost as before.
    Useless,
}

/// Losses without a queue at the same rate, again and again, are a policer's.
#[derive(Clone, Copy, Debug, Default)]
struct PolicerWatch {
    /// Bytes per second that came through.
    rate: f64,
    times: u32,
}

impl PolicerWatch {
    fn add(&mut self, carried: f64) {
        let is_same = (carried - self.rate).abs() < self.rate * SAME_RATE;
        *self = Self { rate: carried, times: if is_same { self.times + 1 } else { 1 } };
    }
}

impl RateControl {
    /// A controller that starts at the target, or with a train.
    pub fn new(contract: RateContract) -> Self {
        let limit = contract.target.map(bytes_per_second);
        let mut control = Self {
            contract,
            fraction: 1.0,
            packet_bytes: PACKET_BYTES,
            limit: limit.unwrap_or(bytes_per_second(START_RATE)),
            phase: Phase::Cruise,
            epoch: 0,
            round: Round::new(),
            standing: Losses::default(),
            queued_rounds: 0,
            queued_since: None,
            neighbours: Neighbours::new(),
            trial: None,
            noise: contract.loss_ceiling(),
            noise_since: None,
            step: STEP_MIN,
            hold: Duration::ZERO,
            hold_until: None,
            carried: f64::INFINITY,
            carried_by_loss: false,
            fallen_from: 0.0,
            policer: PolicerWatch::default(),
            rtt_min: MinimumRtt::default(),
            rtt_empty: MinimumRtt::default(),
            rtt_latest: contract.expected_rtt.unwrap_or(RTT_UNKNOWN),
        };
        if limit.is_none() {
            control.search();
        }
        control
    }

    /// What was agreed.
    pub fn contract(&self) -> &RateContract {
        &self.contract
    }

    /// Agrees anew. What the path has shown to carry stays, but for a new target, which is sent at once.
    pub(super) fn set_contract(&mut self, contract: RateContract) {
        if self.noise_since.is_none() {
            self.noise = contract.loss_ceiling();
        }
        let before = std::mem::replace(&mut self.contract, contract);
        if let Some(target) = contract.target.filter(|target| before.target != Some(*target)) {
            (self.limit, self.phase, self.carried) = (bytes_per_second(target), Phase::Cruise, f64::INFINITY);
            self.fallen_from = 0.0;
            self.start_epoch();
        } else if contract.remembered != before.remembered && matches!(self.phase, Phase::Search(_)) {
            self.search();
        }
    }

    /// Changes the part of the ceiling that is for the lanes here; whether it has changed.
    pub(super) fn set_fraction(&mut self, fraction: f64) -> bool {
        std::mem::replace(&mut self.fraction, fraction) != fraction
    }

    /// What the lanes here send at most.
    pub(super) fn ceiling_rate(&self) -> Option<BitRate> {
        self.contract.ceiling.map(|ceiling| BitRate((ceiling.0 as f64 * self.fraction) as u64))
    }

    pub(super) fn set_packet_bytes(&mut self, bytes: u64) {
        self.packet_bytes = bytes;
    }

    /// Lane number `lane` has heard `batch`; `scout_part`: its part of the rate, if it is the one that sends trains.
    pub(super) fn handle_batch(&mut self, now: Instant, lane: usize, batch: &AckBatch, scout_part: Option<f64>) {
        if let Some(rtt) = batch.rtt_min {
            self.rtt_min.add(now, rtt, RTT_KEPT);
            self.rtt_empty.add(now, rtt, RTT_EMPTY_KEPT);
        }
        self.rtt_latest = batch.rtt_latest.unwrap_or(self.rtt_latest);
        self.neighbours.hear(now, batch.of_any_epoch, batch.rtt_latest);
        if batch.epoch != self.epoch {
            return;
        }
        if batch.is_after_silence && !matches!(self.phase, Phase::Search(_)) {
            self.round = Round::new();
        }
        if let Phase::Search(train) = self.phase {
            if let Some(part) = scout_part {
                self.round.add(now, lane, batch);
                // The others have a part of the bottleneck while the train is in it.
                let others = self.current() * (1.0 - part);
                self.judge_train(now, train, batch.is_train_passed, 1.0 + others / train.pace);
            }
            return;
        }
        self.round.add(now, lane, batch);
        if self.round_is_over(now) {
            self.judge(now);
        }
    }

    /// The rate to send at, on the wire.
    pub fn rate(&self) -> BitRate {
        BitRate((self.current() * 8.0) as u64)
    }

    /// The train to send, if one is to be sent or under way.
    pub(super) fn train(&self) -> Option<TrainOrder> {
        let Phase::Search(train) = self.phase else { return None };
        // The ceiling may have come down since.
        let pace = train.pace.min(self.ceiling());
        Some(TrainOrder { pace: BitRate((pace * 8.0) as u64), packets: train.packets })
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Bytes on the wire that a lane with `share` of the rate may have in flight.
    pub(super) fn window(&self, share: BitRate, train: Option<TrainOrder>) -> ByteCount {
        let rate = bytes_per_second(share);
        let batches = ACK_BATCH_TIME.as_secs_f64() * rate;
        let floor = (WINDOW_PACKETS_MIN * self.packet_bytes) as f64;
        let train = train.map_or(0, |train| train.packets * self.packet_bytes);
        ByteCount((2.0 * rate * self.rtt_min().as_secs_f64() + batches.max(floor)) as u64 + train)
    }

    /// How long nothing must be heard of a lane with `share` of the rate for what was in flight to say nothing.
    pub(super) fn silence(&self, share: BitRate) -> Duration {
        SILENCE_MIN.max(self.packet_time(share) * 8).max(self.rtt_min() / 2)
    }

    /// How long nothing must be heard of a lane with `share` of the rate for a host to have stalled.
    pub(super) fn ack_gap(&self, share: BitRate) -> Duration {
        ACK_GAP.max(self.packet_time(share) * 4)
    }

    fn packet_time(&self, share: BitRate) -> Duration {
        Duration::from_secs_f64(self.packet_bytes as f64 / bytes_per_second(share).max(1.0))
    }

    /// The smallest RTT of the last half minute or so, or what was expected before the first sample.
    pub fn rtt_min(&self) -> Duration {
        self.rtt_min.value().unwrap_or(self.contract.expected_rtt.unwrap_or(RTT_UNKNOWN))
    }

    /// Whether less is sent than the ceiling because the path does not deliver it.
    pub fn yields(&self) -> bool {
        self.limit < self.ceiling() * 0.999
    }

    /// What the rate rests on.
    pub fn state(&self) -> RateState {
        match self.phase {
            Phase::Search(_) => RateState::Searching,
            _ if !self.yields() => RateState::Given,
            _ => match self.policed() {
                Some(rate) => RateState::Policed(rate),
                None if self.trial.is_some() => RateState::Losing,
                None => RateState::Found,
            },
        }
    }

    /// The rate that the path has been found to carry; `None` while that is being found out.
    pub fn found(&self) -> Option<BitRate> {
        match self.phase {
            Phase::Search(_) => None,
            Phase::Cruise => Some(self.rate()),
            Phase::Probe { from, .. } => Some(BitRate((from * 8.0) as u64)),
        }
    }

    /// The rate of a policer on the path, if its losses have been seen often enough.
    pub fn policed(&self) -> Option<BitRate> {
        let PolicerWatch { rate, times } = self.policer;
        (times >= POLICER_TIMES && self.limit < rate * 1.1).then_some(BitRate((rate * 8.0) as u64))
    }

    /// Sends the train once more; one in the midst of a copy, whose source may have too little for it, only when it is its time again.
    pub(super) fn restart_train(&mut self) {
        match self.phase {
            Phase::Search(train) if self.fallen_from == 0.0 => self.start_train(train.pace, train.proven),
            Phase::Search(_) => {
                self.fallen_from *= FALLEN_AGAIN;
                self.phase = Phase::Cruise;
                self.start_epoch();
            }
            Phase::Cruise | Phase::Probe { .. } => {}
        }
    }

    fn ceiling(&self) -> f64 {
        self.ceiling_rate().map_or(f64::INFINITY, bytes_per_second)
    }

    /// Bytes per second to send.
    fn current(&self) -> f64 {
        // Beside others, that they can grow; what was given and is carried stays.
        let is_draining = if self.is_beside_others() { self.yields() } else { self.queued_rounds >= QUEUED_ROUNDS };
        let limit = if is_draining && matches!(self.phase, Phase::Cruise) { self.limit * DRAIN } else { self.limit };
        limit.min(self.ceiling()).max(self.floor())
    }

    fn floor(&self) -> f64 {
        let minimum = self.contract.minimum.map_or(0.0, bytes_per_second) * self.fraction;
        let packets = (PACKETS_LEAST * self.packet_bytes as f64).min(self.ceiling());
        minimum.max(packets).max(bytes_per_second(RATE_LEAST))
    }

    fn start_epoch(&mut self) {
        self.epoch += 1;
        (self.round, self.standing) = (Round::new(), Losses::default());
        (self.queued_rounds, self.queued_since) = (0, None);
    }

    /// Looks for the rate: near what is remembered, or from the beginning.
    fn search(&mut self) {
        // Below what an unknown path begins with it would only take longer to find out.
        let remembered = self.contract.remembered.filter(|rate| *rate >= START_RATE).map(bytes_per_second);
        if remembered.is_some_and(|rate| rate * REMEMBERED_START >= self.ceiling()) {
            // There is nothing to find above the ceiling, and a train beside other lanes would exceed it.
            (self.limit, self.phase, self.carried) = (self.ceiling(), Phase::Cruise, f64::INFINITY);
            return self.start_epoch();
        }
        self.limit = remembered.map_or(bytes_per_second(START_RATE), |rate| rate * REMEMBERED_START);
        self.start_train(remembered.map_or(bytes_per_second(TRAIN_FIRST), |rate| rate * REMEMBERED_TRAIN), 0.0);
    }

    /// Sends the next packets at `pace`, as one train; `proven` bytes per second come through for sure.
    fn start_train(&mut self, pace: f64, proven: f64) {
        let pace = pace.min(self.ceiling());
        let packets = pace * TRAIN_TIME.as_secs_f64() / self.packet_bytes as f64;
        let packets = (packets as u64).max(TRAIN_PACKETS_MIN);
        self.phase = Phase::Search(Train { pace, packets, came: 0.0, proven, repeats: 0, least: f64::INFINITY });
        self.start_epoch();
    }

    /// What has come of the train; when all of it is back: a faster one, or the rate. `whole`: what all lanes sent meanwhile, in
    /// trains.
    fn judge_train(&mut self, now: Instant, mut train: Train, is_passed: bool, whole: f64) {
        let Losses { packets, lost } = self.round.losses;
        let is_back = is_passed || packets >= train.packets as f64;
        if !self.round.length().is_zero() && (is_back || (packets - lost) * 2.0 > train.packets as f64) {
            train.came = train.came.max(self.round.delivered());
        }
        self.phase = Phase::Search(train);
        if !is_back {
            return;
        }
        if self.round.has_resumed() || train.came == 0.0 {
            // What had piled up says little of how fast it came; that much of it was lost says that it went too fast.
            let came = if train.came > 0.0 { train.came } else { f64::INFINITY };
            train = Train { came: 0.0, repeats: train.repeats + 1, least: train.least.min(came), ..train };
            if train.repeats <= TRAIN_REPEATS && lost < packets * NOISE_MAX {
                self.phase = Phase::Search(train);
                return self.start_epoch();
            }
            train.came = if train.least.is_finite() { train.least } else { self.limit };
            // It may have met another outage, or a path that carries far less: that is not asked for ever.
            self.fallen_from *= FALLEN_AGAIN;
        } else {
            self.fallen_from = 0.0;
        }
        let tried = train.pace.min(self.ceiling());
        if train.came < tried * TRAIN_KEEPS_UP {
            self.carried = train.came * whole;
            self.neighbours.note_capacity(train.came);
            self.limit = (self.carried * FIRST_CUT).max(train.proven).max(self.floor());
        } else if tried >= self.ceiling() {
            self.limit = tried;
        } else {
            self.limit = train.came.min(train.pace);
            return self.start_train(train.pace * TRAIN_FACTOR, self.limit);
        }
        self.phase = Phase::Cruise;
        self.hold_until = Some(now + HOLD_MIN.max(self.rtt_min() * 2));
        self.start_epoch();
    }

    fn round_is_over(&self, now: Instant) -> bool {
        let length = self.round.length();
        let least =
            if length < ROUND_LONG { ROUND_PACKETS_MIN * self.round.lanes().max(1) as u64 } else { ROUND_PACKETS_LONG };
        self.round.losses.packets >= least as f64
            && length >= self.rtt_min().max(self.round_min())
            && (!self.round.has_just_resumed(now) || self.round.losses.exceeds(NOISE_MAX))
    }

    /// Least length of a round: a probe is judged by few per cent.
    fn round_min(&self) -> Duration {
        if matches!(self.phase, Phase::Probe { .. }) { PROBE_ROUND_MIN } else { ROUND_MIN }
    }

    /// Decides at the end of a round, then starts the next one.
    fn judge(&mut self, now: Instant) {
        self.standing.add(self.round.losses);
        if self.noise_since.is_some_and(|since| now.saturating_duration_since(since) > NOISE_KEPT) {
            (self.noise, self.noise_since) = (self.contract.loss_ceiling(), None);
        }
        self.watch_queue(now);
        let epoch = self.epoch;
        let cure = self.cure(now);
        if self.limit < self.our_part() {
            self.take_our_part();
        } else if self.round.losses.exceeds(self.noise) || self.standing.exceeds(self.noise) || cure == Cure::Useless {
            self.handle_excess(now);
        } else if self.queue_stands(now) && self.falls_behind(KEEPS_UP) {
            self.cut(now, QUEUE_CUT);
        } else if self.queue_stands(now) && self.queued_rounds >= QUEUED_ROUNDS && self.falls_behind(KEEPS_UP_LONG) {
            self.cut(now, FIRST_CUT);
        } else if cure == Cure::Done {
            self.trial = None;
            self.go_on(now);
        }
        if self.epoch == epoch {
            self.round.next();
        }
    }

    /// Goes up to the part that is ours beside others, which nothing that is lost to them takes away.
    fn take_our_part(&mut self) {
        self.limit = self.our_part().min(self.limit * (1.0 + STEP_MAX));
        self.phase = Phase::Cruise;
        self.start_epoch();
    }

    /// What a cut for loss has done to the loss.
    fn cure(&self, now: Instant) -> Cure {
        let Some(trial) = self.trial.filter(|_| self.queued_rounds == 0) else { return Cure::Done };
        let is_long = now.saturating_duration_since(trial.since) > CURE_LONG;
        match self.standing {
            Losses { packets, .. }
                if packets < CURE_PACKETS && !(is_long && packets * trial.loss_before > CURE_LOSSES) =>
            {
                Cure::Unknown
            }
            losses if losses.fraction() < trial.loss_before * 0.5 => Cure::Done,
            Losses { packets, .. } if packets < USELESS_PACKETS => Cure::Unknown,
            _ => Cure::Useless,
        }
    }

    /// Neither loss nor a queue stands against the rate: more is tried when its time has come.
    fn go_on(&mut self, now: Instant) {
        match self.phase {
            Phase::Probe { from, loss_before, since } => self.judge_probe(now, from, loss_before, since),
            _ => self.rise(now),
        }
    }

    fn watch_queue(&mut self, now: Instant) {
        let is_queueing = self.is_queueing();
        self.queued_since = is_queueing.then(|| self.queued_since.unwrap_or(now));
        self.queued_rounds = if is_queueing { self.queued_rounds + 1 } else { 0 };
        // What piled up while a host stalled says little of the path.
        if !self.round.has_resumed() {
            let (sent, came) = (self.current(), self.arrived());
            let (losses, length) = (self.round.losses, self.round.length());
            self.neighbours.look(now, Look { is_queueing, sent, came, losses, length });
        }
    }

    /// Others keep a queue full, and this sender takes its part beside them.
    fn is_beside_others(&self) -> bool {
        self.contract.manner == Manner::Fair && self.neighbours.are_queueing()
    }

    /// The limit that is not gone below beside others, of which [`DRAIN`] is sent; 0 without them.
    fn our_part(&self) -> f64 {
        let part = || (self.neighbours.our_part(self.packet_bytes) / DRAIN).min(self.ceiling());
        if self.is_beside_others() { part() } else { 0.0 }
    }

    /// A queue has stood for longer than a host stalls.
    fn queue_stands(&self, now: Instant) -> bool {
        let stood = self.queued_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.queued_rounds >= 2 && (stood >= QUEUE_STANDS || self.contract.manner == Manner::Polite)
    }

    /// A queue stood during the whole round, and less than our rate came through.
    fn is_queueing(&self) -> bool {
        let base = self.rtt_empty.value().unwrap_or(self.rtt_min());
        let delay = self.round.rtt_min.saturating_sub(base);
        let (least, part) = match self.contract.manner {
            Manner::Fair => (QUEUE_MIN, base / 4),
            Manner::Polite => (POLITE_QUEUE_MIN, base / 16),
        };
        !self.round.app_limited && delay > part.max(least)
    }

    /// Less than this part of our rate came through.
    fn falls_behind(&self, part: f64) -> bool {
        self.contract.manner == Manner::Polite || self.arrived() < self.current() * part
    }

    /// This host sends so much less than it may that more would change nothing.
    fn is_late(&self) -> bool {
        self.queued_rounds == 0 && self.round.sent() < self.current() * LATE
    }

    /// Bytes per second that would have come through if we had sent all the time: a host that is late sends less than its rate.
    /// Behind a queue what is sent waits for the window, and so for the path.
    fn arrived(&self) -> f64 {
        let lateness = if self.queued_rounds == 0 { self.current() / self.round.sent() } else { 1.0 };
        self.round.delivered() * lateness.max(1.0)
    }

    fn handle_excess(&mut self, now: Instant) {
        let loss = self.standing.fraction();
        match self.trial {
            Some(trial) if trial.cuts >= 3 && loss > trial.loss_before * 0.7 && loss < NOISE_MAX => {
                // A quarter less was sent and as much of it was lost: somebody else's loss, or the radio's.
                (self.noise, self.noise_since) = (loss * 1.3, Some(now));
                self.trial = None;
                self.hold = Duration::ZERO;
                self.hold_until = None;
            }
            Some(Trial { cuts: 2.., .. }) => self.cut(now, TRIAL_CUT),
            Some(_) => self.cut(now, SECOND_CUT),
            None => self.cut(now, FIRST_CUT),
        }
    }

    /// Falls to `factor` of what came through, or to where a probe came from; what is in flight was sent faster and is not
    /// held against the new rate.
    fn cut(&mut self, now: Instant, factor: f64) {
        let cuts = self.trial.map_or(1, |trial| trial.cuts.saturating_add(1));
        let loss_before = self.standing.fraction();
        self.trial = (self.queued_rounds == 0).then_some(Trial { cuts, loss_before, since: now });
        self.note_carried(true);
        let mut limit = self.carried * factor;
        if self.queued_rounds > 0 {
            // A receiver that stalls looks like a queue of which next to nothing comes: that says little about the path.
            limit = limit.max(self.current() * STALL_CUT);
        }
        let (was_probing, from) = match self.phase {
            Phase::Probe { from, .. } => (true, from),
            _ => (false, self.limit),
        };
        // Others take less at once; a queue is one of ours or theirs.
        if self.queued_rounds == 0 && self.carried < from * FALLEN_AT_ONCE {
            self.fallen_from = self.fallen_from.max(from);
        }
        self.fall_to(limit.min(self.current()), from);
        self.hold_longer(now, was_probing);
    }

    /// Yields, from `from`, to `limit`, or to our part beside others.
    fn fall_to(&mut self, limit: f64, from: f64) {
        self.limit = limit.max(self.our_part()).min(from).max(self.floor());
    }

    /// The rate was too high: remembers what came through. `has_lost`: packets were lost over it.
    fn note_carried(&mut self, has_lost: bool) {
        self.carried = self.round.delivered();
        self.carried_by_loss = has_lost && self.queued_rounds == 0;
        if self.carried_by_loss {
            self.policer.add(self.carried);
        }
    }

    /// A probe that failed is tried again later and later: a policer is not to be flooded every round.
    fn hold_longer(&mut self, now: Instant, was_probing: bool) {
        let (factor, most) = match (self.carried_by_loss, self.policed()) {
            (true, Some(_)) => (HOLD_FACTOR_LOSS, HOLD_POLICED),
            (true, None) => (HOLD_FACTOR_LOSS, HOLD_MAX),
            (false, _) if self.is_beside_others() => (1, HOLD_MIN),
            (false, _) => (2, HOLD_QUEUE_MAX),
        };
        self.hold = if was_probing { (self.hold * factor).clamp(HOLD_MIN, most) } else { HOLD_MIN };
        self.hold_until = Some(now + self.hold.max(self.rtt_min() * 2));
        (self.step, self.phase) = (STEP_MIN, Phase::Cruise);
        self.start_epoch();
    }

    /// A clean round above what is known to be carried: kept if what it added has come.
    fn judge_probe(&mut self, now: Instant, from: f64, loss_before: f64, since: Instant) {
        if self.round.app_limited || self.is_late() {
            return;
        }
        let arrived = self.arrived() / (1.0 - loss_before);
        let limit = self.current();
        // Beyond what is known to be carried it must bring more than that.
        let known = if self.carried < limit { from.max(self.carried) } else { from };
        if arrived < known + (limit - known) * PROBE_ADDS {
            self.note_carried(self.round.losses.exceeds(loss_before));
            self.fall_to(self.carried * FIRST_CUT, from);
            return self.hold_longer(now, true);
        }
        let is_proven = now.saturating_duration_since(since) > PROOF && self.round.before() + 1 >= PROOF_ROUNDS;
        if limit > self.carried && self.carried_by_loss && !is_proven {
            return;
        }
        if limit > self.carried {
            self.carried = f64::INFINITY;
        }
        (self.hold, self.hold_until) = (Duration::ZERO, None);
        let is_open = self.carried.is_infinite() && limit < self.ceiling();
        if is_open && self.step >= STEP_MAX && self.contract.manner == Manner::Fair {
            // It carries far more than it did: trains find out how much in a few round trips, but with a queue of their own.
            (self.limit, self.step) = (limit, STEP_MIN);
            return self.start_train(limit * REMEMBERED_TRAIN, limit);
        }
        if self.carried.is_infinite() {
            self.step = (self.step * 2.0).min(STEP_MAX);
        }
        self.phase = Phase::Cruise;
        self.rise(now);
    }

    /// Takes a step up, when it is time for one.
    fn rise(&mut self, now: Instant) {
        let ceiling = self.ceiling();
        if self.limit >= ceiling {
            self.hold = Duration::ZERO;
            return;
        }
        let keeps_up = self.arrived() >= self.current() * (1.0 - self.noise) * KEEPS_UP;
        if self.hold_until.is_some_and(|until| now < until) || !keeps_up || self.is_late() {
            return;
        }
        if self.limit < self.fallen_from * FALLEN && self.contract.manner == Manner::Fair {
            // Outages lose as much as a path that has become slower, and are over at once; a train tells.
            return self.start_train(self.fallen_from, self.limit);
        }
        let next = if self.carried.is_infinite() {
            self.limit * (1.0 + self.step)
        } else if self.limit < self.carried * FIRST_CUT * 0.999 {
            // Back to what is known to come through; beyond it only by the smallest step.
            (self.carried * FIRST_CUT).min(self.limit * (1.0 + STEP_MAX))
        } else {
            self.carried.max(self.limit) * (1.0 + STEP_MIN)
        };
        let loss_before = self.standing.fraction().min(self.noise);
        self.phase = Phase::Probe { from: self.limit, loss_before, since: now };
        self.limit = next.min(ceiling);
        self.start_epoch();
    }
}

fn bytes_per_second(rate: BitRate) -> f64 {
    rate.0 as f64 / 8.0
}

/// Size of a full packet on the wire before path MTU discovery has said otherwise.
const PACKET_BYTES: u64 = 1280;

/// Rate at which a lane without a target goes on behind its first train. Guess: what any path of today carries for one
/// round trip.
const START_RATE: BitRate = BitRate::megabits(1);

/// Pace of the first train, and by how much the next one is faster. Reason: 200 kB, and 10 Gbit/s are tried in the fourth.
const TRAIN_FIRST: BitRate = BitRate::megabits(50);
const TRAIN_FACTOR: f64 = 8.0;

/// With a remembered rate: the part of it that is sent until the first train is back, and the pace of that train. Reason: what
/// others have taken meanwhile is noticed by one that is faster than all there is, and costs a queue of 64 ms at most.
const REMEMBERED_START: f64 = 0.8;
const REMEMBERED_TRAIN: f64 = 2.0;

/// How often a train is sent again because a host stalled. Guess.
const TRAIN_REPEATS: u32 = 3;

/// How long a train is, at its pace. Reason: what busy hosts and acknowledgements for 50 packets blur is some milliseconds.
const TRAIN_TIME: Duration = Duration::from_millis(32);

/// Packets of a train at least: three acknowledgements.
const TRAIN_PACKETS_MIN: u64 = 128;

/// A train keeps up when it comes at this part of its pace.
const TRAIN_KEEPS_UP: f64 = 0.7;

/// Packets in a round, for each lane: below this, chance says more than the path.
pub(super) const ROUND_PACKETS_MIN: u64 = 64;

/// Packets of all lanes in a round that has lasted this long already: a slow path has little to say and is not to be waited
/// for.
const ROUND_PACKETS_LONG: u64 = 24;
const ROUND_LONG: Duration = Duration::from_millis(600);

/// Least length of a round; below it the batches of acknowledgements blur rates. Of one that judges a probe: so that half a
/// step is more than what a batch of 25 ms more or less makes.
const ROUND_MIN: Duration = Duration::from_millis(20);
const PROBE_ROUND_MIN: Duration = Duration::from_millis(100);

/// RTT assumed before the first sample (RFC 9002, section 6.2.2).
const RTT_UNKNOWN: Duration = Duration::from_millis(333);

/// Factors on the delivered rate at the first, second and third cut in a row. The third is a trial: a loss that does not
/// care about a quarter less is not caused by our rate.
const FIRST_CUT: f64 = 0.97;
const SECOND_CUT: f64 = 0.9;
const TRIAL_CUT: f64 = 0.75;

/// Packets after a cut from which its loss can be called gone, and those from which it can be called the same.
const CURE_PACKETS: f64 = 150.0;
const USELESS_PACKETS: f64 = 800.0;

/// At low rates so many packets take minutes: after this long fewer will do, of which this many would have been lost. Reason for the
/// time: a bucket of tokens that has filled up hides a policer for as long.
const CURE_LONG: Duration = Duration::from_secs(2);
const CURE_LOSSES: f64 = 6.0;

/// Factor on the delivered rate when a queue stands: the 10 % below drain it.
const QUEUE_CUT: f64 = 0.9;

/// Below this part of what was sent before an outage, a train tells whether the path carries that again; what came of an outage is less than
/// this part of what was sent; and what is left to ask for by the next train, after one that told nothing. Guesses.
const FALLEN: f64 = 0.25;
const FALLEN_AT_ONCE: f64 = 0.5;
const FALLEN_AGAIN: f64 = 0.5;

/// The part of the rate that one cut for a queue leaves at least; a path that has become slower is reached in some of them.
const STALL_CUT: f64 = 0.5;

/// Delay above the smallest RTT that counts as a queue, at least. Busy hosts delay by some milliseconds without one. A polite
/// sender takes any that can be told from the jitter of an idle host.
const QUEUE_MIN: Duration = Duration::from_millis(25);
const POLITE_QUEUE_MIN: Duration = Duration::from_millis(8);

/// How long the smallest RTT is believed: for windows and rounds, which must follow a path that becomes longer, and for queues, since
/// those of others stand for minutes (RFC 6817 keeps ten). Guesses.
const RTT_KEPT: Duration = Duration::from_secs(30);
const RTT_EMPTY_KEPT: Duration = Duration::from_secs(300);

/// How long a queue must have stood to be held against the rate. Guess: busy hosts, and routers in software, stall for less.
const QUEUE_STANDS: Duration = Duration::from_millis(200);

/// Delivery keeps up when it reaches this part of the rate: bursts and late wake-ups cost a few per cent. With a queue that
/// has stood for [`QUEUED_ROUNDS`] less is enough to yield: somebody else is taking what we do not get.
const KEEPS_UP: f64 = 0.9;
const KEEPS_UP_LONG: f64 = 0.98;
const QUEUED_ROUNDS: u32 = 3;

/// A host that sends less than this part of the rate is held up by something else than the rate. Guess.
const LATE: f64 = 0.7;

/// The part of a step up that must arrive for it to be kept.
const PROBE_ADDS: f64 = 0.5;

/// The part of the rate that is sent while a queue stands although nothing was cut. Guess.
const DRAIN: f64 = 0.95;

/// How long, and for how many rounds, more than ever came through must come through to be believed. Reason: 5 % above 30 Mbit/s
/// empty a bucket of 64 KiB in 0.4 s.
const PROOF: Duration = Duration::from_secs(1);
const PROOF_ROUNDS: u32 = 3;

/// Losses at rates that differ by less than this are at the same rate; a policer has shown this many.
const SAME_RATE: f64 = 0.04;
const POLICER_TIMES: u32 = 3;

/// Most loss that may ever be taken for noise.
const NOISE_MAX: f64 = 0.3;

/// How long loss above the ceiling is taken for noise before it has to prove itself again.
const NOISE_KEPT: Duration = Duration::from_secs(60);

/// Steps up, as fractions of the rate.
const STEP_MIN: f64 = 0.05;
const STEP_MAX: f64 = 0.4;

/// Waiting times before a step up after one that failed; doubled by each. Reason for the longest: what is lost to probing stays
/// below 1 %, and more capacity is noticed within them. A probe into a queue loses nothing.
const HOLD_MIN: Duration = Duration::from_millis(500);
const HOLD_QUEUE_MAX: Duration = Duration::from_secs(4);
const HOLD_FACTOR_LOSS: u32 = 4;
const HOLD_MAX: Duration = Duration::from_secs(16);
const HOLD_POLICED: Duration = Duration::from_secs(30);

/// Packets a second that are sent at least: a round of large ones is not to take longer than one of small ones at [`RATE_LEAST`].
const PACKETS_LEAST: f64 = 6.0;

/// No acknowledgement for this long with packets in flight is an outage.
const SILENCE_MIN: Duration = Duration::from_millis(300);

/// No acknowledgement for this long is a gap: two of the longest delays of QUIC's acknowledgements (RFC 9000, 25 ms).
const ACK_GAP: Duration = Duration::from_millis(50);

/// Packets in the window at least: some batches of acknowledgements.
const WINDOW_PACKETS_MIN: u64 = 64;

/// Time that acknowledgements may lag behind because they come in batches, and a host because it is busy.
const ACK_BATCH_TIME: Duration = Duration::from_millis(30);
