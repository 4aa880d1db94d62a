//! Shows programs and contexts on a terminal, until the user quits.

use super::columns::{self, CONTEXT, Column, Line as Cells, PROGRAM, percent};
use super::keys;
use super::programs::{Context, Program, Programs};
use super::{find::Key, plain};
use crate::observe;
use crate::session::{self, INTERRUPTED, STOP};
use anyhow::{Context as _, Result};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Wrap};
use ratatui::{DefaultTerminal, Frame};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The intervals that `+` and `-` choose, in milliseconds.
const INTERVALS_MS: [u64; 9] = [100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];
/// The maximum time until a signal is noticed.
const SLICE: Duration = Duration::from_millis(100);
/// The time for an orderly end after a signal.
const GRACE: Duration = Duration::from_millis(500);

const HELP: &[&str] = &[
    "q Esc ^C   quit",
    "up down    select a program (k, j)",
    "s          sort by the next column",
    "space      pause",
    "+ -        interval",
    "?          this help",
    "",
    "REQ/S      requests completed per second",
    "INFL       requests in flight",
    "HAND/S     batons taken from blocked holders",
    "WORK       workers that exist",
    "SUB CPL    duration of submits, of requests",
    "CTX        contexts; below, a context's place",
];

/// Shows programs until the user quits, or the program of process `pid` has ended.
///
/// # Errors
/// The terminal cannot be set up, or /proc cannot be read.
pub fn run(
    programs: Programs,
    first: Vec<Program>,
    pid: Option<u32>,
    interval: Duration,
) -> Result<ExitCode> {
    ctrlc::set_handler(|| {
        STOP.store(true, Ordering::Relaxed);
        // This handler runs in a thread of its own. If the main thread has not ended the process in
        // time, the main thread waits for a terminal that is gone.
        std::thread::sleep(GRACE);
        ratatui::restore();
        std::process::exit(i32::from(INTERRUPTED));
    })
    .context("cannot handle signals")?;
    // `try_init` also sets a panic hook, which restores the terminal before it prints the message.
    let mut terminal = ratatui::try_init().context("cannot set up the terminal")?;
    let mut screen = Screen::new(first, interval);
    let ended = screen.serve(&mut terminal, programs, pid);
    ratatui::restore();
    Ok(match ended? {
        Ended::Quit => ExitCode::SUCCESS,
        Ended::Signal => ExitCode::from(INTERRUPTED),
        Ended::Program(name) => {
            session::say(&format!("uringlet top: {name} has ended\n"))?;
            ExitCode::SUCCESS
        }
    })
}

enum Ended {
    Quit,
    Signal,
    Program(String),
}

/// The state of the screen.
struct Screen {
    programs: Vec<Program>,
    selected: Option<Key>,
    /// Number of the column in [`PROGRAM`].
    sorted_by: usize,
    interval: Duration,
    paused: bool,
    help: bool,
    colours: bool,
}

impl Screen {
    fn new(programs: Vec<Program>, interval: Duration) -> Self {
        let sorted_by = PROGRAM.iter().position(|column| column.head == columns::BUSIEST.head);
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let mut screen = Self {
            programs: Vec::new(),
            selected: None,
            sorted_by: sorted_by.unwrap_or(0),
            interval,
            paused: false,
            help: false,
            colours: !no_colour,
        };
        screen.show(programs);
        screen
    }

    fn serve(
        &mut self,
        terminal: &mut DefaultTerminal,
        mut programs: Programs,
        pid: Option<u32>,
    ) -> Result<Ended> {
        let mut due = Instant::now() + self.interval;
        loop {
            terminal.draw(|frame| self.draw(frame)).context("cannot write to the terminal")?;
            if STOP.load(Ordering::Relaxed) {
                return Ok(Ended::Signal);
            }
            // Keys are read before the next snapshot. With a short interval, a snapshot may always
            // be due.
            let left = due.saturating_duration_since(Instant::now());
            if !keys::wait(left.min(SLICE)).context("the terminal is gone")? {
                return Ok(Ended::Signal);
            }
            let mut any = false;
            while event::poll(Duration::ZERO).context("cannot read keys")? {
                any = true;
                // Other events need no action: after a resize, the next draw uses the new size.
                if let Event::Key(key) = event::read().context("cannot read keys")?
                    && key.kind == KeyEventKind::Press
                {
                    let interval = self.interval;
                    if self.press(key) {
                        return Ok(Ended::Quit);
                    }
                    if self.interval != interval {
                        due = Instant::now() + self.interval;
                    }
                }
            }
            if !any && Instant::now() >= due {
                if !self.paused {
                    let now = programs.look().context("cannot read /proc")?;
                    if let (Some(_), [], [last, ..]) = (pid, &now[..], &self.programs[..]) {
                        return Ok(Ended::Program(format!("{} ({})", last.program, last.pid)));
                    }
                    self.show(now);
                }
                due = observe::next(due, self.interval);
            }
        }
    }

