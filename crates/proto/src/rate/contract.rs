//! Requirements of the operator on the rate of a path.

use std::time::Duration;

use crate::BitRate;

/// Lowest send rate, and lower bound of a ceiling or a target. Reason: a path never stops completely, since only
/// packets that are sent can show that it works again. Below this rate one packet takes a fifth of a second.
pub const RATE_LEAST: BitRate = BitRate(64_000);

/// Requirements of the operator on a path, and knowledge about it before the first packet. Rates are bits per second on
/// the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateContract {
    /// Upper bound of the send rate; `None`: up to the capacity of the path.
    pub ceiling: Option<BitRate>,
    /// Lower bound of the send rate at any loss: capacity that is reserved for this session. At most the ceiling.
    pub minimum: Option<BitRate>,
    /// Rate from the first packet on, without a search; at most the ceiling. `None`: packet trains find the rate.
    pub target: Option<BitRate>,
    /// Rate that an earlier session found: the search begins near it.
    pub remembered: Option<BitRate>,
    /// Loss that counts as noise, in parts per million of packets; below one half.
    pub loss_ceiling_ppm: u32,
    /// Behaviour towards competing flows.
    pub fairness: Fairness,
    /// Round-trip time, if it is known from before; the handshake corrects it.
    pub expected_rtt: Option<Duration>,
}

/// Behaviour of a path's lanes towards competing flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fairness {
    /// Takes its share.
    #[default]
    Fair,
    /// Scavenger mode: takes only unused capacity, and yields to any queue and any loss.
    Scavenger,
}

impl RateContract {
    /// Returns the expected capacity of a path on the wire: the target, or `remembered`; `None` until it is found.
    pub fn expected(&self, remembered: Option<BitRate>) -> Option<BitRate> {
        let rate = self.target.or(remembered)?;
        Some(self.ceiling.map_or(rate, |ceiling| rate.min(ceiling)))
    }

    /// Returns a contract with a given rate: used in full from the first packet, and never exceeded. `None`: the rate
    /// is found.
    pub fn of_rate(rate: Option<BitRate>) -> Self {
        Self { ceiling: rate, target: rate, ..Self::default() }
    }

    /// Returns the loss that counts as noise, as a fraction of packets.
    pub(super) fn loss_ceiling(&self) -> f64 {
        f64::from(self.loss_ceiling_ppm) / 1e6
    }
}

impl Default for RateContract {
    fn default() -> Self {
        Self {
            ceiling: None,
            minimum: None,
            target: None,
            remembered: None,
            loss_ceiling_ppm: LOSS_CEILING_PPM,
            fairness: Fairness::Fair,
            expected_rtt: None,
        }
    }
}

/// Returns `rate` in bytes/s.
pub(super) fn bytes_per_second(rate: BitRate) -> f64 {
    rate.0 as f64 / 8.0
}

/// Default loss that counts as noise. Guess: the highest loss of radio links and bad optics that people still call
/// working.
const LOSS_CEILING_PPM: u32 = 20_000;
