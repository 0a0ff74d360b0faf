import asyncio
import math
import time

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.errors import ServerError, UsageError
from hicache_bench.sglang.scrape import Sample, largest, parse_samples, scrape, total
from hicache_bench.sglang.scraper import COPY_COUNTERS, Scraper, Source, parse_source, settle
from tests.scripted import ScriptedServer
from tests.sglang.captured import body, real_server, text_answer

PAGE = '# TYPE a counter\na_total{x="1"} 3\na_total{x="2"} 4\n'


async def test_the_real_page():
    async with ScriptedServer(real_server) as server, aiohttp.ClientSession() as session:
        samples = await scrape(session, f"{server.url}/metrics")
    lines = [line for line in body("metrics").decode().splitlines() if line and not line.startswith("#")]
    assert len(samples) == len(lines)
    assert total(samples, "sglang:cached_tokens_total", cache_source="device") == 7104
    assert total(samples, "sglang:cached_tokens_total", cache_source="storage") == 992
    assert total(samples, "sglang:prompt_tokens_total") == 8737 + 4152
    assert total(samples, "sglang:load_back_tokens_total") == 1488
    assert total(samples, "sglang:no_such_total") is None
    assert largest(samples, "sglang:hicache_host_total_tokens") == 8208
    assert largest(samples, "sglang:fwd_occupancy") is None  # NaN
    kinds = {sample.name: sample.kind for sample in samples}
    assert kinds["sglang:backuped_tokens_total"] == "counter"
    assert kinds["sglang:page_size"] == "gauge"
    assert kinds["sglang:queue_time_seconds_bucket"] == "histogram"


def test_only_the_first_rank_counts_but_every_dp_rank():
    samples = [Sample("c", {"tp_rank": tp, "dp_rank": dp}, 5, "counter") for tp in "01" for dp in "01"]
    assert total(samples, "c") == 10


def test_open_metrics_and_its_breaches():
    kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    strict = parse_samples(PAGE + "# EOF\n", kind)
    assert [sample.value for sample in strict] == [3, 4]
    assert parse_samples(PAGE, kind) == parse_samples(PAGE)  # no EOF: read as text


@pytest.mark.parametrize("answer", [text_answer("<html>no</html>"), text_answer("a", 404), ["close"],
                                    text_answer(PAGE * 1000)])
async def test_what_is_no_page(answer):
    async with ScriptedServer(lambda seen: answer) as server, aiohttp.ClientSession() as session:
        with pytest.raises(ServerError):
            await scrape(session, server.url, max_bytes=10_000)


async def test_a_silent_page_is_bounded_in_time():
    async with ScriptedServer(lambda seen: [30.0]) as server, aiohttp.ClientSession() as session:
        started = time.monotonic()
        with pytest.raises(ServerError, match=r"within 0.2 s"):
            await scrape(session, server.url, timeout_s=0.2)
        assert time.monotonic() - started < 10


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: raw.decode("latin-1")),
       st.sampled_from(["", "application/openmetrics-text"]))
def test_any_text_is_samples_or_a_server_error(text, kind):
    try:
        samples = parse_samples(text, kind)
    except ServerError:
        return
    assert all(isinstance(sample.value, float) for sample in samples)


@pytest.mark.parametrize(("text", "name", "url"), [
    ("gpu=http://h:9400/metrics", "gpu", "http://h:9400/metrics"),
    ("h:9400", "m1", "http://h:9400/metrics"),
    ("http://h:9400/x?", None, None),
    ("http://h:9400/other", "m1", "http://h:9400/other"),
    ("=h:1", None, None),
])
def test_source_forms(text, name, url):
    if name is None:
        with pytest.raises(UsageError):
            parse_source(text, "m1")
    else:
        assert parse_source(text, "m1") == Source(name, url)


async def test_scraper_survives_a_failing_source():
    got, warned = [], []
    async with ScriptedServer(lambda seen: text_answer(PAGE)) as server, aiohttp.ClientSession() as session:
        scraper = Scraper(session, [Source("good", server.url, {"X-Key": "v"}), Source("bad", "http://127.0.0.1:1")],
                          20_000_000, lambda *row: got.append(row), warned.append)
        both = await scraper.scrape_all()
        assert both["bad"] is None
        assert len(both["good"]) == 2
        scraper.start()
        for _ in range(500):
            if scraper.scrapes["good"] >= 4 and scraper.failures["bad"] >= 3:
                break
            await asyncio.sleep(0.01)
        await scraper.stop()
        count = len(got)
        await asyncio.sleep(0.1)
        assert len(got) == count == scraper.scrapes["good"] >= 4
    assert len(warned) == 1
    assert "bad" in warned[0]
    instants = [row[0] for row in got]
    assert instants == sorted(instants)
    assert {row[2] for row in got} == {"good"}
    assert "v" in server.seen[0].headers.values()


async def test_scraper_raises_what_its_callback_raised():
    def full(*_):
        raise ServerError("disk full")

    async with ScriptedServer(lambda seen: text_answer(PAGE)) as server, aiohttp.ClientSession() as session:
        scraper = Scraper(session, [Source("a", server.url)], 10**9, full, print)
        scraper.start()
        while not server.seen or server.in_flight:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        with pytest.raises(ServerError, match="disk full"):
            await scraper.stop()
    with pytest.raises(UsageError, match="different names"):
        Scraper(None, [Source("a", "x"), Source("a", "y")], 1, print, print)


def counters(value: float) -> list[Sample]:
    return [Sample(COPY_COUNTERS[0], {}, value, "counter"), Sample("other", {}, time.monotonic(), "gauge")]


async def test_settle_when_counters_rest():
    values = iter([1, 2, 3])
    last = 3

    async def get():
        return counters(next(values, last))

    result = await settle(get, deadline_s=20, quiet_s=0.1, poll_s=0.02)
    assert result.settled is True
    assert result.waited_ns >= 100_000_000
    assert result.last == {COPY_COUNTERS[0]: 3}


async def test_settle_never_rests_and_has_a_deadline():
    async def get():
        return counters(time.monotonic_ns())

    result = await settle(get, deadline_s=0.3, quiet_s=0.1, poll_s=0.02)
    assert result.settled is False
    assert "still moving" in result.reason


@pytest.mark.parametrize("answer", [None, [], [Sample("other", {}, math.inf, "gauge")]])
async def test_settle_without_counters_is_unknown(answer):
    async def get():
        return answer

    result = await settle(get, deadline_s=30, quiet_s=0.1, poll_s=0.02)
    assert (result.settled, dict(result.last)) == (None, {})
    assert result.waited_ns < 10 * 10**9


async def test_settle_with_failing_scrapes_is_unknown():
    async def get():
        raise ServerError("gone")

    result = await settle(get, deadline_s=30, quiet_s=0.1, poll_s=0.02)
    assert (result.settled, result.reason) == (None, "gone")
