"""The agent as a process, with a socket, a root directory and signals."""

import fcntl
import json
import os
import select
import signal
import socket
import ssl
import stat
import threading
from itertools import islice
from urllib.parse import quote

import httpx2
import pytest

from alignup.align.errors import ParseError
from alignup.store.database import NAME
from alignup.web.address import default_root, parse_address
from tests.agent.agent_process import serve_command
from tests.agent.agents import CONFIG, Agent, arguments, pod, run_until_exit, running
from tests.agent.states import stored
from tests.certificates import ca_file, install
from tests.deadlines import wait_for
from tests.forked_processes import forked
from tests.short_paths import short_directory


@pytest.fixture(scope="module")
def shared():
    """One agent for all tests that leave no pods."""
    with short_directory() as directory, running(directory / "root") as agent:
        yield agent


@pytest.fixture
def agent(shared):
    """The agent, after all earlier events are dispatched."""
    shared.get("/v1/decisions?limit=1")
    return shared


def test_an_admission_is_durable_before_the_answer(agent):
    answer = agent.admit("web", cpu="3")

    held = stored(agent.root).pods
    (placement,) = answer.json()["decision"]["placements"]
    assert answer.status_code == 201
    assert placement["given"]["cpu"]["cpu"] == "1-3"
    assert [pod.entry.cpus.containers["app"] for pod in held] == ["1-3"]
    assert agent.release("web").status_code == 200
    assert stored(agent.root).pods == []


@pytest.mark.parametrize(("uid", "status"), [("a/b", 422), ("x" * 1_025, 422), ("x" * 1_024, 201), ("a?b#c%2F é", 201)])
def test_every_admitted_pod_can_be_released(agent, uid, status):
    answer = agent.http.post("/v1/pods", json=pod("odd", cpu="1") | {"metadata": {"name": "odd", "uid": uid}})

    assert answer.status_code == status
    released = agent.release(quote(uid, safe=""))
    assert (released.status_code == 200) == (status == 201)
    assert agent.pods() == {}


def test_the_history_has_a_decision_as_soon_as_it_is_answered(agent):
    agent.admit("seen", cpu="2")
    rejected = agent.admit("unseen", cpu="9")

    kept = agent.get("/v1/decisions?limit=2")["decisions"]
    detail = agent.get(f"/v1/decisions/{kept[0]['id']}")

    assert rejected.status_code == 409
    assert [each["decision"]["pod"]["name"] for each in kept] == ["unseen", "seen"]
    assert detail["explanation"][0].startswith("Pod default/unseen is rejected")
    agent.release("seen")


def test_the_log_has_one_line_per_decision(agent):
    agent.admit("logged", cpu="2")
    agent.release("logged")

    wait_for(lambda: any(line.get("uid") == "logged" and line["event"] == "released" for line in agent.log()))
    lines = [line for line in agent.log() if line.get("uid") == "logged"]
    assert [line["event"] for line in lines] == ["admitted", "released"]
    assert list(lines[0])[:3] == ["timestamp", "level", "event"]
    assert "CPUs 1-2" in lines[0]["placed"]


def test_metrics_count_decisions(agent):
    def value(name):
        text = agent.http.get("/metrics").text
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} "))

    before = value("kubelet_topology_manager_admission_requests_total")
    agent.admit("counted", cpu="2")
    agent.admit("counted", cpu="2")
    agent.http.post("/v1/pods?dryRun=true", json=pod("never"))
    agent.admit("rejected", cpu="9")
    agent.release("counted")

    wait_for(lambda: value("kubelet_topology_manager_admission_requests_total") == before + 2)


def test_events_are_streamed(agent):
    with agent.http.stream("GET", "/v1/events") as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith(":")
        agent.admit("received", cpu="2")
        agent.release("received")
        events = [json.loads(line.removeprefix("data: ")) for line in islice(_data(lines), 2)]

    assert [(event["kind"], event["detail"]["pod"]["uid"]) for event in events] == [
        ("admitted", "received"),
        ("released", "received"),
    ]
    assert events[1]["id"] == events[0]["id"] + 1


def _data(lines):
    return (line for line in lines if line.startswith("data: "))


def test_only_the_owner_can_access_the_files(agent):
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in agent.root.iterdir() if not path.is_dir()}

    assert stat.S_IMODE(agent.root.stat().st_mode) == 0o700
    assert set(modes.values()) == {0o600}
    assert {"agent.sock", NAME, f"{NAME}-wal"} <= modes.keys()


def test_a_second_agent_on_the_same_directory_names_the_first(agent):
    code, output = run_until_exit(agent.root)

    assert code == 1
    assert f"another agent (pid {agent.process.pid}) uses {agent.root}" in output
    assert agent.ready()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_stops_the_agent_cleanly(tmp_path, number):
    with running(tmp_path / "root") as agent:
        agent.admit("web", cpu="3")

        assert agent.stop(number) == 0

    assert not (agent.root / "agent.sock").exists()
    assert agent.log()[-1]["event"] == "stopped"


