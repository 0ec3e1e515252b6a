//! Congestion controller of a path.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::capacity::Capacity;
use super::contract::{Fairness, RATE_LEAST, RateContract, bytes_per_second};
use super::evidence::{AckBatch, Losses, MinimumRtt, Round};
use super::neighbours::{Look, Neighbours};
use super::search::{TRAIN_PAUSES, Train, TrainEvidence, TrainOrder, TrainVerdict};
use super::steps::{Failure, STEP_MAX, STEP_MIN, Steps};
use super::verdict::{Cure, Evidence, KEEPS_UP, ProbeEvidence, QUEUED_ROUNDS, Verdict};
use crate::{BitRate, ByteCount};

/// Controller that finds and keeps the rate of a path.
///
/// A target is sent in full from the first packet. Without a target, packet trains search for the rate (`search`). A
/// train drops at most itself into a queue that is too short, where doubling loses several products of the path.
///
/// Acknowledgements and losses are judged in *rounds* of at least one RTT and [`ROUND_PACKETS_MIN`] packets a lane.
/// Losses are also judged over all rounds since the last change of the rate. The [`Evidence`] of a round alone
/// determines its [`Verdict`]. [`RateControl::act`] is the table of actions for each verdict in each phase. Evidence
/// that a silence, a stalled host or an idle sender has blurred changes nothing.
///
/// Cost: O(lanes) per batch of acknowledgements. Units: bytes on the wire.
#[derive(Clone, Debug)]
pub struct RateControl {
    contract: RateContract,
    /// Part of the contract's ceiling for the lanes here.
    fraction: f64,
    packet_bytes: u64,
    /// Rate that the path carries by the evidence so far, bytes/s; the send rate is the smaller of it and the ceiling.
    limit: f64,
    phase: Phase,
    epoch: u64,
    round: Round,
    /// Losses of the epoch; older losses fade.
    standing: Losses,
    queue: QueueMonitor,
    neighbours: Neighbours,
    capacity: Capacity,
    noise: Noise,
    trial: Option<Trial>,
    steps: Steps,
    rtt: RttMonitor,
}

/// Basis of the rate of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateState {
    /// The search for the rate is in progress.
    #[default]
    Searching,
    /// The rate is the given one.
    Given,
    /// The rate was found, or it is below the given one: the path carries no more.
    Found,
    /// As `Found`, while more packets are lost than count as noise.
    Losing,
    /// A policer drops packets above this rate.
    Policed(BitRate),
}

/// Phase of the controller.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Searches for the rate.
    Search(Train),
    /// Sends at the rate.
    Cruise,
    /// Sends above the rate that the path is known to carry, to test for more.
    Probe {
        /// Rate before the probe.
        from: f64,
        /// Loss and RTT at that rate.
        loss_before: f64,
        rtt_before: Duration,
        since: Instant,
    },
}

/// Trial of a cut: the loss of the following rounds shows its effect.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Rate before the first of the cuts.
    from: f64,
    cuts: u32,
    /// True if the last cut was deep enough to show whether the loss is noise.
    is_deep: bool,
    loss_before: f64,
    since: Instant,
}

impl Trial {
    /// Returns true if `losses` after the cut show that competing flows or a radio link cause them.
    fn shows_noise(&self, losses: &Losses) -> bool {
        let loss = losses.fraction();
        let is_known = self.is_deep || self.hardly_helps(loss) && losses.packets >= USELESS_PACKETS;
        is_known && loss > self.loss_before * 0.7 && loss < NOISE_MAX
    }

    /// Returns true if a cut left nearly the same `loss`, and that loss is likely to be noise.
    fn hardly_helps(&self, loss: f64) -> bool {
        loss > self.loss_before * 0.9 && LIKELY_NOISE.contains(&loss)
    }
}

/// Loss that counts as noise.
#[derive(Clone, Copy, Debug)]
struct Noise {
    /// Fraction of packets.
    fraction: f64,
    /// Time from which more than the contract's ceiling counts as noise.
    since: Option<Instant>,
}

/// Rounds in a row with a queue.
#[derive(Clone, Copy, Debug, Default)]
struct QueueMonitor {
    rounds: u32,
    /// End of the first of these rounds.
    since: Option<Instant>,
}

