"""A three-tier server small enough to read, with faults to switch on: what the cases have to catch."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohttp

from hicache_bench.load.aio import AiohttpTransport
from hicache_bench.load.requests import RequestBuilder, RequestOptions
from hicache_bench.phases import Lab
from hicache_bench.records import ServerInfo
from hicache_bench.sglang.admin import Admin
from hicache_bench.sglang.capture import capture_server
from hicache_bench.verify.ground import computed_profile, ground_of
from hicache_bench.verify.player import Player, Stage, check_prompts
from hicache_bench.workload.tokens import TokenSpace
from tests.scripted import DONE, END, ScriptedServer, chunk, event, head, json_answer, native

PAGE = 16


@dataclass
class Fake:
    """Per prompt (told apart by its first page and tenant): how many of its pages each tier holds.

    Whole prompts leave a tier, least recently used first. `fault` is one of wrong_text, flaky_text, l3_lost,
    clear_noop, flush_noop, no_details, salt_leak, host_lost, flush_drops_l3, fails,
    dies.
    """

    fault: str = ""
    policy: str = "write_through"
    prefetch: str = "wait_complete"
    hicache: bool = True
    storage: bool = True
    metrics: bool = True
    dp: int = 1
    pages: int = 512
    lag: int = 0
    held: dict[str, OrderedDict] = field(
        default_factory=lambda: {tier: OrderedDict() for tier in ("device", "host", "store")})
    used: Counter = field(default_factory=Counter)
    prompt_tokens: int = 0
    foreign: int = 0
    paths: Counter = field(default_factory=Counter)
    ranks: Counter = field(default_factory=Counter)

    def __call__(self, seen):
        path = urlsplit(seen.path).path
        if self.fault == "dies":
            return ["close"]
        self.paths[path] += 1
        if path == "/generate":
            return self._generate(seen.json())
        if path == "/tokenize":
            return json_answer({"tokens": [[10 + i] for i, _ in enumerate(seen.json()["prompt"])]})
        if path == "/flush_cache":
            self._flush()
            return json_answer("Cache flushed.")
        if path.endswith("/clear"):
            if self.fault != "clear_noop":
                self.held["store"].clear()
            return json_answer("cleared")
        if path == "/server_info":
            return json_answer(self.info())
        if path == "/metrics" and self.metrics:
            body = self._metrics().encode()
            return [head(200, "text/plain", len(body)) + body]
        if path == "/health":
            return json_answer("")
        return json_answer({"error": "no such route"}, 404)

    def info(self):
        return {"page_size": PAGE, "max_total_num_tokens": self.pages * PAGE, "max_req_input_len": 2048,
                "enable_hierarchical_cache": self.hicache, "hicache_ratio": 2.0, "dp_size": self.dp,
                "hicache_write_policy": self.policy, "served_model_name": "fake", "version": "0",
                "hicache_storage_backend": "file" if self.storage else None, "hicache_bench_simulated": True,
                "hicache_storage_prefetch_policy": self.prefetch}

    def _metrics(self):
        self.prompt_tokens += self.foreign
        free = (self.pages - sum(self.held["device"].values())) * PAGE
        return ("# TYPE sglang:prompt_tokens_total counter\n"
                f"sglang:prompt_tokens_total {self.prompt_tokens}\n"
                f"sglang:kv_available_tokens {free}\nsglang:num_running_reqs 0\n"
                f"sglang:hicache_host_total_tokens {2 * self.pages * PAGE}\n"
                f"sglang:backuped_tokens_total {sum(self.held['store'].values())}\n")

    def _flush(self):
        if self.fault == "flush_noop":
            return
        self.held["device"].clear()
        self.held["host"].clear()
        if self.fault == "flush_drops_l3":
            self.held["store"].clear()

    def _generate(self, body):
        ids = body["input_ids"]
        self.prompt_tokens += len(ids)
        if self.fault == "fails" and len(ids) > 600:
            return json_answer({"error": {"message": "boom"}}, 500)
        rank = body.get("routed_dp_rank")
        self.ranks[rank] += 1
        tenant = () if self.fault == "salt_leak" else (body.get("cache_salt"), body.get("extra_key"))
        key = (tuple(ids[:PAGE]), tenant, rank)
        tiers = self._serve(key, (len(ids) - 1) // PAGE, len(ids) // PAGE)
        device, host, storage = (count * PAGE for count in tiers)
        details = {"device": device, "host": host} | ({"storage": storage} if self.storage else {})
        cached = device + host + storage
        n = body["sampling_params"]["max_new_tokens"]
        answer = native("x" * n, n, finish="length", prompt=len(ids), cached=cached,
                        details=details if cached and self.fault != "no_details" else None)
        answer["output_ids"] = self._output(ids, n, restored=bool(host or storage))
        return [head(), chunk(event(answer)), chunk(DONE), END]

    def _output(self, ids, n, restored):
        wrong = self.fault == "flaky_text" or (self.fault == "wrong_text" and restored)
        right = array("q", ids).tobytes()
        out = list(hashlib.shake_128(right + str(sum(self.paths.values()) if wrong else "").encode()).digest(n))
        return [*hashlib.shake_128(right).digest(1), *out[1:]] if n else []

    def _serve(self, key, most, whole):
        """(device, host, storage) pages; then the prompt is on the device, and backed up by the policy."""
        self.used[key] += 1
        there = {tier: min(held.get(key, 0), most) for tier, held in self.held.items()}
        if self.used[key] <= 1 + self.lag and not any(self.held["store"].values()):
            there = dict.fromkeys(there, 0)
        if self.fault == "l3_lost" or self.prefetch == "best_effort":
            there["store"] = 0
        if self.fault == "host_lost":
            there["host"] = 0
        device = there["device"]
        host = max(there["host"] - device, 0)
        storage = max(there["store"] - device - host, 0) if (most - device - host) * PAGE >= 256 else 0
        if self.hicache and self._backs_up(key):
            self._back_up(key, whole)
        elif host or storage:
            self._put("host", key, device + host + storage, 2 * self.pages)
        self._put("device", key, whole, self.pages)
        return device, host, storage

    def _backs_up(self, key):
        return self.policy == "write_through" or (self.policy == "write_through_selective" and self.used[key] >= 2)

    def _back_up(self, key, pages):
        self._put("host", key, pages, 2 * self.pages)
        if self.storage:
            self._put("store", key, pages, 10**9)

    def _put(self, tier, key, pages, capacity):
        held = self.held[tier]
        held[key] = max(pages, held.get(key, 0))
        held.move_to_end(key)
        while sum(held.values()) > capacity:
            gone, count = held.popitem(last=False)
            if tier == "device" and self.hicache and self.policy == "write_back":
                self._back_up(gone, count)


@asynccontextmanager
async def served(fake: Fake):
    """(URL, administrative client) of a fake under way."""
    async with ScriptedServer(fake) as server, aiohttp.ClientSession() as session:
        yield server.url, Admin(session, server.url)


@dataclass
class Made:
    stage: Stage
    info: ServerInfo
    rows: list
    events: list


@asynccontextmanager
async def staged(fake: Fake, nonce: str = "n"):
    """A stage on a fake without recorder or run directory."""
    async with served(fake) as (url, admin):
        transport = AiohttpTransport(url, {})
        await transport.open()
        rows, events = [], []

        async def rest(*_):
            return None

        space = TokenSpace.random_ids(10, 100000, "shared")
        info = await capture_server(admin, None)
        lab = Lab(admin, transport, RequestBuilder(space, RequestOptions()), lambda row, *_: rows.append(row), info,
                  nonce, lambda kind, **more: events.append((kind, more)), rest)
        try:
            yield Made(Stage(lab, space, rest, ground_of(computed_profile(info), info)), info, rows, events)
        finally:
            await transport.close()


async def play(fake: Fake, scenario, profile=None, rank=None, restart=None):
    """The findings of one case on a fake."""
    async with staged(fake) as made:
        player = Player(scenario, [made.stage], profile or computed_profile(made.info), restart, rank)
        check_prompts(player, made.stage.space)
        return await player.play()
