"""The order in which guests load kernel modules."""

from pathlib import Path

from e2e.kernel_modules import load_order, named_dependencies, parse_modules_dep, read_dependencies

MODULES_DEP = """\
kernel/drivers/virtio/virtio.ko: kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/virtio/virtio_ring.ko:
kernel/drivers/virtio/virtio_pci_modern_dev.ko:
kernel/drivers/virtio/virtio_pci.ko: kernel/drivers/virtio/virtio_pci_modern_dev.ko kernel/drivers/virtio/virtio.ko \
kernel/drivers/virtio/virtio_ring.ko
kernel/net/core/failover.ko.xz:
kernel/drivers/net/net-failover.ko.xz: kernel/net/core/failover.ko.xz
"""
ORDER = ["virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci"]


def test_a_module_comes_after_those_it_needs_and_only_once() -> None:
    dependencies = parse_modules_dep(MODULES_DEP)

    assert load_order(["virtio", "virtio_pci"], dependencies) == ORDER
    assert load_order(["virtio_pci"], dependencies) == ORDER
    assert load_order(["net_failover"], dependencies) == ["failover", "net_failover"]


def test_the_order_follows_the_kernel() -> None:
    """In other kernels the dependency is the other way round."""
    older = {"virtio_ring": ["virtio"], "virtio_pci": ["virtio_ring", "virtio"]}

    assert load_order(["virtio_pci"], older) == ["virtio", "virtio_ring", "virtio_pci"]


def test_modules_name_what_they_need_where_there_is_no_modules_dep(tmp_path: Path) -> None:
    assert named_dependencies(b"\x7fELF\0license=GPL\0depends=virtio,virtio-ring\0name=x\0") == [
        "virtio",
        "virtio_ring",
    ]
    assert named_dependencies(b"\x7fELF\0depends=\0") == named_dependencies(b"\x7fELF") == []

    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "virtio.ko").write_bytes(b"\0depends=virtio_ring\0")
    assert read_dependencies(tmp_path) == {"virtio": ["virtio_ring"]}
    (tmp_path / "modules.dep").write_text(MODULES_DEP)
    assert read_dependencies(tmp_path)["virtio_pci"][0] == "virtio_ring"
