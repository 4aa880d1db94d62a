//! Plans of all kinds of entries. `tests/c/fields.c` compares the refusals with the kernel's.

use super::{Fields, Plan, Refused, borrows, has_file, is_known, plan, table};
use crate::abi::{iosqe, op};
use crate::random::Random;

const EINVAL: Refused = Refused::Errno(-libc::EINVAL);
const MALFORMED: Refused = Refused::Malformed(-libc::EINVAL);

/// A word of an entry: often 0, a small number, or one bit.
fn word(random: &mut Random) -> u64 {
    match random.next() % 4 {
        0 => 0,
        1 => random.next() & 0x7_0000_0007,
        2 => 1 << (random.next() % 64),
        _ => random.next(),
    }
}

fn operations() -> impl Iterator<Item = u8> {
    (0..op::LAST).filter(|&opcode| table::row_of(opcode).is_some())
}

/// An accepted entry with as many fields of 0 as possible.
fn least(opcode: u8) -> Fields {
    let (mut words, flags) = ([0; 8], u64::from(iosqe::FIXED_FILE) << 8);
    let count = u64::from(matches!(opcode, op::PROVIDE_BUFFERS | op::REMOVE_BUFFERS)) << 32;
    words[0] = u64::from(opcode)
        | count
        | match opcode {
            op::FIXED_FD_INSTALL => flags,
            op::READ_MULTISHOT => u64::from(iosqe::BUFFER_SELECT) << 8,
            // `FUTEX2_SIZE_U32`.
            op::FUTEX_WAIT | op::FUTEX_WAKE => 2 << 32,
            _ => 0,
        };
    words[3] = match opcode {
        op::TIMEOUT | op::LINK_TIMEOUT | op::FILES_UPDATE | op::PROVIDE_BUFFERS => 1,
        op::FUTEX_WAITV => 1,
        op::OPENAT2 => 24,
        _ => 0,
    };
    Fields(words)
}

/// This entry with one more bit in one of its words.
fn with(opcode: u8, word: usize, bit: u32) -> Result<Plan, Refused> {
    let mut fields = least(opcode);
    fields.0[word] |= 1 << bit;
    plan(&fields, false)
}

#[test]
fn every_operation_has_a_plan_and_no_other_opcode_has() {
    for opcode in 0..=u8::MAX {
        let answer = plan(&least(opcode), false);
        if table::row_of(opcode).is_some() {
            assert!(answer.is_ok(), "{opcode}: {answer:?}");
        } else {
            assert_eq!(answer.err(), Some(MALFORMED), "{opcode}");
            assert!(!is_known(opcode) && !borrows(opcode) && !has_file(opcode), "{opcode}");
        }
    }
    assert!(is_known(op::READ));
}

/// The operations to which the number of a buffer, and a slot, mean nothing.
fn without_index_and_slot() -> [Vec<u8>; 2] {
    use op::*;
    let transfers =
        [READ, WRITE, READV, WRITEV, READ_FIXED, WRITE_FIXED, READV_FIXED, WRITEV_FIXED];
    let attributes = [SETXATTR, GETXATTR, FSETXATTR, FGETXATTR];
    let everywhere = [&transfers[..], &attributes, &[NOP, READ_MULTISHOT]].concat();
    let takes_index = [
        &[SEND, RECV, SENDMSG, RECVMSG, SEND_ZC, SENDMSG_ZC, URING_CMD, PIPE][..],
        &[ASYNC_CANCEL, FILES_UPDATE, SPLICE, TEE, PROVIDE_BUFFERS, REMOVE_BUFFERS],
    ]
    .concat();
    let takes_slot = [
        &[MSG_RING, OPENAT, OPENAT2, CLOSE, SPLICE, TEE, POLL_ADD, SEND, ACCEPT, SOCKET][..],
        &[SEND_ZC, URING_CMD, PIPE, WAITID],
    ]
    .concat();
    [takes_index, takes_slot].map(|more| {
        let is_without = |opcode: &u8| !everywhere.contains(opcode) && !more.contains(opcode);
        operations().filter(is_without).collect()
    })
}

