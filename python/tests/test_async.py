"""Awaited files."""

import asyncio
import errno
import gc
import inspect
import mmap
import os
import sys
import threading
import warnings
import weakref

import pytest

import uringlet
from conftest import SIZE, is_exported

BLOCK = 4096


def run(coroutine):
    """Runs a coroutine in a new asyncio loop. Fails after 60 seconds."""

    async def bounded():
        return await asyncio.wait_for(coroutine, 60)

    return asyncio.run(bounded())


async def released(buffer):
    """Waits until no request holds a buffer. The loop runs meanwhile."""
    while is_exported(buffer):
        await asyncio.sleep(0.001)


async def in_flight(request):
    """A task that awaits a request which does not end at once."""
    task = asyncio.create_task(request)
    await asyncio.sleep(0)
    assert "in flight" in repr(request)
    return task


def test_what_is_in_memory_ends_at_the_first_step_without_a_loop(file, data):
    file.read(SIZE, 0)
    buffer = bytearray(BLOCK)
    request = file.aread_into(buffer, BLOCK)
    with pytest.raises(StopIteration) as ended:
        next(request)
    assert ended.value.value == BLOCK
    assert buffer == data[BLOCK:2 * BLOCK]
    with pytest.raises(StopIteration) as ended:
        file.aread(10, SIZE - 3).send(None)
    assert ended.value.value == data[-3:]


def test_nothing_happens_before_it_is_awaited(file):
    buffer = bytearray(8)
    request = file.aread_into(buffer, 0)
    assert "not awaited" in repr(request)
    request.close()
    del request
    gc.collect()
    assert buffer == bytes(8)
    uringlet.read_many([])
    assert not is_exported(buffer)


def test_all_operations(tmp_path):
    async def main():
        path = tmp_path / "new"
        async with await uringlet.File.aopen(path, os.O_RDWR | os.O_CREAT) as file:
            assert file.name == str(path)
            assert await file.awrite(b"hello, file", 0) == 11
            assert await file.afsync() is None
            assert await file.afdatasync() is None
            assert await file.aread(4, 7) == b"file"
            assert await file.aread(4, 11) == b""
            buffer = bytearray(20)
            assert await file.aread_into(memoryview(buffer)[2:7], 0) == 5
            assert buffer == b"\0\0hello" + bytes(13)
        assert file.closed
        await file.aclose()

    run(main())


