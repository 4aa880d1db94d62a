"""Many requests in one call."""

import mmap
import os
import signal
import threading
import time

import pytest

import uringlet
from conftest import SIZE, is_exported

BLOCK = 4096


def blocks(data):
    return [data[at:at + BLOCK] for at in range(0, len(data), BLOCK)]


def test_many_reads_fill_their_buffers(path, data):
    buffers = [bytearray(BLOCK) for _ in range(SIZE // BLOCK)]
    with open(path, "rb") as file:
        requests = [(file, BLOCK * at, buffer) for at, buffer in enumerate(buffers)]
        assert uringlet.read_many(requests) == [BLOCK] * len(buffers)
    assert buffers == blocks(data)


def test_more_than_a_context_has_places(path, data):
    fd = os.open(path, os.O_RDONLY)
    try:
        buffers = [bytearray(16) for _ in range(5000)]
        assert uringlet.read_many((fd, at, b) for at, b in enumerate(buffers)) == [16] * 5000
    finally:
        os.close(fd)
    assert all(buffer == data[at:at + 16] for at, buffer in enumerate(buffers))


def test_writes_are_where_they_belong(path, data):
    fd = os.open(path, os.O_RDWR)
    try:
        parts = blocks(data)[::-1]
        requests = [(fd, BLOCK * at, part) for at, part in enumerate(parts)]
        assert uringlet.write_many(requests) == [BLOCK] * len(parts)
    finally:
        os.close(fd)
    assert path.read_bytes() == b"".join(parts)


def test_short_reads_and_the_end_of_the_file(file, data):
    buffers = [bytearray(100) for _ in range(3)]
    requests = [(file, at, buffer) for at, buffer in zip((0, SIZE - 10, SIZE), buffers)]
    assert uringlet.read_many(requests) == [100, 10, 0]
    assert buffers[1] == data[-10:] + bytes(90)
    assert buffers[2] == bytes(100)


@pytest.mark.parametrize("is_write", [False, True])
def test_a_file_that_is_closed_meanwhile_stays_open_until_the_call_is_over(
    tmp_path, path, data, is_write
):
    """Otherwise another file would get the descriptor's number, and the requests for this file."""
    (tmp_path / "other").write_bytes(bytes(SIZE))
    file, others = uringlet.File(path, os.O_RDWR), []
    fd = file.fileno()

    class Closes:
        """The call asks this object for a descriptor after it has taken the file's."""

        def fileno(self):
            file.close()
            others.append(os.open(tmp_path / "other", os.O_RDWR))
            return others[-1]

    many = uringlet.write_many if is_write else uringlet.read_many
    buffers = [bytearray(b"four") for _ in range(2)]
    assert many([(file, 0, buffers[0]), (Closes(), 8, buffers[1])]) == [4, 4]
    assert file.closed and others != [fd]
    if is_write:
        assert path.read_bytes()[:4] == b"four"
        assert os.pread(others[0], 4, 0) == bytes(4)
    else:
        assert buffers == [data[:4], bytes(4)]
    os.close(others[0])
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_closed_file_is_refused(path):
    file = uringlet.File(path)
    file.close()
    with pytest.raises(ValueError):
        uringlet.read_many([(file, 0, bytearray(1))])


def test_nothing_to_do():
    assert uringlet.read_many([]) == []
    assert uringlet.write_many(()) == []


def test_an_empty_buffer(file):
    assert uringlet.read_many([(file, 0, bytearray())]) == [0]
    assert uringlet.write_many([(file, 0, b"")]) == [0]


def test_the_first_failure_raises_after_all_have_ended(path, file, data):
    closed = os.open(path, os.O_RDONLY)
    os.close(closed)
    buffers = [bytearray(8) for _ in range(4)]
    fds = [file.fileno(), closed, file.fileno(), closed]
    with pytest.raises(OSError) as caught:
        uringlet.read_many([(fd, 0, buffer) for fd, buffer in zip(fds, buffers)])
    assert caught.value.errno == 9
    assert caught.value.index == 1
    assert buffers[0] == buffers[2] == data[:8]
    assert not any(map(is_exported, buffers))


def test_failures_are_returned_in_their_places(path, file):
    with open(path, "wb") as writable:
        requests = [(file, 0, bytearray(1)), (writable, 0, bytearray(1))]
        good, bad = uringlet.read_many(requests, errors="return")
    assert good == 0
    assert isinstance(bad, OSError) and bad.errno == 9 and bad.index == 1
    assert uringlet.write_many([(0x7FFFFFF, 0, b"x")], errors="return")[0].errno == 9


def test_an_errno_has_its_exception(tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError):
            uringlet.read_many([(folder, 0, bytearray(1))])
    finally:
        os.close(folder)


@pytest.mark.parametrize(
    ("request_", "exception"),
    [
        ((0, -1, bytearray(1)), ValueError),
        ((0, 1 << 63, bytearray(1)), OverflowError),
        ((0, 0.5, bytearray(1)), TypeError),
        ((0, 0, b"read-only"), BufferError),
        ((0, 0, memoryview(bytearray(8))[::2]), BufferError),
        ((0, 0, 7), TypeError),
        (("0", 0, bytearray(1)), TypeError),
        ((-1, 0, bytearray(1)), ValueError),
        ((0, 0), TypeError),
        (7, TypeError),
    ],
)
def test_what_is_no_request_is_refused_before_anything_is_read(file, request_, exception):
    buffer = bytearray(8)
    with pytest.raises(exception):
        uringlet.read_many([(file, 0, buffer), request_])
    assert buffer == bytes(8)
    assert not is_exported(buffer)


def test_errors_is_checked(file):
    with pytest.raises(ValueError):
        uringlet.read_many([], errors="ignore")
    with pytest.raises(TypeError):
        uringlet.read_many(7)


def test_all_kinds_of_buffers(file, data):
    import array

    mapped = mmap.mmap(-1, BLOCK)
    numbers = array.array("i", bytes(BLOCK))
    part = bytearray(3 * BLOCK)
    view = memoryview(part)[BLOCK:2 * BLOCK]
    assert uringlet.read_many([(file, 0, buffer) for buffer in (mapped, numbers, view)]) == [
        BLOCK
    ] * 3
    assert mapped[:] == numbers.tobytes() == bytes(view) == data[:BLOCK]
    assert part[:BLOCK] == part[2 * BLOCK:] == bytes(BLOCK)
    view.release()
    mapped.close()


def test_requests_wait_without_the_gil(pipe):
    """The writer can run only while the reader waits without the GIL."""
    writer = threading.Thread(target=pipe.write, args=(b"abc",))
    buffer = bytearray(8)
    writer.start()
    assert uringlet.read_many([(pipe.file, 0, buffer)]) == [3]
    writer.join()
    assert buffer[:3] == b"abc"


def test_threads_read_side_by_side(path, data):
    parts, wrong = blocks(data), []

    def read():
        with uringlet.File(path) as file:
            for _ in range(20):
                buffers = [bytearray(BLOCK) for _ in parts]
                uringlet.read_many([(file, BLOCK * at, b) for at, b in enumerate(buffers)])
                if buffers != parts:
                    wrong.append(1)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Raised(Exception):
    pass


def test_a_signal_handler_that_raises_ends_a_read(pipe):
    """The call waits for a read that has begun. The handler lets the read end, and then raises."""

    def handler(number, frame):
        pipe.write(b"x")
        raise Raised

    before = signal.signal(signal.SIGALRM, handler)
    buffer = bytearray(1)
    try:
        # The signal may come before the read. Then the handler has already written the byte, and
        # has raised.
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Raised):
            pipe.file.read_into(buffer, 0)
            while True:
                time.sleep(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not is_exported(buffer)


def test_a_signal_handler_may_read_meanwhile(pipe, file, data):
    seen = []

    def handler(number, frame):
        seen.append(file.read(4, 0))
        pipe.write(b"y")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert pipe.file.read(1, 0) == b"y"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen == [data[:4]]


def test_the_child_of_a_fork_reads_with_a_context_of_its_own(path, file, data):
    assert file.read(4, 0) == data[:4]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            buffer = bytearray(BLOCK)
            with open(path, "rb") as again:
                if uringlet.read_many([(again, 0, buffer)]) == [BLOCK] and buffer == data[:BLOCK]:
                    status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert file.read(4, 4) == data[4:8]
