"""Transfers of more than 0x7ffff000 bytes, which is the maximum of one call (read(2))."""

import asyncio
import ctypes
import mmap
import os

import pytest

import uringlet

ONE_CALL = 0x7FFFF000
SIZE = (2 << 30) + 4096
PIECE = 32 << 20


class Memory:
    """A buffer of more than 2 GiB that takes 32 MiB: it maps the same pages again and again."""

    def __init__(self):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [
            ctypes.c_long
        ]
        reserved, fixed = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, mmap.MAP_SHARED | 0x10
        self.whole = mmap.mmap(-1, SIZE, reserved, mmap.PROT_READ | mmap.PROT_WRITE)
        self.buffer = (ctypes.c_char * SIZE).from_buffer(self.whole)
        pages = os.memfd_create("pages")
        os.ftruncate(pages, PIECE)
        start = ctypes.addressof(self.buffer)
        for at in range(start, start + SIZE, PIECE):
            length = min(PIECE, start + SIZE - at)
            protection = mmap.PROT_READ | mmap.PROT_WRITE
            assert libc.mmap(at, length, protection, fixed, pages, 0) == at
        os.close(pages)


@pytest.fixture(scope="module")
def memory():
    return Memory().buffer


@pytest.fixture
def large():
    """A file without data, but for the last four bytes."""
    fd = os.memfd_create("large")
    os.ftruncate(fd, SIZE)
    os.pwrite(fd, b"last", SIZE - 4)
    with uringlet.File.from_fd(fd) as file:
        yield file


def last(memory):
    return bytes(memoryview(memory).cast("B")[SIZE - 4:])


WAYS = {
    "read_into": lambda file, buffer: file.read_into(buffer, 0),
    "read_many": lambda file, buffer: uringlet.read_many([(file, 0, buffer)])[0],
    "aread_into": lambda file, buffer: asyncio.run(file.aread_into(buffer, 0)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_read_of_more_than_two_gib_is_whole(memory, large, way):
    memory[SIZE - 4:SIZE] = b"...."
    assert WAYS[way](large, memory) == SIZE
    assert last(memory) == b"last"


WRITES = {
    "write": lambda file, buffer: file.write(buffer, 0),
    "write_all": lambda file, buffer: file.write_all(buffer, 0),
    "write_many": lambda file, buffer: uringlet.write_many([(file, 0, buffer)])[0],
    "awrite": lambda file, buffer: asyncio.run(file.awrite(buffer, 0)),
    "awrite_all": lambda file, buffer: asyncio.run(file.awrite_all(buffer, 0)),
}


@pytest.mark.parametrize("way", WRITES)
def test_a_write_of_more_than_two_gib_is_whole(memory, way):
    """Writes to /dev/null, which takes all bytes of a call, and stores nothing."""
    with uringlet.File(os.devnull, "wb") as file:
        assert WRITES[way](file, memory) in (SIZE, None)


@pytest.mark.parametrize("way", ["read_into", "aread_into"])
def test_what_was_read_before_a_failure_is_counted(memory, way):
    """Offsets end at 2^63 - 1: what is behind cannot be read."""
    fd = os.memfd_create("end")
    os.ftruncate(fd, (1 << 63) - 1)
    with uringlet.File.from_fd(fd) as file:
        offset = (1 << 63) - 1 - ONE_CALL
        ways = {
            "read_into": lambda: file.read_into(memory, offset),
            "aread_into": lambda: asyncio.run(file.aread_into(memory, offset)),
        }
        assert ways[way]() == ONE_CALL