    /// Handles a key. True: quit.
    fn press(&mut self, key: KeyEvent) -> bool {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('?') => self.help = !self.help,
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('s') => {
                let columns =
                    (1..=PROGRAM.len()).map(|step| (self.sorted_by + step) % PROGRAM.len());
                let next = columns.into_iter().find(|&at| PROGRAM[at].key.is_some());
                self.sorted_by = next.unwrap_or(0);
                self.sort();
            }
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Char('+' | '=') => self.change_interval(1),
            KeyCode::Char('-') => self.change_interval(-1),
            _ => {}
        }
        false
    }

    fn show(&mut self, programs: Vec<Program>) {
        self.programs = programs;
        self.sort();
        if self.selected().is_none() {
            self.selected = self.programs.first().map(|program| program.key);
        }
    }

    fn sort(&mut self) {
        super::sort(&mut self.programs, &PROGRAM[self.sorted_by]);
    }

    fn position(&self) -> Option<usize> {
        self.programs.iter().position(|program| Some(program.key) == self.selected)
    }

    fn selected(&self) -> Option<&Program> {
        self.programs.get(self.position()?)
    }

    fn select(&mut self, step: isize) {
        let last = self.programs.len().saturating_sub(1);
        let at = self.position().unwrap_or(0).saturating_add_signed(step).min(last);
        self.selected = self.programs.get(at).map(|program| program.key);
    }

    fn change_interval(&mut self, step: isize) {
        let now = self.interval.as_millis() as u64;
        let mut intervals = INTERVALS_MS.into_iter();
        let next =
            if step > 0 { intervals.find(|&ms| ms > now) } else { intervals.rfind(|&ms| ms < now) };
        self.interval = next.map_or(self.interval, Duration::from_millis);
    }

    fn coloured(&self, style: Style, colour: Color) -> Style {
        if self.colours { style.fg(colour) } else { style }
    }

    fn draw(&self, frame: &mut Frame) {
        let [title, body, keys] =
            Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)])
                .areas(frame.area());
        frame.render_widget(self.title(), title);
        frame.render_widget(footer(keys.width), keys);
        if self.help {
            let lines: Vec<Line> = HELP.iter().map(|&line| Line::from(line)).collect();
            frame.render_widget(Paragraph::new(lines), body);
        } else if self.programs.is_empty() {
            frame
                .render_widget(Paragraph::new(super::HOW_TO_START).wrap(Wrap { trim: true }), body);
        } else {
            self.draw_programs(frame, body);
        }
    }

    fn title(&self) -> Line<'_> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let state = if self.paused { "paused".into() } else { interval_text(self.interval) };
        let programs = plain::count(self.programs.len(), "program");
        let by = PROGRAM[self.sorted_by].head;
        Line::from(vec![
            Span::styled("uringlet top", self.coloured(bold, Color::Cyan)),
            Span::raw(format!("  {programs}, by {by}, {state}")),
        ])
    }

    fn draw_programs(&self, frame: &mut Frame, area: Rect) {
        let Some(selected) = self.selected() else { return };
        // The programs and their heading take at most half of the rows, but at least two.
        let rows = (self.programs.len() as u16).min((area.height / 2).saturating_sub(1)).max(1);
        let [programs, _, lanes, contexts] = Layout::vertical([
            Constraint::Length(rows + 1),
            Constraint::Length(1),
            Constraint::Length(2),
            Constraint::Fill(1),
        ])
        .areas(area);
        let first = self.position().map_or(0, |at| (at + 1).saturating_sub(usize::from(rows)));
        let shown = self.programs.iter().skip(first).take(usize::from(rows));
        let lines = shown.map(|program| {
            let style = if program.key == selected.key {
                Style::new().add_modifier(Modifier::REVERSED)
            } else {
                Style::new()
            };
            (Cells::from(program), style)
        });
        self.table(frame, programs, &PROGRAM, lines);
        let shown = self.draw_contexts(frame, contexts, selected);
        frame.render_widget(Paragraph::new(about(selected, shown)), lanes);
    }

    /// Draws the contexts of a program that fit, and returns their number.
    fn draw_contexts(&self, frame: &mut Frame, area: Rect, program: &Program) -> usize {
        let engines = engines(&program.contexts);
        // Lines are wrapped between words, so they use a little less than the whole width.
        let width = usize::from(area.width).saturating_sub(8).max(1);
        let wanted: usize = engines.iter().map(|line| line.width().div_ceil(width)).sum();
        let wanted = u16::try_from(wanted).unwrap_or(u16::MAX).min(area.height / 3);
        let engines = Paragraph::new(engines).wrap(Wrap { trim: true });
        let room = area.height.saturating_sub(wanted);
        let lines = u16::try_from(program.contexts.len() + 1).unwrap_or(u16::MAX).min(room);
        let [table, rest] =
            Layout::vertical([Constraint::Length(lines), Constraint::Length(wanted)]).areas(area);
        let shown = usize::from(lines.saturating_sub(1));
        let contexts = program.contexts.iter().take(shown);
        let lines = contexts.map(|context| (Cells::from(context), Style::new()));
        if !program.contexts.is_empty() {
            self.table(frame, table, &CONTEXT, lines);
        }
        frame.render_widget(engines, rest);
        shown
    }

    fn table<'a>(
        &self,
        frame: &mut Frame,
        area: Rect,
        columns: &'static [Column],
        lines: impl Iterator<Item = (Cells<'a>, Style)>,
    ) {
        let columns = columns::fitting(columns, usize::from(area.width));
        let cell = |column: &Column, text: String| {
            let line = Line::from(text);
            Cell::from(if column.is_text() { line } else { line.right_aligned() })
        };
        let heads = columns.iter().map(|column| cell(column, column.head.into()));
        let rows = lines.map(|(cells, style)| {
            Row::new(columns.iter().map(|column| cell(column, (column.cell)(&cells)))).style(style)
        });
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let widths = columns.iter().map(|column| Constraint::Length(column.width as u16));
        let table = Table::new(rows, widths)
            .column_spacing(1)
            .header(Row::new(heads).style(self.coloured(bold, Color::Cyan)));
        frame.render_widget(table, area);
    }
}

