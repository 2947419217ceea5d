"""Partial objects keep all that alignment needs."""

import json

import msgspec
from hypothesis import given

from alignup.kubernetes.api import NODE_RESOURCE_TOPOLOGIES, NODES, PODS
from alignup.kubernetes.manifests.pod import pod_from, pod_to_dict, read_pod
from tests.strategies_pods import pods


@given(pods())
def test_a_pod_of_the_api_is_read_as_the_pod_it_was_made_of(pod):
    sent = json.dumps(pod_to_dict(pod)).encode()

    received = msgspec.json.decode(sent, type=PODS.type)

    assert pod_from(received) == read_pod(json.loads(sent))


def test_what_decides_about_scheduling_is_kept():
    spec = {
        "nodeName": "host-a",
        "schedulerName": "alignup",
        "schedulingGates": [{"name": "alignup.dev/place"}],
        "terminationGracePeriodSeconds": 5,
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["host-a"]}]}
                    ]
                }
            }
        },
    }
    status = {
        "phase": "Failed",
        "reason": "TopologyAffinityError",
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{"name": "app", "state": {"terminated": {"exitCode": 1}}}],
    }
    metadata = {"name": "web", "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}

    assert PODS.document(msgspec.convert(document, PODS.type)) == as_sent(document)


def test_a_node_and_its_topology_are_kept():
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "host-a", "uid": "u", "labels": {"a": "b"}},
        "spec": {"unschedulable": True, "taints": [{"key": "a", "effect": "NoSchedule", "value": "b"}]},
        "status": {
            "allocatable": {"cpu": "7"},
            "capacity": {"cpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": {"kubeletVersion": "v1.36.4", "machineID": "m", "bootID": "b"},
        },
    }
    zone = {
        "name": "node-0",
        "type": "Node",
        "costs": [{"name": "node-0", "value": 10}],
        "attributes": [{"name": "a", "value": "b"}],
        "resources": [{"name": "cpu", "capacity": "4", "allocatable": 4, "available": "3500m"}],
    }
    topology = {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "host-a"},
        "topologyPolicies": ["SingleNUMANodePodLevel"],
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [zone],
    }

    assert NODES.document(msgspec.convert(node, NODES.type)) == as_sent(node)
    found = NODE_RESOURCE_TOPOLOGIES.document(msgspec.convert(topology, NODE_RESOURCE_TOPOLOGIES.type))
    assert found == as_sent(topology)


def as_sent(document):
    """Lists as tuples, which is how documents of structs have them."""
    if isinstance(document, dict):
        return {name: as_sent(value) for name, value in document.items()}
    return tuple(map(as_sent, document)) if isinstance(document, list) else document
