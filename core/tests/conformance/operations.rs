//! Every operation does what its system call does, and borrows only its data buffers after submit.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;

use crate::common::{
    LONG, bounded, by_user_data, context, create, file_with, finish, isolated, pattern,
    pipes_take_nowait, plain, push, reap_all, refusing, run, skip, submit_all, wait_for,
    wait_until,
};
use uringlet::{Context, FILE_POSITION, Sqe};

fn iovec(part: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() }
}

/// Submits an entry that points to memory of the caller's, which is destroyed before the wait.
#[track_caller]
fn run_and_free<T>(context: &mut Context, owned: T, entry: impl FnOnce(&T) -> Sqe) -> i32 {
    let sqe = entry(&owned).user_data(3);
    push(context, sqe);
    submit_all(context);
    drop(owned);
    wait_for(context, 1);
    by_user_data(&reap_all(context))[&3]
}

/// A path that is overwritten before its memory is freed.
struct Path(CString);

impl Path {
    fn new(path: &str) -> Self {
        Self(CString::new(path).unwrap())
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.0).into_bytes();
        bytes.fill(b'#');
        std::hint::black_box(bytes);
    }
}

#[test]
fn nop_completes_with_zero_and_its_user_data() {
    let mut context = context(64);
    for user_data in [0, 1, u64::MAX] {
        push(&mut context, Sqe::nop().user_data(user_data));
    }
    let results = finish(&mut context);
    assert_eq!((results[&0], results[&1], results[&u64::MAX]), (0, 0, 0));
}

#[test]
fn reads_and_writes_transfer_at_their_offsets() {
    let mut context = context(64);
    let file = file_with(b"");
    let fd = file.as_raw_fd();
    let content = pattern(1, 10_000);
    let parts: Vec<&[u8]> = content.chunks(1000).collect();
    for (at, part) in parts.iter().enumerate().rev() {
        push(&mut context, Sqe::write(fd, *part, at as u64 * 1000).user_data(at as u64));
    }
    assert!(finish(&mut context).values().all(|&res| res == 1000));
    let mut back = vec![0; 10_000];
    for (at, part) in back.chunks_mut(2500).enumerate() {
        push(&mut context, Sqe::read(fd, part, at as u64 * 2500).user_data(at as u64));
    }
    assert!(finish(&mut context).values().all(|&res| res == 2500));
    assert!(back == content);
    assert_eq!((&file).stream_position().unwrap(), 0, "the file position stays");
}

#[test]
fn a_read_across_the_end_is_short_and_one_behind_it_is_zero() {
    let mut context = context(64);
    let file = file_with(&pattern(2, 100));
    let mut buf = [0; 64];
    assert_eq!(run(&mut context, Sqe::read(file.as_raw_fd(), &mut buf[..], 60)), 40);
    assert_eq!(buf[..40], pattern(2, 100)[60..]);
    assert_eq!(run(&mut context, Sqe::read(file.as_raw_fd(), &mut buf[..], 100)), 0);
    assert_eq!(run(&mut context, Sqe::read(file.as_raw_fd(), &mut buf[..], 1 << 40)), 0);
}

#[test]
fn file_position_moves_as_with_read_and_write() {
    let mut context = context(64);
    let mut file = file_with(b"");
    let fd = file.as_raw_fd();
    for at in 0..8 {
        let part = pattern(at, 100);
        assert_eq!(run(&mut context, Sqe::write(fd, &part[..], FILE_POSITION)), 100);
    }
    assert_eq!(file.stream_position().unwrap(), 800);
    file.rewind().unwrap();
    let (mut a, mut b) = ([0; 30], [0; 70]);
    assert_eq!(run(&mut context, Sqe::read(fd, &mut a[..], FILE_POSITION)), 30);
    let parts = [iovec(&mut b[..20]), iovec(&mut [])];
    assert_eq!(run(&mut context, Sqe::readv(fd, &parts[..], FILE_POSITION)), 20);
    assert_eq!(file.stream_position().unwrap(), 50);
    let first = pattern(0, 100);
    assert!(a[..] == first[..30] && b[..20] == first[30..50]);
}