fn interval_text(interval: Duration) -> String {
    format!("every {} s", (interval.as_millis() as f64) / 1e3)
}

fn footer(width: u16) -> &'static str {
    match width {
        66.. => "q quit  up/down select  s sort  space pause  +/- interval  ? help",
        _ => "q quit  s sort  space pause  ? help",
    }
}

/// Two lines about a program: its name, and what executes its requests.
fn about(program: &Program, shown: usize) -> Vec<Line<'static>> {
    let mut contexts = plain::count(program.contexts.len(), "context");
    if shown < program.contexts.len() {
        contexts += &format!(", {shown} shown");
    }
    let [waiter, worker, pool, poller, kernel] = program.interval.lanes.shares().map(percent);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let name = format!("{} ({}): {contexts}", program.program, program.pid);
    let lanes =
        format!("waiter {waiter} baton {worker} pool {pool} poller {poller} kernel {kernel}");
    vec![Line::from(Span::styled(name, bold)), Line::from(lanes)]
}

/// A line for each engine and its reason.
fn engines(contexts: &[Context]) -> Vec<Line<'static>> {
    let mut engines: Vec<(&str, usize)> = Vec::new();
    for context in contexts {
        match engines.iter_mut().find(|(engine, _)| *engine == context.engine) {
            Some((_, count)) => *count += 1,
            None => engines.push((&context.engine, 1)),
        }
    }
    engines.iter().map(|(engine, count)| Line::from(format!("{count} × {engine}"))).collect()
}
