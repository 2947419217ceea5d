"""What is left of a node by its Node object, beside the pods that are bound to it."""

from unittest.mock import Mock

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


def test_a_pod_counts_with_its_requests_after_a_resize():
    capacity = NodeCapacity(pod_from)
    assert not capacity.put_pod(running("2"), "a")
    assert capacity.insufficient(NODE, ASKED) == ()

    assert capacity.put_pod(running("6"), "a")
    assert capacity.insufficient(NODE, ASKED) == ("cpu",)


def test_a_pod_that_shrinks_counts_with_what_it_still_has():
    amounts = {"cpu": "6", "memory": "1Gi"}
    allocated = [{"name": "app", "allocatedResources": amounts}]
    capacity = NodeCapacity(pod_from)
    capacity.put_pod(running("6", containerStatuses=allocated), "a")
    assert capacity.insufficient(NODE, ASKED) == ("cpu",)
    capacity.put_pod(running("2", containerStatuses=allocated), "a")
    assert capacity.insufficient(NODE, ASKED) == ("cpu",)

    amounts["cpu"] = "2"
    assert capacity.put_pod(running("2", containerStatuses=allocated), "a")
    assert capacity.insufficient(NODE, ASKED) == ()


def test_a_pod_is_read_again_only_if_its_resources_changed():
    read = Mock(wraps=pod_from)
    capacity = NodeCapacity(read)
    for phase in ("Pending", "Running"):
        assert not capacity.put_pod(running("2", phase=phase), "a")
        assert capacity.insufficient(NODE, ASKED) == ()
    assert read.call_count == 1
