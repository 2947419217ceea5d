"""Admitting runs through the agent: requests on the wire, and error responses."""

import json
import socket
import sys
import threading
from contextlib import contextmanager

import pytest

from alignup.align import admit
from alignup.cli import agent_client as client
from alignup.cli.agent_client import AgentError, AgentOptions
from alignup.cli.run import _print_admission
from alignup.run import agent_allocator
from alignup.run.agent_allocator import AgentAllocator, pod_manifest
from alignup.run.request import RunRejectedError, RunRequest, build_environment

REQUEST = RunRequest(uid="1", name="web", amounts={"cpu": "1", "example.com/gpu": "1"}, policy="restricted")
PLACEMENT = {
    "container": "run",
    "hint": {"nodes": "0", "preferred": True},
    "given": {"cpu": {"cpu": "0"}, "device": {"example.com/gpu": "gpu-3"}},
}
DECISION = {"policy": "restricted", "rejection": None, "placements": [PLACEMENT]}
GRANTS = {"run": {"example.com/gpu": {"envs": {"GPU_SLOT": "3"}, "mounts": []}}}
ADMITTED = {"outcome": "admitted", "pod": {"uid": "1", "grants": GRANTS}, "decision": DECISION, "story": []}
MACHINE = {"devices": [{"resource": "example.com/gpu", "id": "gpu-3", "nodes": "0"}]}


@contextmanager
def agent(path, *responses):
    """Serve one response per connection; yield a client and the list of requests."""
    requests: list[bytes] = []

    def serve(listening):
        for response in (b"", *responses):  # the first connection only checks that the agent listens
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(60)
                if response:
                    requests.append(connection.recv(1 << 16))
                    connection.sendall(response)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=serve, args=[listening])
        thread.start()
        found = client.find_agent(AgentOptions(agent=f"unix:{path}", token_file=None, ca_file=None))
        assert found is not None
        try:
            yield found, requests
        finally:
            thread.join()


def response(status, document):
    return f"HTTP/1.1 {status} So\r\nContent-Type: x\r\n\r\n{json.dumps(document)}".encode()


def allocator(found):
    return AgentAllocator(found, online=3, explain=lambda admission: _print_admission(admission, file=sys.stderr))


def test_variables_from_a_device_plugin_reach_the_command(tmp_path):
    with agent(tmp_path / "sock", response(201, ADMITTED), response(200, MACHINE)) as (found, requests):
        placement = allocator(found).admit(REQUEST)

    head, _, body = requests[0].partition(b"\r\n\r\n")
    sent = json.loads(body)
    variables = build_environment(REQUEST, placement)
    assert head.startswith(b"POST /v1/pods HTTP/1.0\r\n")
    assert sent["metadata"]["annotations"] == {admit.POLICY_ANNOTATION: "restricted"}
    assert sent["spec"]["containers"][0]["resources"]["limits"] == {
        "cpu": "1",
        "memory": "1Mi",
        "example.com/gpu": "1",
    }
    assert variables["GPU_SLOT"] == "3"
    assert variables["ALIGNUP_DEVICES_EXAMPLE_COM_GPU"] == "gpu-3"
    assert placement.devices == {"example.com/gpu": {"gpu-3": 1}}
    assert placement.strict


def test_a_run_that_would_wait_is_rejected_and_released(tmp_path, capsys):
    rejection = {"reason": "TopologyAffinityError", "message": "Resources cannot be allocated"}
    waiting = {"outcome": "waiting", "decision": {**DECISION, "rejection": rejection}, "story": ["It waits.", "So\x1b"]}

    with (
        agent(tmp_path / "sock", response(202, waiting), response(200, {"pod": {}})) as (found, requests),
        pytest.raises(RunRejectedError, match="TopologyAffinityError") as error,
    ):
        allocator(found).admit(REQUEST)
    error.value.show()

    assert requests[1].startswith(b"DELETE /v1/pods/1 HTTP/1.0\r\n")
    assert capsys.readouterr().err == "It waits.\nSo\\x1b\nResources cannot be allocated\n"


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        pytest.param(
            response(503, {"detail": "not now", "errors": [{"field": "", "what": "recovering"}]}),
            "recovering",
            id="service unavailable",
        ),
        pytest.param(response(500, {"detail": "wrong"}), "wrong", id="an internal error"),
    ],
)
def test_error_responses_are_errors(tmp_path, sent, message):
    with agent(tmp_path / "sock", sent) as (found, _), pytest.raises(AgentError, match=message):
        found.admit(pod_manifest(REQUEST))


def test_a_named_agent_must_answer(tmp_path):
    with pytest.raises(AgentError, match="no agent answers at unix:"):
        client.find_agent(AgentOptions(agent=f"unix:{tmp_path / 'nowhere'}", token_file=None, ca_file=None))


def test_the_copied_annotation_names_are_correct():
    assert agent_allocator.POLICY_ANNOTATION == admit.POLICY_ANNOTATION
    assert agent_allocator.SCOPE_ANNOTATION == admit.SCOPE_ANNOTATION
