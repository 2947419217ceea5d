"""Partial objects keep all that alignment needs."""

import json

import msgspec
from hypothesis import given

from alignup.kubernetes.api import NODE_RESOURCE_TOPOLOGIES, NODES, PODS
from alignup.kubernetes.manifests.pod_decoder import pod_from, pod_to_dict, read_pod
from tests.strategies_pods import pods


@given(pods())
def test_a_pod_of_the_api_is_read_as_the_pod_it_was_made_of(pod):
    sent = json.dumps(pod_to_dict(pod)).encode()

    received = msgspec.json.decode(sent, type=PODS.type)

    assert pod_from(received) == read_pod(json.loads(sent))


def test_what_decides_about_scheduling_is_kept():
    spec = {
        "nodeName": "host-a",
        "schedulingGates": [{"name": "alignup.dev/place"}],
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
    assert_kept({"metadata": metadata, "spec": spec, "status": status}, PODS)


def test_a_node_and_its_topology_are_kept():
    node = {
        "metadata": {"name": "host-a", "uid": "u", "labels": {"a": "b"}},
        "spec": {"unschedulable": True, "taints": [{"key": "a", "effect": "NoSchedule", "value": "b"}]},
        "status": {
            "allocatable": {"cpu": "7"},
            "capacity": {"cpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": {"kubeletVersion": "v1.36.4", "bootID": "b"},
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
        "metadata": {"name": "host-a"},
        "topologyPolicies": ["SingleNUMANodePodLevel"],
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [zone],
    }

    assert_kept(node, NODES)
    assert_kept(topology, NODE_RESOURCE_TOPOLOGIES)


def assert_kept(document, resource):
    assert json.loads(msgspec.json.encode(msgspec.convert(document, resource.type))) == document
