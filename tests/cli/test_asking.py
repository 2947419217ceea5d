"""Asking an agent about runs: what goes over the wire, and answers that are none."""

import json
import socket
import threading
from contextlib import contextmanager

import pytest

from alignup.agent.service import SELF_RUN_ANNOTATION
from alignup.align.admit import POLICY_ANNOTATION, SCOPE_ANNOTATION
from alignup.cli import asking
from alignup.cli.client import AgentError, AgentOptions
from alignup.runs.request import RunRejectedError, RunRequest, build_environment, resolve_placement

WISH = RunRequest(uid="1", name="web", amounts={"cpu": "1", "example.com/gpu": "1"}, policy="restricted")
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
def agent(path, *answers):
    """Somebody who gives these answers, one a connection, and keeps what was asked."""
    heard: list[bytes] = []

    def serve(listening):
        for answer in (b"", *answers):  # the first only wants to know whether somebody is there
            line, _ = listening.accept()
            with line:
                line.settimeout(10)
                if answer:
                    heard.append(line.recv(1 << 16))
                    line.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=serve, args=[listening])
        thread.start()
        asked = asking.find_agent(AgentOptions(agent=f"unix:{path}", token_file=None))
        assert asked is not None
        yield asked, heard
        thread.join()


def said(status, document):
    return f"HTTP/1.1 {status} So\r\nContent-Type: x\r\n\r\n{json.dumps(document)}".encode()


def test_what_a_plugin_grants_reaches_the_command(tmp_path):
    with agent(tmp_path / "sock", said(201, ADMITTED), said(200, MACHINE)) as (one, heard):
        offer = asking.AgentAllocator(one, online=3).admit(WISH)

    head, _, body = heard[0].partition(b"\r\n\r\n")
    sent = json.loads(body)
    told = build_environment(WISH, resolve_placement(offer))
    assert head.startswith(b"POST /v1/pods HTTP/1.0\r\n")
    assert sent["metadata"]["annotations"] == {SELF_RUN_ANNOTATION: "true", POLICY_ANNOTATION: "restricted"}
    assert sent["spec"]["containers"][0]["resources"]["limits"] == {
        "cpu": "1",
        "memory": "1Mi",
        "example.com/gpu": "1",
    }
    assert told["GPU_SLOT"] == "3"
    assert told["ALIGNUP_DEVICES_EXAMPLE_COM_GPU"] == "gpu-3"
    assert offer.devices == {"example.com/gpu": {"gpu-3": 1}}
    assert offer.strict


def test_who_would_have_to_wait_is_refused_and_forgotten(tmp_path, capsys):
    refusal = {"reason": "TopologyAffinityError", "message": "Resources cannot be allocated"}
    waiting = {"outcome": "waiting", "decision": {**DECISION, "rejection": refusal}, "story": ["It waits.", "So\x1b"]}

    with (
        agent(tmp_path / "sock", said(202, waiting), said(200, {"pod": {}})) as (one, heard),
        pytest.raises(RunRejectedError, match="TopologyAffinityError") as error,
    ):
        asking.AgentAllocator(one, online=3).admit(WISH)
    error.value.show()

    assert heard[1].startswith(b"DELETE /v1/pods/1 HTTP/1.0\r\n")
    assert capsys.readouterr().err == "It waits.\nSo\\x1b\nResources cannot be allocated\n"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param(b"SSH-2.0\r\n", "what answers there is no agent", id="somebody else"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n<html>", "broke off", id="a page"),
        pytest.param(
            said(503, {"detail": "not now", "errors": [{"field": "", "what": "recovering"}]}),
            "recovering",
            id="not now",
        ),
        pytest.param(said(500, {"detail": "wrong"}), "wrong", id="a fault"),
    ],
)
def test_answers_that_are_none_are_errors(tmp_path, answer, message):
    with agent(tmp_path / "sock", answer) as (one, _), pytest.raises(AgentError, match=message):
        one.admit(WISH)


def test_an_agent_that_was_named_has_to_be_there(tmp_path):
    with pytest.raises(AgentError, match="no agent answers at unix:"):
        asking.find_agent(AgentOptions(agent=f"unix:{tmp_path / 'nowhere'}", token_file=None))


def test_annotations_are_called_as_those_call_them_who_heed_them():
    assert (asking.POLICY, asking.SCOPE) == (POLICY_ANNOTATION, SCOPE_ANNOTATION)
    assert asking.RUNS_ITSELF == SELF_RUN_ANNOTATION
