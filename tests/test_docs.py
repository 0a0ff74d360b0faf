"""The documentation against the program: commands run, tables are complete, links lead somewhere."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hicache_bench import errors
from hicache_bench.analysis.gatefile import parse_gate
from hicache_bench.analysis.metrics import LATENCIES, METRICS
from hicache_bench.analysis.tiers import TIER_CLASSES
from hicache_bench.cli.main import VERBS, LazyGroup, cli
from hicache_bench.cli.run import EXIT_INTERRUPTED
from hicache_bench.records import NOT_FAILURES, OUTCOMES, Attempt, ServerInfo
from hicache_bench.store.schema import ATTEMPT_SCHEMA, METRIC_SCHEMA
from hicache_bench.workload import lengths, spec, streams
from hicache_bench.workload.decode import Duration
from hicache_bench.workload.plan import MOST_SESSIONS, Capacity, build_plan
from hicache_bench.workload.spec import parse_spec

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "ARCHITECTURE.md", "results/README.md", "docs/workloads.md", "docs/run-directory.md",
         "docs/summary.md", "docs/compare.md", "docs/locust.md", "docs/verify.md",
         "docs/simulator.md")
NOT_EXECUTED = "# not executed here"
FRAGMENT = "# fragment"
GATE = "# gate.toml"
SETUP = "python3 -m venv"
FOREIGN = "Coming from sglang.bench_serving"
"""The left cells of this section's table name another program's options."""

_FENCE = re.compile(r"^```([a-z]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`]+)`")


@dataclasses.dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(language: str) -> list[Block]:
    found = []
    for page in PAGES:
        content = (ROOT / page).read_text(encoding="utf-8")
        found += [Block(page, content.count("\n", 0, match.start()) + 1, match[1], match[2])
                  for match in _FENCE.finditer(content) if match[1] == language]
    return found


SHELL = blocks("sh")
SETUPS = [block for block in SHELL if block.text.startswith(SETUP)]
QUOTED = [block for block in SHELL if block.text.startswith(NOT_EXECUTED)]
EXECUTED = [block for block in SHELL if block not in SETUPS and block not in QUOTED]


def prose(page: str) -> str:
    return _FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))


def section(page: str, title: str) -> str:
    """What stands under one heading, up to the next heading of any level."""
    match = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", prose(page), re.MULTILINE | re.DOTALL)
    assert match is not None, f"{page} has no heading {title!r}"
    return match[1]


def table(page: str, title: str) -> dict[str, dict[str, str]]:
    """The first table under a heading: every name of a first cell → header → cell."""
    lines = [line for line in section(page, title).splitlines() if line.startswith("|")]
    header, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rows: dict[str, dict[str, str]] = {}
    for cells in body:
        assert len(cells) == len(header), f"{page}, {title}: {cells}"
        for name in _CODE.findall(cells[0]):
            assert name not in rows, f"{page}, {title}: {name} twice"
            rows[name] = dict(zip(header, cells, strict=True))
    return rows


# --------------------------------------------------------------------------- commands and code


def environment(home: Path, *path: Path) -> dict[str, str]:
    """This one's, with nothing that points to a server, a virtual environment or somebody's settings."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("HICACHE_", "PYTHON", "VIRTUAL_ENV", "XDG_"))}
    return kept | {"HOME": str(home), "PATH": os.pathsep.join([*map(str, path), os.environ["PATH"]])}


def execute(command: list[str], folder: Path, timeout_s: float = 60) -> str:
    env = environment(folder / "home", folder / "bin") | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, timeout=timeout_s,
                          check=False)
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def after_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a reader of the pages has it: the workloads, the commands, and one finished run."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("workloads", "locustfiles"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "home").mkdir()
    (folder / "bin").mkdir()
    for name, module in (("hicache-bench", "hicache_bench"), ("hcb", "hicache_bench"), ("locust", "locust")):
        shim = folder / "bin" / name
        shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        shim.chmod(0o755)
    assert "status complete" in execute(["hicache-bench", "run", "workloads/smoke.toml"], folder)
    return folder


@pytest.fixture
def run_dir(after_a_run: Path) -> Path:
    return min((after_a_run / "results").iterdir())


@pytest.mark.parametrize("block", {block.text: block for block in EXECUTED}.values(), ids=str)
def test_a_shown_command_runs(block: Block, after_a_run: Path) -> None:
    assert execute(["sh", "-e", "-c", block.text], after_a_run).strip()


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_shown_python_runs(block: Block, after_a_run: Path) -> None:
    assert execute([sys.executable, "-c", block.text], after_a_run).strip()


