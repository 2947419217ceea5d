"""The releases of Kubernetes: what the kubelet of each one does differently.

A behavior that changed has a name here, and the code that has it asks for that name; nothing else compares versions. A
new release is one entry in ``RELEASES``, plus the code of a behavior that is new. Patch releases of one minor release
decide alike.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any, Self

from alignup.align.bits import quote
from alignup.align.errors import SettingsError

_VERSION = re.compile(r"v?1\.(\d{1,4})(?:\.\d{1,6})?(?:[-+][0-9A-Za-z.+_-]*)?", re.ASCII)


class FeatureStage(StrEnum):
    ALPHA = "alpha"
    BETA = "beta"
    GA = "GA"


@dataclass(frozen=True, slots=True)
class FeatureGate:
    """A feature gate; a locked gate cannot be changed from its default."""

    stage: FeatureStage
    default: bool
    locked: bool = False


_ALPHA = FeatureGate(FeatureStage.ALPHA, default=False)
_BETA = FeatureGate(FeatureStage.BETA, default=True)
_BETA_OFF = FeatureGate(FeatureStage.BETA, default=False)
_GA = FeatureGate(FeatureStage.GA, default=True)
_LOCKED = FeatureGate(FeatureStage.GA, default=True, locked=True)


class ClaimRule(StrEnum):
    """How the fit check treats extended resources that ResourceClaims serve."""

    COUNTED = "counted"  #: like all others
    UNKNOWN_IGNORED = "unknown ignored"  #: resources unknown to the host are ignored, native ones too
    ABSENT_IGNORED = "absent ignored"  #: so are resources of which the host has 0
    CLAIMED_IGNORED = "claimed ignored"  #: exactly the requests that a claim serves are ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A minor release: its feature gates and policy options that affect alignment, and the behavior of its managers."""

    minor: int  #: 37 for 1.37
    version: str  #: 1.37
    previews: tuple[str, ...] = ()  #: plans that are added to it
    gates: Mapping[str, FeatureGate] = field(repr=False, compare=False)
    options: Mapping[str, FeatureStage] = field(repr=False, compare=False)  #: of the CPU and the topology manager
    #: the last prerelease of which all public changes are known, and its date; empty: the release is known as a whole
    known_up_to: str = ""
    #: A device that a pod holds and no plugin lists any more crashes the kubelet; before, it is one without nodes.
    crashes_on_gone_devices: bool = False
    #: Hints for devices name only NUMA nodes with devices of the resource; before, all nodes of the machine.
    hints_device_nodes_only: bool = False
    #: With align-by-socket, distribute-cpus-across-numa prefers nodes on few sockets.
    distributes_by_socket: bool = False
    #: A socket or core is whole if all its CPUs are free; before, if as many are as the average one has.
    takes_groups_by_size: bool = False
    #: distribute-cpus-across-numa copies the combination it chooses; before, later combinations overwrite it.
    copies_combinations: bool = False
    #: distribute-cpus-across-numa uses as many NUMA nodes as the hint has, if it can; before, as few as possible.
    keeps_hint_width: bool = False
    #: distribute-cpus-across-cores takes a CPU of each core in turn; before, CPUs by their number.
    goes_round_cores: bool = False
    #: A pod placed as a whole keeps its resources at a restart, and leaves none behind if it is rejected.
    restores_pods: bool = False
    #: Devices for which a plugin has not answered yet stay in use; before, the kubelet may forget them meanwhile.
    remembers_unfinished_devices: bool = False
    #: Amounts beyond 64 bits become the largest one, and are rounded away from zero; before, they may wrap around.
    exact_quantities: bool = False
    #: The kubelet does not start if its subordinate IDs end with the largest 32-bit number.
    checks_sub_ids: bool = False
    #: The remainder of distributed CPUs is given in whole groups only; before, an attempt at it may not end.
    distributes_in_groups: bool = False
    #: An odd number of CPUs in one cache takes a part of a core; before, it is not taken from one cache.
    splits_cores_in_cache: bool = False
    #: A container that has CPUs keeps them under full-pcpus-only; before, it is checked as if it came again.
    keeps_partial_cores: bool = False
    #: Containers of a pod placed as a whole that request no memory are left out; before, an empty request is placed.
    skips_empty_memory_requests: bool = False
    #: How the fit check treats extended resources with the gate DRAExtendedResource.
    claim_rule: ClaimRule = ClaimRule.COUNTED
    #: With DRAExtendedResource, the device manager allocates nothing for requests that a claim serves.
    allocates_unclaimed_devices: bool = False
    #: A resize is infeasible if it exceeds the allocatable resources of the host; later it is deferred then.
    checks_capacity_of_resizes: bool = False
    #: Under a static policy, a Guaranteed pod can be resized in the resources that the policy does not manage.
    resizes_by_resource: bool = False
    #: The state files of the CPU and the memory manager have a version for pods placed as a whole, if that gate is on.
    stores_pods_as_whole: bool = False
    #: These files wrap their contents in a string, and older versions are read always.
    wraps_state_files: bool = False
    #: A file of the CPU manager with a wrong checksum is read as one of the first version, whose error is reported.
    reads_corrupt_cpus_as_v1: bool = False
    #: A file of the memory manager without checksum is read.
    accepts_memory_without_checksum: bool = False

    def __str__(self) -> str:
        return self.version

    @property
    def complete(self) -> bool:
        return not self.known_up_to

    @property
    def caveat(self) -> str:
        """Say how far the release is known; empty if it is known as a whole."""
        return f"{self} is not released; known up to {self.known_up_to}" if self.known_up_to else ""

    def describe(self) -> str:
        note = f" (not released; known up to {self.known_up_to})" if self.known_up_to else ""
        return f"{self}{note}" + "".join(f", {PREVIEWS[name]}: {name}" for name in self.previews)

    def to_document(self) -> dict[str, str | list[str]]:
        """Return the fields of JSON documents about answers of this release."""
        previews = {"previews": list(self.previews)} if self.previews else {}
        return {"kubernetes": self.version, **self.date_document(), **previews}

    def date_document(self) -> dict[str, str]:
        """Return the field of JSON documents that says how far the release is known."""
        return {"knownUpTo": self.known_up_to} if self.known_up_to else {}

    def after(
        self,
        *,
        gates: Mapping[str, FeatureGate],
        options: Mapping[str, FeatureStage],
        **changes: Any,  # noqa: ANN401 - any field
    ) -> Self:
        """Return the next minor release, which changes these gates, options and behaviors."""
        return replace(
            self,
            minor=self.minor + 1,
            version=f"1.{self.minor + 1}",
            gates=MappingProxyType({**self.gates, **gates}),
            options=MappingProxyType({**self.options, **options}),
            **changes,
        )


