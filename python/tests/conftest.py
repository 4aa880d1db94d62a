"""What the tests share: a file with known bytes, and a pipe whose reads wait."""

import gc
import os
import select

import pytest

import uringlet

SIZE = 1 << 20


@pytest.fixture
def data():
    return os.urandom(SIZE)


@pytest.fixture
def path(tmp_path, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    return path


@pytest.fixture
def file(path):
    with uringlet.File(path, os.O_RDWR) as file:
        yield file


class Pipe:
    """A pipe: its reads are in flight until something is written."""

    def __init__(self):
        reader, self.writer = os.pipe()
        self.file = uringlet.File.from_fd(reader)

    def write(self, data):
        assert os.write(self.writer, data) == len(data)

    def close_writer(self):
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1


@pytest.fixture
def pipe():
    pipe = Pipe()
    yield pipe
    pipe.close_writer()
    pipe.file.close()


def is_exported(buffer):
    """Does anybody hold this bytearray's memory?"""
    try:
        buffer.append(0)
    except BufferError:
        return True
    buffer.pop()
    return False


def wait_readable(fd, seconds=30):
    """Waits until a descriptor is readable. Fails the test if that takes too long."""
    readable, _, _ = select.select([fd], [], [], seconds)
    assert readable, "nothing came"


@pytest.fixture
def collected():
    """Collects garbage before and after, so that what a test drops is gone."""
    gc.collect()
    yield
    gc.collect()
