"""Pods with their own network: Debian's CNI plugins, a bridge, and addresses."""
# ruff: noqa: S101, S603

import json
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.node import SLEEP, Node, container, missing, node_in, pod, until
from e2e.programs import not_installed
from tests.short_paths import short_directory

PLUGINS = Path("/usr/lib/cni")
PORT = 8080  #: in the pod's own network


def _missing() -> str | None:
    absent = [str(PLUGINS / name) for name in ("bridge", "host-local", "loopback") if not (PLUGINS / name).exists()]
    install = f"not installed: {', '.join(absent)} (Debian: apt-get install containernetworking-plugins)"
    return missing() or not_installed(["ip"]) or (install if absent else None)


WHY = _missing()

pytestmark = pytest.mark.skipif(WHY is not None, reason=str(WHY))


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with ExitStack() as stack:
        place = stack.enter_context(short_directory())
        bridge = f"e2e-{uuid.uuid4().hex[:8]}"
        networks = place / "c" / "cni" / "net.d"
        networks.mkdir(parents=True)
        (networks.parent / "bin").symlink_to(PLUGINS)
        (networks / "10-e2e.conflist").write_text(json.dumps(_network(bridge, place / "ipam")))
        stack.callback(_remove, bridge)
        made = stack.enter_context(node_in(place))
        until(lambda: '"network": "cni"' in made.log(), made.log)
        yield made


def _network(bridge: str, leases: Path) -> dict[str, object]:
    """A network with an own subnet of 10.254.0.0/16."""
    subnet = f"10.254.{int(bridge[-2:], 16)}.0/24"
    ipam = {"type": "host-local", "ranges": [[{"subnet": subnet}]], "dataDir": str(leases)}
    plugin = {"type": "bridge", "bridge": bridge, "isGateway": True, "ipam": ipam}
    return {"cniVersion": "0.4.0", "name": "e2e", "plugins": [plugin]}


def _remove(bridge: str) -> None:
    subprocess.run([shutil.which("ip") or "ip", "link", "delete", bridge], check=False, capture_output=True)


def test_a_pod_has_an_address_a_hostname_and_working_probes(node: Node) -> None:
    served = f"hostname; cat /etc/hosts; echo hello > /tmp/index.html; busybox httpd -f -p {PORT} -h /tmp"
    probe = {"httpGet": {"path": "/index.html", "port": PORT}, "periodSeconds": 1}
    node.admit(pod("web", container(served, readinessProbe=probe, ports=[{"containerPort": PORT}])))
    node.wait_running("web")
    until(lambda: node.containers("web")["app"]["ready"], node.log)

    (address,) = node.pods()["web"]["run"]["ips"]
    printed = node.output("web")
    with socket.create_connection((address, PORT), timeout=60) as line:
        line.sendall(b"GET /index.html HTTP/1.0\r\n\r\n")
        answer = line.makefile("rb").read()

    assert address.startswith("10.254.")
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