#[test]
fn transfers_at_the_file_position_of_one_batch_take_place_in_order() {
    let mut context = context(64);
    let mut file = file_with(b"");
    let parts: Vec<Vec<u8>> = (0..64).map(|at| pattern(at, 100)).collect();
    for (at, part) in parts.iter().enumerate() {
        let sqe = Sqe::write(file.as_raw_fd(), &part[..], FILE_POSITION);
        push(&mut context, sqe.user_data(at as u64));
    }
    assert!(finish(&mut context).values().all(|&res| res == 100));
    let mut content = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut content).unwrap();
    assert!(content == parts.concat());
}

#[test]
fn vectored_transfers_scatter_and_gather_and_their_arrays_may_go_at_submit() {
    let mut context = context(64);
    let file = file_with(b"");
    let fd = file.as_raw_fd();
    let mut content = pattern(5, 3000);
    let (a, rest) = content.split_at_mut(1);
    let (b, c) = rest.split_at_mut(1999);
    let array = vec![iovec(a), iovec(&mut []), iovec(b), iovec(c)];
    let written =
        run_and_free(&mut context, Array(array), |array| Sqe::writev(fd, &array.0[..], 50));
    assert_eq!(written, 3000);
    let mut back = vec![0; 4000];
    let array = back.chunks_mut(7).map(iovec).collect();
    let read = run_and_free(&mut context, Array(array), |array| Sqe::readv(fd, &array.0[..], 50));
    assert_eq!(read, 3000);
    assert!(back[..3000] == content && back[3000..].iter().all(|&byte| byte == 0));

    /// The array is overwritten before it is freed, so that a late read finds nothing usable.
    struct Array(Vec<libc::iovec>);
    impl Drop for Array {
        fn drop(&mut self) {
            let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
            self.0.fill(nothing);
            std::hint::black_box(&self.0);
        }
    }
}

#[test]
fn vectors_of_none_and_of_the_most_parts_work() {
    let mut context = context(64);
    let file = file_with(&pattern(6, 2048));
    let mut back = vec![0; 2048];
    let array: Vec<libc::iovec> = back.chunks_mut(2).map(iovec).collect();
    assert_eq!(array.len(), 1024);
    assert_eq!(run(&mut context, Sqe::readv(file.as_raw_fd(), &array[..], 0)), 2048);
    assert!(back == pattern(6, 2048));
    assert_eq!(run(&mut context, Sqe::readv(file.as_raw_fd(), &array[..0], 0)), 0);
    assert_eq!(run(&mut context, Sqe::writev(file.as_raw_fd(), &array[..0], 0)), 0);
}

/// preadv2(2) of one buffer, or pwritev2.
fn plain_v2(fd: RawFd, buf: &mut [u8], offset: i64, flags: i32, write: bool) -> i32 {
    let part = [iovec(buf)];
    // SAFETY: one iovec of a live buffer.
    plain(unsafe {
        if write {
            libc::pwritev2(fd, part.as_ptr(), 1, offset, flags) as i64
        } else {
            libc::preadv2(fd, part.as_ptr(), 1, offset, flags) as i64
        }
    })
}

#[test]
fn rwf_flags_mean_what_they_mean_to_preadv2() {
    let mut context = context(64);
    let file = file_with(&pattern(7, 8192));
    let fd = file.as_raw_fd();
    let mut buf = vec![0; 4096];
    for flags in [libc::RWF_NOWAIT, libc::RWF_HIPRI, libc::RWF_DSYNC, libc::RWF_SYNC, 1 << 30] {
        let expected = plain_v2(fd, &mut buf, 4096, flags, false);
        buf.fill(0);
        let sqe = Sqe::read(fd, &mut buf[..], 4096).rw_flags(flags);
        assert_eq!(run(&mut context, sqe), expected, "read with {flags:#x}");
        assert!(expected < 0 || buf == pattern(7, 8192)[4096..]);
        let expected = plain_v2(fd, &mut buf, 4096, flags, true);
        let sqe = Sqe::write(fd, &buf[..], 4096).rw_flags(flags);
        assert_eq!(run(&mut context, sqe), expected, "write with {flags:#x}");
        let part = [iovec(&mut buf)];
        let sqe = Sqe::writev(fd, &part[..], 4096).rw_flags(flags);
        assert_eq!(run(&mut context, sqe), expected, "writev with {flags:#x}");
    }
}

