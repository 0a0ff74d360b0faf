"""A server on virtual time: one scheduler loop over the cache, prefill first, decoding between, copies beside it.

The loop is that of SGLang 0.5.23 (managers/scheduler.py event_loop_normal): take in what has arrived, form a prefill
batch if anybody can be admitted, else decode one step with all running requests. What is a GPU's or a disk's work
becomes time by way of `costs`; nothing here sleeps, so a caller may run it as fast as it can or pace it.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable

from hicache_bench.cachesim.cache import HiCache
from hicache_bench.cachesim.config import CacheConfig
from hicache_bench.cachesim.costs import Clockwork, Costs
from hicache_bench.cachesim.decode import RETRACT_DECODE_STEPS, Decoder
from hicache_bench.cachesim.jobs import Event, EventKind, Job, Result, Totals
from hicache_bench.cachesim.schedule import Schedule
from hicache_bench.cachesim.stint import Stint
from hicache_bench.cachesim.traffic import Traffic
from hicache_bench.cachesim.waiting import Batch, WaitingQueue
from hicache_bench.errors import UsageError

_ENDS: frozenset[EventKind] = frozenset(("finished", "aborted", "rejected"))


class Engine:
    """A discrete-event server. Instants are virtual nanoseconds; they begin wherever the caller begins.

    Drive it by `submit`, `next_event_ns` and `advance`. `stepwise`: every decode step is a round of its own and
    gives a `token` event a running request, as a server needs it; otherwise steps between two changes are made at
    once and instants are in `Result.token_ns` when a job is over. Raises UsageError for costs that do not know the
    schedule's io backend.
    """

    def __init__(self, config: CacheConfig, costs: Costs, schedule: Schedule | None = None, *,
                 stepwise: bool = False) -> None:
        self.schedule = schedule or Schedule()
        self.config = config
        self.costs = costs
        self.cache = HiCache(config)
        self.totals = Totals()
        self.now_ns = 0
        self._stepwise = stepwise
        self._clockwork = Clockwork(costs, config.page_size, self.schedule.io_backend, self.schedule.mem_layout)
        self._traffic = Traffic(self.cache, self._clockwork, self.schedule.storage_read_threads)
        self._queue = WaitingQueue(self.cache, self._traffic, self._clockwork, self.schedule)
        self._decoder = Decoder(self.cache, self._clockwork, stepwise=stepwise)
        self._inbox: list[tuple[int, int, Stint]] = []
        self._stints: dict[Hashable, Stint] = {}
        self._events: list[Event] = []
        self._batch: Batch | None = None
        self._round = False
        self._busy_until: int | None = None
        self._submitted = 0
        self._ended = False

    # ------------------------------------------------------------------ what the caller may do

    def submit(self, job: Job, at_ns: int) -> Result:
        """A request arrives at `at_ns`; the scheduler sees it between two batches. Its result fills as time goes on.

        One that can never fit is rejected at `at_ns` by an event. Raises UsageError for an instant in the past, an
        id under way, and lengths below 1 (prompt) or 0 (output).
        """
        if at_ns < self.now_ns:
            raise UsageError(f"job {job.id!r} at {at_ns} ns: the engine is at {self.now_ns} ns already")
        if job.id in self._stints:
            raise UsageError(f"job {job.id!r}: this id is under way; ids of jobs under way differ")
        if job.n_tokens < 1 or job.output_tokens < 0:
            raise UsageError(f"job {job.id!r}: {job.n_tokens} prompt and {job.output_tokens} output tokens; at least "
                             "1 and 0 are needed")
        if len(job.keys) < job.n_tokens // self.config.page_size:
            raise UsageError(f"job {job.id!r}: {len(job.keys)} page keys for {job.n_tokens} tokens in pages of "
                             f"{self.config.page_size}")
        result = Result(job, at_ns, job.output_tokens)
        self.totals.requests += 1
        room = (self.config.device_pages - 1) * self.config.page_size - 1
        if job.n_tokens >= room:
            result.error = (f"a prompt of {job.n_tokens} tokens never fits: the device holds "
                            f"{self.config.device_tokens}, admission asks for more than a page beside it")
            self._emit(at_ns, "rejected", result)
            return result
        result.output_tokens = min(job.output_tokens, room - job.n_tokens)
        stint = Stint(job, result)
        self._stints[job.id] = stint
        self._submitted += 1
        heapq.heappush(self._inbox, (at_ns, self._submitted, stint))
        self._cut_round(at_ns)
        return result

    def next_event_ns(self) -> int | None:
        """The next instant at which anything happens; None: nothing ever will without a new request."""
        due = [at for at in (self._busy_until, self._traffic.next_ns) if at is not None]
        if self._busy_until is None and self._inbox:
            due.append(self._inbox[0][0])
        if self._events:
            due.append(self._events[0].at_ns)
        return max(min(due), self.now_ns) if due else None

    def advance(self, to_ns: int, *, until_over: bool = False) -> list[Event]:
        """Let everything happen that is due up to `to_ns`, in order; `now_ns` is `to_ns` then.

        `until_over`: return early, with `now_ns` there, when a job has ended, so that the caller can react to it.
        Raises UsageError for an instant in the past.
        """
        if to_ns < self.now_ns:
            raise UsageError(f"advance to {to_ns} ns: the engine is at {self.now_ns} ns already")
        while not (until_over and self._ended) and (at_ns := self._next_work()) is not None \
                and at_ns <= to_ns:
            self.now_ns = max(at_ns, self.now_ns)
            self._work()
        if not (until_over and self._ended):
            self.now_ns = to_ns
        self._ended = False
        events, self._events = self._events, []
        return events

    def run(self) -> list[Event]:
        """Advance until nothing is left to happen."""
        while (at_ns := self._next_work()) is not None:
            self.now_ns = max(at_ns, self.now_ns)
            self._work()
        events, self._events = self._events, []
        return events

    def abort(self, job_id: Hashable) -> bool:
        """Give a job up, now: at once when it waits, else at the end of the step under way. False: not under way."""
        stint = self._stints.get(job_id)
        if stint is None:
            return False
        stint.gone = True
        if stint.phase in ("inbox", "waiting"):
            if stint.phase == "waiting":
                self._queue.waiting.remove(stint)
                assert stint.request is not None
                self.cache.abort(stint.request)
            self._over(stint, "aborted", "aborted by the caller")
        else:
            self._cut_round(self.now_ns)
        return True

    def flush(self) -> bool:
        """Empty device and host; storage stays. False, and nothing done, unless fully idle (no job, no copy), as
        SGLang's /flush_cache refuses (managers/scheduler.py is_fully_idle)."""
        return self.idle and self.cache.flush()

    def clear_storage(self) -> None:
        """Empty storage at once, whatever is under way."""
        self.cache.clear_storage()

    @property
    def idle(self) -> bool:
        """No job under way and no copy either."""
        return not self._stints and not len(self._traffic)

    @property
    def n_running(self) -> int:
        """Jobs in a batch: prefill under way, or decoding."""
        return len(self._stints) - self.n_waiting

    @property
    def n_waiting(self) -> int:
        """Jobs not admitted yet."""
        return len(self._queue) + len(self._inbox)

    # ------------------------------------------------------------------ the loop

    def _next_work(self) -> int | None:
        at_ns = self._traffic.next_ns
        mine = self._busy_until
        if mine is None and self._inbox:
            mine = self._inbox[0][0]
        if at_ns is None or (mine is not None and mine < at_ns):
            return mine
        return at_ns

    def _work(self) -> None:
        """Everything of this instant: copies that end, the batch that ends, the batch that begins."""
        now_ns, traffic = self.now_ns, self._traffic
        if traffic.next_ns is not None and traffic.next_ns <= now_ns:
            traffic.step_due(now_ns)
            if self._queue.waiting:
                self._cut_round(now_ns)
        if self._busy_until is not None and self._busy_until <= now_ns:
            self._busy_until = None
            if self._batch is not None:
                self._end_prefill(self._batch)
            else:
                self._end_round()
        while self._busy_until is None and self._begin_batch():
            pass

    def _begin_batch(self) -> bool:
        """One pass of the scheduler. False: nothing to do now. A batch that takes no time ends by itself."""
        now_ns = self.now_ns
        while self._inbox and self._inbox[0][0] <= now_ns:
            stint = heapq.heappop(self._inbox)[2]
            if not stint.gone:
                self._queue.take_in(stint, now_ns)
        decoder, queue, traffic = self._decoder, self._queue, self._traffic
        traffic.begin_started(now_ns)
        batch = queue.form(now_ns, len(decoder.running), decoder.reserve_tokens(queue.ratio))
        traffic.begin_started(now_ns)
        if batch is not None:
            self._begin_prefill(batch)
            return True
        if decoder.running and self._begin_round():
            return True
        if not self._stints:
            queue.rested()
        elif not len(traffic) and not self._inbox and not decoder.running and traffic.next_ns is None:
            return self._give_up_stuck()
        return False

    def _begin_prefill(self, batch: Batch) -> None:
        now_ns, totals = self.now_ns, self.totals
        compute_ns = self._clockwork.batch_ns(batch.tokens, round(batch.token_contexts)) \
            + self._traffic.take_blocking_ns()
        took = compute_ns if not batch.loads_end_ns else \
            self._clockwork.overlapped_ns(compute_ns, batch.loads_end_ns - now_ns)
        self._batch, self._busy_until = batch, now_ns + took
        totals.prefill_batches += 1
        totals.computed_tokens += batch.tokens
        totals.busy_ns += took
        for stint in batch.admitted:
            if stint.base_out:
                continue
            tiers = stint.result.tiers
            assert tiers is not None
            totals.prompt_tokens += stint.n_tokens
            totals.device_tokens += tiers.device
            totals.host_tokens += tiers.host
            totals.storage_tokens += tiers.storage
            self._emit(now_ns, "admitted", stint.result)

    def _end_prefill(self, batch: Batch) -> None:
        self._batch = None
        for stint, up_to in batch.entries:
            request = stint.request
            assert request is not None
            if stint.gone:
                if self._queue.chunked is stint:
                    self._queue.chunked = None
                self.cache.abort(request)
                self._over(stint, "aborted", "aborted by the caller")
                continue
            stint.computed = up_to
            last = up_to == stint.n_tokens
            if not (last and stint.left <= 1):
                self.cache.insert_chunk(request, up_to)
            if last:
                self._first_token(stint)

    def _first_token(self, stint: Stint) -> None:
        now_ns, result = self.now_ns, stint.result
        if stint.left > 0:
            result.instants.append(now_ns)
            result.n_out += 1
            result.last_token_ns = now_ns
            if result.first_token_ns is None:
                result.first_token_ns = now_ns
                self._emit(now_ns, "first_token", result)
            elif self._stepwise:
                self._emit(now_ns, "token", result)
        if stint.left > 1:
            self._decoder.join(stint, now_ns)
        else:
            self._finish(stint)

    def _begin_round(self) -> bool:
        decoder = self._decoder
        victims = decoder.make_room()
        if victims:
            self._retract(victims)
        for stint in decoder.take_pages():
            decoder.leave(stint)
            assert stint.request is not None
            self.cache.abort(stint.request)
            self._over(stint, "aborted", f"no page left for its next token: the device holds "
                       f"{self.config.device_tokens} tokens")
        self._traffic.begin_started(self.now_ns)
        if not decoder.running:
            return bool(self._stints)
        begin_ns = self.now_ns + self._traffic.take_blocking_ns()
        self._round = True
        self._busy_until = decoder.begin(begin_ns, self._inbox[0][0] if self._inbox else None)
        self.totals.busy_ns += self._busy_until - self.now_ns
        return True

    def _end_round(self) -> None:
        self._round = False
        made, done = self._decoder.end()
        self.totals.decode_steps += made
        self._queue.decayed(made)
        if self._stepwise:
            for stint in self._decoder.running:
                stint.result.n_out = self._decoder.n_out(stint)
                stint.result.last_token_ns = self.now_ns
                self._emit(self.now_ns, "token", stint.result)
        for stint in done:
            self._decoder.leave(stint)
            self._finish(stint)
        for stint in [stint for stint in self._decoder.running if stint.gone]:
            self._decoder.leave(stint)
            assert stint.request is not None
            self.cache.abort(stint.request)
            self._over(stint, "aborted", "aborted by the caller")

    # ------------------------------------------------------------------ ends

    def _finish(self, stint: Stint) -> None:
        result, request = stint.result, stint.request
        assert request is not None
        n_out, keys = result.n_out - stint.base_out, stint.job.output_keys
        if self.config.mamba is not None and n_out > 1:
            self.cache.grow(request, stint.n_tokens + n_out - 1)
        self.cache.finish(request, n_out, None if keys is None else keys(result.n_out))
        self._over(stint, "finished", None)

    def _over(self, stint: Stint, kind: EventKind, error: str | None) -> None:
        stint.phase = "over"
        del self._stints[stint.job.id]
        result, totals = stint.result, self.totals
        result.error = error
        result.finished_ns = self.now_ns
        totals.generated_tokens += result.n_out
        self._emit(self.now_ns, kind, result)

    def _retract(self, victims: list[Stint]) -> None:
        """Victims wait again, behind everybody, with what they have generated as part of their prompt."""
        decoder, queue = self._decoder, self._queue
        for old in victims:
            old.result.retractions += 1
            self.totals.retractions += 1
            again = Stint(old.job, old.result)
            again.base_out = old.result.n_out
            again.n_tokens = old.job.n_tokens + again.base_out
            self._stints[old.job.id] = again
            queue.take_in(again, self.now_ns)
        n, total = len(decoder.running), sum(s.result.output_tokens for s in decoder.running)
        made = sum(decoder.n_out(stint) for stint in decoder.running)
        queue.ratio = min(1.0, (made + RETRACT_DECODE_STEPS * n) / (total + 1))

    def _give_up_stuck(self) -> bool:
        """Nothing runs, nothing moves, and the first in the queue does not fit: it never will."""
        queue = self._queue
        stint = queue.chunked or (queue.waiting.popleft() if queue.waiting else None)
        if stint is None:
            return False
        queue.chunked = None
        assert stint.request is not None
        self.cache.abort(stint.request)
        self._over(stint, "rejected", f"{stint.n_tokens} prompt and {stint.left} output tokens never fit "
                   f"{self.config.device_tokens} device tokens beside what has to stay there")
        return True

    def _cut_round(self, at_ns: int) -> None:
        """Let the decode round under way end early, so that somebody can be served."""
        if self._round and self._busy_until is not None and self._busy_until > at_ns:
            end_ns = self._decoder.cut(max(at_ns, self.now_ns))
            self.totals.busy_ns -= self._busy_until - end_ns
            self._busy_until = end_ns

    def _emit(self, at_ns: int, kind: EventKind, result: Result) -> None:
        if kind in _ENDS:
            self._ended = True
            self.totals.finished += kind == "finished"
            self.totals.aborted += kind == "aborted"
            self.totals.rejected += kind == "rejected"
        self._events.append(Event(at_ns, kind, result.job.id, result))
