"""Blocking calls of a file."""

import errno
import gc
import mmap
import os
import pathlib
import signal
import sys
import threading
import weakref

import pytest

import uringlet
from conftest import SIZE, is_exported


def test_reads_and_writes_at_offsets(file, data):
    buffer = bytearray(10)
    assert file.read_into(buffer, 5) == 10
    assert buffer == data[5:15]
    assert file.read(3, 7) == data[7:10]
    assert file.write(b"hello", 7) == 5
    assert file.read(7, 6) == data[6:7] + b"hello" + data[12:13]
    assert file.fsync() is None
    assert file.fdatasync() is None


def test_the_end_of_the_file(file, data):
    assert file.read(100, SIZE - 1) == data[-1:]
    assert file.read(100, SIZE) == b""
    assert file.read(0, 0) == b""
    assert file.read_into(bytearray(4), SIZE + 7) == 0


def test_paths_of_all_kinds(path, data):
    for kind in (str(path), pathlib.Path(path), os.fsencode(path)):
        with uringlet.File(kind) as file:
            assert file.read(4, 0) == data[:4]
            assert file.name == str(path)


def test_flags_and_mode_are_those_of_open(tmp_path):
    path = tmp_path / "new"
    before = os.umask(0o022)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with uringlet.File(path, flags, 0o666) as file:
            assert os.get_inheritable(file.fileno()) is False
            assert file.write(b"abc", 0) == 3
            with pytest.raises(OSError) as caught:
                file.read(1, 0)
            assert caught.value.errno == errno.EBADF
        assert path.stat().st_mode & 0o777 == 0o644
        with pytest.raises(FileExistsError):
            uringlet.File(path, flags)
        with uringlet.File(path, os.O_WRONLY | os.O_APPEND) as file:
            assert file.write(b"d", 0) == 1
        assert path.read_bytes() == b"abcd"
        uringlet.File(path, os.O_RDWR | os.O_TRUNC).close()
        assert path.read_bytes() == b""
    finally:
        os.umask(before)


def test_modes_are_those_of_pythons_open(tmp_path):
    path = tmp_path / "new"
    with uringlet.File(path, "xb") as file:
        file.write_all(b"abc", 0)
    with pytest.raises(FileExistsError):
        uringlet.File(path, "x")
    with uringlet.File(path, "r+b") as file:
        assert file.write(b"B", 1) == 1
        assert file.read_all() == b"aBc"
    with uringlet.File(path, "ab") as file:
        file.write_all(b"d", 0)
        with pytest.raises(OSError):
            file.read(1, 0)
    with uringlet.File(path, "rb") as file:
        assert file.read_all(2) == b"cd"
        with pytest.raises(OSError):
            file.write(b"x", 0)
    uringlet.File(path, "w+b").close()
    assert path.read_bytes() == b""
    for mode in ("", "b", "rw", "rt", "rbb"):
        with pytest.raises(ValueError):
            uringlet.File(path, mode)