#[test]
fn rwf_append_appends_whatever_the_offset() {
    let mut context = context(64);
    let file = file_with(&pattern(8, 100));
    let tail = pattern(9, 50);
    let sqe = Sqe::write(file.as_raw_fd(), &tail[..], 3).rw_flags(libc::RWF_APPEND);
    assert_eq!(run(&mut context, sqe), 50);
    let mut content = vec![0; 151];
    assert_eq!(file.read_at(&mut content, 0).unwrap(), 150);
    assert!(content[..150] == [pattern(8, 100), tail].concat());
}

#[test]
fn an_unknown_rwf_flag_is_eopnotsupp_and_does_not_wait_for_data() {
    let _bound = bounded(2 * LONG);
    let mut context = context(64);
    let file = file_with(b"x");
    let (empty, _writer) = std::io::pipe().unwrap();
    let mut buf = [0; 8];
    for fd in [file.as_raw_fd(), empty.as_raw_fd()] {
        let expected =
            plain_v2(fd, &mut buf, if fd == file.as_raw_fd() { 0 } else { -1 }, 1 << 30, false);
        assert_eq!(expected, -libc::EOPNOTSUPP);
        let sqe = Sqe::read(fd, &mut buf[..], 0).rw_flags(1 << 30);
        assert_eq!(run(&mut context, sqe), expected);
    }
}

#[test]
fn rwf_nowait_on_an_empty_pipe_is_eagain() {
    let mut context = context(64);
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let mut buf = [0; 8];
    if !pipes_take_nowait() {
        return skip("this kernel takes no RWF_NOWAIT for pipes");
    }
    let sqe = Sqe::read(reader.as_raw_fd(), &mut buf[..], 0).rw_flags(libc::RWF_NOWAIT);
    assert_eq!(run(&mut context, sqe), -libc::EAGAIN);
    writer.write_all(b"data").unwrap();
    assert_eq!(run(&mut context, sqe), 4);
    assert_eq!(&buf[..4], b"data");
    drop(writer);
    assert_eq!(reader.read(&mut buf).unwrap(), 0);
}

#[test]
fn what_has_no_flags_needs_no_preadv2() {
    isolated(|| {
        let refused = refusing(&[libc::SYS_preadv2, libc::SYS_pwritev2], libc::EPERM);
        if let Err(error) = seccompiler::apply_filter(&refused) {
            return skip(&format!("no filter can be installed: {error}"));
        }
        let mut context = context(64);
        let content = pattern(5, 8192);
        let file = file_with(&content);
        let fd = file.as_raw_fd();
        let mut buf = vec![0; 4096];
        // The reads wait for the device. The engine learns this before the last of these rounds.
        for round in 0..20 {
            file.sync_all().unwrap();
            // SAFETY: a call on a descriptor.
            unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) };
            buf.fill(0);
            let (first, last) = buf.split_at_mut(1000);
            let parts = [iovec(first), iovec(last)];
            assert_eq!(run(&mut context, Sqe::readv(fd, &parts[..], 4000)), 4096);
            assert!(buf == content[4000..8096], "round {round}");
            assert_eq!(run(&mut context, Sqe::writev(fd, &parts[..], 4000)), 4096);
            // The pipe has no data yet.
            let (reader, writer) = std::io::pipe().unwrap();
            let mut text = [0; 8];
            let part = [iovec(&mut text)];
            let read = match round % 2 {
                0 => Sqe::read(reader.as_raw_fd(), &raw mut text[..], 0),
                _ => Sqe::readv(reader.as_raw_fd(), &part[..], 0),
            };
            push(&mut context, read.user_data(1));
            submit_all(&mut context);
            push(&mut context, Sqe::write(writer.as_raw_fd(), &content[..8], 0).user_data(2));
            submit_all(&mut context);
            wait_for(&mut context, 2);
            let results = by_user_data(&reap_all(&mut context));
            assert_eq!((results[&1], results[&2]), (8, 8));
            assert_eq!(text, content[..8]);
        }
    });
}

