//! A document as lines for a spreadsheet: one for each table cell and round (RFC 4180).

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;
use std::io::Write;

/// One line: names of columns, and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record(Vec<(String, String)>);

impl Record {
    pub fn with(mut self, column: &str, value: impl ToString) -> Self {
        self.0.push((column.to_owned(), value.to_string()));
        self
    }

    /// A line for each round, numbered from 1. If `not_measured` has a reason, or if there is no
    /// round, a line with the reason follows.
    pub fn rounds<T: Serialize>(
        self,
        figures: impl IntoIterator<Item = T>,
        not_measured: Option<&str>,
    ) -> Vec<Self> {
        let mut records: Vec<Self> = figures
            .into_iter()
            .zip(1..)
            .map(|(figure, round)| self.clone().with("round", round).with_all(&figure))
            .collect();
        if records.is_empty() || not_measured.is_some() {
            records.push(self.with("not_measured", not_measured.unwrap_or("not run")));
        }
        records
    }

    /// Does the line have figures? Otherwise it has a reason why there are none.
    pub fn has_figures(&self) -> bool {
        !self.get("round").is_empty()
    }

    /// One line for all rounds together, with the text `round` in place of a round's number.
    pub fn once<T: Serialize>(self, round: &str, figure: T) -> Option<Self> {
        Some(self.with("round", round).with_all(&figure))
    }

    /// Every number and text of a structure, at any depth; names are joined by `_`. Lists are left
    /// out: only the JSON file has them.
    fn with_all(mut self, figure: &impl Serialize) -> Self {
        let value = serde_json::to_value(figure).expect("figures are plain structures");
        self.flatten("", &value);
        self
    }

    fn flatten(&mut self, name: &str, value: &Value) {
        let text = match value {
            // A `Result`. Only the JSON file has the reason for a missing value.
            Value::Object(fields) if fields.len() == 1 && fields.contains_key("Err") => return,
            Value::Object(fields) if fields.len() == 1 && fields.contains_key("Ok") => {
                return self.flatten(name, &fields["Ok"]);
            }
            Value::Object(fields) => {
                for (field, value) in fields {
                    let name =
                        if name.is_empty() { field.clone() } else { format!("{name}_{field}") };
                    self.flatten(&name, value);
                }
                return;
            }
            Value::Null | Value::Array(_) => return,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let name = if name.is_empty() { "value" } else { name };
        self.0.push((name.to_owned(), text));
    }

    fn get(&self, column: &str) -> &str {
        self.0.iter().find(|(name, _)| name == column).map_or("", |(_, value)| value)
    }
}

/// A header with the columns of all lines, and the lines.
///
/// # Errors
/// `to` cannot be written to.
pub fn write(records: &[Record], to: impl Write) -> Result<()> {
    let mut columns: Vec<&str> = Vec::new();
    for (name, _) in records.iter().flat_map(|record| &record.0) {
        if !columns.contains(&name.as_str()) {
            columns.push(name);
        }
    }
    let mut out = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(to);
    if !columns.is_empty() {
        out.write_record(&columns)?;
    }
    for record in records {
        out.write_record(columns.iter().map(|column| record.get(column)))?;
    }
    out.flush().context("flush")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_round_and_a_reason_where_there_is_none() {
        #[derive(Serialize)]
        struct Figure {
            iops: f64,
            latency: Option<[f64; 2]>,
            submit: Option<Inner>,
        }
        #[derive(Serialize)]
        struct Inner {
            mean: u32,
        }
        let figures = [(1.5, None), (2.5, Some(Inner { mean: 7 }))];
        let figures =
            figures.map(|(iops, submit)| Figure { iops, latency: Some([1.0; 2]), submit });
        let cell = |engine: &str| Record::default().with("engine", engine);
        let mut records = cell("a, \"b\"").rounds(figures, None);
        records.extend(cell("c").rounds([0f64; 0], Some("refused")));
        records.extend(cell("d").rounds([3.5], None));
        let mut text = Vec::new();
        write(&records, &mut text).unwrap();
        let expected = "engine,round,iops,submit_mean,not_measured,value\r\n\
            \"a, \"\"b\"\"\",1,1.5,,,\r\n\"a, \"\"b\"\"\",2,2.5,7,,\r\n\
            c,,,,refused,\r\nd,1,,,,3.5\r\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn nothing_is_an_empty_file() {
        let mut text = Vec::new();
        write(&[], &mut text).unwrap();
        assert!(text.is_empty());
    }
}
