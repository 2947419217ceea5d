"""The state of a cluster from its objects, as ``alignup cluster why`` builds it: 1,000 nodes with 30 pods each."""

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

from alignup.align.machine import Device
from alignup.documents.codec import convert, decode, encode
from alignup.documents.host_state import HostStateObject
from alignup.kubernetes.api import NODES, PODS
from alignup.kubernetes.api.objects import ApiNode, ApiPod
from alignup.kubernetes.manifests.pod_decoder import pod_to_dict, read_pod
from alignup.machines.synthetic import parse
from alignup.schedule.cluster_snapshot import build_view
from alignup.testing.simulated_kubelet import SimulatedKubelet
from bench.harness import Figure, cpu_time

HOSTS, STATES, PODS_PER_HOST = 1000, 300, 30
MACHINE = parse("pack:2 numa:1 core:64 pu:2", memory=1 << 40)
DEVICES = tuple(Device("example.com/gpu", f"gpu-{number}", nodes=1 << number // 4) for number in range(8))


def figures() -> Iterator[Figure]:
    nodes, states, pods = objects(HOSTS)
    seconds, view = cpu_time(partial(build_view, nodes, states, pods))
    assert len(view.cluster.hosts) == HOSTS
    yield Figure(f"view of {HOSTS:,} nodes with {PODS_PER_HOST} pods each, CPU", seconds, None)


def objects(count: int) -> tuple[list[ApiNode], list[HostStateObject], list[ApiPod]]:
    """Return the objects of *count* nodes in a few hundred states."""
    random = Random(1)
    shapes = [_objects_of_one(_kubelet(random, f"s{number}")) for number in range(STATES)]
    nodes, states, pods = [], [], []
    for number in range(count):
        name, (state, bound_pods) = f"host-{number}", shapes[number % STATES]
        nodes.append(convert({"metadata": {"name": name}}, NODES.type))
        ledger = state["ledger"]
        renamed = [{**pod_entry, "uid": f"{pod_entry['uid']}-{number}"} for pod_entry in ledger["pods"]]
        document = {**state, "metadata": {"name": name}, "ledger": {**ledger, "pods": renamed}}
        states.append(decode(encode(document), HostStateObject))
        for pod in bound_pods:
            metadata = {**pod["metadata"], "uid": f"{pod['metadata']['uid']}-{number}"}
            bound = {**pod, "metadata": metadata, "spec": {**pod["spec"], "nodeName": name}}
            pods.append(convert(bound, PODS.type))
    return nodes, states, pods


def _objects_of_one(kubelet: SimulatedKubelet) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the HostState and the pods of a host."""
    running = {"status": {"phase": "Running"}}
    pods = [{**pod_to_dict(admitted.pod), **running} for admitted in kubelet.host.ledger.pods.values()]
    return kubelet.host_state(""), pods


def _kubelet(random: Random, name: str) -> SimulatedKubelet:
    kubelet = SimulatedKubelet(machine=MACHINE, devices=DEVICES)
    for number in range(PODS_PER_HOST):
        amounts = {"cpu": str(random.choice((1, 2, 4, 6))), "memory": f"{random.randrange(1, 17)}Gi"}
        if number < 4:
            amounts["example.com/gpu"] = "1"
        if number % 3 == 2:
            amounts = {"cpu": "500m", "memory": "1Gi"}  # shared CPUs
        containers = [_container("app", amounts), _container("proxy", {"cpu": "100m", "memory": "64Mi"})]
        metadata = {"name": f"{name}-{number}", "namespace": "ml", "uid": f"{name}-{number}"}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}
        kubelet.run(read_pod(document))
    return kubelet


def _container(name: str, amounts: dict[str, str]) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": amounts, "limits": amounts}}
