"""The classes of caio that programs use, on uringlet: aiofile runs on them.

``Context`` and ``Operation`` have the methods of caio's, and ``AsyncioContext`` those of its
adapter for asyncio. Give aiofile a context, ``AIOFile(path, context=AsyncioContext())``, or call
``install`` once, before aiofile is used: then caio hands out these classes.

New programs are better served by ``uringlet.File``: it reads into buffers, and needs no queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from uringlet._uringlet import Context, Operation, OperationError

if TYPE_CHECKING:
    # aiofile's types ask for this base class. caio need not be installed.
    from caio.asyncio_base import AsyncioContextBase as _Base
else:
    _Base = object

__all__ = ["AsyncioContext", "Context", "Operation", "OperationError", "install"]


class AsyncioContext(_Base):
    """A context for one event loop: its operations are awaited.

    At most ``max_requests`` are in flight; further ones wait until others end. ``deferred`` is
    accepted, as in caio, but has no effect: every operation begins at once.
    """

    MAX_REQUESTS_DEFAULT = 512
    CONTEXT_CLASS = Context
    OPERATION_CLASS = Operation

    def __init__(
        self,
        max_requests: int | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        deferred: bool = False,
    ) -> None:
        max_requests = max_requests or self.MAX_REQUESTS_DEFAULT
        self.loop = loop or asyncio.get_event_loop()
        self.deferred = deferred
        self.semaphore = asyncio.BoundedSemaphore(max_requests)
        self.context = self.CONTEXT_CLASS(max_requests=max_requests)
        self.loop.add_reader(self.context.fileno, self._on_read_event)

    async def __aenter__(self) -> AsyncioContext:
        return self

    async def __aexit__(self, exc_type: object, exc_val: object, exc_tb: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes the context from its loop. Operations in flight go on, but wake no tasks."""
        self.loop.remove_reader(self.context.fileno)

    async def submit(self, op: Operation) -> Any:
        """Executes an operation, and returns its value.

        ``ValueError``: ``op`` is no operation of this module. ``OperationError``: the operation
        failed. ``RuntimeError``: it was submitted before.
        """
        if not isinstance(op, self.OPERATION_CLASS):
            raise ValueError("Operation object expected")
        await self.semaphore.acquire()
        is_over = True
        try:
            if self.context.submit(op) != 1:
                raise RuntimeError("an operation can be submitted once")
            # Completions are delivered on this thread only, so none is delivered between this check
            # and `set_callback`.
            self.context.flush()
            if not op.done:
                future = self.loop.create_future()
                op.set_callback(partial(self._on_done, future))
                try:
                    await future
                except asyncio.CancelledError:
                    self.context.cancel(op)
                    if not op.done:
                        # The operation is counted by the semaphore until it is over.
                        op.set_callback(lambda _: self.semaphore.release())
                        is_over = False
                    raise
            return op.get_value()
        finally:
            if is_over:
                self.semaphore.release()

    @staticmethod
    def _on_done(future: asyncio.Future[bool], result: int) -> None:
        if not future.done():
            future.set_result(True)

    def _on_read_event(self) -> None:
        try:
            self.context.poll()
        except BlockingIOError:
            pass
        while self.context.process_events():
            pass

    def read(
        self, nbytes: int, fd: int, offset: int, priority: int = 0
    ) -> Coroutine[Any, Any, bytes]:
        """Reads ``nbytes`` of a descriptor from ``offset`` on: fewer at the end of the file."""
        return self.submit(self.OPERATION_CLASS.read(nbytes, fd, offset, priority))

    def write(
        self, payload: bytes, fd: int, offset: int, priority: int = 0
    ) -> Coroutine[Any, Any, int]:
        """Writes bytes to a descriptor from ``offset`` on. Returns how many were written."""
        return self.submit(self.OPERATION_CLASS.write(payload, fd, offset, priority))

    def fsync(self, fd: int) -> Coroutine[Any, Any, None]:
        """Brings data and metadata to the disk."""
        return self.submit(self.OPERATION_CLASS.fsync(fd))

    def fdsync(self, fd: int) -> Coroutine[Any, Any, None]:
        """Brings data to the disk."""
        return self.submit(self.OPERATION_CLASS.fdsync(fd))


def install() -> None:
    """Has caio hand out these classes. Contexts that were made before stay as they are.

    ``ImportError``: caio is not installed.
    """
    import caio

    caio.Context = Context
    caio.Operation = Operation
    caio.AsyncioContext = AsyncioContext
