"""How containers are asked: by real sockets and short seconds, and what becomes of the answers."""

import asyncio
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from alignup.agent.pods.environment import MAX_BYTES
from alignup.agent.pods.http_probe import probe_url
from alignup.agent.pods.pod_state import ProbeStatus
from alignup.agent.pods.probes import ExecSync, Prober, ProbeResult, ProbeTarget, run_probe
from alignup.align.errors import CriError, EnforceError
from alignup.enforce.cri.types import ExecResult
from alignup.kube.podspec.types import ContainerSpec, EnvVar, Probe
from tests.agent.pods.lives import APP

HOME = "127.0.0.1"
TICK = 0.02  #: seconds that a second takes here

Answer = Callable[[bytes], bytes | None]  #: to a request; ``None``: silence


async def never(command: tuple[str, ...], seconds: float) -> ExecResult:
    pytest.fail(f"{command} was not to be run")


@asynccontextmanager
async def listening(answer: Answer, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server on a port of its own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            said = answer(await reader.readuntil(b"\r\n\r\n"))
            if said is None:
                await asyncio.sleep(30)
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


def asked(answer: Answer, probe: Probe, *, context: ssl.SSLContext | None = None, seconds: float = 5.0) -> ProbeResult:
    """What a probe makes of a server."""

    async def both() -> ProbeResult:
        async with listening(answer, context) as port:
            target = ProbeTarget(container=APP, address=HOME, execute=never)
            return await run_probe(replace(probe, port=port), target, seconds=seconds)

    return asyncio.run(both())


def status(code: int, *headers: str) -> Answer:
    text = f"HTTP/1.1 {code} Whatever\r\n" + "".join(f"{one}\r\n" for one in headers) + "\r\n"
    return lambda _: text.encode()


WEB = Probe(http_path="/")


@pytest.mark.parametrize("code", [200, 204, 299, 301, 304, 399])
def test_these_answers_are_fine(code):
    assert asked(status(code), WEB) == ProbeResult(healthy=True)


@pytest.mark.parametrize("code", [400, 404, 500, 503, 101, 600])
def test_these_are_not(code):
    assert asked(status(code), WEB) == ProbeResult(healthy=False, text=f"HTTP probe failed with statuscode: {code}")


def test_a_word_on_the_way_is_no_answer():
    assert asked(lambda _: b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", WEB).healthy


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(lambda _: b"SSH-2.0-OpenSSH\r\n\r\n", "malformed HTTP response", id="something else"),
        pytest.param(lambda _: b"HTTP/1.1 200 OK\r\n", "malformed HTTP response", id="half of it"),
        pytest.param(lambda _: b"", "EOF", id="nothing"),
        pytest.param(lambda _: b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, "headers exceeded", id="too much"),
    ],
)
def test_what_is_no_answer(answer, words):
    found = asked(answer, WEB)

    assert not found.healthy
    assert words in found.text
    assert found.text.startswith('Get "http://127.0.0.1:')


def test_silence():
    found = asked(lambda _: None, WEB, seconds=0.05)

    assert not found.healthy
    assert found.text.endswith('/": context deadline exceeded')


def test_the_request():
    requests = []

    def noted(request: bytes) -> bytes:
        requests.append(request)
        return b"HTTP/1.1 200 OK\r\n\r\n"

    headers = (("Host", "shop.example"), ("accept", ""), ("X-Probe", "1"))
    asked(noted, replace(WEB, http_path="health z?deep=1#part", http_headers=headers))

    first, *others = requests[0].decode().splitlines()
    assert first == "GET /health%20z?deep=1 HTTP/1.1"
    assert others == ["Host: shop.example", "User-Agent: kube-probe/alignup", "Connection: close", "X-Probe: 1", ""]


@pytest.mark.parametrize(("name", "value"), [("X\r\nY", "1"), ("X", "1\r\nY: 2"), ("", "1")])
def test_a_header_is_one_header(name, value):
    found = asked(status(200), replace(WEB, http_headers=((name, value),)))

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
def test_what_is_asked_for(probe, url):
    assert probe_url(probe, "10.0.0.7") == url


def test_redirects_are_followed_at_home():
    def answer(request: bytes) -> bytes:
        if request.startswith(b"GET /there?x=1 "):
            return b"HTTP/1.1 500 No\r\n\r\n"
        return b"HTTP/1.1 302 Found\r\nLocation: /there?x=1\r\n\r\n"

    assert asked(answer, WEB).text == "HTTP probe failed with statuscode: 500"


def test_redirects_elsewhere_are_not_followed():
    assert asked(status(302, "Location: http://192.0.2.1/"), WEB).healthy


