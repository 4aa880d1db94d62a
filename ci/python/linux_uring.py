"""Stands in the place of caio's io_uring backend, so that its suite runs on uringlet."""

import uringlet.caio
from uringlet.caio import Operation

__all__ = ["SQPOLL_ALLOWED", "Context", "Operation"]

SQPOLL_ALLOWED = False


class Context(uringlet.caio.Context):
    """uringlet, with the options of caio's io_uring backend."""

    sqpoll = False

    def __new__(cls, max_requests=32, sqpoll=False):
        return super().__new__(cls, max_requests)
