"""Pods on this machine with the agent, Debian's containerd and a device plugin, checked against the kernel.

Two CPUs are enough: CPU 0 is reserved, one container gets CPU 1 exclusively, and the others share the rest.
"""
# ruff: noqa: S101, S603

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from alignup.align import bits
from e2e.node import (
    CGROUPS,
    OPTIONS,
    SLEEP,
    Document,
    Node,
    all_but,
    container,
    cpus_of,
    exclusive,
    missing,
    node_in,
    pod,
    until,
)
from tests.short_paths import short_directory

WHY = missing()
LIMITS = ("memory/{root}/memory.limit_in_bytes", "{root}/memory.max")  #: of all pods together, in cgroup v1 and v2

pytestmark = pytest.mark.skipif(WHY is not None, reason=str(WHY))


@pytest.fixture(scope="module")
def shared_node() -> Iterator[Node]:
    with ExitStack() as stack:
        yield stack.enter_context(node_in(stack.enter_context(short_directory())))


@pytest.fixture
def node(shared_node: Node) -> Iterator[Node]:
    """The node, emptied after each test."""
    yield shared_node
    for file in (shared_node.place / "manifests").iterdir():
        file.unlink()
    if names := list(shared_node.pods()):
        shared_node.alignup("release", *names, "--grace", "0", check=False)
    until(lambda: not shared_node.pods(), shared_node.log)
    assert shared_node.runtime.ctr("containers", "list", "--quiet").stdout == ""


def test_a_container_sees_its_exclusive_cpus(node: Node) -> None:
    node.admit(pod("owner", container(f"grep Cpus_allowed_list /proc/self/status; nproc; {SLEEP}", **exclusive())))

    one = node.wait_running("owner")

    until(lambda: len(node.output("owner").splitlines()) == 2)
    assert bits.parse(one["cpus"]).bit_count() == 1
    assert node.output("owner") == f"Cpus_allowed_list:\t{one['cpus']}\n1\n"
    assert cpus_of(one["pid"]) == one["cpus"]


def test_shared_cpus_change_under_running_containers(node: Node) -> None:
    node.put(pod("shares"))
    shares = node.wait_running("shares")
    before = cpus_of(shares["pid"])
    node.admit(pod("owner", container(**exclusive())))
    own = node.wait_running("owner")["cpus"]
    meanwhile = cpus_of(shares["pid"])
    node.alignup("release", "owner")
    until(lambda: cpus_of(shares["pid"]) == before)

    assert before == all_but("")
    assert meanwhile == all_but(own)
    assert node.wait_running("shares")["pid"] == shares["pid"]


def test_a_restarted_agent_adopts_running_containers(node: Node) -> None:
    node.put(pod("shares"))
    node.admit(pod("owner", container(**exclusive())))
    pids = {name: node.wait_running(name)["pid"] for name in ("shares", "owner")}
    node.kill()
    alive = {name: cpus_of(pid) for name, pid in pids.items()}
    node.start(*OPTIONS)

    again = {name: node.wait_running(name) for name in pids}

    assert {name: one["pid"] for name, one in again.items()} == pids
    assert {name: one["restarts"] for name, one in again.items()} == {"shares": 0, "owner": 0}
    assert {name: cpus_of(one["pid"]) for name, one in again.items()} == alive
    assert json.loads(node.alignup("audit", "-o", "json").stdout)["drift"] == []


@pytest.fixture
def configured_node(node: Node) -> Iterator[Node]:
    """The node with other settings, for one test."""
    node.stop()
    node.start(config={"seccompDefault": True, "podPidsLimit": 30, "systemReserved": {"memory": "1Gi"}})
    yield node
    node.stop()
    node.start(*OPTIONS)


