"""A plugin of pytest: a test that asks caio for its default gets uringlet's."""

import uringlet.caio

uringlet.caio.install()

try:
    import caio.linux_uring_asyncio
except ImportError:
    pass
else:

    class AsyncioContext(uringlet.caio.AsyncioContext):
        """uringlet's adapter, with the options of caio's for io_uring."""

        CONTEXT_CLASS = caio.linux_uring.Context
        OPERATION_CLASS = caio.linux_uring.Operation

        def __init__(self, max_requests=None, loop=None, deferred=False, sqpoll=False):
            super().__init__(max_requests, loop, deferred)

    caio.linux_uring_asyncio.AsyncioContext = AsyncioContext
