"""What ``test_run_guest`` has done in a guest: runs, one after the other, and all that was seen, as one JSON object.

Software emulation takes seconds to load Python's modules, so they are loaded once and every ``alignup`` is a fork. The
command of a run is this file again, called with ``probe``: it takes memory, looks where it is, and waits to be told.
"""
# ruff: noqa: S603, T201 - a program for a guest, which starts its own programs and prints what they say

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
TAKEN = 24 << 20  #: bytes a probe takes
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
CLOSEST = "prefer-closest-numa-nodes=true"
BY_SOCKET = "align-by-socket=true"

Seen = dict[str, Any]


def probe(until: str) -> None:
    """Take memory, tell where it is, and stay until there is a file of the name *until*, if one is given."""
    taken = bytearray(TAKEN)
    for place in range(0, TAKEN, 4096):
        taken[place] = 1
    told = {name: value for name, value in os.environ.items() if name.startswith("ALIGNUP_")}
    print(json.dumps({"pid": os.getpid(), "told": told, **where("self")}), flush=True)
    while until and not (PLACE / until).exists():
        time.sleep(0.05)


def where(pid: int | str) -> Seen:
    """Where a process is: by the kernel's own files, read without any code of ours."""
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
    """``alignup`` with some arguments, in a fork."""

    def __init__(self, *words: str) -> None:
        self.out = PLACE / str(time.monotonic_ns())
        self.pid = os.fork()
        if not self.pid:
            handle = os.open(self.out, os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            from alignup.cli import entry  # noqa: PLC0415 - loaded already

            os._exit(entry.run(list(words)))

    def told(self) -> Seen:
        """What its command printed first."""
        while not self.out.exists() or "\n" not in self.out.read_text():
            time.sleep(0.02)
        found: Seen = json.loads(self.out.read_text().splitlines()[0])
        return found

    def end(self) -> Seen:
        """Its exit code and all that was printed."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return {"code": code, "said": self.out.read_text()}


def lifecycle(*options: str, until: str = "") -> Alignup:
    """A run of the probe."""
    return Alignup("run", *options, "--", sys.executable, __file__, "probe", until)


def under_each_policy() -> Seen:
    """A run that fits one node, under every policy, held there in both ways."""
    found = {}
    for policy in POLICIES:
        one = lifecycle("--policy", policy, "--cpus", "2", "--memory", "48Mi")
        one.end()
        found[policy] = one.told()
    one = lifecycle("--policy", "single-numa-node", "--cpus", "2", "--memory", "48Mi", "--by", "affinity")
    one.end()
    return {**found, "affinity": one.told()}


def refused() -> Seen:
    """A run that fits no single node."""
    return lifecycle("--policy", "single-numa-node", "--cpus", "3").end()


def closest() -> Seen:
    """Four CPUs, which take two nodes, with the option and without."""
    found = {}
    for name, options in (("far", ()), ("close", ("--option", CLOSEST))):
        one = lifecycle("--policy", "restricted", *options, "--cpus", "4")
        one.end()
        found[name] = one.told()
    return found


def by_socket() -> Seen:
    """Two runs at a time, each of which takes two nodes."""
    options = ("--policy", "restricted", "--option", BY_SOCKET, "--cpus", "3")
    first = lifecycle(*options, until="first")
    second = lifecycle(*options, until="second") if first.told() else first
    found = {"first": first.told(), "second": second.told()}
    for name, one in (("first", first), ("second", second)):
        (PLACE / name).touch()
        found[name]["code"] = one.end()["code"]
    return found


def drift() -> Seen:
    """Groups and processes moved by hand, found, and put back."""
    group = lifecycle("--policy", "single-numa-node", "--cpus", "2", "--memory", "48Mi", until="drift")
    loose = lifecycle("--by", "affinity", "--cpus", "1", "--memory", "32Mi", until="drift")
    pids = [one.told()["pid"] for one in (group, loose)]
    found: Seen = {"before": Alignup("audit").end()}
    folder = GROUPS / group.told()["group"].rpartition("/")[2]
    (folder / "cpuset.cpus").write_text("0-7")
    (folder / "cpuset.mems").write_text("0")
    os.sched_setaffinity(pids[1], range(8))
    _migrate(pids[1], loose.told()["nodes"])
    found |= {"drifted": Alignup("audit", "-o", "json").end(), "moved": [where(pid) for pid in pids]}
    found |= {"fixed": Alignup("audit", "--fix").end(), "back": [where(pid) for pid in pids]}
    (GROUPS / "cgroup.procs").write_text(str(pids[0]))
    found |= {"left": Alignup("audit").end(), "rejoined": Alignup("audit", "--fix").end()}
    found |= {"after": Alignup("audit").end(), "told": [group.told(), loose.told()]}
    (PLACE / "drift").touch()
    found["codes"] = [one.end()["code"] for one in (group, loose)]
    found["groups"] = [path.name for path in GROUPS.glob("alignup-*")]
    return found


def _migrate(pid: int, nodes: str) -> None:
    """Move the memory of a process to node 3, from wherever it is."""
    from alignup.align import bits  # noqa: PLC0415 - loaded already
    from alignup.enforce import memory  # noqa: PLC0415

    memory.migrate(pid, bits.parse(nodes) & ~8, to=8)


def main() -> None:
    """Do it all."""
    subprocess.run(["/bin/busybox", "mount", "-t", "cgroup2", "none", os.fspath(GROUPS)], check=True)
    os.environ["ALIGNUP_RUN_DIR"] = str(PLACE / "runs")
    from alignup.cli import audit, run, why_output  # noqa: F401, PLC0415 - loaded once for all
    from alignup.runs import lifecycle, local_allocator  # noqa: F401, PLC0415

    seen = {}
    for part in (under_each_policy, refused, closest, by_socket, drift):
        start = time.monotonic()
        seen[part.__name__] = part()
        seen[part.__name__]["seconds"] = time.monotonic() - start
    print(json.dumps(seen))


if __name__ == "__main__":
    if sys.argv[1:2] == ["probe"]:
        probe(*sys.argv[2:])
    else:
        main()
