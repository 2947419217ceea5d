"""The pods that ``alignup admit`` sends to the agent."""

import json

from hypothesis import given

from alignup.agent.state import same_workload
from alignup.align.workload.validation import accept
from alignup.cli.admit import pod_manifest
from alignup.kubernetes.manifests.pod_decoder import pod_to_dict, read_pod_text
from alignup.kubernetes.manifests.workloads import read_workloads
from tests.align.hosts import arrivals


@given(arrivals("some-uid"))
def test_a_pod_survives_the_round_trip(pod):
    (workload,) = read_workloads(json.dumps(pod_to_dict(pod)), name="pod.json").workloads
    sent = json.dumps(pod_manifest(workload, workload.pod))

    arrived = accept(read_pod_text(sent))

    assert same_workload(arrived, pod)
    assert (arrived.uid, arrived.name, arrived.namespace) == (pod.uid, pod.name, pod.namespace)
    assert (arrived.labels, arrived.annotations, arrived.priority) == (pod.labels, pod.annotations, pod.priority)
    assert arrived.computed_qos is pod.computed_qos