@pytest.mark.parametrize("size", [0, 7, 1 << 16, (1 << 16) + 1, SIZE])
def test_all_of_a_file(tmp_path, data, size):
    async def main():
        async with await uringlet.File.aopen(tmp_path / "all", "x+b") as file:
            assert await file.awrite_all(data[:size], 0) is None
            assert await file.aread_all() == data[:size]
            assert await file.aread_all(size // 2) == data[size // 2:size]
            assert await file.aread_all(size + 9) == b""
            found, wanted = await file.astat(), os.fstat(file.fileno())
            for name in dir(wanted):
                if name.startswith("st_"):
                    assert getattr(found, name) == getattr(wanted, name), name
            assert tuple(found) == tuple(wanted)
            assert await file.atruncate(size // 3) is None
            assert await file.aread_all() == data[:size // 3]
            with pytest.raises(OSError) as caught:
                await file.atruncate(-1)
            assert caught.value.errno == errno.EINVAL
        async with await uringlet.File.aopen("/proc/self/status", "rb") as status:
            assert (await status.aread_all()).startswith(b"Name:")

    run(main())


def test_all_of_a_pipe(pipe):
    async def main():
        task = await in_flight(pipe.file.aread_all())
        pipe.write(b"one, ")
        await asyncio.sleep(0)
        pipe.write(b"two")
        pipe.close_writer()
        assert await task == b"one, two"

    run(main())


def test_errors(tmp_path, path):
    async def main():
        with pytest.raises(FileNotFoundError) as caught:
            await uringlet.File.aopen(tmp_path / "missing")
        assert caught.value.filename == str(tmp_path / "missing")
        with uringlet.File(path, os.O_WRONLY) as file:
            with pytest.raises(OSError) as caught:
                await file.aread(1, 0)
            assert caught.value.errno == errno.EBADF
        with uringlet.File(tmp_path) as folder, pytest.raises(IsADirectoryError):
            await folder.aread(1, 0)

    run(main())


def test_what_waits_completes_through_the_loop(pipe):
    async def main():
        task = await in_flight(pipe.file.aread(8, 0))
        turns = 0
        while turns < 3:
            await asyncio.sleep(0)
            turns += 1
        assert not task.done()
        pipe.write(b"abc")
        assert await task == b"abc"

    run(main())


def eventfds():
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    return names.count("anon_inode:[eventfd]")


def test_one_eventfd_for_a_loop(pipe):
    async def main():
        task = await in_flight(pipe.file.aread(1, 0))
        before = eventfds()
        tasks = [await in_flight(pipe.file.aread(1, 0)) for _ in range(16)]
        assert eventfds() == before
        pipe.write(bytes(17))
        await asyncio.gather(task, *tasks)

    run(main())


def test_requests_are_coroutines(file):
    request = file.aread(1, 0)
    assert asyncio.iscoroutine(request)
    assert inspect.isawaitable(request)
    assert (request.__name__, request.__qualname__) == ("aread", "File.aread")
    request.close()

    async def main():
        assert len(await asyncio.create_task(file.aread(3, 0))) == 3
        assert len(await asyncio.wait_for(file.aread(3, 0), 60)) == 3
        parts = await asyncio.gather(*(file.aread(2, at) for at in range(300)))
        assert [len(part) for part in parts] == [2] * 300

    run(main())
    assert len(asyncio.run(file.aread(5, 0))) == 5


def test_a_request_is_awaited_once(file):
    async def main():
        request = file.aread(1, 0)
        await request
        with pytest.raises(RuntimeError):
            await request

    run(main())
    request = file.aread(1, 0)
    with pytest.raises(TypeError):
        request.send(1)
    request.close()


def never_awaited(begin):
    """The warnings for a request that is dropped without being awaited."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begin()
        gc.collect()
    assert all(one.category is RuntimeWarning for one in caught)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("File.aopen", lambda file: uringlet.File.aopen("/missing")),
        ("File.aread", lambda file: file.aread(1, 0)),
        ("File.aread_all", lambda file: file.aread_all()),
        ("File.aread_into", lambda file: file.aread_into(bytearray(1), 0)),
        ("File.awrite", lambda file: file.awrite(b"lost", 0)),
        ("File.awrite_all", lambda file: file.awrite_all(b"lost", 0)),
        ("File.afsync", lambda file: file.afsync()),
        ("File.afdatasync", lambda file: file.afdatasync()),
        ("File.astat", lambda file: file.astat()),
        ("File.atruncate", lambda file: file.atruncate(0)),
        ("File.__aenter__", lambda file: file.__aenter__()),
        ("gather", lambda file: uringlet.gather(file.awrite(b"lost", 0), file.afsync())),
        ("File.aclose", lambda file: file.aclose()),
    ],
)
def test_what_is_never_awaited_says_so(file, data, name, begin):
    assert never_awaited(lambda: begin(file)) == [f"{name} was never awaited"]
    assert never_awaited(lambda: begin(file).close() if not file.closed else None) == []
    with uringlet.File(file.name) as again:
        assert again.read(4, 0) == data[:4]


def test_what_is_never_awaited_and_refers_to_itself_says_so(file):
    def begin():
        circle = [uringlet.gather(file.afsync())]
        circle.append(circle)

    assert never_awaited(begin) == ["gather was never awaited"]


def test_a_warning_that_is_an_error_breaks_nothing(file, monkeypatch):
    seen = []
    monkeypatch.setattr("sys.unraisablehook", lambda event: seen.append(event.exc_type))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TypeError):
            # The request is dropped while an exception is being raised.
            file.afsync().send(1)
    assert seen == [RuntimeWarning]


def test_a_request_outside_a_loop(pipe):
    request = pipe.file.aread(1, 0)
    with pytest.raises(RuntimeError, match="no running event loop"):
        next(request)
    pipe.write(b"x")


def test_others_run_between_reads_that_are_in_memory(file):
    """A task whose reads all end at once lets other callbacks of its event loop run."""
    file.read(SIZE, 0)

    async def main():
        ran = asyncio.Event()
        asyncio.get_running_loop().call_soon(ran.set)
        buffer, hits = bytearray(512), 0
        while not ran.is_set():
            await file.aread_into(buffer, 0)
            hits += 1
            assert hits < 10_000
        return hits

    assert run(main()) > 1


def test_a_cancelled_task_goes_on_and_the_buffer_stays_held(pipe):
    async def main():
        buffer = bytearray(4)
        task = await in_flight(pipe.file.aread_into(buffer, 0))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The read was cancelled, or it still waits for the pipe. When it ends, the buffer is
        # released.
        pipe.write(b"abcd")
        await released(buffer)

    run(main())


def test_a_buffer_of_a_begun_request_is_held_until_the_engine_is_done(pipe):
    async def main():
        buffers = [bytearray(1) for _ in range(8)]
        tasks = [await in_flight(pipe.file.aread_into(buffer, 0)) for buffer in buffers]
        gone = [weakref.ref(task) for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        del task, tasks
        gc.collect()
        assert not any(one() for one in gone)
        pipe.close_writer()
        for buffer in buffers:
            await released(buffer)

    run(main())


def test_a_timeout(pipe):
    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(pipe.file.aread(1, 0), 0.01)
        pipe.write(b"xy")
        # The read that was given up has taken at most one byte.
        assert (await pipe.file.aread(2, 0))[-1:] == b"y"

    run(main())


def test_a_loop_that_ends_with_requests_in_flight(pipe, collected):
    buffer = bytearray(1)
    loops = []

    async def main():
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await in_flight(pipe.file.aread_into(buffer, 0))

    run(main())
    gc.collect()
    assert loops[0]() is None
    pipe.close_writer()
    run(released_by_another_loop(buffer))


async def released_by_another_loop(buffer):
    while is_exported(buffer):
        uringlet.read_many([])
        await asyncio.sleep(0.001)


def test_loops_that_end_with_requests_in_flight_are_freed(pipe, collected):
    """A closed loop is freed whether its requests end or not, as with futures of asyncio."""

    def ended():
        loop = asyncio.new_event_loop()
        task = loop.create_task(pipe.file.aread(1, 0))
        task._log_destroy_pending = False
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        return weakref.ref(loop)

    before = eventfds()
    loops = [ended() for _ in range(10)]
    gc.collect()
    assert [loop() for loop in loops] == [None] * 10
    pipe.close_writer()

    async def all_are_closed():
        # Each eventfd is closed with the request that would have signalled it.
        while eventfds() > before:
            uringlet.read_many([])
            await asyncio.sleep(0.001)

    run(all_are_closed())


def test_a_request_that_is_dropped_in_flight(pipe, collected):
    """No task awaits the request any more, so it is freed, and its buffer is released."""

    async def main():
        buffer = bytearray(1)
        request = pipe.file.aread_into(buffer, 0)
        gone = weakref.ref(request)
        future = next(request)
        assert asyncio.isfuture(future)
        del request, future
        gc.collect()
        assert gone() is None
        pipe.close_writer()
        await released(buffer)

    run(main())


def test_closing_while_requests_are_in_flight(pipe):
    async def main():
        fd = pipe.file.fileno()
        task = await in_flight(pipe.file.aread(8, 0))
        await pipe.file.aclose()
        assert pipe.file.closed
        os.fstat(fd)
        pipe.write(b"late")
        assert await task == b"late"
        # The last reference to the file may be dropped a moment after the request has ended.
        while True:
            try:
                os.fstat(fd)
            except OSError:
                break
            await asyncio.sleep(0.001)

    run(main())


def test_closing_blocks_for_nobody(pipe):
    async def main():
        task = await in_flight(pipe.file.aread(8, 0))
        pipe.file.close()
        pipe.write(b"x")
        assert await task == b"x"

    run(main())


def test_gather_of_what_is_in_memory_and_what_is_not(file, pipe, data):
    async def main():
        gathered = uringlet.gather(
            file.aread(4, 0), pipe.file.aread(3, 0), file.awrite(b"x", SIZE), file.afsync()
        )
        task = asyncio.create_task(gathered)
        await asyncio.sleep(0)
        assert not task.done()
        pipe.write(b"abc")
        assert await task == [data[:4], b"abc", 1, None]

    run(main())


def test_gather_of_thousands(file, data):
    file.read(SIZE, 0)
    buffers = [bytearray(64) for _ in range(4096)]

    async def main():
        reads = [file.aread_into(buffer, 64 * at) for at, buffer in enumerate(buffers)]
        return await uringlet.gather(*reads)

    assert run(main()) == [64] * 4096
    assert b"".join(buffers) == data[:64 * 4096]


def test_gather_of_nothing():
    async def main():
        return await uringlet.gather()

    assert run(main()) == []


def test_gather_wakes_its_task_once(pipe):
    """The task takes two steps: it begins all requests, and it gets all values."""
    steps = []

    class Counted:
        def __init__(self, inner):
            self.inner = inner

        def __await__(self):
            return self

        def __iter__(self):
            return self

        def __next__(self):
            steps.append(1)
            return next(self.inner)

    async def main():
        gathered = uringlet.gather(*(pipe.file.aread(1, 0) for _ in range(8)))
        task = asyncio.ensure_future(Counted(gathered))
        await asyncio.sleep(0)
        for _ in range(8):
            pipe.write(b"x")
            await asyncio.sleep(0)
        assert await task == [b"x"] * 8

    run(main())
    assert len(steps) == 2


def test_gather_raises_the_first_failure_after_all_have_ended(file, path, data):
    async def main():
        with uringlet.File(path, os.O_WRONLY) as wrong:
            buffer = bytearray(4)
            with pytest.raises(OSError) as caught:
                await uringlet.gather(wrong.aread(1, 0), file.aread_into(buffer, 0))
            assert caught.value.errno == errno.EBADF
            assert buffer == data[:4]
            values = await uringlet.gather(
                wrong.aread(1, 0), file.aread(1, 0), return_exceptions=True
            )
            assert isinstance(values[0], OSError) and values[1] == data[:1]

    run(main())


def test_a_gather_is_a_request(file, data):
    async def main():
        inner = uringlet.gather(file.aread(1, 0), file.aread(1, 1))
        assert await uringlet.gather(inner, file.aread(1, 2)) == [
            [data[:1], data[1:2]], data[2:3],
        ]

    run(main())


def test_gather_takes_requests_that_nobody_awaits(file):
    async def other():
        pass

    coroutine = other()
    with pytest.raises(TypeError):
        uringlet.gather(coroutine)
    coroutine.close()
    request = file.aread(1, 0)
    with pytest.raises(RuntimeError):
        uringlet.gather(request, request)


def test_a_cancelled_gather_releases_its_buffers(pipe):
    async def main():
        buffers = [bytearray(1) for _ in range(8)]
        reads = (pipe.file.aread_into(buffer, 0) for buffer in buffers)
        task = asyncio.create_task(uringlet.gather(*reads))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        pipe.close_writer()
        for buffer in buffers:
            await released(buffer)

    run(main())


def test_many_loops_in_threads(path, data):
    wrong = []

    async def main():
        async with await uringlet.File.aopen(path) as file:
            for _ in range(10):
                offsets = range(0, SIZE, SIZE // 64)
                reads = (file.aread(SIZE // 64, offset) for offset in offsets)
                if b"".join(await uringlet.gather(*reads)) != data:
                    wrong.append(1)

    threads = [threading.Thread(target=run, args=(main(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_reads_beyond_what_is_tried_at_once(file, data):
    """256 KiB is more than a read copies on the loop's thread."""

    async def main():
        tasks = [asyncio.create_task(file.aread(SIZE // 4, at * (SIZE // 4))) for at in range(4)]
        assert b"".join(await asyncio.gather(*tasks)) == data

    run(main())


def test_a_read_of_more_than_the_engine_has_at_a_time_waits_for_nobody(tmp_path, pipe, path, data):
    """The engine takes 64 MiB of buffers at a time. The read of the pipe stays in flight."""
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, 100 << 20)

    async def main():
        waiting = await in_flight(pipe.file.aread(4, 0))
        async with await uringlet.File.aopen(large) as file:
            with mmap.mmap(-1, 100 << 20) as buffer:
                assert await file.aread_into(buffer, 0) == 100 << 20
                # A given-up read does not delay the reads behind it either.
                given_up = await in_flight(file.aread_into(buffer, 0))
                given_up.cancel()
                async with await uringlet.File.aopen(path) as other:
                    assert await other.aread_all() == data
                with pytest.raises(asyncio.CancelledError):
                    await given_up
                while True:
                    try:
                        buffer.resize(100 << 20)
                        break
                    except BufferError:
                        await asyncio.sleep(0.001)
        assert not waiting.done()
        pipe.write(b"late")
        assert await waiting == b"late"

    run(main())


def test_a_storm_of_cancelled_reads(file):
    async def main():
        buffer = bytearray(SIZE)
        for _ in range(200):
            tasks = [asyncio.create_task(file.aread_into(buffer, 0)) for _ in range(4)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(
                result == SIZE or isinstance(result, asyncio.CancelledError) for result in results
            )
        await released(buffer)

    run(main())


def test_the_child_of_a_fork_has_a_loop_of_its_own(path, file, pipe, data):
    async def child():
        try:
            await file.aread(1, 0)
        except OSError as error:
            if error.errno != errno.EINVAL or "fork" not in str(error):
                return 2
        else:
            return 3
        async with await uringlet.File.aopen(path) as own:
            return 0 if await own.aread(SIZE, 0) == data else 4

    async def main():
        task = await in_flight(pipe.file.aread(1, 0))
        number = os.fork()
        if number == 0:
            status = 1
            try:
                asyncio.events._set_running_loop(None)
                status = run(child())
            finally:
                os._exit(status)
        _, status = os.waitpid(number, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        pipe.write(b"x")
        assert await task == b"x"

    run(main())


def test_the_interpreter_ends_with_requests_in_flight(tmp_path):
    import subprocess

    program = """
import asyncio, os, uringlet
reader, writer = os.pipe()
file = uringlet.File.from_fd(reader)
async def main():
    asyncio.create_task(file.aread_into(bytearray(1), 0))
    await asyncio.sleep(0)
asyncio.run(main())
print("end")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        # In the folder with the sources, Python would import the sources.
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
