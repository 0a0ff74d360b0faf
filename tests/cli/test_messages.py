"""What a newcomer reads: errors that come before anything is started, and say what to do."""

from __future__ import annotations

import json
import signal
import time

import pytest

from hicache_bench.cli.run import stopping
from hicache_bench.load.turns import Counts
from hicache_bench.simserver import embedded
from hicache_bench.store.reader import read_attempts
from tests.cli.invoke import finish, hcb, only_run, scripted, start, strict_json, workload
from tests.cli.test_run import reduced
from tests.scripted import chunk, event, head, json_answer

TRACE = '[[stream]]\nname = "t"\nkind = "trace"\nformat = "mooncake"\npath = "none.jsonl"\n'
DATA = '[[stream]]\nname = "d"\nkind = "dataset"\npath = "none.jsonl"\n'
RECORDED = 'arrival = "trace"\nrequests = 5'


@pytest.mark.parametrize(("args", "stream", "says"), [
    (("--trace", "none.jsonl"), TRACE, "docs/workloads.md#traces"),
    ((), DATA, "none.jsonl: cannot read it"),
    (("--header", "foo"), "", "Name: value"),
    (("--api-key-file", "/nope"), "", "cannot read the key file"),
    (("--slo", "ttft"), "", "ttft<200ms"),
    (("--ca-file", "/nope"), "", "CA file"),
    (("--tokenizer", "/nope"), "", "tokenizer file"),
    (("--metrics-url", "a=h:1", "--metrics-url", "a=h:2"), "", "names two pages"),
    (("--metrics-url", "foo bar"), "", "foo bar"),
])
def test_found_before_the_built_in_server_is_started(call, monkeypatch, tmp_path, args, stream, says):
    monkeypatch.setattr(embedded, "spawn_server", lambda config: pytest.fail("the server was started"))
    file = workload(tmp_path, stream=stream) if stream else workload(tmp_path)
    code, out, err = call("run", file, "--results", tmp_path / "r", *args)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_a_rate_over_recorded_times_must_say_what_it_means(call, tmp_path):
    (tmp_path / "none.jsonl").write_text('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n')
    file = workload(tmp_path, load=RECORDED, stream=TRACE)
    code, _, err = call("plan", file, "-r", "2/s", "-n", "1")
    assert code == 2
    assert "recorded times" in err
    assert "--arrival" in err
    for args in ((), ("-r", "2/s", "-n", "1", "--arrival", "poisson"), ("-c", "2", "-n", "1")):
        assert call("plan", file, *args)[0] == 0


@pytest.mark.parametrize(("args", "says"), [
    (("rnu",), "did you mean run?"), (("show", "--fromat", "json"), "--format"), (("zork",), "verbs: run plan"),
    (("serve", "--max-total-tokens", "1e20"), "allowed: 1 to 68,719,476,736"),
    (("serve", "--max-total-tokens", "1" + "0" * 20), "allowed: 1 to 68,719,476,736"),
    (("serve", "--page-size", "0"), "allowed: 1 to"), (("serve", "--hicache-ratio", "1e30"), "<=10000"),
    (("serve", "--decode-ms", "nan"), "nan"),
])
def test_suggestions_and_ranges(call, args, says):
    code, out, err = call(*args)
    assert (code, out) == (2, "")
    assert says in err


def test_unit_is_suggested(call, tmp_path):
    for option, given, meant in (("-d", "60", "60s"), ("-r", "8s", "8/s"), ("-n", "5kb", "5k")):
        code, _, err = call("plan", workload(tmp_path), option, given)
        assert code == 2
        assert f"did you mean {meant}?" in err


@pytest.mark.parametrize(("url", "says"), [
    ("http://127.0.0.1:1", "connection refused at http://127.0.0.1:1; is SGLang running there?"),
    ("http://no-such-host.invalid", "host name no-such-host.invalid not found"),
])
def test_unreachable_server(call, tmp_path, url, says):
    for args in (("capture",), ("plan", workload(tmp_path))):
        code, out, err = call(*args, "--url", url)
        assert (code, out) == (3, "")
        assert says in err
        assert "ssl:" not in err


def test_plan_says_which_page_size_it_assumed(call, tmp_path):
    file = workload(tmp_path)
    assert "page 1 assumed, SGLang's default on CUDA (give --page-size or --url)" in call("plan", file)[1]
    assert "assumed" not in call("plan", file, "--page-size", "16")[1]
    for args, said in (((), (1, True)), (("--page-size", "16"), (16, False))):
        made = strict_json(call("plan", file, "--format", "json", *args)[1])
        assert (made["page_size"], made["page_size_assumed"]) == said


