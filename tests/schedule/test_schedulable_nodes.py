"""What is left of a node by its Node object, beside the pods that are bound to it."""

from typing import Any
from unittest.mock import Mock

from hypothesis import given
from hypothesis import strategies as st

from alignup.documents.codec import convert
from alignup.kubernetes.api.objects import ApiNode, ApiPod
from alignup.kubernetes.manifests.pod_decoder import pod_from
from alignup.schedule.schedulable_nodes import NodeCapacity
from tests.align.hosts import pod
from tests.observe.api_objects import api_pod

NODE = convert(
    {"metadata": {"name": "a"}, "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}}}, ApiNode
)
ASKED = pod("asked", cpu="4", memory="1Gi")


def running(cpu, **status):
    document = api_pod(pod("running", cpu=cpu, memory="1Gi"), NODE.metadata.name)
    return convert({**document, "status": {**document["status"], **status}}, ApiPod)


class OnePod:
    """A node, and the pod that is bound to it."""

    def __init__(self, read=pod_from):
        nodes: Any = {"a": NODE}
        self.pod: ApiPod | None = None
        self.capacity = NodeCapacity(nodes, lambda _node: {"running": self.pod} if self.pod else {}, read)

    def put(self, pod):
        """Return whether the pod was resized."""
        old, self.pod = self.pod, pod
        return self.capacity.pod_changed("a", old, pod, ended=False)

    def insufficient(self):
        return self.capacity.insufficient("a", ASKED)


def test_a_pod_counts_with_its_requests_after_a_resize():
    node = OnePod()
    assert not node.put(running("2"))
    assert node.insufficient() == ()

    assert node.put(running("6"))
    assert node.insufficient() == ("cpu",)


def test_a_node_that_is_gone_has_too_little():
    assert OnePod().capacity.insufficient("b", ASKED)


def test_a_pod_that_shrinks_counts_with_what_it_still_has():
    amounts = {"cpu": "6", "memory": "1Gi"}
    allocated = [{"name": "app", "allocatedResources": amounts}]
    node = OnePod()
    node.put(running("6", containerStatuses=allocated))
    assert node.insufficient() == ("cpu",)
    node.put(running("2", containerStatuses=allocated))
    assert node.insufficient() == ("cpu",)

    amounts["cpu"] = "2"
    assert node.put(running("2", containerStatuses=allocated))
    assert node.insufficient() == ()


def test_a_pod_is_read_again_only_if_its_resources_changed():
    read = Mock(wraps=pod_from)
    node = OnePod(read)
    for phase in ("Pending", "Running"):
        assert not node.put(running("2", phase=phase))
        assert node.insufficient() == ()
    assert read.call_count == 1


@given(st.lists(st.tuples(st.integers(0, 6), st.lists(st.integers(1, 3), max_size=3), st.booleans()), min_size=1))
def test_pods_beside_the_bound_ones_count_as_they_are_now(steps):
    """Whatever was asked before: other pods beside it, another bound pod, an empty node."""
    node = OnePod()
    beside = [pod(f"beside-{number}", cpu=str(number), memory="1Gi") for number in range(4)]
    for cpus, others, empty in steps:
        node.put(running(str(cpus)))
        taken = sum(others) + 4 + (0 if empty else cpus)

        answer = node.capacity.insufficient("a", ASKED, beside=tuple(beside[cpu] for cpu in others), empty=empty)

        assert answer == (("cpu",) if taken > 8 else ())
