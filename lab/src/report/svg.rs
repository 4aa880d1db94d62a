//! Plots as SVG inside a page, which has the colours (`style.css`).
//!
//! A plot is as wide as a phone shows without shrinking its letters; on wider screens several are
//! side by side.

use super::scale::{self, Axis, Scale, Span};
use super::{Bar, Bars, Key, Lines, Plot, Series, Tone};
use maud::{Markup, Render, html};
use std::borrow::Cow;
use std::fmt::Write as _;
use textwrap::WordSplitter;

const WIDTH: f64 = 360.0;
/// The maximum average width of a letter in a label, in the fonts in use and in units of the plot.
const LETTER: f64 = 7.0;
const LINE: f64 = 16.0;
const BAR: f64 = 13.0;
/// The number of colours in `style.css`; then they repeat, with other markers.
const COLOURS: usize = 10;
const DASHES: [&str; 4] = ["none", "6 3", "2 3", "8 3 2 3"];

/// A coordinate.
#[derive(Clone, Copy)]
struct Px(f64);

impl Render for Px {
    fn render_to(&self, buffer: &mut String) {
        let _ = write!(buffer, "{:.1}", self.0);
    }
}

/// The drawing area: from `left` to `right`, `top` to `bottom`.
#[derive(Clone, Copy)]
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Frame {
    fn x(&self, span: &Span, value: f64) -> f64 {
        self.left + span.at(value) * (self.right - self.left)
    }

    fn y(&self, span: &Span, value: f64) -> f64 {
        self.bottom - span.at(value) * (self.bottom - self.top)
    }
}

/// The plot, with `title` and `about` for screen readers; `id` is unique in the page.
pub fn plot(plot: &Plot, id: &str, title: &str, about: &str) -> Markup {
    let (height, drawing, kind) = match plot {
        Plot::Lines(lines) => (LINES_HEIGHT, draw_lines(lines), "lines"),
        Plot::Bars(bars) => {
            let (height, drawing) = draw_bars(bars);
            (height, drawing, "bars")
        }
    };
    let (title_id, about_id) = (format!("{id}-title"), format!("{id}-desc"));
    html! {
        svg class={ "plot " (kind) } viewBox={ "0 0 " (WIDTH) " " (Px(height)) } role="img"
            aria-labelledby=(title_id) aria-describedby=(about_id) {
            title id=(title_id) { (title) }
            desc id=(about_id) { (about) }
            (drawing)
        }
    }
}

/// The common definitions of the plots of a page.
pub fn definitions() -> Markup {
    html! {
        svg class="defs" aria-hidden="true" focusable="false" {
            defs {
                pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse"
                    patternTransform="rotate(45)" {
                    rect width="3" height="6" fill="var(--page)" {}
                }
            }
        }
    }
}

/// The meaning of colours, markers and patterns.
pub fn legend(plot: &Plot) -> Markup {
    let entries: Vec<(&str, Markup, usize)> = match plot {
        Plot::Lines(lines) => {
            let drawn = lines.series.iter().filter(|series| !series.points.is_empty());
            let sample = |series: &Series| {
                let path = "M0 7H32";
                html! {
                    path class="path" d=(path) stroke-dasharray=(dashes(series.style)) {}
                    (marker(series.style, 16.0, 7.0))
                }
            };
            drawn.map(|series| (&*series.name, sample(series), series.style)).collect()
        }
        Plot::Bars(bars) if bars.keys.len() > 1 => bars
            .keys
            .iter()
            .map(|key| (&*key.name, filled(key, 4.0, 1.0, 24.0), key.style))
            .collect(),
        Plot::Bars(_) => return html! {},
    };
    html! {
        ul class="legend" {
            @for (name, sample, style) in entries {
                li class=(class(style)) {
                    svg viewBox="0 0 32 14" aria-hidden="true" focusable="false" { (sample) }
                    span { (name) }
                }
            }
        }
    }
}

fn class(style: usize) -> String {
    format!("s{}", style % COLOURS)
}

