//! Bad input gets the errno of the plain call, and affects nothing else in its batch.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{
    LONG, bounded, builder, by_user_data, close_fd, context, create, excepted, file_with, finish,
    isolated, pattern, plain, push, reap_all, run, skip, submit_all, wait_for,
};
use uringlet::{FILE_POSITION, Full, Sqe, opcode};

/// Runs `bad` in the middle of a batch of good requests, all of which must complete.
#[track_caller]
fn in_company(bad: Sqe) -> i32 {
    let content = pattern(4, 4096);
    let (source, target) = (file_with(&content), file_with(b""));
    let mut context = context(16);
    let mut buffers = [[0; 512]; 8];
    let mut wanted = Vec::new();
    for (at, buffer) in buffers.iter_mut().enumerate() {
        if at == 4 {
            push(&mut context, bad.user_data(99));
        }
        let offset = at as u64 * 512;
        let sqe = match at % 2 {
            0 => Sqe::read(source.as_raw_fd(), &mut buffer[..], offset),
            _ => Sqe::write(target.as_raw_fd(), &content[..512], offset),
        };
        push(&mut context, sqe.user_data(at as u64));
        wanted.push((at as u64, 512));
    }
    push(&mut context, Sqe::nop().user_data(8));
    push(&mut context, Sqe::fsync(target.as_raw_fd()).user_data(9));
    wanted.extend([(8, 0), (9, 0)]);
    let results = finish(&mut context);
    for (user_data, result) in wanted {
        assert_eq!(results[&user_data], result, "good request {user_data} beside {bad:?}");
    }
    for at in [0, 2, 4, 6] {
        assert!(buffers[at] == content[at * 512..][..512], "read {at} beside {bad:?}");
    }
    assert_eq!(context.destroy(), []);
    results[&99]
}

/// Returns the number of a closed descriptor. Before, it named a pipe and then a file, and requests
/// used both. The number is high, so that no other thread of this program gets it meanwhile.
fn closed_descriptor(number: RawFd) -> RawFd {
    let (reader, _writer) = std::io::pipe().unwrap();
    let file = file_with(b"content");
    let mut context = context(4);
    for fd in [reader.as_raw_fd(), file.as_raw_fd()] {
        // SAFETY: duplicates a live descriptor to a number that is this test's.
        assert_eq!(unsafe { libc::dup2(fd, number) }, number);
        let mut buf = [0; 4];
        run(&mut context, Sqe::read(number, &mut buf[..], 0).rw_flags(libc::RWF_NOWAIT));
        run(&mut context, Sqe::fadvise(number, 0, 0, 0));
    }
    close_fd(number);
    number
}

#[test]
fn a_closed_or_negative_descriptor_is_ebadf_for_every_operation() {
    let _bound = bounded(4 * LONG);
    let closed = closed_descriptor(700);
    let mut buf = [0; 16];
    let part = [libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: 16 }];
    for fd in [closed, -1, -100, RawFd::MIN, RawFd::MAX] {
        let entries = [
            Sqe::read(fd, &mut buf[..], 0),
            Sqe::read(fd, &mut buf[..], FILE_POSITION),
            Sqe::read(fd, &mut buf[..], 0).rw_flags(libc::RWF_NOWAIT),
            Sqe::write(fd, &buf[..], 0),
            Sqe::write(fd, &buf[..], FILE_POSITION),
            Sqe::readv(fd, &part[..], 0),
            Sqe::writev(fd, &part[..], 0),
            Sqe::fsync(fd),
            Sqe::fdatasync(fd),
            Sqe::sync_file_range(fd, 0, 1, 0),
            Sqe::fallocate(fd, 0, 0, 1),
            Sqe::ftruncate(fd, 1),
            Sqe::fadvise(fd, 0, 0, 0),
            Sqe::close(fd),
            Sqe::poll_add(fd, libc::POLLIN),
        ];
        for sqe in entries {
            assert_eq!(in_company(sqe), -libc::EBADF, "{sqe:?}");
        }
    }
}

/// A descriptor that names a path (`O_PATH`). On musl, the standard library leaves that flag out.
fn open_path(path: &Path) -> OwnedFd {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a path that ends with a NUL. Nobody else has the descriptor.
    unsafe { OwnedFd::from_raw_fd(libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC)) }
}

