"""Who may use the API and the pages at an address, and under which names the address may be called.

Clients with the token, browsers that are signed in, and perhaps local clients of the same user are served.
"""

import base64
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from alignup.web.responses import CLOSE, RETRY_SOON, ProblemError
from alignup.web.served_connection import CONNECTION, ServedConnection

#: Methods that change nothing. A session of a browser allows only these: other sites can send forms in its name.
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
SIGN_IN = "/sign-in"
LINK_SECONDS = 600.0  #: in which a sign-in link is valid
SESSION_SECONDS = 12 * 3600.0  #: without a request, after which a session ends
_HOST = re.compile(r"(?:\[(?P<address>[^]]+)\]|(?P<name>[^:]*))(?::[0-9]*)?")
_MAX_LINKS, _MAX_SESSIONS = 64, 1024


class Sessions:
    """The sign-in codes and sessions of browsers; *now* returns a monotonic time.

    A sign-in link, valid once and for a few minutes, becomes a cookie. Everything is in memory: after a restart,
    browsers sign in again. Only hashes are kept. The program sets ``base_url``, where browsers find the pages; empty:
    there are none.
    """

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self.base_url = ""
        self._now = now
        self._links: dict[bytes, float] = {}  #: hash of the code → when it expires, oldest first
        self._sessions: dict[bytes, float] = {}  #: hash of the cookie → when it expires, least recently used first

    def create_link(self) -> str:
        """Return a path of the server with a code that is valid once, for ``LINK_SECONDS``."""
        code = secrets.token_urlsafe(24)
        _add(self._links, _hash(code), self._now() + LINK_SECONDS, most=_MAX_LINKS)
        return f"{SIGN_IN}?code={code}"

    def redeem(self, code: str) -> bool:
        """Return whether *code* is that of a valid link, which is not valid from now on."""
        expires = self._links.pop(_hash(code), None)
        return expires is not None and expires > self._now()

    def start(self) -> str:
        """Start a session; return the value of its cookie."""
        value = secrets.token_urlsafe(32)
        _add(self._sessions, _hash(value), self._now() + SESSION_SECONDS, most=_MAX_SESSIONS)
        return value

    def end(self, request: Request) -> None:
        self._sessions.pop(_hash(request.cookies.get(cookie_name(request), "")), None)

    def has(self, request: Request) -> bool:
        """Return whether *request* belongs to a session, which then lasts longer."""
        value = request.cookies.get(cookie_name(request))
        if value is None:
            return False
        key = _hash(value)
        expires = self._sessions.pop(key, None)
        if expires is None or expires <= self._now():
            return False
        self._sessions[key] = self._now() + SESSION_SECONDS
        return True


def cookie_name(request: Request) -> str:
    """Return the name of the cookie; browsers share cookies between the ports of a host."""
    server = request.scope.get("server")
    prefix = "__Host-" if request.url.scheme == "https" else ""
    return f"{prefix}alignup-{server[1] if server else 0}"


def set_cookie(request: Request, value: str) -> str:
    """Return the header that sets the cookie; other sites cannot use it, and scripts cannot read it."""
    secure = "; Secure" if request.url.scheme == "https" else ""
    return f"{cookie_name(request)}={value}; Path=/; HttpOnly; SameSite=Strict{secure}"


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def _add(expirations: dict[bytes, float], key: bytes, expires: float, *, most: int) -> None:
    while len(expirations) >= most:
        del expirations[next(iter(expirations))]
    expirations[key] = expires


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """Who may use an address: with *everyone*, who can connect; otherwise a request needs the token, or a session.

    The token can be the password of HTTP Basic as well, which a URL can contain: kube-scheduler sends no other header.
    """

    everyone: bool = False
    same_user: bool = False  #: whether clients on this machine need no token that are root's, or of our own user
    token: bytes | None = None  #: ``None``: there is none
    sessions: Sessions = field(default_factory=Sessions)

    def allows(self, request: Request) -> bool:
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            credentials = _password(credentials)
        has_token = self.is_token(credentials) and scheme.lower() in {"bearer", "basic"}
        if self.everyone or has_token or (request.method in SAFE_METHODS and self.sessions.has(request)):
            return True
        connection: ServedConnection | None = request.scope.get(CONNECTION)
        return self.same_user and connection is not None and connection.client_uid in {0, os.geteuid()}

    def is_token(self, text: str) -> bool:
        # A comparison in constant time does not reveal how much of the token is right.
        return self.token is not None and hmac.compare_digest(text.strip().encode("utf-8", "replace"), self.token)


def _password(credentials: str) -> str:
    """Return the password of HTTP Basic; empty if there is none."""
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


class HostCheck:
    """An ASGI application that passes requests on to *app* if their Host header is a name of this program.

    A page of another site whose name suddenly leads to this address (DNS rebinding) is within its own origin for the
    browser: it could read everything here, and send anything. Such a page always calls us by a name. So addresses are
    fine, as are the names of loopback and of this machine, and *names*. Over TLS the certificate is the check, and web
    pages cannot use unix sockets.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        self._app = app
        self._names = {name.lower() for name in (*names, "localhost", socket.gethostname())}
        self._allows = lru_cache(maxsize=256)(self._is_allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["scheme"] == "http" and scope["server"] is not None:
            host = next((value for name, value in scope["headers"] if name == b"host"), b"")
            if not self._allows(host):
                detail = f"This program is not called {host.decode('latin-1')!a}: use its address, or localhost."
                await ProblemError(421, detail, headers=CLOSE).response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_allowed(self, host: bytes) -> bool:
        match = _HOST.fullmatch(host.decode("latin-1").lower())
        if match is None:
            return False
        name = (match["address"] or match["name"] or "").removesuffix(".")
        if not host or name in self._names or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def count_authenticated(request: Request) -> None:
    """Count the connection as authenticated; raise ``ProblemError`` if too many are."""
    connection: ServedConnection | None = request.scope.get(CONNECTION)  # None: not served on a socket
    if connection is not None:
        connection.stop_timer("unauthenticated")
        if not connection.table.authenticate(connection):
            raise ProblemError(503, "Too many connections.", headers=RETRY_SOON | CLOSE)
