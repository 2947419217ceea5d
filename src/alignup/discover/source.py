"""The one way in: a machine from this system, or from whatever file, directory or text describes one."""

import json
import os
from pathlib import Path

from alignup.align import synthetic
from alignup.align.errors import ParseError, SourceError
from alignup.align.machine import Machine
from alignup.discover import system
from alignup.discover.file_reader import DirectoryFiles, FileReader

#: The most a description in words may have.
MAX_TEXT = 64 << 20


def discover(root: Path = Path("/")) -> Machine:
    """The machine whose ``/sys`` and ``/proc`` are under *root*: the running system, or a copy of its files.

    On the running system GPUs are asked through NVML too, where that is installed.
    """
    if not root.is_dir():
        raise SourceError(f"{root} is no directory: expected one with sys and proc in it")
    machine = system.read_machine(FileReader(DirectoryFiles(os.fspath(root).rstrip("/"))), name=str(root))
    if root.resolve() == Path("/"):
        from alignup.discover import gpu  # noqa: PLC0415 - only the running system has GPUs to ask

        return gpu.add_gpus(machine)
    return machine


def record(root: Path, file: Path) -> Machine:
    """Write the machine at *root* (``/`` for this one) to the archive *file*, and give it as it is read from there."""
    from alignup.discover import archive  # noqa: PLC0415 - who only looks needs no archives

    if not root.is_dir():
        raise SourceError(f"{root} is no directory: expected one with sys and proc in it")
    discover(root)  # an error here leaves nothing behind, and nothing overwritten
    archive.record(root, file)
    return load(file)


def load(source: Path | str) -> Machine:
    """The machine *source* holds: a directory, an archive or a description, as a path or as the text itself.

    Descriptions are our own YAML or JSON, cAdvisor's ``MachineInfo``, hwloc's XML, and hwloc's synthetic strings.
    """
    path = _path(source)
    if path is None:
        return _described(str(source), name="the text")
    if path.is_dir():
        return discover(path)
    if not path.is_file():
        what = "is neither a file nor a directory" if os.path.lexists(path) else "is not there"
        raise SourceError(f"{path} {what}: expected a machine's directory, archive or description")
    try:
        with path.open("rb") as file:
            head = file.read(512)
        if head.startswith(b"\x1f\x8b") or head[257:262] == b"ustar":
            from alignup.discover import archive  # noqa: PLC0415 - see record

            return system.read_machine(FileReader(archive.read_archive(path)), name=str(path))
        if path.stat().st_size > MAX_TEXT:
            raise SourceError(f"{path} is no archive, and too long for a description")
        return _described(path.read_text(encoding="utf-8"), name=str(path))
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is neither an archive (tar, tar.gz) nor text: {error}") from error


def _path(source: Path | str) -> Path | None:
    """Where *source* is a path: anything there is at it, or what was never meant as text."""
    if isinstance(source, Path):
        return source
    if "\n" in source or "\0" in source or len(source) > 4096 or not source.strip():
        return None
    return Path(source) if os.path.lexists(source) else None


def _described(text: str, *, name: str) -> Machine:
    """The machine a text describes; what kind of text it is shows at its first character."""
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith("<"):
        from alignup.discover import hwloc_xml  # noqa: PLC0415 - a reader is loaded when there is something to read

        return hwloc_xml.parse(text, name=name)
    if start.startswith("{"):
        return _from_json(text, name=name)
    if "\n" not in start.strip() and not start.startswith("alignup:"):
        try:
            return synthetic.parse(start.strip())
        except ParseError as error:
            raise SourceError(
                f"{name} is no machine: no file or directory of that name, and none of YAML or JSON of ours, cAdvisor's"
                f" JSON or hwloc's XML; read as a synthetic machine: {str(error)[:500]}"
            ) from error
    from alignup.discover import machine_file  # noqa: PLC0415 - see above

    return machine_file.parse(text, name=name)


def _from_json(text: str, *, name: str) -> Machine:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{name} begins like JSON but is none: {error}") from error
    from alignup.discover import machine_info  # noqa: PLC0415 - see above
    from alignup.schema.machines import machine_from_document  # noqa: PLC0415

    if "topology" in found and "num_cores" in found:
        return machine_info.convert(found, name=name)
    return machine_from_document(found, name=name)
