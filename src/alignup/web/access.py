"""Who may use the API and the pages at an address."""

import hmac
from dataclasses import dataclass, field

from starlette.requests import Request

from alignup.web import responses
from alignup.web.responses import ProblemError
from alignup.web.connection import CONNECTION, Connection
from alignup.web.sessions import Sessions

#: Methods that change nothing. A session of a browser allows only these: other sites can send forms in its name.
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

_CLOSE = {"Connection": "close"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """With *everyone*, who can connect may do everything; otherwise a request needs the token, or a session."""

    everyone: bool = False
    token: bytes | None = None  #: ``None``: there is none
    sessions: Sessions = field(default_factory=Sessions)

    def authorize(self, request: Request) -> None:
        """Raise ``ProblemError`` unless the request is allowed; count the connection as authenticated."""
        if not self.allows(request):
            detail = "The request needs a valid token: Authorization: Bearer TOKEN"
            raise ProblemError(401, detail, headers={"WWW-Authenticate": "Bearer"})
        count_authenticated(request)

    def allows(self, request: Request) -> bool:
        return (
            self.everyone or self._has_token(request) or (request.method in SAFE_METHODS and self.sessions.has(request))
        )

    def is_token(self, text: str) -> bool:
        # A comparison in constant time does not reveal how much of the token is right.
        return self.token is not None and hmac.compare_digest(text.strip().encode("utf-8", "replace"), self.token)

    def _has_token(self, request: Request) -> bool:
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        valid = self.is_token(credentials)
        return scheme.lower() == "bearer" and valid


def count_authenticated(request: Request) -> None:
    """Raise ``ProblemError`` if too many connections are authenticated already."""
    connection: Connection | None = request.scope.get(CONNECTION)  # None: not served on a socket
    if connection is not None and not connection.authenticate():
        raise ProblemError(503, "Too many connections.", headers=responses.RETRY_SOON | _CLOSE)
