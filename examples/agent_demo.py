"""An agent on an example machine: pods are sent to it, and it says where they are (``make run``).

The machine has two sockets, each a NUMA node with 8 cores, 64 GiB, two GPUs and a network card. The devices are those
of two device plugins, processes of their own that register with the agent as they would with a kubelet. The agent runs
until Ctrl-C; with ``ONCE=1`` it ends by itself.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from alignup.cli import entry

PLUGINS = {"example.com/gpu": "2@0,2@1", "example.com/nic": "1@0,1@1"}  #: resource → how many devices, on which nodes
DEVICES = 6
NODE = os.path.relpath(Path(__file__).parent / "node")


def main() -> None:
    """Tell the story."""
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        root = Path(place) / "agent"
        with agent(root), plugins(root / "device-plugins"):
            os.environ["ALIGNUP_AGENT"] = f"unix:{root / 'agent.sock'}"
            print(
                "An agent runs on an example machine: two sockets, each a NUMA node with two GPUs and a network card."
            )
            wait_for(root, "/v1/machine", lambda machine: len(machine.get("devices", ())) == DEVICES)
            print("Two device plugins have registered with it, one for the GPUs, one for the network cards.")
            command("admit", "-f", f"{NODE}/running.yaml")
            print("\nOne more asks for 8 CPUs, a GPU and a network card on one node, and has to wait for them:")
            command("admit", "-f", f"{NODE}/trainer.yaml")
            print("\nOne that has them ends, and the one that waits takes its place:")
            command("release", "ml/finetune")
            trainer = wait_for(root, "/v1/pods", lambda found: _running(found, "trainer-0"))
            command("ps")
            told = [item for one in trainer["grants"]["train"].values() for item in one["envs"].items()]
            given = " ".join(f"{name}={what}" for name, what in sorted(told))
            print(f"\nIts device plugins have given ml/trainer-0 along with its devices: {given}")
            where_to_look(root)
            if not os.environ.get("ONCE"):
                wait()


@contextmanager
def agent(root: Path) -> Iterator[None]:
    """An agent that is ready, whose things are in *root*."""
    machine = root.with_name("machine.yaml")
    machine.write_text(Path(NODE, "machine.yaml").read_text().partition("devices:")[0])  # those are for the plugins
    options = ["--machine", str(machine), "--config", f"{NODE}/kubelet.yaml", "--on-misfit", "wait"]
    program = [sys.executable, "-m", "alignup", "agent", "--root-dir", str(root), *options]
    log = root.with_name("agent.log")
    with log.open("wb") as stream, subprocess.Popen(program, stderr=stream, start_new_session=True) as process:  # noqa: S603 - our own
        try:
            while not (root / "agent.sock").exists():
                if process.poll() is not None:
                    sys.exit(f"the agent did not start: {log.read_text()}")
                time.sleep(0.02)
            yield
        finally:
            process.send_signal(signal.SIGTERM)


@contextmanager
def plugins(directory: Path) -> Iterator[None]:
    """Device plugins, each a process."""
    program = [sys.executable, "-m", "alignup.testing.plugin", "--dir", str(directory), "--preferred", "lowest"]
    with directory.parent.with_name("plugins.log").open("wb") as log:
        started = [
            subprocess.Popen(  # noqa: S603 - our own
                [*program, "--resource", resource, "--devices", devices], stdout=log, stderr=log, start_new_session=True
            )
            for resource, devices in PLUGINS.items()
        ]
        try:
            yield
        finally:
            for one in started:
                one.terminate()
            for one in started:
                one.wait()


def wait_for(root: Path, path: str, found: Callable[[dict[str, Any]], Any]) -> Any:  # noqa: ANN401 - whatever is found
    """What is *found* in what the agent says, once it is."""
    end = time.monotonic() + 30
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(root / "agent.sock")), base_url="http://agent") as line:
        while not (what := found(line.get(path).json())):
            if time.monotonic() > end:
                sys.exit(f"the agent did not get there: {root.with_name('agent.log').read_text()}")
            time.sleep(0.02)
    return what


def _running(found: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The pod of that name, if it is admitted."""
    return next((pod for pod in found["pods"] if pod["name"] == name and pod["status"] == "admitted"), None)


def command(*words: str) -> None:
    """Run a command as one would on a terminal."""
    print(f"\n$ alignup {' '.join(words)}", flush=True)
    entry.run(words)


def where_to_look(root: Path) -> None:
    """What to try next."""
    address = os.environ["ALIGNUP_AGENT"]
    curl = f"curl --silent --unix-socket {root / 'agent.sock'} http://agent"
    print(
        f"""
Where to look
  export ALIGNUP_AGENT={address}
  alignup ps            alignup decisions 1     alignup watch
  {curl}/metrics
  {curl}/v1/picture.svg > node.svg
  {curl}/openapi.json
  its log: {root.with_name("agent.log")}
  its checkpoint: {root / "checkpoint.json"}""",
        flush=True,
    )


def wait() -> None:
    """Until Ctrl-C."""
    try:
        print("\nThe agent runs until Ctrl-C.", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        print("\nIt stops, and would go on from here if its directory were kept.")


if __name__ == "__main__":
    main()
