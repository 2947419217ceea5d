"""Replay a recorded kubelet run with an agent in a guest; the results have the format of recordings.

Pods are sent to the agent, and sent again after a restart, because a kubelet also reads rejected manifests again. The
agent has one checkpoint instead of one state file per manager, so a restart without these files is a plain restart.
"""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.guest_node import (
    PLACE,
    Agent,
    Document,
    GrpcPeers,
    clear,
    containers,
    held,
    prepare,
    processes,
    runtime,
    until,
)

ROOT = Path("/var/lib/alignup")
LASTING = ("app", "sidecar")  #: containers that run as long as their pod
CONFLICT = 409  #: the HTTP status of a rejection
SETTLE_SECONDS = 1.0  #: without a change
WAIT = 5.0  #: seconds of a wait step


def play(scenario: Mapping[str, Any], *words: str) -> Document:
    """Replay a *scenario* with an agent that gets the options *words*."""
    begun = time.monotonic()
    prepare()
    replay = Replay(scenario, words)
    results: Document = {"steps": [], "ready": 0.0}
    if "initial" in scenario:
        replay.start()
        results["initial"] = replay.snapshot()
        results["ready"] = time.monotonic() - begun
    for step in scenario["steps"]:
        since = time.monotonic()
        try:
            result = getattr(replay, step["op"])(step)
            shown = {} if step["op"] == "bad_config" else replay.snapshot()
        except Exception as error:  # noqa: BLE001 - reported with the agent's log; later steps are skipped
            result, shown = {"error": f"{type(error).__name__}: {error}", "log": replay.log_tail()}, {}
        results["steps"].append({**result, **shown, "seconds": time.monotonic() - since})
        if "error" in result:
            break
    if "initial" in scenario:
        results |= replay.finish()
    return {**results, "seconds": time.monotonic() - begun}


