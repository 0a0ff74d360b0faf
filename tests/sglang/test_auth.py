import pytest

from hicache_bench.errors import UsageError
from hicache_bench.sglang.auth import (
    ADMIN_KEY_ENV,
    API_KEY_ENV,
    Keys,
    headers_for,
    load_keys,
    parse_header,
    parse_headers,
    request_headers,
)


@pytest.mark.parametrize(("environ", "expected"), [
    ({}, {}),
    ({API_KEY_ENV: ""}, {}),
    ({API_KEY_ENV: " \n"}, {}),
    ({API_KEY_ENV: "k1"}, {"Authorization": "Bearer k1"}),
    ({API_KEY_ENV: "k1\n"}, {"Authorization": "Bearer k1"}),
    ({"OPENAI_API_KEY": "k1"}, {}),
])
def test_no_key_no_header(environ, expected):
    """vllm #33412"""
    assert headers_for(load_keys(environ), admin=False) == expected


def test_admin_routes_take_the_admin_key_else_the_api_key():
    both = load_keys({API_KEY_ENV: "k1", ADMIN_KEY_ENV: "k2"})
    assert headers_for(both, admin=True) == {"Authorization": "Bearer k2"}
    assert headers_for(both, admin=False) == {"Authorization": "Bearer k1"}
    assert headers_for(Keys(api="k1"), admin=True) == {"Authorization": "Bearer k1"}
    assert headers_for(Keys(admin="k2"), admin=False) == {}


def test_key_files_win_over_the_environment(tmp_path):
    file = tmp_path / "key"
    file.write_text("  from-file\n")
    assert load_keys({API_KEY_ENV: "k1"}, api_key_file=file).api == "from-file"
    file.write_text("\n")
    assert load_keys({API_KEY_ENV: "k1"}, api_key_file=file).api is None
    with pytest.raises(UsageError, match="missing"):
        load_keys({}, admin_key_file=tmp_path / "missing")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        load_keys({}, admin_key_file=file)


def test_keys_show_nowhere():
    keys = load_keys({API_KEY_ENV: "k1secret", ADMIN_KEY_ENV: "k2secret"})
    assert "secret" not in f"{keys} {keys!r}"
    for bad in ("k1secret\nx", "k1secret\x00", "k1secreté"):
        with pytest.raises(UsageError) as caught:
            load_keys({API_KEY_ENV: bad})
        assert "k1secret" not in str(caught.value)


def test_custom_header_given_twice_is_sent_twice():
    headers = request_headers(Keys(api="k1"), parse_headers(["X-Tag: a", "X-Tag:b"]))
    assert headers.getall("X-Tag") == ["a", "b"]
    assert headers["Authorization"] == "Bearer k1"


def test_custom_authorization_replaces_ours():
    headers = request_headers(Keys(api="k1", admin="k2"), parse_headers(["authorization: Basic x"]), admin=True)
    assert headers.getall("Authorization") == ["Basic x"]


@pytest.mark.parametrize(("text", "expected"), [
    ("A: b", ("A", "b")), ("A:b:c", ("A", "b:c")), (" X-Y :  v ", ("X-Y", "v")), ("A:", ("A", "")),
])
def test_header_forms(text, expected):
    assert parse_header(text) == expected


@pytest.mark.parametrize("text", ["", "no colon", ": v", "a b: v", "A: b\r\nC: d", "Ä: b", "A: é"])
def test_header_refused(text):
    with pytest.raises(UsageError):
        parse_header(text)
