"""Time to the first token of a plain request on an empty decode engine, and on one full of leases.

python bench/pressure.py [ROUNDS]
"""

import sys
import time

import ground

BLOCKS = 66


def main() -> None:
    import engines
    from conftest import transfer

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    print(ground.describe())
    with ground.tiny_model() as (model, folder):
        options = ("--num-gpu-blocks-override", str(BLOCKS))
        settings = transfer("decode", decoder_kv_blocks_ttl=600)
        with engines.engine("decode", model, 0, folder, settings, options=options) as decode:
            empty, full = [], []
            for number in range(rounds):
                empty.append(plain(decode, 2 * number))
            for number in range(rounds):
                for seed in range(12):
                    prompt = engines.words(150, 1000 + 12 * number + seed)
                    decode.complete(prompt, 30, {"pd_retain": True})
                full.append(plain(decode, 2 * number + 1))
            counts = decode.lease_counts()
            free = sorted(empty)[rounds // 2], sorted(full)[rounds // 2]
            print(f"a plain request of 1,200 tokens, cache of {BLOCKS} blocks of 32, median of {rounds}:")
            print(f"  empty engine     {free[0]:7.0f} ms   (all: {', '.join(f'{t:.0f}' for t in empty)})")
            print(f"  full of leases   {free[1]:7.0f} ms   (all: {', '.join(f'{t:.0f}' for t in full)})")
            print(f"  {free[1] / free[0]:.2f} times; leases: {counts}")


def plain(decode: object, seed: int) -> float:
    import engines

    assert isinstance(decode, engines.Engine)
    start = time.perf_counter()
    decode.complete(engines.words(1200, 5000 + seed), 1)
    return 1000 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
