//! The layouts and numbers of linux/io_uring.h and liburing.h, on 64-bit machines.

/// The maximum number of bytes that one transfer moves. As in the kernel, longer transfers are
/// shortened to it (read(2)).
pub(crate) const MAX_RW_COUNT: u32 = 0x7fff_f000;

/// `struct io_sqring_offsets`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SqOffsets {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) ring_mask: u32,
    pub(crate) ring_entries: u32,
    pub(crate) flags: u32,
    pub(crate) dropped: u32,
    pub(crate) array: u32,
    pub(crate) resv1: u32,
    pub(crate) user_addr: u64,
}

/// `struct io_cqring_offsets`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CqOffsets {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) ring_mask: u32,
    pub(crate) ring_entries: u32,
    pub(crate) overflow: u32,
    pub(crate) cqes: u32,
    pub(crate) flags: u32,
    pub(crate) resv1: u32,
    pub(crate) user_addr: u64,
}

/// `struct io_uring_params`, 120 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Params {
    pub(crate) sq_entries: u32,
    pub(crate) cq_entries: u32,
    pub(crate) flags: u32,
    pub(crate) sq_thread_cpu: u32,
    pub(crate) sq_thread_idle: u32,
    pub(crate) features: u32,
    pub(crate) wq_fd: u32,
    pub(crate) resv: [u32; 3],
    pub(crate) sq_off: SqOffsets,
    pub(crate) cq_off: CqOffsets,
}

/// `struct io_uring_cqe`, without the part that CQE32 adds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Cqe {
    pub(crate) user_data: u64,
    pub(crate) res: i32,
    pub(crate) flags: u32,
}

/// `struct io_uring_getevents_arg`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GetEventsArg {
    pub(crate) sigmask: u64,
    pub(crate) sigmask_sz: u32,
    pub(crate) min_wait_usec: u32,
    pub(crate) ts: u64,
}

/// `struct __kernel_timespec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Timespec {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: i64,
}

impl Timespec {
    /// The time in nanoseconds. `Err`: `-EINVAL`, because a part of the time is negative.
    pub(crate) fn in_nanoseconds(self) -> Result<u64, i32> {
        if self.seconds < 0 || self.nanoseconds < 0 {
            return Err(-libc::EINVAL);
        }
        Ok(self.of_wait())
    }

    /// The time of a wait, in nanoseconds. A negative one counts as 0: the wait ends at once.
    pub(crate) fn of_wait(self) -> u64 {
        let total = i128::from(self.seconds) * 1_000_000_000 + i128::from(self.nanoseconds);
        total.clamp(0, u64::MAX.into()) as u64
    }
}

/// `struct io_uring_rsrc_register`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RsrcRegister {
    pub(crate) nr: u32,
    pub(crate) flags: u32,
    pub(crate) resv2: u64,
    pub(crate) data: u64,
    pub(crate) tags: u64,
}

/// `struct io_uring_rsrc_update2`; its first 16 bytes are `struct io_uring_rsrc_update` and `struct
/// io_uring_files_update`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RsrcUpdate {
    pub(crate) offset: u32,
    pub(crate) resv: u32,
    pub(crate) data: u64,
    pub(crate) tags: u64,
    pub(crate) nr: u32,
    pub(crate) resv2: u32,
}

/// `struct io_uring_sync_cancel_reg`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SyncCancel {
    pub(crate) addr: u64,
    pub(crate) fd: i32,
    pub(crate) flags: u32,
    pub(crate) timeout: Timespec,
    pub(crate) opcode: u8,
    pub(crate) pad: [u8; 7],
    pub(crate) pad2: [u64; 3],
}

/// `struct io_uring_buf_reg`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BufferRing {
    pub(crate) at: u64,
    pub(crate) entries: u32,
    pub(crate) group: u16,
    pub(crate) flags: u16,
    pub(crate) resv: [u64; 3],
}

/// Flags of a ring of buffers.
pub(crate) mod buffer_ring {
    /// The ring has memory of its own, which the program maps (`IOU_PBUF_RING_MMAP`).
    pub(crate) const TO_MAP: u16 = 1 << 0;
    /// `IOU_PBUF_RING_INC`.
    pub(crate) const IN_PIECES: u16 = 1 << 1;
}

