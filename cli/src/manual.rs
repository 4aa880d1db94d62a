//! `uringlet man`: manual pages, made from the same definitions as `--help`.

use crate::{Cli, machine, session};
use anyhow::Result;
use clap::{Args, Command, CommandFactory as _};
use clap_mangen::Man;
use roff::{Roff, roman};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use uringlet_lab::named;

const HELP: &str = include_str!("../help/man.txt");

/// Prints the manual page of a command, or writes all pages into a folder.
#[derive(Args)]
#[command(after_help = session::help(&[HELP]))]
pub struct Arguments {
    /// The command; without one, uringlet itself
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,

    /// Write every page into this folder, which is made if it is not there
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    out: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// The folder cannot be written to, or standard output cannot be written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut all = Cli::command().disable_help_subcommand(true);
    all.build();
    if let Some(folder) = &arguments.out {
        let made = std::fs::create_dir_all(folder).and_then(|()| write_pages(&all, folder));
        made.map_err(|error| {
            let folder = folder.display();
            session::refusal(format_args!("--out: cannot write into {folder}: {error}"))
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut command = &all;
    for name in &arguments.command {
        let Some(found) = command.find_subcommand(name) else {
            let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            let expected =
                if names.is_empty() { "nothing after it".into() } else { names.join(", ") };
            let of = command.get_bin_name().unwrap_or_else(|| command.get_name());
            return Err(session::refusal(format_args!(
                "COMMAND is {name}, expected of {of}: {expected}"
            )));
        };
        command = found;
    }
    session::say(&page(command)?)?;
    Ok(ExitCode::SUCCESS)
}

fn write_pages(command: &Command, folder: &Path) -> std::io::Result<()> {
    let path = folder.join(format!("{}.1", page_name(command)));
    let mut options = File::options();
    let file = named::open_to_write(options.write(true).create(true).truncate(true), &path);
    file?.write_all(page(command)?.as_bytes())?;
    command.get_subcommands().try_for_each(|below| write_pages(below, folder))
}

/// The name of a command's page, such as `uringlet-reproduce-lookup`.
fn page_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// A page: the description of the options, then the text below them under headings of its own.
fn page(command: &Command) -> std::io::Result<String> {
    let text = command.get_after_long_help().or(command.get_after_help());
    let text = text.map(ToString::to_string).unwrap_or_default();
    let bare = command.clone().after_help(None::<&str>).after_long_help(None::<&str>);
    let mut page = Vec::new();
    Man::new(bare)
        .title(page_name(command).to_uppercase())
        .source(format!("uringlet {}", machine::VERSION))
        .render(&mut page)?;
    let mut rest = sections(&text);
    let parent = page_name(command).strip_suffix(command.get_name());
    if let Some(parent) = parent.and_then(|name| name.strip_suffix('-')) {
        rest.control("SH", ["SEE ALSO"]).text([roman(format!("{parent}(1)"))]);
    }
    page.extend(rest.to_roff().bytes());
    Ok(portable(&String::from_utf8_lossy(&page)))
}

/// Writes characters beyond ASCII as codes, which every roff understands. Some versions of roff
/// take the bytes of such characters as Latin-1.
fn portable(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    for character in page.chars() {
        match character {
            '\0'..='\x7f' => text.push(character),
            other => text.push_str(&format!("\\[u{:04X}]", u32::from(other))),
        }
    }
    text
}

/// The text below the options: examples are copied, everything else is filled.
fn sections(text: &str) -> Roff {
    let mut roff = Roff::new();
    let mut in_notes = false;
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
        if let Some(lines) = paragraph.strip_prefix("Examples:\n") {
            roff.control("SH", ["EXAMPLES"]).control("nf", []);
            for line in lines.lines() {
                roff.text([roman(line.trim_start())]);
            }
            roff.control("fi", []);
        } else if let Some(words) = paragraph.strip_prefix("Exit status: ") {
            roff.control("SH", ["EXIT STATUS"]).text([roman(words)]);
        } else {
            match in_notes {
                true => roff.control("PP", []),
                false => roff.control("SH", ["NOTES"]),
            };
            in_notes = true;
            roff.text([roman(paragraph)]);
        }
    }
    roff
}
