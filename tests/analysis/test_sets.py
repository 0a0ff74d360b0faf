import pytest

from hicache_bench.analysis.sets import by_column, by_row, filtered, lookup, parse_sets
from hicache_bench.errors import StoreError, UsageError
from tests.analysis.runs import SPEC, simple_run


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """a: three runs, b: two, with a policy, a concurrency and tags."""
    folder = tmp_path_factory.mktemp("sets")
    for name, policies in (("a", ("back", "through", "back")), ("b", ("through", "selective"))):
        for i, policy in enumerate(policies):
            simple_run(folder / name, at=10 - i, rows=[], flags={"hicache_write_policy": policy},
                       load={"concurrency": 2 + i}, tags={"build": name})  # fmt: skip
    return folder


def names(found):
    return [(item.name, len(item.runs)) for item in found]


def test_ways_to_write_a_set(root):
    a = sorted((root / "a").iterdir())
    assert names(parse_sets([f"old={root}/a/*", f"{root / 'b'}"], root)) == [("old", 3), (str(root / "b"), 2)]
    listed = parse_sets([f"x={a[0]},{a[1]}", a[2].name], root / "a")
    assert names(listed) == [("x", 2), (a[2].name, 1)]
    started = [run.meta["started_wall_ns"] for run in parse_sets([f"{root}/a"], root)[0].runs]
    assert started == sorted(started)
    assert names(parse_sets(["s=*-w-*"], root / "a")) == [("s", 3)]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda a: [str(a), str(a)], "on both sides: comparing a run with itself"),
        (lambda a: [f"{a},{a}"], "twice in the set"),
        (lambda a: [f"x={a}", f"y={a.parent}/*"], "in the sets x and y"),
        (lambda a: [f"x={a}", f"x={a.parent.parent}/b/*"], "both called x"),
        (lambda a: ["=q"], "no name before the ="),
        (lambda a: ["x=,"], "names no run"),
        (lambda a: ["nothing-*"], "no run fits"),
        (lambda a: ["nothing"], "no run 'nothing'"),
    ],
)
def test_bad_sets(root, make, says):
    with pytest.raises(UsageError, match=says):
        parse_sets(make(min((root / "a").iterdir())), root)


def test_a_torn_run_is_named(tmp_path):
    run = tmp_path / "20260101T000000Z-x-abcd"
    run.mkdir()
    (run / "run.json").write_text("{")
    with pytest.raises(StoreError, match="20260101T000000Z-x-abcd"):
        parse_sets([str(run), str(run)], tmp_path)


def test_keys(root):
    run = parse_sets([f"{root}/a"], root)[0].runs[-1]
    assert lookup(run, "server.hicache_write_policy") == "back"
    assert lookup(run, "load.concurrency") == lookup(run, "run.load.concurrency") == "2"
    assert lookup(run, "plan.load.concurrency") == str(SPEC["load"]["concurrency"])
    assert lookup(run, "tags.build") == "a"
    assert lookup(run, "tags.none.deeper") is None
    for key in ("build", "tags", "else.x", ""):
        with pytest.raises(UsageError, match="no key"):
            lookup(run, key)


def test_projections(root):
    sets = parse_sets([f"a={root}/a", f"b={root}/b"], root)
    assert sorted(names(by_column(sets, "server.hicache_write_policy"))) == [
        ("hicache_write_policy=back", 2), ("hicache_write_policy=selective", 1),
        ("hicache_write_policy=through", 2)]  # fmt: skip
    rows = by_row(sets, "load.concurrency")
    assert sorted((title, names(item)) for title, item in rows.items()) == [
        ("load.concurrency = 2", [("a", 1), ("b", 1)]), ("load.concurrency = 3", [("a", 1), ("b", 1)])]  # fmt: skip
    assert names(filtered(sets, ["load.concurrency!=2"])) == [("a", 2), ("b", 1)]
    assert names(filtered(sets[:1], ["server.hicache_write_policy=back"])) == [("a", 2)]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda sets: filtered(sets, ["tags.build=a"]), "no run is left in b; tags.build is a, b"),
        (lambda sets: filtered(sets, ["tags.build"]), "not KEY=VALUE"),
        (lambda sets: by_column(sets, "run.seed"), "every run has 0"),
        (lambda sets: by_row(sets, "tags.build"), "no value is on two sides"),
    ],
)
def test_bad_projections(root, call, says):
    with pytest.raises(UsageError, match=says):
        call(parse_sets([f"a={root}/a", f"b={root}/b"], root))
