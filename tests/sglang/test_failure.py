"""Calls that get no answer: what is said about each kind."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import subprocess

import aiohttp
import pytest

from hicache_bench.errors import ServerError
from hicache_bench.sglang.failure import explain
from hicache_bench.sglang.httpcall import call
from tests.scripted import ScriptedServer


async def said(url, timeout_s=5.0, **session_options):
    async with aiohttp.ClientSession(**session_options) as session:
        with pytest.raises(ServerError) as error:
            await call(session, "GET", url, headers={}, timeout_s=timeout_s)
    assert error.value.status is None
    assert "ssl:default" not in str(error.value)
    return str(error.value)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_refused():
    port = free_port()
    assert await said(f"http://127.0.0.1:{port}/x") == (
        f"connection refused at http://127.0.0.1:{port}; is SGLang running there?")
    assert "connection refused" in await said(f"http://localhost:{port}/x")


async def test_name_not_found():
    text = await said("http://no-such-host.invalid:30000/x")
    assert text.startswith("host name no-such-host.invalid not found")


@pytest.mark.parametrize(("steps", "says"), [
    ([b"SSH-2.0-OpenSSH\r\n\r\n", "close"], "does not speak HTTP"),
    (["close"], "closed the connection without an answer"),
    ([b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nabc", "close"], "in the middle of the answer"),
    (["reset"], "was reset"),
    ([9.0], "within 0.3 s"),
])
async def test_answers_that_are_none(steps, says):
    async with ScriptedServer(lambda seen: steps) as server:
        assert says in await said(f"{server.url}/x", 0.3)


@pytest.fixture
def own_certificate(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    try:
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
                        "/CN=127.0.0.1", "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs openssl")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    return tls


async def test_https_to_a_plain_server():
    async def plain(reader, writer):
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        assert "write http://" in await said(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/x")


async def test_an_unknown_certificate(own_certificate):
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0, ssl=own_certificate)
    async with server:
        text = await said(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/x")
    assert "certificate" in text
    assert "--ca-file" in text


@pytest.mark.parametrize(("error", "says"), [
    (OSError(errno.ENETUNREACH, "x"), "no network route to http://h:1"),
    (OSError(errno.EMFILE, "x"), "ulimit -n"),
    (OSError(errno.ETIMEDOUT, "x"), "in time"),
    (OSError(f"Multiple exceptions: [Errno {errno.ECONNREFUSED}] a, [Errno {errno.ECONNREFUSED}] b"), "refused"),
    (aiohttp.ConnectionTimeoutError(), "in time"),
    (asyncio.TimeoutError(), "within 3 s"),
    (ValueError(), "no answer from http://h:1/p: ValueError"),
    (OSError(9999, "odd"), "no answer from http://h:1/p: [Errno 9999] odd"),
])
def test_words_of_each_kind(error, says):
    assert says in explain(error, "http://h:1/p", 3.0)
