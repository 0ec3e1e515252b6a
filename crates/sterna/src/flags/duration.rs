//! Values of flags that are times.

/// Form of a time.
const TIME_EXPECTED: &str = "expected a whole number and a unit (ms, s, min or h), such as 500ms, 30s, 10min or 2h";

/// Reads `90s`, `10min`, `2h` or `500ms`.
pub fn parse_time(text: &str) -> Result<std::time::Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(TIME_EXPECTED.to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| TIME_EXPECTED.to_owned())?;
    // A year: a larger number is a typing error.
    match number.checked_mul(millis) {
        Some(total) if total <= 366 * 24 * 3_600_000 => Ok(std::time::Duration::from_millis(total)),
        _ => Err("the maximum is 8784h (366 days)".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_whole_number_with_a_unit_and_the_error_names_the_units() {
        let millis = |text| parse_time(text).map(|time| time.as_millis());
        for (text, expected) in [("500ms", 500), ("30s", 30_000), ("10min", 600_000), ("2h", 7_200_000)] {
            assert_eq!(millis(text), Ok(expected));
        }
        for wrong in ["0.5s", "30", "s", "", "-1s", "1d", "1 s"] {
            let error = millis(wrong).unwrap_err();
            assert!(error.contains("whole number") && error.contains("ms, s, min or h"), "{wrong}: {error}");
        }
        assert_eq!(millis("9000h"), Err("the maximum is 8784h (366 days)".to_owned()));
    }
}
