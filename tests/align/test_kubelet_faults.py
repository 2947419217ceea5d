"""Hosts that copy the kubelet's defects decide on anything without an error, on uneven machines too."""

from hypothesis import given
from hypothesis import strategies as st

from alignup.align.cpus.options import CpuSettings
from alignup.align.errors import SettingsError
from alignup.align.host import Host, Settings
from alignup.align.quantity import Quantity
from alignup.align.release import RELEASES
from alignup.align.settings import FeatureGates, Policy, TopologySettings
from alignup.documents.machines import machine_from_document
from tests.align.hosts import pod

OPTIONS = (
    *("full-pcpus-only", "distribute-cpus-across-numa", "align-by-socket", "prefer-align-cpus-by-uncorecache"),
    *("distribute-cpus-across-cores", "strict-cpu-reservation"),
)


@st.composite
def uneven_machines(draw):
    """One to eight NUMA nodes on one or two sockets, with cores of one or two CPUs."""
    cpus, groups, nodes = 0, [], draw(st.integers(1, 8))
    for node in range(nodes):
        cores = []
        for size in draw(st.lists(st.sampled_from([1, 2, 2]), min_size=1, max_size=5)):
            cores.append(",".join(str(cpus + index) for index in range(size)))
            cpus += size
        groups.append({"socket": node * 2 // nodes, "node": node, "cores": " ".join(cores)})
    described = {"alignup": "machine/v1", "cpus": groups, "nodes": [{"id": n, "memory": "8Gi"} for n in range(nodes)]}
    return machine_from_document(described, name="uneven")


@given(uneven_machines(), st.sampled_from(RELEASES), st.data())
def test_any_sequence_of_pods_is_decided(machine, release, data):
    options = data.draw(st.lists(st.sampled_from(OPTIONS), max_size=3, unique=True))
    settings = Settings(
        release=release,
        topology=TopologySettings(policy=data.draw(st.sampled_from(Policy))),
        cpus=CpuSettings(policy="static", options=dict.fromkeys(options, "true"), reservation=Quantity.parse("1")),
        gates=FeatureGates({"CPUManagerPolicyAlphaOptions": True}, release),
        kubelet_faults=True,
    )
    try:
        host = Host(machine, settings)
    except SettingsError:
        return  # options that exclude each other, or a machine with too few CPUs
    running: list[str] = []
    for number, count in enumerate(data.draw(st.lists(st.integers(1, 12), max_size=6))):
        if running and data.draw(st.booleans()):
            host.release(running.pop())
        asked = pod(f"pod-{number}", cpu=str(count), memory="1Mi")
        decision = host.admit(asked)
        assert host.without_faults().decide(asked)
        if decision.admitted:
            running.append(asked.uid)
            assert host.ledger.cpus.owned(asked.uid).bit_count() == count
    for uid in running:
        host.release(uid)
    assert not host.ledger.cpus.held