_33 = Release(
    minor=33,
    version="1.33",
    gates=MappingProxyType(
        {
            "CPUManagerPolicyAlphaOptions": _ALPHA,
            "CPUManagerPolicyBetaOptions": _BETA,
            "CPUManagerPolicyOptions": _LOCKED,
            "InPlacePodVerticalScaling": _BETA,
            "InPlacePodVerticalScalingExclusiveCPUs": _ALPHA,
            "PodLevelResources": _ALPHA,
            "TopologyManagerPolicyAlphaOptions": _ALPHA,
            "TopologyManagerPolicyBetaOptions": _BETA,
            "TopologyManagerPolicyOptions": _GA,
        }
    ),
    options=MappingProxyType(
        {
            "full-pcpus-only": FeatureStage.GA,
            "distribute-cpus-across-numa": FeatureStage.BETA,
            "align-by-socket": FeatureStage.ALPHA,
            "distribute-cpus-across-cores": FeatureStage.ALPHA,
            "strict-cpu-reservation": FeatureStage.BETA,
            "prefer-align-cpus-by-uncorecache": FeatureStage.ALPHA,
            "prefer-closest-numa-nodes": FeatureStage.GA,
            "max-allowable-numa-nodes": FeatureStage.BETA,
        }
    ),
    checks_capacity_of_resizes=True,
)
_34 = _33.after(
    gates={
        "DRAExtendedResource": _ALPHA,
        "InPlacePodVerticalScalingExclusiveMemory": _ALPHA,
        "PodLevelResources": _BETA,
    },
    options={"prefer-align-cpus-by-uncorecache": FeatureStage.BETA},
    claim_rule=ClaimRule.UNKNOWN_IGNORED,
    resizes_by_resource=True,
    splits_cores_in_cache=True,
    crashes_on_gone_devices=True,
)
_35 = _34.after(
    gates={"InPlacePodLevelResourcesVerticalScaling": _ALPHA, "InPlacePodVerticalScaling": _LOCKED},
    options={"strict-cpu-reservation": FeatureStage.GA, "max-allowable-numa-nodes": FeatureStage.GA},
    claim_rule=ClaimRule.ABSENT_IGNORED,
    allocates_unclaimed_devices=True,
)
_36 = _35.after(
    gates={
        "DRAExtendedResource": _BETA,
        "InPlacePodLevelResourcesVerticalScaling": _BETA,
        "PodLevelResourceManagers": _ALPHA,
        "TopologyManagerPolicyOptions": _LOCKED,
    },
    options={"prefer-align-cpus-by-uncorecache": FeatureStage.GA},
    claim_rule=ClaimRule.CLAIMED_IGNORED,
    checks_capacity_of_resizes=False,
    hints_device_nodes_only=True,
    stores_pods_as_whole=True,
    reads_corrupt_cpus_as_v1=True,
    accepts_memory_without_checksum=True,
)
_37 = _36.after(
    gates={
        "DRAExtendedResource": _LOCKED,
        "PodLevelResourceManagers": _BETA_OFF,
        "PodLevelResourcesFixDefaulting": _BETA,
    },
    options={},
    distributes_by_socket=True,
    keeps_partial_cores=True,
    skips_empty_memory_requests=True,
    wraps_state_files=True,
    reads_corrupt_cpus_as_v1=False,
)
#: Not released when this was written. Read its changes again after the code freeze, and move the date of knowledge.
_38 = _37.after(
    gates={},
    options={},
    known_up_to="alpha.2, 2026-10-07",
    takes_groups_by_size=True,
    copies_combinations=True,
    distributes_in_groups=True,
    keeps_hint_width=True,
    goes_round_cores=True,
    restores_pods=True,
    remembers_unfinished_devices=True,
    exact_quantities=True,
    checks_sub_ids=True,
)

