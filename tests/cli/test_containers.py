"""``ps``, ``admit``, ``release``, ``logs`` and ``watch`` where the agent runs containers."""

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from alignup.align.workload import Pod
from alignup.cli.admit import pod_manifest
from alignup.agent.api import AdmissionStatus
from alignup.documents.run_status import ContainerRunStatus, PodRunStatus
from alignup.kubernetes.podspec import PodManifest
from tests.agent.fake_backend import FakeLog, run_of, running
from tests.cli.commands import in_process, start
from tests.cli.fake_agent import serve_fake_agent
from tests.cli.test_entry import examples_of
from tests.deadlines import wait_for
from tests.short_paths import short_directory

CRASHING = ContainerRunStatus(
    name="app", kind="app", state="waiting", restarts=3, reason="CrashLoopBackOff", message="back-off 40s"
)
LOG = ("default-web", "app", False)


@pytest.fixture
def node():
    with short_directory() as place, serve_fake_agent(place) as node:
        yield node


@pytest.fixture
def call(node):
    return lambda *words, **how: in_process(*words, env=node.env, **how)


def test_ps_lists_pods_with_their_status(node, call):
    node.admit("web", run_of(running(cpus=0b110), running("side", ready=False, restarts=2), ips=("10.0.0.7",)))
    node.admit("worker", run_of(CRASHING))
    uid = node.admit("job", PodRunStatus(phase="Failed", reason="DeadlineExceeded", message="it took too long"))
    node.call(lambda agent: agent.known.update({uid: replace(agent.known[uid], status=AdmissionStatus.FINISHED)}))
    node.admit("huge", cpu="12")

    plain = call("ps")
    wide = call("ps", "-o", "wide")

    rows = {line.split()[0]: line.split() for line in plain.stdout.splitlines()}
    assert rows["POD"][:5] == ["POD", "READY", "STATUS", "RESTARTS", "QOS"]
    assert rows["default/web"][1:4] == ["1/2", "Running", "2"]
    assert rows["default/worker"][1:4] == ["0/1", "CrashLoopBackOff", "3"]
    assert plain.stdout.splitlines()[2].endswith("memory on NUMA node 0; app: CrashLoopBackOff: back-off 40s")
    assert rows["default/job"][1:4] == ["0/0", "DeadlineExceeded", "0"]
    assert rows["default/job"][5] == "-"
    assert rows["default/huge"][1:5] == ["-", "waiting", "(1)", "-"]
    assert "default-web" not in plain.stdout
    assert wide.stdout.splitlines()[1].split()[8:12] == ["default-web", "10.0.0.7", "app:1-2", "side:any"]


def test_admit_prints_notes_on_ignored_fields(node, call, tmp_path):
    node.admit("web", run_of(warnings=("spec.hostAliases is ignored",)))
    file = tmp_path / "web.yaml"
    limits = '{limits: {cpu: "1", memory: 1Gi}}'
    metadata = "{name: web, uid: default-web}"
    file.write_text(
        f"apiVersion: v1\nkind: Pod\nmetadata: {metadata}\n"
        f"spec: {{containers: [{{name: app, image: x, resources: {limits}}}]}}\n"
    )

    run = call("admit", "-f", file)

    assert run.stdout.startswith("default/web is already admitted: app: CPU 2 ")
    assert (run.returncode, run.stderr) == (0, "note: default/web: spec.hostAliases is ignored\n")


def test_a_pod_is_sent_with_its_own_manifest():
    """A replica has the manifest of its workload, with its own name and uid."""
    written = {
        "metadata": {"name": "web", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "app", "image": "x"}]},
    }

    found = pod_manifest(Pod(name="web-1", namespace="shop", uid="u", manifest=PodManifest(json.dumps(written))))

    assert found["metadata"] == {"name": "web-1", "namespace": "shop", "uid": "u", "labels": {"a": "b"}}
    assert (found["kind"], found["spec"]) == ("Pod", written["spec"])


@pytest.mark.parametrize(
    ("words", "grace"), [((), None), (("--grace", 0), 0)], ids=["default grace period", "no grace period"]
)
def test_release_waits_until_the_containers_are_gone(node, call, words, grace):
    node.admit("web", run_of())
    node.agent.third_poll = lambda: node.agent.remove("default-web")

    run = call("release", "web", *words)

    assert node.agent.polls == 3
    assert run.stdout.startswith("default/web is released: app: CPU 2 ")
    assert (run.returncode, run.stderr, node.agent.graces) == (0, "", [grace])


