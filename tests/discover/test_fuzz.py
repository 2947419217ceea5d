"""Files that no kernel writes give a machine with gaps or one clear error, quickly."""

import errno
import os
import shutil
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import AlignError
from alignup.align.machine import HugePages
from alignup.machines import discover, load, machine_file, synthetic, system
from alignup.machines.file_reader import ArchiveFiles, FileReader
from tests.deadlines import cpu_limit
from tests.discover import kernel
from tests.discover.kernel import with_
from tests.effort import SEED, did, rounds

PCI = {
    f"sys/bus/pci/devices/0000:00:0{number}.0/{name}": text
    for number in range(2)
    for name, text in (
        ("class", "0x020000"),
        ("vendor", "0x8086"),
        ("numa_node", str(number)),
        ("local_cpulist", "0-3"),
    )
}
MACHINE = replace(
    synthetic.parse("pack:2 numa:1 l3:1 core:2 pu:2", distances=(10, 21), hugepages=(HugePages(1 << 21, 4),)),
    memory=2 << 30,
)
FILES = with_(kernel.describe(MACHINE), PCI)
PATHS = sorted(FILES.contents)
DAMAGED = range(rounds(8, soak=400))

BAD = (
    b"",
    b"\n",
    b"\0",
    b"\xff\xfe\xfd",
    b"-1",
    b"-5",
    b"0",
    b"1",
    b"x",
    b"0-1048575",
    b"0-99999999999",
    b"9" * 30,
    b"9" * 5000,
    b"1048575",
    b"1048576",
    b"4294967295",
    b"18446744073709551616",
    b"3-1",
    b"ffffffff," * 500 + b"ffffffff",
    b"f" * 100000,
    b"0,0,0,0",
    b"1 2 3",
    b"10 20 30 40 50 60 70 80 90",
    b"-10 20",
    b"Node 0 MemTotal: 99999999999999999999999 kB",
    b"MemTotal:",
    b"0x",
    b"0xzz",
    b"a" * (1 << 16),
)


@dataclass(frozen=True)
class Barred:
    """Files, some of which are unreadable."""

    files: ArchiveFiles
    barred: frozenset[str]

    def _check(self, path: str) -> None:
        if path in self.barred:
            raise PermissionError(errno.EACCES, "Permission denied", path)

    def read(self, path: str) -> bytes:
        self._check(path)
        return self.files.read(path)

    def names(self, path: str) -> list[str]:
        self._check(path)
        return self.files.names(path)

    def link(self, path: str) -> str | None:
        return self.files.link(path)


def judged(tree: FileReader) -> str:
    """The error, or a machine on which every operation works."""
    try:
        with cpu_limit():
            machine = system.read_machine(tree, name="the tree")
    except AlignError as error:
        outcome = str(error)
        assert outcome
        assert len(outcome) < 5000
    else:
        view = machine.kubelet_view()
        assert machine.checked() is machine
        assert view.all_cpus >= 0
        assert machine_file.parse(machine_file.dump(machine)) == machine
        assert all(len(gap) < 5000 for gap in machine.gaps)
        outcome = "a machine"
    return outcome


#: Contents: one of the bad ones by its place, or anything short.
contents = (
    st.integers(0, len(BAD) - 1) | st.binary(max_size=40) | st.integers(-3, 1 << 21).map(lambda n: str(n).encode())
)


@given(
    changed=st.dictionaries(st.sampled_from(PATHS), contents, max_size=12),
    dropped=st.sets(st.sampled_from(PATHS), max_size=12),
    barred=st.frozensets(st.sampled_from(PATHS), max_size=3),
)
def test_any_file_may_have_any_content(changed, dropped, barred):
    said = {path: BAD[held] if isinstance(held, int) else held for path, held in changed.items()}
    kept = {path: held for path, held in (FILES.contents | said).items() if path not in dropped}

    judged(FileReader(Barred(ArchiveFiles.of(kept, FILES.links), barred)))


@given(st.sampled_from(PATHS), st.integers(0, 40))
def test_any_file_may_be_truncated(path, size):
    judged(FileReader(ArchiveFiles.of(FILES.contents | {path: FILES.contents[path][:size]}, FILES.links)))


@given(
    st.dictionaries(
        st.sampled_from(sorted({*FILES.links, *PATHS})), st.sampled_from((".", "..", "/", "x", "../..", "")), max_size=6
    )
)
def test_any_path_may_be_a_link_to_anywhere(links):
    kept = {path: held for path, held in FILES.contents.items() if path not in links}

    judged(FileReader(ArchiveFiles.of(kept, FILES.links | links)))


@pytest.mark.parametrize("names", [("cpu",), ("node",), ("cpu", "node")])
def test_directories_of_strange_entries(names):
    strange = ("", "-1", "00", "999999999", "1048575", "1048576", "²", "x", "0x1", "9" * 300)
    made = {f"sys/devices/system/{name}/{name}{end}/": b"" for name in names for end in strange}

    judged(FileReader(ArchiveFiles.of(FILES.contents | made, FILES.links)))


@pytest.mark.parametrize("count", [8_192, 8_193])
def test_too_many_cpus(count):
    made = {f"sys/devices/system/cpu/cpu{number}/": b"" for number in range(count)}
    tree = FileReader(ArchiveFiles.of(made, {}))

    try:
        with cpu_limit():
            assert len(system.read_machine(tree, name="the tree").cpus) == count
    except AlignError as error:
        assert "expected at most 8192" in str(error)


# ---- the same on a disk, with what only a disk has


def spoiled(root: Path, random: Random) -> None:
    """Damage a few paths below *root*."""
    places = sorted(path for path in root.rglob("*") if not path.is_symlink())
    for place in random.sample(places, 6):
        if not place.exists() or place == root:
            continue
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        match random.randrange(6):
            case 0:
                os.mkfifo(place)
            case 1:
                place.symlink_to(place.name)
            case 2:
                place.mkdir()
            case 3:
                place.write_bytes(random.choice(BAD))
            case 4:
                place.symlink_to("/dev/zero")


@pytest.mark.soak
@pytest.mark.parametrize("number", DAMAGED)
def test_a_damaged_directory(tmp_path: Path, number):
    root = FILES.write(tmp_path / "root")
    spoiled(root, Random(SEED + number))
    did("machine directories damaged")

    try:
        with cpu_limit():
            machine = discover(root)
    except AlignError as error:
        assert str(error)
    else:
        assert machine.checked() is machine


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    place = tmp_path_factory.mktemp("packed")
    root = FILES.write(place / "root")
    with tarfile.open(place / "machine.tar", "w") as archive:
        archive.add(root, arcname=".")
    return (place / "machine.tar").read_bytes()


@pytest.mark.soak
@pytest.mark.parametrize("number", DAMAGED)
def test_a_damaged_archive(tmp_path: Path, packed, number):
    random = Random(SEED + number)
    did("machine archives damaged")
    spoilt = bytearray(packed)
    for _ in range(20):
        spoilt[random.randrange(1000, len(spoilt))] = random.randrange(256)
    path = tmp_path / "machine.tar"
    path.write_bytes(bytes(spoilt[: random.randrange(600, len(spoilt))]))

    try:
        with cpu_limit():
            machine = load(path)
    except AlignError as error:
        assert str(error)
    else:
        assert machine.checked() is machine


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_text_is_a_machine_or_an_error(noise):
    try:
        load(noise.decode("latin-1"))
    except AlignError as error:
        assert str(error)
