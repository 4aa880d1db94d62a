"""Awaited files under trio, by itself and through anyio."""

import os
import sys

import pytest

import uringlet
from conftest import SIZE, is_exported

try:
    import anyio
    import trio
    import trio.testing
except ImportError as error:
    print(f"\nSKIPPED {__name__}: {error}", file=sys.stderr)
    pytest.skip(str(error), allow_module_level=True)


def test_what_waits_and_what_does_not(path, data, pipe):
    async def main():
        async with await uringlet.File.aopen(path) as file:
            assert await file.aread(4, 0) == data[:4]
            assert await file.aread_all() == data
            reads = (file.aread(SIZE // 8, at) for at in range(0, SIZE, SIZE // 8))
            assert b"".join(await uringlet.gather(*reads)) == data
        read = []

        async def reads():
            read.append(await pipe.file.aread(4, 0))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reads)
                await trio.testing.wait_all_tasks_blocked()
                assert not read
                pipe.write(b"abcd")
        assert read == [b"abcd"]

    trio.run(main)


def test_a_cancelled_task_goes_on_and_the_buffer_is_released(pipe):
    buffer = bytearray(4)

    async def main():
        with trio.move_on_after(0.01) as scope:
            await pipe.file.aread_into(buffer, 0)
        assert scope.cancelled_caught
        pipe.close_writer()
        while is_exported(buffer):
            uringlet.read_many([])
            await trio.sleep(0.001)

    trio.run(main)


def test_others_run_between_reads_that_are_in_memory(file):
    file.read(SIZE, 0)

    async def main():
        ran, hits = trio.Event(), 0

        async def sets():
            ran.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sets)
            while not ran.is_set():
                await file.aread(512, 0)
                hits += 1
                assert hits < 10_000

    trio.run(main)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_anyio(path, data, pipe, backend):
    async def main():
        async with await uringlet.File.aopen(path) as file:
            assert await file.aread_all() == data
        with anyio.move_on_after(0.01):
            await pipe.file.aread(4, 0)
        pipe.write(b"x")
        descriptors = len(os.listdir("/proc/self/fd"))
        await anyio.sleep(0)
        assert len(os.listdir("/proc/self/fd")) == descriptors

    anyio.run(main, backend=backend)
