import pytest

from alignup.machines.cpu_names import read_caches, read_model
from alignup.machines.file_reader import ArchiveFiles, FileReader
from alignup.machines.topology import CPU


def reader(**texts: str) -> FileReader:
    return FileReader(ArchiveFiles.of({name: text.encode() for name, text in texts.items()}, {}))


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\nmodel name\t: AMD  EPYC 9654\n", "AMD EPYC 9654"),
        ("processor\t: 0\nBogoMIPS\t: 50\n", ""),
    ],
)
def test_the_model_of_the_cpus(text, model):
    assert read_model(reader(**{"proc/cpuinfo": text})) == model


def test_caches_by_level_with_their_sizes():
    described = {
        0: ("1", "Data", "48K"),
        1: ("1", "Instruction", "32K"),
        2: ("2", "Unified", "2048K"),
        3: ("3", "Unified", "x"),
    }
    texts = {
        f"{CPU}/cpu3/cache/index{number}/{name}": text
        for number, values in described.items()
        for name, text in zip(("level", "type", "size"), values, strict=True)
    }

    assert read_caches(reader(**texts), 0b1000) == (("L1d", 48 << 10), ("L1i", 32 << 10), ("L2", 2 << 20))
    assert read_caches(reader(), 0) == ()
