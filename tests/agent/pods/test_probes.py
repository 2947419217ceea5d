"""Probes over real sockets, with short seconds."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from alignup.agent.pods.environment import MAX_BYTES
from alignup.agent.pods.pod_state import ProbeStatus
from alignup.agent.pods.probes import ExecSync, Prober, ProbeResult, ProbeTarget, probe_url, run_probe
from alignup.align.errors import CriError, EnforceError
from alignup.kubernetes.podspec.types import ContainerSpec, EnvVar, Probe
from alignup.run.cri.types import ExecResult
from tests.agent.pods.statuses import APP
from tests.certificates import install

HOME = "127.0.0.1"
TICK = 0.02  #: length of a second in these tests

Answer = Callable[[bytes], bytes | None]  #: the response to a request; ``None``: no response


async def never(command: tuple[str, ...], seconds: float) -> ExecResult:
    pytest.fail(f"{command} was not to be run")


@asynccontextmanager
async def listening(
    answer: Answer, context: ssl.SSLContext | None = None, *, until: bytes = b"\r\n\r\n"
) -> AsyncIterator[int]:
    """A server on a free port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            said = answer(await reader.readuntil(until))
            if said is None:
                await reader.read()  # until the client disconnects
            else:
                writer.write(said)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, HOME, 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


def probe_server(
    answer: Answer, probe: Probe, *, context: ssl.SSLContext | None = None, seconds: float = 60.0, **more: bytes
) -> ProbeResult:
    """The result of probing a server."""

    async def both() -> ProbeResult:
        async with listening(answer, context, **more) as port:
            target = ProbeTarget(container=APP, address=HOME, execute=never)
            return await run_probe(replace(probe, port=port), target, seconds=seconds)

    return asyncio.run(both())


def status(code: int, *headers: str) -> Answer:
    text = f"HTTP/1.1 {code} Whatever\r\n" + "".join(f"{one}\r\n" for one in headers) + "\r\n"
    return lambda _: text.encode()


WEB = Probe(http_path="/")


@pytest.mark.parametrize("code", [200, 204, 299, 301, 304, 399])
def test_successful_statuses(code):
    assert probe_server(status(code), WEB) == ProbeResult(healthy=True)


@pytest.mark.parametrize("code", [400, 404, 500, 503, 101, 600])
def test_failed_statuses(code):
    assert probe_server(status(code), WEB) == ProbeResult(
        healthy=False, text=f"HTTP probe failed with statuscode: {code}"
    )


def test_informational_responses_are_skipped():
    assert probe_server(lambda _: b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", WEB).healthy


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(lambda _: b"SSH-2.0-OpenSSH\r\n\r\n", "malformed HTTP response", id="another protocol"),
        pytest.param(lambda _: b"HTTP/1.1 200 OK\r\n", "malformed HTTP response", id="a truncated response"),
        pytest.param(lambda _: b"", "EOF", id="nothing"),
        pytest.param(
            lambda _: b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, "headers exceeded", id="headers that are too long"
        ),
    ],
)
def test_invalid_responses(answer, words):
    found = probe_server(answer, WEB)

    assert not found.healthy
    assert words in found.text
    assert found.text.startswith('Get "http://127.0.0.1:')


def test_a_silent_server_times_out():
    found = probe_server(lambda _: None, WEB, seconds=0.05)

    assert not found.healthy
    assert found.text.endswith('/": context deadline exceeded')


def test_the_request_sent():
    requests = []

    def noted(request: bytes) -> bytes:
        requests.append(request)
        return b"HTTP/1.1 200 OK\r\n\r\n"

    headers = (("Host", "shop.example"), ("accept", ""), ("X-Probe", "1"))
    probe_server(noted, replace(WEB, http_path="health z?deep=1#part", http_headers=headers))

    first, *others = requests[0].decode().splitlines()
    assert first == "GET /health%20z?deep=1 HTTP/1.1"
    assert others == ["Host: shop.example", "User-Agent: kube-probe/alignup", "Connection: close", "X-Probe: 1", ""]


@pytest.mark.parametrize(("name", "value"), [("X\r\nY", "1"), ("X", "1\r\nY: 2"), ("", "1")])
def test_invalid_headers_are_rejected(name, value):
    found = probe_server(status(200), replace(WEB, http_headers=((name, value),)))

    assert not found.healthy
    assert "invalid header field" in found.text


@pytest.mark.parametrize(
    ("probe", "url"),
    [
        (Probe(http_path="", port=80), "http://10.0.0.7:80/"),
        (Probe(http_path="/a", port=8443, http_scheme="HTTPS"), "https://10.0.0.7:8443/a"),
        (Probe(http_path="/a b\r\nx", port=80, host="::1"), "http://[::1]:80/a%20b%0D%0Ax"),
    ],
)
def test_probe_urls(probe, url):
    assert probe_url(probe, "10.0.0.7") == url


