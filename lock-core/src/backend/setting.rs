//! Reading settings from a URL or a command line, the same for every store.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::{Error, Result};

/// Reads a duration as the command line does: a number and a unit, `250ms`, `5s`, `10m`, `2h`, `1d` or `1h 30m`, and never zero. The
/// grammar is that of [`humantime`](https://docs.rs/humantime). `name` is what the error calls it.
///
/// # Errors
/// [`InvalidInput`](crate::ErrorKind::InvalidInput) for anything else.
pub fn duration(name: &str, text: &str) -> Result<Duration> {
    match humantime::parse_duration(text) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(Error::invalid(format!("`{name}` is a duration like `250ms`, `5s`, `10m` or `1h 30m`, not `{text}`"))),
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
        for (text, ms) in [("250ms", 250), ("5s", 5_000), ("10m", 600_000), ("2h", 7_200_000), ("1h 30m", 5_400_000)] {
            assert_eq!(duration("ttl", text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for text in ["", "5", "s", "0s", "-1s", "5S", "5 parsecs", "99999999999999999999d", "9223372036854775807d"] {
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
