"""How long it takes to make a prompt's tokens. Run: python benchmarks/bench_tokens.py"""

import time

from hicache_bench.records import Segment
from hicache_bench.workload.english import WORDS
from hicache_bench.workload.tokens import TokenSpace

ROUNDS = 300


def main() -> None:
    # one to three tokens a word, as byte-pair tokenizers give
    words = [[3 * i, 3 * i + 1, 3 * i + 2][: 1 + (i % 3 == 0) + (i % 7 == 0)] for i in range(len(WORDS))]
    spaces = {"english": TokenSpace.english(words, "bench"), "random_ids": TokenSpace.random_ids(1000, 30000, "bench")}
    for name, space in spaces.items():
        for n in (16, 512, 3200, 32000):
            best = min(_one(space, f"{name}/{i}", n) for i in range(ROUNDS))
            print(f"{name:10} {n:6} tokens  {best / 1000:8.1f} µs (best of {ROUNDS})")


def _one(space: TokenSpace, key: str, n: int) -> int:
    start = time.perf_counter_ns()
    space.tokens(Segment(key, n))
    return time.perf_counter_ns() - start


if __name__ == "__main__":
    main()
