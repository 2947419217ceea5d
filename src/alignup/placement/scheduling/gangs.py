"""Gangs: pods of a group that start together or not at all."""

from alignup.placement.cluster import Cluster
from alignup.placement.gang import GangAnswer
from alignup.placement.scheduling.facts import GangFacts, GroupKey
from alignup.placement.shortage import describe_shortage

INCOMPLETE = "GangIncomplete"  #: the reason of events about gangs of which pods are missing, or not bound


def describe_gang(key: GroupKey, gang: GangFacts, fitting: int, answer: GangAnswer, cluster: Cluster) -> str:
    """Return why a gang of which only so many pods are *fitting* waits."""
    needed = max(gang.minimum, gang.present)
    shortage = describe_shortage(cluster, answer.verdicts[answer.rest[0].uid]) if answer.rest else "nodes changed"
    text = f"gang {key}: {fitting} of {needed} pods fit together; {shortage}"
    return text if answer.proved else f"{text}; no more were found within {answer.steps} steps"
