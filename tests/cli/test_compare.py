import csv
import io

import pytest
from click.testing import CliRunner

from hicache_bench.cli.compare import command
from hicache_bench.errors import UsageError
from tests.analysis.runs import make_set
from tests.cli.invoke import strict_json


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    for i, (name, policy) in enumerate((("a", "back"), ("b", "through"))):
        make_set(folder / name, seed=40 * i, at=i, ttft=1 + 0.2 * i, flags={"hicache_write_policy": policy})
    return folder


def compare(*args):
    done = CliRunner().invoke(command, list(map(str, args)), catch_exceptions=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def test_sets_and_formats(root):
    sides = (f"old={root}/a/*", f"new={root}/b")
    found = strict_json(compare(*sides, "--format", "json"))
    assert [item["name"] for item in found["sets"]] == ["old", "new"]
    assert found["lines"][0]["deltas"][0]["verdict"] == "worse"
    assert "hicache_write_policy" in compare(*sides, "--metric", "ttft p50")
    assert "| ttft p50" in compare(*sides, "--format", "markdown")
    assert {row["metric"] for row in csv.DictReader(io.StringIO(compare(*sides, "--format", "csv", "--metric", "itl*")))
            } == {"itl p50", "itl p90", "itl p99", "itl mean"}  # fmt: skip


def test_projections(root):
    found = strict_json(compare(f"{root}/*/*", "--col", "server.hicache_write_policy", "--format", "json"))
    assert [item["name"] for item in found["sets"]] == ["hicache_write_policy=back", "hicache_write_policy=through"]
    assert found["lines"][0]["deltas"][0]["verdict"] == "worse"
    single = [min((root / name).iterdir()) for name in "ab"]
    assert compare(*single, "--row", "run.loop").startswith("run.loop = open\n")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--floor", "3"), "--floor = '3': write it like '5%'"),
        (("--slo", "x<1s"), "--slo: no metric 'x'"),
        (("--primary", "nope"), "--primary 'nope'"),
        (("--metric", "nope"), "--metric 'nope' fits no row"),
        (("--filter", "tags"), "--filter 'tags'"),
        (("--row", "nope"), "no key 'nope'"),
        (("--col", "run.loop"), "every run has open"),
    ],
)
def test_bad_options(root, more, says):
    single = [min((root / name).iterdir()) for name in "ab"]
    with pytest.raises(UsageError, match=says):
        compare(*single, *more)


def test_one_set_and_a_run_with_itself(root):
    run = min((root / "a").iterdir())
    with pytest.raises(UsageError, match="needs BASE and NEW"):
        compare(run)
    with pytest.raises(UsageError, match="comparing a run with itself"):
        compare(run, run)
