"""``alignup schedule``: its options, and a whole run."""

import json
import signal
import stat
import urllib.request

import pytest

from alignup.testing.replay import replay
from tests.cli.commands import in_process, start
from tests.cli.test_cluster import cluster
from tests.deadlines import wait_for
from tests.observe.api_objects import running_server


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        pytest.param(["--listen", "nowhere"], "nowhere is not an address", id="no address"),
        pytest.param(["--listen", ":8890"], "--listen on the network needs --tls-cert-file", id="open HTTP"),
        pytest.param(["--tls-cert-file", "x"], "need each other", id="certificate without key"),
        pytest.param(
            ["--listen", ":0", "--tls-cert-file", "x", "--tls-private-key-file", "y"],
            "needs --client-ca-file, because clients can bind pods",
            id="any client",
        ),
        pytest.param(["--listen", ":0", "--insecure-http"], "or --token-file, or --any-client", id="any HTTP client"),
        pytest.param(["--token-file", "/nonexistent"], "--token-file: /nonexistent: No such file", id="no token"),
        pytest.param(["--client-ca-file", "x"], "--client-ca-file needs --tls-cert-file", id="authority without TLS"),
        pytest.param(
            ["--tls-cert-file", "x", "--tls-private-key-file", "y", "--insecure-http"], "contradicts", id="both"
        ),
        pytest.param(["--no-extender"], "--no-extender needs --gate", id="nothing to do"),
        pytest.param(
            ["--record", "/nonexistent/x"],
            "--record: cannot create directory /nonexistent/x: No such file or directory",
            id="no place for recordings",
        ),
        pytest.param(["--record", __file__], "cannot create directory", id="recordings in a file"),
        pytest.param(["--offered", "0"], "0 is not in the range", id="no nodes"),
        pytest.param(["--plugin-rule", "nvidia.com/gpu=best"], "'nvidia.com/gpu=best' is not a rule", id="no rule"),
        pytest.param(["--gate", "--webhook-listen", "x"], "x is not an address", id="no address of the webhook"),
        pytest.param(["--gate", "--webhook-cert-file", "x"], "--webhook-private-key-file need each other", id="no key"),
    ],
)
def test_unusable_options(options, problem):
    run = in_process("schedule", "--kubeconfig", "/nonexistent", *options)

    assert run.returncode == 2
    assert problem in run.stderr


def test_a_run_answers_schedulers_and_records_decisions_until_it_is_ended(tmp_path):
    config, folder = tmp_path / "config", tmp_path / "decisions"
    with running_server(cluster()) as server:
        clusters = [{"name": "x", "cluster": {"server": server.url}}]
        contexts = [{"name": "x", "context": {"cluster": "x"}}]
        document = {"apiVersion": "v1", "kind": "Config", "clusters": clusters, "contexts": contexts}
        config.write_text(json.dumps({**document, "current-context": "x"}))
        arguments = (
            "--kubeconfig",
            str(config),
            "--listen",
            "127.0.0.1:0",
            "--no-leader-elect",
            "--record",
            str(folder),
        )
        with start("schedule", *arguments) as process:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, b"")
            started = next(json.loads(line) for line in lines if b'"listening"' in line)
            host, _, port = started["at"].rpartition(":")
            assert host == "127.0.0.1"
            assert any(json.loads(line)["event"] == "leading" for line in lines)
            url = f"http://127.0.0.1:{int(port)}/v1/extender/filter"
            pod = next(pod for pod in server.objects("pods") if pod["metadata"]["name"] == "wide")
            message = json.dumps({"Pod": pod, "NodeNames": ["a", "b", "c"]}).encode()
            request = urllib.request.Request(url, message, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - http
                assert json.load(answer)["NodeNames"] == ["a"]
            process.send_signal(signal.SIGTERM)
            wait_for(lambda: process.poll() is not None)

            assert process.returncode == 0
            assert b"Traceback" not in process.stderr.read()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (recording,) = folder.iterdir()
    result = replay(recording)
    assert (result.difference, result.warning) == (None, "")
    assert '"$":"NodesAsked"' in recording.read_text("utf-8")