def test_container_settings_of_the_configuration(configured_node: Node) -> None:
    node = configured_node
    many = "i=0; while [ $i -lt 40 ]; do sleep 100 & i=$((i+1)); done"
    node.admit(pod("held", container(f"grep Seccomp: /proc/self/status; {many}; {SLEEP}")))
    until(lambda: "can't fork" in node.output("held"), node.log)
    limits = (CGROUPS / name.format(root=node.cgroup_root) for name in LIMITS)
    limit = next(path for path in limits if path.exists()).read_text()

    assert node.output("held").startswith("Seccomp:\t2\n")
    assert int(limit) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") - (1 << 30)


def test_containers_survive_a_kill_of_containerd(node: Node) -> None:
    node.admit(pod("owner", container(**exclusive())))
    pid = node.wait_running("owner")["pid"]
    node.runtime.kill()
    until(lambda: "nothing starts or stops until the runtime is back" in node.log(), node.log)
    node.runtime.start()
    node.admit(pod("later"))

    node.wait_running("later")

    assert node.wait_running("owner")["pid"] == pid


def test_device_plugin_responses_reach_the_container(node: Node) -> None:
    plugin = [sys.executable, "-m", "alignup.testing.plugin", "--resource", "example.com/gpu", "--devices", "2@0"]
    with subprocess.Popen([*plugin, "--dir", str(node.root / "device-plugins")]) as process:
        try:
            until(lambda: "example.com/gpu: 2 of 2 devices are healthy" in node.log(), node.log)
            asked: Document = {"resources": {"limits": {"example.com/gpu": "1"}}}
            node.admit(pod("gpu", container(f"env | grep -i gpu; ls /dev; {SLEEP}", **asked)))
            node.wait_running("gpu")
            until(lambda: "gpu-" in node.output("gpu"))
            printed = node.output("gpu")
        finally:
            process.terminate()

    assert "gpu-0" in printed or "gpu-1" in printed


def test_init_containers_sidecars_and_volumes(node: Node) -> None:
    mount: Document = {"volumeMounts": [{"name": "work", "mountPath": "/data"}]}
    node.admit(
        pod(
            "web",
            container("cat /data/order; cat /data/beside; " + SLEEP, **mount),
            initContainers=[
                container("echo first >> /data/order", "one", **mount),
                container(
                    "while true; do echo up > /data/beside; sleep 1; done", "beside", restartPolicy="Always", **mount
                ),
                container(
                    "while ! test -e /data/beside; do sleep 0.1; done; echo second >> /data/order", "two", **mount
                ),
            ],
            volumes=[{"name": "work", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}],
        )
    )

    node.wait_running("web")

    until(lambda: "up" in node.output("web"))
    assert node.output("web") == "first\nsecond\nup\n"
    states = {name: one["reason"] or one["state"] for name, one in node.containers("web").items()}
    assert states == {"one": "Completed", "beside": "running", "two": "Completed", "app": "running"}


def test_a_job_runs_once_and_releases_its_resources(node: Node) -> None:
    node.admit(pod("job", container("echo done; exit 3", **exclusive()), restartPolicy="Never"))
    until(lambda: node.pods()["job"]["status"] == "finished", node.log)
    node.admit(pod("owner", container(**exclusive())))

    node.wait_running("owner")

    run = node.pods()["job"]["run"]
    assert (run["phase"], run["containers"][0]["exitCode"]) == ("Failed", 3)
    assert node.output("job") == "done\n"


def test_a_crashing_container_backs_off(node: Node) -> None:
    node.admit(pod("fails", container("exit 1")))

    until(lambda: node.containers("fails")["app"]["reason"] == "CrashLoopBackOff", node.log)

    one = node.containers("fails")["app"]
    assert one["restarts"] >= 1
    assert one["last"]["exitCode"] == 1


def test_a_container_over_its_memory_limit_is_killed(node: Node) -> None:
    hungry = container("head -c 200m /dev/zero | tail", **exclusive())
    node.admit(pod("hungry", hungry, restartPolicy="Never"))

    until(lambda: node.pods()["hungry"]["status"] == "finished", node.log)

    assert node.containers("hungry")["app"]["exitCode"] != 0


