"""CPU time of an engine that only holds leases, and what the first request after the sleep costs.

python bench/idle.py [SECONDS]
"""

import os
import sys
import time
from pathlib import Path

import ground

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(group: int) -> dict[str, float]:
    """Per process of the group: user and system time so far."""
    used: dict[str, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        if int(fields[2]) == group:
            used[f"{name} {stat.parent.name}"] = (int(fields[11]) + int(fields[12])) / TICKS
    return used


def main() -> None:
    import engines
    from conftest import transfer

    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(ground.describe())
    with ground.tiny_model() as (model, folder):
        settings = transfer("decode", decoder_kv_blocks_ttl=3600)
        with engines.engine("decode", model, 0, folder, settings) as decode:
            for held in (0, 8):
                for seed in range(held):
                    decode.complete(engines.words(150, seed), 30, {"pd_retain": True})
                time.sleep(5)
                report(decode, held, seconds)


def report(decode: object, held: int, seconds: int) -> None:
    import engines

    assert isinstance(decode, engines.Engine)
    assert decode.lease_counts()["held"] == held
    before = cpu_seconds(decode.process.pid)
    time.sleep(seconds)
    after = cpu_seconds(decode.process.pid)
    shares = {name: 100 * (after[name] - before.get(name, 0.0)) / seconds for name in after}
    print(f"{held} leases held, {seconds} s: {sum(shares.values()):.1f} % of a core in all")
    for name, share in sorted(shares.items(), key=lambda entry: -entry[1]):
        print(f"  {share:5.1f} %  {name}")
    waits = []
    for seed in range(10):
        time.sleep(1.5)
        start = time.perf_counter()
        decode.complete(engines.words(20, 900 + seed), 1)
        waits.append(1000 * (time.perf_counter() - start))
    middle = sorted(waits)[5]
    print(f"  a request of 20 tokens after 1.5 s: median {middle:.0f} ms, worst {max(waits):.0f} ms")


if __name__ == "__main__":
    main()