fn dashes(style: usize) -> &'static str {
    DASHES[style % DASHES.len()]
}

fn marker(style: usize, x: f64, y: f64) -> Markup {
    let at = |shape: &str| format!("M{x:.1} {y:.1}{shape}");
    let path = match style % 8 {
        0 => at("m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z"),
        1 => at("m-3.5 -3.5h7v7h-7z"),
        2 => at("m0 -4.6l4.4 8h-8.8z"),
        3 => at("m0 -5l4.6 5l-4.6 5l-4.6 -5z"),
        4 => at("m0 4.6l4.4 -8h-8.8z"),
        5 => at("m-1.3 -4.5h2.6v3.2h3.2v2.6h-3.2v3.2h-2.6v-3.2h-3.2v-2.6h3.2z"),
        6 => at("m-4.6 0l2.3 -4h4.6l2.3 4l-2.3 4h-4.6z"),
        _ => at("m-4.5 -4.5l3 4.5l-3 4.5l4.5 -3l4.5 3l-3 -4.5l3 -4.5l-4.5 3z"),
    };
    html! { path class="mark" d=(path) {} }
}

fn text(class: &str, (x, y): (f64, f64), anchor: &str, content: &str) -> Markup {
    html! { text class=(class) x=(Px(x)) y=(Px(y)) text-anchor=(anchor) { (content) } }
}

fn label(axis: &Axis, x: f64, y: f64, which: &str, anchor: &str) -> Markup {
    text(&format!("axis {which}"), (x, y), anchor, &axis.label())
}

const LINES_HEIGHT: f64 = 262.0;

fn draw_lines(lines: &Lines) -> Markup {
    let Lines { x, y, series } = lines;
    let shown = || series.iter().flat_map(|s| &s.points).filter(|p| x.shows(p.x) && y.shows(p.y));
    let y_span = y.span(shown().flat_map(|p| p.rounds.iter().copied().chain([p.y])));
    let (x_span, x_ticks) = x_axis(x, shown().map(|point| point.x));
    let y_ticks = y_span.ticks(5);
    let longest = y_ticks.iter().map(|tick| scale::short(*tick).len()).max().unwrap_or(1);
    let left = (longest as f64 * LETTER + 10.0).max(30.0);
    let frame = Frame { left, right: WIDTH - 18.0, top: 26.0, bottom: LINES_HEIGHT - 42.0 };
    // Room for markers between the frame and the points at its edge.
    let inner = Frame { left: frame.left + 10.0, right: frame.right - 6.0, ..frame };
    html! {
        (label(y, 2.0, 12.0, "y", "start"))
        @for tick in &y_ticks {
            @let at = frame.y(&y_span, *tick);
            path class="grid" d={ "M" (Px(frame.left)) " " (Px(at)) "H" (Px(frame.right)) } {}
            (text("tick", (frame.left - 5.0, at + 4.0), "end", &scale::short(*tick)))
        }
        @for tick in &x_ticks {
            @let at = inner.x(&x_span, *tick);
            path class="grid" d={ "M" (Px(at)) " " (Px(frame.top)) "V" (Px(frame.bottom + 4.0)) } {}
        }
        @for tick in apart(&x_ticks, |tick| inner.x(&x_span, tick), |tick| x_name(x, tick)) {
            @let at = (inner.x(&x_span, tick), frame.bottom + 17.0);
            (text("tick", at, "middle", &x_name(x, tick)))
        }
        path class="frame" d={
            "M" (Px(frame.left)) " " (Px(frame.top)) "V" (Px(frame.bottom)) "H" (Px(frame.right))
        } {}
        (label(x, (frame.left + frame.right) / 2.0, LINES_HEIGHT - 8.0, "x", "middle"))
        @for series in series {
            (draw_series(series, lines, |x| inner.x(&x_span, x), |y| frame.y(&y_span, y)))
        }
        @if shown().next().is_none() {
            @let middle = ((frame.left + frame.right) / 2.0, (frame.top + frame.bottom) / 2.0);
            (text("muted", middle, "middle", "nothing was measured"))
        }
    }
}

