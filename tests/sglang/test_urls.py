import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.errors import UsageError
from hicache_bench.sglang.urls import join, normalize_base


@pytest.mark.parametrize(("text", "port", "expected"), [
    ("::1", 8000, "http://[::1]:8000"),
    ("::1", None, "http://[::1]"),
    ("[::1]", None, "http://[::1]"),
    ("[::1]:8000", None, "http://[::1]:8000"),
    ("http://[::1]:8000/", None, "http://[::1]:8000"),
    ("fe80::1", None, "http://[fe80::1]"),
    (" http://h:1/ ", None, "http://h:1"),
    ("http://h:1/v1/", None, "http://h:1"),
    ("http://h:1/v1", None, "http://h:1"),
    ("http://h:1/prefix", None, "http://h:1/prefix"),
    ("http://h:1/prefix/v1//", None, "http://h:1/prefix"),
    ("http://h:1//a//b/", None, "http://h:1/a/b"),
    ("http://h:1/av1", None, "http://h:1/av1"),
    ("h:1", None, "http://h:1"),
    ("h", 30000, "http://h:30000"),
    ("h:1", 30000, "http://h:1"),
    ("https://h", None, "https://h"),
    ("HTTPS://Host.example", None, "https://Host.example"),
    ("\t127.0.0.1:30000\n", None, "http://127.0.0.1:30000"),
])
def test_table(text, port, expected):
    """vllm #28679, sglang #28598"""
    assert normalize_base(text, port) == expected
    assert normalize_base(expected) == expected


@pytest.mark.parametrize("text", [
    "", "  ", "ftp://h", "unix:///x", "http://", "http://:80", "h:0", "h:65536", "h:x", "h:", "http://h?a=1",
    "http://h#a", "http://a b", "[::1", "[zz]", "::1:8000", "1:2:3:4:5:6:7:8:8000", "http://::1:8000", "h\\x",
])
def test_refused(text):
    with pytest.raises(UsageError, match=r"address"):
        normalize_base(text)


def test_ambiguous_ipv6_names_both_readings():
    with pytest.raises(UsageError, match=r"\[::1\]:8000 or \[::1:8000\]"):
        normalize_base("http://::1:8000")


@pytest.mark.parametrize("text", ["http://user:hunter2@h:1", "user:hunter2@h", "ftp://u:hunter2@h"])
def test_password_is_refused_and_not_shown(text):
    with pytest.raises(UsageError) as caught:
        normalize_base(text)
    assert "hunter2" not in str(caught.value)
    assert "password" in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_a_url_or_a_usage_error(text):
    try:
        url = normalize_base(text)
    except UsageError:
        return
    assert url.startswith(("http://", "https://"))
    assert not url.endswith("/")
    assert normalize_base(url) == url


@pytest.mark.parametrize("base", ["http://h:1/p", "http://h:1/p/"])
@pytest.mark.parametrize("path", ["generate", "/generate"])
def test_join_has_one_slash(base, path):
    assert join(base, path) == "http://h:1/p/generate"