#[test]
fn sync_operations_answer_as_their_calls() {
    let mut context = context(64);
    let file = file_with(&pattern(1, 5000));
    let (reader, _writer) = std::io::pipe().unwrap();
    let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE;
    for fd in [file.as_raw_fd(), reader.as_raw_fd()] {
        // SAFETY: calls on descriptors only.
        let expected = unsafe {
            [
                plain(libc::fsync(fd).into()),
                plain(libc::fdatasync(fd).into()),
                plain(libc::sync_file_range(fd, 0, 4096, wait).into()),
                plain(libc::sync_file_range(fd, 0, 4096, 1 << 20).into()),
            ]
        };
        assert_eq!(run(&mut context, Sqe::fsync(fd)), expected[0]);
        assert_eq!(run(&mut context, Sqe::fdatasync(fd)), expected[1]);
        assert_eq!(run(&mut context, Sqe::sync_file_range(fd, 0, 4096, wait)), expected[2]);
        assert_eq!(run(&mut context, Sqe::sync_file_range(fd, 0, 4096, 1 << 20)), expected[3]);
    }
}

#[test]
fn fallocate_and_ftruncate_change_the_file_as_their_calls() {
    let mut context = context(64);
    let file = file_with(&pattern(1, 10_000));
    let fd = file.as_raw_fd();
    let size = || file.metadata().unwrap().size();
    assert_eq!(run(&mut context, Sqe::ftruncate(fd, 300)), 0);
    assert_eq!(size(), 300);
    assert_eq!(run(&mut context, Sqe::ftruncate(fd, 1 << 33)), 0);
    assert_eq!(size(), 1 << 33, "lengths have 64 bits");
    assert_eq!(run(&mut context, Sqe::ftruncate(fd, 0)), 0);
    assert_eq!(run(&mut context, Sqe::ftruncate(fd, u64::MAX)), -libc::EINVAL);
    let supported = {
        let probe = file_with(b"");
        // SAFETY: a call on a descriptor.
        unsafe { libc::fallocate(probe.as_raw_fd(), 0, 0, 4096) == 0 }
    };
    if !supported {
        return skip("the file system of the temporary folder has no fallocate");
    }
    assert_eq!(run(&mut context, Sqe::fallocate(fd, 0, 4096, 8192)), 0);
    assert_eq!(size(), 12_288);
    let keep = libc::FALLOC_FL_KEEP_SIZE as u32;
    assert_eq!(run(&mut context, Sqe::fallocate(fd, keep, 0, 1 << 20)), 0);
    assert_eq!(size(), 12_288);
    assert_eq!(run(&mut context, Sqe::fallocate(fd, 0, 0, 0)), -libc::EINVAL);
}

#[test]
fn fadvise_answers_as_its_call() {
    let mut context = context(64);
    let file = file_with(&pattern(1, 10_000));
    let (reader, _writer) = std::io::pipe().unwrap();
    for fd in [file.as_raw_fd(), reader.as_raw_fd()] {
        for advice in [libc::POSIX_FADV_WILLNEED, libc::POSIX_FADV_DONTNEED, 77] {
            // SAFETY: a call on a descriptor. posix_fadvise(3) returns the errno.
            let expected = -unsafe { libc::posix_fadvise(fd, 0, 4096, advice) };
            assert_eq!(run(&mut context, Sqe::fadvise(fd, 0, 4096, advice as u32)), expected);
        }
    }
}

