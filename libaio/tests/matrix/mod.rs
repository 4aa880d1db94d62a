//! The cases of each function, for the matrix in the README, and cases that cannot be tested.

use super::machinery::matrix::{Function, Matrix, Untested};
use covers::COVERS;

mod covers;

pub const MATRIX: Matrix =
    Matrix { functions: FUNCTIONS, unsuffixed: &[], untested: UNTESTED, covers: COVERS };

/// The cases of each function: success, each errno of its manual page, notifications, and other
/// distinguishable cases.
const FUNCTIONS: &[Function] = &[
    (
        "io_setup",
        &["success", "EAGAIN", "EFAULT", "EINVAL", "ENOMEM", "ENOSYS", "in a child", "syscall()"],
    ),
    (
        "io_destroy",
        &[
            "success",
            "EFAULT",
            "EINVAL",
            "ENOSYS",
            "requests in flight",
            "threads that wait",
            "in a child",
            "syscall()",
        ],
    ),
    (
        "io_submit",
        &[
            "PREAD",
            "PWRITE",
            "PREADV",
            "PWRITEV",
            "FSYNC",
            "FDSYNC",
            "POLL",
            "EAGAIN",
            "EBADF",
            "EFAULT",
            "EINVAL",
            "ENOSYS",
            "EPERM",
            "an errno in the event",
            "nothing to submit",
            "the first ones only",
            "rw_flags",
            "reqprio",
            "eventfd",
            "event loop",
            "order",
            "closed descriptor",
            "in a child",
            "exit",
            "leaves",
            "vfork",
            "syscall()",
        ],
    ),
    (
        "io_cancel",
        &[
            "success",
            "EAGAIN",
            "EFAULT",
            "EINVAL",
            "ENOSYS",
            "finished",
            "direct, in flight",
            "eventfd",
            "in a child",
            "syscall()",
        ],
    ),
    (
        "io_getevents",
        &[
            "success",
            "timeout",
            "EFAULT",
            "EINTR",
            "EINVAL",
            "ENOSYS",
            "min 0",
            "visible at once",
            "timeout out of range",
            "several threads",
            "pthread_cancel",
            "left by a jump",
            "ring read by the program",
            "in a child",
            "syscall()",
        ],
    ),
    (
        "io_pgetevents",
        &[
            "success",
            "timeout",
            "EFAULT",
            "EINTR",
            "EINVAL",
            "ENOSYS",
            "mask",
            "pthread_cancel",
            "syscall()",
        ],
    ),
    ("io_queue_init", &["success", "EINVAL"]),
    ("io_queue_run", &["success", "EINVAL"]),
    ("io_queue_wait", &["success", "timeout", "EINVAL"]),
    ("io_queue_release", &["success", "EINVAL"]),
    ("io_cancel@LIBAIO_0.1", &["success", "EINVAL"]),
    ("io_getevents@LIBAIO_0.1", &["success", "timeout", "EINVAL"]),
    ("io_queue_wait@LIBAIO_0.1", &["success", "timeout"]),
];

const THERE: &str = "it is there";

const UNTESTED: &[Untested] = &[
    ("io_setup", "EAGAIN", "`aio-max-nr` belongs to the host; see the differences"),
    ("io_setup", "ENOSYS", THERE),
    ("io_destroy", "EFAULT", "never answered: a bad address is no context, `EINVAL`"),
    ("io_destroy", "ENOSYS", THERE),
    ("io_submit", "ENOSYS", THERE),
    ("io_cancel", "EAGAIN", "never answered: Linux says `EINVAL`"),
    ("io_cancel", "ENOSYS", THERE),
    ("io_getevents", "ENOSYS", THERE),
    ("io_pgetevents", "ENOSYS", THERE),
];
