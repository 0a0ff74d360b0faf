"""Which transport a target is measured with."""

from __future__ import annotations

import pytest

from hicache_bench.load.aio import AiohttpTransport
from hicache_bench.load.fast import FastTransport
from hicache_bench.sglang.auth import Keys
from hicache_bench.target import DiscreetTransport, Target

URL = "http://127.0.0.1:30000"


@pytest.mark.parametrize(("target", "name", "kind"), [
    (Target(URL), "fast", FastTransport),
    (Target(URL, careful=True), "aiohttp", AiohttpTransport),
    (Target(URL, proxies_from_env=True), "aiohttp", AiohttpTransport),
    (Target("http://user@127.0.0.1:30000"), "aiohttp", AiohttpTransport),
    (Target("https://127.0.0.1:30000", insecure=True), "fast", FastTransport),
    (Target(URL, keys=Keys("secret", None)), "fast", DiscreetTransport),
])
def test_the_fast_transport_wherever_it_can_be_used(target, name, kind):
    assert target.transport_name == name
    assert type(target.transport(4)) is kind
