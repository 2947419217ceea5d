import os
from pathlib import Path

import pytest

from alignup.align import bits
from alignup.align.errors import SourceError
from alignup.machines import file_reader
from alignup.machines.file_reader import MAX_FILE_BYTES, MAX_GAPS, ArchiveFiles, DirectoryFiles, FileReader


def tree_of(**texts: str) -> FileReader:
    return FileReader(ArchiveFiles.of({name: text.encode("latin-1") for name, text in texts.items()}, {}))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        pytest.param("7\n", 7, id="a number"),
        pytest.param("-1\n", -1, id="a negative one"),
        pytest.param("7\n\0", 7, id="with a NUL"),
        pytest.param("", None, id="nothing"),
        pytest.param("seven", None, id="a word"),
        pytest.param("9" * 5000, None, id="too many digits"),
        pytest.param("1_000", None, id="a Python number"),
    ],
)
def test_numbers(text, number):
    tree = tree_of(file=text)

    assert tree.number("file") == number
    assert bool(tree.gaps) is (number is None)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        pytest.param("0000,5555,00000001", "0,32,34,36,38,40,42,44,46", id="short words"),
        pytest.param("1fff,ffffffff", "0-44", id="a short first word"),
        pytest.param("0", "", id="none"),
        pytest.param("", None, id="nothing"),
        pytest.param("0x1", None, id="a prefix"),
        pytest.param("1,,2", None, id="an empty word"),
        pytest.param("f" * 9, None, id="a long word"),
        pytest.param(",".join(["ffffffff"] * 40000), None, id="too many CPUs"),
    ],
)
def test_masks(text, cpus):
    parsed = tree_of(mask=text).cpus("mask")

    assert (None if parsed is None else bits.show(parsed)) == cpus


def test_the_first_readable_file_is_used():
    tree = tree_of(a_list="x", b="3", c_list="0-7")

    assert tree.cpus("none_list", "a_list", "b", "c_list") == 3
    assert tree.gaps == ('a_list is not a list of CPUs: "x"',)


def test_a_missing_file_is_not_a_gap():
    tree = tree_of(file="1")

    assert (tree.number("other"), tree.text("file/inside"), tree.names("nowhere")) == (None, None, ())
    assert tree.gaps == ()


def test_of_many_invalid_files_the_first_are_listed():
    tree = tree_of(**{f"file{number}": "x" for number in range(500)})

    for number in range(500):
        tree.number(f"file{number}")

    assert len(tree.gaps) == MAX_GAPS + 1
    assert tree.gaps[-1] == "480 more files are unreadable or invalid"


def test_only_numbered_entries_are_returned():
    names = ("cpu0", "cpu10", "cpu2", "cpu02", "cpufreq", "cpu", "cpu-1", "cpu²", "cpu99999999999999999999")
    tree = FileReader(ArchiveFiles.of({f"d/{name}/": b"" for name in names}, {}))

    assert tree.read_numbered("d", "cpu") == [0, 2, 10]
    assert len(tree.gaps) == 1


LINKS = {
    "near": "d/file",
    "up": "d/../d/file",
    "d/back": "../near",
    "absolute": "/d/file",
    "dangling": "d/none",
    "loop": "d/loop",
    "d/loop": "../loop",
    "out": "../../etc/passwd",
}


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("d/file", "d/file"),
        ("near", "d/file"),
        ("up", "d/file"),
        ("d/back", "d/file"),
        ("absolute", "d/file"),
        ("dangling", None),
        ("loop", None),
        ("out", None),
        ("none", None),
    ],
)
def test_links_are_followed_only_inside_the_root(tmp_path: Path, path, place):
    for name, target in LINKS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(target)
    (tmp_path / "d" / "file").write_text("1")

    assert FileReader(DirectoryFiles(os.fspath(tmp_path))).resolve(path) == place
    assert FileReader(ArchiveFiles.of({"d/file": b"1"}, LINKS)).resolve(path) == place


def test_no_file_blocks(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "zero").symlink_to("/dev/zero")
    tree = FileReader(DirectoryFiles(os.fspath(tmp_path)))

    contents = [tree.read(name) for name in ("pipe", "directory", "loop", "zero", "a\0b")]

    assert contents == [None] * 5
    assert len(tree.gaps) == 5


def test_endless_files_are_not_read(tmp_path: Path):
    with (tmp_path / "long").open("wb") as file:
        file.truncate(1 << 40)
    tree = FileReader(DirectoryFiles(os.fspath(tmp_path)))

    assert tree.read("long") is None
    assert tree.gaps == (f"long cannot be read: longer than {MAX_FILE_BYTES} bytes",)


def test_files_that_are_too_long_together_are_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_reader, "MAX_TOTAL_BYTES", 10)
    tree = tree_of(a="12345", b="12345", c="1")

    assert [tree.read(name) for name in "aab"] == ["12345"] * 3
    with pytest.raises(SourceError, match="more than 10 bytes"):
        tree.read("c")


def test_too_many_directories_are_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_reader, "MAX_DIRECTORIES", 3)

    assert set(ArchiveFiles.of({"a/b/c": b"", "a/b/d": b""}, {}).directories) == {"", "a", "a/b"}
    with pytest.raises(SourceError, match="in more than 3 directories"):
        ArchiveFiles.of({"a/b/c/d": b""}, {})
