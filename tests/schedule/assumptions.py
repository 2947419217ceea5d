"""Assumed pods in tests of the live cluster, as bindings assume and forget them."""

from alignup.align.workload import Pod
from alignup.placement.scheduling.events import HostsChanged
from alignup.placement.verdict import Verdict
from alignup.schedule.live_cluster import LiveCluster


def assume(live: LiveCluster, pod: Pod, node: str) -> Verdict:
    verdict = live.scheduling.assumptions.assume(pod, node)
    live.schedule(HostsChanged((node,)))
    return verdict


def forget(live: LiveCluster, uid: str) -> None:
    nodes = live.assumed.get(uid, ())
    live.scheduling.assumptions.forget(uid)
    live.schedule(HostsChanged(nodes))