@pytest.mark.parametrize("size", [0, 7, 1 << 16, SIZE])
def test_all_of_a_file(tmp_path, data, size):
    with uringlet.File(tmp_path / "all", "x+b") as file:
        assert file.write_all(data[:size], 0) is None
        assert len(file) == size and file
        assert file.stat() == os.fstat(file.fileno())
        assert file.read_all() == data[:size]
        assert file.read_all(size // 2) == data[size // 2:size]
        assert file.read_all(size + 9) == b""
        assert file.truncate(size // 3) is None
        assert file.read_all() == data[:size // 3]
    with uringlet.File("/proc/self/status", "rb") as status:
        assert status.read_all().startswith(b"Name:")


def test_all_of_a_pipe(pipe):
    writer = threading.Thread(target=lambda: (pipe.write(b"x" * 70_000), pipe.close_writer()))
    writer.start()
    assert pipe.file.read_all() == b"x" * 70_000
    writer.join()


def test_all_of_a_write(pipe):
    """A pipe takes a part at a time."""
    data, read = os.urandom(1 << 20), []
    with uringlet.File.from_fd(os.dup(pipe.writer)) as writer:
        reader = threading.Thread(target=lambda: read.append(pipe.file.read_all()))
        reader.start()
        writer.write_all(data, 0)
    pipe.close_writer()
    reader.join()
    assert read == [data]


class Raised(Exception):
    pass


def test_a_signal_handler_that_raises_ends_an_open(tmp_path):
    """The open of a FIFO waits for a writer, and there is none."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    signals = []

    def handler(number, frame):
        signals.append(number)
        if len(signals) == 100:
            # The signals have not ended the open, so a writer ends it.
            os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))
        raise Raised

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(Raised):
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            uringlet.File(fifo)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(signals) < 100


def test_a_failed_open_names_the_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        uringlet.File(tmp_path / "missing")
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == str(tmp_path / "missing")
    for path in ("a\0b", 7):
        with pytest.raises((ValueError, TypeError)):
            uringlet.File(path)
    with pytest.raises(ValueError):
        uringlet.File(tmp_path, direct="perhaps")


def test_direct_io(tmp_path, data):
    path = tmp_path / "direct"
    path.write_bytes(data)
    with uringlet.File(path) as file:
        assert file.alignment is None
    with uringlet.File(path, direct="try") as file:
        if file.alignment is None:
            print(f"\nSKIPPED test_direct_io: no direct I/O on {tmp_path}", file=sys.stderr)
            pytest.skip("the file system has no direct I/O")
        length = max(file.alignment[1], 4096)
        with mmap.mmap(-1, length) as buffer:
            assert file.read_into(buffer, length) == length
            assert buffer[:] == data[length:2 * length]


def test_closing(path):
    file = uringlet.File(path)
    fd = file.fileno()
    assert "descriptor" in repr(file)
    assert not file.closed
    file.close()
    file.close()
    assert file.closed
    assert "closed" in repr(file)
    with pytest.raises(OSError):
        os.fstat(fd)
    for call in (
        lambda: file.read(1, 0),
        lambda: file.read_into(bytearray(1), 0),
        lambda: file.write(b"", 0),
        lambda: file.aread(1, 0),
        lambda: file.awrite(b"", 0),
        file.fsync,
        file.afsync,
        file.fileno,
        file.__enter__,
    ):
        with pytest.raises(ValueError):
            call()


def test_a_file_that_another_thread_closes_stays_open_until_the_call_is_over(pipe):
    fd, buffer, counts = pipe.file.fileno(), bytearray(4), []
    reader = threading.Thread(target=lambda: counts.append(pipe.file.read_into(buffer, 0)))
    reader.start()
    while not is_exported(buffer):
        os.sched_yield()
    pipe.file.close()
    assert pipe.file.closed
    os.fstat(fd)
    pipe.write(b"abcd")
    reader.join()
    assert counts == [4] and buffer == b"abcd"
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_file_that_is_dropped_is_closed(path):
    file = uringlet.File(path)
    fd, gone = file.fileno(), weakref.ref(file)
    del file
    gc.collect()
    assert gone() is None
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_descriptor_is_taken_over(path, data):
    fd = os.open(path, os.O_RDONLY)
    with uringlet.File.from_fd(fd) as file:
        assert file.fileno() == fd
        assert file.read(4, 0) == data[:4]
    with pytest.raises(OSError):
        os.fstat(fd)
    with pytest.raises(OSError) as caught:
        uringlet.File.from_fd(fd)
    assert caught.value.errno == errno.EBADF


def test_wrong_arguments(file):
    for call, exception in (
        (lambda: file.read(-1, 0), OverflowError),
        (lambda: file.read(1, -1), ValueError),
        (lambda: file.read_into(b"abc", 0), BufferError),
        (lambda: file.write("text", 0), TypeError),
        (lambda: file.read(1 << 62, 0), (MemoryError, OverflowError)),
        (lambda: file.read(1 << 63, 0), OverflowError),
    ):
        with pytest.raises(exception):
            call()


def test_buffers_are_released(file):
    buffer = bytearray(16)
    file.read_into(buffer, 0)
    with pytest.raises(OSError):
        uringlet.read_many([(0x7FFFFFF, 0, buffer)])
    assert not is_exported(buffer)
    count = sys.getrefcount(buffer)
    for _ in range(100):
        file.read_into(buffer, 0)
        file.write(buffer, 0)
    assert sys.getrefcount(buffer) == count


def test_a_file_of_the_parent_is_refused_in_the_child_of_a_fork(file):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            file.read(1, 0)
        except OSError as error:
            status = 0 if error.errno == errno.EINVAL and "fork" in str(error) else 2
            file.close()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
