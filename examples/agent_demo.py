"""``make run``: an agent on an example machine that admits pods and prints where they are.

The machine has two sockets, each a NUMA node with 8 cores, 64 GiB, two GPUs and a network card. Two device plugins,
each a process, register the devices with the agent as they would with a kubelet. The agent runs until Ctrl-C; with
``ONCE=1`` the demo ends by itself.
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

from alignup.agent.address import UnixAddress
from alignup.cli import entry
from alignup.cli.client import AgentClient

PLUGINS = {"example.com/gpu": "2@0,2@1", "example.com/nic": "1@0,1@1"}  #: resource → number of devices @ NUMA node
DEVICE_COUNT = 6
NODE = os.path.relpath(Path(__file__).parent / "node")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="alignup-") as directory:
        root = Path(directory) / "agent"
        with run_agent(root) as client, run_plugins(root / "device-plugins"):
            os.environ["ALIGNUP_AGENT"] = client.address
            print("The agent runs on an example machine: two NUMA nodes, each with two GPUs and a network card.")
            wait_for(client, "/v1/machine", lambda machine: len(machine.get("devices", ())) == DEVICE_COUNT)
            print("Two device plugins have registered: one for the GPUs, one for the network cards.")
            command("admit", "-f", f"{NODE}/running.yaml")
            print("\nThe next pod requests 8 CPUs, a GPU and a network card on one NUMA node, and has to wait:")
            command("admit", "-f", f"{NODE}/trainer.yaml")
            print("\nWhen another pod is released, the waiting pod is admitted:")
            command("release", "ml/finetune")
            trainer = wait_for(client, "/v1/pods", lambda found: find_admitted(found, "trainer-0"))
            command("ps")
            variables = [item for grant in trainer["grants"]["train"].values() for item in grant["envs"].items()]
            shown = " ".join(f"{name}={value}" for name, value in sorted(variables))
            print(f"\nThe device plugins set these variables for ml/trainer-0: {shown}")
            print_next_steps(root)
            if not os.environ.get("ONCE"):
                wait_for_ctrl_c()


@contextmanager
def run_agent(root: Path) -> Iterator[AgentClient]:
    """Run an agent with its files in *root*, and yield a client for it."""
    machine = root.with_name("machine.yaml")
    machine.write_text(Path(NODE, "machine.yaml").read_text().partition("devices:")[0])  # the plugins have the devices
    options = ["--machine", str(machine), "--config", f"{NODE}/kubelet.yaml", "--on-misfit", "wait"]
    program = [sys.executable, "-m", "alignup", "agent", "--root-dir", str(root), *options]
    log = root.with_name("agent.log")
    with log.open("wb") as stream, subprocess.Popen(program, stderr=stream, start_new_session=True) as process:  # noqa: S603 - our own
        try:
            while not (root / "agent.sock").exists():
                if process.poll() is not None:
                    sys.exit(f"the agent did not start: {log.read_text()}")
                time.sleep(0.02)
            yield AgentClient(UnixAddress(root / "agent.sock"))
        finally:
            process.send_signal(signal.SIGTERM)


@contextmanager
def run_plugins(directory: Path) -> Iterator[None]:
    """Run the device plugins, each in a process."""
    program = [sys.executable, "-m", "alignup.testing.plugin", "--dir", str(directory), "--preferred", "lowest"]
    with directory.parent.with_name("plugins.log").open("wb") as log:
        processes = [
            subprocess.Popen(  # noqa: S603 - our own
                [*program, "--resource", resource, "--devices", devices], stdout=log, stderr=log, start_new_session=True
            )
            for resource, devices in PLUGINS.items()
        ]
        try:
            yield
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()


def wait_for(client: AgentClient, path: str, find: Callable[[dict[str, Any]], Any]) -> Any:  # noqa: ANN401 - of find
    """Poll the agent until *find* returns something in its response, and return that."""
    end = time.monotonic() + 30
    while not (found := find(client.get(path))):
        if time.monotonic() > end:
            sys.exit(f"timed out waiting for {path} of the agent at {client.address}")
        time.sleep(0.02)
    return found


def find_admitted(found: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((pod for pod in found["pods"] if pod["name"] == name and pod["status"] == "admitted"), None)


def command(*words: str) -> None:
    """Run a command, and print it as on a terminal."""
    print(f"\n$ alignup {' '.join(words)}", flush=True)
    entry.run(words)


def print_next_steps(root: Path) -> None:
    curl = f"curl --silent --unix-socket {root / 'agent.sock'} http://agent"
    print(
        f"""
Next steps
  export ALIGNUP_AGENT={os.environ["ALIGNUP_AGENT"]}
  alignup ps            alignup decisions 1     alignup watch
  {curl}/metrics
  {curl}/v1/picture.svg > node.svg
  {curl}/openapi.json
  log:        {root.with_name("agent.log")}
  checkpoint: {root / "checkpoint.json"}""",
        flush=True,
    )


def wait_for_ctrl_c() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # sigwait also takes one that came just before it
    print("\nThe agent runs until Ctrl-C.", flush=True)
    signal.sigwait([signal.SIGINT])
    print("\nThe agent stops. With its directory kept, the next start would continue from here.")


if __name__ == "__main__":
    main()