/// `struct io_uring_buf_status`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BufferStatus {
    pub(crate) group: u32,
    pub(crate) head: u32,
    pub(crate) resv: [u32; 8],
}

/// `struct io_uring_sq` of liburing.
#[repr(C)]
#[derive(Debug)]
pub struct Sq {
    pub(crate) khead: *mut u32,
    pub(crate) ktail: *mut u32,
    pub(crate) kring_mask: *mut u32,
    pub(crate) kring_entries: *mut u32,
    pub(crate) kflags: *mut u32,
    pub(crate) kdropped: *mut u32,
    pub(crate) array: *mut u32,
    pub(crate) sqes: *mut u8,
    pub(crate) sqe_head: u32,
    pub(crate) sqe_tail: u32,
    pub(crate) ring_sz: usize,
    pub(crate) ring_ptr: *mut u8,
    pub(crate) ring_mask: u32,
    pub(crate) ring_entries: u32,
    pub(crate) sqes_sz: u32,
    pub(crate) pad: u32,
}

/// `struct io_uring_cq` of liburing.
#[repr(C)]
#[derive(Debug)]
pub struct Cq {
    pub(crate) khead: *mut u32,
    pub(crate) ktail: *mut u32,
    pub(crate) kring_mask: *mut u32,
    pub(crate) kring_entries: *mut u32,
    pub(crate) kflags: *mut u32,
    pub(crate) koverflow: *mut u32,
    pub(crate) cqes: *mut u8,
    pub(crate) ring_sz: usize,
    pub(crate) ring_ptr: *mut u8,
    pub(crate) ring_mask: u32,
    pub(crate) ring_entries: u32,
    pub(crate) pad: [u32; 2],
}

/// `struct io_uring` of liburing, 216 bytes since 2.0.
#[repr(C)]
#[derive(Debug)]
pub struct Uring {
    pub(crate) sq: Sq,
    pub(crate) cq: Cq,
    pub(crate) flags: u32,
    pub(crate) ring_fd: i32,
    pub(crate) features: u32,
    pub(crate) enter_ring_fd: i32,
    pub(crate) int_flags: u8,
    pub(crate) pad: [u8; 3],
    pub(crate) pad2: u32,
}

/// Flags of io_uring_setup(2).
pub(crate) mod setup {
    pub(crate) const IOPOLL: u32 = 1 << 0;
    pub(crate) const SQPOLL: u32 = 1 << 1;
    pub(crate) const SQ_AFF: u32 = 1 << 2;
    pub(crate) const CQSIZE: u32 = 1 << 3;
    pub(crate) const CLAMP: u32 = 1 << 4;
    pub(crate) const ATTACH_WQ: u32 = 1 << 5;
    pub(crate) const R_DISABLED: u32 = 1 << 6;
    pub(crate) const SUBMIT_ALL: u32 = 1 << 7;
    pub(crate) const COOP_TASKRUN: u32 = 1 << 8;
    pub(crate) const TASKRUN_FLAG: u32 = 1 << 9;
    pub(crate) const SQE128: u32 = 1 << 10;
    pub(crate) const CQE32: u32 = 1 << 11;
    pub(crate) const SINGLE_ISSUER: u32 = 1 << 12;
    pub(crate) const DEFER_TASKRUN: u32 = 1 << 13;
    pub(crate) const NO_MMAP: u32 = 1 << 14;
    pub(crate) const REGISTERED_FD_ONLY: u32 = 1 << 15;
    pub(crate) const NO_SQARRAY: u32 = 1 << 16;
    /// Completions have 16 or 32 bytes each. Only rings of the kernel have this flag.
    pub(crate) const CQE_MIXED: u32 = 1 << 18;
    /// The flags that are served.
    pub(crate) const KNOWN: u32 = ((1 << 16) - 1) | NO_SQARRAY;
}

/// The features that io_uring_setup(2) reports: all up to bit 17, except attributes of transfers
/// (bit 16).
pub(crate) const FEATURES: u32 = 0xffff | FEATURE_NO_IOWAIT;
pub(crate) const FEATURE_SINGLE_MMAP: u32 = 1 << 0;
pub(crate) const FEATURE_EXT_ARG: u32 = 1 << 8;
pub(crate) const FEATURE_NATIVE_WORKERS: u32 = 1 << 9;
pub(crate) const FEATURE_REG_REG_RING: u32 = 1 << 13;
pub(crate) const FEATURE_MIN_TIMEOUT: u32 = 1 << 15;
pub(crate) const FEATURE_NO_IOWAIT: u32 = 1 << 17;

