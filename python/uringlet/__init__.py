"""Asynchronous file I/O for Linux in user space.

``read_many`` and ``write_many`` execute many requests in one call, without the GIL. ``File`` reads
and writes at offsets, blocking or awaited on asyncio. An awaited read of what is in memory does not
wait for the event loop. ``gather`` awaits many requests with one wake-up. ``uringlet.caio`` has the
classes on which aiofile can run.

``python -m uringlet run -- PROGRAM`` runs a program that was written for libaio or POSIX AIO on
uringlet, and ``environment`` gives the variables for that. ``get_include`` and ``get_library_dir``
build extensions that use libaio.
"""

from uringlet._package import command, environment, get_include, get_library_dir
from uringlet._uringlet import (
    File,
    Request,
    __version__,
    gather,
    read_many,
    write_many,
)

__all__ = [
    "File",
    "Request",
    "__version__",
    "command",
    "environment",
    "gather",
    "get_include",
    "get_library_dir",
    "read_many",
    "write_many",
]
