"""Bad input of every kind: exit 2, one message that says where and what is allowed, never a traceback."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from hicache_bench.cli.main import VERBS, cli
from tests.cli.invoke import LOAD, STREAM, hcb, workload


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(verb):
    result = CliRunner().invoke(cli, [verb, "--help"])
    assert result.exit_code == 0
    assert re.search(r"Examples?:\s+hicache-bench ", result.output)


UNIQUE = '[[stream]]\nname = "u"\nkind = "unique"\nprompt_tokens = {p}\noutput_tokens = {o}\n{m}'
GROUPS = STREAM.replace("groups = 1", "groups = 99999999999")
TRACE = '[[stream]]\nname = "t"\nkind = "trace"\nformat = "mooncake"\npath = "{p}"\n'


def unique(p="10", o="1", m=""):
    return UNIQUE.format(p=p, o=o, m=m)


@pytest.mark.parametrize(("load", "stream", "says"), [
    (LOAD, unique(p="99999999999999999"), "prompt_tokens"),
    (LOAD, unique(o="99999999999999999999"), "output_tokens"),
    (LOAD, unique(p="0"), "prompt_tokens"),
    (LOAD, unique(p='{ dist = "uniform", min = 9, max = 5 }'), "max"),
    (LOAD, unique(m="share = inf"), "share"),
    (LOAD, unique(m="share = nan"), "share"),
    (LOAD, unique(m="fill = 1e300"), "fill"),
    (LOAD, unique(m="count = 99999999999"), "count"),
    (LOAD, unique(m="zork = 1"), "unknown key stream[0].zork"),
    (LOAD, GROUPS, "groups"),
    (LOAD, TRACE.format(p="a\\u0000b"), "path"),
    (LOAD, TRACE.format(p="/"), "cannot read it"),
    (LOAD, STREAM.replace("[[stream]]", "[stream]"), "stream"),
    (LOAD, STREAM + STREAM, "name of its own"),
    ("concurrency = 1\nrequests = 999999999999", unique(), "requests"),
    ('rate = "1/s"\nduration = "999999999h"', unique(), "starts"),
    ('rate = "99999999999999/s"\nduration = "10s"', unique(), "starts"),
    ('rate = "1/s"\nduration = "-5s"', unique(), "duration"),
    ("rate = inf\nrequests = 3", unique(), "rate"),
    (LOAD + "\ntemperature = inf", unique(), "temperature"),
    (LOAD + "\ncv = nan", unique(), "cv"),
    (LOAD + "\ndp_routing = 99999999999", unique(), "dp_routing"),
    ("requests = 3", unique(), "load"),
    (LOAD + "\nratee = 1", unique(), "did you mean rate"),
])
def test_bad_workloads(call, tmp_path, load, stream, says):
    file = workload(tmp_path, load=load, stream=stream)
    code, out, err = call("plan", file)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b'name = "\xe9"', b"x=" + b"[" * 3000, b"name = 3"])
def test_files_that_are_no_workload(call, tmp_path, content):
    file = tmp_path / "x.toml"
    file.write_bytes(content)
    code, _, err = call("plan", file)
    assert code == 2
    assert "x.toml" in err


@pytest.mark.parametrize("line", [b"{", b'{"timestamp": -1}', b"[]", b"\xff\xff", b"[" * 5000,
                                  b'{"timestamp":1e300,"input_length":1,"output_length":1,"hash_ids":[1]}'])
def test_malformed_traces(call, tmp_path, line):
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(line + b"\n")
    code, _, err = call("plan", workload(tmp_path, stream=TRACE.format(p="trace.jsonl")))
    assert code == 2
    assert "trace.jsonl:1" in err


@pytest.mark.parametrize("args", [
    ("-n", "0"), ("-n", "-3"), ("-n", "99999999999999999999"), ("-c", "0"), ("-d", "0s"), ("-d", "5"), ("-d", "-1s"),
    ("-r", "0"), ("-r", "nan"), ("-r", "8/s", "-c", "2"), ("--seed", "-1"), ("--limit", "0"), ("--timeout", "-1s"),
    ("--dp-routing", "²"), ("--dp-routing", "9" * 30), ("--page-size", "0"), ("--device-tokens", "0"),
    ("--trace", "/"), ("--url", "http://u:p@h"), ("--url", "ftp://h"), ("--zork",),
    ("--url", "h", "--header", "foo"), ("--url", "h", "--header", "X: a\nEvil: b"),
    ("--url", "h", "--header", "Content-Length: 5"), ("--url", "h", "--api-key-file", "/"),
    ("--url", "h", "--ca-file", "/nope"),
])
def test_bad_options(call, tmp_path, args):
    code, out, err = call("plan", workload(tmp_path), *args)
    assert (code, out) == (2, "")
    assert err


@pytest.mark.parametrize("args", [
    ("--extra-body", "[]"), ("--extra-body", "[" * 5000), ("--extra-body", '{"stream": false}'), ("--tag", "x"),
    ("--slo", "ttft"), ("--nonce", ""), ("--nonce", "x" * 100), ("--nonce", "\udcff"), ("--model", "\udcff"),
    ("--metrics-interval", "0s"), ("--metrics-url", "foo bar"), ("--metrics-url", "server=http://h"),
    ("--tokenizer", "/nope"),
])
def test_bad_run_options(call, tmp_path, sim_url, args):
    code, out, err = call("run", workload(tmp_path), "--url", sim_url, "--results", tmp_path / "r", "-q", *args)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


@pytest.mark.parametrize("args", [("show",), ("show", "nope"), ("show", "/"), ("compare", "a", "b"), ("capture",)])
def test_runs_that_are_not_there(call, tmp_path, args):
    more = () if args == ("capture",) else ("--results", tmp_path / "none")
    code, out, err = call(*args, *more)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"schema_version": 999}', b"[" * 5000])
def test_torn_run_directories(call, tmp_path, content):
    run = tmp_path / "20260101T000000Z-x-abcd"
    run.mkdir()
    (run / "run.json").write_bytes(content)
    for args in (("show", run), ("compare", run, run)):
        code, out, err = call(*args)
        assert (code, out) == (3, "")
        assert "20260101T000000Z-x-abcd" in err
    assert call("list", "--results", tmp_path)[:2] == (0, f"no runs in {tmp_path}\n")


def test_run_directory_with_junk_values_and_parts_still_shows(call, tmp_path):
    run = tmp_path / "20260101T000000Z-x-abcd"
    (run / "requests").mkdir(parents=True)
    (run / "requests" / "part-00000.parquet").write_bytes(b"PAR1 torn")
    (run / "run.json").write_text('{"schema_version": 1, "status": 7, "warnings": 3, "load": [], "reconcile": [1],'
                                  '"measure_start_ns": "x", "slo": 5, "server": "s", "client": []}')
    for args in (("show", run), ("show", run, "--format", "json"), ("list", "--results", tmp_path)):
        code, _, err = call(*args)
        assert code == 0, err


@pytest.mark.parametrize("name", ["../../etc/passwd", "温🍵", "x" * 400, ".", "a\\u0000b"])
def test_strange_names_stay_inside_the_results_folder(tmp_path, name):
    from hicache_bench.store.rundir import RunDir

    made = RunDir.create(tmp_path, name).path
    assert made.parent == tmp_path
    assert len(made.name) < 120


def test_module_and_entry_point_agree():
    done = hcb("--version")
    assert done.code == 0
    assert done.out.startswith("hicache-bench")