pub(crate) const ENTRIES_MAX: u32 = 32768;

/// The offsets of a ring's parts for mmap(2).
pub(crate) const OFF_SQ_RING: u64 = 0;
pub(crate) const OFF_CQ_RING: u64 = 0x800_0000;
pub(crate) const OFF_SQES: u64 = 0x1000_0000;
/// The offset of a ring of buffers. The number of the group begins at bit 16.
pub(crate) const OFF_BUFFERS: u64 = 0x8000_0000;

/// Flags in the submission queue's memory.
pub(crate) mod sq {
    pub(crate) const NEED_WAKEUP: u32 = 1 << 0;
    pub(crate) const CQ_OVERFLOW: u32 = 1 << 1;
    pub(crate) const TASKRUN: u32 = 1 << 2;
}

pub(crate) const CQ_EVENTFD_DISABLED: u32 = 1 << 0;
pub(crate) const CQE_MORE: u32 = 1 << 1;
pub(crate) const CQE_NONEMPTY: u32 = 1 << 2;
pub(crate) const CQE_NOTICE: u32 = 1 << 3;
/// Of rings with CQE_MIXED: this place is no completion. It is the last one of the ring, where a
/// completion of two places has no room.
pub(crate) const CQE_SKIP: u32 = 1 << 5;
/// Of rings with CQE_MIXED: the completion takes two places.
pub(crate) const CQE_WIDE: u32 = 1 << 15;
/// The result of the notification of a zero-copy send whose data was copied
/// (`IORING_NOTIF_USAGE_ZC_COPIED`).
pub(crate) const NOTICE_COPIED: i32 = i32::MIN;

/// Flags of io_uring_enter(2).
pub(crate) mod enter {
    pub(crate) const GETEVENTS: u32 = 1 << 0;
    pub(crate) const SQ_WAKEUP: u32 = 1 << 1;
    pub(crate) const SQ_WAIT: u32 = 1 << 2;
    pub(crate) const EXT_ARG: u32 = 1 << 3;
    pub(crate) const REGISTERED_RING: u32 = 1 << 4;
    pub(crate) const ABS_TIMER: u32 = 1 << 5;
    /// The address of the argument is an offset in a registered region.
    pub(crate) const EXT_ARG_REG: u32 = 1 << 6;
    /// The wait does not count as a wait for I/O. No sleep here counts as one: threads sleep in
    /// futex(2), ppoll(2) or io_pgetevents(2).
    pub(crate) const NO_IOWAIT: u32 = 1 << 7;
    pub(crate) const KNOWN: u32 = ((1 << 6) - 1) | NO_IOWAIT;
}

/// Flags of an entry.
pub(crate) mod iosqe {
    pub(crate) const FIXED_FILE: u8 = 1 << 0;
    pub(crate) const DRAIN: u8 = 1 << 1;
    pub(crate) const LINK: u8 = 1 << 2;
    pub(crate) const HARDLINK: u8 = 1 << 3;
    pub(crate) const ASYNC: u8 = 1 << 4;
    pub(crate) const BUFFER_SELECT: u8 = 1 << 5;
    pub(crate) const CQE_SKIP: u8 = 1 << 6;
    pub(crate) const KNOWN: u8 = 0x7f;
}

