"""Generates workloads for the hosts of a cluster: those of ``simulate.generate`` for each group, plus gangs, priorities.

Every group gets its share of the pods, made for its machine, so that all groups are equally busy. A fifth of the
trainers start a gang of 2, 4 or 8 equal pods, which are taken from the following trainers. User-facing kinds have a
priority. The same seed gives the same workload.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from alignup.simulate import generate as one_host
from alignup.simulate.arrivals import GANG_LABEL
from alignup.simulate.cluster.groups import HostGroup
from alignup.simulate.cluster.submissions import PodSubmission, from_events
from alignup.simulate.generate import Profile

PRIORITIES = {"upf": 1000, "du": 1000, "model": 1000}  #: by kind; 0 for all others
GANG_KIND = "trainer"
GANG_SHARE = 0.2
GANG_SIZES = (2, 4, 8)


def generate(
    profile: Profile, groups: Sequence[HostGroup], *, seed: int, pods: int, load: float
) -> tuple[PodSubmission, ...]:
    """A workload of *pods* that request *load* of all hosts on average; ``SettingsError`` if *load* is invalid."""
    hosts = sum(group.count for group in groups)
    found: list[PodSubmission] = []
    left, hosts_left = pods, hosts
    for number, group in enumerate(groups):
        share = left * group.count // hosts_left if hosts_left else 0
        left, hosts_left = left - share, hosts_left - group.count
        prefix = f"{group.name}-".lower() if len(groups) > 1 else ""
        events = one_host.generate(
            profile, group.machine, seed=seed + number, pods=share, load=load * max(group.count, 1)
        )
        found += _with_gangs(_named(from_events(events), prefix), Random(seed + number))  # noqa: S311 - not cryptography
    return tuple(sorted(found, key=lambda one: one.time))


def _named(submissions: Sequence[PodSubmission], prefix: str) -> Iterator[PodSubmission]:
    for one in submissions:
        pod = one.pod
        name, priority = f"{prefix}{pod.name}", PRIORITIES.get(pod.labels.get("app", ""))
        yield replace(one, pod=replace(pod, name=name, uid=name, priority=priority))


def _with_gangs(submissions: Iterator[PodSubmission], random: Random) -> Iterator[PodSubmission]:
    leader: PodSubmission | None = None
    missing = number = 0
    for one in submissions:
        if one.pod.labels.get("app") != GANG_KIND:
            yield one
            continue
        if not missing and random.random() < GANG_SHARE:
            leader, missing, number = one, GANG_SIZES[int(random.random() * len(GANG_SIZES))], number + 1
        if not missing or leader is None:
            yield one
            continue
        missing -= 1
        prefix = leader.pod.name.removesuffix(leader.pod.name.rpartition("-")[2])
        labels = {**leader.pod.labels, GANG_LABEL: f"{prefix}gang-{number}"}
        yield replace(leader, pod=replace(leader.pod, name=one.pod.name, uid=one.pod.uid, labels=labels))
