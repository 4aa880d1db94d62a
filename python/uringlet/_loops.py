"""The readers of event loops, one for each loop that has awaited anything."""

import weakref

#: A loop that is gone takes its reader, and so its eventfd, with it.
READERS = weakref.WeakKeyDictionary()
