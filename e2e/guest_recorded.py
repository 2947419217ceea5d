"""The steps of a recorded run of the kubelet, taken by an agent in a guest; what came of each, as a recording has it.

Pods are sent to the agent, and sent again when it has been restarted: a kubelet finds the manifests it refused again,
too. There is no such thing as deleting the state files of single managers: an agent has one file, so a restart without
them is a plain restart.
"""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.guest_node import PLACE, Agent, Document, Outside, clear, containers, held, prepare, processes, runtime, until

ROOT = Path("/var/lib/alignup")
LASTING = ("app", "sidecar")  #: containers that run as long as their pod does
REFUSED = 409  #: the status of an answer
SETTLED = 1.0  #: seconds over which nothing may change
WAIT = 5.0  #: seconds, where a step is to wait
START = 60.0  #: seconds an agent has to be ready, or to end


def play(scenario: Mapping[str, Any], *words: str) -> Document:
    """Take every step of a *scenario* with an agent that is told *words* beside its configuration."""
    begun = time.monotonic()
    prepare()
    course = Course(scenario, words)
    told: Document = {"steps": [], "ready": 0.0}
    if "initial" in scenario:
        course.start()
        told["initial"] = course.snapshot()
        told["ready"] = time.monotonic() - begun
    for step in scenario["steps"]:
        since = time.monotonic()
        try:
            said = getattr(course, step["op"])(step)
            shown = {} if step["op"] == "bad_config" else course.snapshot()
        except Exception as error:  # noqa: BLE001 - told, with all the agent said; later steps make no sense then
            said, shown = {"error": f"{type(error).__name__}: {error}", "said": course.said()}, {}
        told["steps"].append({**said, **shown, "seconds": time.monotonic() - since})
        if "error" in said:
            break
    if "initial" in scenario:
        told |= course.finish()
    return {**told, "seconds": time.monotonic() - begun}


