"""The limits a real kubelet's containers had, against what is worked out here: ``--recorded DIR`` takes any recordings.

Huge pages are not compared: containerd 1.6 does not hand their limits on unless it is told to.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from alignup.align import bits
from alignup.align.workload import Pod
from alignup.align.workload.validation import PodSource, accept
from alignup.enforce.cri.resources import NodeLimits, container_resources, shares_to_weight
from alignup.enforce.cri.types import LinuxResources
from alignup.kube.pod import read_pod
from tests.recorded.replay import HOST, load

Document = Mapping[str, Any]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    recorded = sorted(metafunc.config.getoption("--recorded").glob("*.json.gz"))
    metafunc.parametrize("recorded", [pytest.param(path, id=path.name.removesuffix(".json.gz")) for path in recorded])


def test_containers_have_the_limits_a_kubelet_gives_them(recorded):
    recording = load(recorded)
    ground = NodeLimits(memory=int(recording["machine"]["memtotal_kB"]) << 10)

    seen = list(containers(recording))
    worked_out = [as_files(limits(pod, group, own, ground)) for pod, group, own in seen]

    shown = [{file: group[file] for file in files} for (_, group, _), files in zip(seen, worked_out, strict=True)]
    assert worked_out == shown
    assert seen or recording["scenario"] == "bad-configs"


def containers(recording: Document) -> Iterator[tuple[Pod, Document, Mapping[str, str]]]:
    """Every container that ran after a step: its pod, its groups, and the CPUs that containers of the pod owned."""
    pods: dict[str, Pod] = {}
    for step in recording["steps"]:
        if step["op"] == "pod":
            pod = accept(read_pod(step["manifest"]), road=PodSource.STATIC, host=HOST)
            pods[pod.name] = pod
        state = json.loads(step.get("cpu_manager_state") or "{}")
        for group in step.get("cgroups") or ():
            pod = pods[group["pod"]]
            yield pod, group, state.get("entries", {}).get(pod.uid, {})


def limits(pod: Pod, group: Document, own: Mapping[str, str], ground: NodeLimits) -> LinuxResources:
    (container,) = (one for one in pod.everyone if one.name == group["container"])
    exclusive = container.name in own
    cpus = bits.parse(own[container.name] if exclusive else group["cpuset.cpus"])
    return container_resources(pod, container, node_limits=ground, exclusive=exclusive, cpus=cpus)


def as_files(held: LinuxResources) -> dict[str, str]:
    """What runc writes into the files of a group in version 2."""
    quota = str(held.cpu_quota) if held.cpu_quota > 0 else "max"
    return {
        "cpuset.cpus": bits.show(held.cpus),
        "cpu.max": f"{quota} {held.cpu_period}",
        "cpu.weight": str(shares_to_weight(held.cpu_shares)),
        "memory.max": str(held.memory_limit or "max"),
    }
