"""A node that is kept for a pod: whatever is placed there meanwhile, the pod fits when the others have ended."""

from copy import copy
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.settings import Policy
from alignup.documents.codec import convert
from alignup.gate.pod_queue import GatedPod
from alignup.gate.reservations import Reservations
from alignup.gate.schedulable_nodes import NodeCapacity
from alignup.kubernetes.api.objects import ApiNode, ApiPod
from alignup.placement.cluster import Cluster
from tests.align.hosts import GPU, NIC, host, pod
from tests.effort import examples
from tests.observe.api_objects import api_pod
from tests.placement.clusters import report

NODE = "a"
ALLOCATABLE = {"cpu": "7", "memory": "31Gi", "pods": "110", GPU: "2", NIC: "2"}
policies = st.sampled_from([Policy.SINGLE_NUMA_NODE, Policy.RESTRICTED, Policy.BEST_EFFORT])
requests = st.fixed_dictionaries(
    {"cpu": st.sampled_from("1234"), "memory": st.sampled_from(["1Gi", "9Gi"])},
    optional={"gpu": st.just("1"), "nic": st.just("1")},
)
#: A pod comes, or one of those on the node ends.
events = st.lists(requests | st.integers(0, 9), max_size=12)


class KeptNode:
    """A node that is kept for a pod, and its kubelet; reports come at once."""

    def __init__(self, policy, before, holder):
        self.host = host(policy)
        for number, request in enumerate(before):
            self.host.admit(pod(f"before-{number}", **request))
        self.before = list(self.host.ledger.pods)
        self.holder = pod("holder", **holder)
        self.cluster, self.sequence, self.came = Cluster(), 0, 0
        document = {"metadata": {"name": NODE}, "status": {"allocatable": ALLOCATABLE}}
        live: Any = SimpleNamespace(nodes={NODE: convert(document, ApiNode)}, cluster=self.cluster)
        self.reservations = Reservations(live, NodeCapacity(lambda _: None))
        self.report()
        waiting = gated(self.holder, 0)
        self.kept = self.reservations.reserve(waiting, [waiting], lambda *_: True, now=0.0) == (NODE,)

    def report(self):
        self.sequence += 1
        self.cluster.confirm(report(NODE, self.host, self.sequence))

    def come(self, request):
        """A pod comes to the node if it may and can; whether it may does not depend on more than it takes."""
        self.came += 1
        waiting = gated(pod(f"later-{self.came}", **request), self.came)
        probe = copy(self.host)
        if not probe.admit(waiting.pod).admitted:
            return
        kept_out = self.reservations.keeps_out(NODE, waiting)
        assert kept_out == (not self.fits(probe))
        if not kept_out:
            self.host.admit(waiting.pod)
            self.reservations.take(NODE, waiting)
            self.report()

    def end(self, place):
        running = list(self.host.ledger.pods)
        if running:
            uid = running[place % len(running)]
            self.host.release(uid)
            self.reservations.forget_pod(uid)
            self.report()

    def fits(self, host):
        """Whether the pod fits when all have ended that were there before."""
        later = copy(host)
        for uid in self.before:
            later.release(uid)
        return later.decide(self.holder).admitted


def gated(asked, order):
    return GatedPod((order, "", "", ""), convert(api_pod(asked), ApiPod), asked, 0.0)


@given(policies, st.lists(requests, max_size=6), requests, events)
@settings(max_examples=examples(100))
def test_the_pod_fits_when_those_have_ended_that_were_there_before(policy, before, holder, events):
    node = KeptNode(policy, before, holder)
    assert node.kept == node.fits(node.host)
    for event in events if node.kept else ():
        if isinstance(event, int):
            node.end(event)
        else:
            node.come(event)
        assert node.fits(node.host)
