//! IORING_REGISTER_QUERY: a program asks which operations, flags and features there are, with a
//! ring or without one. Queries are a list in the program's memory.
#![allow(unsafe_code)]

use crate::abi::{self, enter, iosqe, op, register, setup};
use crate::user;

/// A list with this number of queries, or more, gets `-ERANGE`: the list may be circular.
const MOST: u32 = 1000;
/// An upper bound for the length of an answer, in bytes.
const LONGEST: usize = 64;
/// The number of the only query that is answered, about operations and flags.
const OPERATIONS: u32 = 0;

/// `struct io_uring_query_hdr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Query {
    next: u64,
    /// The place for the answer, and its size in bytes.
    at: u64,
    number: u32,
    size: u32,
    result: i32,
    resv: [u32; 3],
}

// SAFETY: numbers, without padding.
unsafe impl user::Plain for Query {}

/// Answers a list of queries. Returns 0, or a negative errno.
pub(crate) fn answer(list: usize, count: u32) -> Result<i32, i32> {
    if count != 0 {
        return Err(-libc::EINVAL);
    }
    let (mut at, mut answered) = (list, 0);
    while at != 0 {
        at = answer_one(at)?;
        answered += 1;
        if answered >= MOST {
            return Err(-libc::ERANGE);
        }
    }
    Ok(0)
}

/// Answers the query at this address. Returns the address of the next one.
fn answer_one(at: usize) -> Result<usize, i32> {
    let query: Query = user::read(at)?;
    let size = query.size as usize;
    let result = match query.number {
        OPERATIONS if query.resv != [0; 3] || query.result != 0 || size == 0 => Err(-libc::EINVAL),
        OPERATIONS => {
            // The place must be readable, too.
            user::read_bytes(query.at as usize, size.min(LONGEST))?;
            Ok(operations())
        }
        _ => Err(-libc::EOPNOTSUPP),
    };
    let (bytes, errno) = result.map_or_else(|errno| (Vec::new(), errno), |bytes| (bytes, 0));
    let len = bytes.len().min(size);
    for (index, byte) in (0..size).zip(bytes.iter().copied().chain(std::iter::repeat(0))) {
        // SAFETY: the place for the answer, which the program has named.
        unsafe { user::write(query.at as usize + index, byte) }?;
    }
    let answered = Query { size: len as u32, result: errno, ..query };
    // SAFETY: the query, which the program has named.
    unsafe { user::write(at, answered) }?;
    Ok(query.next as usize)
}

/// `struct io_uring_query_opcode`.
fn operations() -> Vec<u8> {
    let numbers = [u32::from(op::LAST), register::LAST];
    let masks =
        [abi::FEATURES.into(), setup::KNOWN.into(), enter::KNOWN.into(), u64::from(iosqe::KNOWN)];
    let kinds_and_pad = [OPERATIONS + 1, 0];
    let bytes = numbers.iter().flat_map(|number| number.to_ne_bytes());
    let bytes = bytes.chain(masks.iter().flat_map(|mask: &u64| mask.to_ne_bytes()));
    bytes.chain(kinds_and_pad.iter().flat_map(|number: &u32| number.to_ne_bytes())).collect()
}
