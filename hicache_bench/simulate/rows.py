"""From what the engine did to the rows of a run directory."""

from __future__ import annotations

from dataclasses import dataclass

from hicache_bench.clock import NS_PER_S
from hicache_bench.load.requests import Api
from hicache_bench.load.turns import planned_row
from hicache_bench.records import Attempt
from hicache_bench.simulate.drive import Ended
from hicache_bench.simulate.setup import STORAGE_CLASS

HTTP_OK, HTTP_REFUSED = 200, 400


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Makes rows of one phase. `storage`: whether there is a storage tier; without one its tokens are not known."""

    phase: str
    api: Api
    streamed: bool
    storage: bool

    def row(self, ended: Ended) -> Attempt:
        """The row of one attempt; virtual instants. What was never sent has no instants and no counts."""
        session, result = ended.session, ended.result
        row = planned_row(session, ended.index, ended.scheduled_ns, phase=self.phase, api=self.api,
                          streamed=self.streamed, ignore_eos=True)
        row.clock, row.outcome, row.error = "virtual", ended.outcome, ended.error
        if result is None:
            return row
        row.sent_ns, row.done_ns = result.arrival_ns, result.finished_ns
        row.prompt_tokens = result.job.n_tokens
        if ended.outcome == "http":
            row.status = HTTP_REFUSED
            return row
        row.status = HTTP_OK
        row.first_token_ns = row.first_content_ns = result.first_token_ns
        row.last_token_ns = result.last_token_ns
        row.output_tokens, row.token_source = result.n_out, "server"
        row.chunk_ns = result.token_ns()
        row.chunk_tokens = [1] * len(row.chunk_ns)
        row.retractions = result.retractions
        if ended.outcome in ("ok", "empty"):
            row.finish_reason = "length"
        self._tiers(row, ended)
        self._server_times(row, ended)
        return row

    def _tiers(self, row: Attempt, ended: Ended) -> None:
        tiers = ended.result.tiers if ended.result is not None else None
        if tiers is None:
            return
        row.cached_tokens, row.device_tokens, row.host_tokens = tiers.cached, tiers.device, tiers.host
        if self.storage:
            row.storage_tokens, row.storage_backend = tiers.storage, STORAGE_CLASS

    def _server_times(self, row: Attempt, ended: Ended) -> None:
        result = ended.result
        assert result is not None
        if result.admitted_ns is not None:
            row.server_queue_s = (result.admitted_ns - result.arrival_ns) / NS_PER_S
        if result.first_token_ns is not None:
            row.server_ttft_s = (result.first_token_ns - result.arrival_ns) / NS_PER_S
        if result.finished_ns is not None:
            row.server_e2e_s = (result.finished_ns - result.arrival_ns) / NS_PER_S
        if result.prefetch_wait_ns is not None:
            row.prefetch_wait_s = result.prefetch_wait_ns / NS_PER_S
