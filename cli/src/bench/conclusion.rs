//! The conclusion in two sentences and a table of verdicts: for readers who read nothing else.

use super::comparison::{Comparison, Ratio};
use crate::classes::{Count, interval_text, tone};
use crate::report::{Axis, Bar, Bars, Cell, Figure, Group, Key, Scale, Section, Table};
use crate::size;
use serde::Serialize;
use serde_json::Value;
use uringlet_lab::verdict::Class;

/// If other processes and guests use more than this share of the CPUs, small differences cannot be
/// detected.
const BUSY: f64 = 0.10;

/// uringlet beside the best native engine, under one load.
#[derive(Serialize)]
pub struct Line {
    /// The load, as keys of the JSON.
    #[serde(flatten)]
    pub keys: Value,
    /// The leading columns of the table. Adjacent lines with the same first column, and the same
    /// `group` in `keys`, are a group of bars.
    #[serde(skip)]
    pub columns: [String; 2],
    /// The label of the bar in its group.
    #[serde(skip)]
    pub bar: String,
    /// The name in a sentence: `cached read 4k, depth 32`.
    #[serde(skip)]
    pub name: String,
    /// None if a side has no figures, or if no native engine has the same number of rounds.
    pub comparison: Option<Comparison<String>>,
}

/// What a reader needs to judge the verdicts.
pub struct Circumstances {
    /// The engine that is compared.
    pub subject: String,
    /// The share of the CPUs that other processes and guests used, 0 to 1.
    pub outside: f64,
    /// Native engines that were refused, or failed, in every cell.
    pub refused: Vec<String>,
    /// Rounds that do not count, because other processes and guests used too much of the CPUs.
    pub disturbed: usize,
    /// The option that asks for more rounds.
    pub more: &'static str,
    pub words: Words,
}

/// The headings of the table and the bars.
pub struct Words {
    /// Heads of the leading columns.
    pub heads: [&'static str; 2],
    /// Title of the bars.
    pub title: String,
    /// The engine of the bars, for the legend.
    pub key: String,
    /// The label of the axis that lists the groups of bars.
    pub category: &'static str,
    /// The noun for what a bar stands for: `job` or `line`.
    pub each: &'static str,
}

/// A text such as `faster in 3 (most: NAME, 1.40×); level in 2`.
fn text<'a>(of: impl Iterator<Item = (&'a str, &'a Ratio)> + Clone) -> String {
    let mut parts = Vec::new();
    for class in [Class::Better, Class::Level, Class::Worse, Class::Unknown] {
        let mine = of.clone().filter(move |(_, ratio)| ratio.class == class);
        let Some((_, first)) = mine.clone().next() else { continue };
        let count = mine.clone().count();
        let named = matches!(class, Class::Better | Class::Worse);
        let far = |ratio: &Ratio| ratio.ratio.ln().abs();
        let most = mine.filter(|_| named).max_by(|(_, a), (_, b)| far(a).total_cmp(&far(b)));
        let most = most.map_or_else(String::new, |(name, ratio)| {
            let most = if count > 1 { "most: " } else { "" };
            format!(" ({most}{name}, {:.2}×)", ratio.ratio)
        });
        parts.push(format!("{} in {count}{most}", first.word));
    }
    parts.join("; ")
}

/// The table of verdicts, and a bar for each of its lines that has a ratio.
pub fn section(lines: &[Line], around: &Circumstances) -> Section {
    let judged = ["ratio", "95 %", "verdict", "against", "CPU", "CPU 95 %", "CPU verdict"];
    let heads = around.words.heads.into_iter().chain(judged);
    let mut table = Table::new("", heads, 2..3);
    let mut previous = None;
    for Line { columns: [first, second], comparison, .. } in lines {
        // The first column stays empty if it is the same as in the line above.
        let again = previous.replace(first) == Some(first);
        let mut row: Vec<Cell> =
            vec![if again { "" } else { first }.into(), second.as_str().into()];
        match comparison {
            Some(found) => {
                row.extend(cells(&found.rate));
                row.push(found.best_native.as_str().into());
                row.extend(cells(&found.cpu));
            }
            None => row.extend(["-", "", "", "", "", "", ""].map(Cell::from)),
        }
        table.row(row);
    }
    let heading = format!("{} against the best native engine", around.subject);
    Section::new(heading).with_figures(ratio_plot(lines, &around.words)).with_table(table)
}