#[test]
fn names_are_looked_up_made_moved_and_removed_and_may_be_freed_at_submit() {
    let mut context = context(64);
    let dir = tempfile::tempdir().unwrap();
    let top = File::open(dir.path()).unwrap();
    let at = top.as_raw_fd();
    let context = &mut context;
    let made = run_and_free(context, Path::new("sub"), |path| Sqe::mkdirat(at, &path.0, 0o700));
    assert_eq!(made, 0);
    let mode = dir.path().join("sub").metadata().unwrap().mode();
    assert_eq!(mode & 0o7777, 0o700);
    let sqe = |path: &Path| Sqe::mkdirat(at, &path.0, 0o700);
    assert_eq!(run_and_free(context, Path::new("sub"), sqe), -libc::EEXIST);

    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC;
    let fd = run_and_free(context, Path::new("sub/file"), |path| open(at, &path.0, flags));
    assert!(fd >= 0, "{fd}");
    let again = run_and_free(context, Path::new("sub/file"), |path| open(at, &path.0, flags));
    assert_eq!(again, -libc::EEXIST);
    // SAFETY: the descriptor that was just opened for us.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(b"twelve bytes").unwrap();

    let (from, to) = (Path::new("sub/file"), Path::new("moved"));
    let moved =
        run_and_free(context, (from, to), |(from, to)| Sqe::renameat(at, &from.0, at, &to.0, 0));
    assert_eq!(moved, 0);
    assert!(!dir.path().join("sub/file").exists());

    let mut stat = Box::new(std::mem::MaybeUninit::<libc::statx>::zeroed());
    let out = stat.as_mut_ptr();
    let size = libc::STATX_SIZE;
    let entry = |path: &Path| Sqe::statx(at, &path.0, 0, size, out);
    assert_eq!(run_and_free(context, Path::new("moved"), entry), 0);
    // SAFETY: zeroed, and filled by the completed statx.
    assert_eq!(unsafe { stat.assume_init_ref() }.stx_size, 12);
    assert_eq!(run_and_free(context, Path::new("gone"), entry), -libc::ENOENT);

    create(dir.path(), "other");
    let names = (Path::new("moved"), Path::new("other"));
    let kept = run_and_free(context, names, |(from, to)| {
        Sqe::renameat(at, &from.0, at, &to.0, libc::RENAME_NOREPLACE)
    });
    assert_eq!(kept, -libc::EEXIST);

    let unlink = |flags| move |path: &Path| Sqe::unlinkat(at, &path.0, flags);
    assert_eq!(run_and_free(context, Path::new("moved"), unlink(0)), 0);
    assert_eq!(run_and_free(context, Path::new("moved"), unlink(0)), -libc::ENOENT);
    assert_eq!(run_and_free(context, Path::new("sub"), unlink(0)), -libc::EISDIR);
    assert_eq!(run_and_free(context, Path::new("sub"), unlink(libc::AT_REMOVEDIR)), 0);
    assert!(!dir.path().join("sub").exists());
}

fn open(at: RawFd, path: &std::ffi::CStr, flags: i32) -> Sqe {
    Sqe::openat(at, path, flags, 0o600)
}

#[test]
fn close_closes_the_descriptor_and_only_once() {
    let mut context = context(64);
    let file = file_with(b"");
    // A number that no other thread of this test program gets meanwhile.
    // SAFETY: duplicates a live descriptor.
    let fd = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 800) };
    assert!(fd >= 800);
    assert_eq!(run(&mut context, Sqe::close(fd)), 0);
    assert_eq!(run(&mut context, Sqe::close(fd)), -libc::EBADF);
    assert_eq!(run(&mut context, Sqe::fsync(file.as_raw_fd())), 0, "the original is open");
}

/// The engine must not keep another descriptor of the file. Closing it later would release a POSIX
/// lock that the program has taken meanwhile.
#[test]
fn a_file_has_no_other_descriptor_when_its_request_is_reaped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, [7; 4096]).unwrap();
    let file = File::open(&path).unwrap();
    let mut context = context(64);
    for round in 0..200 {
        let mut buf = [0; 64];
        let read = Sqe::read(file.as_raw_fd(), &mut buf[..], 0);
        assert_eq!(run(&mut context, read), 64);
        assert_eq!(buf, [7; 64]);
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let links = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        assert_eq!(links.filter(|link| *link == path).count(), 1, "round {round}");
    }
}

#[test]
fn poll_add_waits_for_its_event_and_gives_the_mask() {
    let _bound = bounded(2 * LONG);
    let mut context = context(64);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let input = libc::POLLIN;
    push(&mut context, Sqe::poll_add(reader.as_raw_fd(), input).user_data(1));
    push(&mut context, Sqe::poll_add(writer.as_raw_fd(), libc::POLLOUT).user_data(2));
    submit_all(&mut context);
    wait_for(&mut context, 1);
    let results = by_user_data(&reap_all(&mut context));
    assert_eq!(results.get(&2), Some(&i32::from(libc::POLLOUT)));
    assert_eq!(results.get(&1), None, "nothing to read yet");
    writer.write_all(b"x").unwrap();
    wait_for(&mut context, 1);
    let results = by_user_data(&reap_all(&mut context));
    assert_eq!(results[&1], i32::from(input));
    drop(writer);
    let both = i32::from(libc::POLLIN | libc::POLLHUP);
    // Another test may have just forked a child. The child has the pipe's writer, too, until it
    // executes its program.
    assert!(wait_until(|| {
        let found = run(&mut context, Sqe::poll_add(reader.as_raw_fd(), input));
        assert!(found == both || found == i32::from(input), "{found}");
        found == both
    }));
}

