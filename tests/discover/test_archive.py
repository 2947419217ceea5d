import bz2
import gzip
import io
import lzma
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from alignup.align.errors import SourceError
from alignup.align.locality import PciPath
from alignup.machines import archive, discover, file_reader, load, record, record_script, synthetic
from alignup.machines.archive import read_archive
from alignup.machines.topology import CPU
from tests.discover import kernel
from tests.discover.kernel import with_

FILES = kernel.describe(synthetic.parse("pack:2 numa:1 l3:1 core:2 pu:2", distances=(10, 21)))

#: Above one device; two switches below each other make links too long for the oldest form of archives.
BRIDGES = tuple(f"0001:0{bus}:00.0" for bus in range(7))

#: What a system also tells, and a recording must not.
PRIVATE = {
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: Secret(R) CPU\nSerial\t: 00secret\nphysical id\t: 0\n",
    "proc/meminfo": "MemTotal:  4194304 kB\nMemFree: 77 kB\nSecret: 1\n",
    "proc/sys/kernel/hostname": "secret",
    f"{CPU}/cpu0/topology/ppin": "0x5ec2e7",
    "sys/class/dmi/id/product_serial": "secret",
    "sys/class/net/eth0/address": "5e:c2:e7:00:00:00",
    "sys/devices/vmbus/secret-guid/pci/0000:00:02.0/class": "0x020000",
    "sys/devices/vmbus/secret-guid/pci/0000:00:02.0/numa_node": "1",
    "sys/devices/vmbus/secret-guid/pci/0000:00:02.0/net/secret0/address": "5e:c2:e7:00:00:00",
    f"sys/devices/vmbus/secret-guid/pci0001:00/{'/'.join(BRIDGES)}/0001:09:00.0/class": "0x030200",
    f"sys/devices/vmbus/secret-guid/pci0001:00/{'/'.join(BRIDGES)}/0001:09:00.0/numa_node": "0",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = with_(FILES, PRIVATE)
    files.links["sys/bus/pci/devices/0000:00:02.0"] = "../../../devices/vmbus/secret-guid/pci/0000:00:02.0"
    above = "/".join(("vmbus/secret-guid/pci0001:00", *BRIDGES))
    files.links["sys/bus/pci/devices/0001:09:00.0"] = f"../../../devices/{above}/0001:09:00.0"
    return files.write(tmp_path / "root")


def test_a_recording_gives_the_same_machine(root: Path, tmp_path: Path):
    file = tmp_path / "machine.tar.gz"

    recorded = record(root, file)

    assert recorded == load(file) == discover(root)
    assert recorded.pci[0].node == 1
    assert [device.path for device in recorded.pci] == [None, PciPath("pci0001:00", BRIDGES)]
    assert [path.name for path in tmp_path.iterdir() if path.name != "root"] == ["machine.tar.gz"]


def test_a_recording_has_nothing_else(root: Path, tmp_path: Path):
    file = tmp_path / "machine.tar.gz"

    record(root, file)

    with tarfile.open(file) as packed:
        members = packed.getmembers()
        names = {member.name for member in members}
        held = b"".join(read.read() for member in members if member.isreg() and (read := packed.extractfile(member)))
    assert b"ecret" not in gzip.decompress(file.read_bytes())
    assert b"MemFree" not in held
    assert not any("dmi" in name or "ppin" in name or "net" in name.split("/") for name in names)
    assert {(member.uid, member.uname, member.mtime) for member in members} == {(0, "", 0)}


def test_the_same_machine_gives_the_same_bytes(root: Path, tmp_path: Path):
    record(root, tmp_path / "a.tar.gz")
    record(root, tmp_path / "b.tar.gz")

    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_a_top_level_directory_is_ignored(root: Path, tmp_path: Path):
    with tarfile.open(tmp_path / "around.tar.gz", "w:gz") as packed:
        packed.add(root, arcname="somebodys-machine")
    with tarfile.open(tmp_path / "dot.tar", "w") as packed:
        packed.add(root, arcname=".")

    assert load(tmp_path / "around.tar.gz") == discover(root)
    assert load(tmp_path / "dot.tar") == discover(root)


# ---- archives from elsewhere


def member(name: str, *, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    return made


def pack(file: Path, *members: tarfile.TarInfo) -> Path:
    """Write an archive whose members contain zeros."""
    with tarfile.open(file, "w:gz") as packed:
        for each in members:
            packed.addfile(each, io.BytesIO(bytes(each.size)))
    return file


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        pytest.param(member("../etc/passwd"), "'../etc/passwd' leads outside", id="a path upwards"),
        pytest.param(member("sys/../../x"), "leads outside", id="a path that leaves later"),
        pytest.param(member("/etc/passwd"), "leads outside", id="an absolute path"),
        pytest.param(
            member("sys/x", kind=tarfile.SYMTYPE, link="../../etc/passwd"),
            "the link 'sys/x' leads outside",
            id="a link that leads outside",
        ),
        pytest.param(
            member("x", kind=tarfile.SYMTYPE, link="/etc/passwd"), "the link 'x' leads outside", id="an absolute link"
        ),
        pytest.param(member("x", kind=tarfile.LNKTYPE, link="y"), "neither a file", id="a hard link"),
        pytest.param(member("x", kind=tarfile.FIFOTYPE), "neither a file", id="a pipe"),
        pytest.param(member("x", kind=tarfile.GNUTYPE_SPARSE), "'x' is a sparse file", id="a sparse file"),
        pytest.param(member("x" * 600), "'x+…' or its target has more than 512 characters", id="a long name"),
        pytest.param(member("x/" * 40 + "x"), "has more than .* 32 directories", id="a deep path"),
        pytest.param(
            member("x", kind=tarfile.SYMTYPE, link="y" * 600), "or its target has more than", id="a long target"
        ),
        pytest.param(member("x", kind=tarfile.CHRTYPE), "neither a file", id="a device"),
    ],
)
def test_dangerous_members_are_rejected(tmp_path: Path, bad, reason):
    file = pack(tmp_path / "bad.tar.gz", bad)

    with pytest.raises(SourceError, match=f"bad.tar.gz is rejected: .*{reason}"):
        load(file)


