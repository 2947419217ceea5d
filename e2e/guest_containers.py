"""Guest side of ``test_containers_guest``: run pods from a manifest directory and observe their containers.

All observations come from the kernel's files or from the containers' output.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from e2e.guest_node import (
    IMAGE,
    Agent,
    Document,
    GrpcPeers,
    containers,
    held,
    prepare,
    processes,
    runtime,
    until,
    write,
)
from e2e.guest_runs import Alignup, where

PLUGINS: tuple[Document, ...] = (
    {"resource": "example.com/gpu", "devices": {"gpu-0": 1, "gpu-1": 1, "gpu-2": 3, "gpu-3": 3}},
    {"resource": "example.com/nic", "devices": {"nic-0": 1, "nic-1": 3}},
)
CONFIG: Document = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "cpuManagerPolicy": "static",
    "cpuManagerReconcilePeriod": "1s",
    "memoryManagerPolicy": "Static",
    "reservedSystemCPUs": "0",
    "systemReserved": {"memory": "80Mi"},
    "evictionHard": {"memory.available": "20Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
}
EVERY = "0-7"  #: all CPUs of the guest
PREPARING = "DevicesArePrepared"  #: a transient reason to wait
#: Allocate 12 MiB, print the allowed CPUs and the visible devices, and stay. The command after ``sleep`` keeps the
#: shell from replacing itself with it, which would free the memory.
COMMAND = (
    'taken=$(busybox head -c 12m /dev/zero | busybox tr "\\0" a); grep allowed_list /proc/self/status; '
    "env | grep _DEVICES; ls /dev/gpu /dev/nic 2>/dev/null; echo done; sleep 36000; :"
)


def pod(name: str, **own: Document) -> Document:
    """A manifest with one such container for each set of limits."""
    made = [
        {
            "name": container,
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", COMMAND],
            "resources": {"limits": limits},
        }
        for container, limits in own.items()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": made},
    }


#: Pods that fit a NUMA node as a whole, or only container by container.
SMALL = pod(
    "small",
    one={"cpu": "1", "memory": "64Mi", "example.com/gpu": "1"},
    two={"cpu": "1", "memory": "64Mi", "example.com/nic": "1"},
)
LARGE = pod(
    "large",
    one={"cpu": "2", "memory": "64Mi", "example.com/gpu": "1"},
    two={"cpu": "1", "memory": "64Mi", "example.com/nic": "1"},
)
PINNED = pod("pinned", one={"cpu": "2", "memory": "64Mi", "example.com/gpu": "1", "example.com/nic": "1"})
SHARING = (pod("besteffort", one={}), pod("fraction", one={"cpu": "1500m", "memory": "64Mi"}))


def under(policy: str, scope: str) -> Document:
    """Try both pods, one after the other."""
    prepare()
    node = Node(runtime().endpoint, policy=policy, scope=scope)
    return {"small": node.try_pod(SMALL), "large": node.try_pod(LARGE), "code": node.agent.end()}


def live() -> Document:
    """Change the shared CPUs under running containers; kill and restart the agent and the runtime."""
    prepare()
    served = runtime()
    node = Node(served.endpoint, policy="single-numa-node", scope="container")
    for manifest in SHARING:
        node.put(manifest)
    found: Document = {"alone": node.look()}
    node.put(PINNED)
    found["beside"] = node.look(lambda seen: _shared(seen).isdisjoint({EVERY}))
    found["moved"] = node.moved("besteffort")
    found["killed"] = node.killed("fraction")
    served.kill()
    served.start()
    node.put(pod("later", one={}))
    found["later"] = node.look(lambda seen: {"pinned", "later"} <= seen.keys())
    node.remove("pinned")
    found["after"] = node.look(lambda seen: _shared(seen) == {EVERY})
    found |= {"runtime": node.agent.get("/v1/runtime"), "code": node.agent.end()}
    found["log"] = node.agent.log.read_text()[-6000:]
    return found


def _shared(seen: Document) -> set[str]:
    """The cpusets of containers without exclusive CPUs; one, once all are updated."""
    return {own["one"]["held"]["cpuset.cpus"] for name, own in seen.items() if name != "pinned"}


class Node:
    """An agent with manifests and device plugins."""

    def __init__(self, endpoint: str, *, policy: str, scope: str) -> None:
        config = {**CONFIG, "topologyManagerPolicy": policy, "topologyManagerScope": scope}
        root = Path("/var/lib/alignup")
        self.agent = Agent(config, root, ("--runtime", "cri", "--runtime-endpoint", endpoint))
        self.agent.start()
        self.agent.ready()
        self.peers = GrpcPeers(root / "device-plugins", root / "pod-resources" / "kubelet.sock")
        for plugin in PLUGINS:
            self.peers.ask("start", offer=_device_offer(plugin))

    def put(self, manifest: Document) -> str:
        """Write a manifest; wait until its pod is rejected, or runs and has printed everything; return its status."""
        write(self.agent.manifests, manifest)
        uid = manifest["metadata"]["uid"]
        status: str = until(f"{uid} is decided on", lambda: self._status(uid), detail=self._log_tail)
        return status

    def _log_tail(self) -> str:
        return "\n".join(f"| {line}" for line in self.agent.log.read_text()[-4000:].splitlines())

    def _status(self, uid: str) -> str:
        """The status of a pod; empty: it is in progress."""
        known = self.agent.pods().get(uid)
        if known is None:  # a pod that can never fit does not wait
            decisions = self.agent.get(f"/v1/decisions?pod={uid}&outcome=rejected")["decisions"]
            return _unless_preparing("rejected", decisions[0]["decision"]["rejection"]) if decisions else ""
        if known["status"] != "admitted":
            return _unless_preparing(known["status"], known["rejection"])
        run = known["run"]
        if run is None or run["phase"] != "Running":
            return ""
        return "running" if all("done" in self._log(uid, one["name"]) for one in run["containers"]) else ""

    def _log(self, uid: str, container: str) -> str:
        status, text = self.agent.ask("GET", f"/v1/pods/{uid}/logs?container={container}")
        return text if status == 200 else ""

    def remove(self, name: str) -> None:
        """Remove a manifest and wait until its pod and cgroups are gone."""
        groups = [path for known, _, path in containers(self.agent.pods().values()) if known["name"] == name]
        (self.agent.manifests / f"{name}.json").unlink()
        until(
            f"{name} is gone",
            lambda: f"uid-{name}" not in self.agent.pods() and not any(path.exists() for path in groups),
        )

    def try_pod(self, manifest: Document) -> Document:
        """Run a pod and remove it; return its status, the observed containers, and their placements."""
        status, name = self.put(manifest), manifest["metadata"]["name"]
        seen = self.look()[name] if status == "running" else {}
        found = {"status": status, "seen": seen, "placements": self._placements(manifest)}
        self.remove(name)
        return found

    def _placements(self, manifest: Document) -> Document:
        known = self.agent.pods().get(manifest["metadata"]["uid"], {})
        return {one["container"]: one for one in known.get("placements", ())}

    def look(self, enough: Callable[[Document], bool] = bool) -> Document:
        """Observe all containers, by pod and name, once *enough* holds."""

        def seen() -> Document | None:
            found = self._look()
            return found if enough(found) else None

        found: Document = until("containers are on their CPUs", seen)
        return found

    def _look(self) -> Document:
        found: Document = {}
        for known, one, group in containers(self.agent.pods().values()):
            pids = processes(group)
            found.setdefault(known["name"], {})[one["name"]] = {
                "id": one["id"],
                "restarts": one["restarts"],
                "pids": pids,
                "held": held(group),
                "where": max((where(pid) for pid in pids), key=lambda place: sum(place["pages"].values())),
                "log": self._log(known["uid"], one["name"]),
            }
        return found

    def moved(self, name: str) -> Document:
        """Change a cgroup by hand; let ``alignup audit`` find and fix it."""
        ((group, before),) = [
            (path, held(path)["cpuset.cpus"])
            for known, _, path in containers(self.agent.pods().values())
            if known["name"] == name
        ]
        well = self._audit()
        (group / "cpuset.cpus").write_text("0")
        drifted, fixed = self._audit(), self._audit("--fix")
        return {
            "well": well,
            "drifted": drifted,
            "fixed": fixed,
            "after": self._audit(),
            "cpus": [before, held(group)["cpuset.cpus"]],
        }

    def _audit(self, *words: str) -> Document:
        return Alignup("audit", "--agent", f"unix:{self.agent.root}/agent.sock", *words).end()

    def killed(self, name: str) -> Document:
        """Kill the agent and then a container; return the containers before and after a restart of the agent."""
        before, times = self._look(), self.peers.ask("registrations")
        code = self.agent.end(signal.SIGKILL)
        for pid in before[name]["one"]["pids"]:
            os.kill(pid, signal.SIGKILL)
        self.agent.start()
        self.agent.ready()
        self.peers.ask("again", times=times)
        old = before[name]["one"]["id"]
        found = self.look(lambda seen: name in seen and seen[name]["one"]["id"] != old)
        return {"before": before, "after": found, "code": code}


def _unless_preparing(status: str, rejection: Document) -> str:
    reason = rejection["reason"]
    return "" if reason == PREPARING else f"{status} {reason}"


def _device_offer(plugin: Document) -> Document:
    """A plugin in the format of recordings."""
    devices = [{"id": id_, "nodes": [node]} for id_, node in plugin["devices"].items()]
    endpoint = plugin["resource"].rpartition("/")[2] + ".sock"
    return {**plugin, "devices": devices, "endpoint": endpoint, "preferred": False, "pre_start_required": False}