fn draw_series(
    series: &Series,
    Lines { x, y, .. }: &Lines,
    at_x: impl Fn(f64) -> f64,
    at_y: impl Fn(f64) -> f64,
) -> Markup {
    let points: Vec<_> = series.points.iter().filter(|p| x.shows(p.x) && y.shows(p.y)).collect();
    let mut path = String::new();
    for point in &points {
        let command = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{command}{:.1} {:.1}", at_x(point.x), at_y(point.y));
    }
    // On a percentile axis, only these points of a curve get markers.
    let named = |value: f64| {
        x.scale != Scale::Percentile || [50.0, 90.0, 99.0, 99.9, 99.99].contains(&value)
    };
    html! {
        g class=(class(series.style)) {
            @if points.len() > 1 {
                path class="path" d=(path) stroke-dasharray=(dashes(series.style)) {}
            }
            @for point in points {
                @for round in point.rounds.iter().filter(|round| y.shows(**round)) {
                    circle class="round" cx=(Px(at_x(point.x))) cy=(Px(at_y(*round))) r="2" {}
                }
                @if named(point.x) { (marker(series.style, at_x(point.x), at_y(point.y))) }
            }
        }
    }
}

/// The shown part of the axis, and the values with labels. Percentiles get the labels of their
/// scale. On other scales, each value gets a label.
fn x_axis(x: &Axis, values: impl Iterator<Item = f64> + Clone) -> (Span, Vec<f64>) {
    if x.scale == Scale::Percentile {
        let span = x.span(values);
        return (span, span.ticks(5));
    }
    let mut chosen: Vec<f64> = values.collect();
    chosen.sort_by(f64::total_cmp);
    chosen.dedup();
    let (Some(&low), Some(&high)) = (chosen.first(), chosen.last()) else {
        return (Span::exactly(x.scale, 1.0, 2.0), Vec::new());
    };
    (Span::exactly(x.scale, low, high), chosen)
}

fn x_name(x: &Axis, value: f64) -> String {
    if x.scale == Scale::Percentile { format!("{value}") } else { scale::plain(value) }
}

/// The ticks whose labels do not overlap.
fn apart(ticks: &[f64], at: impl Fn(f64) -> f64, name: impl Fn(f64) -> String) -> Vec<f64> {
    let mut end = f64::NEG_INFINITY;
    let fits = |tick: &&f64| {
        let (middle, half) = (at(**tick), name(**tick).chars().count() as f64 * LETTER / 2.0);
        let fits = middle - half > end + 2.0;
        if fits {
            end = middle + half;
        }
        fits
    };
    ticks.iter().filter(fits).copied().collect()
}

/// The width of the text with a bar's value, in units of the plot.
const VALUES: f64 = 58.0;

