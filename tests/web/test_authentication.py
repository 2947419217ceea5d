"""Who may use an address, and under which names it may be called."""

import asyncio
import base64
import os
import socket

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from alignup.web import sockets
from alignup.web.asgi_server import ServerLimits, serve_app
from alignup.web.authentication import AccessRules
from alignup.web.sockets import loopback_uid
from tests.certificates import install

pytestmark = pytest.mark.anyio


async def ask(host, *, limits=None, tls=None, scheme="http"):
    """The status of a request with this Host header on a real socket."""
    app = PlainTextResponse("served")
    with sockets.tcp_socket(0) as listener:
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/any/path"
        async with (
            serve_app(app, listener, stopping=asyncio.Event(), limits=limits, tls=tls),
            httpx2.AsyncClient(trust_env=False, verify=False) as client,
        ):
            return (await client.post(url, headers={"host": host}, content=b"{}")).status_code


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:8890", 200),
        ("localhost.:8890", 200),
        ("node.localhost:1", 200),
        ("127.0.0.1:8890", 200),
        ("10.1.2.3", 200),
        ("[::1]:80", 200),
        ("[fe80::1]", 200),
        (socket.gethostname(), 200),
        ("ours.example:8890", 200),
        ("evil.example", 421),
        ("evil.example:8890", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1@evil.example", 421),
        ("[::1].evil.example", 421),
        ("[evil.example]", 421),
        ("0x7f.1", 421),
    ],
)
async def test_a_program_is_called_by_its_address_or_by_a_name_of_its_own(host, status):
    """A page of another site whose name leads here (DNS rebinding) must get nothing, and must change nothing."""
    assert await ask(host, limits=ServerLimits(names=("ours.example",))) == status


async def test_over_tls_the_certificate_checks_the_name(tmp_path):
    certificate = sockets.ServerCertificate(*install("first", tmp_path))

    assert await ask("any.example", tls=certificate.context, scheme="https") == 200


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_user_of_a_local_client_is_known_until_it_closes_the_connection(family, host):
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]):
            accepted, address = listener.accept()
            ends = address[:2], accepted.getsockname()[:2]
            assert loopback_uid(*ends) == os.geteuid()
            assert loopback_uid(ends[1], ends[0]) == os.geteuid()  # our own end
            assert loopback_uid((host, 1), ends[1]) is None
        with accepted:
            assert loopback_uid(*ends) is None  # a closed socket could count as root's


def test_a_client_on_the_network_has_no_user():
    assert loopback_uid(("192.0.2.1", 1), ("192.0.2.2", 2)) is None
    assert loopback_uid(("fe80::1%eth0", 1), ("fe80::2%eth0", 2)) is None


def request(authorization=""):
    headers = [(b"authorization", authorization.encode())] if authorization else []
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers, "scheme": "http"})


def basic(text):
    return f"Basic {base64.b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    ("authorization", "allowed"),
    [
        ("", False),
        ("Bearer secret", True),
        ("Bearer other", False),
        (basic("alignup:secret"), True),
        (basic("secret:"), False),
        (basic("secret"), False),
        ("Basic secret", False),
        ("Basic ÿ", False),
        ("Digest secret", False),
    ],
)
def test_a_token_is_a_bearer_or_a_password(authorization, allowed):
    """A URL can contain a password, and kube-scheduler can send no other header."""
    rules = AccessRules(token=b"secret")

    assert rules.allows(request(authorization.encode().decode("latin-1"))) is allowed


async def test_clients_of_other_users_are_not_served(monkeypatch):
    uids: list[int | None] = []
    rules = AccessRules(same_user=True)

    async def app(scope, receive, send):
        await PlainTextResponse(str(rules.allows(Request(scope))))(scope, receive, send)

    monkeypatch.setattr("alignup.web.served_connection.loopback_uid", lambda *_ends: uids[-1])
    with sockets.tcp_socket(0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        async with serve_app(app, listener, stopping=asyncio.Event()):
            answers = {}
            for uid in (0, os.geteuid(), 12345, None):
                uids.append(uid)
                async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
                    answers[uid] = (await client.get(url)).text

    assert answers == {0: "True", os.geteuid(): "True", 12345: "False", None: "False"}
