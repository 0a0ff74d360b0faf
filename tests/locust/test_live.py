"""The figures of the HiCache tab, and the table that Locust's page shows of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.analysis.rows import rows_of
from hicache_bench.analysis.tiers import tier_class
from hicache_bench.locust_user.live import TIERS, WINDOW_NS, Live, class_of
from hicache_bench.records import Attempt

MS = 10**6


def attempt(done_ns=10 * MS, outcome="ok", phase="measure", **given) -> Attempt:
    return Attempt(0, 0, 0, "s", "unique", "", phase, "generate", True, outcome=outcome, scheduled_ns=done_ns - 9 * MS,
                   sent_ns=done_ns - 8 * MS, first_token_ns=done_ns - 5 * MS, done_ns=done_ns, **given)


def served(device=0, host=0, storage=0, prompt=100, **given) -> Attempt:
    return attempt(prompt_tokens=prompt, cached_tokens=device + host + storage, device_tokens=device,
                   host_tokens=host, storage_tokens=storage, **given)


tokens = st.none() | st.integers(0, 3)


@given(st.lists(st.tuples(tokens, tokens, tokens, tokens), min_size=1, max_size=20))
def test_classes_are_those_of_the_report(said):
    rows = [attempt(cached_tokens=c, device_tokens=d, host_tokens=h, storage_tokens=s) for c, d, h, s in said]
    from hicache_bench.store.schema import rows_to_table

    assert [class_of(row) for row in rows] == list(np.asarray(tier_class(rows_of(rows_to_table(rows)))))


def test_windows_and_the_whole():
    live = Live(0)
    live.add([served(device=50), served(host=20, storage=30), served(done_ns=WINDOW_NS + 10 * MS),
              attempt(outcome="timeout"), served(phase="warmup", device=100)])
    made = live.snapshot()
    assert [window["from_s"] for window in made["windows"]] == [0, 5]
    first, second = made["windows"]
    assert (first["requests"], first["failed"], first["hit_ratio"]) == (3, 1, 0.5)
    assert first["tiers"] == {"device": 0.25, "host": 0.1, "storage": 0.15}
    assert first["ttft_ms"]["device"] == pytest.approx(4)
    assert first["ttft_ms"]["host"] is None
    assert second["hit_ratio"] == 0
    assert made["whole"]["requests"] == 4


def test_what_no_answer_says_is_not_zero():
    live = Live(0)
    live.add([attempt(prompt_tokens=100)])
    whole = live.snapshot()["whole"]
    assert whole["hit_ratio"] is None
    assert whole["tiers"] == dict.fromkeys(TIERS)


def test_the_table_is_text_with_the_newest_window_first():
    pytest.importorskip("flask")
    from hicache_bench.locust_user.tab import COLUMNS, table

    live = Live(0)
    live.add([served(device=50), attempt(done_ns=WINDOW_NS + 10 * MS)])
    rows = table(live.snapshot())
    assert [row["time"] for row in rows] == ["whole run", "5 s", "0 s"]
    assert all(set(row) == {key for key, _ in COLUMNS} for row in rows)
    assert rows[2] | {"device": "50.0%", "computed": "50.0%", "ttft_device": "4.0 ms", "ttft_host": "-"} == rows[2]
    assert rows[1]["device"] == rows[1]["computed"] == rows[1]["hit_ratio"] == "-"
    assert table(None) == []
