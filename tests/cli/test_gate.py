import xml.etree.ElementTree as ET

import pytest

from tests.analysis.runs import make_set
from tests.cli.invoke import hcb, strict_json


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate")
    for i, name in enumerate(("a", "b")):
        make_set(folder / name, seed=40 * i, at=i, ttft=1 + 0.2 * i)
    return folder


@pytest.mark.parametrize(
    ("limit", "code", "word"),
    [('worse_by = "5%"', 1, "fail"), ('worse_by = "60%"', 0, "pass"), ('worse_by = "60%"\nmin_runs = 9', 4, "inconcl")],
)
def test_exit_codes_and_files(root, tmp_path, limit, code, word):
    file, junit, summary = tmp_path / "gate.toml", tmp_path / "gate.xml", tmp_path / "gate.md"
    limit, _, runs = limit.partition("\n")
    file.write_text(f'{runs}\n[metrics."ttft p50"]\n{limit}\n')
    done = hcb("gate", f"{root}/a/*", root / "b", "-f", file, "--junit", junit, "--markdown", summary,
               "--format", "json")  # fmt: skip
    assert (done.code, done.err) == (code, "")
    assert strict_json(done.out)["result"].startswith(word)
    suite = ET.parse(junit).getroot()[0]
    assert (int(suite.get("failures")) > 0, int(suite.get("errors")) > 0) == (code == 1, code == 4)
    assert f"gate: {word}" in summary.read_text()


def test_bad_gate_file(root, tmp_path):
    file = tmp_path / "gate.toml"
    file.write_text('[metrics."ttft"]\nmax = "1s"\n')
    done = hcb("gate", root / "a", root / "b", "-f", file)
    assert (done.code, done.out) == (2, "")
    assert "gate.toml" in done.err
    assert "allowed: ttft p50" in done.err
    assert done.err.count("\n") == 1
