"""The manifest for krew has the fields that krew requires, and names an archive that works once it is installed."""

import hashlib
import re
import subprocess

import pytest
import yaml

from tools import krew
from tools.bundle import write_bundle
from tools.oci import Entry

URL = "https://example.com/releases/v0.2.0"


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
    """They are those that krew's documentation requires, in the forms that it requires."""
    manifest = make(dist)
    spec = manifest.pop("spec")
    platforms = spec.pop("platforms")

    api = "krew.googlecontainertools.github.com/v1alpha2"
    assert manifest == {"apiVersion": api, "kind": "Plugin", "metadata": {"name": "alignup"}}
    assert spec.keys() - {"caveats"} == {"version", "homepage", "shortDescription", "description"}
    assert all(isinstance(text, str) and text for text in spec.values())
    assert spec["version"] == "v0.2.0"
    assert spec["homepage"].startswith("https://")
    assert re.fullmatch(".{0,49}[^.]", spec["shortDescription"])
    assert all(len(line) < 100 for line in spec["description"].splitlines())
    for arch, platform in zip(("amd64", "arm64"), platforms, strict=True):
        assert platform.keys() == {"selector", "uri", "sha256", "bin", "files"}
        assert platform["selector"] == {"matchLabels": {"os": "linux", "arch": arch}}
        assert re.fullmatch(r"https://.*\.tar\.gz", platform["uri"])
        assert re.fullmatch("[0-9a-f]{64}", platform["sha256"])
        assert platform["bin"]
        assert all(entry["from"] and entry["to"] for entry in platform["files"])


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
