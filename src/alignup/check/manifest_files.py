"""The manifests below files and directories, as a repository has them."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from alignup.atomic_files import open_input
from alignup.kubernetes.manifests.documents import MAX_BYTES
from alignup.kubernetes.manifests.mistakes import CHART, KUSTOMIZATIONS
from alignup.kubernetes.manifests.workloads import SUFFIXES

STANDARD_INPUT = "standard input"


class ManifestFile(NamedTuple):
    name: str
    text: bytes
    in_directory: bool = False  #: whether it was found there, so that it need not be a manifest


def read_files(paths: Sequence[str], standard_input: BinaryIO | None, notes: list[str]) -> Iterator[ManifestFile]:
    """Yield the files of *paths* and of all directories below them; ``-`` is standard input.

    In a directory, files without ``apiVersion`` are no manifests, and a Helm chart has templates; *notes* get which of
    them are skipped. Raises ``OSError`` for what cannot be read.
    """
    for path in paths:
        if path == "-":
            yield ManifestFile(STANDARD_INPUT, standard_input.read(MAX_BYTES + 1) if standard_input else b"")
        elif Path(path).is_dir():
            yield from _read_directory(path, notes)
        else:
            yield _read(path)


def _read_directory(path: str, notes: list[str]) -> Iterator[ManifestFile]:
    for directory, folders, names in os.walk(path, onerror=_raise):
        if CHART in names:
            notes.append(f"{directory}: skipped a Helm chart; try helm template {directory} | alignup check -")
            folders.clear()
            continue
        folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
        for name in sorted(names):
            file = str(Path(directory, name))
            if name in KUSTOMIZATIONS:
                notes.append(
                    f"{file}: its patches are not applied; try kubectl kustomize {directory} | alignup check -"
                )
            elif name.endswith(SUFFIXES) and b"apiVersion" in (manifest := _read(file)).text:
                yield manifest._replace(in_directory=True)


def _read(path: str) -> ManifestFile:
    with open_input(path) as file:
        return ManifestFile(path, file.read(MAX_BYTES + 1))


def _raise(error: OSError) -> None:
    raise error
