"""The agent under load: beside the fsync of its disk, with many clients, and with many event streams.

A figure without a unit of time is shown as milliseconds; its note says what it is.
"""

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from select import EPOLLIN, epoll
from socket import AF_UNIX, SOCK_STREAM, socket
from threading import Thread

from bench.bench_agent import (
    ADMISSIONS,
    CONFIG,
    GPU,
    GPUS,
    MANY,
    ROUNDS,
    UnixConnection,
    admissions,
    agent,
    fill,
    pod,
    request,
)
from bench.harness import Figure

CLIENTS, ADMISSIONS_PER_CLIENT, STREAMS = 16, 100, 500


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        root = Path(place)
        (root / "kubelet.json").write_text(json.dumps({**CONFIG, "maxPods": 2 * MANY}))
        with agent(root, devices=(f"{GPU}={GPUS}",)) as (_, connection):
            admissions(connection, ADMISSIONS)
            p50, p99, floor = _beside_the_disk(root, connection)
            yield Figure("durable write of 4 KiB, p50", floor)
            yield Figure("admission over the socket, p50", p50, 0.0016)
            yield Figure("admission: p50 in writes of 4 KiB", p50 / floor, 7, unit="times")
            yield Figure("admission: p99 in p50", p99 / p50, 3, unit="times")
            with ExitStack() as stack:
                for _ in range(STREAMS):
                    _listen(stack, root / "agent" / "agent.sock")
                listened, _, _ = _beside_the_disk(root, connection)
            yield Figure("admission: 500 event streams in none", listened / p50, 2, unit="times")
            seconds = min(_with_clients(root / "agent" / "agent.sock") for _ in range(3))
            yield Figure("one of 16 clients' admissions", seconds, 1 / 1200, f"{1 / seconds:,.0f} a second")
        yield from _with_long_lists(root)


def _with_long_lists(root: Path) -> Iterator[Figure]:
    """Time small requests while another client reads everything that is long, with many pods."""
    (root / "kubelet.json").write_text(json.dumps({**CONFIG, "maxPods": 2 * MANY}))
    with agent(root, name="lists") as (_, connection):
        fill(connection, MANY, cpu="1m", memory="1Mi")
        for path in ("/v1/pods", "/v1/decisions?limit=1000", "/metrics", "/v1/machine", "/v1/picture.svg"):
            worst = min(_longest_delay(root / "lists" / "agent.sock", connection, path) for _ in range(ROUNDS))
            yield Figure(f"longest delay by {path.partition('?')[0]}, {MANY:,} pods", worst, 0.020)


def _longest_delay(path: Path, connection: UnixConnection, url: str) -> float:
    """Return the longest time of a small request while *url* is read by another client; lists are read to their end."""

    def read() -> None:
        other = UnixConnection(path)
        token: str | None = ""
        while token is not None:
            content = other.get(f"{url}?continue={token}" if token else url)
            token = json.loads(content)["metadata"].get("continue") if url == "/v1/pods" else None

    reader = Thread(target=read)
    reader.start()
    longest = 0.0
    while reader.is_alive():
        start = time.perf_counter()
        assert connection.send_json("GET", "/healthz") == 200
        longest = max(longest, time.perf_counter() - start)
    return longest


def _beside_the_disk(root: Path, connection: UnixConnection) -> tuple[float, float, float]:
    """Return p50 and p99 of admissions, and p50 of durable writes in between; the best round of each."""
    rounds, writes = [], []
    for _ in range(ROUNDS):
        rounds.append(sorted(admissions(connection, ADMISSIONS)))
        writes.append(sorted(_durable_write(root) for _ in range(20))[10])
    p50, p99 = (min(times[ADMISSIONS * part // 100] for times in rounds) for part in (50, 99))
    return p50, p99, min(writes)


def _durable_write(root: Path) -> float:
    with (root / "floor").open("wb") as file:
        file.write(b"x" * (4 << 10))
        file.flush()
        start = time.perf_counter()
        os.fdatasync(file.fileno())
        return time.perf_counter() - start


def _with_clients(path: Path) -> float:
    """Return the seconds for one admission with many clients, each with its own connection.

    They are in one other process, which sends prepared requests: they must not compete with the agent for the CPUs.
    """
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_clients, args=(path, theirs))
    process.start()
    seconds: float = mine.recv()
    process.join()
    assert process.exitcode == 0
    return seconds / (CLIENTS * ADMISSIONS_PER_CLIENT)


def _clients(path: Path, parent: Connection) -> None:
    turn = time.monotonic_ns()
    requests = [
        [
            request("POST", "/v1/pods", pod(f"client-{turn}-{client}-{number}", cpu="10m", memory="1Mi"))
            for number in range(ADMISSIONS_PER_CLIENT)
        ]
        for client in range(CLIENTS)
    ]
    left = {
        connection.socket.fileno(): (connection, wanted)
        for connection, wanted in ((UnixConnection(path), wanted) for wanted in requests)
    }
    with epoll() as ready:
        for file in left:
            ready.register(file, EPOLLIN)
        start = time.perf_counter()
        for connection, wanted in left.values():
            connection.socket.sendall(wanted.pop())
        while left:
            for file, _ in ready.poll():
                connection, wanted = left[file]
                status, _ = connection.receive()
                assert status == 201, status
                if wanted:
                    connection.socket.sendall(wanted.pop())
                else:
                    ready.unregister(file)
                    del left[file]
        parent.send(time.perf_counter() - start)


def _listen(stack: ExitStack, path: Path) -> None:
    """Open an event stream, and read it in a thread."""
    stream = stack.enter_context(socket(AF_UNIX, SOCK_STREAM))
    stream.connect(str(path))
    stream.sendall(b"GET /v1/events HTTP/1.1\r\nHost: agent\r\n\r\n")

    def read() -> None:
        while stream.fileno() >= 0 and stream.recv(1 << 16):
            pass

    Thread(target=read, daemon=True).start()
