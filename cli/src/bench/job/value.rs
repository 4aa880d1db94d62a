//! Values as fio writes them: sizes, times, switches.

use std::time::Duration;

/// Bytes. A unit is a power of 1024, but for `kib`, `mib` and so on, which fio's default `kb_base` makes powers of 1000.
///
/// # Errors
/// What was expected.
pub fn size(text: &str) -> Result<u64, String> {
    let expected = || "expected a size such as 4096, 4k or 1m".to_owned();
    let text = text.trim().to_ascii_lowercase();
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(hex) => (hex, 16),
        None => (&*text, 10),
    };
    let split = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let (number, unit) = digits.split_at(split);
    let number = u64::from_str_radix(number, radix).map_err(|_| expected())?;
    let (letter, base) = match unit {
        "" | "b" => return Ok(number),
        unit => match (unit.split_at(1), unit.len()) {
            ((letter, "" | "b" | "i"), _) => (letter, 1024u64),
            ((letter, "ib"), _) => (letter, 1000),
            _ => return Err(expected()),
        },
    };
    let power = match letter {
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return Err(expected()),
    };
    let bytes = number.checked_mul(base.pow(power));
    bytes.filter(|&bytes| i64::try_from(bytes).is_ok()).ok_or_else(expected)
}

/// Bytes, or a part of what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Bytes(u64),
    Percent(u64),
}

/// # Errors
/// What was expected.
pub fn amount(text: &str) -> Result<Amount, String> {
    match text.trim().strip_suffix('%') {
        Some(percent) => {
            let percent = percent.parse().ok().filter(|percent| (1..=100).contains(percent));
            percent.map(Amount::Percent).ok_or_else(|| "expected a size, or 1% to 100%".into())
        }
        None => size(text).map(Amount::Bytes),
    }
}

/// Seconds without a unit.
///
/// # Errors
/// What was expected.
pub fn time(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time such as 10, 10s, 500ms or 1m".to_owned();
    let text = text.trim().to_ascii_lowercase();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| expected())?;
    let micros = match unit {
        "us" | "usec" => 1,
        "ms" | "msec" => 1_000,
        "" | "s" | "sec" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(expected()),
    };
    number.checked_mul(micros).map(Duration::from_micros).ok_or_else(expected)
}

/// `1`, `0`, or nothing, which is yes.
///
/// # Errors
/// What was expected.
pub fn switch(text: Option<&str>) -> Result<bool, String> {
    match text.map(str::trim) {
        None | Some("1" | "true") => Ok(true),
        Some("0" | "false") => Ok(false),
        _ => Err("expected 1 or 0".into()),
    }
}

/// A whole number within bounds.
///
/// # Errors
/// What was expected.
pub fn number(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let found = size(text).ok().filter(|number| (least..=most).contains(number));
    found.ok_or_else(|| match most {
        u64::MAX => format!("expected a number from {least} on"),
        _ => format!("expected a number from {least} to {most}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_fio() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4k", 4096),
            ("4K", 4096),
            ("4kb", 4096),
            ("4ki", 4096),
            ("4kib", 4000),
            ("1m", 1 << 20),
            ("2G", 2 << 30),
            ("0x1000", 4096),
            ("512b", 512),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "4x", "1.5k", "-4k", "4 k", "99999999p", "4kk"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert_eq!(amount("50%"), Ok(Amount::Percent(50)));
        assert!(amount("0%").is_err() && amount("101%").is_err());
    }

    #[test]
    fn a_time_without_a_unit_is_in_seconds() {
        for (text, ms) in [("10", 10_000), ("10s", 10_000), ("1m", 60_000), ("500ms", 500)] {
            assert_eq!(time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert!(time("10x").is_err() && time("").is_err());
    }

    #[test]
    fn a_switch_needs_no_value() {
        assert_eq!(
            (switch(None), switch(Some("0")), switch(Some("1"))),
            (Ok(true), Ok(false), Ok(true))
        );
        assert!(switch(Some("yes")).is_err());
    }
}
