//! Sizes and durations as people write them: `4k`, `256M`, `1.5G`; `4 KiB`, `1.2 ms`.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Bytes from a number with an optional unit k, M, G or T (powers of 1024; `KiB` and `KB` mean the
/// same).
///
/// # Errors
/// The expected form; the caller adds the field and the value.
pub fn parse(text: &str) -> Result<u64, String> {
    let expected =
        || "expected a positive size such as 4096, 4k, 256M or 1G (units of 1024)".to_owned();
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(expected()),
    };
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(1 << shift),
        Err(_) => {
            let value = number.parse::<f64>().map_err(|_| expected())? * (1u64 << shift) as f64;
            (value.fract() == 0.0 && value < i64::MAX as f64).then_some(value as u64)
        }
    };
    bytes.filter(|&b| b > 0 && i64::try_from(b).is_ok()).ok_or_else(expected)
}

/// A time from a number with an optional unit ms, s, m or h; seconds without one.
///
/// # Errors
/// The expected form; the caller adds the field and the value.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time such as 500ms, 1s, 0.5 or 2m".to_owned();
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit.trim_start() {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(expected()),
    };
    let number: f64 = number.parse().map_err(|_| expected())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| expected())
}

/// A parser of whole numbers in this range. A range to `u64::MAX` has no upper bound.
pub fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| {
        let number = text.trim().parse().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| match (range.start(), range.end()) {
            (least, &u64::MAX) => format!("expected a whole number from {least} on"),
            (least, most) => format!("expected a whole number from {least} to {most}"),
        })
    }
}

/// `4k`, `256M`: the exact size in the form that [`parse`] reads, with a unit if one divides it.
pub fn short(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "k")];
    match units.iter().find(|(shift, _)| bytes >= 1 << shift && bytes.is_multiple_of(1 << shift)) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// A size with three digits, such as `3.90 GiB`.
pub fn long(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1000.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{} {unit}", digits(value)) }
}

/// A time with its unit: `870 ns`, `4.21 µs`, `1.30 ms`, `2.05 s`.
pub fn nanoseconds(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} µs", digits(ns as f64 / 1e3)),
        1_000_000..1_000_000_000 => format!("{} ms", digits(ns as f64 / 1e6)),
        _ => format!("{} s", digits(ns as f64 / 1e9)),
    }
}

/// Operations per second: `85`, `4.21k`, `812k`, `1.30M`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        r if r < 999.5 => format!("{r:.0}"),
        r if r < 999_500.0 => format!("{}k", digits(r / 1e3)),
        r => format!("{}M", digits(r / 1e6)),
    }
}

/// Three digits, and more from 1,000 on; never an exponent.
pub fn digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// The word for this number of things: `round`, `rounds`.
pub fn plural(count: u64, one: &str) -> String {
    if count == 1 { one.to_owned() } else { format!("{one}s") }
}

/// The digits in groups of three, such as `12,345,678`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_in_the_singular() {
        let words = [0, 1, 2].map(|count| plural(count, "round"));
        assert_eq!(words, ["rounds", "round", "rounds"]);
    }

    #[test]
    fn whole_numbers_are_those_of_their_range() {
        let on = whole::<u32>(1..=u64::MAX);
        assert_eq!((on("1"), on(" 7 ")), (Ok(1), Ok(7)));
        for text in ["0", "-1", "1e99", "foo", "", "4294967296"] {
            assert_eq!(on(text).unwrap_err(), "expected a whole number from 1 on", "{text}");
        }
        let expected = "expected a whole number from 0 to 8";
        assert_eq!(whole::<u8>(0..=8)("9").unwrap_err(), expected);
    }

    #[test]
    fn sizes_are_read_with_and_without_units() {
        let cases = [
            ("1", 1),
            ("4096", 4096),
            ("4k", 4096),
            ("4K", 4096),
            ("16 KiB", 16 << 10),
            ("256M", 256 << 20),
            ("1G", 1 << 30),
            ("1.5G", 3 << 29),
            ("0.5k", 512),
            ("2TB", 2 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn times_are_read_with_and_without_units() {
        let cases = [("1", 1000), ("0.5", 500), ("250ms", 250), ("2s", 2000), ("1 m", 60_000)];
        for (text, ms) in cases {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-1", "1x", "1..2", "NaN", "1e3", "9999999999999999999999h"] {
            let error = parse_duration(text).expect_err(text);
            assert!(error.contains("expected a time such as"), "{error}");
        }
    }

    #[test]
    fn refused_sizes_get_what_was_expected() {
        for text in
            ["", "k", "0", "-1", "4x", "1.0001k", "1..2k", "9999999999T", "1e9", "NaN", "4k4"]
        {
            let error = parse(text).expect_err(text);
            assert!(error.contains("expected a positive size such as"), "{error}");
        }
    }

    #[test]
    fn short_form_reads_back() {
        for bytes in [1, 512, 1000, 1024, 1536, 4096, 256 << 20, 1 << 30, (1 << 30) + 1, 3 << 40] {
            assert_eq!(parse(&short(bytes)), Ok(bytes));
        }
        assert_eq!(short(16384), "16k");
    }

    #[test]
    fn people_get_three_digits() {
        assert_eq!(long(999), "999 B");
        assert_eq!(long(4096), "4.00 KiB");
        assert_eq!(long(24_684_096 << 10), "23.5 GiB");
        assert_eq!(nanoseconds(870), "870 ns");
        assert_eq!(nanoseconds(4_210), "4.21 µs");
        assert_eq!(nanoseconds(13_000_000), "13.0 ms");
        assert_eq!(nanoseconds(2_050_000_000), "2.05 s");
        assert_eq!(rate(85.4), "85");
        assert_eq!(rate(4_213.0), "4.21k");
        assert_eq!(rate(811_600.0), "812k");
        assert_eq!(rate(999_900.0), "1.00M");
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(123), "123");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}
