import pytest

from alignup.align import bits
from alignup.align.errors import StateError
from alignup.align.host import Host
from alignup.kubernetes import configuration
from alignup.machines.synthetic import parse
from alignup.nri.decide_settings import check_managers, decide_settings
from tests.align.hosts import GIB, make_pod

HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
STATIC = "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n"


def test_a_kubelet_without_managers_is_accepted_and_others_are_told_what_to_change():
    check_managers(configuration.read(HEAD))
    with pytest.raises(StateError) as error:
        check_managers(configuration.read(HEAD + STATIC))

    assert "the kubelet has cpuManagerPolicy: static" in str(error.value)
    assert "set cpuManagerPolicy: none, remove its cpu_manager_state" in str(error.value)
    assert "memoryManagerPolicy" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "reserved"),
    [("", "0"), ("kubeReserved: {cpu: '2', memory: 1Gi}\n", "0-1"), ("reservedSystemCPUs: 3,7\n", "3,7")],
)
@pytest.mark.parametrize("shape", ["pack:2 numa:1 core:4 pu:1", "numa:16 core:1 pu:1"])
def test_the_managers_are_static_with_the_kubelets_reservations(text, reserved, shape):
    machine = parse(shape, memory=16 * GIB)
    host = Host(machine, decide_settings(configuration.read(HEAD + text), machine))

    assert bits.show(host.ledger.cpus.reserved) == reserved
    (placement,) = host.admit(make_pod(cpu="1")).placements
    assert placement.cpus
    assert placement.memory


def test_unknown_memory_is_not_managed():
    machine = parse("pack:2 numa:1 core:4 pu:1", memory=0)
    settings = decide_settings(configuration.read(HEAD), machine)

    assert settings.memory_policy == "None"
    assert Host(machine, settings).admit(make_pod()).admitted
