"""The verb prioritize: a score for each node that is left."""

import structlog

from alignup.align.errors import PodError
from alignup.schedule.extender.messages import ExtenderArgs, HostPriority
from alignup.schedule.live_cluster import LiveCluster

MAX_SCORE = 10  #: of the protocol

_log = structlog.get_logger()


async def respond_scores(live: LiveCluster, args: ExtenderArgs) -> list[HostPriority]:
    """Score nodes from 0 to 10; the best node gets 10 where scores differ."""
    totals: dict[str, float] = {}
    with live.guard.answering(f"prioritize {args.pod.metadata.full_name}"):
        try:
            await live.decide_large(args.pod)
            totals = live.scheduling.offers.scores(live.read(args.pod), args.names)
        except PodError as error:
            name, uid = args.pod.metadata.full_name, args.pod.metadata.uid
            _log.warning("prioritize", pod=name, uid=uid, problem=str(error))
    lowest, highest = min(totals.values(), default=0.0), max(totals.values(), default=0.0)
    width = highest - lowest
    scores = {
        name: round(MAX_SCORE * (total - lowest) / width) if width else MAX_SCORE for name, total in totals.items()
    }
    return [HostPriority(name, scores.get(name, 0)) for name in args.names]