#[test]
fn a_descriptor_of_the_wrong_mode_or_kind_answers_as_the_plain_call() {
    let _bound = bounded(4 * LONG);
    let dir = tempfile::tempdir().unwrap();
    let (path, write_only) = {
        let (path, _) = create(dir.path(), "file");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        (path, file)
    };
    let read_only = File::open(&path).unwrap();
    let folder = File::open(dir.path()).unwrap();
    let opath = open_path(&path);
    let (reader, writer) = std::io::pipe().unwrap();
    let mut buf = [0; 16];
    for (fd, read, write) in [
        (write_only.as_raw_fd(), -libc::EBADF, 16),
        (read_only.as_raw_fd(), 16, -libc::EBADF),
        (folder.as_raw_fd(), -libc::EISDIR, -libc::EBADF),
        (opath.as_raw_fd(), -libc::EBADF, -libc::EBADF),
        (reader.as_raw_fd(), 16, -libc::EBADF),
        (writer.as_raw_fd(), -libc::EBADF, 16),
    ] {
        for offset in [0, FILE_POSITION] {
            assert_eq!(in_company(Sqe::write(fd, &buf[..], offset)), write, "write {fd}");
        }
        if fd == reader.as_raw_fd() {
            (&writer).write_all(&buf).unwrap();
            (&writer).write_all(&buf).unwrap();
        }
        for offset in [0, FILE_POSITION] {
            if fd == read_only.as_raw_fd() && offset == FILE_POSITION {
                continue;
            }
            assert_eq!(in_company(Sqe::read(fd, &mut buf[..], offset)), read, "read {fd}");
        }
    }
}

/// An accessible page, and an inaccessible one after it.
struct Edge(*mut u8);

const PAGE: usize = 4096;

impl Edge {
    fn new() -> Self {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping of two pages, the second of which is made inaccessible.
        unsafe {
            let base = libc::mmap(std::ptr::null_mut(), 2 * PAGE, protection, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(base.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
            Self(base.cast())
        }
    }

    /// `before` accessible bytes and `after` inaccessible ones.
    fn slice(&self, before: usize, after: usize) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.0.wrapping_add(PAGE - before), before + after)
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.0.cast(), 2 * PAGE) };
    }
}

fn slice_at(address: usize, len: usize) -> *mut [u8] {
    std::ptr::slice_from_raw_parts_mut(std::ptr::without_provenance_mut(address), len)
}

#[test]
fn a_null_or_unmapped_buffer_is_efault() {
    let _bound = bounded(4 * LONG);
    let file = file_with(&pattern(1, 8192));
    let fd = file.as_raw_fd();
    let edge = Edge::new();
    let buffers = [
        slice_at(0, 512),
        slice_at(1, 512),
        edge.slice(0, 512),
        slice_at(usize::MAX - 4095, 512),
        slice_at(usize::MAX, 1),
        slice_at(1 << 47, 512),
    ];
    for buf in buffers {
        let part = [libc::iovec { iov_base: buf.cast(), iov_len: buf.len() }];
        for offset in [0, FILE_POSITION] {
            for sqe in [
                Sqe::read(fd, buf, offset),
                Sqe::write(fd, buf, offset),
                Sqe::readv(fd, &part[..], offset),
                Sqe::writev(fd, &part[..], offset),
            ] {
                assert_eq!(in_company(sqe), -libc::EFAULT, "{sqe:?}");
            }
        }
    }
    for sqe in [
        Sqe { opcode: opcode::READV, fd, len: 1, ..Sqe::nop() },
        Sqe { opcode: opcode::WRITEV, fd, len: 1, ..Sqe::nop() },
        Sqe { opcode: opcode::OPENAT, fd: libc::AT_FDCWD, ..Sqe::nop() },
        Sqe { opcode: opcode::UNLINKAT, fd: libc::AT_FDCWD, ..Sqe::nop() },
        Sqe { opcode: opcode::MKDIRAT, fd: libc::AT_FDCWD, ..Sqe::nop() },
        Sqe { opcode: opcode::RENAMEAT, fd: libc::AT_FDCWD, ..Sqe::nop() },
        Sqe { opcode: opcode::STATX, fd: libc::AT_FDCWD, ..Sqe::nop() },
        Sqe::statx(libc::AT_FDCWD, c".", 0, libc::STATX_SIZE, std::ptr::null_mut()),
    ] {
        assert_eq!(in_company(sqe), -libc::EFAULT, "{sqe:?}");
    }
}

