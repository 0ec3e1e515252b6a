//! The congestion controller of a path.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::capacity::Capacity;
use super::contract::{Manner, RATE_LEAST, RateContract, bytes_per_second};
use super::evidence::{AckBatch, Losses, MinimumRtt, Round};
use super::neighbours::{Look, Neighbours};
use super::path::TrainOrder;
use super::search::{TRAIN_PAUSES, Train, TrainEvidence, TrainVerdict};
use super::steps::{Failure, STEP_MAX, STEP_MIN, Steps};
use super::verdict::{Cure, Evidence, KEEPS_UP, ProbeEvidence, QUEUED_ROUNDS, Verdict};
use crate::{BitRate, ByteCount};

/// Rate of a path, found and kept.
///
/// A target is sent in full from the first packet. Without one the rate is searched for by packet trains (`search`): a train drops no more
/// than itself into a queue that is too short, where doubling loses products of the path.
///
/// What comes back is judged in *rounds* of at least one RTT and [`ROUND_PACKETS_MIN`] packets a lane, and over all rounds since the rate
/// last changed. Each round is classified into one [`Verdict`] by its [`Evidence`] alone; [`RateControl::act`] is the table of what each
/// verdict does in each phase. Evidence that a silence, a stalled host or an idle sender has blurred changes nothing.
///
/// Cost: O(lanes) per batch of acknowledgements. Units: bytes on the wire.
#[derive(Clone, Debug)]
pub struct RateControl {
    contract: RateContract,
    /// Part of the contract's ceiling that is for the lanes here.
    fraction: f64,
    packet_bytes: u64,
    /// Rate that the path has shown to carry, bytes/s; what is sent is the smaller of it and the ceiling.
    limit: f64,
    phase: Phase,
    epoch: u64,
    round: Round,
    /// Losses of the epoch; older ones fade.
    standing: Losses,
    queue: QueueWatch,
    neighbours: Neighbours,
    capacity: Capacity,
    noise: Noise,
    trial: Option<Trial>,
    steps: Steps,
    rtt: RttWatch,
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

/// Phase of the controller.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Looks for the rate.
    Search(Train),
    /// Sends at the rate.
    Cruise,
    /// Sends above the rate that is known to be carried, to see whether more is.
    Probe {
        /// That rate, and the loss and the RTT that it had.
        from: f64,
        loss_before: f64,
        rtt_before: Duration,
        since: Instant,
    },
}

/// A cut, to be judged by the loss of the rounds after it.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Rate before the first of the cuts.
    from: f64,
    cuts: u32,
    /// The last of them was the one that tells whether a loss is noise.
    is_deep: bool,
    loss_before: f64,
    since: Instant,
}

impl Trial {
    /// Whether `losses` behind the cut show that somebody else makes them, or a radio.
    fn shows_noise(&self, losses: &Losses) -> bool {
        let loss = losses.fraction();
        let is_known = self.is_deep || self.hardly_helps(loss) && losses.packets >= USELESS_PACKETS;
        is_known && loss > self.loss_before * 0.7 && loss < NOISE_MAX
    }

    /// Whether a cut has left as much as before of a `loss` that is likely to be noise.
    fn hardly_helps(&self, loss: f64) -> bool {
        loss > self.loss_before * 0.9 && LIKELY_NOISE.contains(&loss)
    }
}

/// Loss that is taken for noise.
#[derive(Clone, Copy, Debug)]
struct Noise {
    /// As a part of packets.
    fraction: f64,
    /// Time from which more than the contract's ceiling is taken for noise.
    since: Option<Instant>,
}

/// Rounds in a row with a queue.
#[derive(Clone, Copy, Debug, Default)]
struct QueueWatch {
    rounds: u32,
    /// End of the first of them.
    since: Option<Instant>,
}

