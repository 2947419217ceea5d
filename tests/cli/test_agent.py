"""The commands that talk to the agent, and ``alignup agent``."""

import json
import shlex
import signal
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx2
import pytest

from tests.agent.agents import running, start_with
from tests.cli.commands import environment, in_process, start
from tests.cli.manifests import pod_manifest
from tests.cli.run_processes import start_alignup
from tests.deadlines import wait_for
from tests.short_paths import short_directory
from tools.command_tree import walk

ROOT = Path(__file__).parents[2]
TRAINER = ROOT / "examples" / "node" / "trainer.yaml"


@pytest.fixture(scope="module")
def agent():
    options = ("--on-misfit", "wait", "--web-listen", "127.0.0.1:0")
    with short_directory() as directory, running(directory / "root", *options) as started:
        yield started


def run_command(*words: object, agent: Path | None = None) -> tuple[int, str, str]:
    """Run a command in this process, with the agent at this root; return its exit code, output and error output."""
    run = in_process(*map(str, words), env={"ALIGNUP_AGENT": f"unix:{agent / 'agent.sock'}"} if agent else {}, cwd=ROOT)
    return run.returncode, run.stdout, run.stderr


@pytest.fixture
def call(agent):
    """Run a command with the agent of this module."""
    yield partial(run_command, agent=agent.root)
    for uid in agent.pods():
        agent.release(uid)


@pytest.fixture
def manifest(tmp_path):
    def write(name: str, *, cpu: str = "1", namespace: str = "default") -> Path:
        file: Path = tmp_path / f"{namespace}-{name}.yaml"
        file.write_text(pod_manifest(name, namespace, cpu=cpu, memory="1Gi"))
        return file

    return write


def test_a_pod_is_admitted_listed_and_released(call, manifest):
    admitted = call("admit", "-f", manifest("web", cpu="2"))
    again = call("admit", "-f", manifest("web", cpu="2"))
    rejected = call("admit", "-f", manifest("huge", cpu="9"))
    shown = call("ps")
    released = call("release", "web")
    empty = call("ps")

    assert admitted == (0, "default/web is admitted: app: CPUs 1-2 · 1Gi memory on NUMA node 0\n", "")
    assert again == (0, "default/web is already admitted: app: CPUs 1-2 · 1Gi memory on NUMA node 0\n", "")
    first, *rest = rejected[1].splitlines()
    assert rejected[0] == 1
    assert first.startswith("default/huge is rejected: TopologyAffinityError: ")
    assert any("cpu" in line or "CPUs" in line for line in rest)
    head, row = shown[1].splitlines()
    assert head.startswith("POD          STATUS    QOS")
    assert row.startswith("default/web  admitted  Guaranteed  0      ")
    assert row.endswith("app: CPUs 1-2 · 1Gi memory on NUMA node 0")
    assert released == (0, "default/web is released: app: CPUs 1-2 · 1Gi memory on NUMA node 0\n", "")
    assert empty == (0, "", "No pods found.\n")


def test_every_replica_is_sent(call, tmp_path):
    file = tmp_path / "web.yaml"
    template = "{metadata: {labels: {a: b}}, spec: {containers: [{name: app, image: x}]}}"
    file.write_text(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n"
        f"spec: {{replicas: 3, selector: {{matchLabels: {{a: b}}}}, template: {template}}}\n"
    )

    code, out, _ = call("admit", "-f", file)

    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["default/web-0", "default/web-1", "default/web-2"]


def test_a_dry_run_changes_nothing(call, manifest):
    would = call("admit", "--dry-run", "-f", manifest("web", cpu="2"))
    not_so = call("admit", "--dry-run", "-f", manifest("huge", cpu="9"))

    assert would[:2] == (0, "default/web would be admitted: app: CPUs 1-2 · 1Gi memory on NUMA node 0\n")
    assert not_so[0] == 1
    assert "default/huge would be rejected: TopologyAffinityError" in not_so[1]
    assert call("ps")[1] == ""


