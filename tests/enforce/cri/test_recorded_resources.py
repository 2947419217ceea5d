"""The limits of a real kubelet's containers, compared with ours; ``--recorded DIR`` reads other recordings.

Huge pages are not compared: containerd 1.6 does not pass their limits on by default.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from alignup.align import bits
from alignup.align.workload import Pod
from alignup.align.workload.validation import PodSource, accept
from alignup.kubernetes.manifests.pod import read_pod
from alignup.run.cri.resources import NodeLimits, container_resources, shares_to_weight
from alignup.run.cri.types import LinuxResources
from tests.recorded.replay import HOST, load

Document = Mapping[str, Any]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    recorded = sorted(metafunc.config.getoption("--recorded").glob("*.json.gz"))
    metafunc.parametrize("recorded", [pytest.param(path, id=path.name.removesuffix(".json.gz")) for path in recorded])


def test_containers_have_the_limits_of_the_kubelet(recorded):
    recording = load(recorded)
    node_limits = NodeLimits(memory=int(recording["machine"]["memtotal_kB"]) << 10)

    seen = list(containers(recording))
    computed = [as_files(limits(pod, group, own, node_limits)) for pod, group, own in seen]

    shown = [{file: group[file] for file in files} for (_, group, _), files in zip(seen, computed, strict=True)]
    assert computed == shown
    assert seen or recording["scenario"] == "bad-configs"


def containers(recording: Document) -> Iterator[tuple[Pod, Document, Mapping[str, str]]]:
    """Yield every container that ran after a step: its pod, its cgroup, and the exclusive CPUs of the pod."""
    pods: dict[str, Pod] = {}
    for step in recording["steps"]:
        if step["op"] == "pod":
            pod = accept(read_pod(step["manifest"]), source=PodSource.STATIC, host=HOST)
            pods[pod.name] = pod
        state = json.loads(step.get("cpu_manager_state") or "{}")
        for group in step.get("cgroups") or ():
            pod = pods[group["pod"]]
            yield pod, group, state.get("entries", {}).get(pod.uid, {})


def limits(pod: Pod, group: Document, own: Mapping[str, str], node_limits: NodeLimits) -> LinuxResources:
    (container,) = (one for one in pod.all_containers if one.name == group["container"])
    exclusive = container.name in own
    cpus = bits.parse(own[container.name] if exclusive else group["cpuset.cpus"])
    return container_resources(pod, container, node_limits=node_limits, exclusive=exclusive, cpus=cpus)


def as_files(resources: LinuxResources) -> dict[str, str]:
    """Return the files that runc writes in version 2."""
    quota = str(resources.cpu_quota) if resources.cpu_quota > 0 else "max"
    return {
        "cpuset.cpus": bits.show(resources.cpus),
        "cpu.max": f"{quota} {resources.cpu_period}",
        "cpu.weight": str(shares_to_weight(resources.cpu_shares)),
        "memory.max": str(resources.memory_limit or "max"),
    }
