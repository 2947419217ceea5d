"""The SQLite database of a state directory: opened if it is private, whole and ours, and never overwritten otherwise.

It is in WAL mode with full synchronization: a committed transaction is on disk, in the write-ahead log. SQLite moves
the log into the database from time to time. That must not need more space, or a full disk would stop even the release
of pods: before something is added, the database gets free pages (:meth:`Database.grow`), and a transaction that finds
no space in the log is repeated after the log was moved.

SQLite ignores a log that was removed or cut, and then returns to an earlier state without an error. So the number of
the last acknowledged change is also in a file of its own, written after the commit and not synced: it is complete after
a crash of the process, and never ahead of the log after a power failure.
"""

import errno
import os
import re
import sqlite3
import stat
import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from alignup import atomic_files
from alignup.align.errors import StoreError, StoreProblem
from alignup.picture.text_format import pluralize

NAME = "alignup.sqlite"
MAX_SET_ASIDE = 8  #: files of one name; with more of them, something is wrong with the disk
LOCK_SECONDS = 0.25  #: to wait for another process that writes: admissions are waiting
MAX_LOG_PAGES = 3_000  #: in the log, before a transaction has to wait until it is moved; an idle agent moves it sooner
FREE_PAGES = 256  #: that are added when too few are left, or when the agent is idle
MIN_FREE_PAGES = 16  #: after each transaction that adds something

APPLICATION_ID = 0x616C7570  # "alup"; SQLite stores it in the file header
VERSION = 1
_PAGE = 4096
_ROWS_AT_ONCE = 64  #: in one statement
_COUNTER = "-acknowledged"  #: the tail of the file with the number of the last acknowledged change
_TAILS = (_COUNTER, "", "-wal", "-shm")  #: of all files; a database without its counter is complete, as far as is known
_LOG_HEAD = struct.Struct(">8I")  #: magic, version, page size, number, two salts, two checksums
_FRAME_HEAD = struct.Struct(">6I")  #: page, size of the database if it is the last of a commit, salts, checksums
_WRAP, _MAX_AGE = 1 << 32, 1 << 24

_TABLES = f"""
    BEGIN;
    CREATE TABLE parts (name TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE pods (
        number INTEGER PRIMARY KEY,
        uid TEXT NOT NULL UNIQUE,
        stage TEXT NOT NULL,
        document TEXT NOT NULL
    );
    CREATE TABLE decisions (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        time REAL NOT NULL,
        uid TEXT NOT NULL,
        pod TEXT NOT NULL,
        outcome TEXT NOT NULL,
        document TEXT NOT NULL
    );
    CREATE TABLE reserve (space BLOB NOT NULL);
    PRAGMA application_id = {APPLICATION_ID};
    PRAGMA user_version = {VERSION};
    COMMIT;
"""

#: Errors after which a transaction may succeed once the log was moved into the database.
_NO_SPACE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})

_Result = TypeVar("_Result")


