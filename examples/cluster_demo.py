"""A small cluster for ``alignup cluster``: an API server with five nodes and some pods, but without kubelets.

    python examples/cluster_demo.py --kubeconfig cluster.config

It runs until it is interrupted. ``docs/cluster-why.md`` shows what to do with it.
"""

import argparse
import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.kubernetes.manifests.pod_decoder import read_pod
from alignup.machines.synthetic import parse
from alignup.testing import parse_device_list
from alignup.testing.api_server import ApiServer, ServedResource
from alignup.testing.simulated_kubelet import SimulatedKubelet

GPU, NIC = "example.com/gpu", "example.com/nic"
#: Two NUMA nodes with 16 CPUs, 64 GiB, two GPUs and a network card each.
MACHINE = parse("pack:2 numa:1 core:16 pu:1", memory=64 << 30)
DEVICES = (*parse_device_list(GPU, "2@0,2@1"), *parse_device_list(NIC, "1@0,1@1"))
#: The fields of KubeletConfiguration that are not those of a simulated kubelet.
RESERVED: Mapping[str, Any] = {
    "reservedSystemCPUs": "0",
    "systemReserved": {"memory": "924Mi"},
    "evictionHard": {"memory.available": "100Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
}
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
    for name, pods in PODS.items():
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        server.put({**node, "spec": {"taints": TAINTS.get(name, [])}, "status": {}})
        kubelet = SimulatedKubelet(machine=MACHINE, devices=DEVICES, **RESERVED)
        for pod_name, limits in pods.items():
            kubelet.run(read_pod(server.put(pod(pod_name, name, limits))))
        if name != "host-d":
            server.put(kubelet.host_state(name))
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
