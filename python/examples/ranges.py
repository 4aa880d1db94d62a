#!/usr/bin/env python3
"""Reads many ranges of a file into the rows of a NumPy array, in several ways, and measures them.

    python ranges.py [--kinds cached,cold,direct] [--rounds 11] [--folder FOLDER]

The file is read from the page cache (cached), from the disk into the page cache (cold), and from
the disk past the page cache (direct). Each round runs every way once, in turn. The medians of the
time and of the CPU time of the process are printed, in seconds. Behind each is its ratio to that of
read_many: the median of the rounds, and an interval with the true median in 95 of 100 cases. The
CPU time leaves out what the kernel does in its own threads. Figures are worth nothing if other
programs run at the same time. aiofiles and caio are measured where they are installed; they read
into memory that direct I/O does not take.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import math
import mmap
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import uringlet

THREADS = 32


@dataclass
class Job:
    """What is read: the same number of bytes from each offset, into one row each."""

    path: str
    offsets: list[int]
    rows: NDArray[np.uint8]
    direct: Literal["off", "require"] = "off"

    @property
    def flags(self) -> int:
        return os.O_RDONLY | (os.O_DIRECT if self.direct == "require" else 0)

    def shares(self, count: int) -> list[range]:
        """The indices of the rows, divided among ``count`` threads or tasks."""
        return [range(first, len(self.offsets), count) for first in range(count)]


def by_read_many(job: Job) -> None:
    """One call, without the GIL."""
    with uringlet.File(job.path, "rb", direct=job.direct) as file:
        uringlet.read_many([(file, at, row) for at, row in zip(job.offsets, job.rows)])


def by_gather(job: Job) -> None:
    """On asyncio: all reads are begun, and the task is woken once."""

    async def main() -> None:
        async with await uringlet.File.aopen(job.path, "rb", direct=job.direct) as file:
            reads = (file.aread_into(row, at) for at, row in zip(job.offsets, job.rows))
            await uringlet.gather(*reads)

    asyncio.run(main())


def by_threads(job: Job) -> None:
    """Threads that each read their share."""
    fd = os.open(job.path, job.flags)

    def read(share: range) -> None:
        for at in share:
            os.preadv(fd, [job.rows[at]], job.offsets[at])

    with ThreadPoolExecutor(THREADS) as executor:
        for _ in executor.map(read, job.shares(THREADS)):
            pass
    os.close(fd)


def by_aiofiles(job: Job) -> None:
    """Tasks that each read their share, with a file of their own."""
    aiofiles: Any = importlib.import_module("aiofiles")

    async def read(share: range) -> None:
        async with aiofiles.open(job.path, "rb", buffering=0) as file:
            for at in share:
                await file.seek(job.offsets[at])
                await file.readinto(job.rows[at])

    async def main() -> None:
        await asyncio.gather(*(read(share) for share in job.shares(THREADS)))

    asyncio.run(main())


def by_caio(job: Job) -> None:
    """All reads are begun at once. Each returns bytes, which are copied into a row."""
    caio: Any = importlib.import_module("caio")
    fd = os.open(job.path, os.O_RDONLY)

    async def read(context: Any, at: int) -> None:
        data: bytes = await context.read(job.rows.shape[1], fd, job.offsets[at])
        job.rows[at] = np.frombuffer(data, np.uint8)

    async def main() -> None:
        async with caio.AsyncioContext() as context:
            await asyncio.gather(*(read(context, at) for at in range(len(job.offsets))))

    asyncio.run(main())
    os.close(fd)


Way = Callable[[Job], None]


def ways(job: Job) -> Iterator[tuple[str, Way]]:
    yield "uringlet.read_many", by_read_many
    yield "uringlet.gather", by_gather
    yield f"{THREADS} threads, preadv", by_threads
    others: list[tuple[str, Way]] = [("aiofiles", by_aiofiles), ("caio", by_caio)]
    for name, way in others:
        if job.direct == "require":
            continue
        if importlib.util.find_spec(name) is None:
            print(f"{name}: not installed")
        else:
            yield name, way


def drop_cache(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def measured(way: Way, job: Job) -> tuple[float, float]:
    """Seconds, and seconds of CPU time. What was read is checked."""
    job.rows[:] = 0
    begin, cpu = time.perf_counter(), time.process_time()
    way(job)
    taken = time.perf_counter() - begin, time.process_time() - cpu
    # Each block begins with its offset.
    assert (job.rows[:, :8].copy().view(np.int64)[:, 0] == job.offsets).all()
    return taken


def interval(values: list[float]) -> tuple[float, float]:
    """The two values between which the true median lies in 95 of 100 cases."""
    values = sorted(values)
    below, rank = 0.0, 0
    while below + math.comb(len(values), rank) / 2 ** len(values) <= 0.025:
        below += math.comb(len(values), rank) / 2 ** len(values)
        rank += 1
    rank = max(rank - 1, 0)
    return values[rank], values[-1 - rank]


def compare(kind: str, job: Job, rounds: int) -> None:
    each: dict[str, list[tuple[float, float]]] = {}
    chosen = list(ways(job))
    for turn in range(rounds):
        first = turn % len(chosen)
        for name, way in chosen[first:] + chosen[:first]:
            if kind == "cold":
                drop_cache(job.path)
            each.setdefault(name, []).append(measured(way, job))
    ours = list(zip(*each[chosen[0][0]]))
    for name, _ in chosen:
        line = f"{kind:6} {name:19}"
        for own, other in zip(ours, zip(*each[name])):
            ratios = [one / base for one, base in zip(other, own)]
            low, high = interval(ratios)
            times = f"{statistics.median(ratios):.2f}x"
            line += f"  {statistics.median(other):8.4f} {times:>6} {low:.2f}-{high:.2f}"
        print(line, flush=True)


def write(path: str, blocks: int, size: int) -> None:
    """A file whose blocks begin with their offsets."""
    data = np.zeros((blocks, size), np.uint8)
    offsets = np.arange(blocks, dtype=np.int64) * size
    data[:, :8] = offsets.view(np.uint8).reshape(blocks, 8)
    with uringlet.File(path, "wb") as file:
        file.write_all(data, 0)
        file.fsync()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranges", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=4096, help="of each range; direct: 4096, 8192")
    parser.add_argument("--kinds", default="cached,cold,direct")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--folder", default=".", help="of the file that is read")
    arguments = parser.parse_args()
    count, size = arguments.ranges, arguments.bytes
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = os.path.join(folder, "file")
        write(path, 2 * count, size)
        offsets = [size * at for at in random.Random(7).sample(range(2 * count), count)]
        # An mmap has the alignment that direct I/O needs.
        rows = np.frombuffer(mmap.mmap(-1, count * size), np.uint8).reshape(count, size)
        print(f"{'':26}  {'seconds':>8} {'times':>6} {'95 %':9}  {'CPU':>8} {'times':>6} 95 %")
        for kind in arguments.kinds.split(","):
            job = Job(path, offsets, rows, "require" if kind == "direct" else "off")
            try:
                compare(kind, job, arguments.rounds)
            except OSError as error:
                if kind != "direct":
                    raise
                print(f"direct: not here ({error.strerror})")


if __name__ == "__main__":
    main()
