import pytest

from alignup.align.errors import FileError
from alignup.documents import codec
from alignup.documents.nri_placements import FILE, REFRESH, PlacementsDocument
from alignup.nri.placement_file import PlacementFile
from tests.align.hosts import make_pod
from tests.nri.decided_node import DecidedNode

pytestmark = pytest.mark.anyio


def read(directory):
    return codec.decode((directory / FILE).read_bytes(), PlacementsDocument)


async def test_the_file_says_what_each_container_should_have_and_who_is_unaligned(tmp_path):
    node = DecidedNode(tmp_path / "state")

    await node.start()
    await node.run(make_pod("a", cpu="4"))
    node.plugin.unaligned["c"] = ("default/c", "no room")
    PlacementFile(tmp_path, node.plugin, now=lambda: 5.0).write("")
    document = read(tmp_path)

    (container,) = document.containers
    assert (container.pod, container.container, container.cpus, container.memory_nodes) == (
        "default/a",
        "app",
        "4-7",
        "1",
    )
    assert container.exclusive
    assert (document.mode, document.unaligned, document.problem) == ("decide", {"default/c": "no room"}, "")


async def test_it_is_written_when_something_changes_and_as_a_sign_of_life(tmp_path):
    node = DecidedNode(tmp_path / "state")
    await node.start()
    now = 100.0
    file = PlacementFile(tmp_path, node.plugin, now=lambda: now)
    file.write("")
    (tmp_path / FILE).unlink()
    file.write("")
    assert not (tmp_path / FILE).exists()
    file.write("the runtime closed the connection")
    assert read(tmp_path).problem == "the runtime closed the connection"
    now += REFRESH
    file.write("the runtime closed the connection")
    assert read(tmp_path).written == now
    now -= 50  # the clock was set back
    file.write("the runtime closed the connection")
    assert read(tmp_path).written == now


async def test_an_unwritable_directory_is_an_error(tmp_path):
    node = DecidedNode(tmp_path / "state")
    await node.start()
    with pytest.raises(FileError):
        PlacementFile(tmp_path / "missing", node.plugin).write("")