/// A file in memory is one whose file system the library does not know.
#[test]
fn a_poll_for_what_never_occurs_on_a_file_is_refused() {
    let _bound = bounded(2 * LONG);
    let mut context = context(64);
    // SAFETY: the name ends in NUL.
    let memory = unsafe { libc::memfd_create(c"memory".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: the descriptor was just made, and is only this variable's.
    let memory = unsafe { File::from_raw_fd(memory) };
    let files =
        [file_with(b""), File::open("/").unwrap(), File::open("/dev/null").unwrap(), memory];
    let (input, urgent) = (libc::POLLIN, libc::POLLPRI);
    for file in files {
        for (events, result) in [
            (input, i32::from(input)),
            (input | urgent, i32::from(input)),
            (urgent, -libc::EINVAL),
            (0, -libc::EINVAL),
        ] {
            let poll = Sqe::poll_add(file.as_raw_fd(), events);
            assert_eq!(run(&mut context, poll), result, "{file:?}, {events:#x}");
        }
        // Each poll of a descriptor gets its own answer.
        push(&mut context, Sqe::poll_add(file.as_raw_fd(), urgent).user_data(1));
        push(&mut context, Sqe::poll_add(file.as_raw_fd(), input).user_data(2));
        submit_all(&mut context);
        wait_for(&mut context, 2);
        let results = by_user_data(&reap_all(&mut context));
        assert_eq!((results[&1], results[&2]), (-libc::EINVAL, i32::from(input)), "{file:?}");
    }
}

#[test]
fn streams_transfer_whatever_the_offset_says() {
    let _bound = bounded(2 * LONG);
    let mut context = context(64);
    let (reader, writer) = std::io::pipe().unwrap();
    let (left, right) = UnixStream::pair().unwrap();
    let ends = [(reader.as_raw_fd(), writer.as_raw_fd()), (left.as_raw_fd(), right.as_raw_fd())];
    for (from, to) in ends {
        for offset in [0, 12_345, FILE_POSITION] {
            let mut buf = [0; 16];
            push(&mut context, Sqe::read(from, &mut buf[..], offset).user_data(1));
            submit_all(&mut context);
            push(&mut context, Sqe::write(to, &b"hello"[..], offset).user_data(2));
            submit_all(&mut context);
            wait_for(&mut context, 2);
            let results = by_user_data(&reap_all(&mut context));
            assert_eq!((results[&1], results[&2]), (5, 5));
            assert_eq!(&buf[..5], b"hello");
        }
    }
    drop(writer);
    let mut buf = [0; 16];
    assert_eq!(run(&mut context, Sqe::read(reader.as_raw_fd(), &mut buf[..], 0)), 0);
}

#[test]
fn a_write_that_a_pipe_cannot_take_at_once_is_written_whole() {
    let _bound = bounded(2 * LONG);
    let mut context = context(64);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut content = pattern(3, 1 << 20);
    let (a, b) = content.split_at_mut(300_001);
    for vectored in [false, true] {
        let parts = [iovec(a), iovec(b)];
        let whole: &[u8] = if vectored { &[] } else { a };
        let sqe = match vectored {
            false => Sqe::write(writer.as_raw_fd(), whole, 0),
            true => Sqe::writev(writer.as_raw_fd(), &parts[..], 0),
        };
        let len = if vectored { 1 << 20 } else { 300_001 };
        push(&mut context, sqe.user_data(1));
        submit_all(&mut context);
        let mut back = vec![0; len];
        reader.read_exact(&mut back).unwrap();
        wait_for(&mut context, 1);
        assert_eq!(by_user_data(&reap_all(&mut context))[&1], len as i32);
        assert!(back == pattern(3, 1 << 20)[..len]);
    }
}

#[test]
fn writes_of_one_pipe_stay_whole_and_in_order() {
    // This runs in a process of its own, where no file had these numbers before. If a file had the
    // pipe's number, the engine would notice the stream only by calls that fail. It might then
    // execute requests in any order.
    isolated(|| {
        let mut context = context(64);
        let (mut reader, writer) = std::io::pipe().unwrap();
        let contents: Vec<Vec<u8>> = (0..4).map(|seed| pattern(seed, 200_001)).collect();
        for (at, content) in contents.iter().enumerate() {
            let write = Sqe::write(writer.as_raw_fd(), &content[..], 0);
            push(&mut context, write.user_data(at as u64));
        }
        submit_all(&mut context);
        let mut back = vec![0; 4 * 200_001];
        reader.read_exact(&mut back).unwrap();
        wait_for(&mut context, 4);
        let results = by_user_data(&reap_all(&mut context));
        assert!(results.values().all(|&result| result == 200_001), "{results:?}");
        assert!(back == contents.concat());
    });
}

/// Both ends of a new terminal. `None` if there are no terminals.
fn terminal() -> Option<(File, File)> {
    let (mut master, mut slave) = (-1, -1);
    let null = std::ptr::null_mut();
    // SAFETY: two places for descriptors; the rest may be null (openpty(3)).
    let made = unsafe {
        libc::openpty(&raw mut master, &raw mut slave, null, std::ptr::null(), std::ptr::null())
    };
    // SAFETY: just opened, and nobody else's.
    (made == 0).then(|| unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) })
}

