"""Explain a run of ``alignup run`` as ``alignup why`` explains a pod."""

import re

import click

from alignup.align.errors import SourceLocation
from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.cli import why
from alignup.kubernetes.manifests.workloads import Workload

#: What the explanation of a pod says, and what it means for a run.
_RUN_WORDS = (
    (r"^Pod run/(\S+) is rejected: .*", r"Run \1 is rejected: it does not fit the machine"),
    (r"^Pod run/", "Run "),
    (r" · \w+ pod: ", " · "),
    (r" · \w+ pod$", ""),
    (r"^(Container run|Whole pod)$", "The run"),
    (r"\bcontainer run\b|\bthe pod\b", "the run"),
    (r"^the node\b", "the machine"),
    (r"^evict run/", "wait for the end of run/"),
    (r"^set topologyManagerPolicy to (\S+) instead of \S+", r"use --policy \1"),
)
_SEARCH_SECONDS = 2.0  #: for changes that would admit a rejected run


def explain(host: Host, pod: Pod) -> None:
    if missing_devices := host.missing_devices(pod):
        click.echo(f"Run {pod.name} cannot start: this machine has no {', '.join(missing_devices)}")
        click.echo("  'alignup machine show' lists the devices of this machine; an agent also has those of plugins.")
        return
    workload = Workload("Run", pod.name, pod.namespace, 1, pod, SourceLocation("the command line"))
    why.print_text(host, [why.explain(host, workload, seconds=_SEARCH_SECONDS)], kubelet=False, say=_speak_of_runs)


def _speak_of_runs(sentence: str) -> str:
    """Return a sentence about the pod of a run in the words of this command."""
    for pattern, words in _RUN_WORDS:
        sentence = re.sub(pattern, words, sentence)
    return sentence
