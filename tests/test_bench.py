"""One run from capture to sealed directory: what is refused early, and what the shipped workloads show."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache_bench.analysis.summary import summarize
from hicache_bench.bench import Interrupt, run
from hicache_bench.errors import MeasureError, UsageError
from hicache_bench.manifest import RunOptions
from hicache_bench.preflight import capacity_of, connections
from hicache_bench.records import ServerInfo
from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.embedded import EMBEDDED, embedded
from hicache_bench.target import Target
from hicache_bench.workload.plan import Capacity, build_plan
from hicache_bench.workload.spec import load_spec, override, parse_spec

WORKLOADS = Path(__file__).parents[1] / "workloads"
SETTLE = {"quiet": "50ms", "deadline": "2s"}
FAST = {"costs": "free"}


class Notes:
    """An observer that keeps what it is told."""

    def __init__(self):
        self.notes, self.phases = [], []

    def note(self, text):
        self.notes.append(text)

    def phase(self, name):
        self.phases.append(name)

    def tick(self, counts, progress, elapsed_ns, plan):
        pass


def spec_of(**load):
    stream = {"name": "u", "kind": "unique", "prompt_tokens": 64, "output_tokens": 2}
    load = {"concurrency": 2, "requests": 4, **load}
    return parse_spec({"name": "w", "load": load, "settle": SETTLE, "stream": [stream]})


async def measure(spec, tmp_path, config=EMBEDDED, **options):
    path = tmp_path / "w.toml"
    path.write_text("name = 'w'")
    notes = Notes()
    async with embedded(config) as url:
        target = Target(url, metrics_interval_ns=10**8)
        found = await run(spec, path, target, RunOptions(results=tmp_path / "results", argv=[], **options), notes,
                          Interrupt())
    return summarize(found), notes


@pytest.mark.parametrize(("info", "most"), [
    (ServerInfo("real", page_size=16, device_tokens=4096, max_request_tokens=4090), 4064),
    (ServerInfo("real", page_size=1, device_tokens=4096, max_request_tokens=1000), 1000),
    (ServerInfo("real", max_request_tokens=1000), 1000),
    (ServerInfo("real", device_tokens=4096), None),
])
def test_the_longest_prompt_leaves_the_pool_two_pages(info, most):
    assert capacity_of(info).max_request_tokens == most


def test_connections_cover_the_loop_and_side_by_side_turns():
    plan = build_plan(spec_of(requests=9, concurrency=4), base_dir=Path("."), page_size=1, capacity=Capacity())
    assert connections(plan) == 4
    one = build_plan(spec_of(requests=1, concurrency=4), base_dir=Path("."), page_size=1, capacity=Capacity())
    assert connections(one) == 1


@pytest.mark.parametrize(("load", "prompts", "says"), [
    ({"api": "chat"}, {"source": "random_ids"}, "chat API takes text only"),
    ({"api": "completions"}, {"format": "ids"}, "answers with text"),
    ({"dp_routing": 3}, {}, "rank 3"),
])
async def test_what_cannot_be_sent_is_refused_before_anything_is(tmp_path, load, prompts, says):
    chat = {"name": "c", "kind": "multi_turn", "turns": 2, "first_tokens": 40, "turn_tokens": 20, "output_tokens": 2,
            "history": "live"}
    spec = parse_spec({"name": "w", "load": {"concurrency": 1, "requests": 2, **load}, "prompts": prompts,
                       "stream": [chat]})
    with pytest.raises(UsageError, match=says):
        await measure(spec, tmp_path, SimConfig(**FAST))


@pytest.mark.parametrize(("demand", "state"), [("error", None), ("warn", "as_found")])
async def test_a_reset_that_is_not_proven_stops_a_run_that_demands_one(tmp_path, monkeypatch, demand, state):
    monkeypatch.setattr("hicache_bench.phases.RESIDENT_ATTEMPTS", 0)  # the probe is never seen in the cache
    spec = parse_spec({"name": "w", "load": {"concurrency": 1, "requests": 2}, "settle": SETTLE,
                       "reset": {"on_failure": demand},
                       "stream": [{"name": "u", "kind": "unique", "prompt_tokens": 64, "output_tokens": 1}]})
    if state is None:
        with pytest.raises(MeasureError, match=r"not proven.*never became resident"):
            await measure(spec, tmp_path, SimConfig(**FAST))
        return
    found, _ = await measure(spec, tmp_path, SimConfig(**FAST))
    assert found.meta["start_state"] == state
    assert "reset_unverified" in {item.code for item in found.cautions}


async def test_without_reset_the_start_is_as_found(tmp_path):
    found, notes = await measure(spec_of(), tmp_path, SimConfig(**FAST), reset=False)
    assert found.meta["start_state"] == "as_found"
    assert "reset" not in notes.phases


@pytest.mark.parametrize(("name", "tiers"), [
    ("pressure", {"device", "host", "storage"}),
    pytest.param("mixed", {"device", "host", "storage"}, marks=pytest.mark.slow),
    pytest.param("prefix_reuse", {"device", "host", "storage"}, marks=pytest.mark.slow),
])
async def test_shipped_workloads_show_every_tier_on_the_built_in_server(tmp_path, name, tiers):
    path = WORKLOADS / f"{name}.toml"
    spec = override(load_spec(path), requests=120 if name != "pressure" else None)
    async with embedded(SimConfig(**{**_settings(EMBEDDED), **FAST})) as url:
        found = await run(spec, path, Target(url), RunOptions(results=tmp_path, argv=[]), Notes(), Interrupt())
    summary = summarize(found)
    whole = summary.tiers[0]
    assert {tier for tier in ("device", "host", "storage") if getattr(whole, f"{tier}_tokens")} == tiers
    assert {check["verdict"] for check in summary.reconcile} == {"equal"}
    assert summary.meta["origin"] == "simulated"


def _settings(config):
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


async def test_load_that_stays_on_the_device_is_said(tmp_path):
    stream = {"name": "p", "kind": "shared_prefix", "groups": 1, "prefix_tokens": 320, "suffix_tokens": 8,
              "output_tokens": 1}
    spec = parse_spec({"name": "w", "load": {"concurrency": 1, "requests": 4}, "settle": SETTLE, "stream": [stream]})
    found, _ = await measure(spec, tmp_path, SimConfig(**FAST))
    assert "device_only" in {item.code for item in found.cautions}