#[test]
fn a_buffer_that_ends_in_nothing_transfers_what_the_plain_call_does() {
    let file = file_with(&pattern(1, 8192));
    let fd = file.as_raw_fd();
    let edge = Edge::new();
    for (before, after) in [(100, 100), (4096, 4096), (1, 4000)] {
        let buf = edge.slice(before, after);
        // SAFETY: the kernel checks the buffer.
        let expected = plain(unsafe { libc::pread(fd, buf.cast(), buf.len(), 0) } as i64);
        assert_eq!(in_company(Sqe::read(fd, buf, 0)), expected);
        // SAFETY: as above.
        let expected = plain(unsafe { libc::pwrite(fd, buf.cast(), buf.len(), 0) } as i64);
        assert_eq!(in_company(Sqe::write(fd, buf, 0)), expected);
    }
}

#[test]
fn a_bad_buffer_takes_nothing_from_a_pipe() {
    let _bound = bounded(2 * LONG);
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"still here").unwrap();
    assert_eq!(in_company(Sqe::read(reader.as_raw_fd(), slice_at(0, 10), 0)), -libc::EFAULT);
    assert_eq!(in_company(Sqe::write(writer.as_raw_fd(), slice_at(0, 10), 0)), -libc::EFAULT);
    let mut buf = [0; 10];
    reader.read_exact(&mut buf).unwrap();
    assert_eq!(&buf, b"still here");
}

#[test]
fn unaligned_direct_transfers_are_einval() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, mut file) = create(dir.path(), "direct");
    file.write_all(&vec![5; 64 << 10]).unwrap();
    file.sync_all().unwrap();
    let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path);
    let Ok(direct) = direct else {
        return skip("the file system of the target folder has no O_DIRECT");
    };
    let fd = direct.as_raw_fd();
    let mut memory = vec![0u8; 4 * PAGE];
    let start = memory.as_ptr().align_offset(PAGE);
    let buf = &mut memory[start..start + 2 * PAGE];
    let mut context = context(4);
    assert_eq!(run(&mut context, Sqe::read(fd, &mut buf[..PAGE], 0)), PAGE as i32);
    assert!(buf[..PAGE].iter().all(|&byte| byte == 5));
    // SAFETY: `buf` has two pages, so that a page fits behind its first byte.
    let odd = plain(unsafe { libc::pread(fd, buf[1..].as_mut_ptr().cast(), PAGE, 0) } as i64);
    if odd != -libc::EINVAL {
        return skip("this file system takes unaligned direct transfers");
    }
    for sqe in [
        Sqe::read(fd, &mut buf[1..=PAGE], 0),
        Sqe::read(fd, &mut buf[..PAGE], 1),
        Sqe::read(fd, &mut buf[..100], 0),
        Sqe::write(fd, &buf[1..=PAGE], 0),
        Sqe::write(fd, &buf[..PAGE], 7),
        Sqe::write(fd, &buf[..100], 0),
    ] {
        assert_eq!(in_company(sqe), -libc::EINVAL, "{sqe:?}");
    }
}

#[test]
fn zero_length_transfers_are_zero_and_never_wait() {
    let _bound = bounded(4 * LONG);
    let file = file_with(b"content");
    let (empty, _writer) = std::io::pipe().unwrap();
    let (_reader, mut full) = std::io::pipe().unwrap();
    // SAFETY: no memory is passed.
    let capacity = unsafe { libc::fcntl(full.as_raw_fd(), libc::F_GETPIPE_SZ) };
    full.write_all(&vec![0; capacity as usize]).unwrap();
    for (fd, write) in [
        (file.as_raw_fd(), false),
        (file.as_raw_fd(), true),
        (empty.as_raw_fd(), false),
        (full.as_raw_fd(), true),
    ] {
        for offset in [0, FILE_POSITION] {
            let mut sqe = match write {
                false => Sqe::read(fd, slice_at(0, 0), offset),
                true => Sqe::write(fd, slice_at(0, 0), offset),
            };
            assert_eq!(in_company(sqe), 0, "{sqe:?}");
            sqe.opcode = if write { opcode::WRITEV } else { opcode::READV };
            assert_eq!(in_company(sqe), 0, "{sqe:?}");
        }
    }
}

