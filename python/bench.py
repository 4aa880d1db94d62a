#!/usr/bin/env python3
"""Compares cached reads of 4 KiB: many in one call, and one at a time on asyncio.

    python/bench.py [--rounds N] [--reads N] [--folder FOLDER]

`read_many` of 4,096 blocks beside a loop of pread in C; `aread_into` beside aiofile (its own
threads, and on uringlet) and aiofiles, where they are installed. Each round runs every way once,
in turn; the medians are printed. A ratio above 1.00 means that a way takes longer than pread in C.
Figures are worth nothing if other programs run at the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uringlet

BLOCK = 4096
BLOCKS = 4096

LOOP = r"""
#include <unistd.h>

long loop(int fd, long n, const long *offsets, char *const *buffers, long length)
{
    long total = 0;
    for (long at = 0; at < n; at++)
        total += pread(fd, buffers[at], length, offsets[at]);
    return total;
}
"""


def compiled(folder: Path) -> ctypes.CDLL:
    (folder / "loop.c").write_text(LOOP)
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", folder / "loop.so", folder / "loop.c"]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(folder / "loop.so"))
    library.loop.restype = ctypes.c_long
    library.loop.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p,
                             ctypes.c_long]
    return library


def timed(function) -> float:
    begin = time.perf_counter_ns()
    function()
    return time.perf_counter_ns() - begin


def medians(ways: dict, rounds: int) -> dict[str, float]:
    taken = {name: [] for name in ways}
    for name, way in ways.items():
        way()
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name].append(timed(way))
    return {name: statistics.median(times) for name, times in taken.items()}


def batches(path: str, folder: Path, rounds: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    library = compiled(folder)
    buffers = [bytearray(BLOCK) for _ in range(BLOCKS)]
    order = list(range(BLOCKS))
    random.Random(7).shuffle(order)
    requests = [(fd, BLOCK * at, buffer) for at, buffer in zip(order, buffers)]
    offsets = (ctypes.c_long * BLOCKS)(*(BLOCK * at for at in order))
    views = [(ctypes.c_char * BLOCK).from_buffer(buffer) for buffer in buffers]
    addresses = (ctypes.c_void_p * BLOCKS)(*(ctypes.addressof(view) for view in views))

    def in_c():
        assert library.loop(fd, BLOCKS, offsets, addresses, BLOCK) == BLOCKS * BLOCK

    def in_one_call():
        assert sum(uringlet.read_many(requests)) == BLOCKS * BLOCK

    def in_python():
        for _, offset, buffer in requests:
            os.preadv(fd, (buffer,), offset)

    taken = medians({"pread in C": in_c, "read_many": in_one_call, "os.preadv": in_python}, rounds)
    print(f"\n{BLOCKS} cached reads of {BLOCK} bytes, µs each:")
    for name, ns in taken.items():
        print(f"  {name:28} {ns / 1e3 / BLOCKS:8.3f}   {ns / taken['pread in C']:5.2f} of C")
    os.close(fd)


async def awaited(path: str, rounds: int, reads: int) -> None:
    offsets = [BLOCK * random.Random(at).randrange(BLOCKS) for at in range(reads)]
    buffer = bytearray(BLOCK)
    ways = {}
    file = uringlet.File(path)

    async def ours():
        for offset in offsets:
            assert await file.aread_into(buffer, offset) == BLOCK

    async def gathered():
        for first in range(0, reads, 64):
            part = offsets[first:first + 64]
            await uringlet.gather(*(file.aread(BLOCK, offset) for offset in part))

    ways["aread_into"] = ours
    ways["gather of 64 aread"] = gathered
    try:
        import aiofile
        import caio
        from uringlet import caio as ours_for_aiofile
    except ImportError:
        print("aiofile: not installed", file=sys.stderr)
    else:
        contexts = {
            "aiofile, threads": getattr(caio, "thread_aio_asyncio", None),
            "aiofile, on uringlet": ours_for_aiofile,
        }
        for name, module in contexts.items():
            if module is None:
                continue
            opened = await aiofile.AIOFile(path, "rb", context=module.AsyncioContext())

            async def by_aiofile(opened=opened):
                for offset in offsets:
                    assert len(await opened.read(BLOCK, offset)) == BLOCK

            ways[name] = by_aiofile
    try:
        import aiofiles
    except ImportError:
        print("aiofiles: not installed", file=sys.stderr)
    else:
        by_threads = await aiofiles.open(path, "rb", buffering=0)

        async def by_aiofiles():
            for offset in offsets:
                await by_threads.seek(offset)
                assert len(await by_threads.read(BLOCK)) == BLOCK

        ways["aiofiles, seek and read"] = by_aiofiles
    taken = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            begin = time.perf_counter_ns()
            await way()
            taken[name].append(time.perf_counter_ns() - begin)
    print(f"\n{reads} awaited cached reads of {BLOCK} bytes, µs each:")
    for name, times in taken.items():
        # The first round warms up.
        print(f"  {name:28} {statistics.median(times[1:]) / 1e3 / reads:8.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--reads", type=int, default=4096)
    parser.add_argument("--folder", default=None, help="of the file that is read")
    arguments = parser.parse_args()
    python = sys.implementation.name, platform.python_version()
    print(f"uringlet {uringlet.__version__}, {' '.join(python)}, kernel {platform.release()}, "
          f"{os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = os.path.join(folder, "file")
        with open(path, "wb") as file:
            file.write(os.urandom(BLOCK * BLOCKS))
        batches(path, Path(folder), arguments.rounds)
        asyncio.run(awaited(path, arguments.rounds, arguments.reads))


if __name__ == "__main__":
    main()