def test_dangling_links_inside_are_allowed(tmp_path: Path):
    files = with_(FILES, {"sys/bus/pci/devices/": "", f"{CPU}/cpu9/": ""})
    files.links[f"{CPU}/cpu0/node7"] = "../../node/node7"
    root = files.write(tmp_path / "root")

    assert record(root, tmp_path / "machine.tar.gz") == discover(root)


def test_an_archive_that_expands_without_limit_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archive, "MAX_ARCHIVE_BYTES", 1 << 20)
    file = pack(tmp_path / "bomb.tar.gz", *(member(f"sys/zeros{number}", size=1 << 16) for number in range(32)))

    assert file.stat().st_size < 1 << 14
    with pytest.raises(SourceError, match="it decompresses to more than 1048576 bytes"):
        read_archive(file)


def test_a_header_that_expands_without_limit_is_rejected(tmp_path: Path):
    file = tmp_path / "bomb.tar.gz"
    with tarfile.open(file, "w:gz", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x" * (1 << 22)}) as packed:
        packed.addfile(member("sys/x"))

    with pytest.raises(SourceError, match="a member has headers of more than 131072 bytes"):
        read_archive(file)


def test_of_a_file_above_the_limit_only_as_much_is_kept_as_shows_that(tmp_path: Path):
    files = read_archive(pack(tmp_path / "huge.tar.gz", member("sys/huge", size=1 << 20)))

    assert len(files.contents["sys/huge"]) == file_reader.MAX_FILE_BYTES + 1
    with pytest.raises(OSError, match="longer than"):
        files.read("sys/huge")


def test_the_limit_of_proc_files_holds_below_a_top_level_directory(tmp_path: Path):
    size = file_reader.MAX_FILE_BYTES + 2
    file = pack(tmp_path / "machine.tar.gz", member("host/proc/cpuinfo", size=size))

    assert len(read_archive(file).read("proc/cpuinfo")) == size


def test_contents_above_the_limit_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archive, "MAX_ARCHIVE_CONTENT_BYTES", 1 << 16)
    file = pack(tmp_path / "bomb.tar.gz", member("sys/zeros", size=1 << 17))

    with pytest.raises(SourceError, match="its names and contents have more than 65536 bytes"):
        read_archive(file)


def test_too_many_members_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archive, "MAX_MEMBERS", 10)
    file = pack(tmp_path / "many.tar.gz", *(member(f"sys/{number}") for number in range(11)))

    with pytest.raises(SourceError, match="it has more than 10 members"):
        read_archive(file)


def test_many_members_without_content_are_read(tmp_path: Path):
    count = archive.MAX_HEADER_BYTES // tarfile.BLOCKSIZE + 100
    file = pack(tmp_path / "empty.tar.gz", *(member(f"sys/{number}") for number in range(count)))

    assert len(read_archive(file).contents) == count


@pytest.mark.parametrize("keep", [2, 20, 100, 2000])
def test_a_truncated_archive_is_an_error(root: Path, tmp_path: Path, keep):
    file = tmp_path / "machine.tar.gz"
    record(root, file)
    file.write_bytes(file.read_bytes()[:keep])

    with pytest.raises(SourceError, match=r"machine\.tar\.gz"):
        load(file)


