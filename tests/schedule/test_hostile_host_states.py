"""HostStates that lie: a node can harm the knowledge about itself only, and every answer takes bounded work."""

import gc
import json
import random
from typing import Any

import pytest

from alignup.align.claims.resource_claims import NUMA_NODE, DeviceId, Slice, SliceDevice
from alignup.align.errors import AlignError, ParseError, StateError
from alignup.align.host import Host
from alignup.documents.host_state import schema
from alignup.kubernetes.api.client import _decode_page
from alignup.kubernetes.api.host_states import HOST_STATES, host_state_reader
from alignup.picture.machine_text import draw_text
from alignup.placement.cluster import Cluster
from tests.align.hosts import GPU, pod
from tests.effort import SEED, bounded, did, rounds
from tests.observe.api_objects import received
from tests.observe.kubelets import ObservedKubelet

MUTATIONS = rounds(300, soak=20_000)  #: of each of three runs
MAX_CALLS = 1_500_000  #: of Python functions for one HostState, whatever is in it

ASKED = (pod("wide", cpu="4", memory="1Gi"), pod("device", cpu="1", memory="1Gi", gpu="1"), pod("small", cpu="1"))


def nested(depth):
    value: object = 1
    for _ in range(depth):
        value = {"x": [value]}
    return value


HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 7, 2**31, 2**63, 10**30, 1.5, 1e300, [], {}, "", "\0", "-1", "5-2", "0", "0-99999"),
    *(
        "0-1048575",
        "1,1",
        "1e20000",
        "-1e20000",
        "1e-20000",
        "9" * 5_000,
        "9Ei",
        "NaN",
        "x" * 100_000,
        "ÿ\u2028\x1b[0m",
    ),
    *(nested(20), nested(60), nested(100), ["0"] * 5_000, {str(number): "0" for number in range(5_000)}),
    *({"0": {"memory": 1 << 40}}, {"cpu": "1e20000", "memory": "1e20000"}, ["a", "a"], [{}], [None], {"app": "0-7"}),
)


def document():
    kubelet = ObservedKubelet()
    kubelet.run(pod("holder", cpu="2", memory="1Gi", gpu="1"))
    kubelet.run(pod("other", cpu="1", memory="2Gi"))
    device = SliceDevice(DeviceId("nic.example.com", "b", "nic-0"), {NUMA_NODE: 1})
    kubelet.slices = (Slice("slice", "nic.example.com", "b", 1, 1, devices=(device,)),)
    kubelet.claims["other"] = {"default/nic": (device.id,)}
    return kubelet.host_state("b")


def places(value, collected):
    """Collect (container, key) of every value in a document."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        collected.append((value, key))
        if isinstance(value[key], dict | list):
            places(value[key], collected)
    return collected


def mutate(changed, random_):
    """Change one to three values; the metadata is the API server's."""
    for _ in range(random_.randint(1, 3)):
        kept = ("metadata", "apiVersion", "kind")
        where, key = random_.choice([place for place in places(changed, []) if place[1] not in kept])
        action = random_.random()
        if action < 0.5:
            alike = [value for value in HOSTILE if type(value) is type(where[key])]  # most others are not even decoded
            where[key] = copied(random_.choice(alike if alike and action < 0.4 else HOSTILE))
        elif action < 0.6:
            del where[key]
        elif action < 0.7 and isinstance(where, list):
            where.extend([where[key]] * random_.choice((1, 10, 2_500)))
        elif action < 0.8 and isinstance(where, dict):
            where[random_.choice(("more", "x" * 300, "0", "-1", "cpu", "pod"))] = copied(random_.choice(HOSTILE))
        else:
            where[key] = random_.choice(list(places(changed, [])))[1]
        changed = copied(changed)
    return changed


def copied(value):
    return json.loads(json.dumps(value))


def verdicts(cluster):
    return [{host: str(verdict.kind) for host, verdict in cluster.feasible(asked).items()} for asked in ASKED]


