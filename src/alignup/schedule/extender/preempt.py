"""The verb preempt: which pods kube-scheduler evicts; see ``placement.scheduling.preemption``."""

import structlog

from alignup.align.errors import PodError
from alignup.kubernetes.api import ApiClient
from alignup.kubernetes.api.errors import ApiError
from alignup.placement.scheduling.events import PreemptionAsked
from alignup.placement.scheduling.facts import NodeVictims
from alignup.placement.scheduling.instructions import AnswerPreemption
from alignup.schedule.disruption_budgets import read_budgets
from alignup.schedule.extender.messages import MetaPod, MetaVictims, PreemptionArgs, PreemptionResult
from alignup.schedule.live_cluster import LiveCluster

CHOOSES_VICTIMS = (1, 38)  #: the first version of kube-scheduler that lets extenders name all victims

_log = structlog.get_logger()


async def respond_victims(client: ApiClient, live: LiveCluster, args: PreemptionArgs) -> PreemptionResult:
    """Choose the pods to evict; none while it is unknown what nodes have, or what budgets allow."""
    name, uid = args.pod.metadata.full_name, args.pod.metadata.uid
    victims: dict[str, MetaVictims] = {}
    with live.guard.answering(f"preempt {name}"):
        try:
            facts = live.facts(args.pod)
            if not live.problems:
                budgets = await read_budgets(client, live.pods.objects.values())
                proposals = {
                    node: NodeVictims(tuple(victim.uid for victim in node_victims.pods or ()), node_victims.violations)
                    for node, node_victims in args.victims.items()
                }
                for answer in live.schedule(PreemptionAsked(facts, proposals, budgets)):
                    if isinstance(answer, AnswerPreemption):
                        victims = {
                            node: MetaVictims(tuple(map(MetaPod, node_victims.pods)), node_victims.violations)
                            for node, node_victims in answer.victims.items()
                        }
        except (PodError, ApiError) as error:
            _log.warning("preempt", pod=name, uid=uid, problem=str(error))
    _log.info("preempt", pod=name, uid=uid, nodes=len(args.victims), answered=len(victims))
    return PreemptionResult(victims)
