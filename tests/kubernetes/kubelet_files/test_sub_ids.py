"""The kubelet's lines in /etc/subuid and /etc/subgid."""

import pytest

from alignup.align.errors import FileError
from alignup.align.release import find_release
from alignup.kubernetes.kubelet_files.sub_ids import read_sub_ids, sub_id_problems


def test_ranges_of_the_kubelet_are_read(tmp_path):
    (tmp_path / "subuid").write_text("root:1:65536\nkubelet:65536:1048576\n")

    assert read_sub_ids(tmp_path) == {"subuid": "65536:1048576"}


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "subgid").mkdir()

    with pytest.raises(FileError):
        read_sub_ids(tmp_path)


@pytest.mark.parametrize(
    ("text", "refused"),
    [("65536:4294901760", True), ("65536:4294901759", False), ("1:4294967296", True), ("x:1", False)],
)
def test_1_38_refuses_a_range_with_the_largest_number(text, refused):
    ranges = {"subuid": text}

    assert not list(sub_id_problems(ranges, find_release("1.37")))
    assert bool(list(sub_id_problems(ranges, find_release("1.38")))) is refused
