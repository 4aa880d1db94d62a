//! Finds regions, the memory with the counters of programs, through descriptors that processes have
//! open.
//!
//! A descriptor's file may be anything: it is checked before it is opened, and opened for reading
//! only.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::rc::Rc;
use uringlet::stats::Region;

/// The maximum number of regions of one process.
const PER_PROCESS: usize = 16;

/// Device and inode: the identity of a region.
pub type Key = (u64, u64);

/// A region, and the ids of the processes that have it open, the lowest first.
pub struct Found {
    pub key: Key,
    pub region: Rc<Region>,
    pub holders: Vec<u32>,
}

/// The regions that a process has open.
#[derive(Default)]
struct Opened {
    regions: Vec<(Key, Rc<Region>)>,
    /// The process has a file open that has a region's name and is no region of this version.
    others: bool,
}

/// Looks for regions repeatedly, and maps each once.
pub struct Finder {
    /// Include processes of other users.
    all_users: bool,
    known: HashMap<Key, Rc<Region>>,
}

/// The reason why a process cannot be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    NoSuchProcess,
    NotPermitted,
    /// The program's counters have the layout of another version.
    OtherVersion,
    NotObserved,
}

impl Finder {
    pub fn new(all_users: bool) -> Self {
        Self { all_users, known: HashMap::new() }
    }

    /// The regions that other processes have open now, as far as this process may look at them.
    /// Processes of other users are included only with `all_users`.
    pub fn look(&mut self) -> io::Result<Vec<Found>> {
        let own_user = Path::new("/proc/self").metadata()?.uid();
        let mut found: Vec<Found> = Vec::new();
        for entry in Path::new("/proc").read_dir()?.flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(pid) = pid.filter(|&pid: &u32| pid != std::process::id()) else { continue };
            let Ok(user) = entry.metadata().map(|process| process.uid()) else { continue };
            if user != own_user && !self.all_users {
                continue;
            }
            for (key, region) in self.opened_by(pid).unwrap_or_default().regions {
                match found.iter_mut().find(|found| found.key == key) {
                    Some(found) => found.holders.push(pid),
                    None => found.push(Found { key, region, holders: vec![pid] }),
                }
            }
        }
        found.iter_mut().for_each(|found| found.holders.sort_unstable());
        self.known.retain(|key, _| found.iter().any(|found| found.key == *key));
        Ok(found)
    }

    /// The reason why [`Finder::look`] finds nothing in a process.
    pub fn why_not(&mut self, pid: u32) -> Unseen {
        match self.opened_by(pid) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Unseen::NotPermitted,
            Err(_) => Unseen::NoSuchProcess,
            Ok(opened) if opened.others => Unseen::OtherVersion,
            Ok(_) => Unseen::NotObserved,
        }
    }

    fn opened_by(&mut self, pid: u32) -> io::Result<Opened> {
        let mut opened = Opened::default();
        let descriptors = Path::new("/proc").join(pid.to_string()).join("fd").read_dir()?;
        for path in descriptors.flatten().map(|entry| entry.path()) {
            let is_ours = std::fs::read_link(&path).is_ok_and(|link| Region::is_linked_as(&link));
            if !is_ours || opened.regions.len() == PER_PROCESS {
                continue;
            }
            match self.region_at(&path) {
                Ok((key, _)) if opened.regions.iter().any(|(other, _)| *other == key) => {}
                Ok(region) => opened.regions.push(region),
                // Other errors do not count: the descriptor may have been closed meanwhile.
                Err(error) => opened.others |= error.kind() == io::ErrorKind::InvalidData,
            }
        }
        Ok(opened)
    }

    fn region_at(&mut self, path: &Path) -> io::Result<(Key, Rc<Region>)> {
        // Opening a pipe or a device has effects, but opening it with O_PATH has none.
        let name = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
        let metadata = name.metadata()?;
        let key = (metadata.dev(), metadata.ino());
        if let Some(region) = self.known.get(&key) {
            return Ok((key, Rc::clone(region)));
        }
        if !metadata.is_file() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let file = File::open(format!("/proc/self/fd/{}", name.as_raw_fd()))?;
        let region = Rc::new(Region::read_from(file)?);
        self.known.insert(key, Rc::clone(&region));
        Ok((key, region))
    }
}