#[test]
fn a_field_that_is_not_0_is_refused_where_it_has_no_meaning() {
    use op::*;
    let messages = [SEND, RECV, SENDMSG, RECVMSG, SENDMSG_ZC];
    let [without_index, without_slot] = without_index_and_slot();
    let (words, newest) = ([FUTEX_WAIT, FUTEX_WAKE], [FUTEX_WAITV, EPOLL_WAIT, PIPE]);
    let all: Vec<u8> = operations().collect();
    let off = [CLOSE, UNLINKAT, MKDIRAT, TEE, POLL_ADD, POLL_REMOVE, LINK_TIMEOUT, ASYNC_CANCEL];
    let addr = [FSYNC, SYNC_FILE_RANGE, FTRUNCATE, CLOSE, TEE, POLL_ADD];
    let timeouts = [TIMEOUT, LINK_TIMEOUT, TIMEOUT_REMOVE];
    let (ends, new) = ([LISTEN, SHUTDOWN], [ACCEPT, CONNECT, BIND]);
    let len = [FTRUNCATE, CLOSE, UNLINKAT, SYMLINKAT, POLL_ADD];
    let flags = [NOP, FSYNC, FALLOCATE, FTRUNCATE, CLOSE, UNLINKAT, SYMLINKAT, MKDIRAT, GETXATTR];
    let more_flags = [MSG_RING, FGETXATTR, SPLICE, TEE, POLL_REMOVE, ASYNC_CANCEL, FILES_UPDATE];
    let (install, removes) = ([FIXED_FD_INSTALL], [REMOVE_BUFFERS]);
    let lists = [PROVIDE_BUFFERS, REMOVE_BUFFERS];
    let uncopied = [SEND_ZC, SENDMSG_ZC];
    let transfers: Vec<u8> = operations().filter(|&opcode| op::is_transfer(opcode)).collect();
    // Each column: a field, its word, the bit of that word that is set, and the operations that
    // refuse the entry then.
    let columns: [(&str, usize, u32, Vec<u8>); 10] = [
        ("ioprio", 0, 31, all.clone()),
        ("off", 1, 0, [&off[..], &install, &messages[1..], &ends, &removes, &newest].concat()),
        (
            "addr",
            2,
            0,
            [&addr[..], &install, &ends, &removes, &[SOCKET, READ_MULTISHOT, WAITID]].concat(),
        ),
        (
            "len",
            3,
            1,
            [&len[..], &timeouts, &install, &new, &removes, &[READ_MULTISHOT], &words].concat(),
        ),
        (
            "flags",
            3,
            62,
            [
                &flags[..],
                &more_flags,
                &timeouts,
                &ends,
                &new,
                &lists,
                &[SOCKET, FIXED_FD_INSTALL],
                &words,
                &newest,
                &[URING_CMD, WAITID, SETXATTR, FSETXATTR],
            ]
            .concat(),
        ),
        ("buf_index", 5, 0, without_index),
        ("personality", 5, 16, all),
        ("file_index", 5, 32, without_slot),
        (
            "addr3",
            6,
            0,
            [&[FTRUNCATE, FUTEX_WAITV, PIPE, WAITID][..], &timeouts, &install, &uncopied].concat(),
        ),
        ("the last word", 7, 0, [&transfers[..], &timeouts, &uncopied].concat()),
    ];
    for (name, word, bit, refuse) in columns {
        for opcode in operations() {
            let refused = with(opcode, word, bit).err();
            assert_eq!(refused, refuse.contains(&opcode).then_some(EINVAL), "{name}, {opcode}");
        }
    }
}

