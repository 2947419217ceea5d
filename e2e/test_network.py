"""Pods with their own network: Debian's CNI plugins, a bridge, and addresses."""
# ruff: noqa: S101, S603

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.node import SLEEP, Node, container, missing, node_in, pod, until
from tests.short_paths import short_directory

PLUGINS = Path("/usr/lib/cni")
BRIDGE = "alignup-e2e0"
PORT = 8080


def _missing() -> str | None:
    absent = [str(PLUGINS / name) for name in ("bridge", "host-local", "loopback") if not (PLUGINS / name).exists()]
    return missing() or (f"not installed: {', '.join(absent)}" if absent else None)


WHY = _missing()

pytestmark = pytest.mark.skipif(WHY is not None, reason=str(WHY))


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with ExitStack() as stack:
        place = stack.enter_context(short_directory())
        networks = place / "c" / "cni" / "net.d"
        networks.mkdir(parents=True)
        (networks.parent / "bin").symlink_to(PLUGINS)
        (networks / "10-e2e.conflist").write_text(json.dumps(_network(place / "ipam")))
        stack.callback(_remove_bridge)
        made = stack.enter_context(node_in(place))
        until(lambda: '"network": "cni"' in made.log(), made.log)
        yield made


def _network(leases: Path) -> dict[str, object]:
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.254.77.0/24"}]], "dataDir": str(leases)}
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipam": ipam}
    return {"cniVersion": "0.4.0", "name": "e2e", "plugins": [bridge]}


def _remove_bridge() -> None:
    subprocess.run([shutil.which("ip") or "ip", "link", "delete", BRIDGE], check=False, capture_output=True)


def test_a_pod_has_an_address_a_hostname_and_working_probes(node: Node) -> None:
    served = f"hostname; cat /etc/hosts; echo hello > /tmp/index.html; busybox httpd -f -p {PORT} -h /tmp"
    probe = {"httpGet": {"path": "/index.html", "port": PORT}, "periodSeconds": 1}
    node.admit(pod("web", container(served, readinessProbe=probe, ports=[{"containerPort": PORT}])))
    node.wait_running("web")
    until(lambda: node.containers("web")["app"]["ready"], node.log)

    (address,) = node.pods()["web"]["run"]["ips"]
    printed = node.alignup("logs", "web").stdout
    with socket.create_connection((address, PORT), timeout=5) as line:
        line.sendall(b"GET /index.html HTTP/1.0\r\n\r\n")
        answer = line.makefile("rb").read()

    assert address.startswith("10.254.77.")
    assert printed.splitlines()[0] == "web"
    assert f"{address}\tweb" in printed
    assert answer.endswith(b"hello\n")


def test_a_failed_liveness_probe_restarts_the_container(node: Node) -> None:
    probe = {"exec": {"command": ["sh", "-c", "test ! -e /tmp/sick"]}, "periodSeconds": 1, "failureThreshold": 1}
    node.admit(pod("sick", container(f"touch /tmp/sick; {SLEEP}", livenessProbe=probe)))

    until(lambda: node.containers("sick").get("app", {}).get("restarts", 0) >= 1, node.log)

    node.alignup("release", "sick")


def test_addresses_are_released(node: Node) -> None:
    node.admit(pod("short"))
    node.wait_running("short")
    leases = node.place / "ipam" / "e2e"
    held = [path.name for path in leases.glob("10.*")]
    node.alignup("release", "short")

    assert held
    assert set(held) > {path.name for path in leases.glob("10.*")}