def test_redirects_on_the_same_host_are_followed():
    def answer(request: bytes) -> bytes:
        if request.startswith(b"GET /there?x=1 "):
            return b"HTTP/1.1 500 No\r\n\r\n"
        return b"HTTP/1.1 302 Found\r\nLocation: /there?x=1\r\n\r\n"

    assert probe_server(answer, WEB).text == "HTTP probe failed with statuscode: 500"


def test_redirects_to_another_host_are_not_followed():
    assert probe_server(status(302, "Location: http://192.0.2.1/"), WEB).healthy


@pytest.mark.parametrize("location", ["http://[::1/", "http://127.0.0.1:99999999/", "gopher://127.0.0.1/"])
def test_invalid_redirects(location):
    found = probe_server(status(302, f"Location: {location}"), WEB)

    assert not found.healthy
    assert found.text.startswith('Get "')


def test_redirect_loops_end():
    found = probe_server(status(302, "Location: /"), WEB)

    assert found.text.endswith("stopped after 10 redirects")


@pytest.fixture
def certificate(tmp_path):
    """A certificate of a CA that the client does not know."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*install("first", tmp_path))
    return context


def test_certificates_are_not_verified(certificate):
    encrypted = replace(WEB, http_scheme="HTTPS")

    assert probe_server(status(200), encrypted, context=certificate).healthy
    assert "statuscode: 500" in probe_server(status(500), encrypted, context=certificate).text


def test_https_to_a_plain_http_server_fails():
    found = probe_server(status(200), replace(WEB, http_scheme="HTTPS"), until=b"\x16")  # a TLS handshake

    assert not found.healthy
    assert "tls: " in found.text


def test_tcp_probes():
    connect = Probe()
    with socket.socket() as free:
        free.bind((HOME, 0))
        port = free.getsockname()[1]
        failed = asyncio.run(
            run_probe(replace(connect, port=port), ProbeTarget(container=APP, address=HOME, execute=never), seconds=60)
        )

    assert probe_server(lambda _: b"", connect) == ProbeResult(healthy=True)
    assert failed == ProbeResult(healthy=False, text=f"dial tcp 127.0.0.1:{port}: connect: connection refused")


def commanded(execute: ExecSync, container: ContainerSpec = APP) -> ProbeResult:
    probe = Probe(command=("check", "$(WHO)", "$(NAME)"))
    return asyncio.run(run_probe(probe, ProbeTarget(container=container, address=HOME, execute=execute)))


def test_commands_expand_literal_variables():
    ran = []

    async def execute(command: tuple[str, ...], seconds: float) -> ExecResult:
        ran.append((command, seconds))
        return ExecResult(exit_code=0)

    variables = (EnvVar("WHO", "me"), EnvVar("NAME", field_path="metadata.name"))
    found = commanded(execute, replace(APP, env=variables))

    assert found.healthy
    assert ran == [(("check", "me", ""), 1)]


def test_failing_commands():
    async def execute(*_: object) -> ExecResult:
        return ExecResult(exit_code=3, output=b"out\n", errors=b"err" + b"!" * 20_000)

    found = commanded(execute)

    assert not found.healthy
    assert found.text.startswith("out\nerr!")
    assert len(found.text) == 10 << 10


def test_commands_that_time_out():
    async def execute(*_: object) -> ExecResult:
        raise CriError("too long", code="DEADLINE_EXCEEDED")

    assert commanded(execute) == ProbeResult(healthy=False, text='command "check $(WHO) $(NAME)" timed out')


def test_commands_that_expand_without_end_do_not_run():
    long = replace(APP, env=(EnvVar("WHO", "x" * (MAX_BYTES + 1)),))

    assert "expands without end" in commanded(never, long).text


def test_commands_that_cannot_run_have_no_result():
    async def execute(*_: object) -> ExecResult:
        raise CriError("away", code="UNAVAILABLE")

    with pytest.raises(EnforceError):
        commanded(execute)


class ScriptedContainer:
    """A container with scripted results for each command, of which the last one repeats, and a log of the commands."""

    def __init__(self, **answers: Iterable[object]) -> None:
        self.answers = {name: list(results) for name, results in answers.items()}
        self.log: list[str] = []
        self.changed = asyncio.Condition()

    async def wait_for_commands(self, times: int) -> None:
        """Return after *times* commands."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.log) >= times)

    async def execute(self, command: tuple[str, ...], _: float) -> ExecResult:
        (name,) = command
        self.log.append(name)
        async with self.changed:
            self.changed.notify_all()
        reported = self.answers[name]
        answer = reported.pop(0) if len(reported) > 1 else reported[0]
        if isinstance(answer, Exception):
            raise answer
        return ExecResult(exit_code=0 if answer else 1, output=name.encode())


