"""The entry point: a machine from this system, or from a file, directory or text that describes one."""

import os
from pathlib import Path

from alignup.align.errors import ParseError, SourceError
from alignup.align.machine import Machine
from alignup.machines.limits import MAX_TEXT_BYTES
from alignup.machines.magic_numbers import is_compressed


def discover(root: Path = Path("/")) -> Machine:
    """The machine whose ``/sys`` and ``/proc`` are below *root*: the running system, or a copy of its files.

    On the running system it includes the GPUs that NVML reports, if that is installed.
    """
    from alignup.machines import system  # noqa: PLC0415 - descriptions need none of it
    from alignup.machines.file_reader import DirectoryFiles, FileReader  # noqa: PLC0415

    if not root.is_dir():
        raise SourceError(f"{root} is not a directory: expected one that contains sys and proc")
    machine = system.read_machine(FileReader(DirectoryFiles(os.fspath(root).rstrip("/"))), name=str(root))
    return system.add_gpus(machine) if root.resolve() == Path("/") else machine


def record_script() -> str:
    """A shell script that writes a recording of the machine it runs on to standard output, without Alignup."""
    from importlib.resources import files  # noqa: PLC0415 - slow to import

    return (files("alignup.machines") / "record.sh").read_text("utf-8")


def record(root: Path, file: Path) -> Machine:
    """Write the machine at *root* to the archive *file*, and return it as read back from there."""
    from alignup.machines import archive  # noqa: PLC0415 - only recordings need it

    discover(root)  # fail before anything is written
    archive.record(root, file)
    return load(file)


def load(source: Path | str) -> Machine:
    """The machine in *source*: a directory, an archive or a description, as a path or as the text itself.

    Descriptions are our YAML or JSON, cAdvisor's ``MachineInfo``, hwloc's XML and hwloc's synthetic strings.
    """
    if isinstance(source, str):
        is_text = "\n" in source or "\0" in source or len(source) > 4096 or not source.strip()
        if is_text or not os.path.lexists(source):
            return _parse_text(source)
    path = Path(source)
    if path.is_dir():
        return discover(path)
    if not path.is_file():
        problem = "is neither a file nor a directory" if os.path.lexists(path) else "does not exist"
        raise SourceError(f"{path} {problem}: expected a machine's directory, archive or description")
    try:
        with path.open("rb") as file:
            head = file.read(512)
            is_archive = is_compressed(head) or head[257:262] == b"ustar"
            text = b"" if is_archive else head + file.read(MAX_TEXT_BYTES + 1)
        if is_archive:
            from alignup.machines import archive, system  # noqa: PLC0415 - see record
            from alignup.machines.file_reader import FileReader  # noqa: PLC0415

            return system.read_machine(FileReader(archive.read_archive(path)), name=str(path))
        if len(text) > MAX_TEXT_BYTES:
            raise SourceError(f"{path} is not an archive, and longer than a description of {MAX_TEXT_BYTES >> 20} MiB")
        return _parse_text(text.decode(), path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{path} is neither an archive (tar, with gzip, bzip2, xz or zstd) nor text: {error}"
        ) from error


def _parse_text(text: str, path: Path | None = None) -> Machine:
    """The machine in a text, read from *path* if there is one; the first character shows the format."""
    name = "the text" if path is None else str(path)
    start = text.lstrip("\ufeff \t\r\n")
    if not start:
        raise SourceError(f"{name} is empty: expected the description of a machine")
    if start.startswith("<"):
        from alignup.machines import hwloc_xml  # noqa: PLC0415 - loaded on demand

        return hwloc_xml.parse(text, name=name)
    if "\n" not in start.strip() and not start.startswith(("alignup:", "{")):
        from alignup.machines import synthetic  # noqa: PLC0415 - loaded on demand

        try:
            return synthetic.parse(start.strip())
        except ParseError as error:
            tried = "our YAML or JSON, cAdvisor's JSON or hwloc's XML"
            raise SourceError(
                f"{name} does not describe a machine: it is not"
                f" {'an existing file or directory, ' if path is None else ''}{tried};"
                f" read as a synthetic machine: {str(error)[:500]}"
            ) from error
    from alignup.machines import machine_file  # noqa: PLC0415 - see above

    if start.startswith("{"):
        return machine_file.parse_json(text, name=name)
    return machine_file.parse(text, name=name)
