"""The HTTP API as an ASGI application: routes, limits, and what is said when something goes wrong.

How manifests are read and machines written is handed in, since packages beside this one know. Whoever answers,
answers one request at a time as far as its pods are concerned (``AgentBackend``); what takes long without changing
anything, reading a document or drawing a picture, is done beside the event loop.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from alignup.align.errors import (
    AlignError,
    FileError,
    ParseError,
    PodError,
    Problem,
    WorkLimitError,
)
from alignup.align.machine import Machine
from alignup.align.workload import Pod
from alignup.picture import draw_svg
from alignup.schema.api import AdmissionResult, AgentBackend, BusyError, DecisionQuery, LogQuery, NotReadyError
from alignup.schema.decisions import to_document
from alignup.serve import json_views, log_stream, openapi, request_body, responses, server_sent_events
from alignup.serve.endpoint import ApiEndpoint, Handler, ParameterValues, internal_error, not_found
from alignup.serve.metrics import CONTENT_TYPE, Metrics
from alignup.serve.responses import ProblemError
from alignup.serve.routes import operations_by_path
from alignup.serve.streaming import ByteStream

ReadPod = Callable[[bytes, str], Pod]  #: body, and its media type: ``application/json`` or ``application/yaml``
MachineDocument = Callable[[Machine], Mapping[str, Any]]
Result = TypeVar("Result")

_SHORT = 16 << 10  #: bytes of a document that is read at once
_STATUS = {"admitted": 201, "kept": 200, "waiting": 202}
_SOON, _LATER = {"Retry-After": "1"}, {"Retry-After": "5"}  #: seconds
#: A picture can hold names from anywhere; it is to be looked at, and nothing else.
_ONLY_LOOKED_AT = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """How much is taken from a client, and how long it is waited for."""

    body_bytes: int = 1 << 20
    body_seconds: float = 10.0  #: until a document is here
    answer_seconds: float = 60.0  #: until a pod is decided on; the decision is made and kept all the same
    heartbeat_seconds: float = 15.0  #: of silence on a stream of events
    read_seconds: float = 60.0  #: until what was sent on a stream is read
    streams: int = 64  #: of events, at the same time
    logs: int = 64  #: that are read at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What stands behind the API."""

    service: AgentBackend
    read_pod: ReadPod  #: ``PodError``, ``DocumentError`` or another ``ParseError`` where it cannot
    machine_document: MachineDocument
    metrics: Metrics
    version: str  #: of the program


def build_app(
    behind: Dependencies,
    *,
    token: bytes | None = None,
    limits: RequestLimits | None = None,
    stopping: asyncio.Event | None = None,
) -> Starlette:
    """The application.

    With a *token* every request has to bring it. Streams of events end when *stopping* is set.
    """
    description = openapi.openapi_document(version=behind.version, with_token=token is not None)
    api = _Api(behind, limits or RequestLimits(), stopping=stopping or asyncio.Event(), description=description)
    handlers = api.handlers()
    routes = [
        Route(path, ApiEndpoint({method: (one, handlers[one.id]) for method, one in known.items()}, token=token))
        for path, known in operations_by_path().items()
    ]
    app = Starlette(routes=routes, exception_handlers={404: not_found, Exception: internal_error})
    app.router.redirect_slashes = False
    return app


