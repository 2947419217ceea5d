"""The inputs in an archive of ``alignup collect``: its parts are read as the files that options name."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from alignup.align.errors import SettingsError
from alignup.align.release import find_release
from alignup.cli import inputs
from alignup.cli.app import InputError, Place
from alignup.cli.inputs import HostInput
from alignup.cli.options import HostOptions
from alignup.collect import collection as archives
from alignup.collect.collection import ETC, STATE, Collection, Part, missing_inputs
from alignup.kubernetes.manifests.workloads import LoadedWorkloads

_COLLECT = "Give an archive that 'alignup collect' has written, or manifests."


def read(options: HostOptions, file: str) -> tuple[HostInput, LoadedWorkloads]:
    """Return the host and the pod in an archive; what *options* give counts instead of its parts."""
    with unpacked(options, file) as archive:
        node = inputs.read_host(archive.options, kubelet_faults=True)
        manifests = inputs.read_manifests(archive.files(Part.POD, Part.CLAIMS), node.host.settings.gates)
    name = str(archive.directory)
    notes = (*describe(archive.collection, file), *(note.replace(name, file) for note in node.notes))
    return node._replace(notes=notes), _renamed(manifests, name, file)


class UnpackedArchive(NamedTuple):
    collection: Collection
    directory: Path  #: with its parts
    options: HostOptions  #: with the files of the archive where nothing is given

    def files(self, *parts: Part) -> tuple[str, ...]:
        return tuple(str(self.directory / part) for part in parts if part in self.collection.parts)


@contextmanager
def unpacked(options: HostOptions, file: str) -> Iterator[UnpackedArchive]:
    """Unpack an archive for a moment; input errors name the archive."""
    with inputs.input_errors(Place(file=file), advice=_COLLECT):
        collection = archives.read(Path(file))
    _check_parts(options, collection, file)
    with TemporaryDirectory(prefix="alignup-") as name:
        directory = Path(name)
        for folder in (STATE, ETC):
            (directory / folder).mkdir()
        for part, content in collection.parts.items():  # known names only
            (directory / part).write_bytes(content)
        try:
            yield UnpackedArchive(collection, directory, _with_parts(options, collection, directory))
        except InputError as error:
            error.problems = tuple(problem.replace(name, file) for problem in error.problems)
            place = error.place._replace(
                file=error.place.file.replace(name, file), detail=error.place.detail.replace(name, file)
            )
            error.place = place if place.option in _given(options) else Place(file=place.file or file, line=place.line)
            raise


def _given(options: HostOptions) -> set[str]:
    """Return which options about parts were given."""
    values = {
        "--machine": options.machine,
        "--config": options.config or options.config_dir,
        "--kubelet-dir": options.state,
        "--pods": options.pods,
        "--devices": options.devices,
        "--set": options.changes,
        "--kubernetes-version": options.kubernetes_version,
    }
    return {name for name, value in values.items() if value}


def _check_parts(options: HostOptions, collection: Collection, file: str) -> None:
    """Refuse to guess: an absent machine is not this machine, and an absent state is not the state of an empty node."""
    option_names = _given(options)
    for title, option in missing_inputs(collection).items():
        if option not in option_names:
            reasons = "; ".join(f"{part.title}: {part.problem}" for part in collection.index.missing)
            advice = f"Give {option}, or collect it again" + (f" ({reasons})." if reasons else ".")
            raise InputError(f"the archive lacks {title}", place=Place(file=file), advice=advice)
    if Part.POD not in collection.parts:
        raise InputError(f"the archive lacks {Part.POD}", place=Place(file=file), advice=_COLLECT)


def _with_parts(options: HostOptions, collection: Collection, directory: Path) -> HostOptions:
    """Return *options* with the files of the archive where nothing is given."""
    parts = collection.parts
    version = options.kubernetes_version
    with suppress(SettingsError):
        find_release(collection.index.kubelet_version)
        version = version or collection.index.kubelet_version
    machine = Part.RECORDING if Part.RECORDING in parts else Part.MACHINE
    pods = (str(directory / Part.PODS),) if Part.PODS in parts else ()
    return replace(
        options,
        machine=options.machine or str(directory / machine),
        config=options.config or (directory / Part.CONFIGURATION if Part.CONFIGURATION in parts else None),
        state=options.state or directory / STATE,
        pods=options.pods or pods,
        kubernetes_version=version,
    )


def describe(collection: Collection, file: str) -> list[str]:
    """Return what an archive is about, what differs from the node, and what it lacks."""
    index = collection.index
    kubelet = f", kubelet {index.kubelet_version}" if index.kubelet_version else ""
    report = f"; the pod was {index.reported}" if index.reported else ""
    lines = [f"{file}: pod {index.pod} on node {index.node}{kubelet}, as of {index.collected_at}{report}"]
    lines += [f"{file}: {note}" for note in index.notes]
    return lines + [f"{file} lacks {part.title}: {part.problem}" for part in index.missing]


def _renamed(manifests: LoadedWorkloads, name: str, file: str) -> LoadedWorkloads:
    """Return *manifests* with the archive instead of the directory *name* in all places."""
    return LoadedWorkloads(
        tuple(
            replace(work, source=replace(work.source, file=work.source.file.replace(name, file)))
            for work in manifests.workloads
        ),
        tuple(warning.replace(name, file) for warning in manifests.warnings),
        tuple(replace(location, file=location.file.replace(name, file)) for location in manifests.claims),
    )