def test_admit_waits_for_a_waiting_pod(call, agent, manifest, tmp_path):
    call("admit", "-f", manifest("first", cpu="4"))
    waits = call("admit", "-f", manifest("second", cpu="4"))
    late = call("admit", "-f", manifest("second", cpu="4"), "--wait", "0.3")
    shown = call("ps")
    uids = {pod["name"]: uid for uid, pod in agent.pods().items()}
    words = ("admit", "-f", manifest("second", cpu="4"), "--wait", "120")
    env = environment({"ALIGNUP_AGENT": f"unix:{agent.root / 'agent.sock'}"})
    in_time = start_alignup(*words, directory=tmp_path / "in-time", env=env)
    wait_for(lambda: "\n" in in_time.out)
    agent.release(uids["first"])
    code = in_time.wait()
    again = call(*words, "-o", "json")

    assert waits[0] == 0
    assert waits[1].startswith("default/second is waiting (position 1): TopologyAffinityError: ")
    assert late[0] == 1
    assert "waiting (1)" in shown[1]
    assert (code, in_time.err) == (0, "")
    assert in_time.out.startswith("default/second is waiting (position 1): ")
    assert again[0] == 0
    assert json.loads(again[1])["admissions"][0]["outcome"] == "kept"
    listed = call("decisions", "--outcome", "waiting")[1].splitlines()
    assert [line.split()[2:4] for line in listed[1:]] == [["default/second", "waiting"]]
    assert call("decisions", listed[1].split()[0])[1].splitlines()[0].endswith(": waiting")
    assert "second" not in call("decisions", "--outcome", "rejected")[1]


def test_past_decisions_are_listed_and_explained(call, manifest):
    call("admit", "-f", manifest("small", cpu="2"))
    call("admit", "-f", manifest("large", cpu="9"))

    code, out, _ = call("decisions", "--pod", "small")
    number = out.splitlines()[1].split()[0]
    explanation = call("decisions", number)
    rejected = call("decisions", "--outcome", "rejected", "--limit", "1", "-o", "json")
    none = call("decisions", "--pod", "default/missing")

    assert code == 0
    assert out.splitlines()[0].split()[:4] == ["ID", "AGE", "POD", "OUTCOME"]
    assert "Pod default/small is admitted" in explanation[1]
    assert json.loads(rejected[1])["decisions"][0]["decision"]["pod"]["name"] == "large"
    assert none == (0, "", "No matching decisions.\n")
    assert call("decisions", 10**9)[0] == 1


def test_an_ambiguous_name_is_an_error(call, agent, manifest):
    call("admit", "-f", manifest("web"), "-f", manifest("web", namespace="other"))

    both = call("release", "web")
    named = call("release", "other/web")
    unknown = call("release", "missing")
    by_uid = call("release", next(iter(agent.pods())))

    assert both[0] == 2
    assert "web matches 2 pods" in both[2]
    assert named[1].startswith("other/web is released")
    assert unknown[0] == 1
    assert "pod missing not found" in unknown[2]
    assert by_uid[1].startswith("default/web is released")


@pytest.fixture
def watch(tmp_path):
    """Start ``alignup watch``, wait until it prints events, and yield the process and its output file."""

    @contextmanager
    def watching(agent):
        out = tmp_path / "events"
        env = {"ALIGNUP_AGENT": f"unix:{agent.root / 'agent.sock'}"}
        with out.open("wb") as file, start("watch", env=env, stdout=file.fileno()) as process:
            wait_for(lambda: _causes_events(agent) and out.read_bytes())
            yield process, out

    return watching


def _causes_events(agent):
    agent.admit("probe")
    return agent.release("probe")


def test_watch_prints_events_until_the_agent_stops(short_path, watch):
    with running(short_path / "root") as agent, watch(agent) as (process, out):
        agent.admit("web", cpu="2")
        agent.admit("huge", cpu="9")
        agent.release("web")
        agent.stop()
        code = process.wait(60)
        err = process.stderr.read()

    events = [line.split()[1:3] for line in out.read_text("utf-8").splitlines()]
    assert code == 1
    assert [event for event in events if event[1] != "default/probe"] == [
        ["admitted", "default/web"],
        ["rejected", "default/huge"],
        ["released", "default/web"],
    ]
    assert b"stopped" in err


