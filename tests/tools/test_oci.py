"""The archive of a container image has the form that container tools read, and the same bytes every time."""

import gzip
import hashlib
import io
import json
import tarfile

import pytest

from tools.image import image_config, read_containerfile
from tools.oci import Entry, ImageInfo, write_archive

FILES = {
    "usr/bin/app": Entry(0o755, b"#!/bin/sh\n"),
    "bin": Entry(0o777, target="usr/bin"),
    "tmp": Entry(0o1777, directory=True),
}
INFO = ImageInfo(
    name="docker.io/library/app:1", architecture="amd64", created="2026-01-01T00:00:00Z", config={"User": "65532:65532"}
)


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    path = tmp_path_factory.mktemp("image") / "app.oci.tar"
    digest = write_archive(path, FILES, INFO)
    with tarfile.open(path) as packed:
        files = [(member.name, packed.extractfile(member)) for member in packed if member.isfile()]
        contents = {name: content.read() for name, content in files if content}
    return {**contents, "digest": digest}


def blob(members, descriptor):
    """Return the content that a descriptor names; its digest and size are right."""
    content = members[f"blobs/{descriptor['digest'].replace(':', '/')}"]
    assert hashlib.sha256(content).hexdigest() == descriptor["digest"].removeprefix("sha256:")
    assert len(content) == descriptor["size"]
    return content


def test_the_index_leads_to_the_manifest_the_configuration_and_the_layer(members):
    assert json.loads(members["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (described,) = json.loads(members["index.json"])["manifests"]
    assert described["digest"] == members["digest"]
    assert described["annotations"] == {
        "io.containerd.image.name": "docker.io/library/app:1",
        "org.opencontainers.image.ref.name": "1",
    }

    manifest = json.loads(blob(members, described))
    config = json.loads(blob(members, manifest["config"]))
    (layer,) = manifest["layers"]
    content = gzip.decompress(blob(members, layer))

    assert config["config"] == {"User": "65532:65532"}
    assert (config["architecture"], config["os"]) == ("amd64", "linux")
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}"]
    with tarfile.open(fileobj=io.BytesIO(content)) as packed:
        entries = {member.name: (member.type, member.mode, member.linkname) for member in packed}
        assert {(member.uid, member.gid, member.mtime) for member in packed} == {(0, 0, 0)}
    assert entries == {
        "bin": (tarfile.SYMTYPE, 0o777, "usr/bin"),
        "tmp": (tarfile.DIRTYPE, 0o1777, ""),
        "usr": (tarfile.DIRTYPE, 0o755, ""),
        "usr/bin": (tarfile.DIRTYPE, 0o755, ""),
        "usr/bin/app": (tarfile.REGTYPE, 0o755, ""),
    }


def test_docker_finds_the_same_image(members):
    (described,) = json.loads(members["manifest.json"])

    assert described["RepoTags"] == ["app:1"]
    assert {described["Config"], *described["Layers"]} <= members.keys()


def test_the_same_files_give_the_same_archive(tmp_path):
    turned = dict(reversed(FILES.items()))

    assert write_archive(tmp_path / "1", FILES, INFO) == write_archive(tmp_path / "2", turned, INFO)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_another_file_gives_another_digest(tmp_path, members):
    assert write_archive(tmp_path / "1", {**FILES, "more": Entry()}, INFO) != members["digest"]


def test_the_image_runs_as_the_containerfile_says():
    _, stages = read_containerfile()

    config = image_config(stages[-1], path="/usr/bin")

    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["alignup"]
    assert "PATH=/opt/alignup/bin:/usr/bin" in config["Env"]
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
