"""The case `pd` against a simulated pair: flush through the router, everything else from the prefill engine."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.pd import Pair, PairSettings, start_pair
from hicache_bench.store.reader import read_attempts
from hicache_bench.target import Target
from hicache_bench.verify import VerifyOptions, verify


async def played(results, faults=()):
    config = SimConfig(costs="free", page_size=16, max_total_tokens=16_384, context_length=8192, faults=faults)
    async with await start_pair(config, settings=PairSettings(transfer_gb_per_s=0)) as running:
        target = Target(running.url, admin_url=running.prefill_url)
        return await verify([target], VerifyOptions(("pd",), results=results), lambda line: None)


async def test_the_case_passes_through_a_router(tmp_path):
    result = await played(tmp_path)
    (case,) = result.cases
    assert (result.exit_code, result.origin, case.verdict) == (0, "simulated", "pass"), (case.reason, case.findings)
    assert len(case.findings) >= 2
    rows = read_attempts(result.run_dir).to_pylist()
    assert any(row["label"].startswith("pd: send") and row["cached_tokens"] for row in rows)


@pytest.mark.parametrize(("astray", "verdict"), [((3,), "fail"), (range(100), "inconclusive")])
async def test_a_prompt_that_goes_to_another_engine(tmp_path, monkeypatch, astray, verdict):
    """Sends that find none of their pages: the last one of the case, or all, so that nothing was ever proved."""
    plain, seen = Pair.answer, Counter()

    @asynccontextmanager
    async def answer(self, job):
        prompt = tuple(job.ids)
        number, seen[prompt] = seen[prompt], seen[prompt] + 1
        seed = number.to_bytes(16, "big") if number in astray else job.seed
        async with plain(self, replace(job, seed=seed)) as generation:
            yield generation

    monkeypatch.setattr(Pair, "answer", answer)
    assert (await played(tmp_path)).cases[0].verdict == verdict


@pytest.mark.parametrize(("faults", "code"), [(("lost-details",), 0), (("http-500",), 3)])
async def test_faults_of_the_answers(tmp_path, faults, code):
    """The case asks for the sum of cached tokens only, so a missing split is none of its business."""
    assert (await played(tmp_path, faults)).exit_code == code