UP = Probe(command=("up",), period=1, failures=2)
LIVE = Probe(command=("live",), period=1, failures=2, grace=3)
READY = Probe(command=("ready",), period=1, successes=2, failures=2)


def probe_statuses(
    container: ContainerSpec, scripted: ScriptedContainer, *, times: int = 1000, ago: float = 0.0
) -> list[ProbeStatus]:
    """The statuses of a container that started *ago* seconds ago, until *times* commands or the end of probing."""
    reported: list[ProbeStatus] = []

    async def for_a_while() -> None:
        target = ProbeTarget(container=container, address=HOME, execute=scripted.execute)
        since = time.monotonic() - ago
        prober = Prober(target, report=reported.append, since=since, now=time.monotonic, second=TICK)
        enough = asyncio.create_task(scripted.wait_for_commands(times))
        running = asyncio.create_task(prober.run())
        await asyncio.wait({enough, running}, return_when=asyncio.FIRST_COMPLETED)
        for task in (enough, running):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(asyncio.wait_for(for_a_while(), 60))
    return reported


def test_a_container_without_probes_is_ready():
    assert probe_statuses(APP, ScriptedContainer()) == [ProbeStatus(started=True, ready=True)]


def test_other_probes_wait_for_the_startup_probe():
    container = replace(APP, startup=UP, liveness=LIVE, readiness=READY)
    scripted = ScriptedContainer(up=[False, True], live=[True], ready=[True])

    reported = probe_statuses(container, scripted, times=20)

    assert reported == [ProbeStatus(), ProbeStatus(started=True), ProbeStatus(started=True, ready=True)]
    assert scripted.log[:2] == ["up", "up"]
    assert set(scripted.log[2:]) == {"live", "ready"}


def test_a_started_container_without_readiness_probe_is_ready():
    assert probe_statuses(replace(APP, startup=UP), ScriptedContainer(up=[True])) == [
        ProbeStatus(),
        ProbeStatus(started=True, ready=True),
    ]


def test_a_failed_startup_probe_ends_probing():
    container = replace(APP, startup=UP, liveness=LIVE)
    scripted = ScriptedContainer(up=[False], live=[True])

    reported = probe_statuses(container, scripted)

    assert reported == [ProbeStatus(), ProbeStatus(failure="Startup probe failed: up")]
    assert scripted.log == ["up", "up"]


def test_a_liveness_probe_fails_after_its_threshold():
    scripted = ScriptedContainer(live=[True, False, True, False, False])

    reported = probe_statuses(replace(APP, liveness=LIVE), scripted)

    assert reported == [
        ProbeStatus(started=True, ready=True),
        ProbeStatus(started=True, ready=True, failure="Liveness probe failed: live", grace=3),
    ]
    assert scripted.log == ["live"] * 5


def test_readiness_changes():
    scripted = ScriptedContainer(ready=[True, False, True, True, False, True, False, False, False])

    reported = probe_statuses(replace(APP, readiness=READY), scripted, times=12)

    assert reported == [ProbeStatus(started=True), ProbeStatus(started=True, ready=True), ProbeStatus(started=True)]


def test_a_probe_that_cannot_run_changes_nothing():
    away = EnforceError("the runtime is away")
    scripted = ScriptedContainer(live=[False, away, away, away, True, away, away, False, False])

    reported = probe_statuses(replace(APP, liveness=LIVE), scripted)

    assert reported[-1].failure
    assert scripted.log == ["live"] * 9


def test_the_initial_delay_counts_from_the_start():
    late = replace(READY, delay=1000, period=1)

    assert (
        len(probe_statuses(replace(APP, readiness=late), ScriptedContainer(ready=[True]), times=2, ago=1000 * TICK))
        == 2
    )


def test_no_probe_runs_before_the_initial_delay():
    scripted = ScriptedContainer(ready=[True])

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(prober(replace(READY, delay=1000), scripted).run(), 5 * TICK))

    assert scripted.log == []


def test_a_clock_set_back_does_not_delay_probes():
    scripted = ScriptedContainer(ready=[True])
    times = iter([0.0, *(-1000.0 * number for number in range(1000))])
    target = ProbeTarget(
        container=replace(APP, readiness=replace(READY, delay=1)), address=HOME, execute=scripted.execute
    )
    turned = Prober(target, report=lambda _: None, since=0.0, now=lambda: next(times), second=TICK)

    async def three_times() -> None:
        running = asyncio.create_task(turned.run())
        await scripted.wait_for_commands(3)
        running.cancel()

    asyncio.run(asyncio.wait_for(three_times(), 60))


def prober(probe: Probe, scripted: ScriptedContainer) -> Prober:
    """A readiness prober of a container that has just started."""
    target = ProbeTarget(container=replace(APP, readiness=probe), address=HOME, execute=scripted.execute)
    return Prober(target, report=lambda _: None, since=time.monotonic(), now=time.monotonic, second=TICK)
