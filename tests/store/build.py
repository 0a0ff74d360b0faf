from hicache_bench.records import Attempt


def attempt(i=0, **fields):
    row = Attempt(i, 0, 0, "s", "k", "", "measure", "generate", True)
    for name, item in fields.items():
        assert hasattr(row, name), name
        setattr(row, name, item)
    return row