fn ratio_plot(lines: &[Line], words: &Words) -> Option<Figure> {
    let bar = |line: &Line| {
        let found = &line.comparison.as_ref()?.rate;
        let spread = found.interval.map(|found| (found.low, found.high));
        let parts = vec![(0, found.ratio)];
        Some(Bar { label: line.bar.clone(), parts, spread, tone: tone(found.class) })
    };
    let load = |line: &Line| (line.columns[0].clone(), line.keys.get("group").cloned());
    let groups = lines.chunk_by(|left, right| load(left) == load(right));
    let groups = groups.map(|lines| Group {
        label: lines[0].columns[0].clone(),
        bars: lines.iter().filter_map(bar).collect(),
    });
    let groups: Vec<Group> = groups.filter(|group| !group.bars.is_empty()).collect();
    let bars = Bars {
        value: Axis::new("ratio to the best native engine", "1 is equal, log scale", Scale::Log),
        category: words.category.into(),
        origin: 1.0,
        keys: vec![Key::new(&*words.key, 0, false)],
        groups,
    };
    let about = format!(
        "Requests per second divided by those of the best native engine of the same {}; whiskers \
         are the 95 % interval. Where it is beyond noise, ▲ says faster and ▼ slower.",
        words.each
    );
    (!bars.groups.is_empty())
        .then(|| Figure::bars(words.title.as_str(), &about, bars).as_headline())
}

/// The cells for ratio, interval and class. They have colours only if the ratio is beyond noise.
fn cells(found: &Ratio) -> [Cell; 3] {
    if !found.ratio.is_finite() {
        return ["-", "", ""].map(Cell::from);
    }
    let tone = tone(found.class);
    let ratio = Cell { text: format!("{:.2}×", found.ratio), tone };
    [ratio, interval_text(found.interval).into(), Cell { text: found.word.into(), tone }]
}

/// One sentence counts what is faster, slower or unknown. Another one advises the next step.
pub fn sentences(lines: &[Line], around: &Circumstances) -> Vec<String> {
    let found = || lines.iter().filter_map(|line| Some((&*line.name, line.comparison.as_ref()?)));
    let count = Count::of(found().map(|(_, found)| found.rate.class));
    let Circumstances { subject, .. } = around;
    if count.all() == 0 {
        let next = "Choose one of uringlet's engines and a native one with --engines, or see under \
                    Not measured why there are no figures.";
        return vec![format!("{subject} was compared with nothing. {next}")];
    }
    let rates = found().map(|(name, found)| (name, &found.rate));
    let costs =
        found().map(|(name, found)| (name, &found.cpu)).filter(|(_, c)| c.ratio.is_finite());
    let cpu = Count::of(costs.clone().map(|(_, cost)| cost.class));
    let all = count.all();
    let cells = size::plural(all as u64, "cell");
    let mut first = format!("Of {all} {cells}, {subject} is {}.", text(rates));
    if cpu.all() > 0 {
        first += &format!(" CPU time per request is {}.", text(costs));
    }
    vec![first, format!("Next: {}", next(&count, around, found()))]
}

fn next<'a>(
    count: &Count,
    around: &Circumstances,
    found: impl Iterator<Item = (&'a str, &'a Comparison<String>)> + Clone,
) -> String {
    let Circumstances { subject, outside, refused, disturbed, more, .. } = around;
    let mut parts = Vec::new();
    let (busy, percent) = (*outside > BUSY, outside * 100.0);
    let why = match found.clone().any(|(_, found)| found.rate.interval.is_none()) {
        true => "the time was too short for enough rounds of every engine",
        false => "the figures vary from round to round",
    };
    if count.unknown * 4 > count.all() || busy && count.unknown > 0 {
        parts.push(match busy {
            true => format!(
                "others had {percent:.0} % of the CPU time, so measure again on a quieter machine, \
                 or longer with {more}"
            ),
            false => format!("{why}, so measure longer with {more}"),
        });
    } else if busy {
        parts
            .push(format!("others had {percent:.0} % of the CPU time, which counts for all sides"));
    }
    if *disturbed > 0 {
        let rounds = if *disturbed == 1 { "round was" } else { "rounds were" };
        parts.push(format!("{disturbed} {rounds} disturbed from outside and not counted"));
    }
    let losses = found.filter(|(_, found)| found.rate.class == Class::Worse);
    let worst = losses.min_by(|(_, a), (_, b)| a.rate.ratio.total_cmp(&b.rate.ratio));
    if let Some((name, worst)) = worst {
        parts.push(format!(
            "leave a program that mostly does {name} on {}, or try another engine with --engines",
            worst.best_native
        ));
    }
    if !refused.is_empty() {
        let engines = refused.join(" and ");
        parts.push(format!("{engines} cannot be had here, and `uringlet doctor` says why"));
    }
    if count.better > count.worse && count.unknown * 2 <= count.all() {
        parts.push("run your program on it: `uringlet run --stats -- PROGRAM`".into());
    } else if count.worse == 0 && count.unknown * 4 <= count.all() {
        parts.push(format!(
            "{subject} is no faster here: take it where io_uring is refused, or where submitting \
             must not block"
        ));
    }
    if parts.is_empty() {
        parts.push(format!("measure longer with {more}"));
    }
    parts.join("; ") + "."
}

