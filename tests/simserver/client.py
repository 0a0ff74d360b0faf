import json
from contextlib import asynccontextmanager

import aiohttp

from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.server import start

FAST = {"costs": "free"}
SMALL = {**FAST, "context_length": 8192, "page_size": 16, "max_total_tokens": 2048, "hicache_ratio": 4.0}


class Client:
    def __init__(self, session, running):
        self.session, self.url, self.engine = session, running.url, running.engine

    async def call(self, method, path, body=None, key=None):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with self.session.request(method, self.url + path, json=body, headers=headers) as response:
            assert response.headers["Server"] == "hicache-bench simulated"
            data = await response.read()
            kind = response.headers.get("Content-Type", "")
            return response.status, json.loads(data) if kind == "application/json" else data.decode()

    async def post(self, path, body):
        return await self.call("POST", path, body)

    async def generate(self, n, name=1, output=8, **more):
        ids = [name * 10_000 + i for i in range(n)]
        status, answer = await self.post("/generate", {
            "input_ids": ids, "sampling_params": {"max_new_tokens": output, "ignore_eos": True}, **more})
        assert status == 200, answer
        return answer

    async def events(self, path, body):
        status, text = await self.post(path, {**body, "stream": True})
        assert status == 200, text
        *lines, done, end = text.split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        return [json.loads(line.removeprefix("data: ")) for line in lines]


@asynccontextmanager
async def simulated(**settings):
    async with await start(SimConfig(**{**SMALL, **settings})) as running, aiohttp.ClientSession() as session:
        yield Client(session, running)
