//! `--forbid`: has the kernel refuse calls, as a container's seccomp profile does.
//!
//! The option is for testing how a program behaves in a sandbox. It is no security boundary.

#![allow(unsafe_code)]

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use uringlet::probe::errno_name;

/// The kernel returns no larger errno to a program.
const ERRNO_MAX: i32 = 4095;

/// The calls that can be forbidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Forbidden {
    /// io_uring_setup, io_uring_enter, io_uring_register
    #[value(name = "io_uring", alias = "io-uring")]
    IoUring,
    /// io_setup and everything else of Linux AIO
    #[value(name = "linux_aio", alias = "linux-aio")]
    LinuxAio,
    /// preadv2 and pwritev2, and with them RWF_NOWAIT
    #[value(name = "preadv2")]
    Preadv2,
    /// Starting threads; new processes are allowed
    #[value(name = "threads")]
    Threads,
    /// What Docker's default profile refuses of all that matters for I/O: io_uring,
    /// perf_event_open, userfaultfd, memory policies; clone3 with ENOSYS
    #[value(name = "docker")]
    Docker,
}

/// The libc crate lacks this number. It is the same on all machines with asm-generic's list of
/// calls (arm64, riscv64).
const SYS_IO_PGETEVENTS: i64 = if cfg!(target_arch = "x86_64") { 333 } else { 292 };

const IO_URING: [i64; 3] =
    [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

impl Forbidden {
    /// System calls that are refused, whatever their arguments.
    fn calls(self) -> Vec<i64> {
        match self {
            Self::IoUring => IO_URING.to_vec(),
            Self::LinuxAio => vec![
                libc::SYS_io_setup,
                libc::SYS_io_submit,
                libc::SYS_io_getevents,
                SYS_IO_PGETEVENTS,
                libc::SYS_io_cancel,
                libc::SYS_io_destroy,
            ],
            Self::Preadv2 => vec![libc::SYS_preadv2, libc::SYS_pwritev2],
            Self::Threads => Vec::new(),
            // moby/profiles/seccomp/default.json, for a container without added capabilities.
            Self::Docker => {
                let others = [
                    libc::SYS_perf_event_open,
                    libc::SYS_userfaultfd,
                    libc::SYS_get_mempolicy,
                    libc::SYS_mbind,
                    libc::SYS_set_mempolicy,
                ];
                [&IO_URING[..], &others].concat()
            }
        }
    }

    /// Does clone3 fail with ENOSYS? A filter cannot read the structure that has clone3's flags.
    /// After ENOSYS, the C library calls clone, whose flags a filter can read (as in Docker).
    fn hides_clone3(self) -> bool {
        matches!(self, Self::Threads | Self::Docker)
    }

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The sandbox for a command itself, or for a program.
#[derive(Args, Clone, Debug)]
pub struct Sandbox {
    /// Have the kernel refuse these, as a container may (a seccomp filter and no_new_privs)
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    forbid: Vec<Forbidden>,

    /// What refused calls return: EPERM, ENOSYS, EACCES, ... or a number from 1 to 4095
    #[arg(
        long,
        value_name = "ERRNO",
        requires = "forbid",
        default_value = "EPERM",
        value_parser = errno,
        allow_hyphen_values = true
    )]
    forbid_errno: i32,
}

fn errno(text: &str) -> Result<i32, String> {
    let text = text.trim();
    let found = match text.parse::<i32>() {
        Ok(number) => Some(number).filter(|number| (1..=ERRNO_MAX).contains(number)),
        Err(_) => (1..=ERRNO_MAX)
            .find(|&errno| errno_name(errno).is_some_and(|name| name.eq_ignore_ascii_case(text))),
    };
    found.ok_or_else(|| {
        let expected = "expected the name of an errno such as EPERM or ENOSYS";
        format!("{expected}, or a number from 1 to {ERRNO_MAX}")
    })
}

