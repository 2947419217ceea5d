"""Helpers that build manifests and parse them."""

import pytest

from alignup.align.errors import PodError
from alignup.kubernetes.podspec import parse_pod_spec
from alignup.kubernetes.podspec.types import Permission

NOTHING: frozenset[Permission] = frozenset()
EVERYTHING = frozenset(Permission)


def container(**more):
    return {"name": "app", "image": "alpine:3", **more}


def manifest(*, init=(), metadata=None, **spec):
    """A pod with one container unless *spec* says otherwise."""
    own = {"containers": [container()], **({"initContainers": list(init)} if init else {}), **spec}
    return {"metadata": {"name": "web", **(metadata or {})}, "spec": own}


def holding(**fields):
    """A pod whose only container has *fields*."""
    return manifest(containers=[container(**fields)])


def parse(document, allowed=EVERYTHING):
    parsed = parse_pod_spec(document)
    parsed.check(allowed)
    return parsed


def read(document, allowed=EVERYTHING):
    """The spec of a manifest without problems and warnings."""
    parsed = parse(document, allowed)
    assert not parsed.warnings
    return parsed.spec


def read_one(**fields):
    return read(holding(**fields)).containers[0]


def warnings_of(document, allowed=EVERYTHING):
    return list(parse(document, allowed).warnings)


def problems_of(document, allowed=EVERYTHING):
    with pytest.raises(PodError) as rejection:
        parse(document, allowed)
    return [str(problem) for problem in rejection.value.problems]
