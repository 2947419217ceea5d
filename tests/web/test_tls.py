"""TLS: certificates from files, read again when they change."""

import asyncio
import os
import socket
import ssl
from contextlib import asynccontextmanager, suppress

import httpx2
import pytest
from structlog.testing import capture_logs

from alignup.align.errors import ListenError
from alignup.web import served_connection, sockets
from alignup.web.asgi_server import ConnectionLimits, ServerLimits, serve_app
from alignup.web.served_connection import has_hung_up
from alignup.web.sockets import ServerCertificate
from tests.agent.fake_backend import FakeBackend, app_of
from tests.certificates import EXPIRED, ca_file, install
from tests.deadlines import SECONDS, until

pytestmark = pytest.mark.anyio

TOKEN = {"Authorization": "Bearer secret"}


@asynccontextmanager
async def serve(certificate, agent=None, **limits):
    """Serve the API over TLS; yield the address."""
    stopping = asyncio.Event()
    app = app_of(agent or FakeBackend(), stopping=stopping, token=b"secret")
    with sockets.tcp_socket(0) as listener:
        timeouts = ServerLimits(**{"end": 1} | limits)
        async with serve_app(app, listener, stopping=stopping, limits=timeouts, tls=certificate.context):
            yield listener.getsockname()


def client_at(address):
    context = ssl.create_default_context(cafile=ca_file())
    return httpx2.AsyncClient(base_url=f"https://{address[0]}:{address[1]}", verify=context, timeout=SECONDS)


async def served_name(address):
    """The name in the certificate that the server presents."""
    reader, writer = await asyncio.open_connection(*address, ssl=ssl.create_default_context(cafile=ca_file()))
    subject = writer.get_extra_info("peercert")["subject"]
    writer.close()
    del reader
    return dict(pair for part in subject for pair in part)["commonName"]


async def test_requests_over_tls(tmp_path):
    certificate = ServerCertificate(*install("first", tmp_path))
    async with serve(certificate) as address, client_at(address) as client:
        assert address[0] == "127.0.0.1"  # by default
        assert (await client.get("/healthz")).text == "ok\n"
        assert (await client.get("/v1/pods")).status_code == 401
        assert (await client.get("/v1/pods", headers=TOKEN)).status_code == 200


async def test_a_renewed_certificate_is_used(tmp_path):
    files = install("first", tmp_path)
    with capture_logs() as logs:
        before, half, after = await names_of_renewed(files, tmp_path)

    assert (before, half, after) == ("first", "first", "second")
    assert [entry for entry in logs if "certificate" in entry["event"]] == [
        {
            "event": "new certificate unusable",
            "file": str(files[0]),
            "reason": "the key belongs to another certificate",
            "log_level": "warning",
        }
    ]


async def names_of_renewed(files, tmp_path):
    """The names in the certificate before, while and after it is replaced."""
    async with serve(ServerCertificate(*files)) as address:
        before = await served_name(address)
        install("second", tmp_path, with_key=False)
        half = await served_name(address)
        install("second", tmp_path)
        after = await served_name(address)
    return before, half, after


def test_an_expired_certificate_is_logged(tmp_path):
    """It is used until it is replaced: its clients say why they cannot connect."""
    with capture_logs() as logs:
        certificate = ServerCertificate(*install(EXPIRED, tmp_path))
        install("second", tmp_path)
        certificate.context()

    assert [(entry["event"], entry["file"], entry["reason"]) for entry in logs] == [
        ("clients will reject the certificate", str(tmp_path / "tls.crt"), "certificate has expired")
    ]


async def test_a_missing_certificate_is_not_used_but_the_old_one_is(tmp_path):
    files = install("first", tmp_path)
    certificate = ServerCertificate(*files)
    files[0].unlink()

    async with serve(certificate) as address:
        assert await served_name(address) == "first"


async def test_clients_that_shake_no_hands_lock_nobody_out(tmp_path):
    few = ConnectionLimits(authenticated=2, unauthenticated=4, per_peer=4)
    certificate = ServerCertificate(*install("first", tmp_path))
    async with serve(certificate, connections=few) as address:
        silent = [await asyncio.open_connection(*address) for _ in range(20)]
        async with client_at(address) as client:
            assert (await client.get("/v1/pods", headers=TOKEN)).status_code == 200
        async with asyncio.timeout(SECONDS):
            assert await silent[0][0].read() == b"", "the oldest made room"
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello"])
async def test_an_invalid_handshake_is_closed_without_a_log_line(tmp_path, caplog, sent):
    certificate = ServerCertificate(*install("first", tmp_path))
    async with serve(certificate, head=0.1) as address, asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        with suppress(ConnectionError):
            assert b"HTTP" not in await reader.read()
        writer.close()

    assert [record for record in caplog.records if record.levelname != "DEBUG"] == []


async def test_a_client_that_reads_nothing_is_disconnected(tmp_path):
    agent = FakeBackend()
    certificate = ServerCertificate(*install("first", tmp_path))
    request = b"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n"
    async with serve(certificate, agent, read=0.1) as address:
        context = ssl.create_default_context(cafile=ca_file())
        reader, writer = await asyncio.open_connection(*address, ssl=context, limit=1)
        writer.write(request)
        await until(lambda: agent.event_bus.subscribers)

        await until(lambda: agent.event_bus.publish("big", {"text": "x" * 500_000}) and not agent.event_bus.subscribers)

        writer.transport.abort()
        del reader


@asynccontextmanager
async def waiting_requests(tmp_path, agent):
    """Yield a client with an event stream, and more requests behind it than the server parses at once."""
    certificate = ServerCertificate(*install("first", tmp_path))
    request = b"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n"
    async with serve(certificate, agent, gone=0.01) as address, asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(*address, ssl=ssl.create_default_context(cafile=ca_file()))
        writer.write(request * 100)
        await until(lambda: agent.event_bus.subscribers)
        yield reader, writer
        writer.transport.abort()


async def test_a_client_that_hangs_up_while_a_request_waits_is_noticed(tmp_path):
    async with waiting_requests(tmp_path, FakeBackend()) as (reader, writer):
        writer.get_extra_info("socket").shutdown(socket.SHUT_WR)  # without TLS's own end

        with suppress(ConnectionError):
            await reader.read()


async def test_a_client_that_stays_while_a_request_waits_is_served(tmp_path, monkeypatch):
    checks = []

    def check(descriptor):
        checks.append(has_hung_up(descriptor))
        return checks[-1]

    monkeypatch.setattr(served_connection, "has_hung_up", check)
    agent = FakeBackend()
    async with waiting_requests(tmp_path, agent) as (reader, _):
        await until(lambda: len(checks) > 2)
        agent.event_bus.publish("small", {})

        await reader.readuntil(b"event: small")


def damaged(kind, certificate, key):
    match kind:
        case "no key":
            key.unlink()
        case "no PEM":
            certificate.write_text("hello")
        case "a pipe":
            certificate.unlink()
            os.mkfifo(certificate)
        case "readable by others":
            key.chmod(0o644)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("no key", "No such file or directory"),
        ("no PEM", "not a certificate and a private key in PEM format"),
        ("a pipe", "is not a regular file"),
        ("readable by others", "run: chmod 600"),
    ],
)
def test_unusable_certificates_are_errors(tmp_path, kind, reason):
    files = install("first", tmp_path)
    damaged(kind, *files)

    with pytest.raises(ListenError, match=reason):
        ServerCertificate(*files)


def test_a_key_may_be_readable_by_its_group(tmp_path):
    files = install("first", tmp_path)
    files[1].chmod(0o640)

    assert ServerCertificate(*files).context() is not None