impl Sandbox {
    /// The forbidden calls, without repeats, and the name of the errno; `None` if there are none.
    pub fn description(&self) -> Option<(Vec<String>, String)> {
        let mut names: Vec<String> = Vec::new();
        for name in self.forbid.iter().map(|what| what.name()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let errno = errno_name(self.forbid_errno)
            .map_or_else(|| self.forbid_errno.to_string(), str::to_owned);
        (!names.is_empty()).then_some((names, errno))
    }

    /// The forbidden calls, for people.
    pub fn notice(&self) -> Option<String> {
        let (names, errno) = self.description()?;
        Some(format!("forbidden here: {} ({errno})", names.join(", ")))
    }

    /// Puts this process, with all its threads, into the sandbox permanently.
    ///
    /// # Errors
    /// The kernel has no seccomp filters, or not for this kind of processor.
    pub fn enter(&self) -> Result<()> {
        for program in self.programs()? {
            seccompiler::apply_filter_all_threads(&program)
                .context("--forbid: the kernel refuses the seccomp filter")?;
        }
        Ok(())
    }

    /// Has the program enter the sandbox before it begins.
    ///
    /// # Errors
    /// There are no seccomp filters for this kind of processor.
    pub fn lock_in(&self, command: &mut Command) -> Result<()> {
        let programs = self.programs()?;
        if programs.is_empty() {
            return Ok(());
        }
        let enter = move || {
            for program in &programs {
                seccompiler::apply_filter(program).map_err(|error| match error {
                    seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
                    _ => io::Error::from_raw_os_error(libc::EINVAL),
                })?;
            }
            Ok(())
        };
        // SAFETY: the closure runs between fork and exec. The filters are ready; applying one makes
        // two system calls and allocates nothing.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }

    /// The filters to install, one after the other: each has one errno.
    fn programs(&self) -> Result<Vec<BpfProgram>> {
        let mut refused: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
        for what in &self.forbid {
            refused.extend(what.calls().into_iter().map(|call| (call, Vec::new())));
        }
        if self.forbid.contains(&Forbidden::Threads) {
            let flag = libc::CLONE_THREAD as u64;
            let starts_thread = SeccompCondition::new(
                0,
                SeccompCmpArgLen::Qword,
                SeccompCmpOp::MaskedEq(flag),
                flag,
            )?;
            refused.insert(libc::SYS_clone, vec![SeccompRule::new(vec![starts_thread])?]);
        }
        let mut programs = Vec::new();
        if self.forbid.iter().any(|what| what.hides_clone3()) {
            let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
            programs.push(compile(clone3, libc::ENOSYS)?);
        }
        if !refused.is_empty() {
            programs.push(compile(refused, self.forbid_errno)?);
        }
        Ok(programs)
    }
}

fn compile(calls: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> Result<BpfProgram> {
    let processor = std::env::consts::ARCH;
    let target = processor.try_into().with_context(|| {
        format!("--forbid: {processor} processors have no filters here, x86_64 and aarch64 have")
    })?;
    let errno = u32::try_from(errno).context("--forbid-errno")?;
    let refuse = SeccompAction::Errno(errno);
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, refuse, target)?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(forbid: &[Forbidden]) -> Sandbox {
        Sandbox { forbid: forbid.to_vec(), forbid_errno: libc::EPERM }
    }

    #[test]
    fn errnos_have_names_and_numbers() {
        for (text, number) in [
            ("EPERM", 1),
            ("enosys", 38),
            ("EINVAL", 22),
            (" EACCES ", 13),
            ("7", 7),
            ("4095", 4095),
        ] {
            assert_eq!(errno(text), Ok(number), "{text}");
        }
        for text in ["", "0", "-1", "4096", "EPERMX", "1e3", "permission"] {
            assert!(errno(text).unwrap_err().contains("a number from 1 to 4095"), "{text}");
        }
    }

    #[test]
    fn repeats_are_described_once_and_nothing_needs_no_filter() {
        assert_eq!(sandbox(&[]).description(), None);
        assert!(sandbox(&[]).programs().unwrap().is_empty());
        let twice = sandbox(&[Forbidden::IoUring, Forbidden::Docker, Forbidden::IoUring]);
        let names = vec!["io_uring".to_owned(), "docker".to_owned()];
        assert_eq!(twice.description(), Some((names, "EPERM".to_owned())));
        assert_eq!(twice.programs().unwrap().len(), 2);
        assert_eq!(sandbox(&[Forbidden::Preadv2]).programs().unwrap().len(), 1);
    }
}
