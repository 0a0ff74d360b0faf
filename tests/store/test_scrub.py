import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.store.scrub import MASK, is_secret, scrub


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