/// Operation codes.
pub(crate) mod op {
    pub(crate) const NOP: u8 = 0;
    pub(crate) const READV: u8 = 1;
    pub(crate) const WRITEV: u8 = 2;
    pub(crate) const FSYNC: u8 = 3;
    pub(crate) const READ_FIXED: u8 = 4;
    pub(crate) const WRITE_FIXED: u8 = 5;
    pub(crate) const POLL_ADD: u8 = 6;
    pub(crate) const POLL_REMOVE: u8 = 7;
    pub(crate) const SYNC_FILE_RANGE: u8 = 8;
    pub(crate) const SENDMSG: u8 = 9;
    pub(crate) const RECVMSG: u8 = 10;
    pub(crate) const TIMEOUT: u8 = 11;
    pub(crate) const TIMEOUT_REMOVE: u8 = 12;
    pub(crate) const ACCEPT: u8 = 13;
    pub(crate) const ASYNC_CANCEL: u8 = 14;
    pub(crate) const LINK_TIMEOUT: u8 = 15;
    pub(crate) const CONNECT: u8 = 16;
    pub(crate) const FALLOCATE: u8 = 17;
    pub(crate) const OPENAT: u8 = 18;
    pub(crate) const CLOSE: u8 = 19;
    pub(crate) const FILES_UPDATE: u8 = 20;
    pub(crate) const STATX: u8 = 21;
    pub(crate) const READ: u8 = 22;
    pub(crate) const WRITE: u8 = 23;
    pub(crate) const FADVISE: u8 = 24;
    pub(crate) const MADVISE: u8 = 25;
    pub(crate) const SEND: u8 = 26;
    pub(crate) const RECV: u8 = 27;
    pub(crate) const OPENAT2: u8 = 28;
    pub(crate) const EPOLL_CTL: u8 = 29;
    pub(crate) const SPLICE: u8 = 30;
    pub(crate) const PROVIDE_BUFFERS: u8 = 31;
    pub(crate) const REMOVE_BUFFERS: u8 = 32;
    pub(crate) const TEE: u8 = 33;
    pub(crate) const SHUTDOWN: u8 = 34;
    pub(crate) const RENAMEAT: u8 = 35;
    pub(crate) const UNLINKAT: u8 = 36;
    pub(crate) const MKDIRAT: u8 = 37;
    pub(crate) const SYMLINKAT: u8 = 38;
    pub(crate) const LINKAT: u8 = 39;
    pub(crate) const MSG_RING: u8 = 40;
    pub(crate) const FSETXATTR: u8 = 41;
    pub(crate) const SETXATTR: u8 = 42;
    pub(crate) const FGETXATTR: u8 = 43;
    pub(crate) const GETXATTR: u8 = 44;
    pub(crate) const SOCKET: u8 = 45;
    pub(crate) const URING_CMD: u8 = 46;
    pub(crate) const SEND_ZC: u8 = 47;
    pub(crate) const SENDMSG_ZC: u8 = 48;
    pub(crate) const READ_MULTISHOT: u8 = 49;
    pub(crate) const WAITID: u8 = 50;
    pub(crate) const FUTEX_WAIT: u8 = 51;
    pub(crate) const FUTEX_WAKE: u8 = 52;
    pub(crate) const FUTEX_WAITV: u8 = 53;
    pub(crate) const FIXED_FD_INSTALL: u8 = 54;
    pub(crate) const FTRUNCATE: u8 = 55;
    pub(crate) const BIND: u8 = 56;
    pub(crate) const LISTEN: u8 = 57;
    pub(crate) const EPOLL_WAIT: u8 = 59;
    pub(crate) const READV_FIXED: u8 = 60;
    pub(crate) const WRITEV_FIXED: u8 = 61;
    pub(crate) const PIPE: u8 = 62;
    /// The number of operations that a probe reports.
    pub(crate) const LAST: u8 = 63;

    /// Operations that move data between memory and a file.
    pub(crate) fn is_transfer(opcode: u8) -> bool {
        matches!(opcode, READ..=WRITE | READV..=WRITEV | READ_FIXED..=WRITE_FIXED)
            || matches!(opcode, READV_FIXED..=WRITEV_FIXED)
    }

    /// Operations that receive or read.
    pub(crate) fn receives(opcode: u8) -> bool {
        matches!(opcode, READ | READV | READ_FIXED | RECV | RECVMSG | ACCEPT)
    }

    /// Is the operation WRITE, WRITEV or WRITE_FIXED? WRITEV_FIXED and sends are not counted.
    pub(crate) fn is_write(opcode: u8) -> bool {
        matches!(opcode, WRITE | WRITEV | WRITE_FIXED)
    }
}

/// Flags of timeouts.
pub(crate) mod timeout {
    pub(crate) const ABS: u32 = 1 << 0;
    pub(crate) const UPDATE: u32 = 1 << 1;
    pub(crate) const BOOTTIME: u32 = 1 << 2;
    pub(crate) const REALTIME: u32 = 1 << 3;
    pub(crate) const LINK_UPDATE: u32 = 1 << 4;
    pub(crate) const ETIME_SUCCESS: u32 = 1 << 5;
    pub(crate) const MULTISHOT: u32 = 1 << 6;
    pub(crate) const CLOCKS: u32 = BOOTTIME | REALTIME;
    /// Flags that a new timeout may have.
    pub(crate) const KNOWN: u32 = ABS | CLOCKS | ETIME_SUCCESS | MULTISHOT;
    /// Flags that a change of a timeout may have.
    pub(crate) const UPDATE_KNOWN: u32 = UPDATE | LINK_UPDATE | ABS;
}

