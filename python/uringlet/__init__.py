"""Asynchronous file I/O for Linux in user space.

``read_many`` and ``write_many`` execute many requests in one call, without the GIL. ``File`` reads
and writes at offsets, blocking or awaited on asyncio; what is in memory does not go round the event
loop. ``gather`` awaits many requests with one wake-up. ``uringlet.caio`` has what aiofile runs on.

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
