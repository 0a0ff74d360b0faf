"""What is hidden, and what is not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.scrub import (
    MASK,
    byte_forms,
    header_secrets,
    is_secret,
    mask_bytes,
    scrub,
    scrub_text,
    secret_values,
    well_formed,
)


@pytest.mark.parametrize(
    "key",
    ["api_key", "admin_api_key", "apiKey", "--api-key", "--admin-key", "X-Api-Key", "Authorization",
     "ssl_keyfile_password", "PASSWORD", "hf_token", "access_token", "token", "client_secret", "Cookie",
     "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"],
)  # fmt: skip
def test_secret(key):
    assert is_secret(key)


@pytest.mark.parametrize(
    "key",
    ["cached_tokens", "max_total_tokens", "eos_token", "tokenizer_path", "api_key_file", "key", "token_source",
     "per_token", "skip_tokenizer_init", "routing_key_policy", "keepalive"],
)  # fmt: skip
def test_not_secret(key):
    assert not is_secret(key)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ({"api_key": "k1", "n": 3}, {"api_key": MASK, "n": 3}),
        ({"api_key": None, "token": 5, "password": ""}, {"api_key": None, "token": 5, "password": ""}),
        ({"a": [{"headers": {"Authorization": "Bearer k1"}}]}, {"a": [{"headers": {"Authorization": MASK}}]}),
        (["run", "--api-key", "k1", "-c", "8"], ["run", "--api-key", MASK, "-c", "8"]),
        (["--api-key=k1", "--url=http://h"], [f"--api-key={MASK}", "--url=http://h"]),
        (["-H", "Authorization: Bearer k1"], ["-H", f"Authorization: {MASK}"]),
        (["-H", "x-api-key:k1"], ["-H", f"x-api-key: {MASK}"]),
        ("http://user:k1@host:1/p", f"http://{MASK}@host:1/p"),
        ("http://host/p?token=k1&n=2", f"http://host/p?token={MASK}&n=2"),
        ("sent Bearer k1 to it", f"sent Bearer {MASK} to it"),
        ('{"access_token": "k1", "n": 1}', '{"access_token":"***","n":1}'),
        ("http://host:30000/v1", "http://host:30000/v1"),
        ("rate: 8/s", "rate: 8/s"),
        (("a", 1.5, True), ["a", 1.5, True]),
    ],
)
def test_scrub(raw, clean):
    assert scrub(raw) == clean


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=12,
)


@given(_JSON)
def test_any_data_is_scrubbed_twice_to_the_same(data):
    once = scrub(data)
    assert scrub(once) == once


@given(st.sampled_from(["api_key", "Authorization", "--api-key"]), st.text("abcdef0123456789", min_size=12))
def test_the_secret_is_gone(name, secret):
    assert secret not in repr(scrub({"x": [{name: secret}, f"{name}={secret}", f"{name}: {secret}"], name: [secret]}))


@pytest.mark.parametrize("value", [
    {"api_key": "S3CRET"}, {"ssl_keyfile_password": "S3CRET"}, {"a": [{"admin_api_key": ["S3CRET"]}]},
    {"cmd": "--x 1 --api-key S3CRET --y"}, {"cmd": "--admin-api-key=S3CRET"}, {"cmd": "--api-key 'S3CRET a'"},
    {"hicache_storage_backend_extra_config": '{"access_key": "S3CRET", "n": 1}'},
    {"cmd": """--extra '{"secret_key": "S3CRET"}' --port 1"""},
    {"cmd": r'--extra {\"secret_key\": \"S3CRET\"}'},
    {"api_key": "S3CRET", "cmd": "run S3CRET"},
])
def test_no_secret_is_left_in_what_a_server_says_about_itself(value):
    assert "S3CRET" not in json.dumps(scrub(value, secret_values(value)))


def test_known_values_are_hidden_and_the_rest_is_left_alone():
    value = {"a": 1, "api_key": None, "max_tokens": 5, "s": "--port 1 --tokenizer x", "l": [True, "tok"]}
    assert scrub(value, secret_values(value)) == value
    assert scrub({"s": "a known1 b"}, ["known1"]) == {"s": f"a {MASK} b"}
    assert scrub({"s": "k in text", "t": "k"}, ["k"]) == {"s": "k in text", "t": MASK}


@pytest.mark.parametrize("text", [
    "401: you sent Authorization: Bearer S3CRET", "headers {'authorization': 'Bearer S3CRET', 'n': 1}",
    'got {"authorization": "Bearer S3CRET', "x-api-key=S3CRET refused", "[('authorization', 'Basic S3CRET')]",
    "Bearer token-S3CRET is unknown", "http://u:S3CRET@h/x", "started with --admin-api-key S3CRET --port 1",
])
def test_no_secret_is_left_in_a_message(text):
    assert "S3CRET" not in scrub_text(text)
    assert "S3CRET" not in scrub_text(f"wrong key S3CRET and {text}", ["S3CRET"])


@pytest.mark.parametrize("text", [
    "a bearer token is missing", "use Basic authentication.", "max_total_tokens=5 of --max-total-tokens 5",
    "the prompt has 5 tokens: too long", "--api-key --port 1",
])
def test_a_message_without_a_secret_stays(text):
    assert scrub_text(text) == text


def test_bytes_are_masked_as_they_stand_and_as_json():
    assert mask_bytes(b'{"m": "key a\\"bc/1 and a"}', byte_forms(['a"bc/1', "a"])) == b'{"m": "key *** and a"}'
    assert mask_bytes(b"abc", byte_forms(["abc"])) == b"abc"


def test_header_secrets_are_the_values_alone():
    lines = [("Authorization", "Bearer k1"), ("X-Api-Key", "k 2"), ("X-Other", "v"), ("Cookie", "c=1")]
    assert header_secrets(lines) == ("k1", "k 2", "c=1")


def test_well_formed_text_can_be_written():
    assert well_formed("plain ü 茶") == "plain ü 茶"
    assert well_formed("a\udcff\ud800b") == "a??b"