class Course:
    """An agent on its way through a scenario."""

    agent: Agent
    outside: Outside

    def __init__(self, scenario: Mapping[str, Any], words: tuple[str, ...]) -> None:
        self.scenario, self.words = scenario, words
        self.offers = {one["resource"]: one for one in scenario["plugins"]}
        self.manifests: dict[str, Document] = {}  #: name → the manifest that is there
        self.refused: dict[str, Document] = {}  #: name → how the agent sees a pod that it refused
        self.kept = PLACE / "kept"  #: the kubelet's files, as the newest agent that started would leave them

    def start(self) -> None:
        """The runtime, the agent and the plugins begin."""
        words = self.words
        if "cri" in words:
            words = (*words, "--runtime-endpoint", runtime().endpoint)
        self.agent = Agent(self.scenario["kubelet_config"], ROOT, words)
        self.outside = Outside(ROOT / "device-plugins", ROOT / "pod-resources" / "kubelet.sock")
        self.agent.start()
        self.agent.ready()
        for offer in self.offers.values():
            self.outside.ask("start", offer=offer)

    def said(self) -> str:
        """The end of the agent's log."""
        log = ROOT.with_suffix(".log")
        return log.read_text()[-4000:] if log.exists() else ""

    def pod(self, step: Document) -> Document:
        """A pod comes."""
        manifest = step["manifest"]
        self.manifests[manifest["metadata"]["name"]] = manifest
        return self._send(manifest)

    def _send(self, manifest: Document) -> Document:
        """Send a pod in; what became of it."""
        name, uid = manifest["metadata"]["name"], manifest["metadata"]["uid"]
        begun = time.monotonic()
        status, answer = self.agent.ask("POST", "/v1/pods", manifest)
        if "decision" not in answer:
            raise RuntimeError(f"{name} could not be sent in: {status} {answer}")
        decision = answer["decision"]
        found = {"reason": None, "message": None, "qosClass": decision["pod"]["qos"]}
        if status == REFUSED:
            refusal = decision["rejection"]
            found |= {"verdict": "rejected", "reason": refusal["reason"], "message": refusal["message"]}
            self.refused[name] = {"name": name, "uid": uid, "status": {"phase": "Failed", **found}}
        else:
            self.refused.pop(name, None)
            found |= until(f"{name} runs", lambda: self._state(uid))
        return {**found, "seconds_to_decision": time.monotonic() - begun}

    def _state(self, uid: str) -> Document | None:
        """How far a pod is that was not refused; ``None``: it is on its way."""
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
        """A pod goes."""
        name = step["name"]
        uid = self.manifests.pop(name)["metadata"]["uid"]
        if self.refused.pop(name, None) is None:
            groups = [group for _, group in self._of(uid)]
            self.agent.ask("DELETE", f"/v1/pods/{uid}")
            until(f"{name} is gone", lambda: uid not in self.agent.pods() and not any(map(Path.exists, groups)))
        return {"verdict": "deleted"}

    def restart(self, step: Document) -> Document:
        """The agent ends, or is killed, and another begins; containers live on."""
        before = {one["id"] for _, one, _ in containers(self.agent.pods().values())}
        code = self.agent.end(signal.SIGKILL if step.get("signal") == "KILL" else signal.SIGTERM)
        late = step.get("plugin") == "late"
        times = self.outside.ask("registrations")
        for resource in times if late else ():
            self.outside.ask("stop", resource=resource)
        self.agent.start()
        self.agent.ready()
        if not late:
            self.outside.ask("again", times=times)
        for manifest in self.manifests.values():
            self._send(manifest)
        after = {one["id"] for _, one, _ in containers(self.agent.pods().values())}
        return {"verdict": "restarted", "code": code, "ended": len(before - after), "begun": len(after - before)}

    def plugin_start(self, step: Document) -> Document:
        """Plugins come."""
        there = self.outside.ask("registrations")
        for resource in self._named(step):
            if resource not in there:
                self.outside.ask("start", offer=self.offers[resource])
        return {}

    def plugin_stop(self, step: Document) -> Document:
        """Plugins go."""
        there = self.outside.ask("registrations")
        for resource in self._named(step):
            if resource in there:
                self.outside.ask("stop", resource=resource)
        return {}

    def _named(self, step: Document) -> list[str]:
        return [step["resource"]] if step.get("resource") else list(self.offers)

    def health(self, step: Document) -> Document:
        """A device falls ill, is well again, or is gone."""
        resource = step.get("resource") or next(
            name for name, offer in self.offers.items() if step["id"] in {one["id"] for one in offer["devices"]}
        )
        self.outside.ask("health", resource=resource, id_=step["id"], health=step["health"])
        return {}

    def kill_container(self, step: Document) -> Document:
        """The processes of a pod's first container are killed."""
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
        """Time goes by."""
        time.sleep(WAIT)
        return {}

    def bad_config(self, step: Document) -> Document:
        """An agent begins with another configuration, or refuses to; it may find the files of the one before."""
        clear(ROOT)
        ROOT.with_suffix(".log").unlink(missing_ok=True)
        words = ("--state", str(self.kept)) if step.get("keep_state") else ()
        agent = Agent(step["config"], ROOT, words)
        agent.start()
        end = time.monotonic() + START
        while agent.running() and not agent.is_ready() and time.monotonic() < end:
            time.sleep(0.1)
        if not agent.running():
            return {"verdict": "refused", "exit_code": agent.code, "log": self.said()}
        agent.end()
        if not step.get("keep_state"):
            self._export(agent)
        return {"verdict": "started", "exit_code": None, "log": self.said()}

    def _export(self, agent: Agent) -> dict[str, str]:
        """The kubelet's files for what an agent has that has ended."""
        clear(self.kept)
        exporter = Agent(agent.config, agent.root, (*agent.words, "--export", str(self.kept)))
        exporter.start()
        code = exporter.wait()
        if code:
            raise RuntimeError(f"the export ended with {code}:\n{self.said()}")
        return {path.name: path.read_text() for path in self.kept.rglob("*") if path.is_file()}

    def snapshot(self) -> Document:
        """How things are, once they have not changed for a while."""
        before, shown = None, self._look()
        for _ in range(20):
            if shown == before:
                break
            time.sleep(SETTLED)
            before, shown = shown, self._look()
        return shown

    def _look(self) -> Document:
        pods = self.agent.pods().values()
        groups = [
            {"pod": pod["name"], "container": one["name"], "init": one["kind"] != "app", **held(group)}
            for pod, one, group in containers(pods)
        ]
        return {
            "pods": [*map(_shown, pods), *self.refused.values()],
            "placements": {pod["uid"]: pod["placements"] for pod in pods},
            "cgroups": sorted(groups, key=lambda one: (one["pod"], one["container"])),
            **self.outside.ask("resources"),
        }

    def finish(self) -> Document:
        """The agent ends well, and leaves the kubelet's files."""
        pods = self.agent.pods().values()
        told = {"machine": self.agent.get("/v1/machine"), "warnings": [_warned(pod) for pod in pods]}
        if "cri" in self.words:
            told["runtime"] = self.agent.get("/v1/runtime")
        code = self.agent.end()
        said = self.agent.log.read_text()
        return {**told, "code": code, "files": self._export(self.agent), "log": said[-20_000:]}


def _all_run(run: Mapping[str, Any]) -> bool:
    """Whether everything runs that is to run as long as the pod does."""
    return all(one["state"] == "running" for one in run["containers"] if one["kind"] in LASTING)


def _shown(pod: Document) -> Document:
    """A pod as a recording has it."""
    run = pod.get("run") or {"phase": "Running"}
    return {"name": pod["name"], "uid": pod["uid"], "status": {"phase": run["phase"], "qosClass": pod["qos"]}}


def _warned(pod: Document) -> list[str]:
    return list((pod.get("run") or {}).get("warnings", ()))