fn draw_bars(bars: &Bars) -> (f64, Markup) {
    let Bars { value, category, origin, keys, groups } = bars;
    let all = || groups.iter().flat_map(|group| &group.bars);
    let longest = all().map(|bar| bar.label.chars().count()).max().unwrap_or(0);
    let left = (longest as f64 * LETTER + 8.0).clamp(8.0, 150.0);
    let frame = Frame { left, right: WIDTH - VALUES - 6.0, top: 22.0, bottom: 0.0 };
    let ends = all().flat_map(|bar| {
        let spread = bar.spread.into_iter().flat_map(|(low, high)| [low, high]);
        spread.chain([end_of(bar)])
    });
    let span = bar_span(value, *origin, ends);
    let letters = ((WIDTH - 12.0) / LETTER) as usize;
    let ticks = span.ticks(3);
    let place = |tick: f64| frame.x(&span, tick);
    // Each group has its own grid lines, so that they do not cross the groups' labels.
    let grid = |top: f64, bottom: f64| {
        html! {
            @for tick in &ticks {
                path class="grid" d={ "M" (Px(place(*tick))) " " (Px(top)) "V" (Px(bottom)) } {}
            }
        }
    };
    let mut y = frame.top;
    let mut drawing = Vec::new();
    for group in groups {
        for line in wrapped(&group.label, letters) {
            y += LINE;
            drawing.push(text("group", (4.0, y - 4.0), "start", &line));
        }
        y += 2.0;
        let top = y;
        drawing.push(grid(top, y + group.bars.len() as f64 * (BAR + 4.0)));
        for bar in &group.bars {
            drawing.push(draw_bar(bar, keys, *origin, &frame, &span, y));
            y += BAR + 4.0;
        }
        let origin = place(*origin);
        drawing.push(html! {
            path class="origin" d={ "M" (Px(origin)) " " (Px(top)) "V" (Px(y)) } {}
        });
        y += 6.0;
    }
    let drawing = html! {
        (text("axis y category", (4.0, 12.0), "start", category))
        @for part in drawing { (part) }
        @for tick in apart(&ticks, place, scale::short) {
            (text("tick", (place(tick), y + 13.0), "middle", &scale::short(tick)))
        }
        (label(value, WIDTH / 2.0, y + 36.0, "x", "middle"))
    };
    (y + 44.0, drawing)
}

fn end_of(bar: &Bar) -> f64 {
    bar.parts.iter().map(|(_, length)| length).sum()
}

/// The range of an axis for bars: it includes the origin.
fn bar_span(value: &Axis, origin: f64, ends: impl Iterator<Item = f64>) -> Span {
    let inside = (value.scale == Scale::Log).then_some(origin);
    value.span(ends.chain(inside))
}

fn draw_bar(bar: &Bar, keys: &[Key], origin: f64, frame: &Frame, span: &Span, y: f64) -> Markup {
    let shown = |value: f64| frame.x(span, value).clamp(frame.left, frame.right);
    let mut from = origin;
    let mut parts = Vec::new();
    for (key, length) in &bar.parts {
        // With an origin above 0 (a log scale), a bar has one part, which ends at `length`. Stacked
        // parts are added up, on a linear scale from 0.
        let to = if from == origin && origin > 0.0 { *length } else { from + length };
        let (low, high) = (shown(from).min(shown(to)), shown(from).max(shown(to)));
        let width = (high - low).max(1.0);
        let tone = if keys.len() == 1 { bar.tone } else { Tone::Plain };
        parts.push(match tone {
            Tone::Plain => filled(&keys[*key], low, y, width),
            Tone::Win => bar_of("tone-win", false, low, y, width),
            Tone::Loss => bar_of("tone-loss", true, low, y, width),
        });
        from = to;
    }
    let measured = !bar.parts.is_empty();
    let tone = match bar.tone {
        Tone::Win => "value win",
        Tone::Loss => "value loss",
        Tone::Plain => "value",
    };
    let mut said = if measured { value_text(end_of(bar)) } else { "none".into() };
    if bar.tone != Tone::Plain {
        said = format!("{said} {}", bar.tone.sign());
    }
    let middle = y + BAR / 2.0;
    html! {
        @if !bar.label.is_empty() {
            (text("label", (frame.left - 5.0, y + BAR - 2.0), "end", &bar.label))
        }
        @for part in parts { (part) }
        @if let Some((low, high)) = bar.spread.filter(|(low, high)| measured && low < high) {
            path class="spread" d={
                "M" (Px(shown(low))) " " (Px(middle)) "H" (Px(shown(high)))
                "M" (Px(shown(low))) " " (Px(middle - 3.0)) "v6"
                "M" (Px(shown(high))) " " (Px(middle - 3.0)) "v6"
            } {}
        }
        (text(tone, (WIDTH - 4.0, y + BAR - 2.0), "end", &said))
    }
}

