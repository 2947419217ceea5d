"""PCI addresses of devices that plugins name by UUID, or as CDI files do."""

import json
from pathlib import Path

import pytest

from alignup.machines.plugin_addresses import MAX_CDI_FILES, address_of, read_addresses

GPU = "nvidia.com/gpu"
A, B = "0000:3b:00.0", "0001:86:00.0"


def system(root: Path, **uuids: str) -> Path:
    """A system with GPUs at A and B, whose driver lists these UUIDs."""
    for minor, address in enumerate((A, B)):
        here = root / "proc/driver/nvidia/gpus" / address
        here.mkdir(parents=True)
        uuid = uuids.get("ab"[minor], f"GPU-{minor}")
        (here / "information").write_text(f"Model: \t H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
        device = root / "sys/devices/pci0000:3a/0000:3a:00.0" / address
        (device / "drm" / f"card{minor}").mkdir(parents=True)
        card = root / "sys/class/drm" / f"card{minor}"
        card.parent.mkdir(parents=True, exist_ok=True)
        card.symlink_to(f"../../devices/pci0000:3a/0000:3a:00.0/{address}/drm/card{minor}")
        (device / "drm" / f"card{minor}" / "device").symlink_to(f"../../../{address}")
    return root


def specify(root: Path, devices: dict[str, list[str]], *, kind: str = GPU, name: str = "etc/cdi/gpu.yaml") -> None:
    """Write a CDI file: device → paths of its device nodes."""
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    listed = [
        {"name": device, "containerEdits": {"deviceNodes": [{"path": path} for path in paths]}}
        for device, paths in devices.items()
    ]
    file.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": kind, "devices": listed}))


def test_the_driver_lists_uuids(tmp_path):
    addresses, gaps = read_addresses(system(tmp_path))

    assert address_of(addresses, GPU, "GPU-0") == A
    assert address_of(addresses, GPU, "GPU-1::7") == B
    assert address_of(addresses, GPU, "GPU-2") == ""
    assert gaps == ()


def test_ids_that_are_addresses_need_no_source():
    assert address_of({}, "vendor.com/vf", "0000:3B:00.4") == "0000:3b:00.4"
    assert address_of({}, "vendor.com/vf", "00000000:3b:00.4") == "0000:3b:00.4"
    assert address_of({}, "vendor.com/vf", "vf-4") == ""


@pytest.mark.parametrize("directory", ["etc/cdi", "var/run/cdi", "run/cdi"])
def test_device_nodes_of_cdi_files_lead_to_addresses(tmp_path, directory):
    """The driver shows question marks until a GPU is used for the first time."""
    root = system(tmp_path, a="GPU-????????", b="GPU-????????")
    (root / "var").mkdir()
    (root / "run").mkdir()
    if directory == "run/cdi":
        (root / "var/run").symlink_to("/run")
    nodes = {"GPU-a": ["/dev/nvidia0", "/dev/dri/card0"], "1": ["/dev/nvidia1"], "MIG-x": ["/dev/dri/card1"]}
    specify(root, nodes, name=f"{directory}/nvidia.yaml")

    addresses, _ = read_addresses(root)

    assert address_of(addresses, GPU, "GPU-a") == A
    assert address_of(addresses, GPU, "1") == address_of(addresses, "nvidia.com/mig-1g.10gb", "MIG-x") == B
    assert address_of(addresses, "amd.com/gpu", "1") == ""


def test_what_is_not_certain_is_not_tied(tmp_path):
    root = system(tmp_path)
    specify(root, {"all": ["/dev/nvidia0", "/dev/nvidia1"], "ctl": ["/dev/nvidiactl"], "GPU-0": ["/dev/nvidia1"]})
    specify(root, {"7": ["/dev/nvidia0"]}, name="etc/cdi/a.json")
    specify(root, {"7": ["/dev/nvidia1"]}, name="var/run/cdi/a.json")

    addresses, _ = read_addresses(root)

    assert [address_of(addresses, GPU, id_) for id_ in ("all", "ctl", "GPU-0", "7")] == [""] * 4
    assert address_of(addresses, GPU, "GPU-1") == B


@pytest.mark.parametrize(
    "text", ["{", "[1, 2]", "devices: 7", "devices: [{name: [x], containerEdits: []}]", "a: &a [*a]", "\x00"]
)
def test_a_damaged_file_ties_nothing(tmp_path, text):
    root = system(tmp_path)
    specify(root, {"0": ["/dev/nvidia0"]})
    (root / "etc/cdi/bad.yaml").write_text(text)

    addresses, _ = read_addresses(root)

    assert address_of(addresses, GPU, "0") == A


def test_unreadable_yaml_is_named(tmp_path):
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/bad.yaml").write_text("{")

    assert "etc/cdi/bad.yaml" in read_addresses(tmp_path)[1][0]


def test_very_many_files_are_not_all_read(tmp_path):
    for number in range(MAX_CDI_FILES + 1):
        specify(tmp_path, {"x": []}, name=f"etc/cdi/{number:03}.yaml")
    specify(system(tmp_path), {"last": ["/dev/nvidia0"]}, name="etc/cdi/zzz.yaml")

    assert f"{GPU}=last" not in read_addresses(tmp_path)[0]