class _Api:
    """Everything the API can be asked for."""

    def __init__(
        self, behind: Dependencies, limits: RequestLimits, *, stopping: asyncio.Event, description: Mapping[str, Any]
    ) -> None:
        self._service = behind.service
        self._read_pod = behind.read_pod
        self._machine_document = behind.machine_document
        self._metrics = behind.metrics
        self._limits = limits
        self._stopping = stopping
        self._description = description
        self._streams: Counter[str] = Counter()  #: how many go on, by media type
        self._under_way: set[asyncio.Future[Any]] = set()  #: what goes on, whether somebody waits for it or not

    def handlers(self) -> Mapping[str, Handler]:
        """The id of an operation → who answers it."""
        return {
            "listPods": self.list_pods,
            "admitPod": self.admit_pod,
            "getPod": self.get_pod,
            "releasePod": self.release_pod,
            "getLogs": self.get_logs,
            "getRuntime": self.get_runtime,
            "listDecisions": self.list_decisions,
            "getDecision": self.get_decision,
            "getMachine": self.get_machine,
            "getPicture": self.get_picture,
            "listenToEvents": self.listen,
            "isAlive": self.is_alive,
            "isReady": self.is_ready,
            "getMetrics": self.get_metrics,
            "getDescription": self.get_description,
        }

    async def list_pods(self, request: Request, given: ParameterValues) -> Response:
        """Every pod that is known."""
        del request, given
        pods = [json_views.of_entry(entry) for entry in self._service.entries()]
        return responses.json_response({"pods": pods, "notes": list(self._service.notes())})

    async def admit_pod(self, request: Request, given: ParameterValues) -> Response:
        """Decide on a pod."""
        dry_run = bool(given["dryRun"])
        pod = await self._pod(request)
        with _told():
            admission = await self._in_time(self._service.admit(pod, dry_run=dry_run))
        content = json_views.of_admission(admission, dry_run=dry_run)
        if dry_run:
            return responses.json_response(content)
        status = _STATUS.get(content["outcome"])
        if status is None:
            raise _refused(admission, content["story"])
        headers = {"Location": f"/v1/pods/{quote(pod.uid, safe='')}"}
        return responses.json_response(content, status=status, headers=headers)

    async def get_pod(self, request: Request, given: ParameterValues) -> Response:
        """One pod."""
        del request
        entry = self._service.entry(str(given["uid"]))
        if entry is None:
            raise _no_pod(given["uid"])
        return responses.json_response(json_views.of_entry_in_full(entry))

    async def release_pod(self, request: Request, given: ParameterValues) -> Response:
        """A pod is gone."""
        del request
        with _told():
            entry = await self._in_time(self._service.release(**given))
        if entry is None:
            raise _no_pod(given["uid"])
        ends = entry.run is not None and entry.run.ending
        return responses.json_response({"pod": json_views.of_entry(entry)}, status=202 if ends else 200)

    async def get_logs(self, request: Request, given: ParameterValues) -> ASGIApp:
        """What a container printed."""
        query = LogQuery(**{name: value for name, value in given.items() if name != "uid"})
        self._check_room(responses.TEXT, self._limits.logs, "read logs")
        try:
            with _told():
                log = await self._service.logs(str(given["uid"]), query)
        except LookupError as error:
            raise ProblemError(404, str(error.args[0]) if error.args else "There is no such log.") from error
        if request.method == "HEAD":
            await log_stream.close_log(log)
            return responses.plain_response("", media_type=responses.TEXT)
        stopping = self._stopping if query.follow else None  # half a log that looks whole would be a lie
        return self._counted(log_stream.log_response(log, patience=self._limits.read_seconds, stopping=stopping))

    async def get_runtime(self, request: Request, given: ParameterValues) -> Response:
        """The container runtime."""
        del request, given
        return responses.json_response(json_views.of_runtime(self._service.runtime()))

    async def list_decisions(self, request: Request, given: ParameterValues) -> Response:
        """Decisions of the past."""
        del request
        query = DecisionQuery(**given)
        with _told():
            kept = await self._service.decisions(query)
        return responses.json_response(json_views.of_page(kept, limit=query.limit))

    async def get_decision(self, request: Request, given: ParameterValues) -> Response:
        """One of them."""
        del request
        with _told():
            kept = await self._service.decision(int(given["id"]))
        if kept is None:
            raise ProblemError(404, f"There is no decision {given['id']}, or it is not kept any more.")
        return responses.json_response(json_views.of_kept_in_full(kept))

    async def get_machine(self, request: Request, given: ParameterValues) -> Response:
        """The machine."""
        del request, given
        return responses.json_response(await asyncio.to_thread(self._machine_document, self._service.host.machine))

    async def get_picture(self, request: Request, given: ParameterValues) -> Response:
        """The machine, and who holds what."""
        del request, given
        host = self._service.host
        drawn = await asyncio.to_thread(draw_svg, host.machine, host.ledger)
        return responses.plain_response(
            drawn.encode("utf-8", "replace"), media_type=responses.SVG, headers=_ONLY_LOOKED_AT
        )

    async def listen(self, request: Request, given: ParameterValues) -> ASGIApp:
        """Events from now on."""
        del given
        if request.method == "HEAD":
            return responses.plain_response("", media_type="text/event-stream")
        self._check_room(server_sent_events.MEDIA_TYPE, self._limits.streams, "are listening")
        return self._counted(
            server_sent_events.event_stream(
                self._service.events,
                heartbeat=self._limits.heartbeat_seconds,
                patience=self._limits.read_seconds,
                stopping=self._stopping,
            )
        )

    async def is_alive(self, request: Request, given: ParameterValues) -> Response:
        """Always."""
        del request, given
        return responses.plain_response("ok\n", media_type=responses.TEXT)

    async def is_ready(self, request: Request, given: ParameterValues) -> Response:
        """Whether pods can be decided on."""
        del request, given
        problems = self._service.problems()
        if problems:
            errors = [Problem("", what) for what in problems]
            raise ProblemError(503, "Pods cannot be decided on now.", errors=errors, headers=_LATER)
        return responses.json_response({"ready": True})

    async def get_metrics(self, request: Request, given: ParameterValues) -> Response:
        """Metrics."""
        del request, given
        return responses.plain_response(self._metrics.text(), media_type=CONTENT_TYPE)

    async def get_description(self, request: Request, given: ParameterValues) -> Response:
        """What can be asked for."""
        del request, given
        return responses.json_response(self._description)

    async def _pod(self, request: Request) -> Pod:
        """The pod a request brings."""
        kind = request_body.media_type(request)
        content = await request_body.read(request, most=self._limits.body_bytes, seconds=self._limits.body_seconds)
        try:
            if _is_quick(content):
                return self._read_pod(content, kind)
            return await asyncio.to_thread(self._read_pod, content, kind)
        except PodError as error:
            raise _no_runnable_pod(error) from error
        except (ParseError, UnicodeDecodeError, RecursionError) as error:
            what = f"it cannot be read: {error}"
            raise ProblemError(400, f"The document is no JSON or YAML: {what}", errors=[Problem("", what)]) from error
        except AlignError as error:
            raise ProblemError(422, str(error), errors=[Problem("", str(error))]) from error

    async def _in_time(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What comes of *work*, which goes on to its end whether anybody waits for it or not."""
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        done, _ = await asyncio.wait({task}, timeout=self._limits.answer_seconds)
        if not done:
            what = (
                f"This was not done after {self._limits.answer_seconds:g} seconds. It goes on; ask for the pod later."
            )
            raise ProblemError(504, what)
        return task.result()

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, also where nobody waits for it any more

    def _check_room(self, media_type: str, most: int, what: str) -> None:
        """Refuse one more stream where there are as many as may be."""
        going_on = self._streams[media_type]
        if going_on >= most:
            raise ProblemError(429, f"{going_on} {what}, and no more may.", headers=_LATER)

    def _counted(self, stream: ByteStream) -> ASGIApp:
        """*stream*, counted while it goes on."""

        async def answer(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - as ASGI has it
            self._streams[stream.media_type] += 1
            try:
                await stream(scope, receive, send)
            finally:
                self._streams[stream.media_type] -= 1

        return answer


def _is_quick(content: bytes) -> bool:
    """Whether a document takes less time to read than to hand to another thread: short, and JSON beyond doubt.

    YAML may be short and still stand for a great deal.
    """
    if len(content) > _SHORT:
        return False
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True


@contextmanager
def _told() -> Iterator[None]:
    """Say over HTTP what the service said."""
    try:
        yield
    except PodError as error:
        raise _no_runnable_pod(error) from error
    except WorkLimitError as error:
        raise ProblemError(
            422, str(error), errors=[Problem(source, "makes it hard") for source in error.sources]
        ) from error
    except BusyError as error:
        raise ProblemError(429, str(error), headers=_SOON) from error
    except (NotReadyError, FileError) as error:
        raise ProblemError(503, str(error), headers=_LATER) from error


def _no_runnable_pod(error: PodError) -> ProblemError:
    return ProblemError(422, f"This is no pod that could run: {error}", errors=error.problems)


def _no_pod(uid: object) -> ProblemError:
    return ProblemError(404, f"No pod of uid {uid} is known.")


def _refused(admission: AdmissionResult, told: list[str]) -> ProblemError:
    """The pod may not run here: why, and all that was considered."""
    refusal = admission.decision.rejection
    if refusal is None:  # a device plugin did not answer, so nothing was decided
        return ProblemError(503, told[0], headers=_LATER)
    more: dict[str, Any] = {"reason": refusal.reason, "message": refusal.message}
    more |= {"decision": to_document(admission.decision), "story": told}
    return ProblemError(409, f"{refusal.reason}: {refusal.message}", more=more)
