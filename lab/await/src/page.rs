//! The table as a page.

use std::fmt::Write as _;

use clap::ValueEnum as _;

use crate::{Cell, Table};

const STYLE: &str = "body{font:15px sans-serif;margin:2em}table{border-collapse:collapse;\
    margin:1em 0}td,th{border:1px solid #ccc;padding:.3em .7em;text-align:right}\
    td:first-child,th:first-child{text-align:left}.best{font-weight:bold}.no{color:#777;\
    text-align:left}";

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// A table for each column and depth; the highest rate is in bold.
pub fn page(table: &Table) -> String {
    let mut page = format!(
        "<!doctype html><meta charset=utf-8><title>One awaited read</title><style>{STYLE}</style>\
         <h1>One awaited 4 KiB read</h1><p>Linux {}, {} CPUs, {}; uringlet: {}; {}.</p>",
        escaped(&table.kernel),
        table.cpus,
        escaped(&table.file.display().to_string()),
        escaped(&table.uringlet),
        match table.io_uring_refused {
            Some(errno) => format!("io_uring is refused (errno {errno})"),
            None => "io_uring is allowed".to_owned(),
        },
    );
    let same = |one: &Cell, other: &Cell| one.column == other.column && one.depth == other.depth;
    for cells in table.cells.chunk_by(same) {
        let rate = |cell: &Cell| cell.median(|one| Some(one.reads_per_second)).unwrap_or(0.0);
        let best = cells.iter().map(rate).fold(0.0, f64::max);
        let _ = write!(
            page,
            "<h2>{:?}, {} in flight</h2><table><tr><th>row<th>reads a second<th>CPU us a read\
             <th>p99 us<th>stall us",
            cells[0].column, cells[0].depth
        );
        for cell in cells {
            let name = cell.row.to_possible_value();
            let name = name.as_ref().map_or("", |value| value.get_name());
            let class = if rate(cell) == best { " class=best" } else { "" };
            let _ = write!(page, "<tr{class}><td>{name}");
            if let Some(refused) = &cell.refused {
                let _ = write!(page, "<td colspan=4 class=no>{}", escaped(refused));
                continue;
            }
            let mut figure = |figure: Option<f64>, digits: usize| {
                let _ = match figure {
                    Some(figure) => write!(page, "<td>{figure:.digits$}"),
                    None => write!(page, "<td>–"),
                };
            };
            figure(Some(rate(cell)), 0);
            figure(cell.median(|one| Some(one.cpu_us_per_read)), 2);
            figure(cell.median(|one| Some(one.p99_us)), 1);
            figure(cell.median(|one| one.stall_us), 0);
        }
        page.push_str("</table>");
    }
    page
}
