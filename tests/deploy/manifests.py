"""The objects in ``deploy/``: those of kustomizations, and those of the chart."""

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.console_runner import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
BASE = KUBERNETES  #: the kustomization of the observer
SCHEDULE = KUBERNETES / "schedule"  #: of the gate controller
SCHEDULER = KUBERNETES / "scheduler"  #: of a second scheduler
NRI_ASSIST, NRI_DECIDE = KUBERNETES / "nri-assist", KUBERNETES / "nri-decide"  #: of the NRI plugin, in either mode
STEER = KUBERNETES / "steer"  #: a component that changes the first, and has objects of its own
PLANS = KUBERNETES / "plans"  #: a component that lets the gate controller carry out plans

Manifest = dict[str, Any]


def find_program(name: str) -> str | None:
    """Find a program in ``ALIGNUP_KUBERNETES_BIN`` or on the PATH."""
    return shutil.which(name, path=os.environ.get("ALIGNUP_KUBERNETES_BIN")) or shutil.which(name)


def read_kustomization(directory: Path) -> list[Manifest]:
    """Read the objects of a kustomization as kustomize does, for ours have resources and nothing else."""
    (kustomization,) = read_documents((directory / "kustomization.yaml").read_text("utf-8"))
    assert kustomization.keys() == {"apiVersion", "kind", "resources"}
    return [manifest for name in kustomization["resources"] for manifest in _read_resource(directory / name)]


def _read_resource(path: Path) -> Iterator[Manifest]:
    if path.is_dir():
        yield from read_kustomization(path)
    else:
        yield from read_documents(path.read_text("utf-8"))


def read_documents(text: str) -> list[Manifest]:
    """Read the objects of a YAML file."""
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document is not None]  # fast


def by_name(manifests: Iterable[Manifest]) -> dict[str, Manifest]:
    """Index objects as ``KIND NAMESPACE/NAME``; no two may have the same."""
    named: dict[str, Manifest] = {}
    for manifest in manifests:
        metadata = manifest["metadata"]
        key = f"{manifest['kind']} {metadata.get('namespace', '')}/{metadata['name']}"
        assert key not in named, f"{key} exists twice"
        named[key] = manifest
    return named


def of_kind(manifests: Iterable[Manifest], *kinds: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]