class Database:
    """The database in *directory*, which is created if necessary and belongs to this user alone.

    Methods raise :class:`StoreError`. One thread at a time may use it; ``store.lock`` keeps other agents out.
    """

    def __init__(self, directory: Path, *, lock_seconds: float = LOCK_SECONDS) -> None:
        self._lock_seconds = lock_seconds
        try:
            status = atomic_files.make_private_directory(directory)
            if not stat.S_ISDIR(status.st_mode):
                raise _untrusted(directory, "it is not a directory")
            _check_owner(directory, status)
            if status.st_mode & 0o077:
                directory.chmod(0o700)
        except OSError as error:
            path = directory if error.filename is None else error.filename
            raise _untrusted(directory, f"cannot be created or read: {path}: {error.strerror}") from error
        self.path = directory / NAME
        self._log = directory / f"{NAME}-wal"
        self._counter_path = directory / f"{NAME}{_COUNTER}"
        self._counter = -1  #: its descriptor; -1: not open
        self.acknowledged = 0  #: the number of the last acknowledged change, before the last read; 0: unknown
        self._connection: sqlite3.Connection | None = None
        self._files: tuple[os.stat_result, os.stat_result] | None = None  #: the database and its log when opened

    def read(self, read: Callable[[sqlite3.Connection], _Result]) -> _Result | None:
        """Check the database and call *read*, without changing a file; ``None`` if the database does not exist."""
        self._check_files()
        if not self.path.exists():
            return None
        address = f"{self.path.absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=self._lock_seconds)) as connection:
                connection.text_factory = bytes  # damaged text is not UTF-8
                connection.execute("PRAGMA cell_size_check = ON")
                self._check_contents(connection)
                return read(connection)
        except sqlite3.Error as error:
            raise self._failure(error, opening=True) from error

    def acknowledge(self, number: int) -> None:
        """Note the number of the last change; a loss of what cannot be noted is not noticed."""
        with suppress(OSError):
            os.pwrite(self._counter, b"%020d\n" % number, 0)

    def count_lost(self) -> int:
        """Return how many transactions are in the log from a damaged place on: SQLite ignores them without an error.

        All but the last one were acknowledged; that one too, unless a power failure interrupted it.
        """
        try:
            with self._log.open("rb") as log:
                return _count_lost(log)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise _untrusted(self._log, error.strerror or str(error)) from error

    def _open(self) -> sqlite3.Connection:
        """Return the connection; raise an error if others would not find its files: what is written would be lost."""
        connection = self._connection or self._connect()
        for path, open_status in zip((self.path, self._log), self._files or (), strict=False):
            try:
                status = path.lstat()
            except FileNotFoundError as error:
                message = f"{path.name} was removed"
                advice = "it is written again as long as the agent runs"
                raise StoreError(message, where=str(self.path), advice=advice, kind=StoreProblem.MISSING) from error
            except OSError as error:
                raise self.unwritable(error.strerror or str(error)) from error
            if not os.path.samestat(status, open_status):
                raise self.unwritable(f"{path.name} was replaced by another file")
        return connection

    def _connect(self) -> sqlite3.Connection:
        """Open the database, which was read before, or create it."""
        self._check_files()
        if not self.path.exists():
            self._create()
        try:
            connection = sqlite3.connect(
                self.path, timeout=self._lock_seconds, isolation_level=None, check_same_thread=False
            )
            with ExitStack() as stack:
                stack.callback(connection.close)
                if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                    raise self.unwritable("the file system does not support SQLite's write-ahead log")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("PRAGMA secure_delete = OFF")
                connection.execute(f"PRAGMA wal_autocheckpoint = {MAX_LOG_PAGES}")
                connection.execute("SELECT count(*) FROM parts").fetchone()  # creates the log
                self._files = self.path.stat(), self._log.stat()
                stack.pop_all()
        except sqlite3.Error as error:
            raise self._failure(error) from error
        self._connection = connection
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._counter = os.open(self._counter_path, flags, 0o600)
        return connection

    def _create(self) -> None:
        """Create the database under another name, and rename it: a file with the right name always has its tables."""
        new = self.path.with_name(f".{NAME}.new")
        try:
            for tail in ("", "-journal"):
                new.with_name(new.name + tail).unlink(missing_ok=True)
            # SQLite would let others read it.
            os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with closing(sqlite3.connect(new, isolation_level=None)) as connection:
                connection.execute(f"PRAGMA page_size = {_PAGE}")
                connection.executescript(_TABLES)
            new.rename(self.path)
            atomic_files.sync_directory(self.path.parent)
            with suppress(PermissionError):  # a directory that a killed process created may not be durable itself
                atomic_files.sync_directory(self.path.parent.parent)
        except OSError as error:
            raise self.unwritable(error.strerror or str(error)) from error
        except sqlite3.Error as error:
            raise self.unwritable(str(error)) from error

    def _check_contents(self, connection: sqlite3.Connection) -> None:
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise self.unusable("it is empty")
        if self._pragma(connection, "application_id") != APPLICATION_ID:
            raise self.unusable("it belongs to another program")
        version = self._pragma(connection, "user_version")
        if version != VERSION:
            advice = f"start the alignup version that wrote it, or {self._start_empty()}"
            message = f"it has version {version}, but this release reads version {VERSION}"
            raise StoreError(message, where=str(self.path), advice=advice, kind=StoreProblem.UNUSABLE)
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0].decode("utf-8", "replace")
        if problem != "ok":
            raise self.unusable(f"it is corrupt: {problem}")

    @staticmethod
    def _pragma(connection: sqlite3.Connection, name: str) -> int:
        value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
        return value

    def _check_files(self) -> None:
        """Raise an error for files of other users, and for a log without its database."""
        try:
            for path in self._paths():
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode):
                    raise _untrusted(path, "it is not a regular file")
                _check_owner(path, status)
            text = self._counter_path.read_bytes() if self._counter_path.exists() else b""
            self.acknowledged = int(text) if re.fullmatch(rb"[0-9]{20}\n", text) else 0
            if not self.path.exists() and self._log.exists() and self._log.stat().st_size:
                raise self.unusable("the database is missing, but its write-ahead log exists")
            if not self.path.exists() and self.acknowledged:
                raise self.unusable(f"the database is missing, but change {self.acknowledged} was acknowledged")
        except OSError as error:
            raise _untrusted(self.path, error.strerror or str(error)) from error

    def _paths(self) -> list[Path]:
        """Return the files of the database that exist."""
        paths = (self.path.with_name(NAME + tail) for tail in _TAILS)
        return [path for path in paths if os.path.lexists(path)]

    def transact(self, write: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Run *write* in a transaction, durably; after an error nothing has changed.

        If there is no space for it in the log, it is run a second time after the log was moved into the database.
        """
        connection, first = self._open(), True
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                result = write(connection)
                connection.execute("COMMIT")
            except BaseException as error:
                with suppress(sqlite3.Error):
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                if not isinstance(error, sqlite3.Error):
                    raise
                if not first or _code(error) not in _NO_SPACE:
                    raise self._failure(error) from error
                first = False
                with suppress(sqlite3.Error):
                    connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
            else:
                return result

    def grow(self, *, pages: int, least: int) -> int:
        """Add this many free *pages* if there are fewer than *least*; return how many there are."""
        connection = self._open()
        try:
            if (free := self._pragma(connection, "freelist_count")) >= least:
                return free
            needed_bytes = pages * _PAGE
            size = self._pragma(connection, "page_count") * _PAGE + needed_bytes
            disk = os.statvfs(self.path.parent)
            if disk.f_bavail * disk.f_frsize < 2 * needed_bytes:  # in the log, too
                raise self.unwritable(os.strerror(errno.ENOSPC))
            if self.path.stat().st_size < size:
                os.truncate(self.path, size)  # there may be a limit on the size of files
            self.transact(lambda open_: open_.execute("INSERT INTO reserve VALUES (zeroblob(?))", (needed_bytes,)))
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self.transact(lambda open_: open_.execute("DELETE FROM reserve"))
            return self._pragma(connection, "freelist_count")
        except OSError as error:
            raise self.unwritable(error.strerror or str(error)) from error
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def move_log(self) -> None:
        """Move the log into the database, while there is nothing else to do; if that fails, nothing is lost."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            with suppress(OSError):
                os.close(self._counter)
        self._connection = None
        self._files = None
        self._counter = -1

    def set_aside(self) -> tuple[str, ...]:
        """Rename the database and its log to unused names; return these names.

        Each file has both names for a moment: a power failure loses neither.
        """
        self.close()
        paths = [path for path in (self.path, self._log) if os.path.lexists(path)]
        try:
            numbers = range(1, MAX_SET_ASIDE + 1)
            spares = (number for number in numbers if not any(os.path.lexists(_aside(path, number)) for path in paths))
            number = next(spares, 0)
            if not number:
                message = f"{MAX_SET_ASIDE} files were set aside already; remove them"
                raise self.unwritable(f"{self.path.name} cannot be set aside: {message}")
            for path in paths:
                os.link(path, _aside(path, number), follow_symlinks=False)
            atomic_files.sync_directory(self.path.parent)
            for path in self._paths():  # the index of the log and the counter are not worth keeping
                path.unlink()
            atomic_files.sync_directory(self.path.parent)
        except OSError as error:
            raise self.unwritable(f"{self.path.name} cannot be set aside: {error.strerror}") from error
        return tuple(_aside(path, number).name for path in paths)

    def _failure(self, error: sqlite3.Error, *, opening: bool = False) -> StoreError:
        if _code(error) in _DAMAGE:
            return self.unusable(f"it is corrupt: {error}")
        if opening:
            advice = "make sure that no other program uses it, and that the disk is writable and not full"
            message = f"it cannot be opened: {error}"
            return StoreError(message, where=str(self.path), advice=advice, kind=StoreProblem.UNWRITABLE)
        return self.unwritable(str(error))

    def unusable(self, message: str) -> StoreError:
        return StoreError(message, where=str(self.path), advice=self._start_empty(), kind=StoreProblem.UNUSABLE)

    def _start_empty(self) -> str:
        names = f"{NAME}, {NAME}-wal, {NAME}-shm and {NAME}{_COUNTER}"
        return f"move {names} out of {self.path.parent} to start empty: what its pods hold is then free"

    def incomplete(self, number: int) -> StoreError:
        """Return the error for a database whose last change is the one with this *number*."""
        missing_changes = pluralize(self.acknowledged - number, "acknowledged change")
        cause = f"{self._log.name} was removed or damaged, or the database is from a backup"
        message = f"it lacks {missing_changes} after change {number}: {cause}"
        advice = f"restore {self._log.name}, or remove {self._counter_path.name} to go on with the pods that are left"
        return StoreError(message, where=str(self.path), advice=advice, kind=StoreProblem.INCOMPLETE)

    def unwritable(self, message: str) -> StoreError:
        advice = "nothing has changed; make sure that the disk is writable and not full, and try again"
        message = f"the state cannot be written: {message}"
        return StoreError(message, where=str(self.path), advice=advice, kind=StoreProblem.UNWRITABLE)


def insert_rows(connection: sqlite3.Connection, table: str, rows: Sequence[tuple[object, ...]], more: str = "") -> int:
    """Insert rows with few statements, and return the last row id: at each, another thread may run for a while.

    *table* has the names of the columns, *more* follows the values; both are constants of the caller.
    """
    last = 0
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE]
        values = ", ".join([f"({', '.join('?' * len(part[0]))})"] * len(part))
        statement = f"INSERT INTO {table} VALUES {values} {more}"  # noqa: S608 - constants
        last = connection.execute(statement, [value for row in part for value in row]).lastrowid or 0
    return last