/// Round-trip times of the path.
#[derive(Clone, Copy, Debug)]
struct RttWatch {
    min: MinimumRtt,
    /// With an empty queue: the smallest of a longer time.
    empty: MinimumRtt,
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
            queue: QueueWatch::default(),
            neighbours: Neighbours::new(),
            capacity: Capacity::unknown(),
            noise: Noise { fraction: contract.loss_ceiling(), since: None },
            trial: None,
            steps: Steps::new(),
            rtt: RttWatch { min: MinimumRtt::default(), empty: MinimumRtt::default() },
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
        if self.noise.since.is_none() {
            self.noise.fraction = contract.loss_ceiling();
        }
        let before = std::mem::replace(&mut self.contract, contract);
        if let Some(target) = contract.target.filter(|target| before.target != Some(*target)) {
            self.limit = bytes_per_second(target);
            (self.capacity.carried, self.capacity.fallen_from) = (f64::INFINITY, 0.0);
            self.begin(Phase::Cruise);
        } else if contract.remembered != before.remembered && matches!(self.phase, Phase::Search(_)) {
            self.search();
        }
    }

    /// Changes the part of the ceiling that is for the lanes here; returns whether it has changed.
    pub(super) fn set_fraction(&mut self, fraction: f64) -> bool {
        std::mem::replace(&mut self.fraction, fraction) != fraction
    }

    /// Most that the lanes here send.
    pub(super) fn ceiling_rate(&self) -> Option<BitRate> {
        self.contract.ceiling.map(|ceiling| BitRate((ceiling.0 as f64 * self.fraction) as u64))
    }

    pub(super) fn set_packet_bytes(&mut self, bytes: u64) {
        self.packet_bytes = bytes;
    }

    /// Lane number `lane` has heard `batch`; `scout_part`: its part of the rate, if it is the one that sends trains.
    pub(super) fn handle_batch(&mut self, now: Instant, lane: usize, batch: &AckBatch, scout_part: Option<f64>) {
        if let Some(rtt) = batch.rtt_min {
            self.rtt.min.add(now, rtt, RTT_KEPT);
            self.rtt.empty.add(now, rtt, RTT_EMPTY_KEPT);
        }
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
                self.judge_train(now, train, batch, 1.0 + others / train.pace);
            }
            return;
        }
        self.round.add(now, lane, batch);
        if self.round_is_over(now) {
            self.judge(now);
        }
    }

    /// The receiving host dropped packets that the path had carried.
    ///
    /// Less is sent, once in two round trips however many reports come, and what the losses seemed to say of the path (a policer, noise,
    /// a rate that is too high) is forgotten, so that steps up begin again soon.
    pub(super) fn handle_overrun(&mut self, now: Instant) {
        let is_news = self.steps.is_due(now) || self.capacity.by_loss;
        if !is_news || matches!(self.phase, Phase::Search(_)) {
            return;
        }
        if let Phase::Probe { from, .. } = self.phase {
            self.limit = from;
        } else if !self.capacity.by_loss {
            self.limit = (self.limit * OVERRUN_CUT).max(self.floor());
        }
        self.capacity.forget_losses();
        self.trial = None;
        self.noise = Noise { fraction: self.contract.loss_ceiling(), since: None };
        self.steps = Steps::new();
        self.steps.wait(now, self.rtt_min() * 2 + OVERRUN_REPORTED);
        self.begin(Phase::Cruise);
    }

    /// Rate to send at, on the wire.
    pub fn rate(&self) -> BitRate {
        BitRate((self.current() * 8.0) as u64)
    }

    /// The train to send, if one is to be sent or under way.
    pub(super) fn train(&self) -> Option<TrainOrder> {
        let Phase::Search(train) = self.phase else { return None };
        // The ceiling may have come down since.
        let pace = train.pace.min(self.ceiling());
        Some(TrainOrder { pace: BitRate((pace * 8.0) as u64), bytes: ByteCount(train.bytes) })
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Bytes on the wire that a lane with `share` of the rate may have in flight.
    pub(super) fn window(&self, share: BitRate, train: Option<TrainOrder>) -> ByteCount {
        let rate = bytes_per_second(share);
        let batches = ACK_BATCH_TIME.as_secs_f64() * rate;
        let floor = (WINDOW_PACKETS_MIN * self.packet_bytes) as f64;
        let train = train.map_or(0, |train| train.bytes.0);
        ByteCount((2.0 * rate * self.rtt_min().as_secs_f64() + batches.max(floor)) as u64 + train)
    }

    /// Time without a sign of a lane with `share` of the rate after which what was in flight says nothing.
    pub(super) fn silence(&self, share: BitRate) -> Duration {
        SILENCE_MIN.max(self.packet_time(share) * 8).max(self.rtt_min() / 2)
    }

    /// Time without a sign of a lane with `share` of the rate after which a host has stalled.
    pub(super) fn ack_gap(&self, share: BitRate) -> Duration {
        ACK_GAP.max(self.packet_time(share) * 4)
    }

    fn packet_time(&self, share: BitRate) -> Duration {
        Duration::from_secs_f64(self.packet_bytes as f64 / bytes_per_second(share).max(1.0))
    }

    /// The smallest RTT of the last half minute or so, or what was expected before the first sample.
    pub fn rtt_min(&self) -> Duration {
        self.rtt.min.value().unwrap_or(self.contract.expected_rtt.unwrap_or(RTT_UNKNOWN))
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

    /// Rate that the path has been found to carry; `None` while that is being found out. A sender that never had enough data for a
    /// train has found what it sends.
    pub fn found(&self) -> Option<BitRate> {
        match self.phase {
            Phase::Search(train) => (train.starved >= STARVED_TRAINS).then(|| self.rate()),
            Phase::Cruise => Some(self.rate()),
            Phase::Probe { from, .. } => Some(BitRate((from * 8.0) as u64)),
        }
    }

    /// Rate of a policer on the path, if its losses have been seen often enough.
    pub fn policed(&self) -> Option<BitRate> {
        self.capacity.policed(self.limit)
    }

    /// Sends the train once more; one in the midst of a copy only when it is its time again.
    pub(super) fn restart_train(&mut self) {
        match self.phase {
            Phase::Search(train) if self.capacity.fallen_from == 0.0 => self.start_train(train.pace, train.proven),
            Phase::Search(_) => {
                self.capacity.fallen_from *= FALLEN_AGAIN;
                self.begin(Phase::Cruise);
            }
            Phase::Cruise | Phase::Probe { .. } => {}
        }
    }

    /// The lane that sends the train had nothing to send for a moment: the train begins anew behind the pause, some times.
    pub(super) fn handle_train_pause(&mut self) {
        if let Phase::Search(train) = self.phase
            && train.pauses < TRAIN_PAUSES
        {
            self.begin(Phase::Search(Train { came: 0.0, pauses: train.pauses + 1, ..train }));
        }
    }

    fn ceiling(&self) -> f64 {
        self.ceiling_rate().map_or(f64::INFINITY, bytes_per_second)
    }

    /// Bytes per second to send.
    fn current(&self) -> f64 {
        // Beside others, that they can grow; what was given and is carried stays.
        let is_draining = if self.is_beside_others() { self.yields() } else { self.queue.rounds >= QUEUED_ROUNDS };
        let limit = if is_draining && matches!(self.phase, Phase::Cruise) { self.limit * DRAIN } else { self.limit };
        limit.min(self.ceiling()).max(self.floor())
    }

    fn floor(&self) -> f64 {
        let minimum = self.contract.minimum.map_or(0.0, bytes_per_second) * self.fraction;
        let packets = (PACKETS_LEAST * self.packet_bytes as f64).min(self.ceiling());
        minimum.max(packets).max(bytes_per_second(RATE_LEAST))
    }

    /// Enters a phase, at a rate for which no evidence counts that came before.
    fn begin(&mut self, phase: Phase) {
        self.phase = phase;
        self.epoch += 1;
        (self.round, self.standing) = (Round::new(), Losses::default());
        self.queue = QueueWatch::default();
    }

    /// Looks for the rate: near what is remembered, or from the beginning.
    fn search(&mut self) {
        // Below what an unknown path begins with it would only take longer to find out.
        let remembered = self.contract.remembered.filter(|rate| *rate >= START_RATE).map(bytes_per_second);
        if remembered.is_some_and(|rate| rate * REMEMBERED_START >= self.ceiling()) {
            // There is nothing to find above the ceiling, and a train beside other lanes would exceed it.
            (self.limit, self.capacity.carried) = (self.ceiling(), f64::INFINITY);
            return self.begin(Phase::Cruise);
        }
        self.limit = remembered.map_or(bytes_per_second(START_RATE), |rate| rate * REMEMBERED_START);
        self.start_train(remembered.map_or(bytes_per_second(TRAIN_FIRST), |rate| rate * REMEMBERED_TRAIN), 0.0);
    }

    /// Sends the next packets at `pace`, as one train; `proven` bytes/s are known to be carried.
    fn start_train(&mut self, pace: f64, proven: f64) {
        self.begin(Phase::Search(Train::new(pace.min(self.ceiling()), self.packet_bytes, proven)));
    }

    /// Takes in what has arrived of the train, and judges it when all of it is back. `whole`: what all lanes sent meanwhile, in trains.
    fn judge_train(&mut self, now: Instant, mut train: Train, batch: &AckBatch, whole: f64) {
        let (is_back, bytes) = (batch.is_train_passed, train.bytes);
        let is_measured = !self.round.length().is_zero();
        if is_measured && (is_back || self.round.bytes * 2 > bytes) {
            train.came = train.came.max(self.round.delivered());
        }
        self.phase = Phase::Search(train);
        if !is_back {
            return;
        }
        let asked = train.pace.min(self.ceiling());
        let heard = self.round.bytes as f64 / (1.0 - self.round.losses.fraction()).max(f64::EPSILON);
        let evidence = TrainEvidence {
            asked,
            sent: self.round.sent() / (1.0 - self.round.losses.fraction()).max(f64::EPSILON),
            came: train.came,
            losses: self.round.losses,
            has_stall: self.round.has_resumed(),
            is_starved: batch.is_train_broken || self.round.app_limited && heard < bytes as f64 * WHOLE_TRAIN,
            repeats: train.repeats,
            slow_starts: train.slow_starts,
        };
        self.act_on_train(now, train, evidence.classify(), asked, whole);
    }

    /// The table of trains: what each verdict does.
    fn act_on_train(&mut self, now: Instant, train: Train, verdict: TrainVerdict, asked: f64, whole: f64) {
        match verdict {
            TrainVerdict::Blurred => {
                let came = if train.came > 0.0 { train.came } else { f64::INFINITY };
                let again = Train { came: 0.0, repeats: train.repeats + 1, least: train.least.min(came), ..train };
                return self.begin(Phase::Search(again));
            }
            TrainVerdict::Starved => {
                self.limit = self.limit.max(train.came);
                let again = Train { came: 0.0, starved: train.starved + 1, pauses: 0, ..train };
                return self.begin(Phase::Search(again));
            }
            TrainVerdict::SlowStart => {
                let proven = train.came.max(train.proven);
                self.limit = self.limit.max(proven);
                let again = Train { came: 0.0, proven, slow_starts: train.slow_starts + 1, ..train };
                return self.begin(Phase::Search(again));
            }
            TrainVerdict::AsFast if asked < self.ceiling() => {
                self.capacity.fallen_from = 0.0;
                self.limit = train.came.min(train.pace);
                return self.start_train(train.pace * TRAIN_FACTOR, self.limit);
            }
            TrainVerdict::AsFast => (self.limit, self.capacity.fallen_from) = (asked, 0.0),
            TrainVerdict::HostBound => {
                self.limit = train.came.max(train.proven);
                (self.capacity.carried, self.capacity.fallen_from) = (f64::INFINITY, 0.0);
            }
            TrainVerdict::Slower | TrainVerdict::BlurredAgain => {
                let came = match verdict {
                    TrainVerdict::Slower => train.came,
                    _ if train.least.is_finite() => train.least,
                    _ => self.limit,
                };
                // After several stalls it may have met another outage, or a path that carries far less: that is not asked for ever.
                let kept = if verdict == TrainVerdict::Slower { 0.0 } else { FALLEN_AGAIN };
                self.capacity.fallen_from *= kept;
                self.capacity.carried = came * whole;
                self.neighbours.note_capacity(came);
                self.limit = (self.capacity.carried * FIRST_CUT).max(train.proven).max(self.floor());
            }
        }
        self.steps.wait(now, self.rtt_min() * 2);
        self.begin(Phase::Cruise);
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

    /// Judges a round that is over, acts on the verdict, and starts the next round.
    fn judge(&mut self, now: Instant) {
        self.standing.add(self.round.losses);
        if self.noise.since.is_some_and(|since| now.saturating_duration_since(since) > NOISE_KEPT) {
            self.noise = Noise { fraction: self.contract.loss_ceiling(), since: None };
        }
        self.watch_queue(now);
        let epoch = self.epoch;
        let evidence = self.evidence(now);
        if evidence.cure == Cure::Done {
            self.trial = None;
        }
        self.act(now, evidence.classify());
        if self.epoch == epoch {
            self.round.next();
        }
    }

    /// The table: what each verdict does in each phase.
    fn act(&mut self, now: Instant, verdict: Verdict) {
        match (verdict, self.phase) {
            (Verdict::BelowPart, _) => self.take_our_part(),
            (Verdict::Excess, _) => self.handle_excess(now),
            (Verdict::QueueGrows, _) => self.cut(now, QUEUE_CUT),
            (Verdict::QueueStands, _) => self.cut(now, FIRST_CUT),
            (Verdict::ProbeFailed, Phase::Probe { from, loss_before, .. }) => {
                self.note_carried(self.round.losses.exceeds(loss_before));
                self.fall_to(self.capacity.carried * FIRST_CUT, from);
                self.hold_longer(now, true);
            }
            (Verdict::ProbePassed, Phase::Probe { .. }) => self.keep_step(now),
            (Verdict::Clean, Phase::Cruise) => self.rise(now),
            // Nothing is known yet, or what is known asks for nothing.
            (
                Verdict::OnTrial
                | Verdict::Unused
                | Verdict::ProbeUnproven
                | Verdict::Behind
                | Verdict::Clean
                | Verdict::ProbeFailed
                | Verdict::ProbePassed,
                _,
            ) => {}
        }
    }

    /// Evidence of the round that is over.
    fn evidence(&self, now: Instant) -> Evidence {
        let (arrived, current) = (self.arrived(), self.current());
        Evidence {
            manner: self.contract.manner,
            is_below_part: self.limit < self.our_part(),
            has_excess: self.round.losses.exceeds(self.noise.fraction) || self.standing.exceeds(self.noise.fraction),
            cure: self.cure(now),
            queued_rounds: self.queue.rounds,
            queue_stands: self.queue_stands(now),
            arrived: arrived / current,
            is_unused: self.is_unused(),
            keeps_up: arrived >= current * (1.0 - self.noise.fraction) * KEEPS_UP,
            probe: self.probe_evidence(now),
        }
    }

    fn probe_evidence(&self, now: Instant) -> Option<ProbeEvidence> {
        let Phase::Probe { from, loss_before, rtt_before, since } = self.phase else { return None };
        let (tried, carried) = (self.current(), self.capacity.carried);
        let is_proven = now.saturating_duration_since(since) > PROOF && self.round.before() + 1 >= PROOF_ROUNDS;
        let arrived = self.arrived() / (1.0 - loss_before);
        // Seconds of queue that each second of the probe has added, and its losses, are parts of the rate that have not arrived.
        let heard_for = now.saturating_duration_since(since).saturating_sub(rtt_before).max(ROUND_MIN);
        let delay = self.round.rtt_late().unwrap_or(rtt_before).saturating_sub(rtt_before);
        let queued = delay.as_secs_f64() / heard_for.as_secs_f64();
        let lost = (self.round.losses.fraction() - loss_before).max(0.0);
        Some(ProbeEvidence {
            // Beyond what is known to be carried it must bring more than that.
            known: if carried < tried { from.max(carried) } else { from },
            tried,
            arrived,
            is_explained: self.is_beside_others() || (queued + lost) * tried >= (tried - arrived) * EXPLAINED,
            is_long: self.round.before() + 1 >= PROBE_ROUNDS,
            is_short: tried > carried && self.capacity.by_loss && !is_proven,
        })
    }

    /// Whether the rate was not used: the lanes ran dry in a probe, or this host sends so much less than it may that more would change
    /// nothing.
    fn is_unused(&self) -> bool {
        let is_late = self.queue.rounds == 0 && self.round.sent() < self.current() * LATE;
        let is_dry = self.round.app_limited && matches!(self.phase, Phase::Probe { .. });
        is_late || is_dry
    }

    /// Goes up to the part that is ours beside others, which nothing that is lost to them takes away.
    fn take_our_part(&mut self) {
        self.limit = self.our_part().min(self.limit * (1.0 + STEP_MAX));
        self.begin(Phase::Cruise);
    }

    /// Effect of a cut for loss on the loss.
    fn cure(&self, now: Instant) -> Cure {
        let Some(trial) = self.trial else { return Cure::None };
        if self.queue.rounds > 0 {
            return Cure::Done;
        }
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

    fn watch_queue(&mut self, now: Instant) {
        let is_queueing = self.is_queueing();
        self.queue = if is_queueing {
            QueueWatch { rounds: self.queue.rounds + 1, since: self.queue.since.or(Some(now)) }
        } else {
            QueueWatch::default()
        };
        // What piled up while a host stalled says little of the path.
        if !self.round.has_resumed() {
            let (sent, came) = (self.current(), self.arrived());
            let (losses, length) = (self.round.losses, self.round.length());
            self.neighbours.look(now, Look { is_queueing, sent, came, losses, length });
        }
    }

    /// Whether others keep a queue full, and this sender takes its part beside them.
    fn is_beside_others(&self) -> bool {
        self.contract.manner == Manner::Fair && self.neighbours.are_queueing()
    }

    /// The limit that is not gone below beside others, of which [`DRAIN`] is sent; 0 without them.
    fn our_part(&self) -> f64 {
        let part = || (self.neighbours.our_part(self.packet_bytes) / DRAIN).min(self.ceiling());
        if self.is_beside_others() { part() } else { 0.0 }
    }

    /// Whether a queue has stood for longer than a host stalls.
    fn queue_stands(&self, now: Instant) -> bool {
        let stood = self.queue.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.queue.rounds >= 2 && (stood >= QUEUE_STANDS || self.contract.manner == Manner::Polite)
    }

    /// Whether a queue stood during the whole round.
    fn is_queueing(&self) -> bool {
        let base = self.rtt.empty.value().unwrap_or(self.rtt_min());
        let delay = self.round.rtt_min.saturating_sub(base);
        let (least, part) = match self.contract.manner {
            Manner::Fair => (QUEUE_MIN, base / 4),
            Manner::Polite => (POLITE_QUEUE_MIN, base / 16),
        };
        !self.round.app_limited && delay > part.max(least)
    }

    /// Bytes/s that would have come through if we had sent all the time: a host that is late sends less than its rate.
    /// Behind a queue what is sent waits for the window, and so for the path.
    fn arrived(&self) -> f64 {
        let lateness = if self.queue.rounds == 0 { self.current() / self.round.sent() } else { 1.0 };
        self.round.delivered() * lateness.max(1.0)
    }

    fn handle_excess(&mut self, now: Instant) {
        let loss = self.standing.fraction();
        match self.trial {
            Some(trial) if trial.shows_noise(&self.standing) => {
                // As much is lost as before: somebody else's loss, or the radio's. What was sent before did no harm.
                self.noise = Noise { fraction: loss * 1.3, since: Some(now) };
                (self.trial, self.limit) = (None, trial.from);
                self.steps.allow();
                self.begin(Phase::Cruise);
            }
            // The first cut has changed little: that is known after one more, and each of them costs two round trips.
            Some(trial) if trial.cuts >= 2 || trial.hardly_helps(loss) => self.cut(now, TRIAL_CUT),
            Some(_) => self.cut(now, SECOND_CUT),
            None => self.cut(now, FIRST_CUT),
        }
    }

    /// Falls to `factor` of what came through, or to where a probe came from; what is in flight was sent faster and is not
    /// held against the new rate.
    fn cut(&mut self, now: Instant, factor: f64) {
        let is_queued = self.queue.rounds > 0;
        let (was_probing, from) = match self.phase {
            Phase::Probe { from, .. } => (true, from),
            _ => (false, self.limit),
        };
        let (before, cuts) = self.trial.map_or((from, 0), |trial| (trial.from, trial.cuts));
        let (loss_before, cuts) = (self.standing.fraction(), cuts.saturating_add(1));
        let is_deep = factor <= TRIAL_CUT;
        self.trial = (!is_queued).then_some(Trial { from: before, cuts, is_deep, loss_before, since: now });
        self.note_carried(true);
        let carried = self.capacity.carried;
        let mut limit = carried * factor;
        if is_queued {
            // A receiver that stalls looks like a queue of which next to nothing comes: that says little about the path.
            limit = limit.max(self.current() * STALL_CUT);
        }
        // Others take less at once; a queue is one of ours or theirs.
        if !is_queued && carried < from * FALLEN_AT_ONCE {
            self.capacity.fallen_from = self.capacity.fallen_from.max(from);
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
        self.capacity.note(self.round.delivered(), has_lost && self.queue.rounds == 0);
    }

    /// Cruises for a while before the next step up.
    fn hold_longer(&mut self, now: Instant, was_probing: bool) {
        let failure = match (self.capacity.by_loss, self.policed()) {
            _ if !was_probing => Failure::Rate,
            (true, Some(_)) => Failure::Policed,
            (true, None) => Failure::Loss,
            (false, _) if self.is_beside_others() => Failure::Shared,
            (false, _) => Failure::Queue,
        };
        self.steps.fail(now, self.rtt_min() * 2, failure);
        self.begin(Phase::Cruise);
    }

    /// Keeps the step of a probe that has passed, and takes the next one or sends a train.
    fn keep_step(&mut self, now: Instant) {
        // A host that sends less than it may has shown no more than that.
        let limit = self.current().min(self.round.sent() * UNUSED_MOST);
        self.limit = self.limit.min(limit);
        if limit > self.capacity.carried {
            self.capacity.carried = f64::INFINITY;
        }
        let is_open = self.capacity.carried.is_infinite();
        if is_open && limit < self.ceiling() && self.steps.size >= STEP_MAX && self.contract.manner == Manner::Fair {
            // It carries far more than it did: trains find out how much in a few round trips, but with a queue of their own.
            (self.limit, self.steps) = (limit, Steps::new());
            return self.start_train(limit * REMEMBERED_TRAIN, limit);
        }
        self.steps.pass(is_open);
        self.phase = Phase::Cruise;
        self.rise(now);
    }

    /// Takes a step up, when it is time for one.
    fn rise(&mut self, now: Instant) {
        let (ceiling, carried) = (self.ceiling(), self.capacity.carried);
        if self.limit >= ceiling {
            return self.steps.allow();
        }
        if !self.steps.is_due(now) {
            return;
        }
        let fallen_from = self.capacity.fallen_from;
        if self.limit < fallen_from * FALLEN && self.contract.manner == Manner::Fair {
            // Outages lose as much as a path that has become slower, and are over at once; a train tells.
            return self.start_train(fallen_from, self.limit);
        }
        let next = if carried.is_infinite() {
            self.limit * (1.0 + self.steps.size)
        } else if self.limit < carried * FIRST_CUT * 0.999 {
            // Back to what is known to come through; beyond it only by the smallest step.
            (carried * FIRST_CUT).min(self.limit * (1.0 + STEP_MAX))
        } else {
            carried.max(self.limit) * (1.0 + STEP_MIN)
        };
        let loss_before = self.standing.fraction().min(self.noise.fraction);
        let (from, rtt_before) = (self.limit, self.round.rtt_late().unwrap_or(self.rtt_min()));
        self.limit = next.min(ceiling);
        self.begin(Phase::Probe { from, loss_before, rtt_before, since: now });
    }
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

/// Part of the rate that is left when the receiving host drops packets, and the longest delay of its reports. Guess for the first: hosts
/// take turns with other work, and a tenth is what one turn costs.
const OVERRUN_CUT: f64 = 0.9;
const OVERRUN_REPORTED: Duration = Duration::from_millis(250);

/// Part of a train that must have been sent for it to count as whole, whatever the lane did afterwards.
const WHOLE_TRAIN: f64 = 0.8;

/// Trains without enough data after which the search is as good as over. Reason: the first can meet a source that just opens.
const STARVED_TRAINS: u32 = 3;

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

/// A host that sends less than this part of the rate is held up by something else than the rate. Guess.
const LATE: f64 = 0.7;

/// The rate, at most, of what a host really sends. Reason: how fast it goes on behind a moment in which it was busy, and no flood then.
const UNUSED_MOST: f64 = 1.25;

/// The part of the rate that is sent while a queue stands although nothing was cut. Guess.
const DRAIN: f64 = 0.95;

/// How long, and for how many rounds, more than ever came through must come through to be believed. Reason: 5 % above 30 Mbit/s
/// empty a bucket of 64 KiB in 0.4 s.
const PROOF: Duration = Duration::from_secs(1);
const PROOF_ROUNDS: u32 = 3;

/// The part of what is missing of a probe that a queue and losses must explain, and the rounds after which they would. Reason: 5 % too much
/// make a queue of 20 ms in four rounds of 100 ms, which no jitter hides.
const EXPLAINED: f64 = 0.5;
const PROBE_ROUNDS: u32 = 4;

/// Losses that are likely to be noise when a first cut has not changed them. Reason: below, a rate that is a little too high loses as much; above,
/// outages are more common than such links.
const LIKELY_NOISE: Range<f64> = 0.03..0.1;

/// Most loss that may ever be taken for noise.
const NOISE_MAX: f64 = 0.3;

/// How long loss above the ceiling is taken for noise before it has to prove itself again.
const NOISE_KEPT: Duration = Duration::from_secs(60);

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
