"""Event loops: the readers of asyncio's loops, and whether a task of trio is running."""

from __future__ import annotations

import sys
import weakref
from asyncio import AbstractEventLoop
from typing import Any

#: The reader of each loop that has awaited a request. The loop keeps its reader while it is open.
READERS: weakref.WeakKeyDictionary[AbstractEventLoop, weakref.ref[Any]] = (
    weakref.WeakKeyDictionary()
)


def trio() -> Any:
    """``trio.lowlevel`` in a task of trio's, ``None`` elsewhere."""
    lowlevel = getattr(sys.modules.get("trio"), "lowlevel", None)
    if lowlevel is not None:
        try:
            lowlevel.current_task()
        except RuntimeError:
            return None
    return lowlevel
