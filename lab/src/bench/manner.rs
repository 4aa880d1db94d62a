//! How a program hands requests over, and learns of their completion.

use clap::ValueEnum;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use serde::Serialize;
use std::io::Error;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use strum::IntoStaticStr;

/// How a program hands requests over, and learns of their completion. It waits until at least one
/// is complete, takes all completions, and submits new requests in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Manner {
    /// As many as there is room for in one call, as fio with --iodepth_batch
    #[strum(serialize = "all in a call")]
    AllInACall,
    /// A call for each request, as most programs
    #[strum(serialize = "one in a call")]
    OneInACall,
    /// A call for each request, completions by an eventfd in epoll_wait(2), as QEMU and nginx
    #[strum(serialize = "event loop")]
    EventLoop,
}

impl Manner {
    /// The name on the command line, in CSV and in JSON: `one-in-a-call`.
    pub fn name(self) -> String {
        self.label().replace(' ', "-")
    }

    /// The name in the table: `one in a call`.
    pub fn label(self) -> &'static str {
        self.into()
    }
}

/// Sleeps until an eventfd was counted up.
pub struct EventLoop {
    epoll: OwnedFd,
    eventfd: OwnedFd,
}

impl EventLoop {
    /// An event loop that watches an eventfd of its own.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn new() -> Result<Self, String> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Self::watching(eventfd(0, flags).map_err(failed)?)
    }

    /// An event loop that watches this eventfd.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn watching(eventfd: OwnedFd) -> Result<Self, String> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        epoll::add(&epoll, &eventfd, data, flags).map_err(failed)?;
        Ok(Self { epoll, eventfd })
    }

    pub fn eventfd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    /// Sleeps until the eventfd was counted up, and reads its count. False: a signal has ended the
    /// sleep.
    ///
    /// # Errors
    /// The errors of the calls.
    pub fn wait(&self) -> Result<bool, Error> {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: NO_DATA }];
        match epoll::wait(&self.epoll, &mut events, None) {
            // A signal (such as Ctrl-C) is no error: the caller's loop continues.
            Err(Errno::INTR) | Ok(0) => return Ok(false),
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
        rustix::io::read(&self.eventfd, &mut [0; 8])?;
        Ok(true)
    }
}

fn failed(error: Errno) -> String {
    format!("no event loop: {error}")
}

const NO_DATA: epoll::EventData = epoll::EventData::new_u64(0);
