"""What Locust's command line and page may say, and what is refused with its option's name. No Locust here."""

from __future__ import annotations

import pytest

from hicache_bench.errors import UsageError
from hicache_bench.locust_user.settings import read_settings
from tests.locust.processes import CLOSED

NOTHING = dict.fromkeys(("slo", "api", "requests", "rate", "limit", "seed", "trace", "model", "nonce", "admin_url",
                         "api_key_file", "admin_key_file", "ca_file", "tokenizer", "dp_routing", "duration_ns"))


@pytest.fixture
def given(tmp_path):
    (tmp_path / "w.toml").write_text(CLOSED)
    return {**NOTHING, "workload": str(tmp_path / "w.toml"), "host": "http://127.0.0.1:30000", "results": "results",
            "header": [], "metrics_url": [], "no_reset": False, "no_prime": False, "insecure": False, "closed": True,
            "users": 7, "argv": ["-f", "x.py"]}


def test_users_are_the_concurrency_of_a_closed_loop(given):
    spec, _, target, options = read_settings(given)
    assert spec.load.concurrency == 7
    assert spec.load.requests == 40
    assert target.url == "http://127.0.0.1:30000"
    assert options.tags == {"engine": "locust"}


def test_a_rate_makes_the_loop_open_and_users_do_not_matter(given):
    spec = read_settings({**given, "rate": "8/s", "limit": "1k", "duration_ns": 10**9, "requests": None})[0]
    assert (spec.load.concurrency, spec.load.rate, spec.load.limit, spec.load.duration) == (None, 8, 1000, 10**9)


@pytest.mark.parametrize(("option", "value"), [
    ("rate", "fast"), ("requests", "many"), ("limit", "0"), ("seed", "x"), ("seed", "-1"), ("api", "telepathy"),
    ("nonce", "a b"), ("slo", "ttft<soon"), ("dp_routing", "left"), ("host", "ftp://x"), ("host", None),
    ("workload", None), ("workload", "nowhere.toml"), ("trace", "nowhere.jsonl"),
])
def test_what_is_wrong_is_a_usage_error(given, option, value):
    with pytest.raises(UsageError):
        read_settings({**given, option: value})
