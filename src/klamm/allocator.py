"""Settings of the C library's allocator that keep loops from copying large buffers, and processes from keeping them.

The buffer of a large request grows while its bytes arrive. The C library moves the pages of a block that it has mapped,
without copying them. But each mapped block that is freed raises the size from which blocks are mapped, up to 32 MiB.
Later buffers then grow by copying: 10 ms for a request of 14 MiB. They also leave gaps in the heap, which the system
does not get back: a ZooKeeper whose unsent answers were limited to 256 MiB grew to 2.5 GiB. A fixed size ends both.
"""

from __future__ import annotations

import ctypes
from typing import Final

MAPPED_BYTES: Final = 4 << 20
"""Larger blocks are mapped. Copying one below this size takes a millisecond or two."""
KEPT_BYTES: Final = 64 << 20
"""Free memory that is kept for the next blocks: the C library's own value once the size above has grown to 32 MiB."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def install() -> bool:
    """Fix the sizes for this process. Return False if the C library does not know them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
