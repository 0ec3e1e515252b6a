//! What the operator says about the rate of a path.

use std::time::Duration;

use crate::BitRate;

/// The least that is ever sent, and the least that a ceiling or target may be. Reason: a path never stops for good, and what is
/// sent tells whether it has come back; below it a packet takes a fifth of a second.
pub const RATE_LEAST: BitRate = BitRate(64_000);

/// What the operator asks of a path, and what is known of it before the first packet. Rates are bits per second on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateContract {
    /// Never more than this; `None`: as much as the path carries.
    pub ceiling: Option<BitRate>,
    /// Never yields below this, whatever the path loses: it is ours. At most the ceiling.
    pub minimum: Option<BitRate>,
    /// Sent from the first packet on, without a search; at most the ceiling. `None`: the rate is found by trains.
    pub target: Option<BitRate>,
    /// What an earlier session found: the search begins near it.
    pub remembered: Option<BitRate>,
    /// Loss that is noise, in parts per million of packets; below a half.
    pub loss_ceiling_ppm: u32,
    /// How it treats the flows beside it.
    pub manner: Manner,
    /// Round-trip time if it is known from before; the handshake corrects it.
    pub expected_rtt: Option<Duration>,
}

/// How a path's lanes treat the flows beside them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// Takes its part.
    #[default]
    Fair,
    /// Takes what the others leave: yields to any queue and any loss.
    Polite,
}

impl RateContract {
    /// What a path is expected to carry on the wire: given, or `remembered` of it; `None`: that is to be found out.
    pub fn expected(&self, remembered: Option<BitRate>) -> Option<BitRate> {
        let rate = self.target.or(remembered)?;
        Some(self.ceiling.map_or(rate, |ceiling| rate.min(ceiling)))
    }

    /// A path whose rate is given: used in full from the first packet, and never exceeded. Without a rate it is found.
    pub fn of_rate(rate: Option<BitRate>) -> Self {
        Self { ceiling: rate, target: rate, ..Self::default() }
    }

    /// Loss that is noise, as a fraction of packets.
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
            manner: Manner::Fair,
            expected_rtt: None,
        }
    }
}

/// Bytes/s of a rate.
pub(super) fn bytes_per_second(rate: BitRate) -> f64 {
    rate.0 as f64 / 8.0
}

/// Default loss that is noise. Guess: what radio links and bad optics lose at worst while people still call them working.
const LOSS_CEILING_PPM: u32 = 20_000;
