//! CPU cycles of the whole machine, if its counters can be read (perf_event_open(2)).

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Error, Read as _};
use std::os::fd::FromRawFd as _;
use uringlet::affinity::CpuSet;

/// The first version of `struct perf_event_attr`. The kernel takes later fields as 0.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    address: u64,
}

/// The values of PERF_TYPE_HARDWARE and PERF_COUNT_HW_CPU_CYCLES.
const HARDWARE: u32 = 0;
const CPU_CYCLES: u64 = 0;

/// A running counter on each CPU.
pub struct Cycles(Vec<File>);

impl Cycles {
    /// Starts counting.
    ///
    /// # Errors
    /// A text: the machine has no such counter, or this user may not use the counter. Many virtual
    /// machines have none.
    pub fn start(cpus: &CpuSet) -> Result<Self, String> {
        let open = |cpu: usize| {
            let size = size_of::<Attributes>() as u32;
            let attributes =
                Attributes { kind: HARDWARE, size, config: CPU_CYCLES, ..Attributes::default() };
            // SAFETY: the structure is as long as it says; -1 stands for every process, and for no
            // group.
            let fd = unsafe {
                libc::syscall(
                    libc::SYS_perf_event_open,
                    &raw const attributes,
                    -1,
                    cpu as i32,
                    -1,
                    8,
                )
            };
            if fd < 0 {
                return Err(format!("perf_event_open: {}", Error::last_os_error()));
            }
            // SAFETY: a new descriptor, and nobody else's.
            Ok(unsafe { File::from_raw_fd(fd as i32) })
        };
        cpus.iter().map(open).collect::<Result<_, _>>().map(Self)
    }

    /// The number of cycles on all CPUs since the start.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn count(&mut self) -> Result<u64, String> {
        let read = |file: &mut File| {
            let mut count = [0; 8];
            let read = file.read_exact(&mut count);
            read.map(|()| u64::from_ne_bytes(count)).map_err(|error| format!("perf event: {error}"))
        };
        self.0.iter_mut().map(read).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_grow_or_there_is_a_reason() {
        assert_eq!(size_of::<Attributes>(), 64, "PERF_ATTR_SIZE_VER0");
        let cpus = uringlet::affinity::thread_affinity().unwrap();
        let counts = Cycles::start(&cpus).and_then(|mut cycles| {
            let before = cycles.count()?;
            let sum: u64 = (0..100_000u64).map(std::hint::black_box).sum();
            Ok((before, cycles.count()?, sum))
        });
        match counts {
            Ok((before, after, _)) => assert!(after > before),
            Err(reason) => crate::skip::skipped("cycles_grow_or_there_is_a_reason", reason),
        }
    }
}