# --------------------------------------------------------------------------- Ctrl-C


class FakeInterrupt:
    def __init__(self, driver, requested):
        self.driver, self.requested = driver, requested


class FakeDriver:
    counts = Counts(in_flight=3, active=1)


def test_each_interrupt_says_what_it_does():
    assert stopping(FakeInterrupt(FakeDriver, False)) == "draining 1 in-flight session, Ctrl-C again to stop at once"
    assert stopping(FakeInterrupt(FakeDriver, True)) == "stopping at once: cancelling 3 requests in flight"
    assert stopping(FakeInterrupt(None, False)) == "stopping"


def interrupted(tmp_path, script, ready):
    """A run that gets one Ctrl-C as soon as `ready(server)` is true."""
    with scripted(script) as server:
        process = start("run", workload(tmp_path), "--url", server.url, "--results", tmp_path / "r")
        deadline = time.monotonic() + 30
        while not ready(server) and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        done = finish(process)
    assert (done.code, done.out) == (130, "")
    return done


def test_interrupt_before_there_is_a_run_directory(tmp_path):
    done = interrupted(tmp_path, lambda seen: [20.0], lambda server: server.seen)
    assert "nothing was measured and there is no run directory" in done.err
    assert "sealed" not in done.err
    assert not (tmp_path / "r").exists()


def test_interrupt_during_the_reset_names_the_sealed_run(tmp_path):
    done = interrupted(tmp_path, lambda seen: reduced(seen, generate=lambda _: [20.0]),
                       lambda server: any(seen.path == "/generate" for seen in server.seen))
    run = only_run(tmp_path / "r")
    assert f"interrupted before the measured phase; the run is sealed as aborted: {run}" in done.err
    assert json.loads((run / "run.json").read_text())["status"] == "aborted"


# --------------------------------------------------------------------------- secrets in a server's words

API, CUSTOM = "sk-test-echo-7f3a9", "custom-s3cret-81"


def echo(seen, status=401):
    """An answer that repeats the headers of its request, as some gateways do."""
    return json_answer({"error": {"message": f"no access for {seen.headers.get('authorization')} "
                                             f"({seen.headers.get('x-api-key')})"}}, status)


def in_pieces(seen):
    """The same, cut in the middle of the key."""
    body = f"denied: {seen.headers['authorization']}".encode()
    cut = len(body) - 5
    return [head(403, "text/plain"), chunk(body[:cut]), 0.05, chunk(body[cut:]), chunk(b"")]


def in_a_stream(seen):
    """An error event inside an answer of status 200."""
    return [head(), chunk(event({"error": {"message": f"key {API} and {CUSTOM} expired"}})), b"0\r\n\r\n"]


@pytest.mark.parametrize("answer", [echo, in_pieces, in_a_stream], ids=lambda f: f.__name__)
def test_keys_that_a_server_repeats_reach_neither_rows_nor_terminal(call, tmp_path, answer):
    results = tmp_path / "r"
    with scripted(lambda seen: reduced(seen, generate=answer)) as server:
        done = hcb("run", workload(tmp_path, more="[reset]\ndevice_host = false\nstorage = false"), "--url", server.url,
                   "--results", results, "--header", f"X-Api-Key: {CUSTOM}", HICACHE_BENCH_API_KEY=API)
        assert any(API in seen.headers.get("authorization", "") for seen in server.seen)
    assert done.code == 3
    run = only_run(results)
    errors = read_attempts(run, phase="measure").column("error").to_pylist()
    assert all("***" in error for error in errors)
    written = b"".join(path.read_bytes() for path in results.rglob("*") if path.is_file())
    shown = call("show", run)
    for secret in (API, CUSTOM):
        assert secret.encode() not in written
        assert secret not in done.out + done.err + shown[1]


def test_keys_that_an_administrative_route_repeats_are_hidden(call, monkeypatch):
    monkeypatch.setenv("HICACHE_BENCH_API_KEY", API)
    with scripted(echo) as server:
        code, _, err = call("capture", "--url", server.url, "--header", f"X-Api-Key: {CUSTOM}")
    assert code == 3
    assert "no access for" in err
    assert API not in err
    assert CUSTOM not in err


def test_a_port_that_is_no_http(call):
    with scripted(lambda seen: [b"SSH-2.0-OpenSSH_9\r\n\r\n", "close"]) as server:
        code, _, err = call("capture", "--url", server.url)
    assert code == 3
    assert "does not speak HTTP" in err
