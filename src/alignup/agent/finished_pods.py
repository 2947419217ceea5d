"""Pods that have run to their end: who is remembered, and how they ended, as JSON values and back."""

from collections.abc import Mapping
from dataclasses import dataclass

from alignup.agent.pod_record import API_SOURCE, PodRecord
from alignup.schema.api import PodRunStatus

MAX_FINISHED = 1_000  #: pods that came from no file


@dataclass(frozen=True, kw_only=True)
class FinishedPod:
    """A pod that holds nothing any more."""

    known: PodRecord
    run: PodRunStatus  #: how it ended


def add_finished(finished: Mapping[str, FinishedPod], one: FinishedPod) -> dict[str, FinishedPod]:
    """*finished*, by uid, and one more; of too many the oldest are forgotten.

    Those that came from a file never are: it would have them run again.
    """
    all_of_them = {**finished, one.known.pod.uid: one}
    others = [uid for uid, each in all_of_them.items() if each.known.source == API_SOURCE]
    too_many = set(others[: max(len(others) - MAX_FINISHED, 0)])
    return {uid: each for uid, each in all_of_them.items() if uid not in too_many}
