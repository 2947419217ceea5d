"""What a pod runs, from its manifest: parsed, defaulted as by the API server, and checked against permissions.

Every field is handled in one of three ways. It takes effect; or it asks for something unavailable or forbidden, and
the pod is rejected with all such fields at once; or it has no effect here, and a warning says so. No field is dropped
silently unless it makes no difference.

A :class:`PodManifest` is read once on its way in, carried with the pod, and saved as text.
"""

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from alignup.align.errors import PodError, Problem
from alignup.align.workload import Pod
from alignup.kubernetes.manifests.documents import to_json
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.kubernetes.podspec.field_support import warn_unsupported
from alignup.kubernetes.podspec.pod import read_pod_spec
from alignup.kubernetes.podspec.types import PodSpec

MAX_WARNINGS = 50  #: further warnings are only counted

#: Metadata that the API server maintains; it is not kept.
_SERVER_METADATA = """
    creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName generation managedFields
    ownerReferences resourceVersion selfLink uid
"""


@dataclass(frozen=True, slots=True)
class ParsedPodSpec:
    spec: PodSpec
    warnings: tuple[str, ...] = ()  #: fields that have no effect here
    findings: tuple[tuple[Problem, str | None], ...] = ()  #: with a permission: invalid only without it

    def check(self, allowed: AbstractSet[str]) -> None:
        """Raise a :class:`PodError` that lists every invalid field and every field outside of *allowed*."""
        problems = [problem for problem, permission in self.findings if permission not in allowed]
        if problems:
            raise PodError(tuple(dict.fromkeys(problems)))


@dataclass(frozen=True)
class PodManifest:
    """Metadata and spec of a pod: as JSON text, and parsed on first use."""

    text: str
    document: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)  #: ``None``: decode the text

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "PodManifest":
        server = _SERVER_METADATA.split()
        metadata = document.get("metadata") or {}
        metadata = {key: value for key, value in metadata.items() if key not in server and value is not None}
        kept = {"metadata": metadata, "spec": document.get("spec") or {}}
        return cls(to_json(kept), kept)

    @cached_property
    def parsed(self) -> ParsedPodSpec:
        """:class:`ValueError` if the text is not JSON."""
        return parse_pod_spec(json.loads(self.text) if self.document is None else self.document)

    def same_spec(self, other: "PodManifest") -> bool:
        """Whether both run the same; metadata may differ."""
        return self.text == other.text or bool(json.loads(self.text)["spec"] == json.loads(other.text)["spec"])


def manifest_of(pod: Pod) -> PodManifest | None:
    """``None`` if *pod* does not run here."""
    return pod.manifest if isinstance(pod.manifest, PodManifest) else None


def pod_spec_of(pod: Pod) -> ParsedPodSpec:
    """The parsed spec of *pod*, which carries a manifest, under the pod's own name."""
    manifest = manifest_of(pod)
    if manifest is None:
        raise ValueError(f"pod {pod.namespace}/{pod.name} has no manifest")
    parsed = manifest.parsed
    spec = replace(parsed.spec, name=pod.name, namespace=pod.namespace, labels=pod.labels, annotations=pod.annotations)
    return replace(parsed, spec=spec)


def parse_pod_spec(document: Mapping[str, object]) -> ParsedPodSpec:
    """Parse a manifest's metadata and spec, with the API server's defaults; call ``check`` before using the spec."""
    top = ObjectReader.of(document)
    spec = read_pod_spec(top)
    warn_unsupported(top)
    found = top.diagnostics
    warnings = tuple(dict.fromkeys(found.warnings))
    if len(warnings) > MAX_WARNINGS:
        warnings = (*warnings[:MAX_WARNINGS], f"and {len(warnings) - MAX_WARNINGS:,} more")
    return ParsedPodSpec(spec, warnings, tuple((one, found.permissions.get(one)) for one in found.problems))
