//! IORING_REGISTER_RESIZE_RINGS: a ring gets queues of other sizes, in new memory.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::abi::{Params, setup};
use crate::memory::Memory;
use crate::ring::Locked;
use crate::setup::{put_offsets, sizes};
use crate::user;

/// The flags of a resize.
const KNOWN: u32 = setup::CQSIZE | setup::CLAMP;
/// The flags of a ring that say how its memory is laid out.
const LAYOUT: u32 = setup::NO_SQARRAY | setup::SQE128 | setup::CQE32 | setup::NO_MMAP;

/// Resizes the ring, by the parameters at `arg`. The program maps the new memory afterwards.
///
/// # Errors
/// `-EINVAL`: a bad parameter, completions that are not deferred, or a ring that another process
/// uses. `-EOVERFLOW`: the new queues have no room for the entries and completions that are there.
pub(crate) fn resize(locked: &Locked<'_>, arg: usize, count: u32) -> Result<i32, i32> {
    let core = locked.core();
    if arg == 0 || count != 1 || !core.has(setup::DEFER_TASKRUN) {
        return Err(-libc::EINVAL);
    }
    let mut params: Params = user::read(arg)?;
    if params.flags & !KNOWN != 0 || core.memory.page().is_shared() {
        return Err(-libc::EINVAL);
    }
    params.flags |= core.flags & LAYOUT;
    let sizes = sizes(params.sq_entries, &params)?;
    (params.sq_entries, params.cq_entries) = sizes;
    let earlier = core.memory.earlier(sizes).filter(|_| !core.has(setup::NO_MMAP));
    let memory = earlier.map_or_else(|| Memory::new(&params).map(Arc::new), Ok)?;
    put_offsets(&mut params, &memory);
    // SAFETY: the call's argument, which is the program's.
    unsafe { user::write(arg, params) }?;
    memory.take_over(&core.memory)?;
    core.memory.replace(memory);
    Ok(0)
}
