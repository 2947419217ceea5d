"""The Kubernetes API: a list of 10,000 pods, in pages and streamed, and its memory.

The client runs in a process of its own, and its time is that of its CPU, so the server beside it does not count.
"""

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator

from alignup.kubernetes.api import PODS, Access, ApiClient, Informer
from bench.harness import Figure, peak_megabytes
from bench.pods_of_a_cluster import pod

PODS_LISTED = 10_000


def figures() -> Iterator[Figure]:
    paged, streamed = asyncio.run(_measure("paged", "streamed"))
    note = f"{paged['megabytes']:.0f} MB of JSON"
    yield Figure(f"list and decode {PODS_LISTED:,} pods in pages, CPU", paged["seconds"], 2.0, note)
    yield Figure(f"list and decode {PODS_LISTED:,} pods streamed, CPU", streamed["seconds"], 2.0)
    yield Figure("memory of the process at most, in pages, in GB", paged["peak"] / 1e9, 0.150, "printed as seconds")
    yield Figure("memory of the process at most, streamed, in GB", streamed["peak"] / 1e9, 0.150, "printed as seconds")


async def _measure(*ways: str) -> list[dict[str, float]]:
    """List the pods of a server in this process from another process."""
    from alignup.testing.api_server import ApiServer  # noqa: PLC0415 - the other process does not need it

    figures = []
    async with ApiServer() as server:
        for number in range(PODS_LISTED):
            server.put(pod(number))
        size = sum(len(stored.text) for stored in server.store.objects(server.resources.named("pods")))
        for way in ways:
            command = [sys.executable, "-m", "bench.bench_kubeapi", server.url, way]
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            output, _ = await process.communicate()
            assert process.returncode == 0
            figures.append({**json.loads(output), "megabytes": size / 1e6})
    return figures


async def _list(url: str, way: str) -> dict[str, float]:
    """Run in that process."""
    async with ApiClient(Access(server=url)) as client:
        gc.collect()
        start = time.process_time()
        if way == "paged":
            count = len((await client.list(PODS)).items)
        else:
            informer = Informer(client, PODS)
            task = asyncio.create_task(informer.run())
            await informer.wait_synced()
            count = len(informer.objects)
            task.cancel()
        seconds = time.process_time() - start
    assert count == PODS_LISTED
    return {"seconds": seconds, "peak": peak_megabytes() * 1e6}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_list(*sys.argv[1:]))))
