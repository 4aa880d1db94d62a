//! One ring: its requests, from the entry to the completion.
//!
//! One lock protects everything. A thread that has it only reads and writes memory. Work that may
//! block, and calls of the engine, are put into lists, and done after the lock is released. Threads
//! that serve several rings never wait for the lock.
//!
//! Each file uses only files above it in this list. A test of `cli` checks that.
//!
//! | file | what it has |
//! |---|---|
//! | `types` | requests, mail, tasks |
//! | `index` | finds requests by a key |
//! | `state` | what a ring knows, under its lock and beside it |
//! | `batch` | entries, prepared before the lock is taken |
//! | `resources` | files and buffers in slots |
//! | `provided` | buffers of groups, which requests take when they are tried |
//! | `lines` | which requests on a socket wait for others |
//! | `completing` | how a request ends, and its completion is posted |
//! | `sharing` | who owns the ring among several processes |
//! | `readiness` | the ring's flags and its descriptor, which signal completions |
//! | `cancels` | which requests a cancel means, and how they end |
//! | `sockets` | requests that are tried, and again when their sockets are ready |
//! | `parcels` | what one ring sends to another |
//! | `timeouts`, `polls` | requests that wait for a time, or for a descriptor |
//! | `issue` | what begins when a request is started |
//! | `submit` | entries become requests, and chains go on |
//! | `lock` | how the lock is taken and given back, and mail is read |
//! | `drive` | what is done without the lock: the engine, tasks |
//! | `fast` | plain transfers and NOPs at the head of the queue, most without a request |
//! | `descriptors`, `wait` | threads that poll or close descriptors, and threads that wait |
//! | `leave` | a ring or a thread ends |

mod batch;
mod cancels;
mod completing;
mod descriptors;
mod drive;
mod fast;
mod index;
mod issue;
mod leave;
mod lines;
mod lock;
mod parcels;
mod polls;
mod provided;
mod readiness;
mod resources;
mod sharing;
mod sockets;
mod state;
mod submit;
mod timeouts;
mod types;
mod wait;

pub(crate) use self::drive::SLOTS;
pub(crate) use self::readiness::any_is_armed;
pub(crate) use self::resources::{
    List, copies_of_buffers, has_buffers, put_buffers, register, unregister, update,
};
pub(crate) use self::state::{Core, Locked, NO_NETWORK_POLLING};
pub(crate) use self::types::{Peer, Registry};

// Miri has no shared memory.
#[cfg(all(test, not(miri)))]
mod tests;
