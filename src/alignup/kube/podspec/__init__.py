"""What to run, from a pod's manifest: read, filled in as the API server does it, and judged by what is allowed here.

Three things can come of a field. It is heeded; or it asks for something that cannot or may not be had, and the pod is
refused with all such fields at once; or it is not heeded, and a warning says what will not happen. None is dropped in
silence, unless nothing is lost with it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from alignup.align.errors import PodError
from alignup.align.workload import Pod
from alignup.kube.podspec.field_support import warn_unsupported
from alignup.kube.podspec.object_reader import Diagnostics, ObjectReader
from alignup.kube.podspec.pod import read_pod_spec
from alignup.kube.podspec.types import Permission, PodSpec

__all__ = ["ParsedPodSpec", "parse_pod_spec", "pod_spec_of"]

MAX_WARNINGS = 50  #: that are told one by one


@dataclass(frozen=True, slots=True)
class ParsedPodSpec:
    """What to run, and what its manifest says that nobody here heeds."""

    spec: PodSpec
    warnings: tuple[str, ...] = ()


def parse_pod_spec(document: Mapping[str, object], *, allowed: frozenset[Permission]) -> ParsedPodSpec:
    """What the manifest *document*, metadata and spec, wants to be run; a :class:`PodError` with all that is wrong."""
    notes = Diagnostics(allowed)
    top = ObjectReader(notes, "", notes.fields.mapping(document, ""))
    spec = read_pod_spec(top)
    warn_unsupported(top)
    if notes.fields.problems:
        raise PodError(tuple(dict.fromkeys(notes.fields.problems)))
    return ParsedPodSpec(spec, _shown(tuple(dict.fromkeys(notes.warnings))))


def pod_spec_of(pod: Pod, *, allowed: frozenset[Permission]) -> ParsedPodSpec:
    """What *pod*, which keeps its manifest, wants to be run, under the name it has: one of several, or of a host."""
    reading = parse_pod_spec(json.loads(pod.manifest), allowed=allowed)
    spec = replace(reading.spec, name=pod.name, namespace=pod.namespace, labels=pod.labels, annotations=pod.annotations)
    return replace(reading, spec=spec)


def _shown(warnings: tuple[str, ...]) -> tuple[str, ...]:
    left = len(warnings) - MAX_WARNINGS
    return (*warnings[:MAX_WARNINGS], f"and {left:,} more") if left > 0 else warnings
