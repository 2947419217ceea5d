"""A small cluster for ``alignup cluster``: an API server with five nodes and some pods, but without kubelets.

    python examples/cluster_demo.py --kubeconfig cluster.config

It runs until it is interrupted. ``docs/cluster-why.md`` shows what to do with it.
"""

import argparse
import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.documents.host_state.writer import to_object
from alignup.kubernetes import configuration
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.kubernetes.manifests.pod_decoder import read_pod
from alignup.machines.synthetic import parse
from alignup.observe.observation import Observation
from alignup.observe.published_objects import host_state
from alignup.testing.api_server import ApiServer, ServedResource

GPU, NIC = "example.com/gpu", "example.com/nic"
CONFIGURATION = b"""
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
topologyManagerPolicy: single-numa-node
cpuManagerPolicy: static
reservedSystemCPUs: "0"
memoryManagerPolicy: Static
systemReserved: {memory: 924Mi}
evictionHard: {memory.available: 100Mi}
reservedMemory:
- {numaNode: 0, limits: {memory: 1Gi}}
"""
#: Two NUMA nodes with 16 CPUs, 64 GiB, two GPUs and a network card each.
MACHINE = replace(
    parse("pack:2 numa:1 core:16 pu:1", memory=64 << 30),
    devices=(
        *(Device(GPU, f"gpu-{number}", nodes=1 << number // 2) for number in range(4)),
        *(Device(NIC, f"nic-{number}", nodes=1 << number) for number in range(2)),
    ),
)
#: Host → pod → what it requests. There is no observer on host-d.
PODS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "host-a": {"inference-a": {"cpu": "4", "memory": "12Gi", GPU: "1"}},
    "host-b": {"inference-b": {"cpu": "6", "memory": "8Gi", GPU: "1"}},
    "host-c": {
        "finetune": {"cpu": "10", "memory": "24Gi", GPU: "1"},
        "indexer": {"cpu": "4", "memory": "8Gi", NIC: "1"},
        "gateway": {"cpu": "4", "memory": "8Gi", NIC: "1"},
    },
    "host-d": {},
    "host-e": {},
}
TAINTS = {"host-e": [{"key": "dedicated", "value": "batch", "effect": "NoSchedule"}]}
TRAINER = {"cpu": "8", "memory": "24Gi", GPU: "1", NIC: "1"}
REJECTED = {
    "phase": "Failed",
    "reason": "TopologyAffinityError",
    "message": "Pod was rejected: Resources cannot be allocated with Topology locality",
}


def pod(name: str, host: str, limits: Mapping[str, str], **status: str) -> dict[str, Any]:
    container = {"name": "main", "resources": {"requests": dict(limits), "limits": dict(limits)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-of-{name}"},
        "spec": {"nodeName": host, "containers": [container]},
        "status": {"phase": "Running", **status},
    }


def fill(server: ApiServer) -> None:
    """Create nodes, pods, and the objects that an observer on each node would publish."""
    server.serve(
        ServedResource(
            kind=HOST_STATES.kind,
            plural=HOST_STATES.plural,
            group=HOST_STATES.group,
            version=HOST_STATES.version,
            namespaced=False,
        )
    )
    settings = configuration.read(CONFIGURATION)
    for name, pods in PODS.items():
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        server.put({**node, "spec": {"taints": TAINTS.get(name, [])}, "status": {}})
        host = Host(MACHINE, configuration.host_settings(settings, MACHINE))
        for pod_name, limits in pods.items():
            document = server.put(pod(pod_name, name, limits))
            host.admit(read_pod(document))
        if name != "host-d":
            state = host_state(Observation(host=host, configuration=settings)).replace(generation=1)
            kind = {"apiVersion": HOST_STATES.api_version, "kind": HOST_STATES.kind}
            server.put({**kind, "metadata": {"name": name}, **to_object(state)})
    server.put(pod("trainer-0", "host-c", TRAINER, **REJECTED))


async def main(kubeconfig: Path) -> None:
    server = ApiServer()
    fill(server)
    async with server:
        server.write_kubeconfig(kubeconfig)
        print(f"listening on {server.url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run an API server with five nodes and some pods.")
    parser.add_argument("--kubeconfig", type=Path, required=True, help="where to write a kubeconfig for it")
    with suppress(KeyboardInterrupt):
        asyncio.run(main(parser.parse_args().kubeconfig))