/// Round-trip times of the path.
#[derive(Clone, Copy, Debug)]
struct RttMonitor {
    min: MinimumRtt,
    /// RTT with an empty queue: the minimum over a longer time.
    empty: MinimumRtt,
}

impl RateControl {
    /// Returns a controller that starts at the target, or with a train.
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
            queue: QueueMonitor::default(),
            neighbours: Neighbours::new(),
            capacity: Capacity::unknown(),
            noise: Noise { fraction: contract.loss_ceiling(), since: None },
            trial: None,
            steps: Steps::new(),
            rtt: RttMonitor { min: MinimumRtt::default(), empty: MinimumRtt::default() },
        };
        if limit.is_none() {
            control.search();
        }
        control
    }

    /// Returns the contract.
    pub fn contract(&self) -> &RateContract {
        &self.contract
    }

    /// Replaces the contract. A new target is sent at once. Otherwise the rate that the path has shown to carry is
    /// kept; if the former contract was the limit and the new one allows more, the search goes on from there.
    pub(super) fn set_contract(&mut self, contract: RateContract) {
        if self.noise.since.is_none() {
            self.noise.fraction = contract.loss_ceiling();
        }
        let before = std::mem::replace(&mut self.contract, contract);
        if let Some(target) = contract.target.filter(|target| before.target != Some(*target)) {
            self.limit = bytes_per_second(target);
            (self.capacity.carried, self.capacity.fallen_from) = (f64::INFINITY, 0.0);
            self.begin(Phase::Cruise);
        } else if matches!(self.phase, Phase::Search(_)) {
            if contract.remembered != before.remembered {
                self.search();
            }
        } else if let Some(bound) = before.target.or(before.ceiling).map(bytes_per_second) {
            let most = contract.target.or(contract.ceiling).map_or(f64::INFINITY, bytes_per_second);
            if most > bound && self.limit >= bound * self.fraction * AT_BOUND {
                self.search_above(bound * self.fraction);
            }
        }
    }

    /// Starts a search from `proven` bytes/s, which the path carries.
    fn search_above(&mut self, proven: f64) {
        (self.capacity.carried, self.capacity.fallen_from) = (f64::INFINITY, 0.0);
        self.limit = proven.max(bytes_per_second(START_RATE));
        self.start_train((proven * TRAIN_FACTOR).max(bytes_per_second(TRAIN_FIRST)), proven);
    }

    /// Sets the part of the ceiling for the lanes here; returns true if it has changed.
    pub(super) fn set_fraction(&mut self, fraction: f64) -> bool {
        std::mem::replace(&mut self.fraction, fraction) != fraction
    }

    /// Returns the highest rate of the lanes here.
    pub(super) fn ceiling_rate(&self) -> Option<BitRate> {
        self.contract.ceiling.map(|ceiling| BitRate((ceiling.0 as f64 * self.fraction) as u64))
    }

    pub(super) fn set_packet_bytes(&mut self, bytes: u64) {
        self.packet_bytes = bytes;
    }

    /// Processes `batch` of lane number `lane`. `scout_part`: the lane's part of the rate if it sends the trains.
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
                // The other lanes use a part of the bottleneck while the train passes it.
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

    /// Reduces the rate because the receiving host dropped packets that the path had carried.
    ///
    /// The rate is reduced once in two round trips, for any number of reports. Everything that these losses seemed to
    /// show about the path (a policer, noise, a rate that is too high) is forgotten. So steps up begin again soon.
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

    /// Returns the send rate, on the wire.
    pub fn rate(&self) -> BitRate {
        BitRate((self.current() * 8.0) as u64)
    }

    /// Returns the train that is due or in progress.
    pub(super) fn train(&self) -> Option<TrainOrder> {
        let Phase::Search(train) = self.phase else { return None };
        // The ceiling may have become lower since.
        let pace = train.pace.min(self.ceiling());
        Some(TrainOrder { pace: BitRate((pace * 8.0) as u64), bytes: ByteCount(train.bytes) })
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the limit of bytes in flight, on the wire, for a lane with `share` of the rate.
    pub(super) fn window(&self, share: BitRate, train: Option<TrainOrder>) -> ByteCount {
        let rate = bytes_per_second(share);
        let batches = ACK_BATCH_TIME.as_secs_f64() * rate;
        let floor = (WINDOW_PACKETS_MIN * self.packet_bytes) as f64;
        let train = train.map_or(0, |train| train.bytes.0);
        ByteCount((2.0 * rate * self.rtt_min().as_secs_f64() + batches.max(floor)) as u64 + train)
    }

    /// Returns the time without acknowledgements after which packets in flight of a lane with `share` are no evidence.
    pub(super) fn silence(&self, share: BitRate) -> Duration {
        SILENCE_MIN.max(self.packet_time(share) * 8).max(self.rtt_min() / 2)
    }

    /// Returns the time without acknowledgements after which a host has stalled, for a lane with `share` of the rate.
    pub(super) fn ack_gap(&self, share: BitRate) -> Duration {
        ACK_GAP.max(self.packet_time(share) * 4)
    }

    fn packet_time(&self, share: BitRate) -> Duration {
        Duration::from_secs_f64(self.packet_bytes as f64 / bytes_per_second(share).max(1.0))
    }

    /// Returns the smallest RTT of the last half minute or so; before the first sample the expected RTT.
    pub fn rtt_min(&self) -> Duration {
        self.rtt.min.value().unwrap_or(self.contract.expected_rtt.unwrap_or(RTT_UNKNOWN))
    }

    /// Returns true if the send rate is below the ceiling because the path does not deliver the ceiling.
    pub fn yields(&self) -> bool {
        self.limit < self.ceiling() * 0.999
    }

    /// Returns the basis of the rate.
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

    /// Returns the rate that the path carries; `None` during the search. For a sender that never had enough data for a
    /// train, the current rate counts as found.
    pub fn found(&self) -> Option<BitRate> {
        match self.phase {
            Phase::Search(train) => (train.starved >= STARVED_TRAINS).then(|| self.rate()),
            Phase::Cruise => Some(self.rate()),
            Phase::Probe { from, .. } => Some(BitRate((from * 8.0) as u64)),
        }
    }

    /// Returns the rate of a policer on the path, if enough losses show one.
    pub fn policed(&self) -> Option<BitRate> {
        self.capacity.policed(self.limit)
    }

    /// Repeats the train of a search. A train in the middle of a copy is repeated only when the next one is due.
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

    /// Restarts the train after its lane had no data for a moment, at most [`TRAIN_PAUSES`] times.
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

    /// Returns the bytes per second to send.
    fn current(&self) -> f64 {
        // Beside competing flows the lower rate lets them grow. A given rate that the path carries is not lowered for
        // them.
        let is_draining = if self.is_beside_others() { self.yields() } else { self.queue.rounds >= QUEUED_ROUNDS };
        let limit = if is_draining && matches!(self.phase, Phase::Cruise) { self.limit * DRAIN } else { self.limit };
        limit.min(self.ceiling()).max(self.floor())
    }

    fn floor(&self) -> f64 {
        let minimum = self.contract.minimum.map_or(0.0, bytes_per_second) * self.fraction;
        let packets = (PACKETS_LEAST * self.packet_bytes as f64).min(self.ceiling());
        minimum.max(packets).max(bytes_per_second(RATE_LEAST))
    }

    /// Enters a phase. Evidence from before does not count for its rate.
    fn begin(&mut self, phase: Phase) {
        self.phase = phase;
        self.epoch += 1;
        (self.round, self.standing) = (Round::new(), Losses::default());
        self.queue = QueueMonitor::default();
    }

    /// Starts a search: near the remembered rate, or from the beginning.
    fn search(&mut self) {
        // Reason: a search from below the start rate of an unknown path only takes longer.
        let remembered = self.contract.remembered.filter(|rate| *rate >= START_RATE).map(bytes_per_second);
        if remembered.is_some_and(|rate| rate * REMEMBERED_START >= self.ceiling()) {
            // Nothing can be found above the ceiling, and a train beside other lanes would exceed it.
            (self.limit, self.capacity.carried) = (self.ceiling(), f64::INFINITY);
            return self.begin(Phase::Cruise);
        }
        self.limit = remembered.map_or(bytes_per_second(START_RATE), |rate| rate * REMEMBERED_START);
        self.start_train(remembered.map_or(bytes_per_second(TRAIN_FIRST), |rate| rate * REMEMBERED_TRAIN), 0.0);
    }

    /// Starts a train of the next packets at `pace`; the path carries at least `proven` bytes/s.
    fn start_train(&mut self, pace: f64, proven: f64) {
        self.begin(Phase::Search(Train::new(pace.min(self.ceiling()), self.packet_bytes, proven)));
    }

    /// Updates the arrival rate of the train, and judges the train when all of it is acknowledged or lost. `whole`:
    /// traffic of all lanes meanwhile, as a multiple of the train.
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

    /// Table of trains: the action for each verdict.
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
                // After several stalls the train may have met another outage, or a path that carries far less. Halving
                // the rate of the next such train limits their number.
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

    /// Returns the shortest length of a round: the result of a probe is a difference of few per cent.
    fn round_min(&self) -> Duration {
        if matches!(self.phase, Phase::Probe { .. }) { PROBE_ROUND_MIN } else { ROUND_MIN }
    }

    /// Judges the round that is over, acts on the verdict, and starts the next round.
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

    /// Table of rounds: the action for each verdict in each phase.
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
            // Either nothing is known yet, or no action is needed.
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

    /// Returns the evidence of the round that is over.
    fn evidence(&self, now: Instant) -> Evidence {
        let (arrived, current) = (self.arrived(), self.current());
        Evidence {
            fairness: self.contract.fairness,
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
        // Part of the rate that has not arrived: the queue that the probe adds in each second, and its losses.
        let heard_for = now.saturating_duration_since(since).saturating_sub(rtt_before).max(ROUND_MIN);
        let delay = self.round.rtt_late().unwrap_or(rtt_before).saturating_sub(rtt_before);
        let queued = delay.as_secs_f64() / heard_for.as_secs_f64();
        let lost = (self.round.losses.fraction() - loss_before).max(0.0);
        Some(ProbeEvidence {
            // Above the known capacity a probe must deliver more than that capacity.
            known: if carried < tried { from.max(carried) } else { from },
            tried,
            arrived,
            is_explained: self.is_beside_others() || (queued + lost) * tried >= (tried - arrived) * EXPLAINED,
            is_long: self.round.before() + 1 >= PROBE_ROUNDS,
            is_short: tried > carried && self.capacity.by_loss && !is_proven,
        })
    }

    /// Returns true if the rate was not used. Either the lanes ran out of data in a probe, or this host sends so far
    /// below the rate that a higher one would change nothing.
    fn is_unused(&self) -> bool {
        let is_late = self.queue.rounds == 0 && self.round.sent() < self.current() * LATE;
        let is_dry = self.round.app_limited && matches!(self.phase, Phase::Probe { .. });
        is_late || is_dry
    }

    /// Raises the rate towards our part beside competing flows. Losses that these flows cause do not lower our part.
    fn take_our_part(&mut self) {
        self.limit = self.our_part().min(self.limit * (1.0 + STEP_MAX));
        self.begin(Phase::Cruise);
    }

    /// Returns the effect that a cut for loss had on the loss.
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
            QueueMonitor { rounds: self.queue.rounds + 1, since: self.queue.since.or(Some(now)) }
        } else {
            QueueMonitor::default()
        };
        // Packets that piled up during a host stall show little about the path.
        if !self.round.has_resumed() {
            let (sent, came) = (self.current(), self.arrived());
            let (losses, length) = (self.round.losses, self.round.length());
            self.neighbours.look(now, Look { is_queueing, sent, came, losses, length });
        }
    }

    /// Returns true if competing flows keep a queue full, and this sender takes its share beside them.
    fn is_beside_others(&self) -> bool {
        self.contract.fairness == Fairness::Fair && self.neighbours.are_queueing()
    }

    /// Returns the lower bound of the limit beside competing flows; 0 without them. The send rate is [`DRAIN`] of the
    /// limit.
    fn our_part(&self) -> f64 {
        let part = || (self.neighbours.our_part(self.packet_bytes) / DRAIN).min(self.ceiling());
        if self.is_beside_others() { part() } else { 0.0 }
    }

    /// Returns true if a queue has persisted for longer than a host stall.
    fn queue_stands(&self, now: Instant) -> bool {
        let stood = self.queue.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.queue.rounds >= 2 && (stood >= QUEUE_STANDS || self.contract.fairness == Fairness::Scavenger)
    }

    /// Returns true if a queue existed during the whole round.
    fn is_queueing(&self) -> bool {
        let base = self.rtt.empty.value().unwrap_or(self.rtt_min());
        let delay = self.round.rtt_min.saturating_sub(base);
        let (least, part) = match self.contract.fairness {
            Fairness::Fair => (QUEUE_MIN, base / 4),
            Fairness::Scavenger => (POLITE_QUEUE_MIN, base / 16),
        };
        !self.round.app_limited && delay > part.max(least)
    }

    /// Returns the delivery rate in bytes/s as if this host had sent all the time: a late host sends below its rate.
    /// With a queue there is no such correction, because packets then wait for the window, and so for the path.
    fn arrived(&self) -> f64 {
        let lateness = if self.queue.rounds == 0 { self.current() / self.round.sent() } else { 1.0 };
        self.round.delivered() * lateness.max(1.0)
    }

    fn handle_excess(&mut self, now: Instant) {
        let loss = self.standing.fraction();
        match self.trial {
            Some(trial) if trial.shows_noise(&self.standing) => {
                // The loss is the same as before: competing flows or a radio link cause it. The rate before the cut did
                // no harm.
                self.noise = Noise { fraction: loss * 1.3, since: Some(now) };
                (self.trial, self.limit) = (None, trial.from);
                self.steps.allow();
                self.begin(Phase::Cruise);
            }
            // The first cut has changed little: one more cut shows whether it helps, and each costs two round trips.
            Some(trial) if trial.cuts >= 2 || trial.hardly_helps(loss) => self.cut(now, TRIAL_CUT),
            Some(_) => self.cut(now, SECOND_CUT),
            None => self.cut(now, FIRST_CUT),
        }
    }

    /// Reduces the rate to `factor` of the delivered rate, at most to the rate before a probe. Packets in flight were
    /// sent at a higher rate, so they are no evidence about the new rate.
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
            // A stalled receiver looks like a queue that delivers almost nothing: it shows little about the path.
            limit = limit.max(self.current() * STALL_CUT);
        }
        // Competing flows take less at once, so such a loss may be an outage. A queue is not an outage: it is ours or
        // theirs.
        if !is_queued && carried < from * FALLEN_AT_ONCE {
            self.capacity.fallen_from = self.capacity.fallen_from.max(from);
        }
        self.fall_to(limit.min(self.current()), from);
        self.hold_longer(now, was_probing);
    }

    /// Reduces the rate from `from` to `limit`, but not below our part beside competing flows.
    fn fall_to(&mut self, limit: f64, from: f64) {
        self.limit = limit.max(self.our_part()).min(from).max(self.floor());
    }

    /// Records the delivered rate, since the send rate was too high. `has_lost`: packets were lost because of it.
    fn note_carried(&mut self, has_lost: bool) {
        self.capacity.note(self.round.delivered(), has_lost && self.queue.rounds == 0);
    }

    /// Starts a wait at the current rate before the next step up.
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

    /// Keeps the step of a passed probe, and takes the next step or sends a train.
    fn keep_step(&mut self, now: Instant) {
        // A host that sends below its rate has proven no more than it sends.
        let limit = self.current().min(self.round.sent() * UNUSED_MOST);
        self.limit = self.limit.min(limit);
        if limit > self.capacity.carried {
            self.capacity.carried = f64::INFINITY;
        }
        let is_open = self.capacity.carried.is_infinite();
        if is_open && limit < self.ceiling() && self.steps.size >= STEP_MAX && self.contract.fairness == Fairness::Fair
        {
            // The path carries far more than before. Trains find the new rate in a few round trips, but build a queue.
            (self.limit, self.steps) = (limit, Steps::new());
            return self.start_train(limit * REMEMBERED_TRAIN, limit);
        }
        self.steps.pass(is_open);
        self.phase = Phase::Cruise;
        self.rise(now);
    }

    /// Takes a step up, if one is due.
    fn rise(&mut self, now: Instant) {
        let (ceiling, carried) = (self.ceiling(), self.capacity.carried);
        if self.limit >= ceiling {
            return self.steps.allow();
        }
        if !self.steps.is_due(now) {
            return;
        }
        let fallen_from = self.capacity.fallen_from;
        if self.limit < fallen_from * FALLEN && self.contract.fairness == Fairness::Fair {
            // An outage loses as much as a path that has become slower, and ends at once; a train shows the difference.
            return self.start_train(fallen_from, self.limit);
        }
        let next = if carried.is_infinite() {
            self.limit * (1.0 + self.steps.size)
        } else if self.limit < carried * FIRST_CUT * 0.999 {
            // Back to the rate that the path is known to carry; above it only by the smallest step.
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

/// Size of a full packet on the wire, until path MTU discovery finds another.
const PACKET_BYTES: u64 = 1280;

/// Rate of a lane without a target after its first train. Guess: any path of today carries it for one round trip.
const START_RATE: BitRate = BitRate::megabits(1);

/// Pace of the first train: it has 200 kB.
const TRAIN_FIRST: BitRate = BitRate::megabits(50);
/// Ratio of the paces of two successive trains. Reason: the fourth train is above 10 Gbit/s.
const TRAIN_FACTOR: f64 = 8.0;

/// Part of a given rate from which on that rate was the limit. Reason: a rate below it was found, and is the path's.
const AT_BOUND: f64 = 0.9;

/// Part of a remembered rate that is sent until the first train is back.
const REMEMBERED_START: f64 = 0.8;
/// Pace of the first train, as a multiple of a remembered rate. Reason: only a train faster than the whole path shows
/// the capacity that other flows have taken meanwhile. Its queue lasts 64 ms at most.
const REMEMBERED_TRAIN: f64 = 2.0;

/// Part of the rate that is left when the receiving host drops packets. Guess: a host does other work in turns, and one
/// turn costs a tenth.
const OVERRUN_CUT: f64 = 0.9;
/// Longest delay of the receiver's reports of dropped packets.
const OVERRUN_REPORTED: Duration = Duration::from_millis(250);

/// Part of a train after which it counts as whole, even if its lane had no data afterwards.
const WHOLE_TRAIN: f64 = 0.8;

/// Trains with too little data after which the search counts as over. Reason: the source may still be opening during
/// the first train.
const STARVED_TRAINS: u32 = 3;

/// Packets in a round, for each lane. Reason: with fewer, chance has more effect than the path.
pub(super) const ROUND_PACKETS_MIN: u64 = 64;

/// Packets of all lanes that end a round longer than [`ROUND_LONG`]. Reason: a slow path returns little evidence, and
/// the controller must not wait for more.
const ROUND_PACKETS_LONG: u64 = 24;
const ROUND_LONG: Duration = Duration::from_millis(600);

/// Shortest round. Reason: in shorter ones, batches of acknowledgements blur the rates.
const ROUND_MIN: Duration = Duration::from_millis(20);
/// Shortest round of a probe. Reason: half a step must exceed the error of one batch of 25 ms.
const PROBE_ROUND_MIN: Duration = Duration::from_millis(100);

/// RTT assumed before the first sample (RFC 9002, section 6.2.2).
const RTT_UNKNOWN: Duration = Duration::from_millis(333);

/// Factors on the delivered rate at the first, second and third cut in a row. The third cut is a trial: a loss that
/// stays the same at three quarters of the rate is not caused by our rate.
const FIRST_CUT: f64 = 0.97;
const SECOND_CUT: f64 = 0.9;
const TRIAL_CUT: f64 = 0.75;

/// Packets after a cut from which its loss can count as gone.
const CURE_PACKETS: f64 = 150.0;
/// Packets after a cut from which its loss can count as unchanged.
const USELESS_PACKETS: f64 = 800.0;

/// Time after a cut from which fewer packets are enough. Reason: at low rates [`CURE_PACKETS`] take minutes. A token
/// bucket that has filled up can hide a policer for as long.
const CURE_LONG: Duration = Duration::from_secs(2);
/// Losses expected at the old loss rate, after which these fewer packets are enough.
const CURE_LOSSES: f64 = 6.0;

/// Factor on the delivered rate when a queue persists: the missing 10 % drain it.
const QUEUE_CUT: f64 = 0.9;

/// Part of the send rate before an outage below which a train tests whether the path carries that rate again. Guess.
const FALLEN: f64 = 0.25;
/// Part of the send rate that arrives at most in an outage. Guess.
const FALLEN_AT_ONCE: f64 = 0.5;
/// Factor on the rate before an outage, after a train that showed nothing: the next train tests less. Guess.
const FALLEN_AGAIN: f64 = 0.5;

/// Smallest part of the rate after one cut for a queue. A path that has become much slower takes several cuts.
const STALL_CUT: f64 = 0.5;

/// Smallest delay above the minimum RTT that counts as a queue. Reason: busy hosts delay by some milliseconds without a
/// queue.
const QUEUE_MIN: Duration = Duration::from_millis(25);
/// The same in scavenger mode, which yields to any queue. Reason: the jitter of an idle host is smaller.
const POLITE_QUEUE_MIN: Duration = Duration::from_millis(8);

/// Time for which a smallest RTT is valid for windows and rounds. They must follow a path that becomes longer. Guess.
const RTT_KEPT: Duration = Duration::from_secs(30);
/// Time for which a smallest RTT is valid as that of an empty queue. Reason: queues of competing flows persist for
/// minutes (RFC 6817 uses ten). Guess.
const RTT_EMPTY_KEPT: Duration = Duration::from_secs(300);

/// Time for which a queue must persist before the rate is cut. Guess: busy hosts, and software routers, stall for less.
const QUEUE_STANDS: Duration = Duration::from_millis(200);

/// Part of the rate below which something else than the rate limits this host. Guess.
const LATE: f64 = 0.7;

/// Highest rate, as a multiple of the actual send rate. Reason: a host that was busy for a moment may go on at this
/// rate afterwards without a flood.
const UNUSED_MOST: f64 = 1.25;

/// Part of the rate that is sent while a queue persists but nothing was cut. Guess.
const DRAIN: f64 = 0.95;

/// Time for which a rate above the known capacity must be delivered to be proven. Reason: 5 % above 30 Mbit/s empty a
/// token bucket of 64 KiB in 0.4 s.
const PROOF: Duration = Duration::from_secs(1);
/// Rounds for which such a rate must be delivered too.
const PROOF_ROUNDS: u32 = 3;

/// Part of a probe's missing rate that a queue and losses must explain for the probe to fail.
const EXPLAINED: f64 = 0.5;
/// Rounds after which a queue or losses would show. Reason: 5 % too much build a queue of 20 ms in four rounds of 100
/// ms, which is above any jitter.
const PROBE_ROUNDS: u32 = 4;

/// Losses that are likely to be noise if a first cut does not change them. Reason: below, a rate that is slightly too
/// high loses as much. Above, outages are more common than such links.
const LIKELY_NOISE: Range<f64> = 0.03..0.1;

/// Highest loss that may count as noise.
const NOISE_MAX: f64 = 0.3;

/// Time for which loss above the ceiling counts as noise; then new evidence is needed.
const NOISE_KEPT: Duration = Duration::from_secs(60);

/// Lowest packet rate, in packets a second. Reason: a round of large packets must not take longer than a round of small
/// ones at [`RATE_LEAST`].
const PACKETS_LEAST: f64 = 6.0;

/// Shortest time without acknowledgements, with packets in flight, that counts as an outage.
const SILENCE_MIN: Duration = Duration::from_millis(300);

/// Time without acknowledgements that counts as a gap: twice the longest acknowledgement delay of QUIC (RFC 9000, 25
/// ms).
const ACK_GAP: Duration = Duration::from_millis(50);

/// Smallest window, in packets: some batches of acknowledgements.
const WINDOW_PACKETS_MIN: u64 = 64;

/// Time by which acknowledgements may be late because they come in batches, or because a host is busy.
const ACK_BATCH_TIME: Duration = Duration::from_millis(30);
