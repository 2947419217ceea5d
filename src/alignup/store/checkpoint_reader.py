"""Reads the checkpoint and its journal, and says what to do if that is not possible."""

import os
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from alignup.align.errors import CheckpointError, FileError, ParseError
from alignup.documents.journal import apply_changes
from alignup.store import checkpoint_format, journal
from alignup.store.checkpoint_format import NAME, PREVIOUS, DamagedError, LoadedCheckpoint, Migrations
from alignup.store.directory import Directory
from alignup.store.journal import JournalContents


class CheckpointReader:
    """The files in the directory *path*; none of them may have more than *limit* bytes."""

    def __init__(self, path: Path, *, migrations: Migrations, limit: int) -> None:
        self.path, self.previous = path / NAME, path / PREVIOUS
        self._migrations, self._limit = migrations, limit

    def current(self, directory: Directory) -> LoadedCheckpoint | None:
        loaded = self._read(self.path, directory)
        if loaded is not None:
            return self._with_changes(loaded, directory)
        if (before := self._read(self.previous, directory)) is not None:
            before = self._with_changes(before, directory, partly=True)
            raise CheckpointError(
                f"the checkpoint is missing, but the previous one ({_count_pods(before)}) exists",
                where=str(self.previous),
                advice=f"start with --recover previous, or move it out of {self.path.parent} to start empty",
            )
        return None

    def earlier(self, directory: Directory) -> list[LoadedCheckpoint]:
        """Return the earlier states that can be read, newest first; :class:`CheckpointError` if there is none.

        These are what precedes the damage of the journal, if it is damaged, and the previous checkpoint with its
        journal and without it.
        """
        found = []
        with suppress(CheckpointError):
            if (current := self._read(self.path, directory)) is not None:
                partly = self._with_changes(current, directory, partly=True)
                try:
                    self._with_changes(current, directory)
                except CheckpointError:
                    found.append(partly)
        try:
            previous = self._read(self.previous, directory)
            if previous is not None:
                whole = self._with_changes(previous, directory, partly=True)
                found += [whole] if whole.document is previous.document else [whole, previous]
        except CheckpointError:
            if not found:
                raise
        if not found:
            advice = "start without --recover previous"
            raise CheckpointError("there is no previous checkpoint", where=str(self.previous), advice=advice)
        return [replace(one, notes=(*one.notes, _lost_note(one))) for one in found]

    def _read(self, path: Path, directory: Directory) -> LoadedCheckpoint | None:
        """Return a checkpoint, ``None`` if it does not exist, or raise an error that says what to do."""
        try:
            data = self.contents(directory, path)
            return None if data is None else checkpoint_format.parse(data, path, self._migrations)
        except DamagedError as error:
            before = None
            with suppress(CheckpointError):
                if path == self.path and (before := self._read(self.previous, directory)) is not None:
                    before = self._with_changes(before, directory, partly=True)
            advice = f"move it out of {path.parent} to start empty: what its pods hold is then free"
            if before is None:
                advice = f"{self._nothing_else(directory)}; {advice}" if path == self.path else advice
            else:
                which = f"the previous one ({_count_pods(before)})"
                advice = f"start with --recover previous to continue from {which}, or {advice}"
            raise CheckpointError(str(error), where=str(path), advice=advice) from error

    @staticmethod
    def _nothing_else(directory: Directory) -> str:
        missing = "no valid previous one exists"
        if directory.status(journal.NAME) is None:
            return missing
        return f"{missing}, and {journal.NAME} cannot be used without its checkpoint"

    def _with_changes(
        self, loaded: LoadedCheckpoint, directory: Directory, *, partly: bool = False
    ) -> LoadedCheckpoint:
        """Apply the journal; *partly*: up to the damage, if there is any."""
        document = loaded.document
        path, found = self._find_journal(directory, document.journal, document.serial)
        damage = found.damage
        try:
            document = apply_changes(document, found.changes)
        except ParseError as error:
            damage = f"it contradicts the checkpoint: {error}"
        if damage and not partly:
            advice = (
                f"start with --recover previous to continue from serial {document.serial} "
                f"({_count_pods(replace(loaded, document=document))}), after which changes are lost, or move "
                f"{loaded.path.name} out of {path.parent} to start empty: what its pods hold is then free"
            )
            raise CheckpointError(f"the journal is damaged: {damage}", where=str(path), advice=advice)
        notes = list(loaded.notes)
        if damage:
            notes.append(f"the journal is damaged: {damage}")
        elif found.torn:
            notes.append("the journal ends with an incomplete change, which is ignored: it was never acknowledged")
        return replace(loaded, document=document, notes=tuple(notes))

    def _find_journal(self, directory: Directory, key: str, serial: int) -> tuple[Path, JournalContents]:
        """Return the journal of the checkpoint with this *key* and *serial*, and its path; empty if there is none."""
        for name in (journal.NAME, journal.PREVIOUS) if key else ():
            path = self.path.with_name(name)
            try:
                data = self.contents(directory, path)
            except DamagedError as error:
                return path, JournalContents(damage=str(error))
            found = journal.read(data, key=key, serial=serial) if data else None
            if found and found.version != journal.VERSION:
                raise CheckpointError(
                    f"the journal has version {found.version}, but this release reads version {journal.VERSION}",
                    where=str(path),
                    advice="start the release of alignup that wrote it, or a newer one",
                )
            if found:
                return path, found
        return self.path.with_name(journal.NAME), JournalContents()

    def contents(self, directory: Directory, path: Path) -> bytes | None:
        """Return the contents of a file that only this user can write to; ``None`` if it does not exist."""
        try:
            found = directory.status(path.name)
            if found is None:
                return None
            if not stat.S_ISREG(found.st_mode):
                raise untrusted(path, "it is not a regular file")
            check_owner(path, found)
            return directory.read(path.name, limit=self._limit)
        except OSError as error:
            raise untrusted(path, error.strerror or str(error)) from error
        except FileError as error:
            raise DamagedError(str(error)) from error


def _lost_note(loaded: LoadedCheckpoint) -> str:
    which = "checkpoint" if loaded.path.name == NAME else "previous checkpoint"
    return f"using the {which}, serial {loaded.document.serial}: later changes are lost"


def _count_pods(loaded: LoadedCheckpoint) -> str:
    pods = len(loaded.document.pods)
    return f"{pods} pod{'' if pods == 1 else 's'}"


def check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise untrusted(path, f"it belongs to user {found.st_uid}, but this process runs as user {os.geteuid()}")
    if found.st_mode & 0o022:
        raise untrusted(path, f"other users can write to it (mode {stat.S_IMODE(found.st_mode):o})")


def untrusted(path: Path, what: str) -> CheckpointError:
    advice = "give the agent a directory that belongs to its user alone (mode 700)"
    return CheckpointError(what, where=str(path), advice=advice)
