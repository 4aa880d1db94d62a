//! The steps: programs on a mounted image, timed until their writes are on the disk.

#![allow(unsafe_code)]

use super::image::{Image, Part, Served};
use super::mount::{Loop, Mount};
use crate::session;
use rustix::fs::MemfdFlags;
use rustix::mount::UnmountFlags;
use rustix::process::{
    Pid, Signal, kill_process_group, set_parent_process_death_signal, test_kill_process_group,
};
use serde::Serialize;
use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use uringlet::Builder;

/// The timed steps, as published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum Step {
    Mkfs,
    Untar,
    Make,
    Clean,
}

impl Step {
    pub const ALL: [Self; 4] = [Self::Mkfs, Self::Untar, Self::Make, Self::Clean];

    fn command(self, stage: &Stage, tar: &File) -> Result<Command, String> {
        let program = match self {
            Self::Mkfs => "mkfs.ext4",
            Self::Untar => "tar",
            Self::Make | Self::Clean => "make",
        };
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        match self {
            // mkfs writes everything, and leaves nothing for the kernel to write later.
            Self::Mkfs => command
                .args(["-q", "-F", "-b", "4096", "-E"])
                .arg("lazy_itable_init=0,lazy_journal_init=0,nodiscard")
                .arg(&stage.device.path),
            Self::Untar => {
                // Opens the file again, because each program needs its own file offset.
                let path = format!("/proc/self/fd/{}", tar.as_raw_fd());
                let tar = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
                command.args(["--no-same-owner", "-x", "-C"]).arg(&stage.tree).stdin(tar)
            }
            Self::Make => command.args(["-j4", "-C"]).arg(&stage.tree),
            Self::Clean => command.arg("-C").arg(&stage.tree).arg("clean"),
        };
        // Some users do not have the folder of mkfs in their PATH.
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        path.push(":/usr/sbin:/sbin");
        command.env("PATH", path).env_remove("MAKEFLAGS").env("LC_ALL", "C").process_group(0);
        // If this process is killed, its programs have to end, too: they would keep the mounts.
        let die_with_us = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
        // SAFETY: between fork and exec, the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(die_with_us) };
        Ok(command)
    }
}

/// An image with a loop device on it, and a file system once it was made. Its fields are dropped in
/// their order, and leave nothing behind.
pub struct Stage {
    mount: Option<Mount>,
    device: Loop,
    image: Image,
    tree: PathBuf,
}

impl Stage {
    /// # Errors
    /// A text that says which step failed, and why.
    pub fn new(
        folder: &Path,
        number: usize,
        file: &File,
        part: Part,
        builder: &Builder,
    ) -> Result<Self, String> {
        // The kernel shows the path of a loop device's file. The path has the ID of this process,
        // so that devices that are left behind can be found.
        let at = |name: &str| folder.join(format!("{name}-{}-{number}", std::process::id()));
        let (image, tree) = (at("image"), at("tree"));
        let made = File::create(&image).and_then(|_| std::fs::create_dir(&tree));
        made.map_err(|error| format!("{}: {error}", folder.display()))?;
        let image = Image::mount(&image, file, part, builder)?;
        Ok(Self { mount: None, device: Loop::attach(&image.path)?, image, tree })
    }

    /// Mounts the file system that mkfs made. If it is mounted, it is unmounted first, so that
    /// nothing of it stays in the page cache.
    ///
    /// # Errors
    /// A text that says which step failed, and why.
    pub fn mount(&mut self) -> Result<(), String> {
        drop(self.mount.take());
        let device = self.device.path.to_string_lossy();
        self.mount = Some(Mount::new(&device, &self.tree, "ext4", "", UnmountFlags::empty())?);
        Ok(())
    }

    /// Unmounts everything, and returns the counts of the image's context.
    ///
    /// # Errors
    /// As [`Image::end`].
    pub fn end(self) -> Result<Served, String> {
        let Self { mount, device, image, .. } = self;
        drop(mount);
        drop(device);
        image.end()
    }

    /// Runs a step, and returns its seconds.
    fn run(&self, step: Step, tar: &File) -> Result<f64, String> {
        let said = in_memory(b"")?;
        let output = || said.try_clone().map_err(|error| error.to_string());
        let mut command = step.command(self, tar)?;
        command.stdout(output()?).stderr(output()?);
        let begin = Instant::now();
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
        let status = wait(child).map_err(|error| format!("{program}: {error}"))?;
        if !status.success() {
            return Err(format!("{program} failed ({status}){}", last_line(&said)));
        }
        if self.mount.is_some() {
            let failed = |error| format!("{}: {error}", self.tree.display());
            let folder = File::open(&self.tree).map_err(failed)?;
            let synced = rustix::fs::syncfs(&folder);
            synced.map_err(|error| format!("syncfs after {program}: {error}"))?;
        }
        Ok(begin.elapsed().as_secs_f64())
    }
}

/// Runs a step on all stages in parallel, and returns the seconds of each.
///
/// # Errors
/// The first error of any stage.
pub fn side_by_side(step: Step, stages: &[Stage], tar: &File) -> Result<Vec<f64>, String> {
    std::thread::scope(|scope| {
        let run = |stage| scope.spawn(move || Stage::run(stage, step, tar));
        let threads: Vec<_> = stages.iter().map(run).collect();
        let panicked = |_| Err("a measuring thread has panicked".into());
        let ended = threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked));
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

/// Waits for a program; after Ctrl-C, kills it and its descendants.
fn wait(mut child: Child) -> Result<ExitStatus, Error> {
    let mut interrupted = false;
    session::until_ended(&child, |group| {
        // The program was not reaped, so no other process group can have its number.
        let _ = kill_process_group(group, Signal::KILL);
        interrupted = true;
    });
    if interrupted {
        end_group(&mut child);
        return Err(ErrorKind::Interrupted.into());
    }
    child.wait()
}

/// Waits for the descendants of an ended program, so that nothing uses its file system any longer.
fn end_group(child: &mut Child) {
    let group = Pid::from_child(child);
    let _ = child.wait();
    // Children of the ended process have another parent now; they will end soon.
    for _ in 0..1000 {
        if test_kill_process_group(group).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A file in memory with this content.
///
/// # Errors
/// A text that says which step failed, and why.
pub fn in_memory(content: &[u8]) -> Result<File, String> {
    let file = rustix::fs::memfd_create("uringlet", MemfdFlags::CLOEXEC).map(File::from);
    let filled = file.map_err(Error::from);
    let filled = filled.and_then(|mut file| file.write_all(content).map(|()| file));
    filled.map_err(|error| format!("no file in memory: {error}"))
}

/// The last line of a program's output, after a colon.
fn last_line(mut said: &File) -> String {
    let mut text = String::new();
    let read = said.rewind().and_then(|()| said.read_to_string(&mut text));
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.filter(|_| read.is_ok()).map_or_else(String::new, |line| format!(": {}", line.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_quoted_with_its_last_line() {
        let said = in_memory(b"").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo first; echo last >&2; echo; exit 3"]);
        command.stdout(said.try_clone().unwrap()).stderr(said.try_clone().unwrap());
        assert_eq!(wait(command.spawn().unwrap()).unwrap().code(), Some(3));
        assert_eq!(last_line(&said), ": last");
        assert_eq!(last_line(&in_memory(b"").unwrap()), "");
    }
}
