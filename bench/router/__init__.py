"""`make bench-router`: our router against vllm-router, in one run on one pinned core."""


class BenchFailed(Exception):
    """Nothing can be measured; the text says why and what to do."""
