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
from alignup.kube.running.known import look
from alignup.kube.running.part import Notes, Part
from alignup.kube.running.pod import read
from alignup.kube.spec import Permission, PodSpec

__all__ = ["Reading", "read_spec", "spec_of"]

MOST_WARNINGS = 50  #: that are told one by one


@dataclass(frozen=True, slots=True)
class Reading:
    """What to run, and what its manifest says that nobody here heeds."""

    spec: PodSpec
    warnings: tuple[str, ...] = ()


def read_spec(document: Mapping[str, object], *, allowed: frozenset[Permission]) -> Reading:
    """What the manifest *document*, metadata and spec, wants to be run; a :class:`PodError` with all that is wrong."""
    notes = Notes(allowed)
    top = Part(notes, "", notes.fields.mapping(document, ""))
    spec = read(top)
    look(top)
    if notes.fields.problems:
        raise PodError(tuple(dict.fromkeys(notes.fields.problems)))
    return Reading(spec, _shown(tuple(dict.fromkeys(notes.warnings))))


def spec_of(pod: Pod, *, allowed: frozenset[Permission]) -> Reading:
    """What *pod*, which keeps its manifest, wants to be run, under the name it has: one of several, or of a host."""
    reading = read_spec(json.loads(pod.manifest), allowed=allowed)
    spec = replace(reading.spec, name=pod.name, namespace=pod.namespace, labels=pod.labels, annotations=pod.annotations)
    return replace(reading, spec=spec)


def _shown(warnings: tuple[str, ...]) -> tuple[str, ...]:
    left = len(warnings) - MOST_WARNINGS
    return (*warnings[:MOST_WARNINGS], f"and {left:,} more") if left > 0 else warnings
