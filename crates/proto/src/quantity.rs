//! Quantities with their unit in the type (bytes, bits per second), and their format for people.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;
use std::time::Duration;

/// Amount of data in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteCount(pub u64);

/// Data rate in bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(pub u64);

impl ByteCount {
    /// Largest amount.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns `count` mebibytes (2^20 bytes).
    pub const fn mebibytes(count: u64) -> Self {
        Self(count << 20)
    }
}

impl BitRate {
    /// Returns `count` Mbit/s (10^6 bit/s).
    pub const fn megabits(count: u64) -> Self {
        Self(count * 1_000_000)
    }

    /// Returns the rate in whole bytes per second, rounded down.
    pub const fn bytes_per_second(self) -> u64 {
        self.0 / 8
    }

    /// Returns the rate of `bytes` bytes per second; saturates.
    pub const fn from_bytes_per_second(bytes: u64) -> Self {
        Self(bytes.saturating_mul(8))
    }

    /// Returns the mean rate of `bytes` in `elapsed`; zero if no time has passed.
    pub fn mean(bytes: ByteCount, elapsed: Duration) -> Self {
        if elapsed.is_zero() {
            return Self(0);
        }
        Self((bytes.0 as f64 * 8.0 / elapsed.as_secs_f64()) as u64)
    }

    /// Returns the sum of several rates; `None` if one of them is unknown. Saturates.
    pub fn sum(rates: impl Iterator<Item = Option<Self>>) -> Option<Self> {
        let mut total = Self(0);
        for rate in rates {
            total.0 = total.0.saturating_add(rate?.0);
        }
        Some(total)
    }

    /// Returns the time to put `bytes` on a wire of this rate; saturates at `Duration::MAX`, as for a rate of zero.
    pub fn time_for(self, bytes: ByteCount) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        let nanos = u128::from(bytes.0) * 8 * 1_000_000_000 / u128::from(self.0);
        u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
    }

    /// Returns the bytes that pass at this rate in `elapsed`, rounded down; saturates.
    pub fn bytes_in(self, elapsed: Duration) -> ByteCount {
        let bytes = u128::from(self.0).saturating_mul(elapsed.as_nanos()) / 8_000_000_000;
        ByteCount(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

/// Returns the window that keeps a path of rate `rate` and round-trip time `rtt` full.
///
/// Units: bytes, rounded up; saturates at `ByteCount::MAX`. Source: bandwidth-delay product, RFC 7323. Example: 10
/// Gbit/s over 180 ms needs 225 MB.
pub fn bandwidth_delay_product(rate: BitRate, rtt: Duration) -> ByteCount {
    let bytes = u128::from(rate.0).saturating_mul(rtt.as_nanos()).div_ceil(8_000_000_000);
    ByteCount(u64::try_from(bytes).unwrap_or(u64::MAX))
}

impl Add for ByteCount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for ByteCount {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for ByteCount {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Sum for ByteCount {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self(0), Add::add)
    }
}

/// Writes three significant digits with a decimal prefix, as in `225 MB` or `48.1 Mbit/s`.
fn write_decimal(f: &mut fmt::Formatter<'_>, value: u64, unit: &str) -> fmt::Result {
    const PREFIXES: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let mut scaled = value as f64;
    let mut prefix = 0;
    // 999.5 would appear as 1000 with three digits: the next prefix is used from there.
    while scaled >= 999.5 && prefix + 1 < PREFIXES.len() {
        scaled /= 1000.0;
        prefix += 1;
    }
    let decimals = match (prefix, scaled) {
        (0, _) => 0,
        (_, s) if s < 9.995 => 2,
        (_, s) if s < 99.95 => 1,
        _ => 0,
    };
    f.pad(&format!("{scaled:.decimals$} {}{unit}", PREFIXES[prefix]))
}

/// Returns a time for people, two or three digits with a suitable unit: `10 µs`, `1.5 ms`, `660 ms`, `12 s`, `3 h`, `20
/// d`.
pub fn readable_time(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    // 999.5 would appear as 1000: the next unit is used from there.
    let (value, unit) = match micros {
        m if m < 999.5 => (m, "µs"),
        m if m < 999_500.0 => (m / 1e3, "ms"),
        m if m < 120e6 => (m / 1e6, "s"),
        m if m < 7200e6 => (m / 60e6, "min"),
        m if m < 172_800e6 => (m / 3600e6, "h"),
        m => (m / 86_400e6, "d"),
    };
    if value < 9.95 {
        let digits = format!("{value:.1}");
        return format!("{} {unit}", digits.strip_suffix(".0").unwrap_or(&digits));
    }
    format!("{value:.0} {unit}")
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, self.0, "B")
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, self.0, "bit/s")
    }
}