@pytest.mark.soak
@pytest.mark.parametrize("run", range(3))
def test_mutated_host_states_harm_no_other_node(run):
    random_ = random.Random(3 * (SEED - 1) + run)
    base = document()
    good = {name: json.dumps({**base, "metadata": {"name": name}}) for name in "ac"}
    cluster, reader = Cluster(), host_state_reader()
    for text in good.values():
        cluster.confirm(reader.read(received(json.loads(text))))
    expected = verdicts(cluster)
    read = 0
    for sequence in range(2, MUTATIONS + 2):
        hostile = mutate(copied(base), random_)
        hostile |= {"metadata": {"name": "b"}, "generation": sequence}
        with bounded(MAX_CALLS):
            page, _ = _decode_page(
                b'{"items":[%b,%b,%b]}' % (good["a"].encode(), json.dumps(hostile).encode(), good["c"].encode()),
                HOST_STATES,
            )
            names = [state.metadata.name for state in page.items]
            assert names in (["a", "b", "c"], ["a", "c"])
            assert list(page.unreadable) == ([] if "b" in names else [("", "b")])
            cluster.remove_host("b")
            try:
                for state in page.items:
                    if state.metadata.name == "b":
                        report = reader.read(state)
                        cluster.confirm(report)
                        draw_text(report.machine, report.ledger)
                        read += 1
            except AlignError as error:
                assert len(str(error)) < 3_000  # it is shown to people
            answers = verdicts(cluster)
        assert [{host: kind for host, kind in answer.items() if host != "b"} for answer in answers] == expected
    did("mutated HostStates", MUTATIONS)
    assert MUTATIONS < 10 * read < 9 * MUTATIONS  # both kinds were tried


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"machine": nested(schema.MAX_DEPTH)}, "nested more than 50 levels deep"),
        ({"configuration": nested(schema.MAX_DEPTH)}, "nested more than 50 levels deep"),
        ({"problems": ["x" * schema.MAX_BYTES]}, "bytes, and at most 1048576 are read"),
        ({"configuration": {"x": "x" * schema.MAX_BYTES}}, "bytes, and at most 1048576 are read"),
        ({"pods": [{"uid": "x" * schema.MAX_BYTES}]}, "bytes, and at most 1048576 are read"),
        ({"pods": [{"uid": str(number)} for number in range(2_001)]}, "ledger.pods: 2001 are listed"),
        (
            {"pods": [{"uid": "u", "cpus": {"containers": {str(number): "0" for number in range(10_001)}}}]},
            "ledger.containers: 10001 are listed",
        ),
        (
            {"devices": [{"resource": GPU, "ids": [str(number) for number in range(50_001)]}]},
            "ledger.devices: 50001 are listed",
        ),
        (
            {"pods": [{"uid": "u", "requests": {str(number): "0" for number in range(1_001)}}]},
            "ledger.resources: 1002 are listed",
        ),
        (
            {"claimDevices": [{"driver": "d", "pool": "p", "devices": [str(number) for number in range(10_001)]}]},
            "ledger.claimDevices: 10001 are listed",
        ),
        (
            {"pods": [{"uid": "u", "claims": {"app": {"n/c": ["d/p/x"] * 10_001}}}]},
            "ledger.pods.claims: 10001 are listed",
        ),
        (
            {"claimDevices": [{"driver": "d", "pool": "p", "devices": ["x"], "nodes": "0-999999"}]},
            "ledger: a CPU or NUMA node has a number of six digits or more",
        ),
        ({"lostCpus": "0-100000"}, "ledger: a CPU or NUMA node has a number of six digits or more"),
        (
            {"pods": [{"uid": "u", "memory": {"pod": [{"nodes": "0-999999", "type": "memory", "bytes": 1}]}}]},
            "ledger: a CPU or NUMA node has a number of six digits or more",
        ),
    ],
)
def test_a_host_state_beyond_the_limits_is_refused_before_anything_is_computed(changes, problem):
    base = document()
    of_ledger = {name: value for name, value in changes.items() if name in base["ledger"] | {"lostCpus": ""}}
    hostile = {**base, **{name: value for name, value in changes.items() if name not in of_ledger}}
    hostile["ledger"] = base["ledger"] | of_ledger
    state = received(hostile)

    with bounded(MAX_CALLS), pytest.raises(ParseError) as caught:
        host_state_reader().read(state)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("machine", "problem"),
    [
        ({"cpus": [{"socket": 0, "cores": " ".join(map(str, range(8_193))), "node": 0}]}, "more than 8192 CPUs"),
        ({"nodes": [{"id": number, "memory": 1 << 30} for number in range(257)]}, "on 256 NUMA nodes"),
    ],
)
def test_a_machine_that_is_too_large_is_refused(machine, problem):
    base = document()
    state = received({**base, "machine": base["machine"] | machine})
    with pytest.raises(StateError, match=problem):
        host_state_reader().read(state)


def test_cpus_that_many_pods_hold_are_refused_without_a_list_of_all_pairs():
    base = document()
    pods = [{"uid": str(number), "cpus": {"containers": dict.fromkeys("abcde", "2")}} for number in range(2_000)]
    state = received({**base, "ledger": base["ledger"] | {"pods": pods}})
    with bounded(MAX_CALLS), pytest.raises(StateError, match="CPUs 2 of pod /1 are held twice"):
        host_state_reader().read(state)


def test_machines_that_no_node_has_any_more_are_forgotten():
    """A node that reports another machine every second does not fill the memory."""
    reader, base = host_state_reader(), document()
    reader.read(received({**base, "metadata": {"name": "c"}}))
    before = count_hosts()
    for number in range(50):
        changed = copied(base)
        changed["configuration"]["maxPods"] = 100 + number
        reader.read(received(changed))
    assert count_hosts() == before + 1


def count_hosts():
    gc.collect()
    return sum(type(obj) is Host for obj in gc.get_objects())
