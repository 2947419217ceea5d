"""The container images that a cluster of guests runs instead of pulling them: ours, and one of kube-scheduler."""

import io
import tarfile
from pathlib import Path

import yaml

from alignup import __version__
from e2e import containerd, control_plane
from tools import image

OURS = f"docker.io/library/alignup:{__version__}"
_DEPLOYED = Path(__file__).parents[1] / "deploy" / "kubernetes" / "scheduler" / "deployment.yaml"
_PROGRAMS = "usr/local/bin"


def archives(directory: Path) -> dict[str, Path]:
    """Write the archives of all images; return them by the names of the images."""
    ours, scheduler = directory / "alignup.oci.tar", directory / "kube-scheduler.tar"
    if image.main(["--output", str(ours)]):
        raise RuntimeError("the image cannot be built")
    name = scheduler_image()
    _write_program_image(scheduler, name, control_plane.program("kube-scheduler"))
    return {OURS: ours, name: scheduler}


def scheduler_image() -> str:
    """Return the name of the image of kube-scheduler that is deployed."""
    deployment = next(yaml.safe_load_all(_DEPLOYED.read_text("utf-8")))
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return next(str(container["image"]) for container in containers if container["name"] == "kube-scheduler")


def _write_program_image(path: Path, name: str, program: Path) -> None:
    """Write a docker-archive of an image with one static program."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as packed:
        packed.add(program, f"{_PROGRAMS}/{program.name}")
    config = {"Entrypoint": [f"/{_PROGRAMS}/{program.name}"], "Env": [f"PATH=/{_PROGRAMS}"]}
    containerd.write_archive(path, layer.getvalue(), {name: config})