/// Error of a quantity that cannot be read; the text contains the input and the accepted format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseQuantityError(String);

impl fmt::Display for ParseQuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseQuantityError {}

/// Splits `text` into a number and its unit, and multiplies them.
fn parse_scaled(text: &str, units: &[(&str, u64)], expected: &str) -> Result<u64, ParseQuantityError> {
    let wrong = || ParseQuantityError(format!("\"{text}\" is not {expected}"));
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix("/s").unwrap_or(&unit);
    let scale = units.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.len() > 9 {
        return Err(wrong());
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| wrong())? };
    let mut value = whole.checked_mul(scale).ok_or_else(wrong)?;
    if !fraction.is_empty() {
        let digits: u64 = fraction.parse().map_err(|_| wrong())?;
        let tail = u128::from(digits) * u128::from(scale) / 10u128.pow(fraction.len() as u32);
        value = value.checked_add(u64::try_from(tail).map_err(|_| wrong())?).ok_or_else(wrong)?;
    }
    Ok(value)
}

const GIGA: u64 = 1_000_000_000;

impl FromStr for BitRate {
    type Err = ParseQuantityError;

    /// Reads `50Mbit`, `1.5 Gbit/s`, `800kbit`, `9600bit`: decimal prefixes, bits, never bytes.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let units =
            [("bit", 1), ("kbit", 1000), ("mbit", 1_000_000), ("gbit", GIGA), ("tbit", GIGA * 1000), ("bps", 1)];
        let rate = parse_scaled(text, &units, "a rate: expected a number and a unit of bits, such as 50Mbit or 1Gbit")?;
        if rate == 0 {
            return Err(ParseQuantityError(format!("\"{text}\" is a rate of zero: nothing would ever be sent")));
        }
        Ok(Self(rate))
    }
}

impl FromStr for ByteCount {
    type Err = ParseQuantityError;

    /// Reads `4096`, `64KiB`, `512MiB`, `1.5GB`: decimal for kB, MB, GB, TB, binary for KiB, MiB, GiB, TiB.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let units = [
            ("", 1),
            ("b", 1),
            ("kb", 1000),
            ("mb", 1_000_000),
            ("gb", GIGA),
            ("tb", GIGA * 1000),
            ("kib", 1 << 10),
            ("mib", 1 << 20),
            ("gib", 1 << 30),
            ("tib", 1 << 40),
        ];
        parse_scaled(text, &units, "a size such as 512MiB or 2GB").map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bdp_matches_the_textbook() {
        let bdp = bandwidth_delay_product(BitRate(10 * GIGA), Duration::from_millis(180));
        assert_eq!(bdp, ByteCount(225_000_000));
        assert_eq!(bandwidth_delay_product(BitRate(u64::MAX), Duration::from_secs(1 << 40)), ByteCount::MAX);
    }

    #[test]
    fn rates_and_sizes_read_and_show_as_people_write_them() {
        assert_eq!("50Mbit".parse(), Ok(BitRate(50_000_000)));
        assert_eq!("1.5 Gbit/s".parse(), Ok(BitRate(1_500_000_000)));
        assert_eq!("512MiB".parse(), Ok(ByteCount::mebibytes(512)));
        assert_eq!(".5GB".parse(), Ok(ByteCount(500_000_000)));
        assert_eq!(BitRate(48_120_000).to_string(), "48.1 Mbit/s");
        assert_eq!(ByteCount(225_000_000).to_string(), "225 MB");
        assert_eq!(ByteCount(999).to_string(), "999 B");
        assert_eq!(ByteCount(999_999).to_string(), "1.00 MB");
    }

    #[test]
    fn times_show_as_people_say_them() {
        for (nanos, said) in [
            (0, "0 µs"),
            (10_400, "10 µs"),
            (999_600, "1 ms"),
            (1_460_000, "1.5 ms"),
            (660_312_000, "660 ms"),
            (999_600_000, "1 s"),
            (12_400_000_000, "12 s"),
        ] {
            assert_eq!(readable_time(Duration::from_nanos(nanos)), said);
        }
    }

    #[test]
    fn wrong_quantities_name_what_was_given() {
        for text in ["", "fast", "50", "50MB", "-1Mbit", "1e9bit", "1.2.3Gbit", "0Mbit", "99999999999Tbit"] {
            let error = text.parse::<BitRate>().unwrap_err().to_string();
            assert!(error.contains(&format!("\"{text}\"")), "{error}");
        }
    }
}
