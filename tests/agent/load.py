"""Load on an agent, and invariants that hold after every kill."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from socket import AF_UNIX, SHUT_WR, SOCK_STREAM, socket
from typing import Any

from alignup.align import bits
from tests.agent.agents import Agent, Document, pod, running
from tests.agent.plugin_rig import GPUS, wait_for_devices
from tests.deadlines import wait_for
from tests.effort import did
from tests.testing.processes import start_plugin

#: Errors of a client whose server is killed.
BROKEN = (OSError, HTTPException)


class UnixConnection(HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("agent", timeout=60)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket(AF_UNIX, SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)

    def send_json(self, method: str, path: str, document: object = None) -> tuple[int, Any]:
        """Status and document of the answer."""
        body = None if document is None else json.dumps(document)
        self.request(method, path, body, {"Content-Type": "application/json"})
        response = self.getresponse()
        return response.status, json.loads(response.read())


@dataclass
class Client:
    """A client that admits and releases pods, and records the acknowledged decisions."""

    name: str
    random: random.Random
    gpus: float = 0.2  #: the fraction of pods that request a GPU
    cpus: tuple[str, ...] = ("1", "1", "2", "500m")  #: their CPU requests
    has: dict[str, list[Document]] = field(default_factory=dict)  #: uid → the acknowledged placements
    waits: set[str] = field(default_factory=set)  #: waiting, or admitted meanwhile
    gone: set[str] = field(default_factory=set)  #: released
    open: str = ""  #: the request during the kill, whose result is unknown
    sent: int = 0
    with_devices: int = 0  #: the number of pods with acknowledged devices

    def work(self, path: Path) -> None:
        """Go on until the agent is killed."""
        try:
            with closing(UnixConnection(path)) as connection:
                while True:
                    self._step(connection)
        except BROKEN:
            return

    def _step(self, connection: UnixConnection) -> None:
        mine = [*self.has, *self.waits]
        if mine and (len(mine) > 4 or self.random.random() < 0.4):
            self._release(connection, self.random.choice(mine))
        else:
            self._admit(connection)

    def _admit(self, connection: UnixConnection) -> None:
        self.sent += 1
        uid = self.open = f"{self.name}-{self.sent}"
        request = {"cpu": self.random.choice(self.cpus), "memory": "64Mi"}
        if self.random.random() < self.gpus:
            request["gpu"] = "1"
        status, response = connection.send_json("POST", "/v1/pods", pod(uid, **request))
        if status == 201:
            self.has[uid] = response["decision"]["placements"]
            self.with_devices += "device" in self.has[uid][0]["given"]
        elif status == 202:
            self.waits.add(uid)
        else:
            assert status == 409, response
            self.gone.add(uid)
        self.open = ""

    def _release(self, connection: UnixConnection, uid: str) -> None:
        self.open = uid
        status, response = connection.send_json("DELETE", f"/v1/pods/{uid}")
        assert status == 200, response
        self.has.pop(uid, None)
        self.waits.discard(uid)
        self.gone.add(uid)
        self.open = ""

    def check(self, pods: dict[str, Document]) -> None:
        """Every promise was kept; what was under way is one way or the other, and whole."""
        for uid, placements in self.has.items():
            if uid != self.open:
                assert pods[uid]["placements"] == placements, f"{uid} has not what it was promised"
        for uid in self.waits - {self.open}:
            assert uid in pods, f"{uid} waited, and is forgotten"
        for uid in self.gone - {self.open}:
            assert uid not in pods, f"{uid} was released, and is back"
        self._settle(pods)

    def _settle(self, pods: dict[str, Document]) -> None:
        """Find out how what was under way ended, and who has stopped waiting."""
        document = pods.get(self.open)
        if self.open and document is None:
            self.has.pop(self.open, None)
            self.waits.discard(self.open)
        elif self.open:
            self.waits.add(self.open)
        for uid in [uid for uid in self.waits if pods[uid]["status"] == "admitted"]:
            self.waits.discard(uid)
            self.has[uid] = pods[uid]["placements"]
        self.open = ""


def check_nothing_twice(pods: dict[str, Document]) -> None:
    """Check that no CPU and no device belongs to two pods."""
    cpus, devices = 0, Counter[str]()
    for uid, document in pods.items():
        for placement in document["placements"] if document["status"] == "admitted" else ():
            holdings = placement["given"]
            exclusive = bits.parse(holdings.get("cpu", {}).get("cpu", ""))
            assert not exclusive & cpus, f"CPUs {bits.show(exclusive & cpus)} of {uid} belong to another pod too"
            cpus |= exclusive
            devices.update(name for ids in holdings.get("device", {}).values() for name in ids.split(","))
    assert not [name for name, count in devices.items() if count > 1]


#: Options of agents under load: pods may wait.
WAITING = ("--on-misfit", "wait", "--patience", "4")
PODS_PER_KILL = 7  #: at least


def kill_again_and_again(root: Path, *, kills: int, seed: int, clients: int = 3) -> int:
    """Kill an agent under load at random moments and check it after each; return the number of submitted pods."""
    rng = random.Random(seed)
    workers = [Client(f"client{number}", random.Random(seed + number)) for number in range(clients)]
    for _ in range(kills):
        with running(root, *WAITING) as agent:
            _check_agent(agent, workers)
            with _load(agent, workers):
                _wait_for_pods(workers, rng.randint(PODS_PER_KILL, 2 * PODS_PER_KILL))
                time.sleep(rng.uniform(0, 0.02))  # a random moment, also in the middle of a request
                agent.kill()
        did("agents killed")
    with running(root, *WAITING) as agent:
        _check_agent(agent, workers)
        for uid in agent.pods():
            assert agent.release(uid).status_code == 200
        assert agent.pods() == {}
        assert agent.admit("whole", cpu="4").status_code == 201
    return sum(client.sent for client in workers)


def kill_plugins_too(root: Path, *, kills: int, seed: int, clients: int = 3) -> None:
    """Kill an agent and its GPU plugin in turn, under load."""
    rng = random.Random(seed)
    workers = [
        Client(f"client{number}", random.Random(seed + number), gpus=0.4, cpus=("1", "100m"))
        for number in range(clients)
    ]
    plugin = start_plugin(root / "device-plugins", *GPUS, "--preferred", "highest")
    try:
        for _ in range(kills):
            with running(root, *WAITING, devices="") as agent:
                wait_for_devices(agent)
                _check_agent(agent, workers)
                with _load(agent, workers):
                    _wait_for_pods(workers, rng.randint(2, 4), with_devices=True)
                    plugin.kill()
                    plugin.join()
                    _wait_for_pods(workers, rng.randint(1, 6))
                    plugin = start_plugin(root / "device-plugins", *GPUS, "--preferred", "highest")
                    _wait_for_pods(workers, rng.randint(1, 12))
                    agent.kill()
            did("agents killed")
            did("plugins killed")
        with running(root, *WAITING, devices="") as agent:
            wait_for_devices(agent)
            _check_agent(agent, workers)
            check_granted(agent.pods())
            for uid in agent.pods():
                assert agent.release(uid).status_code == 200
            for uid in ("one", "two"):
                assert agent.admit(uid, cpu="1", gpu="2").status_code == 201
    finally:
        plugin.kill()
        plugin.join()


@contextmanager
def _load(agent: Agent, workers: list[Client]) -> Iterator[None]:
    """Clients that work until the agent is killed."""
    threads = [threading.Thread(target=client.work, args=(agent.root / "agent.sock",)) for client in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        if agent.process.is_alive():
            agent.kill()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


def _wait_for_pods(workers: list[Client], count: int, *, with_devices: bool = False) -> None:
    """Wait until the clients have submitted this many more pods, or such with acknowledged devices."""

    def pods() -> int:
        return sum(client.with_devices if with_devices else client.sent for client in workers)

    enough = pods() + count
    wait_for(lambda: pods() >= enough, describe=lambda: "more pods", interval=0.001)


def check_granted(pods: dict[str, Document]) -> None:
    """Check that every pod with a device has its grant."""
    for uid, document in pods.items():
        for placement in document["placements"] if document["status"] == "admitted" else ():
            for resource, ids in placement["given"].get("device", {}).items():
                grant = document["grants"][placement["container"]][resource]
                assert grant["envs"] == {"GPU_DEVICES": ids}, f"{uid} was given something else"


def _check_agent(agent: Agent, workers: list[Client]) -> None:
    assert agent.ready(), agent.http.get("/readyz").text
    pods = agent.pods()
    check_nothing_twice(pods)
    for client in workers:
        client.check(pods)


def memory_of(agent: Agent) -> int:
    """The resident memory of an agent in bytes."""
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def come_and_go(agent: Agent, count: int, *, at_once: int = 5) -> None:
    """Admit and release *count* pods, a few at a time."""
    with closing(UnixConnection(agent.root / "agent.sock")) as connection:
        for number in range(count + at_once):
            if number < count:
                document = pod(f"pod-{number}", cpu="1", memory="64Mi")
                status, response = connection.send_json("POST", "/v1/pods", document)
                assert status == 201, response
            if number >= at_once:
                assert connection.send_json("DELETE", f"/v1/pods/pod-{number - at_once}")[0] == 200


def nonsense(agent: Agent, count: int, *, seed: int) -> None:
    """Send *count* malformed requests, each on a new connection."""
    rng = random.Random(seed)
    for _ in range(count):
        with socket(AF_UNIX, SOCK_STREAM) as caller:
            caller.settimeout(60)
            caller.connect(str(agent.root / "agent.sock"))
            try:
                request, whole = _rubbish(rng)
                caller.sendall(request)
                if rng.random() < 0.7:
                    if not whole:  # the server would wait for more
                        caller.shutdown(SHUT_WR)
                    caller.recv(4096)
            except (BrokenPipeError, ConnectionResetError):  # the server may close the connection
                continue


def _rubbish(rng: random.Random) -> tuple[bytes, bool]:
    """Random bytes, truncated requests, wrong lengths, deep and invalid documents; and whether a response is due."""
    body = rng.choice(
        (
            b"",
            b"[" * 5_000,
            b'{"a":' * 2_000,
            rng.randbytes(200),
            json.dumps(pod("x"))[: rng.randrange(1, 200)].encode(),
            json.dumps({**pod("x"), "spec": rng.choice((None, [], {"containers": "none"}, 5))}).encode(),
            json.dumps(pod("x", cpu=rng.choice(("-1", "1e999", "many", "\x00")))).encode(),
            b"a: &a [*a]\n",
        )
    )
    length = len(body) + rng.choice((0, 0, 0, -1, 7))
    kind = rng.choice(("application/json", "application/yaml", "text/html", ""))
    verb = rng.choice(("POST", "POST", "POST", "PATCH", "BREW", "GET"))
    head = f"{verb} /v1/pods{rng.choice(('', '?dryRun=maybe', '/%ff%00'))} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    request = f"{head}Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n".encode() + body
    whole = request, length <= len(body)
    long = b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 9_000
    return rng.choice((whole, whole, whole, (rng.randbytes(300), False), (request[:40], False), (long, False)))