/// Flags of POLL_ADD and POLL_REMOVE. An entry holds them in its field `len`.
pub(crate) mod poll {
    pub(crate) const MULTI: u32 = 1 << 0;
    pub(crate) const UPDATE_EVENTS: u32 = 1 << 1;
    pub(crate) const UPDATE_USER_DATA: u32 = 1 << 2;
}

/// Flags of sends and receives. An entry holds them in its field `ioprio`.
pub(crate) mod message {
    pub(crate) const POLL_FIRST: u16 = 1 << 0;
    /// The flag of multishot receives.
    pub(crate) const MULTISHOT: u16 = 1 << 1;
    /// The data is sent from a registered buffer.
    pub(crate) const FIXED_BUFFER: u16 = 1 << 2;
    /// The notification of a zero-copy send says whether the data was copied.
    pub(crate) const REPORTS: u16 = 1 << 3;
    /// The operation uses several buffers of a group at once (`IORING_RECVSEND_BUNDLE`).
    pub(crate) const BUNDLE: u16 = 1 << 4;
    /// The buffer is an array of `struct iovec`.
    pub(crate) const VECTORED: u16 = 1 << 5;
    pub(crate) const OF_SENDS: u16 = POLL_FIRST | VECTORED;
    /// The flags that SEND_ZC and SENDMSG_ZC may have.
    pub(crate) const OF_NOTICES: u16 = OF_SENDS | FIXED_BUFFER | REPORTS;
}

/// Flags of accepts, which stand in the priority.
pub(crate) mod accept {
    pub(crate) const MULTISHOT: u16 = 1 << 0;
    pub(crate) const DONTWAIT: u16 = 1 << 1;
    pub(crate) const POLL_FIRST: u16 = 1 << 2;
}

/// The commands and the flags of MSG_RING.
pub(crate) mod message_ring {
    pub(crate) const DATA: u64 = 0;
    pub(crate) const FILE: u64 = 1;
    /// The flag for no completion on the other ring.
    pub(crate) const SKIP: u32 = 1 << 0;
    /// The completion on the other ring has the flags that the entry gives.
    pub(crate) const PASS: u32 = 1 << 1;
    pub(crate) const KNOWN: u32 = SKIP | PASS;
}

/// Flags of reads and writes (preadv2(2)).
pub(crate) mod rwf {
    pub(crate) const HIPRI: u32 = libc::RWF_HIPRI as u32;
    pub(crate) const NOWAIT: u32 = libc::RWF_NOWAIT as u32;
    /// Since Linux 6.9.
    pub(crate) const NOAPPEND: u32 = 0x20;
    /// HIPRI, DSYNC, SYNC, NOWAIT, APPEND, NOAPPEND, and NOSIGNAL (since Linux 6.18). The others
    /// are refused by most files.
    pub(crate) const OF_ANY_FILE: u32 = 0x13f;
    /// The flags above, and ATOMIC and DONTCACHE: all that Linux 6.18 knows.
    pub(crate) const ALL: u32 = 0x1ff;
}

/// Flags of splices and tees.
pub(crate) mod splice {
    /// The source of the data is a registered file.
    pub(crate) const FD_IN_FIXED: u32 = 1 << 31;
    pub(crate) const KNOWN: u32 = FD_IN_FIXED | 0xf;
}

/// The commands of URING_CMD, for sockets.
pub(crate) mod command {
    pub(crate) const SIOCINQ: u32 = 0;
    pub(crate) const SIOCOUTQ: u32 = 1;
    pub(crate) const GET_OPTION: u32 = 2;
    pub(crate) const SET_OPTION: u32 = 3;
    pub(crate) const FIXED_BUFFER: u32 = 1 << 0;
}