def test_each_kind_of_block_is_found() -> None:
    """A changed fence or marker must not switch these tests off in silence."""
    assert {block.page for block in SETUPS} == {"README.md"}
    assert len(SETUPS) == 2
    assert {block.page for block in EXECUTED} == {"README.md", "docs/workloads.md", "docs/run-directory.md",
                                                   "docs/summary.md", "docs/compare.md", "docs/locust.md",
                                                   "docs/verify.md", "docs/simulator.md"}
    assert blocks("python")
    assert blocks("toml")
    known = {"sh", "python", "toml"}
    for page in PAGES:
        assert {match[1] for match in _FENCE.finditer((ROOT / page).read_text(encoding="utf-8"))} <= known


def command_lines(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield shlex.split(line)


@pytest.mark.parametrize("block", QUOTED, ids=str)
def test_a_command_that_is_not_executed_has_options_that_exist(
    block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    ours = [words for words in command_lines(block.text) if words[0] in ("hicache-bench", "hcb")]
    assert ours
    for _, verb, *arguments in ours:
        command = LazyGroup("hicache-bench").get_command(None, verb)  # type: ignore[arg-type]
        assert command is not None, verb
        command.make_context(verb, arguments)


def locust_options() -> set[str]:
    """Those that our user class adds, and two of Locust's own that the page explains."""
    from hicache_bench.locust_user.options import FLAGS, HIDDEN, LISTS, SHOWN

    return {"-u", "-t"} | {f"--{name}" for name, _ in (*SHOWN, *HIDDEN, *LISTS, *FLAGS)}


def with_subcommands(command: typing.Any) -> list[typing.Any]:
    names = command.list_commands(None) if hasattr(command, "list_commands") else []
    return [command, *(command.get_command(None, name) for name in names)]


def test_every_option_in_the_text_exists() -> None:
    group = LazyGroup("hicache-bench")
    known = {"-m", "-q"}  # pytest's, in the README
    for verb in VERBS:
        for command in with_subcommands(group.get_command(None, verb)):  # type: ignore[arg-type]
            for parameter in command.params:
                known |= {*parameter.opts, *parameter.secondary_opts}
    for page in PAGES:
        text = prose(page)
        if page == "README.md":
            text = text.replace(theirs := section(page, FOREIGN), re.sub(r"(?m)^\|.*?\|", "|", theirs))
        if page == "docs/locust.md":
            assert locust_options() <= set(re.findall(r"--?[a-z][a-z-]*", text)), "every option is described"
            known |= locust_options()
        named = {code.split()[0].rstrip(",") for code in _CODE.findall(text) if re.match(r"--?[a-z]", code)}
        assert named <= known, f"{page}: {sorted(named - known)}"


def test_every_exit_code_is_described() -> None:
    codes = {str(value) for name, value in vars(errors).items() if name.startswith("EXIT_")}
    lines = [line.split("|")[1].strip() for line in section("README.md", "Exit codes").splitlines() if "|" in line]
    assert set(lines[2:]) == codes | {str(EXIT_INTERRUPTED)}
    help_ = inspect.getdoc(cli.callback) or ""
    assert all(f"{code} " in help_.partition("Exit codes:")[2] for code in codes | {str(EXIT_INTERRUPTED)})


# --------------------------------------------------------------------------- the set-up commands


def _project() -> tuple[set[str], set[str]]:
    """(extras, programs) that pyproject.toml declares; programs of the test extra included."""
    project = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes())["project"]
    extras = project["optional-dependencies"]
    tools = {re.split(r"[\[<>=~! ]", need)[0] for need in extras["test"]}
    return set(extras), {*project["scripts"], *tools}


@pytest.mark.parametrize("block", SETUPS, ids=str)
def test_a_setup_command_makes_its_environment_and_uses_it(block: Block) -> None:
    extras, programs = _project()
    (line,) = block.text.splitlines()
    venv, install, *rest = [shlex.split(step) for step in line.split("&&")]
    assert venv == ["python3", "-m", "venv", ".venv"]
    assert install[:-1] == [".venv/bin/pip", "install", "-q", "-e"]
    target = re.fullmatch(r"\.(?:\[([a-z]+)\])?", install[-1])
    assert target is not None
    assert target[1] is None or target[1] in extras
    assert rest
    for program, *arguments in rest:
        assert program.startswith(".venv/bin/")
        assert program.removeprefix(".venv/bin/") in programs
        assert all((ROOT / word).exists() for word in arguments if "/" in word)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_first_command_works_on_a_bare_clone(tmp_path: Path) -> None:
    """What git does not track is not there: a forgotten file breaks this test, not a user."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("no git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    clone, home = tmp_path / "clone", tmp_path / "home"
    home.mkdir()
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    base = Path(sys.base_prefix) / "bin"
    done = subprocess.run(["sh", "-e", "-c", SETUPS[0].text], cwd=clone, env=environment(home, base), text=True,
                          capture_output=True, timeout=380, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "status complete" in done.stdout
    assert list((clone / "results").glob("*-smoke-*/run.json"))


# --------------------------------------------------------------------------- workload files


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_shown_toml_is_a_workload(block: Block) -> None:
    tables = msgspec.toml.decode(block.text)
    if block.text.startswith(GATE):
        assert parse_gate(tables).limits
        return
    if block.text.startswith(FRAGMENT):
        filler = {"name": "filler", "kind": "unique", "prompt_tokens": 8, "output_tokens": 1}
        tables = {"name": "fragment", "stream": [filler], **tables}
        parse_spec(tables, str(block))
        return
    plan = build_plan(parse_spec(tables, str(block)), base_dir=ROOT, page_size=64,
                      capacity=Capacity(65536, 131072, 8192))
    assert plan.n_requests > 0


HEAD = ("name", "share", "count")
"""Keys of every stream, described once for all."""

STRUCTS: dict[str, type[msgspec.Struct]] = {
    "Top level": spec.WorkloadSpec, "`[prompts]`": spec.Prompts, "`[load]`": spec.Load,
    "`[[load.stages]]`": spec.StageSpec, "`[reset]`": spec.Reset, "`[prime]`": spec.Prime,
    "`[warmup]`": spec.Warmup, "`[settle]`": spec.Settle, "`[drain]`": spec.Drain, "`[slo]`": spec.Slo,
    "`shared_prefix`": streams.SharedPrefix, "`unique`": streams.Unique, "`multi_turn`": streams.MultiTurn,
    "`trace`": streams.Trace, "`dataset`": streams.Dataset,
    "`uniform` length": lengths.Uniform, "`lognormal` length": lengths.LogNormal,
    "`empirical` length": lengths.Empirical, "`uniform` pause": lengths.UniformPause,
    "`exponential` pause": lengths.ExponentialPause, "`lognormal` pause": lengths.LogNormalPause,
}


def test_every_struct_has_a_section() -> None:
    defined = {
        item for module in (spec, streams, lengths) for _, item in inspect.getmembers(module, inspect.isclass)
        if issubclass(item, msgspec.Struct) and item.__module__ == module.__name__
    }
    assert set(STRUCTS.values()) == defined


def shown_default(field: msgspec.structs.FieldInfo) -> str:
    """How the page writes a default."""
    value = field.default
    if field.required:
        return "required"
    if value is None:
        return "none"
    if isinstance(value, msgspec.Struct):
        return "all defaults"
    if isinstance(value, Duration):
        return f'`"{value / 1e9:g}s"`'
    return f"`{json.dumps(value)}`"


def choices(kind: object) -> Iterator[str]:
    """The words that a type allows."""
    if typing.get_origin(kind) is typing.Literal:
        yield from typing.get_args(kind)
    else:
        for part in typing.get_args(kind):
            yield from choices(part)


@pytest.mark.parametrize("title", STRUCTS)
def test_every_key_is_described_with_its_default_and_choices(title: str) -> None:
    kind = STRUCTS[title]
    rows, fields = table("docs/workloads.md", title), {f.name: f for f in msgspec.structs.fields(kind)}
    if kind in typing.get_args(streams.StreamSpec):
        fields = {name: field for name, field in fields.items() if name not in HEAD}
    assert set(rows) == set(fields)
    for name, field in fields.items():
        assert rows[name]["default"] == shown_default(field), name
        assert rows[name]["type"], name
        assert rows[name]["meaning"], name
        named = set(_CODE.findall(rows[name]["meaning"]))
        assert set(choices(field.type)) <= named, name


def test_the_limits_on_numbers_are_those_of_the_code() -> None:
    text = section("docs/workloads.md", "Limits")
    for name, most in (("`requests`, `concurrency`", spec.MOST_REQUESTS), ("session starts", spec.MOST_REQUESTS),
                       ("`groups`", streams.MOST_GROUPS), ("`count`", streams.MOST_COUNT),
                       ("`fill`", streams.MOST_FILL), ("length in tokens", lengths.MOST_TOKENS),
                       ("sessions of a closed loop", MOST_SESSIONS)):
        (line,) = [line for line in text.splitlines() if name in line and f"{most:,}" in line]
        assert line.startswith("|")


def test_every_latency_and_tier_class_of_the_summary_is_explained() -> None:
    explained = set(table("docs/summary.md", "Latency"))
    assert explained == {metric.name for metric in LATENCIES}
    assert set(table("docs/summary.md", "TTFT by tier")) == set(TIER_CLASSES)


def test_the_keys_of_every_stream_are_described() -> None:
    rows = table("docs/workloads.md", "Streams")
    assert set(rows) == {*HEAD, "kind"}
    tags = {str(kind.__struct_config__.tag) for kind in typing.get_args(streams.StreamSpec)}
    assert set(_CODE.findall(rows["kind"]["meaning"])) == tags


# --------------------------------------------------------------------------- run directories

RUN_PAGE = "docs/run-directory.md"


def shown_type(type_: object) -> str:
    text = str(type_)
    if text.startswith("list"):
        return "list of int"
    words = {"int64": "int", "double": "float", "bool": "bool", "string": "text"}
    return words.get(text, "text" if text.startswith("dictionary") else text)


def test_every_column_of_an_attempt_is_described() -> None:
    titles = ("Identity", "Instants", "Counts", "Outcome", "Figures of the server", "Stream")
    tables = [table(RUN_PAGE, title) for title in titles]
    rows = dict(itertools.chain.from_iterable(one.items() for one in tables))
    assert len(rows) == sum(map(len, tables))
    assert list(rows) == [field.name for field in dataclasses.fields(Attempt)]
    for name, row in rows.items():
        assert row["type"] == shown_type(ATTEMPT_SCHEMA.field(name).type), name
        assert row["meaning"], name
        suffix = name.rpartition("_")[2]
        assert row["unit"] == {"ns": "ns", "s": "s", "tokens": "tokens", "bytes": "bytes"}.get(suffix, ""), name


def test_every_column_of_the_server_metrics_is_described() -> None:
    rows = table(RUN_PAGE, "Server metrics")
    assert {name: row["type"] for name, row in rows.items()} == {
        field.name: shown_type(field.type) for field in METRIC_SCHEMA}


def test_every_outcome_is_described() -> None:
    rows = table(RUN_PAGE, "Outcomes")
    assert set(rows) == set(OUTCOMES)
    for name, row in rows.items():
        assert row["in the error rate"].startswith("no" if name in NOT_FAILURES else "yes"), name


def test_every_metric_is_described() -> None:
    rows = table(RUN_PAGE, "Metrics")
    assert set(rows) == {metric.name for metric in METRICS}
    for metric in METRICS:
        assert metric.unit in rows[metric.name]["unit"].split(", "), metric.name


def test_every_key_of_run_json_is_described(run_dir: Path) -> None:
    written = set(json.loads((run_dir / "run.json").read_text()))
    assert set(table(RUN_PAGE, "run.json")) - written == {"error"}
    assert written <= set(table(RUN_PAGE, "run.json"))
    assert set(table(RUN_PAGE, "server.json")) == {field.name for field in dataclasses.fields(ServerInfo)}


def test_every_file_of_a_run_is_described(run_dir: Path) -> None:
    rows = table(RUN_PAGE, "Files")
    files = [path.relative_to(run_dir) for path in run_dir.rglob("*") if path.is_file()]
    for path in files:
        assert any(path.match(pattern) for pattern in rows), path
    for pattern in rows:
        assert any(path.match(pattern) for path in files), pattern
    kinds = {json.loads(line)["kind"] for line in (run_dir / "events.jsonl").read_text().splitlines()}
    assert kinds <= set(_CODE.findall(rows["events.jsonl"]["content"]))


# --------------------------------------------------------------------------- links


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_resolves(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page}: {target}"
        assert file.resolve().is_relative_to(ROOT), f"{page}: {target} leads out of the repository"
        assert not anchor or anchor in anchors(file), f"{page}: {target}"


def test_every_page_is_tested() -> None:
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= set(PAGES)
