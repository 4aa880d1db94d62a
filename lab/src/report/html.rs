//! A document as one page for browsers and printers, with everything inside: the page loads
//! nothing.

use super::{Cell, Document, Figure, Header, Section, Table, Tone, svg};
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");

/// The page may load nothing, and run no script.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// The page.
pub fn page(document: &Document) -> String {
    let Header { command, version, .. } = &document.header;
    let mut ids = Ids::default();
    let content = document_body(document, 1, &mut ids);
    let date = humantime::format_rfc3339_seconds(std::time::SystemTime::now());
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="generator" content={ "uringlet " (version) };
                title { "uringlet " (command) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a class="skip" href="#main" { "Skip to the figures" }
                (svg::definitions())
                header {
                    h1 { "uringlet " (command) }
                    (conclusion(document))
                    (facts(&document.header, Some(&date.to_string())))
                }
                nav aria-label="Contents" {
                    ul {
                        @for (id, heading) in &ids.headings {
                            li { a href={ "#" (id) } { (heading) } }
                        }
                    }
                }
                main id="main" tabindex="-1" { (content) }
                footer { p {
                    "Written by uringlet " (version) ". ▲ marks what is better than what it is "
                    "compared with, ▼ what is worse."
                } }
            }
        }
    };
    page.into_string()
}

/// The ids of link targets, and the headings of the table of contents.
#[derive(Default)]
struct Ids {
    next: usize,
    headings: Vec<(String, String)>,
}

impl Ids {
    fn new_id(&mut self) -> String {
        self.next += 1;
        format!("p{}", self.next)
    }

    /// Makes the id of a heading. The table of contents lists the headings of level 2.
    fn heading(&mut self, level: usize, text: &str) -> String {
        let id = self.new_id();
        if level == 2 {
            self.headings.push((id.clone(), text.to_owned()));
        }
        id
    }
}

fn heading(level: usize, id: &str, text: &str) -> Markup {
    match level {
        2 => html! { h2 id=(id) { (text) } },
        3 => html! { h3 id=(id) { (text) } },
        4 => html! { h4 id=(id) { (text) } },
        _ => html! { h5 id=(id) { (text) } },
    }
}

/// The part below the document's own heading. That heading has the level `level`.
fn document_body(document: &Document, level: usize, ids: &mut Ids) -> Markup {
    let sections: Vec<&Section> = [&document.summary]
        .into_iter()
        .chain(&document.sections)
        .filter(|s| !s.is_empty())
        .collect();
    html! {
        @if level > 1 { (conclusion(document)) }
        @if document.interrupted {
            p { strong { "Interrupted: the figures are of what was run." } }
        }
        @for section in sections { (section_body(section, level + 1, ids)) }
        @for part in &document.parts {
            @let id = ids.heading(level + 1, &part.header.command);
            section aria-labelledby=(id) {
                (heading(level + 1, &id, &part.header.command))
                (facts(&part.header.beyond(&document.header), None))
                (document_body(part, level + 1, ids))
            }
        }
        @if !document.method.is_empty() {
            @let id = ids.heading(level + 1, "How it was measured");
            section aria-labelledby=(id) {
                (heading(level + 1, &id, "How it was measured"))
                @for paragraph in document.method.split("\n\n") { p { (paragraph) } }
            }
        }
    }
}

/// The conclusion is for readers who read nothing else.
fn conclusion(document: &Document) -> Markup {
    html! { @for sentence in &document.conclusion { p class="conclusion" { (sentence) } } }
}

fn facts(header: &Header, date: Option<&str>) -> Markup {
    html! {
        dl class="facts" {
            @if let Some(date) = date {
                dt { "date" } dd { (date) }
                dt { "uringlet" } dd { (header.version) }
            }
            @for (name, value) in &header.facts { dt { (name) } dd { (value) } }
        }
        @if !header.notices.is_empty() {
            ul class="notices" { @for notice in &header.notices { li { (notice) } } }
        }
    }
}

fn section_body(section: &Section, level: usize, ids: &mut Ids) -> Markup {
    let id = ids.heading(level, &section.heading);
    html! {
        section aria-labelledby=(id) {
            (heading(level, &id, &section.heading))
            @if !section.figures.is_empty() {
                div class="figures" {
                    @for (at, figure) in section.figures.iter().enumerate() {
                        // An explanation that equals that of the plot before is not repeated.
                        @let known = at > 0 && section.figures[at - 1].about == figure.about;
                        (figure_body(figure, known, level + 1, ids))
                    }
                }
            }
            @for table in &section.tables { (table_body(table, &section.heading)) }
            @for note in &section.notes { p { (note.trim()) } }
        }
    }
}

