"""What all parts of the scheduling state share."""

from typing import NamedTuple

from alignup.placement.cluster import Cluster
from alignup.placement.scheduling.assumptions import Assumptions
from alignup.placement.scheduling.facts import ClusterFacts
from alignup.placement.scheduling.turn import Turn


class CommonParts(NamedTuple):
    cluster: Cluster  #: which hosts admit a pod
    facts: ClusterFacts
    assumptions: Assumptions
    turn: Turn
