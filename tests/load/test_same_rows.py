"""Whatever bytes come, the fast transport makes the row the aiohttp transport makes."""

from __future__ import annotations

import dataclasses
import sys
from itertools import pairwise

import pytest

from hicache_bench.load.aio import AiohttpTransport
from hicache_bench.load.fast import FastTransport
from hicache_bench.recording import complete
from hicache_bench.records import Attempt, Exchange, WireRequest
from tests.load.answers import CAPTURED, CASES, PAUSE
from tests.scripted import ScriptedServer
from tests.wire.captured import CAPTURES

OUTCOME_ONLY = {
    # aiohttp forgets a head that came in one read with a later fault, and keeps it otherwise.
    "bad chunk size",
    # Refused here, read by aiohttp when a brotli library is installed.
    "brotli",
}
KINDS = {"marks": {}, "own sockets": {"kernel_stamps": False}, "streams": {}}


def request_for(name: str) -> WireRequest:
    api = next((api for api in ("generate", "completions", "chat") if api in name), "generate")
    return WireRequest(f"/{api}", b'{"text": "a"}', api, True)


async def row(transport, request: WireRequest, timeout_ns=10**10) -> tuple[dict, Exchange]:
    exchange = Exchange()
    await transport.open()
    try:
        await transport.send(request, exchange, timeout_ns)
    finally:
        await transport.close()
    attempt = complete(Attempt(0, 0, 0, "s", "unique", "", "measure", request.api, True), request, exchange)
    found = dataclasses.asdict(attempt)
    found["n_chunks"] = len(found.pop("chunk_ns"))
    if exchange.failure is not None:
        found["error"] = "set"  # each library has its own words
    kept = {name: value for name, value in found.items() if name != "clock" and not name.endswith("_ns")}
    kept |= {f"{name} known": found[name] is not None for name in ("headers_ns", "first_token_ns", "done_ns")}
    return kept, exchange


def check_stamps(exchange: Exchange) -> None:
    stamps = [exchange.sent_ns, exchange.connect_start_ns, exchange.connected_ns, exchange.headers_ns,
              *(at for at, _ in exchange.reads), exchange.done_ns]
    known = [stamp for stamp in stamps if stamp is not None]
    assert known == sorted(known)


async def compare(monkeypatch, steps, name: str = "") -> None:
    request = request_for(name)
    async with ScriptedServer(lambda seen: steps) as server:
        expected, reference = await row(AiohttpTransport(server.url, {}), request)
        for kind, options in KINDS.items():
            with monkeypatch.context() as patch:
                if kind == "streams":
                    patch.setattr(sys, "platform", "darwin")
                transport = FastTransport(server.url, {}, **options)
                found, exchange = await row(transport, request)
            check_stamps(exchange)
            if name in OUTCOME_ONLY:
                assert found["outcome"] == "protocol"
                continue
            assert found == expected, f"{kind}: {exchange.failure} / {reference.failure}"
            assert b"".join(d for _, d in exchange.reads) == b"".join(d for _, d in reference.reads)
            if kind != "marks" or not sys.platform.startswith("linux"):
                assert exchange.clock == "loop"
        heads = [seen.headers for seen in server.seen]
    assert len({frozenset(head.items()) for head in heads}) == 1
    assert len(heads) == 1 + len(KINDS)


@pytest.mark.parametrize("name", CASES)
async def test_scripted_answers(monkeypatch, name):
    await compare(monkeypatch, CASES[name], name)


@pytest.mark.parametrize("name", CAPTURED)
async def test_captured_answers(monkeypatch, name):
    raw = (CAPTURES / name).read_bytes()
    await compare(monkeypatch, [raw, "close"], name.rpartition("/")[2])


@pytest.mark.parametrize("part", range(8))
async def test_any_split_of_a_captured_stream(monkeypatch, part):
    raw = (CAPTURES / next(name for name in CAPTURED if "generate_stream_sse.http" in name)).read_bytes()
    cuts = [0, *range(7 * part + 3, len(raw), len(raw) // 7), len(raw)]
    steps = []
    for start, end in pairwise(cuts):
        steps += [raw[start:end], PAUSE / 10]
    await compare(monkeypatch, [*steps, PAUSE, "close"], "generate")