fn figure_body(figure: &Figure, known: bool, level: usize, ids: &mut Ids) -> Markup {
    let id = ids.new_id();
    let table = figure.table();
    html! {
        figure class=[figure.headline.then_some("headline")] aria-labelledby=(id) {
            (heading(level, &id, &figure.title))
            @if !known { p { (figure.about) } }
            (svg::plot(&figure.plot, &id, &figure.title, &figure.about))
            (svg::legend(&figure.plot))
            details {
                summary { "Values" span class="hidden" { " of " (figure.title) } }
                (table_body(&table, &figure.title))
            }
        }
    }
}

fn table_body(table: &Table, name: &str) -> Markup {
    let name = if table.caption.is_empty() { name } else { &table.caption };
    let right = |column: usize| table.right.contains(&column).then_some("right");
    let class = if table.heads.len() > 4 { "scroll wide" } else { "scroll" };
    html! {
        div class=(class) tabindex="0" role="region" aria-label=(name) {
            table {
                @if !table.caption.is_empty() { caption { (table.caption) } }
                thead {
                    @if !table.groups.is_empty() {
                        tr { @for (text, span) in &table.groups { (group_head(text, *span)) } }
                    }
                    @if table.has_heads() {
                    tr {
                        @for (at, head) in table.heads.iter().enumerate() {
                            @if head.is_empty() { td {} }
                            @else { th scope="col" class=[right(at)] { (head) } }
                        }
                    }
                    }
                }
                tbody {
                    @for row in &table.rows {
                        tr {
                            @for (at, cell) in row.iter().enumerate() {
                                @if at == 0 && !table.has_heads() { th scope="row" { (cell.text) } }
                                @else { (cell_body(cell, right(at))) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn group_head(text: &str, span: usize) -> Markup {
    html! {
        @if text.is_empty() { td colspan=(span) {} }
        @else { th scope="colgroup" colspan=(span) { (text) } }
    }
}

fn cell_body(Cell { text, tone }: &Cell, right: Option<&str>) -> Markup {
    let (class, said) = match tone {
        Tone::Plain if text.chars().count() > 48 => (Some("wrap"), ""),
        Tone::Plain => (None, ""),
        Tone::Win => (Some("win"), "better: "),
        Tone::Loss => (Some("loss"), "worse: "),
    };
    let classes = [right, class].into_iter().flatten().collect::<Vec<_>>().join(" ");
    html! {
        td class=[(!classes.is_empty()).then_some(classes)] {
            @if !said.is_empty() {
                span class="hidden" { (said) }
            }
            (text)
            @if !said.is_empty() {
                span aria-hidden="true" { " " (tone.sign()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Document {
        let mut table = Table::new("A <b>caption</b>", ["a", ""], 1..2);
        table.row([
            Cell::from("</td><script>alert(1)</script>"),
            Cell { text: "0.5".into(), tone: Tone::Loss },
        ]);
        Document {
            header: Header {
                command: "bench".into(),
                version: "1".into(),
                facts: vec![("file".into(), "/tmp/<i>&\"x\"".into())],
                notices: vec!["<notice>".into()],
            },
            method: "One.\n\nTwo & three.".into(),
            sections: vec![Section::new("Rates").with_table(table), Section::new("Empty")],
            interrupted: true,
            ..Document::default()
        }
    }

    #[test]
    fn what_others_have_named_is_text() {
        let page = page(&document());
        for markup in ["<script", "<i>", "<notice>", "<b>caption"] {
            assert!(!page.contains(markup), "{markup}");
        }
        for text in
            ["/tmp/&lt;i&gt;&amp;", "&lt;notice&gt;", "<p>Two &amp; three.</p>", "Interrupted"]
        {
            assert!(page.contains(text), "{text}");
        }
    }

    #[test]
    fn a_page_without_figures_is_a_page() {
        let empty = page(&Document::default());
        assert!(empty.starts_with("<!DOCTYPE html>") && empty.ends_with("</html>"), "{empty}");
        let page = page(&document());
        assert!(page.contains("worse: ") && page.contains("▼"));
        assert!(!page.contains("Empty"), "an empty section has no heading");
        assert_eq!(page.matches("href=\"#p").count(), page.matches("<li><a").count());
    }
}