/// Flags of cancels.
pub(crate) mod cancel {
    pub(crate) const ALL: u32 = 1 << 0;
    pub(crate) const FD: u32 = 1 << 1;
    pub(crate) const ANY: u32 = 1 << 2;
    pub(crate) const FD_FIXED: u32 = 1 << 3;
    pub(crate) const USERDATA: u32 = 1 << 4;
    pub(crate) const OP: u32 = 1 << 5;
    pub(crate) const KNOWN: u32 = (1 << 6) - 1;
}

/// Flags of CLONE_BUFFERS.
pub(crate) mod clone {
    /// The source ring is named by the index of its registered descriptor.
    pub(crate) const REGISTERED: u32 = 1 << 0;
    /// Buffers that the slots of the destination already have are replaced.
    pub(crate) const REPLACE: u32 = 1 << 1;
}

/// Opcodes of io_uring_register(2).
pub(crate) mod register {
    pub(crate) const BUFFERS: u32 = 0;
    pub(crate) const UNREGISTER_BUFFERS: u32 = 1;
    pub(crate) const FILES: u32 = 2;
    pub(crate) const UNREGISTER_FILES: u32 = 3;
    pub(crate) const EVENTFD: u32 = 4;
    pub(crate) const UNREGISTER_EVENTFD: u32 = 5;
    pub(crate) const FILES_UPDATE: u32 = 6;
    pub(crate) const EVENTFD_ASYNC: u32 = 7;
    pub(crate) const PROBE: u32 = 8;
    pub(crate) const PERSONALITY: u32 = 9;
    pub(crate) const UNREGISTER_PERSONALITY: u32 = 10;
    pub(crate) const RESTRICTIONS: u32 = 11;
    pub(crate) const ENABLE_RINGS: u32 = 12;
    pub(crate) const FILES2: u32 = 13;
    pub(crate) const FILES_UPDATE2: u32 = 14;
    pub(crate) const BUFFERS2: u32 = 15;
    pub(crate) const BUFFERS_UPDATE: u32 = 16;
    pub(crate) const IOWQ_AFF: u32 = 17;
    pub(crate) const UNREGISTER_IOWQ_AFF: u32 = 18;
    pub(crate) const IOWQ_MAX_WORKERS: u32 = 19;
    pub(crate) const RING_FDS: u32 = 20;
    pub(crate) const UNREGISTER_RING_FDS: u32 = 21;
    pub(crate) const PBUF_RING: u32 = 22;
    pub(crate) const UNREGISTER_PBUF_RING: u32 = 23;
    pub(crate) const SYNC_CANCEL: u32 = 24;
    pub(crate) const FILE_ALLOC_RANGE: u32 = 25;
    pub(crate) const PBUF_STATUS: u32 = 26;
    pub(crate) const NAPI: u32 = 27;
    pub(crate) const UNREGISTER_NAPI: u32 = 28;
    pub(crate) const CLOCK: u32 = 29;
    pub(crate) const CLONE_BUFFERS: u32 = 30;
    pub(crate) const SEND_MSG_RING: u32 = 31;
    pub(crate) const ZCRX_IFQ: u32 = 32;
    pub(crate) const RESIZE_RINGS: u32 = 33;
    pub(crate) const MEM_REGION: u32 = 34;
    pub(crate) const QUERY: u32 = 35;
    pub(crate) const ZCRX_CTRL: u32 = 36;
    pub(crate) const BPF_FILTER: u32 = 37;
    /// The first number that is no opcode.
    pub(crate) const LAST: u32 = BPF_FILTER + 1;
    pub(crate) const USE_REGISTERED_RING: u32 = 1 << 31;
}

pub(crate) const RSRC_SPARSE: u32 = 1;
pub(crate) const FILES_SKIP: i32 = -2;
pub(crate) const INDEX_ALLOC: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::{Cq, Params, RsrcUpdate, Sq, SyncCancel, Uring};

    #[test]
    fn layouts_are_those_of_the_headers() {
        assert_eq!((size_of::<Params>(), offset_of!(Params, sq_off)), (120, 40));
        assert_eq!(offset_of!(Params, cq_off), 80);
        assert_eq!((size_of::<Sq>(), size_of::<Cq>(), size_of::<Uring>()), (104, 88, 216));
        assert_eq!((offset_of!(Uring, ring_fd), offset_of!(Uring, enter_ring_fd)), (196, 204));
        assert_eq!((size_of::<RsrcUpdate>(), size_of::<SyncCancel>()), (32, 64));
    }
}
