"""An agent on an example machine: pods are sent to it, and it says where they are (``make run``).

The machine has two sockets, each a NUMA node with 8 cores, 64 GiB, two GPUs and a network card. The agent runs until
Ctrl-C; with ``ONCE=1`` it ends by itself.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alignup.cli import guard

NODE = os.path.relpath(Path(__file__).parent / "node")


def main() -> None:
    """Tell the story."""
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        root = Path(place) / "agent"
        with agent(root):
            os.environ["ALIGNUP_AGENT"] = f"unix:{root / 'agent.sock'}"
            print(
                "An agent runs on an example machine: two sockets, each a NUMA node with two GPUs and a network card."
            )
            command("admit", "-f", f"{NODE}/running.yaml")
            print("\nOne more asks for 8 CPUs, a GPU and a network card on one node, and has to wait for them:")
            command("admit", "-f", f"{NODE}/trainer.yaml")
            print("\nOne that has them ends, and the one that waits takes its place:")
            command("release", "ml/finetune")
            command("ps")
            where_to_look(root)
            if not os.environ.get("ONCE"):
                wait()


@contextmanager
def agent(root: Path) -> Iterator[None]:
    """An agent that is ready, whose things are in *root*."""
    options = ["--machine", f"{NODE}/machine.yaml", "--config", f"{NODE}/kubelet.yaml", "--on-misfit", "wait"]
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


def command(*words: str) -> None:
    """Run a command as one would on a terminal."""
    print(f"\n$ alignup {' '.join(words)}", flush=True)
    guard.run(words)


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
