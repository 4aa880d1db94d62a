"""Contexts and operations as caio has them. caio's own tests run on them in `ci/python.sh`."""

import asyncio
import errno
import gc
import os
import weakref

import pytest

from conftest import SIZE, wait_readable
from uringlet.caio import AsyncioContext, Context, Operation, OperationError


def take(context, count):
    """Waits for this many completions."""
    taken = 0
    while taken < count:
        more = context.process_events(min_requests=1, timeout=30)
        assert more > 0, "no completion came"
        taken += more
    assert taken == count


def test_operations_and_their_values(file, data):
    context = Context(8)
    fd = file.fileno()
    read, end = Operation.read(10, fd, 5), Operation.read(10, fd, SIZE - 3)
    write, sync = Operation.write(b"abc", fd, SIZE), Operation.fsync(fd)
    called = []
    read.set_callback(called.append)
    assert read.get_value() is None and read.context is None
    assert context.submit(read, end, write, sync, Operation.fdsync(fd)) == 5
    assert read.context is context
    with pytest.raises(RuntimeError):
        read.get_value()
    take(context, 5)
    assert read.get_value() == data[5:15] and read.done and read.result == 10
    assert end.get_value()[:3] == data[-3:]
    assert write.get_value() == 3 and sync.get_value() is None
    assert called == [10] and read.context is None
    assert context.submit(read) == 0


def test_a_failed_operation(file, tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    context, read = Context(), Operation.read(1, folder, 0)
    called = []
    read.set_callback(called.append)
    context.submit(read)
    take(context, 1)
    os.close(folder)
    assert called == [-errno.EISDIR] and read.error == errno.EISDIR
    for kind in (OperationError, OSError, SystemError):
        with pytest.raises(kind) as caught:
            read.get_value()
        assert caught.value.errno == errno.EISDIR


def test_the_descriptor_is_readable_when_something_is_over(pipe):
    context, read = Context(4), Operation.read(4, pipe.file.fileno(), 0)
    with pytest.raises(BlockingIOError):
        context.poll()
    context.submit(read)
    assert context.flush() == 0
    pipe.write(b"abc")
    wait_readable(context.fileno)
    assert context.poll() >= 1
    take(context, 1)
    assert read.get_value() == b"abc"
    assert read.payload == b"abc\0"


def test_a_context_of_the_parent_is_refused_in_the_child_of_a_fork(pipe):
    context, read = Context(4), Operation.read(4, pipe.file.fileno(), 0)
    context.submit(read)
    pipe.write(b"abc")
    wait_readable(context.fileno)
    child = os.fork()
    if child == 0:
        refused = 0
        try:
            for method in (
                lambda: context.submit(Operation.fsync(pipe.file.fileno())),
                lambda: context.cancel(read),
                lambda: context.flush(),
                lambda: context.process_events(min_requests=1, timeout=-1),
                lambda: context.poll(),
            ):
                try:
                    method()
                except OSError as error:
                    refused += error.errno == errno.EINVAL and "fork" in str(error)
        finally:
            os._exit(refused)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 5
    # The child has not taken the parent's count.
    assert context.poll() >= 1
    take(context, 1)
    assert read.get_value() == b"abc"


def test_as_many_as_may_be_are_in_flight(pipe):
    fd = pipe.file.fileno()
    context, reads = Context(2), [Operation.read(1, fd, 0) for _ in range(3)]
    with pytest.raises(OverflowError):
        context.submit(*reads)
    assert reads[2].context is None
    pipe.write(b"xyz")
    take(context, 2)
    assert context.submit(reads[2]) == 1
    take(context, 1)
    assert sorted(read.get_value() for read in reads) == [b"x", b"y", b"z"]


def test_cancelled_operations_end(pipe):
    context = Context(8)
    reads = [Operation.read(1, pipe.file.fileno(), 0) for _ in range(8)]
    context.submit(*reads)
    assert context.cancel(*reads) == 0
    pipe.close_writer()
    take(context, 8)
    for read in reads:
        assert read.error in (0, errno.ECANCELED)


def test_a_context_that_is_dropped_in_flight(pipe):
    """Context and operation refer to each other. The collector frees them without a wait."""
    context, read = Context(4), Operation.read(1, pipe.file.fileno(), 0)
    context.submit(read)
    gone = weakref.ref(context), weakref.ref(read)
    del context, read
    gc.collect()
    assert gone[0]() is None
    pipe.close_writer()


def test_arguments_are_checked(file):
    for call, exception in (
        (lambda: Context(0), ValueError),
        (lambda: Context(1 << 20), ValueError),
        (lambda: Context().submit(7), TypeError),
        (lambda: Context().process_events(1, 2), ValueError),
        (lambda: Operation.write("text", 0, 0), ValueError),
        (lambda: Operation.read("7", 0, 0), TypeError),
        (lambda: Operation.read(1, 0, -1), OverflowError),
        (lambda: Operation.fsync(0).set_callback(7), ValueError),
    ):
        with pytest.raises(exception):
            call()


def test_a_callback_that_raises_stops_nobody(file, monkeypatch):
    seen = []
    monkeypatch.setattr("sys.unraisablehook", lambda event: seen.append(event.exc_type))
    context = Context(4)
    operations = [Operation.read(1, file.fileno(), 0) for _ in range(3)]
    for operation in operations:
        operation.set_callback(lambda result: 1 / 0)
    context.submit(*operations)
    take(context, 3)
    assert seen == [ZeroDivisionError] * 3


def test_the_adapter(file, pipe, data):
    async def main():
        async with AsyncioContext(max_requests=4) as context:
            fd = file.fileno()
            assert await context.read(4, fd, 0) == data[:4]
            assert await context.write(b"new", fd, 0) == 3
            await context.fsync(fd)
            await context.fdsync(fd)
            reads = [asyncio.create_task(context.read(1, pipe.file.fileno(), 0)) for _ in range(16)]
            await asyncio.sleep(0)
            pipe.write(bytes(range(16)))
            assert sorted(await asyncio.gather(*reads)) == [bytes([at]) for at in range(16)]
            with pytest.raises(ValueError):
                await context.submit(7)
            with pytest.raises(OSError):
                await context.read(1, 0x7FFFFFF, 0)

    asyncio.run(main())


def test_a_cancelled_operation_has_its_place_until_it_is_over(file, pipe, data):
    async def main():
        async with AsyncioContext(max_requests=1) as context:
            read = asyncio.create_task(context.read(1, pipe.file.fileno(), 0))
            await asyncio.sleep(0)
            read.cancel()
            with pytest.raises(asyncio.CancelledError):
                await read
            following = asyncio.create_task(context.read(4, file.fileno(), 0))
            await asyncio.sleep(0)
            pipe.close_writer()
            assert await asyncio.wait_for(following, 60) == data[:4]

    asyncio.run(main())