def test_a_log_that_nobody_reads_stops_no_decision(tmp_path):
    root, fifo = tmp_path / "root", tmp_path / "log"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDWR)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    process = forked(serve_command, arguments(root), fifo, {}, None)
    http = httpx2.Client(
        transport=httpx2.HTTPTransport(uds=str(root / "agent.sock"), verify=False), base_url="http://agent"
    )
    agent = Agent(process, root, fifo, http)
    wait_for((root / "agent.sock").exists)

    for _ in range(30):
        assert agent.admit("a", cpu="2").status_code == 201
        assert agent.release("a").status_code == 200

    assert agent.ready()
    assert len(select.select([reader], [], [], 0)[0]) == 1  # the log is full of earlier lines
    threading.Thread(target=_drain, args=(reader,), daemon=True).start()
    assert agent.stop() == 0


def _drain(reader):
    while b'"event": "stopped"' not in os.read(reader, 1 << 16):
        pass


def test_sighup_does_not_stop_the_agent(agent):
    agent.send(signal.SIGHUP)
    wait_for(lambda: any("SIGHUP" in line["event"] for line in agent.log()))

    assert agent.ready()


def test_a_restart_restores_everything(tmp_path):
    options = ("--on-misfit", "wait")
    with running(tmp_path / "root", *options) as agent:
        agent.admit("a", cpu="4", gpu="1")
        agent.admit("b", cpu="3")
        waits = agent.admit("c", cpu="4")
        before = agent.pods()
    with running(tmp_path / "root", *options) as agent:
        after = agent.pods()
        agent.release("a")
        then = agent.pods()

    assert waits.status_code == 202
    assert {uid: shown["placements"] for uid, shown in after.items()} == {
        uid: shown["placements"] for uid, shown in before.items()
    }
    assert (after["c"]["status"], after["c"]["position"]) == ("waiting", 1)
    assert then["c"]["status"] == "admitted"


def test_systemd_is_notified_of_readiness_liveness_and_shutdown(tmp_path):
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind(address)
        received.settimeout(60)
        env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "300000"}
        with running(tmp_path / "root", env=env) as agent:
            messages = [received.recv(1000).decode() for _ in range(3)]
            agent.send(signal.SIGTERM)
            while "STOPPING=1" not in messages:
                messages.append(received.recv(1000).decode())

    assert sum(message.startswith("READY=1\nSTATUS=0 pods") for message in messages) == 1
    assert messages.count("WATCHDOG=1") >= 2


def test_tcp_requires_a_token(tmp_path):
    token = tmp_path / "token"
    token.write_text("let-me-in\n")
    token.chmod(0o600)
    listen = ("--listen", "127.0.0.1:0")

    code, output = run_until_exit(tmp_path / "root", *listen)
    with running(tmp_path / "root", *listen, "--token-file", token) as agent:
        (address,) = [line["at"] for line in agent.log() if line["event"] == "listening"]
        url = f"http://{address}/v1/pods"
        without = httpx2.get(url, verify=False).status_code
        with_it = httpx2.get(url, verify=False, headers={"Authorization": "Bearer let-me-in"}).status_code

    assert code == 2
    assert "--token-file" in output
    assert (without, with_it) == (401, 200)


def test_a_changed_machine_is_reported_with_a_remedy_and_without_a_crash_loop(tmp_path):
    with running(tmp_path / "root") as agent:
        agent.admit("a", cpu="2")
        agent.admit("b", cpu="4")
    smaller = {"machine": "pack:2 numa:1(memory=16GiB) core:3 pu:1"}
    before = (tmp_path / "root" / NAME).read_bytes()

    with running(tmp_path / "root", **smaller) as agent:
        ready, rejected = agent.http.get("/readyz"), agent.admit("c")
        shown = agent.pods()
        tried = agent.http.post("/v1/pods?dryRun=true", json=pod("c"))
    untouched = (tmp_path / "root" / NAME).read_bytes() == before
    with running(tmp_path / "root", "--recover", "drop-misfits", **smaller) as agent:
        after, admitted = agent.pods(), agent.admit("c")
        notes = [line["detail"] for line in agent.log() if line["event"] == "recovered"]

    assert (ready.status_code, rejected.status_code, tried.status_code) == (503, 503, 200)
    assert "--recover drop-misfits" in ready.json()["errors"][0]["message"]
    assert list(shown) == ["a"]
    assert untouched
    assert list(after) == ["a"]
    assert admitted.status_code == 201
    assert any("default/b" in note for note in notes)


