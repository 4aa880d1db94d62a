//! Axes: the position of a value, and the labels.

/// What an axis shows.
#[derive(Clone, Debug)]
pub struct Axis {
    pub name: String,
    pub unit: String,
    pub scale: Scale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Linear, from 0.
    Linear,
    /// Logarithmic: equal ratios have equal distances; values at or below 0 are not shown.
    Log,
    /// The scale of percentiles: each further nine has the same distance.
    Percentile,
}

/// The percentiles that an axis of percentiles labels.
const NAMED_PERCENTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];

impl Axis {
    pub fn new(name: impl Into<String>, unit: impl Into<String>, scale: Scale) -> Self {
        Self { name: name.into(), unit: unit.into(), scale }
    }

    /// The name and the unit, such as `rate (requests/s)`.
    pub fn label(&self) -> String {
        format!("{} ({})", self.name, self.unit)
    }

    /// Can the value be shown?
    pub fn shows(&self, value: f64) -> bool {
        let possible = match self.scale {
            Scale::Linear => value >= 0.0,
            Scale::Log => value > 0.0,
            Scale::Percentile => (0.0..100.0).contains(&value),
        };
        possible && value.is_finite()
    }

    /// The part of the axis that covers all values that can be shown.
    pub fn span(&self, values: impl Iterator<Item = f64>) -> Span {
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for value in values.filter(|value| self.shows(*value)) {
            (low, high) = (low.min(value), high.max(value));
        }
        if high <= 0.0 {
            (low, high) = (1.0, 1.0);
        }
        let (low, high) = match self.scale {
            Scale::Linear => (0.0, round_up(high)),
            Scale::Log => {
                let (low, mut high) = (1.0 / round_up(1.0 / low), round_up(high));
                if low == high {
                    high = round_up(high * 1.01);
                }
                (low, high)
            }
            Scale::Percentile => (0.0, high.max(NAMED_PERCENTILES[4])),
        };
        Span { scale: self.scale, low, high }
    }
}

/// The part of an axis that is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    scale: Scale,
    pub low: f64,
    pub high: f64,
}

impl Span {
    /// The part of an axis between these bounds, which are not rounded.
    pub fn exactly(scale: Scale, low: f64, high: f64) -> Self {
        Self { scale, low, high }
    }

    /// 0 at the beginning of the axis, 1 at its end.
    pub fn at(&self, value: f64) -> f64 {
        let bent = |value: f64| match self.scale {
            Scale::Linear => value,
            Scale::Log => value.ln(),
            Scale::Percentile => -(1.0 - value / 100.0).log10(),
        };
        let (low, high) = (bent(self.low), bent(self.high));
        if high > low { (bent(value) - low) / (high - low) } else { 0.5 }
    }

    /// Values for labels, about `most` of them.
    pub fn ticks(&self, most: usize) -> Vec<f64> {
        match self.scale {
            Scale::Percentile => NAMED_PERCENTILES.to_vec(),
            Scale::Linear => {
                let step = round_up(self.high / most as f64);
                (0..)
                    .map(|at| f64::from(at) * step)
                    .take_while(|v| *v <= self.high * 1.001)
                    .collect()
            }
            Scale::Log => {
                let mut ticks = self.one_two_five(&[1.0, 2.0, 5.0]);
                let decades = self.one_two_five(&[1.0]);
                if ticks.len() > most + 1 && decades.len() > 1 {
                    ticks = decades;
                }
                let every = ticks.len().div_ceil(most + 1).max(1);
                ticks.into_iter().step_by(every).collect()
            }
        }
    }

    fn one_two_five(&self, digits: &[f64]) -> Vec<f64> {
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let all = decades.flat_map(|decade| digits.iter().map(move |d| d * 10f64.powi(decade)));
        all.filter(|v| (self.low * 0.999..=self.high * 1.001).contains(v)).collect()
    }
}

/// The next of 1, 2, 5, 10, 20, and so on, that is no smaller.
fn round_up(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    let digits = [1.0, 2.0, 5.0, 10.0].into_iter();
    digits.map(|digit| digit * decade).find(|v| *v >= value * 0.9999).unwrap_or(value)
}

/// `0.05`, `12`, `200k`, `1.5M`: a number beside an axis.
pub fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 999_500.0 => format!("{}M", plain(value / 1e6)),
        v if v >= 1000.0 => format!("{}k", plain(value / 1e3)),
        _ => plain(value),
    }
}

/// At most three digits after the point; below 0.01, two significant digits.
pub fn plain(value: f64) -> String {
    let decimals =
        if value != 0.0 && value.abs() < 0.01 { 1 - value.abs().log10().floor() as i32 } else { 3 };
    let text = format!("{value:.*}", decimals.clamp(0, 12) as usize);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number in a table: four digits, and more from 10,000 on.
pub fn exact(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(scale: Scale, values: &[f64]) -> Span {
        Axis::new("", "", scale).span(values.iter().copied())
    }

    #[test]
    fn an_axis_ends_at_a_round_number_and_names_some() {
        let linear = span(Scale::Linear, &[3.0, 430_000.0]);
        assert_eq!((linear.low, linear.high), (0.0, 500_000.0));
        let ticks: Vec<_> = linear.ticks(5).into_iter().map(short).collect();
        assert_eq!(ticks, ["0", "100k", "200k", "300k", "400k", "500k"]);
        let log = span(Scale::Log, &[11.0, 14.0]);
        assert_eq!((log.ticks(5), log.at(10.0), log.at(20.0)), (vec![10.0, 20.0], 0.0, 1.0));
        assert_eq!(span(Scale::Log, &[0.2, 5.0]).ticks(3), [0.2, 1.0, 5.0]);
        let log = span(Scale::Log, &[0.8, 90_000.0]);
        assert!(log.ticks(5).len() <= 6 && log.ticks(5).len() > 2, "{:?}", log.ticks(5));
    }

    #[test]
    fn what_cannot_be_shown_changes_nothing() {
        let strange = [f64::NAN, f64::INFINITY, -1.0, 0.0];
        for scale in [Scale::Linear, Scale::Log, Scale::Percentile] {
            for span in [span(scale, &[]), span(scale, &strange)] {
                assert!(span.low < span.high && span.ticks(5).len() > 1, "{span:?}");
            }
        }
        assert_eq!(span(Scale::Log, &[-3.0, f64::NAN, 20.0]), span(Scale::Log, &[20.0]));
    }

    #[test]
    fn each_further_nine_is_equally_far() {
        let span = span(Scale::Percentile, &[99.99]);
        let places = NAMED_PERCENTILES.map(|percentile| span.at(percentile));
        for pair in places[1..].windows(2) {
            assert!((pair[1] - pair[0] - 0.25).abs() < 1e-9, "{places:?}");
        }
    }

    #[test]
    fn numbers_are_short_on_axes_and_have_four_digits_in_tables() {
        let shorts = [0.0, 0.05, 0.002, 12.0, 1500.0, 2e6].map(short);
        assert_eq!(shorts, ["0", "0.05", "0.002", "12", "1.5k", "2M"]);
        assert_eq!([0.5, 12.345, 123.45, 1234.5].map(exact), ["0.500", "12.35", "123.5", "1234"]);
    }
}
