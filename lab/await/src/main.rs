//! One awaited 4 KiB read: uringlet beside other runtimes, plain pread and fio.
//!
//! A cell is a row (a runtime) in a column (the state of the blocks) at a depth. A cell runs in a
//! process of its own. The rows of a column run one after the other in each round. A cell's figure
//! is the median of its rounds.

mod block;
mod page;
mod plan;
mod rows;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};

use self::plan::{Column, Plan};
use self::rows::{Measured, Row};

/// Measures one awaited 4 KiB read, on every runtime that is asked for.
///
/// In a sandbox: `uringlet run --forbid docker -- uringlet-await FILE`.
#[derive(Parser)]
struct Arguments {
    /// A file on the file system that is to be measured, made if it is not there.
    file: PathBuf,
    /// The size of the file in MiB.
    #[arg(long, default_value_t = 2048)]
    size: u64,
    /// Rounds, of which the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Reads in each cell and round; a tenth of them where they are cold or direct.
    #[arg(long, default_value_t = 200_000)]
    reads: usize,
    /// Reads in flight.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64])]
    depths: Vec<usize>,
    #[arg(long, value_delimiter = ',', value_enum,
          default_values_t = [Column::Cached, Column::Cold, Column::Direct, Column::Mixed])]
    columns: Vec<Column>,
    /// All, if none is named.
    #[arg(long, value_delimiter = ',', value_enum)]
    rows: Vec<Row>,
    /// Threads of tokio's runtime; 0: it runs on the calling thread.
    #[arg(long, default_value_t = 0)]
    workers: usize,
    /// Where the figures go as JSON, with every round.
    #[arg(long)]
    json: Option<PathBuf>,
    /// The file for the figures as a page.
    #[arg(long)]
    html: Option<PathBuf>,
    /// Measures one cell in this process, as ROW:COLUMN:DEPTH.
    #[arg(long, hide = true)]
    cell: Option<String>,
}

/// One cell of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Cell {
    row: Row,
    column: Column,
    depth: usize,
    rounds: Vec<Measured>,
    /// The reason why there is no figure.
    refused: Option<String>,
}

/// All results.
#[derive(Debug, Serialize, Deserialize)]
struct Table {
    kernel: String,
    cpus: usize,
    file: PathBuf,
    uringlet: String,
    workers: usize,
    reads: usize,
    /// io_uring_setup(2) is refused here, with this errno.
    io_uring_refused: Option<i32>,
    cells: Vec<Cell>,
}

impl Cell {
    /// The median of a figure.
    fn median(&self, of: impl Fn(&Measured) -> Option<f64>) -> Option<f64> {
        let mut all: Vec<f64> = self.rounds.iter().filter_map(of).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(cell) = &arguments.cell {
        return measure_here(&arguments, cell);
    }
    if cfg!(debug_assertions) {
        eprintln!("warning: this is a debug build, whose figures say nothing");
    }
    plan::make_file(&arguments.file, arguments.size << 20)?;
    let rows = if arguments.rows.is_empty() { Row::ALL } else { &arguments.rows };
    let mut cells = Vec::new();
    for &column in &arguments.columns {
        for &depth in &arguments.depths {
            let first = cells.len();
            cells.extend(rows.iter().map(|&row| {
                let (rounds, refused) = (Vec::new(), None);
                Cell { row, column, depth, rounds, refused }
            }));
            for round in 0..arguments.rounds {
                for at in 0..rows.len() {
                    // Each round begins with another row.
                    let cell = &mut cells[first + (at + round) % rows.len()];
                    measure(&arguments, cell)?;
                }
            }
            print(&cells[first..]);
        }
    }
    let uname = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let table = Table {
        kernel: uname.trim().to_owned(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        file: arguments.file.clone(),
        uringlet: uringlet::fs::Fs::builder().build()?.choice().to_string(),
        workers: arguments.workers,
        reads: arguments.reads,
        io_uring_refused: io_uring_refused(),
        cells,
    };
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_vec_pretty(&table)?)?;
    }
    if let Some(path) = &arguments.html {
        std::fs::write(path, page::page(&table))?;
    }
    Ok(())
}

fn io_uring_refused() -> Option<i32> {
    // SAFETY: the address of the structure is null, so the kernel writes nothing. The errno is
    // EFAULT, or that of a refusal.
    unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, std::ptr::null_mut::<u8>()) };
    let errno = std::io::Error::last_os_error().raw_os_error();
    errno.filter(|&errno| errno != libc::EFAULT)
}

/// Runs a cell once, in a process of its own.
fn measure(arguments: &Arguments, cell: &mut Cell) -> Result<()> {
    if cell.refused.is_some() {
        return Ok(());
    }
    let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
        value().expect("it has a name").get_name().to_owned()
    };
    let row = name(&|| cell.row.to_possible_value());
    let column = name(&|| cell.column.to_possible_value());
    let output = Command::new(std::env::current_exe()?)
        .arg(&arguments.file)
        .arg(format!("--cell={row}:{column}:{}", cell.depth))
        .arg(format!("--reads={}", arguments.reads))
        .arg(format!("--workers={}", arguments.workers))
        .output()?;
    if output.status.success() {
        cell.rounds.push(serde_json::from_slice(&output.stdout)?);
        return Ok(());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = error.lines().collect();
    // The message of a panic is on the line after the one with the source location.
    let panics = lines.iter().position(|line| line.contains("panicked at")).map(|at| at + 1);
    let told = lines.iter().position(|line| line.starts_with("Error: ")).or(panics);
    let line = told.and_then(|at| lines.get(at)).or(lines.last()).unwrap_or(&"no reason given");
    cell.refused = Some(line.trim_start_matches("Error: ").to_owned());
    Ok(())
}

fn measure_here(arguments: &Arguments, cell: &str) -> Result<()> {
    let mut parts = cell.split(':');
    let mut part = || parts.next().context("ROW:COLUMN:DEPTH");
    let row = Row::from_str(part()?, true).map_err(anyhow::Error::msg)?;
    let column = Column::from_str(part()?, true).map_err(anyhow::Error::msg)?;
    let depth = part()?.parse()?;
    let waits = matches!(column, Column::Cold | Column::Direct);
    let reads = if waits { (arguments.reads / 10).max(depth) } else { arguments.reads };
    let plan = Plan::prepare(&arguments.file, column, depth, reads)?;
    let measured = rows::measure(row, &plan, arguments.workers)?;
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &measured)?;
    out.flush()?;
    // Ends the process, even if a runtime has left threads behind.
    std::process::exit(0);
}

fn print(cells: &[Cell]) {
    let Some(first) = cells.first() else { return };
    println!("\n{:?}, {} in flight", first.column, first.depth);
    println!("{:16} {:>10} {:>10} {:>10} {:>10}", "", "reads/s", "CPU us", "p99 us", "stall us");
    for cell in cells {
        let name = cell.row.to_possible_value().map(|value| value.get_name().to_owned());
        let name = name.unwrap_or_default();
        if let Some(refused) = &cell.refused {
            println!("{name:16} {refused}");
            continue;
        }
        let figure = |of: fn(&Measured) -> Option<f64>, digits: usize| {
            cell.median(of).map_or("-".to_owned(), |figure| format!("{figure:.digits$}"))
        };
        println!(
            "{name:16} {:>10} {:>10} {:>10} {:>10}",
            figure(|one| Some(one.reads_per_second), 0),
            figure(|one| Some(one.cpu_us_per_read), 2),
            figure(|one| Some(one.p99_us), 1),
            figure(|one| one.stall_us, 0),
        );
    }
}
