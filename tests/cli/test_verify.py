"""`verify` and `calibrate` from the command line, on the built-in simulated server and its faults."""

from __future__ import annotations

import json

import pytest

from hicache_bench.cli.main import cli
from hicache_bench.simserver.config import SimConfig, profile_settings
from hicache_bench.simserver.process import spawn_server
from tests.cli.invoke import hcb, only_run


def test_the_tiers_of_the_built_in_server_pass(tmp_path):
    done = hcb("verify", "l1", "l3", "--results", tmp_path, "--junit", tmp_path / "j.xml",
               HICACHE_TEST_MODEL="deepseek-v4")
    assert done.code == 0, done.out + done.err
    assert "PASS  l3" in done.out
    assert "cached=2048 device=0 host=0 storage=2048" in done.out
    assert "components FULL + SWA + C128" in done.out
    assert "2 passed  [SIMULATED server]" in done.out
    assert (tmp_path / "j.xml").exists()
    verdict = json.loads((only_run(tmp_path) / "verdict.json").read_text())
    assert (verdict["exit_code"], verdict["profile"]["name"]) == (0, "deepseek-v4")


@pytest.fixture
def faulty():
    def start(*faults):
        settings = {**profile_settings("glm5.2-dsa"), "prefill_tokens_per_s": 0, "decode_ms": 0}
        servers.append(spawn_server(SimConfig(**settings, faults=faults)))
        return servers[-1].url

    servers = []
    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize(("fault", "case", "code", "word"), [
    ("lost-storage", "l3", 1, "storage is 0, expected 3072"),
    ("lost-details", "l1", 4, "not reported by this server"),
    pytest.param("wrong-text", "l2", 1, "the output differs from the resident one at token", marks=pytest.mark.slow),
    pytest.param("wrong-text", "l3", 1, "the output differs from the resident one at token", marks=pytest.mark.slow),
    pytest.param("salts-leak", "salt", 1, "a salted request was served from pages without a salt",
                 marks=pytest.mark.slow),
    pytest.param("clear-without-effect", "clear", 1, "clear the backend by hand", marks=pytest.mark.slow),
    pytest.param("http-500", "l1", 3, "failed", marks=pytest.mark.slow),
])
def test_a_fault_is_named(tmp_path, faulty, fault, case, code, word):
    done = hcb("verify", case, "--url", faulty(fault), "--profile", "glm5.2-dsa", "--results", tmp_path)
    assert done.code == code, done.out + done.err
    assert word in done.out


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("profile", ["qwen3.6-hybrid-mamba", "deepseek-v4", "glm5.2-dsa", "kimi-k3-kda"])
def test_every_seed_profile_passes_all_that_applies(tmp_path, profile):
    done = hcb("verify", "--profile", profile, "--results", tmp_path, "--format", "json")
    assert done.code == 0, done.err
    verdicts = {case["name"]: case["verdict"] for case in json.loads(done.out)["cases"]}
    assert {verdicts[name] for name in ("l1", "l2", "l3", "clear", "salt", "fidelity", "concurrent")} == {"pass"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_calibrate_writes_a_profile_that_verify_takes(tmp_path, faulty):
    url, file = faulty(), tmp_path / "mine.toml"
    done = hcb("calibrate", "--url", url, "--write", file, "--results", tmp_path)
    assert done.code == 0, done.out + done.err
    assert "floor((L-1) / 128) * 128" in done.out
    assert "first_evicting_peers  20 " in done.out
    assert hcb("verify", "l1", "l2", "--url", url, "--profile", file, "--results", tmp_path).code == 0


@pytest.mark.parametrize(("words", "text"), [
    (("verify", "l9"), "no case 'l9'; shipped are l1, l2"),
    (("verify", "none.toml"), "no such file"),
    (("verify", "l1", "--profile", "gpt"), "no profile 'gpt'"),
    (("verify", "l1", "--url", "ftp://x"), "ftp://x"),
    (("calibrate", "--prompt-tokens", "many"), "'many'"),
])
def test_usage_errors_leave_no_run(tmp_path, call, words, text):
    code, out, err = call(*words, "--results", tmp_path / "r")
    assert code == 2, out + err
    assert text in err
    assert not (tmp_path / "r").exists()


def test_an_absent_server_is_no_measurement(tmp_path, call):
    code, _, err = call("verify", "l1", "--url", "http://127.0.0.1:9", "--results", tmp_path / "r")
    assert code == 3
    assert "127.0.0.1:9" in err


def test_both_verbs_are_listed():
    assert {"verify", "calibrate"} <= set(cli.list_commands(None))


def test_arguments_that_are_no_utf8_do_not_spoil_the_run(tmp_path):
    junit = tmp_path / "j\udcff"
    done = hcb("verify", "l1", "--profile", "glm5.2-dsa", "--results", tmp_path / "r", "--junit", junit, "--quiet")
    assert done.code == 0, done.err
    assert junit.is_file()
    assert "j?" in " ".join(json.loads((only_run(tmp_path / "r") / "run.json").read_text())["argv"])
