"""Small inputs that describe something enormous, and a process with little memory that shows them as machines."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from tests.memory_limit import run_limited

MEMORY = 1 << 30  #: bytes of address space of the process


def show(files: list[Path], *options: str) -> dict[tuple[str, str], tuple[int, str]]:
    """Run ``alignup machine show`` on each file with each of *options*, in one process of limited memory.

    By file name and option: exit code and errors. Those after which the process died are missing.
    """
    code = (
        "import contextlib, io, itertools, json, os, sys\n"
        "from alignup.cli import entry\n"
        "for file, option in itertools.product(sys.argv[2:], json.loads(sys.argv[1])):\n"
        "    with contextlib.redirect_stderr(io.StringIO()) as errors, open(os.devnull, 'w') as null:\n"
        "        with contextlib.redirect_stdout(null):\n"
        "            code = entry.run(['machine', 'show', file, option])\n"
        "    print(json.dumps([os.path.basename(file), option, code, errors.getvalue()[:2000]]), flush=True)\n"
    )
    printed = run_limited(code, json.dumps(options), *map(str, files), memory=MEMORY)
    return {(name, option): (code, errors) for name, option, code, errors in map(json.loads, printed.splitlines())}


def tar(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=form) as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


def sparse_tar(size: int, *, count: int = 1) -> bytes:
    """Files of *size* bytes that take a header each, in the old GNU format."""
    header = tarfile.TarInfo("sys/sparse")
    header.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    block[386:410] = f"{0:011o} {0:011o} ".encode()  # one region without data
    block[483:495] = f"{size:011o} ".encode()  # the real size
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    return gzip.compress(bytes(block) * count + bytes(1024), mtime=0)


def named_tar(name: str) -> bytes:
    return tar((tarfile.TarInfo(name), b""))


def cadvisor_info(**ids: object) -> bytes:
    core = {"core_id": 0, "thread_ids": [ids.get("cpu", 0)], "socket_id": ids.get("socket", 0)}
    core["uncore_caches"] = [{"id": ids.get("cache", 0), "level": 3}]
    node = {"node_id": ids.get("node", 0), "memory": ids.get("memory", 0), "cores": [core], "distances": [10]}
    return json.dumps({"num_cores": ids.get("total", 1), "num_sockets": 1, "topology": [node]}).encode()


def hwloc(*, cpu: int = 0, package: int = 0, node: int = 0, inside: str = "") -> bytes:
    return (
        f'<topology version="2.0"><object type="Machine" cpuset="0x1"><object type="Package" os_index="{package}"'
        f' cpuset="0x1"><object type="NUMANode" os_index="{node}" cpuset="0x1" local_memory="1"/>'
        f'<object type="PU" os_index="{cpu}" cpuset="0x1"/>{inside}</object></object></topology>'
    ).encode()


def machine_yaml(cpus: str = "{socket: 0, node: 0, cores: '0'}", *, node: str = "{id: 0}", more: str = "") -> bytes:
    return f"alignup: machine/v1\ncpus: [{cpus}]\nnodes: [{node}]\n{more}\n".encode()


def machine_json(**more: object) -> bytes:
    cpus = [{"socket": 0, "node": 0, "cores": "0"}]
    return json.dumps({"alignup": "machine/v1", "cpus": cpus, "nodes": [{"id": 0}], **more}).encode()


def sysfs_tar(changes: dict[str, str]) -> bytes:
    """A machine with one CPU and one NUMA node, and *changes* in ``/sys/devices/system``."""
    files = {
        "cpu/online": "0",
        "cpu/cpu0/topology/physical_package_id": "0",
        "cpu/cpu0/topology/core_id": "0",
        "node/node0/cpulist": "0",
    }
    members = [
        (tarfile.TarInfo(f"sys/devices/system/{path}"), text.encode()) for path, text in (files | changes).items()
    ]
    return tar(*members)


HUGE = 10**11  #: as a member of a set, 12 GB

#: Name → content; all of them are rejected.
REJECTED = {
    "sparse.tar.gz": sparse_tar(6 << 30),
    "many-sparse.tar.gz": sparse_tar(500 << 20, count=20),
    "deep.tar.gz": named_tar("a/" * 40_000),
    "long-names.tar.gz": tar(*((tarfile.TarInfo(f"{number}/" + "ab/" * 20_000), b"") for number in range(50))),
    "cadvisor-node.json": cadvisor_info(node=HUGE),
    "cadvisor-cpu.json": cadvisor_info(cpu=HUGE),
    "cadvisor-total.json": cadvisor_info(total=1 << 70),
    "cadvisor-memory.json": cadvisor_info(memory=10**400),
    "hwloc-node.xml": hwloc(node=HUGE),
    "hwloc-cpu.xml": hwloc(cpu=HUGE),
    "hwloc-set.xml": hwloc(inside=f'<object type="L3Cache" cpuset="{"0x1," * 40_000}0x1"/>'),
    "yaml-cpus.yaml": machine_yaml("{socket: 0, node: 0, cores: '0-1048575'}"),
    "yaml-cores.yaml": machine_yaml(f"{{socket: 0, node: 0, cores: '{'0-65535 ' * 300}'}}"),
    "yaml-node.yaml": machine_yaml("{socket: 0, node: 100000000000, cores: '0'}", node="{id: 100000000000}"),
    "yaml-memory.yaml": machine_yaml(node=f"{{id: 0, memory: 0x{'f' * 100_000}}}"),
    "yaml-format.yaml": f"alignup: 0x{'f' * 100_000}\n".encode(),
    "yaml-offline.yaml": machine_yaml(more="offline: 0-1048575"),
    "json-lists.json": b'{"alignup": "machine/v1", "cpus": [' + b"[]," * 4_000_000 + b"[]]}",
    "yaml-aliases.yaml": b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n",
    "synthetic.txt": b"pack:999999999 numa:999999999 pu:999999999",
    "synthetic-ids.txt": b"pu:1(indexes=999999999)",
    "synthetic-node.txt": b"numa:1(indexes=999999999) pu:1",
    "synthetic-loops.txt": b"pu:1(indexes=" + b"999999999*999999999:" * 40_000 + b"1*1)",
}

#: Name → content; unusual, but machines.
SHOWN = {
    "cadvisor-socket.json": cadvisor_info(socket=HUGE),
    "cadvisor-cache.json": cadvisor_info(cache=HUGE),
    "hwloc-package.xml": hwloc(package=HUGE),
    "yaml-socket.yaml": machine_yaml("{socket: 100000000000, node: 0, cores: '0'}"),
    "sysfs-socket.tar.gz": sysfs_tar({"cpu/cpu0/topology/physical_package_id": str(HUGE)}),
    "sysfs-online.tar.gz": sysfs_tar({"node/online": "0-99999999999"}),
    "sysfs-entries.tar.gz": sysfs_tar({f"node/node{HUGE}/cpulist": "0", f"cpu/cpu{HUGE}/online": "1"}),
}


#: Generators of bombs: the end of the file name, and the content for a number and for how often something repeats.
_GENERATORS: tuple[tuple[str, Callable[[int, int], bytes]], ...] = (
    ("tar.gz", lambda size, many: sparse_tar(min(size, 8**11 - 1), count=1 + many // 1000)),
    ("tar.gz", lambda _, many: named_tar("ab/" * many)),
    ("tar.gz", lambda _, many: tar((tarfile.TarInfo("proc/cpuinfo"), bytes(many * 64)))),
    ("tar.gz", lambda _, many: tar(*((tarfile.TarInfo(f"sys/{n}/" + "d/" * 28), b"") for n in range(many // 50)))),
    ("tar.gz", lambda size, many: sysfs_tar({"cpu/online": f"0-{size}", "node/node1/distance": "10 " * many})),
    ("tar.gz", lambda size, _: sysfs_tar({"cpu/cpu0/topology/physical_package_id": str(size)})),
    ("json", lambda size, _: cadvisor_info(socket=size, cache=size)),
    ("json", lambda size, _: cadvisor_info(cpu=size)),
    ("json", lambda size, _: cadvisor_info(node=size, memory=size, total=size)),
    ("json", lambda _, many: b'{"alignup":' * many),
    ("json", lambda _, many: machine_json(pci=[{"address": str(n), "cpus": "0,65535"} for n in range(many)])),
    ("json", lambda _, many: machine_json(report={"num_cpus": 1, "num_sockets": 1, "nodes": [{"id": 0}] * many})),
    ("xml", lambda size, many: hwloc(package=size, inside='<object type="PCIDev"/>' * many)),
    ("xml", lambda size, _: hwloc(cpu=size, node=size)),
    ("xml", lambda _, many: hwloc(inside="<distances2 type='NUMANode'/>" * many)),
    ("xml", lambda _, many: hwloc(inside="<object " + " ".join(f'a{n}=""' for n in range(many)) + "/>")),
    ("yaml", lambda size, _: machine_yaml(f"{{socket: {size}, node: 0, cores: '0-{size}'}}")),
    ("yaml", lambda size, _: machine_yaml(node=f"{{id: {size}, memory: {size}}}")),
    ("yaml", lambda _, many: machine_yaml(more=f"devices: [{'{resource: a/b, id: c, nodes: 4095}, ' * many}]")),
    ("yaml", lambda _, many: machine_yaml(more=f"distances: [{'[10], ' * many}]")),
    ("txt", lambda size, many: f"numa:{size} core:{many} pu:{size}".encode()),
    ("txt", lambda _, many: f"core:{many} pu:1".encode()),
)


def variants(random: Random, count: int, *, most: int) -> Iterator[tuple[str, bytes]]:
    """Names and contents of generated bombs: random sizes, ids and totals in every format.

    Something repeats up to *most* times.
    """
    for number in range(count):
        kind, content = random.choice(_GENERATORS)
        size = random.choice((1, 10**3, 10**5, 10**9, 10**11, 1 << 63, 10**30)) + random.randrange(3)
        yield f"{number}.{kind}", content(size, min(most, random.choice((10, 1000, 60_000, 500_000))))
