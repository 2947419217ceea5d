"""``make image`` builds an image without a base image, twice the same, that containerd runs without privileges."""

from pathlib import Path

import pytest

from alignup import __version__
from e2e import containerd
from e2e.programs import not_installed
from tools import image

NAME = f"docker.io/library/alignup:{__version__}"
MEGABYTES = 120  #: of the archive, at most


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if absent := not_installed(["apt-get", "dpkg-deb"]):
        pytest.skip(absent)
    path = tmp_path_factory.mktemp("image") / "alignup.oci.tar"
    assert image.main(["--output", str(path)]) == 0
    return path


def test_a_second_build_gives_the_same_archive(archive: Path, tmp_path: Path) -> None:
    image.main(["--output", str(tmp_path / "again.oci.tar")])

    assert (tmp_path / "again.oci.tar").read_bytes() == archive.read_bytes()
    assert archive.stat().st_size < MEGABYTES * 1e6


def test_containerd_runs_it_as_a_user_without_privileges(archive: Path, tmp_path: Path) -> None:
    if absent := containerd.missing():
        pytest.skip(absent)
    with containerd.containerd(tmp_path / "c") as runtime:
        runtime.load(archive, [NAME])
        for number, words in enumerate((["--version"], ["observe", "--help"], ["schedule", "--help"])):
            done = runtime.ctr("run", "--rm", NAME, f"run-{number}", "alignup", *words)
            assert done.stdout.startswith(("alignup ", "Usage: alignup ")), done.stderr
        program = "import os; print(os.getuid(), os.listdir('/bin'))"
        done = runtime.ctr("run", "--rm", NAME, "user", "/opt/alignup/bin/python3", "-c", program)

    assert done.stdout.startswith("65532 ")
    assert "'sh'" not in done.stdout