fn value_text(value: f64) -> String {
    match value.abs() {
        v if v >= 10_000.0 => scale::short((value / 100.0).round() * 100.0),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn filled(key: &Key, x: f64, y: f64, width: f64) -> Markup {
    bar_of(&class(key.style), key.striped, x, y, width)
}

fn bar_of(class: &str, striped: bool, x: f64, y: f64, width: f64) -> Markup {
    html! {
        g class=(class) {
            rect class="bar" x=(Px(x)) y=(Px(y)) width=(Px(width)) height=(Px(BAR - 1.0)) {}
            @if striped {
                rect class="stripes" x=(Px(x)) y=(Px(y)) width=(Px(width)) height=(Px(BAR - 1.0)) {}
            }
        }
    }
}

/// Lines of at most this many letters, broken between words where that is possible.
pub fn wrapped(text: &str, letters: usize) -> Vec<String> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let options = textwrap::Options::new(letters).word_splitter(WordSplitter::NoHyphenation);
    let lines = textwrap::wrap(&text, options).into_iter().map(Cow::into_owned);
    lines.filter(|line| !line.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Group, Point};

    fn lines(points: Vec<Point>) -> Plot {
        let x = Axis::new("in flight", "requests", Scale::Log);
        let y = Axis::new("rate", "requests/s", Scale::Linear);
        let series = vec![Series { name: "a<b>&\"c".into(), style: 3, points }];
        Plot::Lines(Lines { x, y, series })
    }

    fn drawn(this: &Plot) -> String {
        (plot(this, "f1", "t<", "d&").into_string() + &legend(this).into_string())
            .replace('\n', " ")
    }

    #[test]
    fn nothing_and_one_point_are_drawn_without_a_strange_number() {
        let point = |x, y| Point { x, y, rounds: vec![y, f64::NAN] };
        let one = lines(vec![point(1.0, 5.0)]);
        let odd = lines(vec![point(0.0, 1.0), point(1.0, f64::NAN), point(2.0, f64::INFINITY)]);
        let bars = |groups| {
            let value = Axis::new("time", "µs", Scale::Log);
            Plot::Bars(Bars { value, category: "c".into(), origin: 1.0, keys: Vec::new(), groups })
        };
        let unmeasured = Group { label: "x".into(), bars: vec![Bar::default()] };
        let plots = [lines(Vec::new()), one, odd, bars(Vec::new()), bars(vec![unmeasured])];
        for plot in &plots {
            let svg = drawn(plot);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        assert!(drawn(&plots[0]).contains("nothing was measured"));
        assert!(!drawn(&plots[1]).contains("nothing was measured"));
        assert!(drawn(&plots[2]).contains("nothing was measured"));
        assert!(drawn(&plots[4]).contains(">none<"));
    }

    #[test]
    fn names_are_text_and_not_markup() {
        let svg = drawn(&lines(vec![Point { x: 1.0, y: 2.0, rounds: Vec::new() }]));
        assert!(svg.contains("a&lt;b&gt;&amp;") && !svg.contains("a<b>"), "{svg}");
        assert!(svg.contains("t&lt;") && svg.contains("d&amp;"), "{svg}");
    }

    #[test]
    fn long_labels_are_broken_between_words_or_within_one() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh ij", 4), ["abcd", "efgh", "ij"]);
        assert!(wrapped("", 4).is_empty());
    }

    #[test]
    fn a_loss_is_marked_by_more_than_colour() {
        let key = Key { name: "k".into(), style: 0, striped: true };
        let bar = |tone, value| Bar { parts: vec![(0, value)], tone, ..Bar::default() };
        let bars = vec![bar(Tone::Loss, 0.5), bar(Tone::Win, 2.0)];
        let plot = Plot::Bars(Bars {
            value: Axis::new("ratio", "1", Scale::Log),
            category: "c".into(),
            origin: 1.0,
            keys: vec![key],
            groups: vec![Group { label: "g".into(), bars }],
        });
        let svg = drawn(&plot);
        assert!(
            svg.contains("0.50 ▼") && svg.contains("2.00 ▲") && svg.contains("stripes"),
            "{svg}"
        );
    }
}