def _count_lost(log: BinaryIO) -> int:
    head = log.read(_LOG_HEAD.size)
    if len(head) < _LOG_HEAD.size:
        return 0
    magic, *_, first_salt, second_salt, first, second = _LOG_HEAD.unpack(head)
    order = ">" if magic & 1 else "<"
    sums = _checksum(head[:24], (0, 0), order)
    intact = sums == (first, second)
    lost_count = suspect = 0
    while len(frame := log.read(_FRAME_HEAD.size + _PAGE)) == _FRAME_HEAD.size + _PAGE:
        _, commit, *salts, first, second = _FRAME_HEAD.unpack_from(frame)
        if intact:
            sums = _checksum(frame[:8] + frame[_FRAME_HEAD.size :], sums, order)
            if salts == [first_salt, second_salt] and sums == (first, second):
                continue
            intact, commit = False, 1  # the damaged one may have been the last of a commit
        # SQLite uses the file again from its start, and adds one to the first salt each time.
        if 0 < (first_salt - salts[0]) % _WRAP < _MAX_AGE:
            suspect += bool(commit)
        elif commit:
            lost_count += 1 + suspect
            suspect = 0
    return lost_count


def _checksum(data: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    """Return the checksum of SQLite's log, continued from *sums*."""
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for word, next_word in zip(words, words, strict=True):
        first = (first + word + second) % _WRAP
        second = (second + next_word + first) % _WRAP
    return first, second


def _aside(path: Path, number: int) -> Path:
    """Return the name of a file that is set aside; SQLite finds the log of a database by its name."""
    tail = path.name.removeprefix(NAME) if path.name.startswith(NAME) else ""
    return path.with_name(f"{path.name.removesuffix(tail)}.aside-{number}{tail}")


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise _untrusted(path, f"it belongs to user {status.st_uid}, but this process runs as user {os.geteuid()}")
    if status.st_mode & 0o022:
        raise _untrusted(path, f"other users can write to it (mode {stat.S_IMODE(status.st_mode):o})")


def _untrusted(path: Path, message: str) -> StoreError:
    advice = "give the agent a directory that belongs to its user alone (mode 700)"
    return StoreError(message, where=str(path), advice=advice, kind=StoreProblem.UNTRUSTED)
