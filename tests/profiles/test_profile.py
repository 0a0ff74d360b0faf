"""Profiles: the shipped ones load and agree with SGLang's arithmetic; files are checked and read back equal."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.errors import UsageError
from hicache_bench.profiles.profile import (
    Figure,
    Figures,
    Profile,
    Sizes,
    dump_profile,
    load_profile,
    parse_profile,
    shipped_profiles,
)
from hicache_bench.workload.decode import read_toml

SEEDS = ("qwen3.6-hybrid-mamba", "deepseek-v4", "glm5.2-dsa", "kimi-k3-kda")


def test_the_four_seed_profiles_are_shipped():
    assert set(SEEDS) <= set(shipped_profiles())


@pytest.mark.parametrize("name", SEEDS)
def test_figures_agree_with_the_rules(name):
    profile = load_profile(name)
    figures, server = profile.figures, profile.server
    assert profile.name == name
    assert figures.align_tokens is not None
    assert figures.match_tokens.value == (profile.prompt_tokens - 1) // figures.align_tokens.value * (
        figures.align_tokens.value)
    assert figures.first_evicting_peers is not None
    assert figures.stay_peers.value < figures.first_evicting_peers.value <= figures.evict_peers.value
    assert figures.commit_lag is not None
    assert figures.prime_requests.value == 2 + figures.commit_lag.value
    assert server.components[0] == "FULL"


@pytest.mark.parametrize(("name", "parts"), [
    ("qwen3.6-hybrid-mamba", ("FULL", "MAMBA")), ("deepseek-v4", ("FULL", "SWA", "C128")),
    ("glm5.2-dsa", ("FULL",)), ("kimi-k3-kda", ("FULL", "MAMBA"))])
def test_components(name, parts):
    assert load_profile(name).server.components == parts


def test_a_full_pool_explains_the_threshold_with_25_resident_pages():
    profile = load_profile("glm5.2-dsa")
    held = profile.figures.resident_pages
    assert held is not None
    pool, need = profile.server.device_pages, held.value + 1
    first = next(n for n in range(1, 100) if pool - held.value * n < need)
    assert profile.figures.first_evicting_peers is not None
    assert first == profile.figures.first_evicting_peers.value == 20


def test_an_unknown_name_says_what_there_is():
    with pytest.raises(UsageError, match=r"'qwen'.*glm5\.2-dsa"):
        load_profile("qwen")


def tables(**more):
    made = msgspec.toml.decode(shipped_profiles()["glm5.2-dsa"].read_bytes())
    return {**made, **more}


def test_an_unknown_key_names_file_key_and_allowed():
    with pytest.raises(UsageError, match=r"my\.toml: unknown key figures\.evict_peer .*did you mean evict_peers"):
        parse_profile(tables(figures={**tables()["figures"], "evict_peer": {"value": 1, "how": "measured"}}), "my.toml")


@pytest.mark.parametrize(("change", "text"), [
    ({"prompt_tokens": 3072}, "more than figures.match_tokens"),
    ({"prompt_tokens": "long"}, "prompt_tokens"),
    ({"server": {"page_size": 0}}, "page_size = 0"),
    ({"output_tokens": 0}, "output_tokens = 0"),
])
def test_bad_values_are_usage_errors(change, text):
    with pytest.raises(UsageError, match=text):
        parse_profile(tables(**change), "my.toml")


def test_stay_must_be_below_evict():
    figures = {**tables()["figures"], "stay_peers": {"value": 22, "how": "measured"}}
    with pytest.raises(UsageError, match="more than stay_peers"):
        parse_profile(tables(figures=figures), "my.toml")


def test_a_missing_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        load_profile(tmp_path / "none.toml")


figure = st.builds(Figure, value=st.integers(0, 10**6), how=st.sampled_from(["measured", "computed"]),
                   date=st.text(max_size=12), server=st.text(max_size=20), note=st.text(max_size=20))
count = st.integers(1, 10**6)


@given(name=st.text(min_size=1, max_size=20), match=figure, one=figure, lag=st.none() | figure, size=count)
def test_written_profiles_read_back_equal(tmp_path_factory, name, match, one, lag, size):
    zero, two = Figure(0, "computed"), Figure(1, "computed")
    prime = msgspec.structs.replace(one, value=one.value + 1)
    profile = Profile(name, match.value + 2, Sizes(size, size * 4, 0.5, swa_window=size, swa_full_tokens_ratio=0.25),
                      Figures(match, prime, zero, two, lag))
    path = tmp_path_factory.mktemp("p") / "x.toml"
    path.write_text(dump_profile(profile, "two\nlines"), encoding="utf-8")
    assert load_profile(path) == profile
    assert read_toml(path)["name"] == name
