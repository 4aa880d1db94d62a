//! Mounts that only one thread and its programs see, and loop devices that end with their last
//! descriptor.

#![allow(unsafe_code)]

use linux_raw_sys::loop_device::{
    LO_FLAGS_AUTOCLEAR, LO_FLAGS_DIRECT_IO, LOOP_CONFIGURE, LOOP_CTL_GET_FREE, loop_config,
};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};
use rustix::thread::UnshareFlags;
use std::ffi::CString;
use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

/// The mount point, in a namespace of its own.
const AT: &str = "/mnt";

/// Gives the calling thread, and the threads and programs that it starts, mounts of their own, and
/// an empty folder to mount on. The mounts end with the last of these threads and programs.
///
/// # Errors
/// A text: the right to administer the system is needed.
pub fn own_namespace() -> Result<Mount, String> {
    // SAFETY: a thread that has mounts of its own keeps its memory and descriptors.
    let own = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) };
    own.map_err(|error| {
        format!("mounts of its own are refused (unshare(2): {error}); it takes root")
    })?;
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    mount_change("/", private).map_err(|error| format!("/ cannot be made private: {error}"))?;
    Mount::new("tmpfs", Path::new(AT), "tmpfs", "mode=700", UnmountFlags::empty())
}

/// A mount that ends when this value is dropped.
pub struct Mount {
    pub at: PathBuf,
    flags: UnmountFlags,
}

impl Mount {
    /// Mounts by mount(2). `flags` are for the later unmount.
    ///
    /// # Errors
    /// A text that says which step failed, and why.
    pub fn new(
        source: &str,
        at: &Path,
        kind: &str,
        options: &str,
        flags: UnmountFlags,
    ) -> Result<Self, String> {
        let options = CString::new(options).expect("numbers, and names of ours");
        let set = MountFlags::NODEV | MountFlags::NOSUID;
        let done = mount(source, at, kind, set, &*options);
        let failed =
            |error| format!("cannot mount {source} as {kind} on {}: {error}", at.display());
        done.map(|()| Self { at: at.into(), flags }).map_err(failed)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // With MNT_DETACH, a mount that is in use ends when its last use ends.
        if unmount(&self.at, self.flags).is_err() {
            let _ = unmount(&self.at, self.flags | UnmountFlags::DETACH);
        }
    }
}

/// The device ends with its last descriptor and mount. It bypasses the page cache, if the file
/// allows direct I/O.
const LOOP_FLAGS: u32 = LO_FLAGS_AUTOCLEAR as u32 | LO_FLAGS_DIRECT_IO as u32;

/// A loop device.
pub struct Loop {
    /// Stays open, because the device ends with its last descriptor.
    _device: File,
    pub path: PathBuf,
}

impl Loop {
    /// Makes a device on an image.
    ///
    /// # Errors
    /// A text that says which step failed, and why.
    pub fn attach(image: &Path) -> Result<Self, String> {
        let open = |path: &Path| {
            let opened = File::options().read(true).write(true).open(path);
            opened.map_err(|error| format!("{}: {error}", path.display()))
        };
        let (image, control) = (open(image)?, open(Path::new("/dev/loop-control"))?);
        loop {
            // SAFETY: this call takes no argument.
            let free = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE.into()) };
            if free < 0 {
                return Err(format!("no free loop device: {}", Error::last_os_error()));
            }
            let path = PathBuf::from(format!("/dev/loop{free}"));
            let device = open(&path)?;
            // SAFETY: the structure has only integers, for which zero is valid.
            let mut config: loop_config = unsafe { std::mem::zeroed() };
            config.fd = image.as_raw_fd() as u32;
            // The block size of the device: direct transfers are multiples of it.
            config.block_size = 4096;
            config.info.lo_flags = LOOP_FLAGS;
            let (device_fd, configure) = (device.as_raw_fd(), LOOP_CONFIGURE.into());
            // SAFETY: `config` is the structure that this call reads.
            if unsafe { libc::ioctl(device_fd, configure, &raw const config) } == 0 {
                return Ok(Self { _device: device, path });
            }
            let error = Error::last_os_error();
            // EBUSY: another process has taken the device meanwhile. The next free device is tried.
            if error.raw_os_error() != Some(libc::EBUSY) {
                return Err(format!("{}: LOOP_CONFIGURE: {error}", path.display()));
            }
        }
    }
}