#[test]
fn huge_lengths_are_capped_as_the_kernel_caps_them() {
    let _bound = bounded(4 * LONG);
    let file = file_with(b"a small file");
    let mut buf = vec![0u8; 4096];
    let mut huge = Sqe::read(file.as_raw_fd(), &mut buf[..], 0);
    huge.len = u32::MAX;
    let length = u32::MAX as usize;
    // SAFETY: the kernel writes the 12 bytes of the file at most, and the buffer is longer.
    let expected = unsafe { libc::pread(file.as_raw_fd(), buf.as_mut_ptr().cast(), length, 0) };
    // The kernel cuts the length. On AArch64 it first refuses a range beyond the last user address.
    let is_cut = expected == 12;
    let check = |huge: Sqe, expected: i32| {
        let result = in_company(huge);
        assert!(result == expected || !is_cut && result == -libc::EFAULT, "{result}");
    };
    buf.fill(0);
    check(huge, 12);
    assert!(!is_cut || buf.starts_with(b"a small file"));
    huge.off = FILE_POSITION;
    check(huge, 12);
    // The read before has moved the file position to the end.
    check(huge, 0);
    // /dev/null reads no byte of the buffer: only the count matters.
    let null = OpenOptions::new().write(true).open("/dev/null").unwrap();
    let mut huge = Sqe::write(null.as_raw_fd(), &buf[..], 0);
    huge.len = u32::MAX;
    // SAFETY: the kernel checks the buffer, and this device does not read it.
    let expected = unsafe { libc::write(null.as_raw_fd(), buf.as_ptr().cast(), length) };
    assert_eq!(expected, if is_cut { 0x7fff_f000 } else { -1 });
    check(huge, 0x7fff_f000);
    let most = isize::MAX as usize;
    let parts = [libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: most }; 2];
    assert_eq!(in_company(Sqe::readv(file.as_raw_fd(), &parts[..], 0)), -libc::EINVAL);
    let parts = vec![parts[0]; 1025];
    assert_eq!(in_company(Sqe::readv(file.as_raw_fd(), &parts[..], 0)), -libc::EINVAL);
}

#[test]
fn offsets_out_of_range_answer_as_the_plain_call() {
    let file = file_with(b"content");
    let fd = file.as_raw_fd();
    let mut buf = [0; 64];
    let max = i64::MAX as u64;
    let offsets = [max, max - 1, max - 63, max - 64, max + 1, u64::MAX - 1, u64::MAX - 63, 1 << 62];
    for offset in offsets {
        // In a file system in memory, a write at such an offset may succeed, which lengthens the
        // file. Each round restores the length.
        file.set_len(7).unwrap();
        // SAFETY: a live buffer of 64 bytes.
        let read = unsafe { libc::pread(fd, buf.as_mut_ptr().cast(), 64, offset as i64) };
        let read = plain(read as i64);
        assert_eq!(in_company(Sqe::read(fd, &mut buf[..], offset)), read, "read at {offset:#x}");
        let part = [libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: 64 }];
        assert_eq!(in_company(Sqe::readv(fd, &part[..], offset)), read, "readv at {offset:#x}");
        // SAFETY: as above.
        let write = unsafe { libc::pwrite(fd, buf.as_ptr().cast(), 64, offset as i64) };
        let write = plain(write as i64);
        assert_eq!(in_company(Sqe::write(fd, &buf[..], offset)), write, "write at {offset:#x}");
        assert_eq!(in_company(Sqe::writev(fd, &part[..], offset)), write, "writev at {offset:#x}");
        assert_eq!(in_company(Sqe::ftruncate(fd, offset)), {
            // SAFETY: a call on a descriptor.
            plain(unsafe { libc::ftruncate(fd, offset as i64) }.into())
        });
    }
}

