"""Proposals: which moves, or ends of pods of lower priority, would make room for a pod that waits long.

A proposal is an event about the pod, and a sentence on its page. Nothing is evicted. One pod at a time is looked at,
with its gang: the first in the waiting order that fits nowhere and has waited as long as nodes are kept after.
"""

import asyncio

import structlog

from alignup.align.errors import AlignError
from alignup.align.reason_codes import MOVES_WOULD_HELP
from alignup.kubernetes.api import ApiClient
from alignup.kubernetes.api.objects import ApiPod
from alignup.kubernetes.manifests.disruption import EvictionRules
from alignup.picture.text_format import pluralize
from alignup.placement.moves import MovePlan
from alignup.placement.scheduling.facts import PodFacts
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.move_searches import MoveSearches
from alignup.schedule.object_events import ObjectEvents

SEARCH_EVERY = 60.0  #: seconds between searches
SEARCH_AGAIN = 600.0  #: seconds after which moves are searched for the same pod again
MAX_NAMED = 3  #: pods in a proposal
MAX_PROPOSALS = 1000  #: pods whose proposals are remembered

_log = structlog.get_logger()


class MoveProposals:
    """The proposals of the process that leads."""

    def __init__(self, client: ApiClient, live: LiveCluster, searches: MoveSearches, events: ObjectEvents) -> None:
        self._timing = client.timing
        self._live = live
        self._searches = searches
        self._events = events
        self._proposals: dict[str, tuple[float, str]] = {}  #: uid → when moves were searched for, and the proposal

    def find(self, uid: str) -> str:
        """Return what was proposed for a pod; empty: nothing."""
        return self._proposals.get(uid, (0.0, ""))[1]

    async def run(self) -> None:
        """Search from time to time, until cancelled."""
        while True:
            await asyncio.sleep(SEARCH_EVERY)
            await self.propose_next()

    async def propose_next(self) -> None:
        """Search for moves for the next pod that waits long, unless the active plan makes room for it."""
        now, scheduling = self._timing.clock(), self._live.scheduling
        overdue_pods = scheduling.kept_nodes.overdue(now)
        waiting_pods = [facts for facts in overdue_pods if not self._is_served(facts)]
        uids = {facts.uid for facts in waiting_pods}
        self._proposals = {uid: entry for uid, entry in self._proposals.items() if uid in uids}
        for facts in waiting_pods:
            pod = self._live.find_by_uid(facts.uid)
            searched_at, _ = self._proposals.get(facts.uid, (float("-inf"), ""))
            if pod is None or now - searched_at < SEARCH_AGAIN or len(self._proposals) >= MAX_PROPOSALS:
                continue
            self._proposals[facts.uid] = (now, "")
            await self._search(pod, now)
            return

    def _is_served(self, facts: PodFacts) -> bool:
        """Return whether the active plan makes room for a pod, or for another one of its gang."""
        gang = self._live.cluster_facts.gang(facts.group) if facts.group else None
        uids = (*gang.waiting, *gang.gated) if gang else (facts.uid,)
        return any(self._live.scheduling.plan.place_of(uid) is not None for uid in uids)

    async def _search(self, pod: ApiPod, now: float) -> None:
        try:
            gang_plan = await self._searches.plan(pod, EvictionRules(allow_preemption=True))
        except AlignError as error:  # the API server refuses, or a pod is invalid
            name, uid = pod.metadata.full_name, pod.metadata.uid
            _log.warning("cannot search for moves", pod=name, uid=uid, problem=str(error))
            return
        if gang_plan is None or not gang_plan[0].evictions:
            return
        text = describe_proposal(pod, *gang_plan)
        self._proposals[pod.metadata.uid] = (now, text)
        self._events.note(pod, MOVES_WOULD_HELP, text)


def describe_proposal(pod: ApiPod, plan: MovePlan, pods: int) -> str:
    """Return which evictions would make room, and the command that has all steps."""
    moves = [step for step in plan.evictions if plan.new_place(step.pod.uid)]
    ends = [step for step in plan.evictions if not plan.new_place(step.pod.uid)]
    parts = [f"move {pluralize(len(moves), 'pod')}"] if moves else []
    parts += [f"end {pluralize(len(ends), 'pod')} of lower priority"] if ends else []
    eviction_names = ", ".join(f"{step.name} on {step.host}" for step in plan.evictions[:MAX_NAMED])
    more = f" and {len(plan.evictions) - MAX_NAMED} more" if len(plan.evictions) > MAX_NAMED else ""
    option = " --allow-preemption" if ends else ""
    command = f"alignup cluster plan {pod.metadata.name} -n {pod.metadata.namespace}{option}"
    room = "for it" if pods == 1 else f"for all {pods} pods of its gang"
    return f"'{command}' would {' and '.join(parts)} to make room {room}: {eviction_names}{more}"
