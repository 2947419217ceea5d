"""``alignup check``: the manifests of a large repository against three kinds of nodes, as in CI."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.harness import Figure, cpu_time
from tests.cli.commands import in_process

MANIFESTS = 1000
CONFIGURATION = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
reservedSystemCPUs: "0-1"
topologyManagerPolicy: {policy}
"""
NODES = {
    "small": ("pack:1 numa:2(memory=32GiB) core:16 pu:2", "best-effort"),
    "usual": ("pack:2 numa:1(memory=128GiB) core:32 pu:2", "restricted"),
    "large": ("pack:2 numa:4(memory=96GiB) core:12 pu:2", "single-numa-node"),
}
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: app-{number}, namespace: team-{team}}}
spec:
  selector: {{matchLabels: {{app: app-{number}}}}}
  template:
    metadata: {{labels: {{app: app-{number}}}}}
    spec:
      containers:
      - name: app
        image: example.com/app
        resources: {{limits: {{cpu: "{cpu}", memory: {memory}Mi}}}}
      - name: proxy
        image: example.com/proxy
        resources: {{limits: {{cpu: 500m, memory: 64Mi}}}}
"""


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as place:
        repository = Path(place, "manifests")
        repository.mkdir()
        for number in range(MANIFESTS):  # all of different shapes, and one in eight rejected somewhere
            text = DEPLOYMENT.format(number=number, team=number % 20, cpu=1 + number % 48, memory=1024 + number)
            (repository / f"app-{number}.yaml").write_text(text)
        words = []
        for name, (machine, policy) in NODES.items():
            config = Path(place, f"{name}.yaml")
            config.write_text(CONFIGURATION.format(policy=policy))
            words += ["--node", f"{name}={machine},{config}"]
        seconds, run = cpu_time(partial(in_process, "check", repository, *words, "-o", "json"))
    assert run.returncode == 1, run.stderr
    yield Figure(f"check of {MANIFESTS} different manifests against {len(NODES)} kinds of nodes", seconds, 20.0)
