//! Reading settings from a URL or a command line, the same for every store.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::{Error, Result};

/// Reads a duration: `250ms`, `5s`, `10m`, `2h` or `1d`, and never zero. `name` is what the error calls it.
///
/// # Errors
/// [`InvalidInput`](crate::ErrorKind::InvalidInput) for anything else.
pub fn duration(name: &str, text: &str) -> Result<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let ms_per_unit: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => 0,
    };
    let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(ms_per_unit));
    match ms {
        Some(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
        _ => {
            Err(Error::invalid(format!("`{name}` is a duration like `250ms`, `5s`, `10m`, `2h` or `1d`, not `{text}`")))
        }
    }
}

/// Checks the bounds of a duration.
///
/// # Errors
/// [`InvalidInput`](crate::ErrorKind::InvalidInput), with the bounds.
pub fn within(name: &str, value: Duration, bounds: RangeInclusive<Duration>) -> Result<()> {
    if bounds.contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("`{name}` is {:?} to {:?}, not {value:?}", bounds.start(), bounds.end())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn durations_have_a_unit_and_are_not_zero() {
        for (text, ms) in [("250ms", 250), ("5s", 5_000), ("10m", 600_000), ("2h", 7_200_000), ("1d", 86_400_000)] {
            assert_eq!(duration("ttl", text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for text in ["", "5", "s", "0s", "-1s", "1.5s", "5 s", "5S", "99999999999999999999d", "9223372036854775807d"] {
            let error = duration("ttl", text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
            assert!(error.to_string().contains("`ttl`"), "{error}");
        }
    }

    #[test]
    fn bounds_include_their_ends() {
        let (least, most) = (Duration::from_secs(1), Duration::from_secs(60));
        assert!(within("timeout", least, least..=most).is_ok() && within("timeout", most, least..=most).is_ok());
        let error = within("timeout", most * 2, least..=most).unwrap_err();
        assert_eq!(error.to_string(), "`timeout` is 1s to 60s, not 120s");
    }
}
