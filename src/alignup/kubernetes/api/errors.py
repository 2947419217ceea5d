"""The errors of API servers, and of the ways to reach them."""

import msgspec

from alignup.align.errors import AlignError


class ApiError(AlignError):
    """The base of all errors of this package."""


class AccessError(ApiError):
    """No usable kubeconfig, context or credentials; the message has the file, the reason, and what to do."""


class UnreachableError(ApiError):
    """The API server cannot be reached; it may have carried out the request nevertheless if that was ``sent``."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        self.sent = sent
        super().__init__(message)


class UnreadableError(ApiError):
    """A response that does not follow the Kubernetes API."""


class ApiStatusError(ApiError):
    """An error response: HTTP status ``code``, Kubernetes' ``reason`` and ``message``, reasons of ``causes``."""

    def __init__(  # noqa: PLR0913 - the fields of a Status
        self,
        request: str,
        *,
        code: int,
        reason: str,
        message: str,
        causes: tuple[str, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = causes
        self.retry_after = retry_after
        super().__init__(f"{request}: {message}" if request else message)


class UnauthorizedError(ApiStatusError):
    """401: the API server does not accept the credentials."""


class ForbiddenError(ApiStatusError):
    """403: the user has no permission."""


class NotFoundError(ApiStatusError):
    """404: the object, or its resource, does not exist."""


class ConflictError(ApiStatusError):
    """409: the object has changed since it was read, or is not in the required state."""


class AlreadyExistsError(ConflictError):
    """409: an object of this name exists."""


class GoneError(ApiStatusError):
    """410: the resource version is no longer available: list again."""


class InvalidObjectError(ApiStatusError):
    """422 or 400: the API server rejects the content of the request."""


class TooManyRequestsError(ApiStatusError):
    """429: the API server throttles, or a disruption budget prevents an eviction."""


class ServerFailureError(ApiStatusError):
    """5xx: the API server failed or is not ready."""


class StatusCause(msgspec.Struct, frozen=True):
    reason: str = ""  #: a word, such as ``ResourceVersionTooLarge``


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    causes: tuple[StatusCause, ...] | None = None
    retry_after_seconds: float = 0


class StatusResponse(msgspec.Struct, frozen=True):
    """A ``Status`` object: the body of an error response, or the object of an ERROR event."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


_ERRORS: dict[int, type[ApiStatusError]] = {
    400: InvalidObjectError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidObjectError,
    429: TooManyRequestsError,
}
_MAX_TEXT = 300  #: characters of a body that is not a Status object
_STATUS = msgspec.json.Decoder(StatusResponse)


def status_error(request: str, *, code: int, body: bytes, retry_after: str | None = None) -> ApiStatusError:
    """Return the error for a response, or for the object of an ERROR event, whose *code* is 0."""
    try:
        status = _STATUS.decode(body)
    except msgspec.DecodeError:
        text = " ".join(body.decode("utf-8", "replace").split())
        status = StatusResponse(message=text[:_MAX_TEXT])
    code = code or status.code or 500
    kind = _ERRORS.get(code, ServerFailureError if code >= 500 else ApiStatusError)
    if code == 409 and status.reason == "AlreadyExists":
        kind = AlreadyExistsError
    wait = float(retry_after) if retry_after and retry_after.isdecimal() else None  # API servers send no dates
    if wait is None and status.details is not None and status.details.retry_after_seconds:
        wait = status.details.retry_after_seconds
    message = status.message or f"the server responded with HTTP status {code}"
    causes = tuple(cause.reason for cause in (status.details and status.details.causes) or ())
    return kind(request, code=code, reason=status.reason, message=message, causes=causes, retry_after=wait)
