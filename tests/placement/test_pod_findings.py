"""What is wrong with a pod on an empty host, and whatever the host."""

from dataclasses import replace

import pytest
from hypothesis import given

from alignup.align.machine import Device
from alignup.align.reason_codes import find_reason
from alignup.align.settings import Policy
from alignup.align.workload import Pod, QoS
from alignup.align.workload.validation import accept
from alignup.placement.pod_findings import FindingLevel, find_remedy, host_findings, manifest_findings
from tests.align.hosts import GPU, after, hosts, make_host, make_pod
from tests.strategies_pods import guaranteed, pods


def findings(host, pod):
    return [(finding.code, str(finding.level)) for finding in host_findings(host, pod)]


def of_manifest(pod, old=None):
    return [(finding.code, finding.message) for finding in manifest_findings(pod, old or pod)]


def test_a_pod_that_fits_has_none():
    assert findings(make_host(), make_pod()) == []
    assert of_manifest(make_pod()) == []


def test_a_rejection_has_the_reason_of_the_kubelet_and_a_remedy():
    host, pod = make_host(), make_pod(cpu="5")
    (rejection,) = host_findings(host, pod)

    assert (rejection.code, rejection.level, rejection.is_rejection) == (
        "TopologyAffinityError",
        FindingLevel.REJECTED,
        True,
    )
    assert "4 CPUs" in find_remedy(host, pod, lambda: False)
    assert find_remedy(host, pod, after(0)) == ""


def test_a_rejection_without_details_has_the_message_of_the_kubelet():
    (rejection,) = host_findings(make_host(), replace(make_pod(), os="windows"))

    assert rejection.code == "PodOSNotSupported"
    assert rejection.message.endswith("Failed to admit pod as the OS field doesn't match node OS")


def test_missing_devices_are_no_rejection_by_the_kubelet():
    wanted = guaranteed("app", {"cpu": "1", "example.com/fpga": "1"})
    (finding,) = host_findings(make_host(), Pod(name="p", uid="p", containers=(wanted,)))

    assert (finding.code, finding.is_rejection) == ("NotSchedulable", False)


def test_what_depends_on_random_choices_may_be_rejected():
    machine = make_host().machine
    devices = tuple(Device(GPU, f"gpu-{number}", nodes=1 + number // 3) for number in range(6))
    host = make_host(Policy.RESTRICTED, memory=False)
    host = type(host)(replace(machine, devices=devices), replace(host.settings, kubelet_faults=True))
    containers = (guaranteed("first", {GPU: "4"}), guaranteed("second", {GPU: "2"}))

    (finding,) = host_findings(host, Pod(name="p", uid="p", containers=containers))

    assert (finding.code, finding.is_rejection) == ("MayBeRejected", False)


def test_nodes_that_do_not_align_and_parts_of_cpus():
    host = make_host(Policy.NONE)

    assert findings(host, make_pod(cpu="5")) == [("NotAligned", "misaligned")]
    assert findings(host, make_pod(cpu="1500m")) == [("FractionalCPUs", "warning")]


@pytest.mark.parametrize(
    ("name", "value", "code", "message"),
    [
        ("polcy", "restricted", "UnknownAnnotation", "annotation topology.alignup.dev/polcy is unknown"),
        ("policy", "strict", "UnknownDemand", "annotation topology.alignup.dev/policy is 'strict'; use none"),
    ],
)
def test_unknown_annotations_of_ours(name, value, code, message):
    others = {"topology.alignup.dev/scope": "pod", "example.com/policy": "x"}
    ((given_code, given_message),) = of_manifest(
        make_pod(annotations={f"topology.alignup.dev/{name}": value, **others})
    )

    assert given_code == code
    assert given_message.startswith(message)


def test_a_qos_class_that_depends_on_the_release():
    pod = make_pod()
    written = replace(pod, resources=replace(pod.resources, requests=pod.containers[0].resources.requests))
    new, old = (accept(written, fix_pod_level=fixed) for fixed in (True, False))

    assert (old.qos, new.qos) == (QoS.BURSTABLE, QoS.GUARANTEED)
    ((code, message),) = of_manifest(new, old)
    assert code == "QoSClassDependsOnRelease"
    assert message.startswith("the pod is Burstable up to Kubernetes 1.36 and Guaranteed since 1.37")


@given(hosts(), pods())
def test_every_code_is_listed_and_a_rejection_is_that_of_the_host(host, pod):
    listed = list(host_findings(host, pod))
    predicted = host.predict(pod).rejection

    assert all(find_reason(finding.code) for finding in listed)
    rejections = [finding.code for finding in listed if finding.is_rejection]
    assert rejections == ([predicted.reason] if predicted and not host.missing_devices(pod) else [])