/// A multishot receive needs a group of buffers, which these entries do not name. So they are
/// refused with the flag MULTISHOT.
#[test]
fn flags_of_sockets_that_stand_in_other_fields_are_taken_where_they_are_known() {
    use op::*;
    let taken = |opcode, word: usize| -> Vec<u32> {
        let of_field = if word == 0 { 16..32 } else { 0..32 };
        of_field.filter(|&bit| with(opcode, word, bit).is_ok()).collect()
    };
    assert_eq!(taken(RECVMSG, 0), [16], "POLL_FIRST");
    assert_eq!(taken(RECV, 0), [16, 20], "POLL_FIRST and bundles");
    assert_eq!(taken(SENDMSG, 0), [16, 21], "POLL_FIRST and lists");
    assert_eq!(taken(SEND, 0), [16, 20, 21], "POLL_FIRST, bundles and lists");
    for opcode in [SEND_ZC, SENDMSG_ZC] {
        let all = [16, 18, 19, 21];
        assert_eq!(taken(opcode, 0), all, "and registered buffers, and reports, {opcode}");
    }
    assert_eq!(taken(ACCEPT, 0), [16, 17, 18], "MULTISHOT, DONTWAIT and POLL_FIRST");
    // The type of a socket, SOCK_NONBLOCK and SOCK_CLOEXEC.
    assert_eq!(taken(SOCKET, 1), [0, 1, 2, 3, 11, 19]);
    // A direct descriptor has no SOCK_CLOEXEC.
    for opcode in [ACCEPT, SOCKET] {
        let mut fields = least(opcode);
        fields.0[5] = 1 << 32;
        assert!(plan(&fields, false).is_ok(), "{opcode}");
        let word = if opcode == ACCEPT { 3 } else { 1 };
        let flags = u64::from(libc::SOCK_CLOEXEC as u32);
        fields.0[word] |= if opcode == ACCEPT { flags << 32 } else { flags };
        assert_eq!(plan(&fields, false).err(), Some(EINVAL), "{opcode}");
    }
    // The length of a name has 16 bits.
    assert!(with(SEND, 5, 47).is_ok());
    assert_eq!(with(SEND, 5, 48).err(), Some(EINVAL));
}

/// `IOSQE_FIXED_FILE`.
#[test]
fn a_registered_file_is_refused_where_a_number_or_nothing_is_meant() {
    use op::*;
    let names = [OPENAT, OPENAT2, CLOSE, STATX, UNLINKAT, RENAMEAT, LINKAT, SYMLINKAT, MKDIRAT];
    let attributes = [SETXATTR, GETXATTR];
    for opcode in operations() {
        let expected = match opcode {
            _ if names.contains(&opcode) || attributes.contains(&opcode) => Some(-libc::EBADF),
            TIMEOUT_REMOVE | FILES_UPDATE => Some(-libc::EINVAL),
            _ => None,
        };
        assert_eq!(with(opcode, 0, 8).err(), expected.map(Refused::Errno), "{opcode}");
    }
    let mut fields = least(FIXED_FD_INSTALL);
    fields.0[0] = FIXED_FD_INSTALL.into();
    assert_eq!(plan(&fields, false).err(), Some(Refused::Errno(-libc::EBADF)));
}

#[test]
fn flags_that_no_ring_takes_are_malformed() {
    for opcode in operations() {
        assert_eq!(with(opcode, 0, 15).err(), Some(MALFORMED), "{opcode}");
        let selects = with(opcode, 0, 8 + iosqe::BUFFER_SELECT.trailing_zeros()).err();
        let expected = match opcode {
            op::READ | op::READ_MULTISHOT | op::RECV | op::RECVMSG | op::SEND => None,
            // READV takes a buffer only with one part, and no URING_CMD that takes one is
            // supported.
            op::READV | op::URING_CMD => Some(EINVAL),
            _ => Some(Refused::Malformed(-libc::EOPNOTSUPP)),
        };
        assert_eq!(selects, expected, "{opcode}");
    }
}

#[test]
fn rings_that_poll_take_transfers_and_what_is_on_no_file() {
    for opcode in operations() {
        let others =
            [op::NOP, op::FILES_UPDATE, op::PROVIDE_BUFFERS, op::REMOVE_BUFFERS, op::MSG_RING];
        let is_taken = op::is_transfer(opcode) || others.contains(&opcode);
        assert_eq!(plan(&least(opcode), true).is_ok(), is_taken, "{opcode}");
    }
}

/// No address in an entry of random words is valid. A plan that read memory there would fault, or
/// return `-EFAULT`.
#[test]
fn a_plan_is_made_of_any_bytes_without_a_panic_and_without_reading_memory() {
    const ENTRIES: u32 = if cfg!(miri) { 10 } else { 5_000 };
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for opcode in 0..=u8::MAX {
        for _ in 0..ENTRIES {
            let mut words: [u64; 8] = std::array::from_fn(|_| word(&mut random));
            words[0] = words[0] & !0xff | u64::from(opcode);
            let answer = plan(&Fields(words), random.next() & 1 == 0);
            // PROVIDE_BUFFERS compares addresses with the end of the address space, and may return
            // `-EFAULT`.
            let compares = opcode == op::PROVIDE_BUFFERS;
            let error = answer.err().filter(|_| !compares);
            assert_ne!(error, Some(Refused::Errno(-libc::EFAULT)), "{words:x?}");
        }
    }
}
