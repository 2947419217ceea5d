"""Admitting runs through the agent: requests on the wire, and error responses."""

import json
import socket
import sys
import threading
from contextlib import contextmanager

import pytest

from alignup.align.workload.names import POLICY_ANNOTATION
from alignup.cli.run import _print_admission
from alignup.run.agent_allocator import AgentAllocator, pod_manifest
from alignup.run.request import RunRejectedError, RunRequest, build_environment
from alignup.web.address import UnixAddress
from alignup.web.agent_client import AgentClient, AgentError

REQUEST = RunRequest(uid="1", name="web", amounts={"cpu": "1", "example.com/gpu": "1"}, policy="restricted")
PLACEMENT = {
    "container": "run",
    "hint": {"nodes": "0", "preferred": True},
    "given": {"cpu": {"cpu": "0"}, "device": {"example.com/gpu": "gpu-3"}},
}
DECISION = {"policy": "restricted", "rejection": None, "placements": [PLACEMENT]}
GRANTS = {"run": {"example.com/gpu": {"envs": {"GPU_SLOT": "3"}, "mounts": []}}}
ADMITTED = {"outcome": "admitted", "pod": {"uid": "1", "grants": GRANTS}, "decision": DECISION, "explanation": []}
MACHINE = {"devices": [{"resource": "example.com/gpu", "id": "gpu-3", "nodes": "0"}]}


@contextmanager
def agent(path, *responses):
    """Serve one response per connection; yield a client and the list of requests."""
    requests: list[bytes] = []

    def serve(listening):
        for response in responses:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(60)
                requests.append(connection.recv(1 << 16))
                connection.sendall(response)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=serve, args=[listening])
        thread.start()
        try:
            yield AgentClient(UnixAddress(path)), requests
        finally:
            thread.join()


def response(status, document):
    return f"HTTP/1.1 {status} So\r\nContent-Type: x\r\n\r\n{json.dumps(document)}".encode()


def allocator(client):
    return AgentAllocator(client, online=3, explain=lambda admission: _print_admission(admission, file=sys.stderr))


def test_variables_from_a_device_plugin_reach_the_command(short_path):
    with agent(short_path / "sock", response(201, ADMITTED), response(200, MACHINE)) as (client, requests):
        placement = allocator(client).admit(REQUEST)

    head, _, body = requests[0].partition(b"\r\n\r\n")
    sent = json.loads(body)
    variables = build_environment(REQUEST, placement)
    assert head.startswith(b"POST /v1/pods HTTP/1.0\r\n")
    assert sent["metadata"]["annotations"] == {POLICY_ANNOTATION: "restricted"}
    assert sent["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1", "memory": "1Mi", "example.com/gpu": "1"}
    assert variables["GPU_SLOT"] == "3"
    assert variables["ALIGNUP_DEVICES_EXAMPLE_COM_GPU"] == "gpu-3"
    assert placement.devices == {"example.com/gpu": {"gpu-3": 1}}
    assert placement.strict


def test_a_run_that_would_wait_is_rejected_and_released(short_path, capsys):
    rejection = {"reason": "TopologyAffinityError", "message": "Resources cannot be allocated"}
    waiting = {
        "outcome": "waiting",
        "decision": {**DECISION, "rejection": rejection},
        "explanation": ["It waits.", "So\x1b"],
    }

    with (
        agent(short_path / "sock", response(202, waiting), response(200, {"pod": {}})) as (client, requests),
        pytest.raises(RunRejectedError, match="TopologyAffinityError") as error,
    ):
        allocator(client).admit(REQUEST)
    error.value.show()

    assert requests[1].startswith(b"DELETE /v1/pods/1 HTTP/1.0\r\n")
    assert capsys.readouterr().err == "It waits.\nSo\\x1b\nResources cannot be allocated\n"


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        pytest.param(
            response(503, {"detail": "not now", "errors": [{"field": "", "message": "recovering"}]}),
            "recovering",
            id="service unavailable",
        ),
        pytest.param(response(500, {"detail": "wrong"}), "wrong", id="an internal error"),
    ],
)
def test_error_responses_are_errors(short_path, sent, message):
    with agent(short_path / "sock", sent) as (client, _), pytest.raises(AgentError, match=message):
        client.admit(pod_manifest(REQUEST))