#[test]
fn unknown_opcodes_reserved_fields_and_flags_are_einval() {
    let file = file_with(b"content");
    let known = [
        opcode::NOP,
        opcode::READV,
        opcode::WRITEV,
        opcode::FSYNC,
        opcode::POLL_ADD,
        opcode::SYNC_FILE_RANGE,
        opcode::FALLOCATE,
        opcode::OPENAT,
        opcode::CLOSE,
        opcode::STATX,
        opcode::READ,
        opcode::WRITE,
        opcode::FADVISE,
        opcode::RENAMEAT,
        opcode::UNLINKAT,
        opcode::MKDIRAT,
        opcode::FTRUNCATE,
    ];
    let mut context = context(1024);
    for code in (0..=u8::MAX).filter(|code| !known.contains(code)) {
        let sqe = Sqe { opcode: code, fd: file.as_raw_fd(), ..Sqe::nop() };
        push(&mut context, sqe.user_data(code.into()));
    }
    assert!(finish(&mut context).values().all(|&result| result == -libc::EINVAL));
    let mut buf = [0; 4];
    let good = [
        Sqe::nop(),
        Sqe::read(file.as_raw_fd(), &mut buf[..], 0),
        Sqe::write(file.as_raw_fd(), &buf[..], 0),
        Sqe::fsync(file.as_raw_fd()),
        Sqe::poll_add(file.as_raw_fd(), libc::POLLIN),
        Sqe::ftruncate(file.as_raw_fd(), 7),
        Sqe::mkdirat(-1, c"", 0),
        Sqe::close(-1),
    ];
    for good in good {
        for flag in 0..8 {
            assert_eq!(in_company(Sqe { flags: 1 << flag, ..good }), -libc::EINVAL);
        }
        for bad in [
            Sqe { buf_index: 1, ..good },
            Sqe { personality: 1, ..good },
            Sqe { file_index: 1, ..good },
            Sqe { file_index: -1, ..good },
            Sqe { addr3: 1, ..good },
            Sqe { pad: 1 << 63, ..good },
        ] {
            assert_eq!(in_company(bad), -libc::EINVAL, "{bad:?}");
        }
    }
    let fd = file.as_raw_fd();
    for bad in [
        Sqe { op_flags: 2, ..Sqe::fsync(fd) },
        Sqe { len: 1, ..Sqe::fsync(fd) },
        Sqe { op_flags: 1, ..Sqe::nop() },
        Sqe { len: 1, ..Sqe::poll_add(fd, 1) },
        Sqe { addr: 1, ..Sqe::ftruncate(fd, 0) },
        Sqe { addr: 1, ..Sqe::close(-1) },
    ] {
        assert_eq!(in_company(bad), -libc::EINVAL, "{bad:?}");
    }
}