@pytest.mark.parametrize("location", ["http://[::1/", "http://127.0.0.1:99999999/", "gopher://127.0.0.1/"])
def test_redirects_to_nowhere(location):
    found = asked(status(302, f"Location: {location}"), WEB)

    assert not found.healthy
    assert found.text.startswith('Get "')


def test_redirects_in_a_circle_end():
    found = asked(status(302, "Location: /"), WEB)

    assert found.text.endswith("stopped after 10 redirects")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Of nobody known, for nobody known."""
    tool = shutil.which("openssl")
    if tool is None:
        pytest.skip("there is no openssl to make a certificate with")
    place = tmp_path_factory.mktemp("certificate")
    key, cert = place / "key", place / "cert"
    making = [tool, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    subprocess.run(  # noqa: S603 - of this machine
        [*making, "-subj", "/CN=nobody", "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def test_certificates_are_not_checked(certificate):
    encrypted = replace(WEB, http_scheme="HTTPS")

    assert asked(status(200), encrypted, context=certificate).healthy
    assert "statuscode: 500" in asked(status(500), encrypted, context=certificate).text


def test_who_speaks_plainly_is_not_understood_encrypted():
    found = asked(lambda _: b"HTTP/1.1 200 OK\r\n\r\n", replace(WEB, http_scheme="HTTPS"), seconds=0.5)

    assert not found.healthy


def test_connections():
    connect = Probe()
    with socket.socket() as free:
        free.bind((HOME, 0))
        port = free.getsockname()[1]
        refused = asyncio.run(
            run_probe(replace(connect, port=port), ProbeTarget(container=APP, address=HOME, execute=never), seconds=5)
        )

    assert asked(lambda _: b"", connect) == ProbeResult(healthy=True)
    assert refused == ProbeResult(healthy=False, text=f"dial tcp 127.0.0.1:{port}: connect: connection refused")


def commanded(execute: ExecSync, container: ContainerSpec = APP) -> ProbeResult:
    probe = Probe(command=("check", "$(WHO)", "$(NAME)"))
    return asyncio.run(run_probe(probe, ProbeTarget(container=container, address=HOME, execute=execute)))


def test_commands_know_what_the_manifest_says():
    ran = []

    async def execute(command: tuple[str, ...], seconds: float) -> ExecResult:
        ran.append((command, seconds))
        return ExecResult(exit_code=0)

    variables = (EnvVar("WHO", "me"), EnvVar("NAME", field_path="metadata.name"))
    found = commanded(execute, replace(APP, env=variables))

    assert found.healthy
    assert ran == [(("check", "me", ""), 1)]


def test_commands_that_fail():
    async def execute(*_: object) -> ExecResult:
        return ExecResult(exit_code=3, output=b"out\n", errors=b"err" + b"!" * 20_000)

    found = commanded(execute)

    assert not found.healthy
    assert found.text.startswith("out\nerr!")
    assert len(found.text) == 10 << 10


def test_commands_that_take_too_long():
    async def execute(*_: object) -> ExecResult:
        raise CriError("too long", code="DEADLINE_EXCEEDED")

    assert commanded(execute) == ProbeResult(healthy=False, text='command "check $(WHO) $(NAME)" timed out')


def test_commands_that_grow_without_end_are_not_run():
    long = replace(APP, env=(EnvVar("WHO", "x" * (MAX_BYTES + 1)),))

    assert "expands without end" in commanded(never, long).text


def test_commands_that_cannot_be_run_say_nothing():
    async def execute(*_: object) -> ExecResult:
        raise CriError("away", code="UNAVAILABLE")

    with pytest.raises(EnforceError):
        commanded(execute)


class Asked:
    """A container that gives these answers to each command, the last one again and again, and notes what was asked."""

    def __init__(self, **answers: Iterable[object]) -> None:
        self.answers = {name: list(told) for name, told in answers.items()}
        self.log: list[str] = []
        self.heard = asyncio.Condition()

    async def asked(self, times: int) -> None:
        """Return when it was asked so many times."""
        async with self.heard:
            await self.heard.wait_for(lambda: len(self.log) >= times)

    async def execute(self, command: tuple[str, ...], _: float) -> ExecResult:
        (name,) = command
        self.log.append(name)
        async with self.heard:
            self.heard.notify_all()
        told = self.answers[name]
        answer = told.pop(0) if len(told) > 1 else told[0]
        if isinstance(answer, Exception):
            raise answer
        return ExecResult(exit_code=0 if answer else 1, output=name.encode())


UP = Probe(command=("up",), period=1, failures=2)
LIVE = Probe(command=("live",), period=1, failures=2, grace=3)
READY = Probe(command=("ready",), period=1, successes=2, failures=2)


def watched(container: ContainerSpec, asked_: Asked, *, times: int = 1000, ago: float = 0.0) -> list[ProbeStatus]:
    """What is told of a container until it was asked so many *times*, or no more; it was started *ago*."""
    told: list[ProbeStatus] = []

    async def for_a_while() -> None:
        target = ProbeTarget(container=container, address=HOME, execute=asked_.execute)
        since = time.monotonic() - ago
        prober = Prober(target, report=told.append, since=since, now=time.monotonic, second=TICK)
        enough = asyncio.create_task(asked_.asked(times))
        running = asyncio.create_task(prober.run())
        await asyncio.wait({enough, running}, return_when=asyncio.FIRST_COMPLETED)
        for task in (enough, running):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(asyncio.wait_for(for_a_while(), 30))
    return told


def test_without_probes_all_is_well():
    assert watched(APP, Asked()) == [ProbeStatus(started=True, ready=True)]


def test_nothing_else_is_asked_until_it_has_started():
    container = replace(APP, startup=UP, liveness=LIVE, readiness=READY)
    asked_ = Asked(up=[False, True], live=[True], ready=[True])

    told = watched(container, asked_, times=20)

    assert told == [ProbeStatus(), ProbeStatus(started=True), ProbeStatus(started=True, ready=True)]
    assert asked_.log[:2] == ["up", "up"]
    assert set(asked_.log[2:]) == {"live", "ready"}


def test_started_is_ready_where_nobody_asks():
    assert watched(replace(APP, startup=UP), Asked(up=[True])) == [ProbeStatus(), ProbeStatus(started=True, ready=True)]


def test_what_does_not_start_is_sick_and_asked_no_more():
    container = replace(APP, startup=UP, liveness=LIVE)
    asked_ = Asked(up=[False], live=[True])

    told = watched(container, asked_)

    assert told == [ProbeStatus(), ProbeStatus(failure="Startup probe failed: up")]
    assert asked_.log == ["up", "up"]


def test_what_does_not_live_is_sick_after_so_many_failures():
    asked_ = Asked(live=[True, False, True, False, False])

    told = watched(replace(APP, liveness=LIVE), asked_)

    assert told == [
        ProbeStatus(started=True, ready=True),
        ProbeStatus(started=True, ready=True, failure="Liveness probe failed: live", grace=3),
    ]
    assert asked_.log == ["live"] * 5


def test_ready_comes_and_goes():
    asked_ = Asked(ready=[True, False, True, True, False, True, False, False, False])

    told = watched(replace(APP, readiness=READY), asked_, times=12)

    assert told == [ProbeStatus(started=True), ProbeStatus(started=True, ready=True), ProbeStatus(started=True)]


def test_where_nobody_can_be_asked_nothing_changes():
    away = EnforceError("the runtime is away")
    asked_ = Asked(live=[False, away, away, away, True, away, away, False, False])

    told = watched(replace(APP, liveness=LIVE), asked_)

    assert told[-1].failure
    assert asked_.log == ["live"] * 9


def test_the_first_time_is_counted_from_the_start():
    late = replace(READY, delay=1000, period=1)

    assert len(watched(replace(APP, readiness=late), Asked(ready=[True]), times=2, ago=1000 * TICK)) == 2


def test_nobody_is_asked_before_the_time():
    asked_ = Asked(ready=[True])

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(prober(replace(READY, delay=1000), asked_).run(), 5 * TICK))

    assert asked_.log == []


def test_a_clock_that_is_set_back_keeps_nobody_waiting():
    asked_ = Asked(ready=[True])
    times = iter([0.0, *(-1000.0 * number for number in range(1000))])
    target = ProbeTarget(
        container=replace(APP, readiness=replace(READY, delay=1)), address=HOME, execute=asked_.execute
    )
    turned = Prober(target, report=lambda _: None, since=0.0, now=lambda: next(times), second=TICK)

    async def three_times() -> None:
        running = asyncio.create_task(turned.run())
        await asked_.asked(3)
        running.cancel()

    asyncio.run(asyncio.wait_for(three_times(), 10))


def prober(probe: Probe, asked_: Asked) -> Prober:
    """One that asks whether a container is ready, which has just been started."""
    target = ProbeTarget(container=replace(APP, readiness=probe), address=HOME, execute=asked_.execute)
    return Prober(target, report=lambda _: None, since=time.monotonic(), now=time.monotonic, second=TICK)
