"""What becomes of a pod as written: defaults, QoS class and rejections, through the API server and as a static pod.

Values, classes and stages are the kubelet's; for a rejection the fields named are, and the wording is ours.
"""

import re
from typing import Any

from alignup.align.errors import PodError
from alignup.align.workload import Container, Pod, Resources
from alignup.align.workload.validation import PodSource, accept
from alignup.kubernetes.manifests.pod_decoder import read_pod_text
from tests.conformance.harness import Case, run

#: The host the vectors' static pods are on.
HOST = "node-1"

#: A path followed by the beginning of what is wrong there.
PATHS = re.compile(
    r"\b((?:metadata|spec)(?:\.\w+|\[[^]]*\])+): "
    "(?:Invalid value|Required value|Duplicate value|Unsupported value|Forbidden|Not found)"
)


def test_pods_get_defaults_and_are_rejected_as_in_kubernetes(request):
    run(request, "defaults", check)


def check(case: Case) -> str | None:
    gate = case["gates"]["PodLevelResourcesFixDefaulting"]
    try:
        written = read_pod_text(case["text"])
    except PodError as error:
        assert case["api"].get("stage") == "decode", f"cannot be read: {error}"
        assert all(problem.field for problem in error.problems)
        # The scheme's name, at the end of the kubelet's text, is a place in its source.
        bare = [re.sub(" in scheme .*", "", text) for text in case["api"]["texts"] + case["static"]["texts"]]
        assert {problem.message for problem in error.problems} == set(bare)
        return None

    assert case["api"].get("stage") != "decode", f"read, instead of {case['api']['texts']}"
    compare(written, case["api"], source=PodSource.API, gate=gate)
    compare(written, case["static"], source=PodSource.STATIC, gate=gate)
    return None


def compare(written: Pod, expected: Case, *, source: PodSource, gate: bool) -> None:
    try:
        pod = accept(written, source=source, host=HOST, fix_pod_level=gate)
    except PodError as error:
        assert not expected["ok"], f"{source}: rejected: {error}"
        assert fields(error) == expected_fields(expected), f"{source}: {error}"
        return

    assert expected["ok"], f"{source}: accepted, instead of {expected.get('texts')}"
    assert pod.name == (f"{written.name}-{HOST}" if source is PodSource.STATIC else written.name)
    assert shown(pod) == {
        "containers": [without_empties(container) for container in expected["containers"]],
        "initContainers": [without_empties(container) for container in expected["initContainers"]],
        "resources": without_empties({"resources": expected["resources"] or {}})["resources"],
        "overhead": expected.get("overhead", {}),
        "qos": expected["qos"],
    }, f"{source}"
    if source is PodSource.API:
        assert pod.recorded_qos == expected["status_qos"]


def fields(error: PodError) -> set[str]:
    return {problem.field for problem in error.problems}


def expected_fields(expected: Case) -> set[str]:
    """The paths a rejection names; those of a static pod come in one text."""
    if "errors_sorted" in expected:
        return {re.split(r": (?=[A-Z])", single, maxsplit=1)[0] for single in expected["errors_sorted"]}
    if expected["texts"] == ["invalid pod: name is needed for the pod"]:
        return {"metadata.name"}
    return {path for text in expected["texts"] for path in PATHS.findall(text)}


def shown(pod: Pod) -> dict[str, Any]:
    return {
        "containers": [show_container(container) for container in pod.containers],
        "initContainers": [show_container(container) for container in pod.init],
        "resources": show(pod.resources),
        "overhead": {name: str(amount) for name, amount in pod.overhead.items()},
        "qos": pod.qos,
    }


def show_container(container: Container) -> dict[str, Any]:
    rejected = [
        name
        for name, amount in sorted(container.resources.requests.items())
        if (name == "memory" or name.startswith("hugepages-")) and amount.as_int64() is None
    ]
    return {
        "name": container.name,
        "resources": show(container.resources),
        "restartable": container.restartable,
        "not_int64": rejected,
    }


def show(resources: Resources) -> dict[str, Any]:
    lists = {"requests": resources.requests, "limits": resources.limits}
    return {key: {name: str(amount) for name, amount in amounts.items()} for key, amounts in lists.items() if amounts}


def without_empties(container: Case) -> Case:
    """A container as we show it: an empty list is as good as none, and of restart policies only Always matters."""
    return {
        "name": container.get("name"),
        "resources": {key: amounts for key, amounts in container["resources"].items() if amounts},
        "restartable": container.get("restartPolicy") == "Always",
        "not_int64": sorted(container.get("not_int64") or []),
    }
