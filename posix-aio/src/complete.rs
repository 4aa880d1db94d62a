//! The end of a request: its result, its error code, and its notification. The thread that has
//! ended the request does all this.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use uringlet::front::IoEvent;

use crate::abi::Aiocb;
use crate::member::Member;
use crate::notify;

/// Writes the result of the request whose control block is `obj`, and sends its notification.
///
/// # Safety
/// The block is in progress, `data` is the word of the request's [`Member`], and no other thread
/// ends the request.
#[inline]
pub(crate) unsafe fn complete(event: &IoEvent) {
    let block = event.obj as *const Aiocb;
    let (value, error) =
        if event.res < 0 { (-1, -event.res as i32) } else { (event.res as isize, 0) };
    // SAFETY: in progress, so the block is ours until the error code is stored.
    let prepared = unsafe { notify::prepare(&raw const (*block).sigevent) };
    let ((value, error), prepared) = match prepared {
        Ok(prepared) => ((value, error), prepared),
        // As in the C library: if the notification cannot be sent, the request has failed.
        Err(errno) => ((-1, errno), notify::Prepared::Nothing),
    };
    // SAFETY: as above. The release makes the result and the data visible. After the second store
    // the block is the program's again.
    unsafe {
        (*block).value.store(value, Ordering::Relaxed);
        (*block).error.store(error, Ordering::Release);
    }
    prepared.go();
    // SAFETY: the member is that of the request, which ends here.
    unsafe { Member::from_word(event.data).ended() };
}
