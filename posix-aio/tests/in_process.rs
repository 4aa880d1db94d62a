//! Calls the functions directly, in this process.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use libc::aiocb;
use posix_aio::{
    _aio_cancel, _aio_error, _aio_fsync, _aio_read, _aio_return, _aio_suspend, _aio_write,
};

const CANCELED: i32 = 0;
const NOT_CANCELED: i32 = 1;

fn block(fd: RawFd, buffer: *mut u8, bytes: usize) -> aiocb {
    // SAFETY: zeros are valid for the structure's integers and pointers.
    let mut block: aiocb = unsafe { std::mem::zeroed() };
    block.aio_fildes = fd;
    block.aio_buf = buffer.cast();
    block.aio_nbytes = bytes;
    block.aio_sigevent.sigev_notify = libc::SIGEV_NONE;
    block
}

fn error(block: &aiocb) -> i32 {
    // SAFETY: a control block.
    unsafe { _aio_error(std::ptr::from_ref(block).cast()) }
}

/// Waits for the end of a request, and returns its error code and its value.
fn end(block: &mut aiocb) -> (i32, isize) {
    let limit = libc::timespec { tv_sec: 60, tv_nsec: 0 };
    while error(block) == libc::EINPROGRESS {
        let list = [std::ptr::from_ref::<aiocb>(block).cast()];
        // SAFETY: the list has one control block.
        let ret = unsafe { _aio_suspend(list.as_ptr(), 1, &raw const limit) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert!(ret == 0 || errno == Some(libc::EINTR), "it never ends: {errno:?}");
    }
    // SAFETY: a control block that has ended.
    (error(block), unsafe { _aio_return(std::ptr::from_mut(block).cast()) })
}

/// More requests than the engine takes at a time.
const MANY: usize = 6000;

/// A lock for tests that use up all slots of the process.
static ALL_SLOTS: Mutex<()> = Mutex::new(());

#[test]
fn more_requests_than_there_are_slots_keep_their_order() {
    let _alone = ALL_SLOTS.lock();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("appended");
    let file = File::options().append(true).read(true).create(true).open(&path).unwrap();
    let mut bytes: Vec<u8> = (0..MANY).map(|at| b'a' + (at * 7 % 26) as u8).collect();
    let expected = bytes.clone();
    let new = |byte: &mut u8| block(file.as_raw_fd(), byte, 1);
    let mut blocks: Vec<aiocb> = bytes.iter_mut().map(new).collect();
    for block in &mut blocks {
        // SAFETY: block and byte live until the request has ended.
        assert_eq!(unsafe { _aio_write(std::ptr::from_mut(block).cast()) }, 0);
    }
    let mut sync = block(file.as_raw_fd(), std::ptr::null_mut(), 0);
    // SAFETY: as above.
    assert_eq!(unsafe { _aio_fsync(libc::O_SYNC, (&raw mut sync).cast()) }, 0);
    assert_eq!(end(&mut sync), (0, 0));
    assert!(blocks.iter().all(|block| error(block) == 0), "it comes after them");
    assert!(std::fs::read(&path).unwrap() == expected);
}

#[test]
fn what_waits_for_a_slot_can_be_cancelled() {
    let _alone = ALL_SLOTS.lock();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let fd = reader.as_raw_fd();
    let mut bytes = vec![0u8; MANY];
    let mut blocks: Vec<aiocb> = bytes.iter_mut().map(|byte| block(fd, byte, 1)).collect();
    for block in &mut blocks {
        // SAFETY: block and byte live until the request has ended.
        assert_eq!(unsafe { _aio_read(std::ptr::from_mut(block).cast()) }, 0);
    }
    // SAFETY: control blocks of ours.
    let cancel = |at: usize, blocks: &mut [aiocb]| unsafe {
        _aio_cancel(fd, std::ptr::from_mut(&mut blocks[at]).cast())
    };
    assert_eq!(cancel(0, &mut blocks), NOT_CANCELED, "it is being executed");
    assert_eq!(cancel(1, &mut blocks), CANCELED);
    assert_eq!(cancel(MANY - 1, &mut blocks), CANCELED);
    // SAFETY: a null pointer means all requests of the descriptor.
    assert_eq!(unsafe { _aio_cancel(fd, std::ptr::null_mut()) }, NOT_CANCELED, "but for the first");
    for block in &mut blocks[1..] {
        assert_eq!(end(block), (libc::ECANCELED, -1));
    }
    std::io::Write::write_all(&mut writer, b"x").unwrap();
    assert_eq!((end(&mut blocks[0]), bytes[0]), ((0, 1), b'x'));
}

/// The request that the signal handler submits, and the result of its submission.
static SECOND: AtomicPtr<aiocb> = AtomicPtr::new(std::ptr::null_mut());
static CALLS: AtomicUsize = AtomicUsize::new(0);
static ANSWER: AtomicI32 = AtomicI32::new(-1);

extern "C" fn submit_the_second(_: i32) {
    // SAFETY: `SECOND` is set before the signal is sent. The block that it points to lives until
    // its request has ended.
    let answer = unsafe { _aio_write(SECOND.load(Ordering::Acquire).cast()) };
    ANSWER.store(answer, Ordering::Release);
    CALLS.fetch_add(1, Ordering::Release);
}

#[test]
fn a_signal_handler_submits_into_a_thread_that_waits() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(folder.path().join("data"))
        .unwrap();
    // SAFETY: the handler calls only functions that the drop-in allows in handlers.
    unsafe { libc::signal(libc::SIGUSR1, submit_the_second as *const () as libc::sighandler_t) };
    let mut fds = [0; 2];
    // SAFETY: `fds` has room for two descriptors.
    assert_eq!(unsafe { libc::pipe(fds.as_mut_ptr()) }, 0);
    // SAFETY: just opened, and nobody else's.
    let (reader, writer) = unsafe { (File::from_raw_fd(fds[0]), File::from_raw_fd(fds[1])) };
    for round in 1..=20 {
        let (mut one, mut two) = ([0u8; 1], *b"second");
        let mut first = block(reader.as_raw_fd(), one.as_mut_ptr(), 1);
        let mut second = block(file.as_raw_fd(), two.as_mut_ptr(), two.len());
        SECOND.store(&raw mut second, Ordering::Release);
        // SAFETY: block and byte live until the request has ended.
        assert_eq!(unsafe { _aio_read((&raw mut first).cast()) }, 0);
        // SAFETY: pthread_self(3) takes no arguments and cannot fail.
        let waiting = unsafe { libc::pthread_self() };
        let writer = &writer;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // SAFETY: the thread `waiting` does not end before this scope.
                unsafe { libc::pthread_kill(waiting, libc::SIGUSR1) };
                while CALLS.load(Ordering::Acquire) < round {
                    std::thread::yield_now();
                }
                std::io::Write::write_all(&mut &*writer, b"x").unwrap();
            });
            assert_eq!(end(&mut first), (0, 1));
        });
        assert_eq!(ANSWER.load(Ordering::Acquire), 0);
        assert_eq!(end(&mut second), (0, 6));
        let mut content = String::new();
        File::open(folder.path().join("data")).unwrap().read_to_string(&mut content).unwrap();
        assert_eq!(content, "second");
    }
}
