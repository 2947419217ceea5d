"""``alignup webhook-certificates``."""

import json

import pytest

from alignup.testing.api_server import ApiFault, ApiServer
from tests.cli.commands import in_process
from tests.observe.api_objects import running_server
from tests.schedule.gate.test_authority_installation import bundles, configuration, stored


@pytest.fixture
def server():
    with running_server(ApiServer()) as started:
        yield started


def install(server, tmp_path, *words):
    server.write_kubeconfig(tmp_path / "config")
    return in_process("webhook-certificates", "--kubeconfig", tmp_path / "config", "-n", "alignup", *words)


def test_it_creates_and_publishes_an_authority_and_says_until_when(server, tmp_path):
    server.put(configuration())
    run = install(server, tmp_path)

    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("API servers trust the authority until 20")
    events = [json.loads(line)["event"] for line in run.stderr.splitlines()]
    assert events == ["authority published", "authority written"]
    (secret,) = server.objects("secrets")
    assert secret["metadata"]["namespace"] == "alignup"
    assert bundles(server) == [stored(server).bundle] * 2

    again = install(server, tmp_path)
    assert again.stdout == run.stdout
    assert [json.loads(line)["event"] for line in again.stderr.splitlines()] == ["the authority is valid"]


def test_a_missing_configuration_and_missing_permissions_are_failures_that_say_what_to_do(server, tmp_path):
    run = install(server, tmp_path)
    assert run.returncode == 1
    assert "alignup-gate" in run.stderr
    assert "Create the namespace and the webhook configuration first" in run.stderr

    server.put(configuration())
    server.inject(ApiFault(status=403, message="secrets is forbidden", times=None), verb="create", resource="secrets")
    run = install(server, tmp_path)
    assert run.returncode == 1
    assert "secrets is forbidden" in run.stderr
    assert "deploy/kubernetes/gate/certificates.yaml grants them" in run.stderr
    assert "Traceback" not in run.stderr
