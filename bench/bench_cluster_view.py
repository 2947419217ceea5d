"""The state of a cluster from its objects, as ``alignup cluster why`` builds it: 1,000 nodes with 30 pods each."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from alignup.align.host import Host, Settings
from alignup.align.machine import Device, Machine
from alignup.documents.codec import convert, decode, encode
from alignup.documents.host_state import HostStateObject
from alignup.documents.host_state.writer import to_object
from alignup.kubernetes import configuration
from alignup.kubernetes.api import NODES, PODS
from alignup.kubernetes.api.objects import ApiNode, ApiPod
from alignup.kubernetes.configuration import Configuration
from alignup.kubernetes.manifests.documents import to_json
from alignup.kubernetes.manifests.pod_decoder import pod_to_dict, read_pod
from alignup.machines.synthetic import parse
from alignup.observe.observation import Observation
from alignup.observe.published_objects import host_state
from alignup.schedule.cluster_snapshot import build_view
from bench.harness import Figure, cpu_time
from tests.observe.kubelets import CONFIGURATION

HOSTS, STATES, PODS_PER_HOST = 1000, 300, 30


def figures() -> Iterator[Figure]:
    nodes, states, pods = objects(HOSTS)
    seconds, view = cpu_time(partial(build_view, nodes, states, pods))
    assert len(view.cluster.hosts) == HOSTS
    yield Figure(f"view of {HOSTS:,} nodes with {PODS_PER_HOST} pods each, CPU", seconds, None)


def objects(count: int) -> tuple[list[ApiNode], list[HostStateObject], list[ApiPod]]:
    """Return the objects of *count* nodes in a few hundred states."""
    random = Random(1)
    machine = replace(
        parse("pack:2 numa:1 core:64 pu:2", memory=1 << 40),
        devices=tuple(Device("example.com/gpu", f"gpu-{number}", nodes=1 << number // 4) for number in range(8)),
    )
    read = configuration.read(to_json(CONFIGURATION).encode())
    settings = configuration.host_settings(read, machine)
    shapes = [_objects_of_one(_host(machine, settings, random, f"s{number}"), read) for number in range(STATES)]
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


def _objects_of_one(host: Host, read: Configuration) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the HostState and the pods of a host."""
    state = to_object(host_state(Observation(host=host, configuration=read)).replace(generation=1))
    running = {"status": {"phase": "Running"}}
    return state, [{**pod_to_dict(admitted.pod), **running} for admitted in host.ledger.pods.values()]


def _host(machine: Machine, settings: Settings, random: Random, name: str) -> Host:
    host = Host(machine, settings)
    for number in range(PODS_PER_HOST):
        amounts = {"cpu": str(random.choice((1, 2, 4, 6))), "memory": f"{random.randrange(1, 17)}Gi"}
        if number < 4:
            amounts["example.com/gpu"] = "1"
        if number % 3 == 2:
            amounts = {"cpu": "500m", "memory": "1Gi"}  # shared CPUs
        containers = [_container("app", amounts), _container("proxy", {"cpu": "100m", "memory": "64Mi"})]
        metadata = {"name": f"{name}-{number}", "namespace": "ml", "uid": f"{name}-{number}"}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}
        decision = host.admit(read_pod(document))
        assert decision.admitted
    return host


def _container(name: str, amounts: dict[str, str]) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": amounts, "limits": amounts}}