#: A plan (KEP-6007) that is in no prerelease up to the date of knowledge: which of equally fit NUMA nodes wins.
STRATEGY_PREVIEW = "numa-allocation-strategy"
PREVIEWS: Mapping[str, str] = {STRATEGY_PREVIEW: "preview of a plan, as of 2026-10"}
_FIRST_PREVIEWED = _38

RELEASES = (_33, _34, _35, _36, _37, _38)
NEWEST = _37  #: the newest release of which all differences are known


def find_release(version: str) -> Release:
    """Return the release of a version such as ``1.35`` or ``v1.35.8``; of unknown ones, the nearest known.

    ``SettingsError`` if *version* is not one of Kubernetes.
    """
    minor = _parse_minor(version)
    return min(RELEASES, key=lambda release: abs(release.minor - minor))


@cache
def with_preview(release: Release, name: str) -> Release:
    """Return a release as if it had a plan; ``SettingsError`` if the release is too old for the plan."""
    if release.minor < _FIRST_PREVIEWED.minor:
        raise SettingsError(f"the preview {name} is for Kubernetes {_FIRST_PREVIEWED} and later, not {release}")
    options = {**release.options, STRATEGY_PREVIEW: FeatureStage.ALPHA, "numa-score-weights": FeatureStage.ALPHA}
    return replace(release, options=MappingProxyType(options), previews=(name,))


def release_note(version: str) -> str:
    """Say how far the answers for a *version* are known to agree with its kubelet; empty if they are."""
    minor, release = _parse_minor(version), find_release(version)
    if minor != release.minor:
        return f"Kubernetes 1.{minor} is not known: the answers are those of {release.describe()}"
    return f"Kubernetes {release.caveat}" if release.caveat else ""


def _parse_minor(version: str) -> int:
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise SettingsError(f"{quote(version)} is not a version of Kubernetes; write 1.35 or v1.35.8")
    return int(match[1])
