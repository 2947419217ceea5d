"""The manifest for krew has the fields that krew requires, and names an archive that works once it is installed."""

import hashlib
import subprocess

import jsonschema_rs
import pytest
import yaml

from tools import krew
from tools.bundle import write_bundle
from tools.oci import Entry

URL = "https://example.com/releases/v0.2.0"
#: What krew's documentation says about manifests.
TEXT = {"type": "string", "minLength": 1}
PLATFORM = {
    "type": "object",
    "additionalProperties": False,
    "required": ["selector", "uri", "sha256", "bin", "files"],
    "properties": {
        "selector": {
            "type": "object",
            "properties": {
                "matchLabels": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["os", "arch"],
                    "properties": {"os": {"const": "linux"}, "arch": {"enum": ["amd64", "arm64"]}},
                }
            },
            "required": ["matchLabels"],
            "additionalProperties": False,
        },
        "uri": {"type": "string", "pattern": r"^https://.*\.tar\.gz$"},
        "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "bin": TEXT,
        "files": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "object", "required": ["from", "to"], "properties": {"from": TEXT, "to": TEXT}},
        },
    },
}
SPEC = {
    "type": "object",
    "additionalProperties": False,
    "required": ["version", "homepage", "shortDescription", "description", "platforms"],
    "properties": {
        "version": {"type": "string", "pattern": r"^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$"},
        "homepage": {"type": "string", "pattern": "^https://"},
        "shortDescription": {**TEXT, "maxLength": 50, "pattern": "[^.]$"},
        "description": TEXT,
        "caveats": TEXT,
        "platforms": {"type": "array", "minItems": 1, "items": PLATFORM},
    },
}
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "krew.googlecontainertools.github.com/v1alpha2"},
        "kind": {"const": "Plugin"},
        "metadata": {"const": {"name": "alignup"}},
        "spec": SPEC,
    },
}


@pytest.fixture
def dist(tmp_path):
    """A directory with the bundles of a release for two processors."""
    files = {
        "start": Entry(0o755, b'#!/bin/sh\necho alignup "$@"\n'),
        "kubectl": Entry(0o755, b'#!/bin/sh\necho kubectl "$@"\n'),
    }
    for arch in ("amd64", "arm64"):
        write_bundle(tmp_path / f"alignup-0.2.0-linux-{arch}", files, version="0.2.0")
    (tmp_path / "alignup-0.2.0-py3-none-any.whl").write_bytes(b"a wheel is not a bundle")
    return tmp_path


def make(dist, *options):
    assert krew.main(["--url", f"{URL}/", "--dist", str(dist), *options]) == 0
    return yaml.safe_load((dist / "alignup.yaml").read_text("utf-8"))


def test_the_manifest_has_the_fields_of_krew(dist):
    manifest = make(dist)

    assert [error.message for error in jsonschema_rs.validator_for(SCHEMA).iter_errors(manifest)] == []
    assert manifest["spec"]["version"] == "v0.2.0"
    assert [entry["selector"]["matchLabels"]["arch"] for entry in manifest["spec"]["platforms"]] == ["amd64", "arm64"]
    assert all("\n" not in line or len(line) < 100 for line in manifest["spec"]["description"].splitlines())


def test_the_archive_has_the_digest_and_runs_as_a_plugin_of_kubectl(dist, tmp_path):
    platform = make(dist)["spec"]["platforms"][0]
    archive = dist / platform["uri"].removeprefix(f"{URL}/")
    store, links = tmp_path / "store", tmp_path / "bin"
    store.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", store], check=True)  # noqa: S603, S607 - made above
    links.mkdir()
    link = links / "kubectl-alignup"
    link.symlink_to(store / platform["bin"])

    run = subprocess.run(  # noqa: S603
        [link, "why", "trainer-0"],
        env={"ALIGNUP_UNPACK": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert hashlib.sha256(archive.read_bytes()).hexdigest() == platform["sha256"]
    assert sorted(entry["from"] for entry in platform["files"]) == ["LICENSE", "kubectl-alignup"]
    assert run.stdout == "kubectl why trainer-0\n"


def test_the_same_bundles_give_the_same_manifest(dist):
    assert make(dist) == make(dist)


def test_a_release_candidate_has_a_semantic_version(dist):
    (dist / "alignup-0.2.0-linux-amd64").rename(dist / "alignup-0.2.0rc1-linux-amd64")
    (dist / "alignup-0.2.0-linux-arm64").unlink()

    assert make(dist)["spec"]["version"] == "v0.2.0-rc1"


def test_bundles_of_several_versions_are_an_error(dist):
    (dist / "alignup-0.1.0-linux-amd64").write_bytes(b"")

    with pytest.raises(ValueError, match=r"several versions: v0\.1\.0, v0\.2\.0"):
        make(dist)


def test_without_a_bundle_the_error_says_what_to_run(tmp_path, capsys):
    with pytest.raises(SystemExit):
        make(tmp_path)

    assert "run make bundle first" in capsys.readouterr().err