class TestCompression:
    @pytest.fixture
    def plain(self, root: Path, tmp_path: Path) -> bytes:
        with tarfile.open(tmp_path / "plain.tar", "w") as packed:
            packed.add(root, arcname=".")
        return (tmp_path / "plain.tar").read_bytes()

    @pytest.mark.parametrize("compress", [bz2.compress, gzip.compress, lzma.compress], ids=["bzip2", "gzip", "xz"])
    def test_the_first_bytes_say_how_an_archive_is_compressed(self, compress, plain, root, tmp_path):
        (tmp_path / "machine").write_bytes(compress(plain))

        assert load(tmp_path / "machine") == discover(root)

    @pytest.mark.parametrize("compress", [bz2.compress, gzip.compress, lzma.compress], ids=["bzip2", "gzip", "xz"])
    def test_damaged_data_is_an_error(self, compress, plain, tmp_path):
        (tmp_path / "machine").write_bytes(compress(plain)[:-300])

        with pytest.raises(SourceError, match="machine is not an archive"):
            load(tmp_path / "machine")

    def test_xz_data_that_needs_much_memory_is_an_error(self, tmp_path):
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 29}]
        with lzma.open(tmp_path / "machine", "wb", filters=filters) as packed:
            packed.write(b"x")

        with pytest.raises(SourceError, match="Memory usage limit"):
            load(tmp_path / "machine")

    @pytest.mark.skipif(not shutil.which("zstd"), reason="not installed: zstd (Debian: zstd)")
    def test_zstd(self, plain, root, tmp_path):
        packed = subprocess.run(["zstd", "-c"], input=plain, capture_output=True, check=True).stdout  # noqa: S607
        (tmp_path / "machine").write_bytes(packed)
        (tmp_path / "damaged").write_bytes(packed[:-50])

        assert load(tmp_path / "machine") == discover(root)
        with pytest.raises(SourceError, match="damaged is not an archive"):
            load(tmp_path / "damaged")

    @pytest.mark.skipif(sys.version_info >= (3, 14), reason="the standard library reads zstd")
    def test_without_the_program_zstd_the_error_says_what_to_do(self, tmp_path, monkeypatch):
        (tmp_path / "machine").write_bytes(b"\x28\xb5\x2f\xfd")
        monkeypatch.setenv("PATH", str(tmp_path))

        with pytest.raises(SourceError, match="install the program zstd"):
            load(tmp_path / "machine")


class TestRecordScript:
    """The shell script records a machine on which Alignup is not installed."""

    def run(self, root: Path, file: Path, *shell: str) -> bytes:
        script = record_script().replace("cd / &&", f"cd '{root}' &&")
        done = subprocess.run([*shell, "-s"], input=script.encode(), capture_output=True, check=True)  # noqa: S603
        assert done.stderr == b""
        file.write_bytes(done.stdout)
        return gzip.decompress(done.stdout)

    @pytest.mark.parametrize("shell", [["sh"], ["busybox", "sh"]], ids=["sh", "busybox"])
    def test_it_gives_the_same_machine_without_serial_numbers(self, shell, root, tmp_path, monkeypatch):
        if not shutil.which(shell[0]):
            pytest.skip(f"not installed: {shell[0]}")
        monkeypatch.setenv("TMPDIR", str(tmp_path))

        recorded = self.run(root, tmp_path / "machine.tar.gz", *shell)

        assert load(tmp_path / "machine.tar.gz") == discover(root)
        assert not any(secret in recorded for secret in (b"00secret", b"5ec2e7", b"5e:c2:e7", b"secret-guid"))
        assert {path.name for path in tmp_path.iterdir()} == {"root", "machine.tar.gz"}

    @pytest.mark.parametrize(
        ("program", "version"), [("echo Kubernetes v1.36.4", "v1.36.4"), ("echo secret", ""), ("exit 1", "")]
    )
    def test_it_records_the_version_of_an_installed_kubelet(self, root, tmp_path, monkeypatch, program, version):
        kubelet = tmp_path / "kubelet"
        kubelet.write_text(f"#!/bin/sh\n{program}\n")
        kubelet.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

        self.run(root, tmp_path / "machine.tar.gz", "sh")

        assert load(tmp_path / "machine.tar.gz").kubelet_version == version

    def test_it_records_this_machine(self, tmp_path):
        self.run(Path("/"), tmp_path / "machine.tar.gz", "sh")

        assert load(tmp_path / "machine.tar.gz") == record(Path("/"), tmp_path / "own.tar.gz")