def test_a_missing_image_is_reported(node: Node) -> None:
    node.admit(pod("none", {**container(), "image": "localhost/none:1", "imagePullPolicy": "Never"}))

    until(lambda: node.containers("none").get("app", {}).get("reason") == "ErrImageNeverPull", node.log)

    assert "localhost/none:1" in node.alignup("ps").stdout


def test_a_changed_manifest_replaces_the_pod(node: Node) -> None:
    node.put(pod("web", container(f"echo old; {SLEEP}", **exclusive())))
    before = node.wait_running("web")["pid"]
    node.put(pod("web", container(f"echo new; {SLEEP}", **exclusive())))

    until(lambda: node.containers("web").get("app", {}).get("pid") not in (None, before), node.log)
    until(lambda: node.output("web") == "new\n")

    assert not Path(f"/proc/{before}").exists()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param({"hostNetwork": True}, "--allow host-network", id="hostNetwork"),
        pytest.param({"hostPID": True}, "--allow host-pid", id="hostPID"),
    ],
)
def test_a_pod_without_permission_is_rejected(node: Node, spec: Document, message: str) -> None:
    answer = node.admit(pod("bad", **spec), check=False)

    assert answer.returncode == 1
    assert message in answer.stderr


def test_a_privileged_container_is_rejected(node: Node) -> None:
    answer = node.admit(pod("bad", container(securityContext={"privileged": True})), check=False)

    assert answer.returncode == 1
    assert "--allow privileged" in answer.stderr


def test_an_allowed_host_path_is_mounted(node: Node, tmp_path: Path) -> None:
    (tmp_path / "word").write_text("hello\n")
    mount: Document = {"volumeMounts": [{"name": "host", "mountPath": "/host", "readOnly": True}]}
    volume = {"name": "host", "hostPath": {"path": str(tmp_path), "type": "Directory"}}
    node.admit(
        pod("reads", container("cat /host/word; touch /host/x", **mount), volumes=[volume], restartPolicy="Never")
    )

    until(lambda: node.pods()["reads"]["status"] == "finished", node.log)

    assert "hello" in node.output("reads").splitlines()
    assert [path.name for path in tmp_path.iterdir()] == ["word"]


def test_audit_finds_and_fixes_drift(node: Node) -> None:
    node.admit(pod("owner", container(**exclusive())))
    one = node.wait_running("owner")
    before = node.alignup("audit").returncode
    os.sched_setaffinity(one["pid"], bits.members(bits.parse(one["cpus"])))
    group = next(
        Path("/sys/fs/cgroup/cpuset") / line.split(":")[2].lstrip("/")
        for line in Path(f"/proc/{one['pid']}/cgroup").read_text().splitlines()
        if line.split(":")[1] in ("cpuset", "")
    )
    (group / "cpuset.cpus").write_text(all_but(""))
    drifted = node.alignup("audit", check=False)
    fixed = node.alignup("audit", "--fix")

    assert before == 0
    assert drifted.returncode == 1
    assert "owner" in drifted.stdout
    assert fixed.returncode == 0
    assert cpus_of(one["pid"]) == one["cpus"]


def test_a_released_pod_leaves_nothing(node: Node) -> None:
    volume = {"name": "work", "emptyDir": {"medium": "Memory"}}
    mount: Document = {"volumeMounts": [{"name": "work", "mountPath": "/data"}]}
    node.admit(pod("web", container(**mount, **exclusive()), volumes=[volume]))
    pid = node.wait_running("web")["pid"]
    groups = {line.split(":")[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()}
    node.alignup("release", "web")

    assert not Path(f"/proc/{pid}").exists()
    assert node.pods() == {}
    assert not list((node.root / "pods").glob("*"))
    assert not list((node.root / "logs").glob("*"))
    assert str(node.root) not in Path("/proc/mounts").read_text()
    parents = {str(Path(group).parent) for group in groups if "pod" in group}
    assert parents
    assert not any((Path("/sys/fs/cgroup/cpuset") / parent.lstrip("/")).exists() for parent in parents)