#[test]
fn entries_out_of_range_are_refused_and_the_bounds_work() {
    if excepted(|| ()) {
        return;
    }
    for entries in [0, 65_537, u32::MAX] {
        let error = builder().entries(entries).build().expect_err("out of range");
        assert_eq!(error.errno(), libc::EINVAL);
        let (text, found) = (error.to_string(), entries.to_string());
        let parts = ["entries", &found, "1", "65536"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    for entries in [1, 65_536] {
        let mut context = context(entries);
        assert!(context.entries() >= entries as usize);
        let most = context.entries();
        for round in 0..2 {
            for user_data in 0..most as u64 {
                push(&mut context, Sqe::nop().user_data(user_data));
            }
            assert_eq!(finish(&mut context).len(), most, "round {round}");
        }
        assert_eq!(context.wait(most + 1, None).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}

#[test]
fn a_full_queue_gives_the_entry_back() {
    let mut context = context(3);
    let most = context.entries() as u64;
    for user_data in 0..most {
        push(&mut context, Sqe::nop().user_data(user_data));
    }
    let one_more = Sqe::nop().user_data(77);
    // SAFETY: a nop has no addresses.
    assert_eq!(unsafe { context.push(one_more) }, Err(Full(one_more)));
    assert_eq!(context.pushed() as u64, most);
    assert_eq!(finish(&mut context).len() as u64, most);
}

#[test]
fn a_submit_without_room_takes_a_part_then_none_and_all_after_reaping() {
    let mut context = context(8);
    let most = context.entries();
    let file = file_with(&pattern(1, 8));
    let mut buffers = vec![[0u8; 8]; 2 * most];
    let mut entries = buffers
        .iter_mut()
        .enumerate()
        .map(|(at, buffer)| Sqe::read(file.as_raw_fd(), &mut buffer[..], 0).user_data(at as u64));
    let first = most - 3;
    (0..first).for_each(|_| push(&mut context, entries.next().unwrap()));
    assert_eq!(context.submit().unwrap(), first);
    (0..most).for_each(|_| push(&mut context, entries.next().unwrap()));
    assert_eq!(context.submit().unwrap(), 3, "accepted in part");
    assert_eq!(context.pushed(), most - 3);
    assert_eq!(context.submit().unwrap_err().raw_os_error(), Some(libc::EAGAIN));
    assert_eq!(context.pushed(), most - 3, "a refusal loses nothing");
    wait_for(&mut context, most);
    assert_eq!(
        context.submit().unwrap_err().raw_os_error(),
        Some(libc::EAGAIN),
        "what completed holds its place until it is reaped"
    );
    let mut seen = reap_all(&mut context);
    assert_eq!(seen.len(), most);
    assert_eq!(context.submit().unwrap(), most - 3);
    wait_for(&mut context, most - 3);
    seen.extend(reap_all(&mut context));
    let results = by_user_data(&seen);
    assert_eq!(results.len(), first + most);
    assert!(results.values().all(|&result| result == 8));
    assert_eq!(context.submit().unwrap(), 0, "nothing pushed is nothing submitted");
}

#[test]
fn a_file_truncated_under_reads_gives_short_reads_and_loses_none() {
    let _bound = bounded(4 * LONG);
    let content = pattern(2, 64 << 10);
    let file = file_with(&content);
    let (fd, stop) = (file.as_raw_fd(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let truncater = scope.spawn(|| {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) || rounds < 2 {
                for len in [0, 1000, 40_000, 64 << 10] {
                    file.set_len(len).unwrap();
                }
                rounds += 1;
            }
        });
        let mut context = context(64);
        let mut buffers = vec![vec![0xffu8; 8192]; 64];
        for _ in 0..100 {
            for (at, buffer) in buffers.iter_mut().enumerate() {
                let offset = (at % 8 * 8192) as u64;
                push(&mut context, Sqe::read(fd, &mut buffer[..], offset).user_data(at as u64));
            }
            for (at, result) in finish(&mut context) {
                assert!((0..=8192).contains(&result), "read {at} gave {result}");
            }
        }
        stop.store(true, Ordering::Relaxed);
        truncater.join().unwrap();
    });
}

#[test]
fn no_space_is_enospc() {
    let _bound = bounded(2 * LONG);
    let full = OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
    let mut buf = [1; 100];
    let part = [libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: 100 }];
    for offset in [0, 5, FILE_POSITION] {
        assert_eq!(in_company(Sqe::write(full.as_raw_fd(), &buf[..], offset)), -libc::ENOSPC);
        assert_eq!(in_company(Sqe::writev(full.as_raw_fd(), &part[..], offset)), -libc::ENOSPC);
    }
    assert_eq!(in_company(Sqe::read(full.as_raw_fd(), &mut buf[..], 0)), 100);
}

#[test]
fn a_write_into_a_pipe_without_reader_is_epipe_and_no_signal() {
    let _bound = bounded(2 * LONG);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(in_company(Sqe::write(writer.as_raw_fd(), &b"x"[..], 0)), -libc::EPIPE);
}

#[test]
fn more_waiting_requests_than_poll_takes_descriptors_still_complete() {
    isolated(|| {
        // poll(2) refuses more entries than RLIMIT_NOFILE. More requests than that wait here, all
        // on one descriptor.
        let (reader, mut writer) = std::io::pipe().unwrap();
        let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
        // SAFETY: a live struct rlimit; the limit is that of this helper process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        let mut context = context(256);
        let mut buffers = [[0u8; 1]; 200];
        for (at, buffer) in buffers.iter_mut().enumerate() {
            push(
                &mut context,
                Sqe::read(reader.as_raw_fd(), &mut buffer[..], 0).user_data(at as u64),
            );
        }
        submit_all(&mut context);
        writer.write_all(&[9; 200]).unwrap();
        wait_for(&mut context, 200);
        let results = by_user_data(&reap_all(&mut context));
        assert_eq!(results.len(), 200);
        assert!(results.values().all(|&result| result == 1));
    });
}