def test_a_link_signs_a_browser_in_once(call):
    link = call("web")[1].strip()
    again = json.loads(call("web", "-o", "json")[1])
    page = f"{link.partition('/sign-in')[0]}/"

    with httpx2.Client(verify=False) as browser:
        browser.get(link)
        assert "<h1>Node<small>" in browser.get(page).text
    assert [httpx2.get(used, verify=False).status_code for used in (link, page)] == [401, 401]
    assert again["url"].startswith(f"{page}sign-in?code=")
    assert again["seconds"] == 600


def test_an_agent_without_pages_says_how_to_serve_them(short_path):
    with running(short_path / "root") as agent:
        code, _, err = run_command("web", agent=agent.root)

    assert code == 1
    assert "serves no pages to browsers" in err
    assert "Start the agent with --web-listen." in err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--web-listen", "unix:web.sock"), "--web-listen is for browsers"),
        (("--web-listen", "https://localhost:1"), "needs --tls-cert-file"),
    ],
)
def test_browsers_need_a_port(options, problem, tmp_path):
    code, _, err = run_command("agent", "--root-dir", tmp_path / "root", *options)

    assert (code, problem in err) == (2, True)


@pytest.mark.parametrize(
    "words", [("ps",), ("release", "x"), ("decisions",), ("watch",), ("web",), ("admit", "-f", str(TRAINER))]
)
def test_every_command_says_what_to_do_without_an_agent(words, short_path):
    code, _, err = run_command(*words, "--agent", f"unix:{short_path / 'nowhere.sock'}")

    message, advice = err.splitlines()
    assert code == 1
    assert message == f"alignup: no agent answers at unix:{short_path / 'nowhere.sock'}: No such file or directory"
    assert advice.strip() == "Start one with 'alignup agent', or give its address with --agent or ALIGNUP_AGENT."


def test_an_agent_with_a_corrupt_database_says_what_to_do(short_path, manifest):
    with running(short_path / "root") as agent:
        agent.admit("a", cpu="4")
    (short_path / "root" / "alignup.sqlite").write_text("{}")
    with running(short_path / "root") as agent:
        code, _, said = run_command("admit", "-f", manifest("b"), agent=agent.root)

    assert code == 1
    assert "it is corrupt: file is not a database" in said
    assert "start with --recover set-aside to rename it and start empty" in said


def test_the_examples_in_the_help_work(short_path):
    """They assume a node like the one in examples/node, with a pod called web."""
    with running(short_path / "run", machine=str(ROOT / "examples/node/machine.yaml")) as node:
        for name in ("admit", "ps", "decisions", "release"):
            for number in range(20):
                node.admit(f"d{number}", cpu="10m", memory="1Mi")
            for uid in ("web", "trainer-0", "trainer-1"):
                node.admit(uid, cpu="100m", memory="1Mi")
            for example in _examples(name):
                words = [word.replace("ml/", "default/") for word in shlex.split(example)[1:]]
                code, out, err = run_command(*words, agent=node.root)
                assert code == 0, (example, err)
                assert out


def _examples(name):
    return next(command.examples for command in walk() if command.name == f"alignup {name}")


def test_the_example_of_the_agent_works(short_path):
    (example,) = _examples("agent")
    options = shlex.split(
        example.replace("run/agent", str(short_path / "root")).replace("examples/", f"{ROOT}/examples/")
    )
    words = options[2:]

    agent = start_with(["agent", *words], short_path / "root")
    try:
        assert agent.ready()
        assert len(agent.get("/v1/machine")["devices"]) == 6
    finally:
        assert agent.stop() == 0


def test_ctrl_c_ends_watch(agent, watch):
    with watch(agent) as (process, _):
        process.send_signal(signal.SIGINT)

        assert process.wait(60) == 130
