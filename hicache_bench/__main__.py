"""`python -m hicache_bench` is `hicache-bench`."""

from hicache_bench.cli.main import main

if __name__ == "__main__":
    main()