def test_release_without_waiting(node, call):
    node.admit("web", run_of())
    node.admit("idle")

    run = call("release", "web", "idle", "--no-wait")

    ends, gone = run.stdout.splitlines()
    assert ends.startswith("default/web is terminating: ")
    assert gone.startswith("default/idle is released: ")
    assert list(node.agent.known) == ["default-web"]


def test_release_does_not_wait_for_a_pod_that_runs_again(node, call):
    """It starts again as soon as it has ended, since its manifest is still there."""
    node.admit("web", run_of())
    node.agent.third_poll = lambda: node.agent.run("default-web", run_of())

    assert call("release", "web").returncode == 0
    assert node.agent.polls == 3


@pytest.mark.parametrize(
    ("words", "text"),
    [
        pytest.param((), "one\ntwo\n", id="all"),
        pytest.param(("--tail", 1), "two\n", id="last line"),
        pytest.param(("--tail", 0), "", id="nothing"),
        pytest.param(("-c", "side", "-p"), "alas\n", id="previous instance"),
        pytest.param(("--timestamps", "--tail", 1), "2027-01-15T08:00:00Z two\n", id="timestamps"),
        pytest.param(("-f",), "one\ntwo\n", id="follow"),
    ],
)
def test_logs_print_the_output_of_a_container(node, call, words, text):
    node.admit("web", run_of(running("app"), running("side")))
    node.agent.container_logs |= {LOG: FakeLog(b"one\n", b"two\n"), ("default-web", "side", True): FakeLog(b"alas\n")}

    run = call("logs", "default/web", *words)

    assert (run.returncode, run.stdout, run.stderr) == (0, text, "")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(("missing",), 1, "pod missing not found", id="an unknown pod"),
        pytest.param(("web", "-c", "x"), 1, "pod default-web has no container x", id="an unknown container"),
        pytest.param(("web",), 1, "container app has no log", id="a missing log"),
        pytest.param(("web", "--tail", "-1"), 2, "-1 is not in the range", id="no number of lines"),
    ],
)
def test_a_missing_log_is_an_error(node, call, words, code, said):
    node.admit("web", run_of())

    run = call("logs", *words)

    assert (run.returncode, run.stdout) == (code, "")
    assert said in run.stderr


def test_ctrl_c_ends_following_a_log(node):
    node.admit("web", run_of())
    log = node.agent.container_logs[LOG] = FakeLog(b"one\n", over=False)

    with start("logs", "web", "-f", env=node.env) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        node.call(lambda _: log.print(b"\x1b[1mtwo\n"))
        second = process.stdout.readline()
        os.kill(process.pid, 2)
        process.wait(60)
        said = process.stderr.read()

    assert (first, second) == (b"one\n", b"\x1b[1mtwo\n")
    assert (process.returncode, said) == (130, b"")
    wait_for(lambda: not log.readers)


def test_the_examples_of_logs_work(node, call):
    node.admit("web", run_of())
    node.admit("trainer-0", run_of(running("train")))
    node.agent.container_logs |= {LOG: FakeLog(b"one\n"), ("default-trainer-0", "train", False): FakeLog(b"two\n")}

    for example in examples_of(("logs",)):
        words = shlex.split(example.replace("ml/", "default/"))[1:]
        run = call(*words)
        assert (run.returncode, bool(run.stdout)) == (0, True), example


def test_watch_prints_every_event(node, tmp_path):
    pod = {"uid": "u", "namespace": "shop", "name": "web"}
    events = [
        ("started", {"pod": pod, "source": "api", "detail": "container app"}),
        ("ended", {"pod": pod, "source": "api", "detail": "container app: OOMKilled, exit code 137"}),
        ("unheard-of", {"source": "api"}),
    ]
    out = tmp_path / "out"
    with out.open("wb") as file, start("watch", env=node.env, stdout=file.fileno()) as process:
        wait_for(lambda: node.agent.event_bus.subscribers == 1)
        for kind, detail in events:
            node.call(lambda agent, kind=kind, detail=detail: agent.event_bus.publish(kind, detail))
        wait_for(lambda: out.read_bytes().count(b"\n") == len(events))
        process.kill()

    lines = [line.split(maxsplit=1)[1] for line in Path(out).read_text().splitlines()]
    assert lines == [
        "started    shop/web  container app",
        "ended      shop/web  container app: OOMKilled, exit code 137",
        "unheard-of",
    ]
