"""The readers of event loops, one for each loop that has awaited anything."""

from __future__ import annotations

import weakref
from asyncio import AbstractEventLoop

#: A loop that is gone takes its reader, and so its eventfd, with it.
READERS: weakref.WeakKeyDictionary[AbstractEventLoop, object] = weakref.WeakKeyDictionary()
