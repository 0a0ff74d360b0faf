import csv
import io
from dataclasses import replace

import pytest

from hicache_bench.analysis.compare import Cell, compare
from hicache_bench.analysis.comparison_text import render_csv, render_markdown, render_text, shown
from hicache_bench.analysis.figures import FIGURES
from hicache_bench.analysis.sets import RunSet
from hicache_bench.errors import UsageError
from tests.analysis.runs import make_set


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    root = tmp_path_factory.mktemp("text")
    base = make_set(root / "a", origin="simulated", flags={"policy": "a|b"})
    new = make_set(root / "b", seed=50, at=1, ttft=1.2, origin="simulated", flags={"policy": "x" * 99})
    return compare([RunSet("old", tuple(base)), RunSet("fresh", tuple(new))], title="load.concurrency = 2")


def test_text(found):
    text = render_text([found])
    assert text.startswith("load.concurrency = 2\n\nSIMULATED")
    row = next(line for line in text.splitlines() if line.startswith("ttft p50"))
    assert row.endswith("worse")
    assert "4 v 4" in row
    assert "0.029" in row
    assert row.count("±") == 2
    for part in ("ttft by tier", "ttft cost (estimate)", "prompt tokens over time", "server setting"):
        assert part in text


def test_rows_that_say_nothing_are_hidden(found):
    names = [line.metric for line in shown(found)]
    assert not {"shed_rate", "error_rate", "hit_storage", "goodput"} & set(names)
    assert {"ttft p50", "hit_host", "output_per_s"} <= set(names)
    assert len(names) == len(set(names))
    lines = [replace(line, cells=(Cell(1.0, None, 1), Cell(2.0, None, 1))) for line in found.lines]
    assert [line.metric for line in shown(replace(found, lines=tuple(lines)))] == [
        figure.name for figure in FIGURES if figure.twin is None]  # fmt: skip


def test_metric_globs(found):
    assert [line.metric for line in shown(found, ["ttft p*"])] == ["ttft p50", "ttft p90", "ttft p99"]
    with pytest.raises(UsageError, match="fits no row; there are ttft p50"):
        shown(found, ["nope*"])


def test_markdown_tables_are_whole(found):
    for block in render_markdown([found]).split("\n\n"):
        rows = [line.replace("\\|", "") for line in block.splitlines() if line.startswith("|")]
        assert len({row.count("|") for row in rows}) <= 1


def test_csv(found):
    rows = list(csv.DictReader(io.StringIO(render_csv([found, found]))))
    ttft = [row for row in rows if row["metric"] == "ttft p50"]
    assert len(ttft) == 2
    assert (ttft[0]["verdict"], ttft[0]["base_set"], ttft[0]["new_set"]) == ("worse", "old", "fresh")
    assert float(ttft[0]["change"]) == pytest.approx(0.2, abs=0.05)
    assert len({row["metric"] for row in rows}) == len(rows) / 2
