"""Random histories: every invariant after every step, with requests and copies of all kinds under way."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hicache_bench.cachesim.cache import HiCache
from hicache_bench.cachesim.config import C128, CacheConfig, Mamba, Swa

STATES = Mamba(24, chunk=4, track_interval=8)
COMPONENTS = [{}, {}, {"swa": Swa(9, 0.5)}, {"swa": Swa(3, 0.4)}, {"mamba": STATES},
              {"swa": Swa(9, 0.5), "c128": C128(1)}, {"swa": Swa(9, 0.5), "mamba": STATES}]


@st.composite
def configs(draw):
    extra = dict(draw(st.sampled_from(COMPONENTS)))
    page = 64 if "c128" in extra else draw(st.sampled_from([1, 4]))
    if "mamba" in extra:
        page = 4
    hicache = draw(st.integers(0, 5)) > 0
    return CacheConfig(
        page_size=page, device_tokens=page * draw(st.integers(24, 60)),
        host_ratio=draw(st.sampled_from([0.4, 1.0, 3.0])),
        hicache=hicache, storage=hicache and draw(st.booleans()), storage_pages=draw(st.sampled_from([None, 20])),
        write_policy=draw(st.sampled_from(["write_through", "write_through_selective", "write_back"])),
        eviction_policy=draw(st.sampled_from(["lru", "lfu", "slru", "priority"])),
        prefetch_policy=draw(st.sampled_from(["best_effort", "wait_complete", "timeout"])),
        prefetch_threshold=page * draw(st.sampled_from([0, 2])), load_back_threshold=draw(st.sampled_from([0, 10])),
        **extra)


def prompt(path, n_pages):
    """Page keys along a path of branches: two prompts share pages as long as their paths are equal."""
    keys, prefix = [], ()
    for page in range(n_pages):
        if page % 3 == 0:
            prefix += (path[page // 3 % len(path)],)
        keys.append((prefix, page))
    return keys


class Histories(RuleBasedStateMachine):
    @initialize(config=configs())
    def start(self, config):
        self.cache = HiCache(config)
        self.waiting, self.running, self.decoding = [], [], []

    @rule(path=st.lists(st.integers(0, 1), min_size=1, max_size=4), pages=st.integers(0, 16), tail=st.integers(1, 3),
          new=st.integers(0, 9), priority=st.integers(0, 2), limit=st.sampled_from([None, None, 7]))
    def request(self, path, pages, tail, new, priority, limit):
        size = self.cache.config.page_size
        n_tokens = pages * size + min(tail, size)
        keys = prompt(path, n_tokens // size + 8)
        request = self.cache.request(keys, n_tokens, new, priority, limit)
        self.cache.arrive(request)
        self.waiting.append((request, keys))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), expired=st.booleans(), chunk=st.sampled_from([None, None, 2]))
    def admit(self, data, expired, chunk):
        request, keys = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        if not self.cache.ready(request, expired):
            self.waiting.append((request, keys))
            return
        chunk_tokens = None if chunk is None else chunk * self.cache.config.page_size + 1
        admission = self.cache.admit(request, chunk_tokens)
        if admission is None:
            self.waiting.append((request, keys))
            return
        assert admission.cached_tokens + admission.compute_tokens == request.n_tokens
        assert admission.cached_tokens <= request.limit_pages * self.cache.config.page_size
        self.running.append([request, keys, admission.chunk_end, chunk_tokens])

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def chunk(self, data):
        entry = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        request, keys, at, chunk_tokens = entry
        if at < request.n_tokens:
            self.cache.insert_chunk(request, at)
            entry[2] = self.cache.next_chunk_end(request, chunk_tokens)
            assert at < entry[2] <= request.n_tokens
            if self.cache.extend(request, entry[2]):
                self.running.append(entry)
            else:
                self.cache.abort(request)
        elif request.max_new_tokens <= 1:
            self.cache.finish(request, request.max_new_tokens, keys)
        else:
            self.cache.insert_chunk(request, at)
            self.decoding.append([request, keys, request.n_tokens])

    @precondition(lambda self: self.decoding)
    @rule()
    def decode(self):
        self.cache.decode_room(len(self.decoding))
        for entry in list(self.decoding):
            request, keys, held = entry
            if held + 1 >= request.n_tokens + request.max_new_tokens:
                self.cache.finish(request, request.max_new_tokens, keys)
                self.decoding.remove(entry)
            elif self.cache.grow(request, held + 1):
                entry[2] += 1
            else:
                self.cache.abort(request)
                self.decoding.remove(entry)

    @rule(data=st.data())
    def give_up(self, data):
        queue = data.draw(st.sampled_from([self.waiting, self.running, self.decoding]))
        if queue:
            self.cache.abort(queue.pop(data.draw(st.integers(0, len(queue) - 1)))[0])

    @precondition(lambda self: self.cache.in_flight)
    @rule(data=st.data(), how=st.sampled_from(["complete", "complete", "complete", "fail", "progress"]))
    def transfer(self, data, how):
        in_flight = self.cache.in_flight
        transfer = in_flight[data.draw(st.integers(0, len(in_flight) - 1))]
        if how == "complete":
            self.cache.complete(transfer)
        elif how == "fail":
            self.cache.fail(transfer)
        elif transfer.kind.startswith("storage"):
            self.cache.progress(transfer, 1)

    @rule()
    def take(self):
        assert all(transfer.pages or transfer.window_pages or transfer.states for transfer in self.cache.take_started())

    @rule(clear=st.booleans())
    def flush(self, clear):
        busy = bool(self.waiting or self.running or self.decoding or self.cache.in_flight)
        if clear:
            self.cache.clear_storage()
        else:
            assert self.cache.flush() != busy
            if not busy:
                assert self.cache.device_used_tokens == self.cache.host_used_tokens == 0

    @invariant()
    def holds(self):
        if hasattr(self, "cache"):
            self.cache.check()

    def teardown(self):
        if hasattr(self, "cache"):
            for queue in (self.waiting, self.running, self.decoding):
                for entry in queue:
                    self.cache.abort(entry[0])
            self.cache.settle()
            self.cache.check()
            assert self.cache.protected_tokens == 0
            assert self.cache.flush()


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None,
                                       suppress_health_check=list(HealthCheck))
TestHistories = Histories.TestCase