class Replay:
    """An agent in a scenario."""

    agent: Agent
    peers: GrpcPeers

    def __init__(self, scenario: Mapping[str, Any], words: tuple[str, ...]) -> None:
        self.scenario, self.words = scenario, words
        self.offers = {one["resource"]: one for one in scenario["plugins"]}
        self.manifests: dict[str, Document] = {}  #: by name
        self.rejected: dict[str, Document] = {}  #: name → the status of a rejected pod
        self.kept = PLACE / "kept"  #: the kubelet's files, as exported by the last agent

    def start(self) -> None:
        """Start the runtime, the agent and the plugins."""
        words = self.words
        if "cri" in words:
            words = (*words, "--runtime-endpoint", runtime().endpoint)
        self.agent = Agent(self.scenario["kubelet_config"], ROOT, words)
        self.peers = GrpcPeers(ROOT / "device-plugins", ROOT / "pod-resources" / "kubelet.sock")
        self.agent.start()
        self.agent.ready()
        for offer in self.offers.values():
            self.peers.ask("start", offer=offer)

    def log_tail(self) -> str:
        """The end of the agent's log."""
        log = ROOT.with_suffix(".log")
        return log.read_text()[-4000:] if log.exists() else ""

    def pod(self, step: Document) -> Document:
        """Admit a pod."""
        manifest = step["manifest"]
        self.manifests[manifest["metadata"]["name"]] = manifest
        return self._send(manifest)

    def _send(self, manifest: Document) -> Document:
        """Admit a pod; return its status."""
        name, uid = manifest["metadata"]["name"], manifest["metadata"]["uid"]
        begun = time.monotonic()
        status, answer = self.agent.ask("POST", "/v1/pods", manifest)
        if "decision" not in answer:
            raise RuntimeError(f"cannot admit {name}: {status} {answer}")
        decision = answer["decision"]
        found = {"reason": None, "message": None, "qosClass": decision["pod"]["qos"]}
        if status == CONFLICT:
            rejection = decision["rejection"]
            found |= {"verdict": "rejected", "reason": rejection["reason"], "message": rejection["message"]}
            self.rejected[name] = {"name": name, "uid": uid, "status": {"phase": "Failed", **found}}
        else:
            self.rejected.pop(name, None)
            found |= until(f"{name} runs", lambda: self._state(uid))
        return {**found, "seconds_to_decision": time.monotonic() - begun}

    def _state(self, uid: str) -> Document | None:
        """The status of a pod that was not rejected; ``None``: it is in progress."""
        known = self.agent.pods()[uid]
        if known["status"] == "waiting":
            return {"verdict": "waiting", "phase": "Pending", "reason": known["rejection"]["reason"]}
        run = known.get("run")
        if run is None or (run["phase"] == "Running" and _all_run(run)):
            return {"verdict": "admitted", "phase": "Running"}
        if run["phase"] in ("Succeeded", "Failed"):
            verdict = "admitted-succeeded" if run["phase"] == "Succeeded" else "failed"
            return {"verdict": verdict, "phase": run["phase"], "run": run}
        return None

    def delete(self, step: Document) -> Document:
        """Release a pod."""
        name = step["name"]
        uid = self.manifests.pop(name)["metadata"]["uid"]
        if self.rejected.pop(name, None) is None:
            groups = [group for _, group in self._of(uid)]
            self.agent.ask("DELETE", f"/v1/pods/{uid}")
            until(f"{name} is gone", lambda: uid not in self.agent.pods() and not any(map(Path.exists, groups)))
        return {"verdict": "deleted"}

    def restart(self, step: Document) -> Document:
        """Stop or kill the agent and start another one; containers keep running."""
        before = {one["id"] for _, one, _ in containers(self.agent.pods().values())}
        code = self.agent.end(signal.SIGKILL if step.get("signal") == "KILL" else signal.SIGTERM)
        late = step.get("plugin") == "late"
        times = self.peers.ask("registrations")
        for resource in times if late else ():
            self.peers.ask("stop", resource=resource)
        self.agent.start()
        self.agent.ready()
        if not late:
            self.peers.ask("again", times=times)
        for manifest in self.manifests.values():
            self._send(manifest)
        after = {one["id"] for _, one, _ in containers(self.agent.pods().values())}
        return {"verdict": "restarted", "code": code, "stopped": len(before - after), "started": len(after - before)}

    def plugin_start(self, step: Document) -> Document:
        there = self.peers.ask("registrations")
        for resource in self._named(step):
            if resource not in there:
                self.peers.ask("start", offer=self.offers[resource])
        return {}

    def plugin_stop(self, step: Document) -> Document:
        there = self.peers.ask("registrations")
        for resource in self._named(step):
            if resource in there:
                self.peers.ask("stop", resource=resource)
        return {}

    def _named(self, step: Document) -> list[str]:
        return [step["resource"]] if step.get("resource") else list(self.offers)

    def health(self, step: Document) -> Document:
        """Change the health of a device, or remove it."""
        resource = step.get("resource") or next(
            name for name, offer in self.offers.items() if step["id"] in {one["id"] for one in offer["devices"]}
        )
        self.peers.ask("health", resource=resource, id_=step["id"], health=step["health"])
        return {}

    def kill_container(self, step: Document) -> Document:
        """Kill the processes of a pod's first container."""
        uid = self.manifests[step["name"]]["metadata"]["uid"]
        first = self.manifests[step["name"]]["spec"]["containers"][0]["name"]
        ((one, group),) = [(one, group) for one, group in self._of(uid) if one["name"] == first]
        for pid in processes(group):
            os.kill(pid, signal.SIGKILL)
        until("it runs again", lambda: any(new["name"] == first and new["id"] != one["id"] for new, _ in self._of(uid)))
        return {}

    def _of(self, uid: str) -> list[tuple[Document, Path]]:
        return [(one, group) for pod, one, group in containers(self.agent.pods().values()) if pod["uid"] == uid]

    def wait(self, _: Document) -> Document:
        time.sleep(WAIT)
        return {}

    def bad_config(self, step: Document) -> Document:
        """Start an agent with another configuration, optionally with the previous agent's files; it may fail."""
        clear(ROOT)
        ROOT.with_suffix(".log").unlink(missing_ok=True)
        words = ("--state", str(self.kept)) if step.get("keep_state") else ()
        agent = Agent(step["config"], ROOT, words)
        agent.start()
        until("the agent is ready or exits", lambda: not agent.running() or agent.is_ready())
        if not agent.running():
            return {"verdict": "refused", "exit_code": agent.code, "log": self.log_tail()}
        agent.end()
        if not step.get("keep_state"):
            self._export(agent)
        return {"verdict": "started", "exit_code": None, "log": self.log_tail()}

    def _export(self, agent: Agent) -> dict[str, str]:
        """Export the state of a stopped agent to the kubelet's files."""
        clear(self.kept)
        exporter = Agent(agent.config, agent.root, (*agent.words, "--export", str(self.kept)))
        exporter.start()
        code = exporter.wait()
        if code:
            raise RuntimeError(f"the export failed with {code}:\n{self.log_tail()}")
        return {path.name: path.read_text() for path in self.kept.rglob("*") if path.is_file()}

    def snapshot(self) -> Document:
        """Observe the node until it no longer changes."""
        before, shown = None, self._look()
        for _ in range(20):
            if shown == before:
                break
            time.sleep(SETTLE_SECONDS)
            before, shown = shown, self._look()
        return shown

    def _look(self) -> Document:
        pods = self.agent.pods().values()
        groups = [
            {"pod": pod["name"], "container": one["name"], "init": one["kind"] != "app", **held(group)}
            for pod, one, group in containers(pods)
        ]
        return {
            "pods": [*map(_shown, pods), *self.rejected.values()],
            "placements": {pod["uid"]: pod["placements"] for pod in pods},
            "cgroups": sorted(groups, key=lambda one: (one["pod"], one["container"])),
            **self.peers.ask("resources"),
        }

    def finish(self) -> Document:
        """Stop the agent and export the kubelet's files."""
        pods = self.agent.pods().values()
        results = {"machine": self.agent.get("/v1/machine"), "warnings": [_warned(pod) for pod in pods]}
        if "cri" in self.words:
            results["runtime"] = self.agent.get("/v1/runtime")
        code = self.agent.end()
        log = self.agent.log.read_text()
        return {**results, "code": code, "files": self._export(self.agent), "log": log[-20_000:]}


def _all_run(run: Mapping[str, Any]) -> bool:
    """Whether all app containers and sidecars run."""
    return all(one["state"] == "running" for one in run["containers"] if one["kind"] in LASTING)


def _shown(pod: Document) -> Document:
    """A pod in the format of recordings."""
    run = pod.get("run") or {"phase": "Running"}
    return {"name": pod["name"], "uid": pod["uid"], "status": {"phase": run["phase"], "qosClass": pod["qos"]}}


def _warned(pod: Document) -> list[str]:
    return list((pod.get("run") or {}).get("warnings", ()))
