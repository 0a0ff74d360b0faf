"""A calibration as text and JSON: figures with their origin, lengths, and the pressure sweep as a table with bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from tabulate import tabulate

from hicache_bench.clock import NS_PER_S

if TYPE_CHECKING:
    from hicache_bench.verify.calibrate import Calibration
    from hicache_bench.verify.prober import Trial

BAR = 24
"""Characters of a full bar."""


def render_calibration(found: Calibration) -> str:
    """The closing report of `calibrate`."""
    figures = [(name, figure.value, figure.how, figure.date, figure.server, figure.note)
               for name, figure in ((name, getattr(found.profile.figures, name))
                                    for name in found.profile.figures.__struct_fields__) if figure is not None]
    grid = (f"cached = floor(({found.grid.rule}) / {found.grid.tokens}) * {found.grid.tokens}" if found.grid
            else "no single grid explains these lengths")
    fidelity = ", ".join(f"{tier} {equal} of {of}" for tier, (equal, of) in found.fidelity.items())
    label = "  [SIMULATED server]" if found.origin == "simulated" else ""
    parts = [
        f"profile {found.profile.name}, prompts of {found.profile.prompt_tokens} tokens{label}",
        tabulate(figures, headers=("figure", "value", "how", "date", "server", "note"), disable_numparse=True),
        f"match of resident prompts: {grid}",
        tabulate([(one.tokens, one.match, one.first_hit or "never") for one in found.lengths],
                 headers=("prompt tokens", "cached tokens", "first hit at request"), disable_numparse=True),
        f"pressure sweep (D device, H host, S storage, . computed again; {BAR} characters are the prompt)",
        tabulate(sweep_rows(found), headers=("peers", "device", "host", "storage", "seen", ""), disable_numparse=True),
        f"outputs equal to the resident one: {fidelity or 'nothing compared'}",
        *(f"note: {text}" for text in found.notes),
        f"took {found.elapsed_ns / NS_PER_S:.0f} s; run directory: {found.run_dir}",
    ]
    return "\n\n".join(parts)


def sweep_rows(found: Calibration) -> list[tuple[Any, ...]]:
    """One row a number of peers: tokens by tier, how often it was seen, and a bar."""
    by_peers: dict[int, list[Trial]] = {}
    for trial in found.trials:
        by_peers.setdefault(trial.peers, []).append(trial)
    return [(peers, trials[-1].device, trials[-1].host, "-" if trials[-1].storage is None else trials[-1].storage,
             f"{len(trials)}x", _bar(trials[-1], found.profile.prompt_tokens))
            for peers, trials in sorted(by_peers.items())]


def _bar(trial: Trial, prompt_tokens: int) -> str:
    text, reached = "", 0
    for letter, tokens in (("D", trial.device), ("H", trial.host), ("S", trial.storage or 0)):
        reached += tokens
        text = text.ljust(int(BAR * reached / prompt_tokens), letter)
    return text.ljust(BAR, ".")


def calibration_json(found: Calibration) -> dict[str, Any]:
    """`calibration.json`."""
    plain: dict[str, Any] = msgspec.to_builtins(found, enc_hook=str)
    return plain
