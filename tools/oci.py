"""Container images as OCI archives: one layer, the same bytes for the same input.

The archive is a tar of an OCI image layout. It also has Docker's ``manifest.json``, so that ``podman load``,
``docker load`` and ``ctr images import`` all read it.
"""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, a directory or a symbolic link; everything belongs to root."""

    mode: int = 0o644
    content: bytes = b""
    target: str = ""  #: of a symbolic link
    directory: bool = False


Files = Mapping[str, Entry]  #: path without a leading slash → entry


@dataclass(frozen=True, slots=True)
class ImageInfo:
    name: str  #: such as ``docker.io/library/alignup:1.0``
    architecture: str  #: as in Go: ``amd64``, ``arm64``
    created: str  #: RFC 3339
    config: Mapping[str, Any]  #: user, environment, entry point, labels


def write_archive(path: Path, files: Files, info: ImageInfo) -> str:
    """Write the image to *path*; return the digest of its manifest."""
    layer = pack_layer(files)
    blobs: dict[str, bytes] = {}
    compressed = _add(blobs, _LAYER, gzip.compress(layer, 6, mtime=0))
    config = _add(blobs, _CONFIG, _json(_image_config(info, layer)))
    manifest = _add(
        blobs, _MANIFEST, _json({"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": [compressed]})
    )
    tag = info.name.rpartition(":")[2]
    names = {"io.containerd.image.name": info.name, "org.opencontainers.image.ref.name": tag}
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [{**manifest, "annotations": names}]}
    docker = [
        {
            "Config": _blob_path(config),
            "RepoTags": [info.name.removeprefix("docker.io/library/")],
            "Layers": [_blob_path(compressed)],
        },
    ]
    outer = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(index),
        "manifest.json": _json(docker),
        **{f"blobs/sha256/{digest}": content for digest, content in blobs.items()},
    }
    path.write_bytes(pack_layer({name: Entry(content=content) for name, content in outer.items()}))
    return str(manifest["digest"])


def pack_layer(files: Files) -> bytes:
    """Return a tar of *files* in the order of their paths, with every parent directory, and without times."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as packed:
        for path, entry in sorted(_with_parents(files).items()):
            member = tarfile.TarInfo(path)
            member.mode = entry.mode
            if entry.directory:
                member.type = tarfile.DIRTYPE
            elif entry.target:
                member.type, member.linkname = tarfile.SYMTYPE, entry.target
            member.size = len(entry.content)
            packed.addfile(member, io.BytesIO(entry.content))
    return buffer.getvalue()


def _with_parents(files: Files) -> dict[str, Entry]:
    parents = {str(parent) for path in files for parent in PurePosixPath(path).parents} - {"."}
    return {**{path: Entry(0o755, directory=True) for path in parents}, **files}


def _image_config(info: ImageInfo, layer: bytes) -> dict[str, Any]:
    return {
        "architecture": info.architecture,
        "os": "linux",
        "created": info.created,
        "config": dict(info.config),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": info.created, "comment": "make image"}],
    }


def _add(blobs: dict[str, bytes], media_type: str, content: bytes) -> dict[str, Any]:
    """Add a blob; return its descriptor."""
    digest = hashlib.sha256(content).hexdigest()
    blobs[digest] = content
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _blob_path(descriptor: Mapping[str, Any]) -> str:
    return f"blobs/{str(descriptor['digest']).replace(':', '/')}"


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
