//! Reads amounts as people write them: `3GiB`, `512MiB`, `30m`, `1h`.

use std::time::Duration;

/// The text is not an amount of the wanted unit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not a size.
    #[error(
        "\"{0}\" is not a size: write a whole number and B, KiB, MiB, GiB or TiB, as in \"512MiB\""
    )]
    Size(String),
    /// Not a duration.
    #[error("\"{0}\" is not a duration: write a whole number and s, m or h, as in \"30m\"")]
    Duration(String),
}

/// Bytes in a size such as `512MiB`.
pub fn bytes(text: &str) -> Result<u64, QuantityError> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("B", 0)];
    units
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))
        .and_then(|(number, shift)| whole(number)?.checked_mul(1 << shift))
        .ok_or_else(|| QuantityError::Size(text.to_owned()))
}

/// The duration in a text such as `30m`.
pub fn duration(text: &str) -> Result<Duration, QuantityError> {
    let units = [("s", 1), ("m", 60), ("h", 3600)];
    units
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))
        .and_then(|(number, seconds)| whole(number)?.checked_mul(*seconds))
        .map(Duration::from_secs)
        .ok_or_else(|| QuantityError::Duration(text.to_owned()))
}

/// A positive whole number of digits alone.
fn whole(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|&n| n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        assert_eq!(bytes("3GiB"), Ok(3 << 30));
        assert_eq!(bytes("100B"), Ok(100));
        assert_eq!(duration("30m"), Ok(Duration::from_secs(1800)));
        for text in ["", "GiB", "3GB", "-1MiB", "1.5GiB", "0MiB", "99999999999TiB", "3"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        for text in ["", "m", "5", "0s", "1d", "1.5h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
