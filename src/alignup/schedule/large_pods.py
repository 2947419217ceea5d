"""Decisions about large pods, in a thread: the event loop goes on to answer others.

A decision about a pod with a few containers takes a millisecond, one about a pod with hundreds of them a hundred, and
every different state of a node needs one. So before a question about a large pod is answered, as all others in the
event loop, its verdicts are computed here.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.pod_shape import is_large

ROUNDS = 3  #: of decisions in the thread, as long as hosts change meanwhile
SLICE_SECONDS = 0.005  #: of work in the event loop at a time


class LargePods:
    """The decisions about large pods, one pod at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._turn = asyncio.Semaphore(1)

    async def decide(self, pod: Pod, hosts: Collection[str] | None = None) -> None:
        """Let *hosts*, or all, decide on *pod*, so that their verdicts are known; do nothing if it is not large."""
        if not is_large(pod):
            return
        async with self._turn:
            with suppress(Exception):  # the question itself raises an error of the pod, and names and counts a defect
                for _ in range(ROUNDS):
                    undecided_hosts = self._cluster.undecided(pod, hosts)
                    if not undecided_hosts:
                        break
                    await asyncio.to_thread(_call_all, undecided_hosts)
                is_renewed = hosts is not None
                while not is_renewed:
                    is_renewed = self._cluster.renew(pod, seconds=SLICE_SECONDS)
                    await asyncio.sleep(0)


def _call_all(decisions: Collection[Callable[[], object]]) -> None:
    for decide in decisions:
        decide()
