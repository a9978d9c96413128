"""The C library's allocator, told that large bodies come and go for as long as the process lives."""

from __future__ import annotations

import ctypes

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MOST_MMAP_THRESHOLD = 32 << 20
_KEPT_BYTES = 64 << 20


def keep_freed_memory() -> bool:
    """Has the process keep up to 64 MiB that it has freed. Else the memory of each large request's body is
    given back to the system and asked for again, page by page.

    Returns: whether it is so; False where the C library is not glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    wanted = ((_M_MMAP_THRESHOLD, _MOST_MMAP_THRESHOLD), (_M_TRIM_THRESHOLD, _KEPT_BYTES))
    return all(mallopt(option, value) == 1 for option, value in wanted)