#[test]
fn reads_of_a_terminal_get_its_lines_in_order() {
    // This runs in a process of its own, where no file had these numbers before. If a file had the
    // terminal's number, the engine would notice the stream only by calls that fail. It might then
    // execute requests in any order.
    isolated(|| {
        let Some((mut master, slave)) = terminal() else {
            return skip("no terminal can be made");
        };
        let mut context = context(64);
        let mut lines = [[0u8; 8]; 6];
        for (at, line) in lines.iter_mut().enumerate() {
            let read = Sqe::read(slave.as_raw_fd(), &mut line[..], 0);
            push(&mut context, read.user_data(at as u64));
        }
        submit_all(&mut context);
        master.write_all(b"a\nb\nc\nd\ne\n").unwrap();
        wait_for(&mut context, 5);
        let canceled = context.cancel(5).map_err(|error| error.raw_os_error());
        let results = by_user_data(&reap_all(&mut context));
        assert_eq!(canceled, Ok(()), "it waits: {results:?}, {lines:?}");
        assert_eq!(results[&5], -libc::ECANCELED);
        for (at, line) in lines[..5].iter().enumerate() {
            assert_eq!((results[&(at as u64)], line[0]), (2, b'a' + at as u8));
        }
    });
}

#[test]
fn character_devices_work() {
    let _bound = bounded(2 * LONG);
    let mut context = context(64);
    let open = |path| File::options().read(true).write(true).open(path).unwrap();
    let (null, zero) = (open("/dev/null"), open("/dev/zero"));
    let mut buf = vec![7; 70_000];
    assert_eq!(run(&mut context, Sqe::write(null.as_raw_fd(), &buf[..], 0)), 70_000);
    assert_eq!(run(&mut context, Sqe::read(null.as_raw_fd(), &mut buf[..], 0)), 0);
    // One page only: after each page the kernel checks for signals and io_uring's task work, and
    // may end the read.
    let page = &mut buf[..4096];
    assert_eq!(run(&mut context, Sqe::read(zero.as_raw_fd(), &mut page[..], 9)), 4096);
    assert!(page.iter().all(|&byte| byte == 0));
    let random = File::open("/dev/urandom").unwrap();
    assert_eq!(run(&mut context, Sqe::read(random.as_raw_fd(), &mut buf[..64], 0)), 64);
    assert!(buf[..64].iter().any(|&byte| byte != 0));
}

#[test]
fn a_device_with_offsets_is_read_at_its_offset() {
    // A character device whose pread(2) uses the offset.
    let Ok(screen) = File::open("/dev/vcsa1") else {
        return skip("/dev/vcsa1 cannot be opened: no character device with offsets");
    };
    let fd = screen.as_raw_fd();
    let mut context = context(64);
    for offset in [0, 1, 4, 1 << 20] {
        let (mut expected, mut buf) = ([0; 4], [0; 4]);
        // SAFETY: a live buffer of 4 bytes.
        let ret = unsafe { libc::pread(fd, expected.as_mut_ptr().cast(), 4, offset as i64) };
        let ret = plain(ret as i64);
        assert_eq!(run(&mut context, Sqe::read(fd, &mut buf[..], offset)), ret, "at {offset}");
        assert_eq!(buf, expected, "at {offset}");
    }
}
