"""``make run``: an agent on an example machine that admits pods and prints where they are.

The machine has two sockets, each a NUMA node with 8 cores, 64 GiB, two GPUs and a network card. Two device plugins,
each a process, register the devices with the agent as they would with a kubelet. The agent runs until Ctrl-C or
SIGTERM; with ``ONCE=1`` the demo ends by itself. The agent and the plugins end with it.
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
from types import FrameType
from typing import Any

from alignup.cli import entry
from alignup.web.address import UnixAddress
from alignup.web.agent_client import AgentClient

PLUGINS = {"example.com/gpu": "2@0,2@1", "example.com/nic": "1@0,1@1"}  #: resource → number of devices @ NUMA node
DEVICE_COUNT = 6
NODE = os.path.relpath(Path(__file__).parent / "node")
PROCESSES: list[subprocess.Popen[bytes]] = []  #: the agent and the plugins
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, stop)
    with tempfile.TemporaryDirectory(prefix="alignup-") as directory, ending_processes():
        root = Path(directory) / "agent"
        client = start_agent(root)
        start_plugins(root / "device-plugins")
        os.environ["ALIGNUP_AGENT"] = client.address
        print("The agent runs on an example machine: two NUMA nodes, each with two GPUs and a network card.")
        wait_for(client, "/v1/machine", lambda machine: len(machine.get("devices", ())) == DEVICE_COUNT)
        print("Two device plugins have registered: one for the GPUs, one for the network cards.")
        command("admit", "-f", f"{NODE}/running.yaml")
        print("\nThe next pod requests 8 CPUs, a GPU and a network card on one NUMA node, and has to wait:")
        command("admit", "-f", f"{NODE}/trainer.yaml")
        print("\nWhen another pod is released, the waiting pod is admitted:")
        command("release", "ml/finetune")
        trainer = wait_for(client, "/v1/pods", lambda pods: find_admitted(pods, "trainer-0"))
        command("ps")
        variables = [item for grant in trainer["grants"]["train"].values() for item in grant["envs"].items()]
        shown = " ".join(f"{name}={value}" for name, value in sorted(variables))
        print(f"\nThe device plugins set these variables for ml/trainer-0: {shown}")
        print_next_steps(root)
        print("\nThe web page of this node, with a link that is valid once (another: alignup web):")
        print(f"  {client.post('/v1/sign-in-links')['url']}", flush=True)
        if os.environ.get("ONCE"):
            print("\nONCE=1 ends the agent now: the next steps need 'make run' without it.", flush=True)
        else:
            wait_for_stop_signal()


def stop(number: int, frame: FrameType | None) -> None:
    """Leave all ``with`` blocks, which end the processes; further signals do not interrupt that."""
    del frame
    for other in STOP_SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


@contextmanager
def ending_processes() -> Iterator[None]:
    """End the processes that were started, the last one first."""
    try:
        yield
    finally:
        for process in reversed(PROCESSES):
            process.terminate()
        for process in PROCESSES:
            process.wait()


@contextmanager
def blocked_signals() -> Iterator[set[int]]:
    """Let signals wait until the end of the block, which yields the mask before it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(*words: str, log: Path) -> subprocess.Popen[bytes]:
    """Start one of our programs. A signal waits until the process is listed, so that none is left behind."""
    with blocked_signals() as before, log.open("ab") as stream:
        process = subprocess.Popen(  # noqa: S603 - our own
            [sys.executable, "-m", *words],
            stdout=stream,
            stderr=stream,
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),  # noqa: PLW1509 - no threads here
        )
        PROCESSES.append(process)
    return process


def start_agent(root: Path) -> AgentClient:
    """Start an agent with its files in *root*, and return a client for it."""
    machine = root.with_name("machine.yaml")
    machine.write_text(Path(NODE, "machine.yaml").read_text().partition("devices:")[0])  # the plugins have the devices
    options = ["--machine", str(machine), "--config", f"{NODE}/kubelet.yaml", "--on-misfit", "wait"]
    options += ["--web-listen", "127.0.0.1:0"]  # a free port
    log = root.with_name("agent.log")
    process = start("alignup", "agent", "--root-dir", str(root), *options, log=log)
    while not (root / "agent.sock").exists():
        with blocked_signals():  # leaving poll() in the middle would keep its lock, for which wait() waits
            ended = process.poll() is not None
        if ended:
            sys.exit(f"the agent did not start: {log.read_text()}")
        time.sleep(0.02)
    return AgentClient(UnixAddress(root / "agent.sock"))


def start_plugins(directory: Path) -> None:
    """Start the device plugins, each in a process."""
    for resource, devices in PLUGINS.items():
        options = ("--dir", str(directory), "--preferred", "lowest", "--resource", resource, "--devices", devices)
        start("alignup.testing.plugin", *options, log=directory.parent.with_name("plugins.log"))


def wait_for(client: AgentClient, path: str, find: Callable[[dict[str, Any]], Any]) -> Any:  # noqa: ANN401 - of find
    """Poll the agent until *find* returns something in its response, and return that."""
    end = time.monotonic() + 30
    while not (answer := find(client.get(path))):
        if time.monotonic() > end:
            sys.exit(f"timed out waiting for {path} of the agent at {client.address}")
        time.sleep(0.02)
    return answer


def find_admitted(pods: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((pod for pod in pods["pods"] if pod["name"] == name and pod["status"] == "admitted"), None)


def command(*words: str) -> None:
    """Run a command, and print it as on a terminal."""
    print(f"\n$ alignup {' '.join(words)}", flush=True)
    entry.run(words)


def print_next_steps(root: Path) -> None:
    curl = f"curl --silent --unix-socket {root / 'agent.sock'} http://agent"
    print(
        f"""
Next steps, in another terminal
  export ALIGNUP_AGENT={os.environ["ALIGNUP_AGENT"]} PATH={Path(sys.executable).parent}:$PATH
  alignup ps
  alignup decisions 1
  alignup watch
  alignup web
  {curl}/metrics
  {curl}/v1/picture.svg > node.svg
  {curl}/openapi.json
  log:        {root.with_name("agent.log")}
  database:   {root / "alignup.sqlite"}""",
        flush=True,
    )


def wait_for_stop_signal() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # sigwait also takes one that came just before it
    print("\nThe agent runs until Ctrl-C.", flush=True)
    number = signal.sigwait(STOP_SIGNALS)
    print("\nThe agent stops. With its directory kept, the next start would continue from here.", flush=True)
    if number != signal.SIGINT:  # Ctrl-C is the usual end, and a success
        signal.raise_signal(number)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


if __name__ == "__main__":
    main()
