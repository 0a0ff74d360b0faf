"""`calibrate`: measure a model's figures on a running server and make a profile of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from hicache_bench.clock import now_ns
from hicache_bench.errors import Inconclusive, UsageError
from hicache_bench.profiles.profile import Figure, Figures, How, Profile, dump_profile
from hicache_bench.records import ServerInfo
from hicache_bench.store.files import write_atomic
from hicache_bench.target import Target
from hicache_bench.verify.bed import Bed, Note, open_bed
from hicache_bench.verify.calibration_text import calibration_json
from hicache_bench.verify.ground import computed_profile
from hicache_bench.verify.prober import OUTPUT_TOKENS, Length, Prober, Trial
from hicache_bench.verify.search import Grid, fit_grid, probe_lengths, threshold
from hicache_bench.verify.traffic import Watch

MARGIN = 2
"""Peers between the threshold and the numbers a profile uses, where there is room."""
STORAGE_TRIALS = 3


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """`prompt_tokens` None: a twentieth of the device pool, in whole pages. `host` False: leave out the host
    threshold, which needs a pool's worth of peers several times over."""

    results: Path = Path("results")
    write: Path | None = None
    name: str | None = None
    prompt_tokens: int | None = None
    host: bool = True
    argv: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured. `fidelity`: tier → (answers equal to the resident one, answers compared)."""

    profile: Profile
    grid: Grid | None
    lengths: tuple[Length, ...]
    trials: tuple[Trial, ...]
    fidelity: dict[str, tuple[int, int]]
    settle_s: tuple[float, ...]
    storage_trials: tuple[Trial, ...]
    origin: str
    run_dir: Path
    notes: tuple[str, ...]
    elapsed_ns: int


async def calibrate(target: Target, options: CalibrateOptions, note: Note = print) -> Calibration:
    """Measure one server that nobody else uses. Writes a run directory with `calibration.json` and `profile.toml`.

    Raises MeasureError when the server has other traffic, Inconclusive when it does not report tiers or a
    figure does not hold twice.
    """
    async with open_bed([target], options.results, "calibrate", note, options.argv) as bed:
        started, bench = now_ns(), bed.benches[0]
        bed.save(measure_start_ns=started)
        watch = Watch(bench)
        notes = [text for text in [await watch.start()] if text]
        page = bench.info.page_size
        if page is None:
            raise Inconclusive("the server does not say its page size (/server_info or /metrics)")
        work = _Work(bed, options, Prober(bench, watch, page), computed_profile(bench.info), notes)
        found = await work.run(started)
        bed.save(measure_end_ns=now_ns(), profile=found.profile.name)
        bed.rundir.write_json("calibration.json", calibration_json(found))
        text = dump_profile(found.profile, _comment(found, bench.info))
        bed.rundir.write_text("profile.toml", text)
    if options.write is not None:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(options.write, text.encode())
    return found


@dataclass(slots=True)
class _Work:
    bed: Bed
    options: CalibrateOptions
    prober: Prober
    computed: Profile
    notes: list[str]

    @property
    def info(self) -> ServerInfo:
        return self.bed.benches[0].info

    async def run(self, started_ns: int) -> Calibration:
        note, page = self.bed.note, self.prober.page
        await self.prober.flush()
        tokens = self._prompt_tokens()
        lengths = [await self.prober.length(one) for one in probe_lengths(page, max(tokens // page, 2))]
        base = next((one for one in lengths if one.tokens == tokens), None) or await self.prober.length(tokens)
        if base.first_hit is None:
            raise Inconclusive(f"a prompt of {tokens} tokens is never served from the cache: nothing to calibrate")
        grid = fit_grid([(one.tokens, one.match) for one in lengths])
        note(f"lengths: {', '.join(f'{one.tokens} → {one.match} (request {one.first_hit})' for one in lengths)}")
        self.prober.prime_requests = base.first_hit
        resident = await self.prober.resident_pages(tokens)
        note(f"a peer of {tokens} tokens keeps {resident if resident is not None else 'an unknown number of'} pages")
        first = await self._device_threshold(tokens)
        stay, evict = await self._margins(tokens, first)
        host = await self._host_threshold(tokens, resident or tokens // page)
        storage, waits = await self._storage(tokens)
        profile = self._profile(tokens, base, grid, resident, first, (stay, evict), host, waits)
        counted = {tier: (sum(one is True for one in same), sum(one is not None for one in same))
                   for tier, same in self.prober.fidelity.items()}
        return Calibration(profile, grid, tuple(lengths), tuple(self.prober.trials), counted, tuple(waits),
                           tuple(storage), self.info.origin, self.bed.rundir.path, tuple(self.notes),
                           now_ns() - started_ns)

    def _prompt_tokens(self) -> int:
        asked = self.options.prompt_tokens
        if asked is None:
            return (self.computed.prompt_tokens - 1) // self.prober.page * self.prober.page
        most = (self.info.device_tokens or asked) // 4
        if not 2 * self.prober.page < asked <= most:
            raise UsageError(f"--prompt-tokens {asked}: allowed are {2 * self.prober.page + 1} to {most} (more than "
                             "two pages, at most a quarter of the device pool)")
        return asked

    async def _device_threshold(self, tokens: int) -> int:
        pages = (self.info.device_tokens or 0) // self.prober.page
        guess = self.computed.figures.first_evicting_peers
        scaled = (guess.value if guess else 1) * self.computed.prompt_tokens // tokens

        async def evicts(peers: int) -> bool:
            found = await self.prober.trial(tokens, peers)
            self._tell(found)
            return found.device < self._resident_match(found)

        first = await threshold(evicts, scaled, max(4 * pages // max(tokens // self.prober.page, 1), 8))
        if first is None:
            raise Inconclusive("the prompt never left the device, whatever the number of peers")
        return first

    def _resident_match(self, found: Trial) -> int:
        """What the prompt reports while all of it is on the device: the most any trial has shown."""
        return max([found.device, *(one.cached for one in self.prober.trials), 1])

    async def _margins(self, tokens: int, first: int) -> tuple[int, int]:
        """The peers a profile uses, each of them tried."""
        stay, evict = max(first - 1 - MARGIN, min(first - 1, 1)), first + MARGIN
        for peers in (stay, evict):
            self._tell(await self.prober.trial(tokens, peers))
        return stay, evict

    async def _host_threshold(self, tokens: int, pages: int) -> int | None:
        if not self.options.host or not self.info.hicache or self.info.host_tokens is None:
            self.notes.append("host threshold: not measured (" + (
                "left out" if not self.options.host else "HiCache is off or the host pool's size unknown") + ")")
            return None
        guess = self.info.host_tokens // self.prober.page // pages

        async def leaves(peers: int) -> bool:
            found = await self.prober.trial(tokens, peers)
            self._tell(found)
            return not found.device and not found.host

        return await threshold(leaves, guess, 4 * guess + 8)

    async def _storage(self, tokens: int) -> tuple[list[Trial], list[float]]:
        if self.info.storage_backend is None:
            self.notes.append("storage: not measured (no storage tier)")
            return [], []
        trials, waits = [], []
        for _ in range(STORAGE_TRIALS):
            found, waited = await self.prober.storage_trial(tokens)
            trials.append(found)
            waits += [] if waited is None else [waited]
        if not any(found.storage for found in trials):
            self.notes.append("storage: nothing came back after a flush; write_back fills it only at eviction, "
                              "best_effort does not wait for it")
        return trials, waits

    def _tell(self, found: Trial) -> None:
        self.bed.note(f"{found.peers:>4} peers  cached={found.cached} device={found.device} host={found.host} "
                      f"storage={'-' if found.storage is None else found.storage}")

    def _profile(self, tokens: int, base: Length, grid: Grid | None, resident: int | None, first: int,
                 peers: tuple[int, int], host: int | None, waits: list[float]) -> Profile:
        today = datetime.now(timezone.utc).strftime("%Y-%m-%d")

        def figure(value: int | None, note: str = "", how: How = "measured") -> Figure | None:
            return None if value is None else Figure(value, how, today, self.info.fingerprint, note)

        def known(value: int, note: str = "") -> Figure:
            return Figure(value, "measured", today, self.info.fingerprint, note)

        hit = base.first_hit or 2
        name = self.options.name or (self.options.write.stem if self.options.write else self.info.model or "calibrated")
        figures = Figures(
            match_tokens=known(base.match), prime_requests=known(hit),
            stay_peers=known(peers[0], f"{first - 1} stay"), evict_peers=known(peers[1], f"{first} evict"),
            commit_lag=figure(hit - 2), resident_pages=figure(resident, "sglang:kv_available_tokens"),
            align_tokens=figure(grid.tokens if grid else None, f"rule {grid.rule}" if grid else ""),
            first_evicting_peers=figure(first, f"{first - 1} and {first} seen twice"),
            host_peers=figure(host, "seen twice"),
            settle_ms=figure(round(max(waits) * 1000) if waits else None, f"longest of {len(waits)}"))
        server = msgspec.structs.replace(self.computed.server, **_components(self.info))
        return Profile(re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:80], tokens, server, figures,
                       f"calibrated on {self.info.model}, SGLang {self.info.version}", OUTPUT_TOKENS)


def _components(info: ServerInfo) -> dict[str, float | int]:
    """Nothing is guessed: SGLang shows its sidecar flags for every model, so they do not tell the components."""
    chunk = info.flags.get("chunked_prefill_size")
    return {"chunked_prefill_size": chunk} if isinstance(chunk, int) and chunk > 0 else {}


def _comment(found: Calibration, info: ServerInfo) -> str:
    label = "SIMULATED server, " if found.origin == "simulated" else ""
    return (f"Made by hicache-bench calibrate on {label}{info.model}, SGLang {info.version}, fingerprint "
            f"{info.fingerprint}.\nAdd the components of the model to [server] where it has more than full attention.")
