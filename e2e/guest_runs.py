"""Guest side of ``test_run_guest.py``: run commands one after the other, and print all observations as one JSON object.

Importing modules takes seconds under emulation, so this process imports them once and every ``alignup`` is a fork. The
command of a run is this file with ``probe``: it allocates memory, prints its placement, and waits.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GROUPS = Path("/sys/fs/cgroup")
PLACE = Path(tempfile.gettempdir())
TAKEN = 24 << 20  #: bytes that a probe allocates
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
CLOSEST = "prefer-closest-numa-nodes=true"
BY_SOCKET = "align-by-socket=true"

Observed = dict[str, Any]


def probe(until: str) -> None:
    """Allocate memory, print the placement, and stay until the file *until* exists, if it is given."""
    taken = bytearray(TAKEN)
    for place in range(0, TAKEN, 4096):
        taken[place] = 1
    environment = {name: value for name, value in os.environ.items() if name.startswith("ALIGNUP_")}
    print(json.dumps({"pid": os.getpid(), "environment": environment, **where("self")}), flush=True)
    while until and not (PLACE / until).exists():
        time.sleep(0.05)


def where(pid: int | str) -> Observed:
    """Return the placement of a process, read from the kernel's files without alignup's code."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    pages: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        for word in () if " file=" in line else line.split():
            if word[0] == "N" and word[1:2].isdigit():
                node, _, count = word[1:].partition("=")
                pages[node] = pages.get(node, 0) + int(count)
    return {
        "cpus": status["Cpus_allowed_list"],
        "nodes": status["Mems_allowed_list"],
        "pages": pages,
        "group": Path(f"/proc/{pid}/cgroup").read_text().strip(),
    }


class Alignup:
    """``alignup`` with arguments, in a fork."""

    def __init__(self, *words: str) -> None:
        self.out = PLACE / str(time.monotonic_ns())
        self.pid = os.fork()
        if not self.pid:
            handle = os.open(self.out, os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            from alignup.cli import entry  # noqa: PLC0415

            os._exit(entry.run(list(words)))

    def printed(self) -> Observed:
        """Return the first line its command printed."""
        while not self.out.exists() or "\n" not in self.out.read_text():
            time.sleep(0.02)
        observed: Observed = json.loads(self.out.read_text().splitlines()[0])
        return observed

    def end(self) -> Observed:
        """Return its exit code and output."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return {"code": code, "output": self.out.read_text()}


def run_probe(*options: str, until: str = "") -> Alignup:
    """Start a run of the probe."""
    return Alignup("run", *options, "--", sys.executable, __file__, "probe", until)


def under_each_policy() -> Observed:
    """Observe a run that fits one NUMA node, under every policy and with both enforcement methods."""
    observed = {}
    for policy in POLICIES:
        run = run_probe("--policy", policy, "--cpus", "2", "--memory", "48Mi")
        run.end()
        observed[policy] = run.printed()
    run = run_probe("--policy", "single-numa-node", "--cpus", "2", "--memory", "48Mi", "--by", "affinity")
    run.end()
    return {**observed, "affinity": run.printed()}


def rejected() -> Observed:
    """Observe a run that fits no single NUMA node."""
    return run_probe("--policy", "single-numa-node", "--cpus", "3").end()


def closest() -> Observed:
    """Four CPUs on two NUMA nodes, with and without the option."""
    observed = {}
    for name, options in (("far", ()), ("close", ("--option", CLOSEST))):
        run = run_probe("--policy", "restricted", *options, "--cpus", "4")
        run.end()
        observed[name] = run.printed()
    return observed


def by_socket() -> Observed:
    """Observe two concurrent runs on two NUMA nodes each."""
    options = ("--policy", "restricted", "--option", BY_SOCKET, "--cpus", "3")
    first = run_probe(*options, until="first")
    second = run_probe(*options, until="second") if first.printed() else first
    observed = {"first": first.printed(), "second": second.printed()}
    for name, run in (("first", first), ("second", second)):
        (PLACE / name).touch()
        observed[name]["code"] = run.end()["code"]
    return observed


def drift() -> Observed:
    """Move cgroups and processes by hand; find and fix the drift."""
    group = run_probe("--policy", "single-numa-node", "--cpus", "2", "--memory", "48Mi", until="drift")
    loose = run_probe("--by", "affinity", "--cpus", "1", "--memory", "32Mi", until="drift")
    pids = [run.printed()["pid"] for run in (group, loose)]
    observed: Observed = {"before": Alignup("audit").end()}
    folder = GROUPS / group.printed()["group"].rpartition("/")[2]
    (folder / "cpuset.cpus").write_text("0-7")
    (folder / "cpuset.mems").write_text("0")
    os.sched_setaffinity(pids[1], range(8))
    _migrate(pids[1], loose.printed()["nodes"])
    observed |= {"drifted": Alignup("audit", "-o", "json").end(), "moved": [where(pid) for pid in pids]}
    observed |= {"fixed": Alignup("audit", "--fix").end(), "back": [where(pid) for pid in pids]}
    (GROUPS / "cgroup.procs").write_text(str(pids[0]))
    observed |= {"left": Alignup("audit").end(), "rejoined": Alignup("audit", "--fix").end()}
    observed |= {"after": Alignup("audit").end(), "printed": [group.printed(), loose.printed()]}
    (PLACE / "drift").touch()
    observed["codes"] = [run.end()["code"] for run in (group, loose)]
    observed["groups"] = [path.name for path in GROUPS.glob("alignup-*")]
    return observed


def _migrate(pid: int, nodes: str) -> None:
    """Move the memory of a process to NUMA node 3."""
    from alignup.align import bits  # noqa: PLC0415
    from alignup.run import process  # noqa: PLC0415

    process.migrate_memory(pid, bits.parse(nodes) & ~8, to=8)


def main() -> None:
    subprocess.run(["/bin/busybox", "mount", "-t", "cgroup2", "none", os.fspath(GROUPS)], check=True)
    os.environ["ALIGNUP_RUN_DIR"] = str(PLACE / "runs")
    from alignup.cli import audit, run, why  # noqa: F401, PLC0415 - before forking
    from alignup.run import lifecycle, local_allocator  # noqa: F401, PLC0415

    seen = {}
    for part in (under_each_policy, rejected, closest, by_socket, drift):
        start = time.monotonic()
        seen[part.__name__] = part()
        seen[part.__name__]["seconds"] = time.monotonic() - start
    print(json.dumps(seen))


if __name__ == "__main__":
    if sys.argv[1:2] == ["probe"]:
        probe(*sys.argv[2:])
    else:
        main()
