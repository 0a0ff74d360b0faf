import pytest

from hicache_bench.analysis.tiers import CACHED, PROMPT, REQUESTS, counters, reconcile, tier_class, ttft_by_tier
from hicache_bench.sglang.scrape import Sample
from hicache_bench.store.schema import rows_to_table
from tests.analysis.build import MS, attempt, rows


def say(cached, device=None, host=None, storage=None, ttft=9, **fields):
    return attempt(0, 0, [(ttft, 1)], prompt_tokens=1000, cached_tokens=cached, device_tokens=device,
                   host_tokens=host, storage_tokens=storage, **fields)  # fmt: skip


def metric(name, value, **labels):
    return Sample(name, labels, value, "counter")


def page(prompt, device, host, storage, requests=None):
    found = [metric(PROMPT, prompt, is_streaming="true")]
    for tier, tokens in (("device", device), ("host", host), ("storage", storage)):
        found += [metric(CACHED, tokens, cache_source=tier)] if tokens is not None else []
    return found + ([metric(REQUESTS, requests)] if requests is not None else [])


def verdicts(checks):
    return {check.tier: check.verdict for check in checks}


ROWS = [say(0, phase="prime"), say(512, 512, 0, 0), say(512, 0, 512, 0), say(512, 256, 128, 128)]


def test_classes():
    view = rows(say(0), say(512, 512), say(512, 0, 512, 0), say(512, 0, 0, 512), say(512, 256, 128, 128), say(512),
                say(512, 256), say(None), say(512, 512, outcome="timeout"))  # fmt: skip
    assert tier_class(view).tolist() == [
        "cold", "device", "host", "storage", "mixed", "unknown", "unknown", "unknown", None]  # fmt: skip


def test_ttft_by_tier():
    view = rows(say(0, ttft=90), say(512, 512, 0, 0, ttft=10), say(512, 512, 0, 0, ttft=20))
    found = ttft_by_tier(view)
    assert list(found) == ["cold", "device"]
    assert (found["device"].n, found["device"].p50) == (2, 15 * MS)
    assert ttft_by_tier(rows()) == {}


def test_equal_over_all_phases():
    checks = reconcile(rows_to_table(ROWS), page(100, 7, None, 5), page(4100, 775, 640, 133))
    assert verdicts(checks) == dict.fromkeys(("prompt", "cached", "device", "host", "storage"), "equal")
    assert [check.client_tokens for check in checks] == [4000, 1536, 768, 640, 128]


def test_differs_with_both_numbers():
    checks = reconcile(rows_to_table(ROWS), page(0, 0, 0, 0, 0), page(4000, 768, 600, 168, 4))
    by = {check.tier: check for check in checks}
    assert (by["host"].verdict, by["host"].client_tokens, by["host"].server_tokens) == ("differs", 640, 600)
    assert by["cached"].verdict == "equal"


@pytest.mark.parametrize(
    ("table", "before", "after", "says"),
    [
        (ROWS, None, page(1, 1, 1, 1), "no metrics"),
        (ROWS, page(0, 0, 0, 0, 0), page(9000, 900, 900, 900, 9), "other traffic"),
        (ROWS, page(9000, 900, 900, 900), page(10, 1, 1, 1), "restarted"),
        (ROWS, page(0, 0, 0, 0), [], "no such counter"),
        ([*ROWS, attempt(0, 0, outcome="timeout")], page(0, 0, 0, 0), page(5000, 868, 740, 228), "without saying"),
    ],
)
def test_inconclusive(table, before, after, says):
    checks = reconcile(rows_to_table(table), before, after)
    assert set(verdicts(checks).values()) == {"inconclusive"}
    assert all(says in check.reason for check in checks)


def test_d24_unsaid_tiers_are_inconclusive_not_zero():
    checks = reconcile(rows_to_table([say(512), say(512, 512, 0, 0)]), page(0, 0, 0, 0), page(2000, 1024, 0, 0))
    assert verdicts(checks) == {"prompt": "equal", "cached": "equal", "device": "inconclusive",
                                "host": "inconclusive", "storage": "inconclusive"}  # fmt: skip


def test_a_tier_no_answer_named_is_inconclusive_even_when_the_server_has_none():
    checks = reconcile(rows_to_table([say(512, 512)]), page(0, 0, None, None), page(1000, 512, None, None))
    assert verdicts(checks)["device"] == "equal"
    assert verdicts(checks)["storage"] == "inconclusive"


def test_no_rows_and_no_traffic_is_equal():
    assert set(verdicts(reconcile(rows_to_table([]), page(5, 1, 1, 1), page(5, 1, 1, 1))).values()) == {"equal"}


def test_one_tp_rank_but_all_dp_ranks_and_old_storage_names():
    found = counters([
        metric(CACHED, 1, cache_source="storage_HiCacheFile", tp_rank="0", dp_rank="0"),
        metric(CACHED, 2, cache_source="storage_HiCacheFile", tp_rank="0", dp_rank="1"),
        metric(CACHED, 4, cache_source="storage_HiCacheFile", tp_rank="1", dp_rank="0"),
        metric(CACHED, 8, cache_source="storage"),
        metric("sglang:other", 16),
    ])  # fmt: skip
    assert found == {CACHED: {"storage": 11}}


def test_mapping_form():
    assert counters({(PROMPT, frozenset({("is_streaming", "true")})): 3.0}) == {PROMPT: {"": 3.0}}