#[cfg(test)]
mod tests {
    use super::super::comparison::Side;
    use super::*;
    use crate::report::Tone;
    use uringlet_lab::verdict::Sense;

    fn found(ratio: f64, cpu: f64, rounds: usize) -> Comparison<String> {
        let side = |engine: &str, iops: f64, cpu: f64| Side {
            engine: engine.to_owned(),
            iops: vec![iops; rounds],
            cpu_us: vec![cpu; rounds],
        };
        let native = std::iter::once(side("libaio", 100.0, 2.0));
        Comparison::of(side("uringlet:auto", 100.0 * ratio, 2.0 * cpu), native).unwrap()
    }

    fn said(all: &[Comparison<String>], outside: f64) -> String {
        let lines: Vec<_> = all
            .iter()
            .zip(["a", "b", "c", "d"])
            .map(|(found, name)| Line {
                keys: Value::Null,
                columns: [name.into(), String::new()],
                bar: String::new(),
                name: name.into(),
                comparison: Some(found.clone()),
            })
            .collect();
        let around = Circumstances {
            subject: "uringlet:auto".into(),
            outside,
            refused: Vec::new(),
            disturbed: 0,
            more: "--budget 5m",
            words: Words {
                heads: ["job", "engine"],
                title: String::new(),
                key: String::new(),
                category: "",
                each: "",
            },
        };
        sentences(&lines, &around).join("\n")
    }

    #[test]
    fn two_sentences_say_what_is_faster_and_what_to_do() {
        let text = said(&[found(1.4, 0.8, 10), found(1.0, 1.0, 10), found(1.2, 1.0, 10)], 0.0);
        assert_eq!(
            text,
            "Of 3 cells, uringlet:auto is faster in 2 (most: a, 1.40×); level in 1. CPU time per \
             request is cheaper in 1 (a, 0.80×); level in 2.\n\
             Next: run your program on it: `uringlet run --stats -- PROGRAM`."
        );
    }

    #[test]
    fn a_loss_is_named_with_what_to_take_instead() {
        let text = said(&[found(0.5, 1.0, 10), found(0.9, 1.0, 10)], 0.0);
        assert!(text.contains("slower in 2 (most: a, 0.50×)"), "{text}");
        assert!(text.contains("leave a program that mostly does a on libaio"), "{text}");
    }

    #[test]
    fn what_is_not_known_is_said_with_the_reason() {
        let text = said(&[found(1.4, 1.0, 3)], 0.4);
        assert!(text.contains("unknown in 1") && text.contains("others had 40 %"), "{text}");
        assert!(text.contains("--budget 5m") && !text.contains("run your program"), "{text}");
        assert!(said(&[found(1.4, 1.0, 3)], 0.0).contains("too short for enough rounds"));
        assert!(said(&[], 0.0).contains("compared with nothing"));
    }

    #[test]
    fn colours_are_for_what_is_beyond_noise_only() {
        let tones = |ratio, rounds| cells(&found(ratio, 1.0, rounds).rate).map(|cell| cell.tone);
        assert_eq!(tones(0.8, 10), [Tone::Loss, Tone::Plain, Tone::Loss]);
        assert_eq!(tones(1.3, 10), [Tone::Win, Tone::Plain, Tone::Win]);
        assert_eq!((tones(0.5, 3), tones(1.01, 10)), ([Tone::Plain; 3], [Tone::Plain; 3]));
        assert_eq!(cells(&found(1.3, 1.0, 3).rate)[1].text, "few rounds");
        assert_eq!(found(1.0, 1.0, 10).rate.word, Class::Level.word(Sense::More));
    }
}