def test_a_damaged_database_is_reported_and_can_be_set_aside(tmp_path):
    with running(tmp_path / "root") as agent:
        agent.admit("a", cpu="2")
    database = tmp_path / "root" / NAME
    database.write_bytes(database.read_bytes()[:-8192])
    damaged = database.read_bytes()

    with running(tmp_path / "root") as agent:
        ready, rejected, history = agent.http.get("/readyz"), agent.admit("c"), agent.http.get("/v1/decisions")
    untouched = database.read_bytes() == damaged
    with running(tmp_path / "root", "--recover", "set-aside") as agent:
        empty, admitted = agent.pods(), agent.admit("c")
        notes = [line["detail"] for line in agent.log() if line["event"] == "recovered"]

    assert (ready.status_code, rejected.status_code, history.status_code) == (503, 503, 503)
    assert "or start with --recover set-aside to rename it and start empty" in ready.json()["errors"][0]["message"]
    assert untouched
    assert empty == {}
    assert admitted.status_code == 201
    assert database.with_name(f"{NAME}.aside-1").read_bytes() == damaged
    assert any(f"set aside: {NAME}.aside-1" in note for note in notes)


def test_a_new_root_directory_is_exported_as_an_idle_machine(tmp_path):
    code, output = run_until_exit(tmp_path / "new", "--export", tmp_path / "kubelet")

    assert code == 0, output
    assert '"entries"' not in (tmp_path / "kubelet" / "cpu_manager_state").read_text()


def test_a_kubelets_state_is_imported_and_exported(tmp_path):
    with running(tmp_path / "root") as agent:
        agent.admit("a", cpu="3", gpu="1")
        agent.admit("b", cpu="2")
        before = agent.pods()
    state = tmp_path / "kubelet"

    code, output = run_until_exit(tmp_path / "root", "--export", state)
    with running(tmp_path / "other", "--state", state) as agent:
        after = agent.pods()
        released = [agent.release(uid).status_code for uid in after]
        empty = agent.pods()

    assert code == 0, output
    assert {path.name for path in state.iterdir()} == {"cpu_manager_state", "memory_manager_state", "device-plugins"}
    assert {uid: shown["placements"][0]["given"] for uid, shown in after.items()} == {
        uid: shown["placements"][0]["given"] for uid, shown in before.items()
    }
    assert released == [200, 200]
    assert empty == {}


def test_an_invalid_configuration_is_rejected_with_its_field(tmp_path):
    wrong = {**CONFIG, "topologyManagerPolicy": "strictest"}

    code, output = run_until_exit(tmp_path / "root", config=wrong)

    assert code == 2
    assert "topologyManagerPolicy" in output
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("unix:/run/a.sock", "unix:/run/a.sock", id="a socket"),
        pytest.param(":8080", "127.0.0.1:8080", id="a port of this machine"),
        pytest.param("0.0.0.0:80", "0.0.0.0:80", id="all addresses"),
        pytest.param("[::1]:80", "[::1]:80", id="six"),
        pytest.param("node-1:80", "node-1:80", id="a name"),
        pytest.param("https://node-1:80/", "https://node-1:80", id="with TLS"),
        pytest.param("http://[::1]:80", "http://[::1]:80", id="without TLS"),
    ],
)
def test_addresses(text, shown):
    assert str(parse_address(text)) == shown


def test_servers_listen_at_a_port_without_a_host_on_all_addresses():
    assert str(parse_address(":8080", listening=True)) == "0.0.0.0:8080"
    assert str(parse_address("localhost:8080", listening=True)) == "localhost:8080"


@pytest.mark.parametrize(
    "text", ["", "unix:", "8080", "host:", "host:99999", "http://host", "ftp://host:80", "host:80/", "::1:80"]
)
def test_invalid_addresses_are_rejected(text):
    with pytest.raises(ParseError, match="is not an address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("environment", "uid", "path"),
    [
        pytest.param({}, 0, "/var/lib/alignup", id="root"),
        pytest.param({"XDG_STATE_HOME": "/s", "HOME": "/home/a"}, 7, "/s/alignup", id="a user with XDG_STATE_HOME"),
        pytest.param({"HOME": "/home/a"}, 7, "/home/a/.local/state/alignup", id="a user"),
        pytest.param({"XDG_STATE_HOME": "s", "HOME": "/home/a"}, 7, "/home/a/.local/state/alignup", id="no whole path"),
    ],
)
def test_the_default_root_directory(environment, uid, path):
    assert os.fspath(default_root(environment, uid=uid)) == path


def test_other_addresses_require_tls(tmp_path):
    token = tmp_path / "token"
    token.write_text("let-me-in\n")
    token.chmod(0o600)
    certificate, key = install("first", tmp_path)
    listen = ("--listen", "0.0.0.0:0", "--token-file", token)

    code, output = run_until_exit(tmp_path / "root", *listen)
    with running(tmp_path / "root", *listen, "--tls-cert-file", certificate, "--tls-private-key-file", key) as agent:
        (address,) = [line["at"] for line in agent.log() if line["event"] == "listening"]
        context = ssl.create_default_context(cafile=ca_file())
        url = f"https://127.0.0.1:{address.rpartition(':')[2]}/v1/pods"
        with httpx2.Client(verify=context) as client:
            answer = client.get(url, headers={"Authorization": "Bearer let-me-in"})

    assert code == 1
    assert "--tls-cert-file" in output
    assert "--insecure-http" in output
    assert address.startswith("https://")
    assert answer.status_code == 200
