//! What `uringlet run` hears of a program. For example: a drop-in was loaded, or a set-up (of a
//! context or a ring) was made or refused. These events are counted in a [`Region`] of memory,
//! which the command has made.

use crate::stats::Region;

/// Something that happened in one of the processes of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A drop-in was loaded into a process.
    Loaded,
    /// A context was made.
    Made,
    /// A context was not made, for this errno.
    Refused(u8),
    /// A set-up was left to the kernel: the program enters rings by its own system call
    /// instructions, which the drop-in does not see.
    LeftToKernel,
    /// A set-up was left to the kernel: `URINGLET_IO_URING` is `if-refused`, and the kernel does
    /// not refuse io_uring.
    SteppedAside,
    /// A set-up was left to the kernel, because the library does not serve its kind.
    Unserved,
    /// A process got a filter of seccomp(2).
    Filtered,
}

/// The number under which the region counts this event.
fn kind(what: Seen) -> usize {
    match what {
        Seen::Loaded => 0,
        Seen::Made => 1,
        Seen::LeftToKernel => 2,
        Seen::SteppedAside => 3,
        Seen::Unserved => 4,
        Seen::Filtered => 5,
        Seen::Refused(errno) => 256 + usize::from(errno),
    }
}

/// Counts this event in the region.
pub fn note(region: &Region, what: Seen) {
    region.note(kind(what));
}

/// How often this event was counted.
pub fn count(region: &Region, what: Seen) -> u64 {
    region.noted(kind(what))
}

/// How many set-ups were refused, and for which errnos.
pub fn refused(region: &Region) -> (u64, Vec<u8>) {
    let count = |errno: &u8| count(region, Seen::Refused(*errno));
    let errnos: Vec<u8> = (0..=u8::MAX).filter(|errno| count(errno) > 0).collect();
    // Any process of the program can write any counts, so their sum may overflow.
    (errnos.iter().map(count).fold(0, u64::wrapping_add), errnos)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_counted_by_itself_where_another_mapping_reads_it() {
        let region = Region::create().unwrap();
        let joined = Region::join(&region.path()).unwrap();
        let all = [
            Seen::Loaded,
            Seen::Made,
            Seen::LeftToKernel,
            Seen::SteppedAside,
            Seen::Unserved,
            Seen::Filtered,
            Seen::Refused(0),
            Seen::Refused(u8::MAX),
        ];
        for (times, &what) in (1..).zip(&all) {
            (0..times).for_each(|_| note(&joined, what));
        }
        for (times, &what) in (1..).zip(&all) {
            assert_eq!(count(&region, what), times, "{what:?}");
        }
        assert_eq!(refused(&region), (7 + 8, vec![0, u8::MAX]));
    }
}
