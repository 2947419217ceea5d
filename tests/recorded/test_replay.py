"""The replay itself: it notices what is wrong, and knows the steps that only other sets of recordings have."""

import copy
import json
from pathlib import Path

import pytest

from tests.recorded.replay import Course, Run, load, replay
from tests.recorded.snapshot import SPREAD

CARRIED = Path(__file__).parent / "kubelet"
GPU = "example.com/gpu"


def recording(name):
    return copy.deepcopy(load(CARRIED / f"{name}.json.gz"))


def course(*calls, policy="single-numa-node"):
    """A host with no pods, whose plugins will make *calls* in step 1."""
    recorded = recording("policy-single-numa-node-container")
    recorded["kubelet_config"]["topologyManagerPolicy"] = policy
    recorded["plugin_rpc_log"] = [{"step": 1, "resource": GPU, **call} for call in calls]
    made = Course(recorded, compare=False)
    made.follow(-1, {"op": "start"})
    return made


def says(*devices):
    return {"rpc": "ListAndWatch", "direction": "plugin->kubelet", "message": {"devices": list(devices)}}


def device(id_, node, health="Healthy"):
    return {"ID": id_, "health": health, "topology": {"nodes": [{"ID": str(node)}]}}


REGISTERS = {"rpc": "Register", "direction": "plugin->kubelet", "message": {}}
CLOSED = {"rpc": "ListAndWatch-closed", "direction": "kubelet->plugin", "message": {}}
STOPS = {"rpc": "stopped", "direction": "plugin", "message": {}}


def manifest_of(name, **limits):
    resources = {"limits": {"memory": "32Mi", "cpu": "100m"} | limits}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": name, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]},
    }


def admit(made, name="p", **limits):
    manifest = manifest_of(name, **limits)
    step = {"op": "pod", "manifest": manifest, "verdict": "admitted", "kubelet_internal_checkpoint": NO_DEVICES}
    made.follow(9, step)
    return made.host.decide(made.pods[f"{name}-vm"])


NO_DEVICES = json.dumps({"Data": {"PodDeviceEntries": None}})
NO_HEALTHY_DEVICES = (
    f"Allocate failed due to no healthy devices present; cannot allocate unhealthy devices {GPU}, which is unexpected"
)
UPDATED = "Processed device updates for resource"
SNAPSHOT = (
    "pods",
    "podresources_list",
    "podresources_allocatable",
    "cpu_manager_state",
    "memory_manager_state",
    "kubelet_internal_checkpoint",
    "cgroups",
    "log",
)
RESTART = {"op": "restart", "log": [], "pods": [], "kubelet_internal_checkpoint": NO_DEVICES}


@pytest.mark.parametrize(
    ("number", "part", "before", "after"),
    [
        pytest.param(2, "reason", "TopologyAffinityError", "OutOfcpu", id="another reason"),
        pytest.param(2, "message", "Pod was rejected: ", "", id="another message"),
        pytest.param(2, "reason", "TopologyAffinityError", None, id="a pod let in"),
        pytest.param(0, "qosClass", "Guaranteed", "Burstable", id="another QoS class"),
        pytest.param(1, "cpu_manager_state", '{"c":"2-3"}', '{"c":"4-5"}', id="other CPUs"),
        pytest.param(1, "memory_manager_state", '"numaAffinity":[1]', '"numaAffinity":[2]', id="other memory nodes"),
        pytest.param(1, "memory_manager_state", '"size":67108864', '"size":67108865', id="another size"),
        pytest.param(5, "kubelet_internal_checkpoint", '["gpu-c"]', '["gpu-d"]', id="a device elsewhere"),
        pytest.param(5, "kubelet_internal_checkpoint", '["nic-3"]', '["nic-0"]', id="a pick that is not aligned"),
        pytest.param(5, "podresources_list", '"nic-3"', '"nic-1"', id="another device listed"),
        pytest.param(0, "podresources_allocatable", ', "1"]', "]", id="a CPU not allocatable"),
        pytest.param(1, "cgroups", '"cpuset.cpus": "2-3"', '"cpuset.cpus": "2"', id="another cgroup"),
    ],
)
def test_deviations_are_noticed(number, part, before, after):
    recorded = recording("policy-restricted-container")
    step = recorded["steps"][number]
    plain = isinstance(step[part], str)
    text = step[part] if plain else json.dumps(step[part])
    assert before in text
    changed = None if after is None else text.replace(before, after, 1)
    step[part] = changed if plain or changed is None else json.loads(changed)
    run = Run("changed")

    replay(recorded, run)

    assert len(run.failures) == 1
    assert run.failures[0].startswith(f"step {number} ")
    assert run.compared == number + 1


def test_a_recording_is_replayed_with_the_release_that_it_names():
    """Under 1.37, neither the gate exists nor are devices hinted on all NUMA nodes."""
    recorded = recording("policy-restricted-container")
    recorded["kubelet_config"]["featureGates"] = {"MemoryManager": True}
    recorded["kubelet_version"] = "v1.35.8"
    run, newest = Run("1.35"), Run("the newest")

    replay(recorded, run)
    del recorded["kubelet_version"]
    replay(recorded, newest)

    assert (run.failures, run.compared + run.apart.total()) == ([], 15)
    assert "unrecognized feature gate: MemoryManager" in newest.failures[0]


def test_memory_may_be_spread_differently_after_a_rejection():
    recorded = recording("memory-static")
    state = json.loads(recorded["steps"][10]["memory_manager_state"])
    group = next(node["cells"] for node in state["machineState"].values() if len(node["cells"]) > 1)
    low, high = (state["machineState"][str(id_)]["memoryMap"]["memory"] for id_ in group)
    for node, more in ((low, -4096), (high, 4096)):
        node["reserved"] += more
        node["free"] -= more
    recorded["steps"][10]["memory_manager_state"] = json.dumps(state)
    run = Run("changed")

    replay(recorded, run)

    assert not run.failures
    assert run.apart[SPREAD] == 1


def test_a_missing_request_to_a_plugin_is_noticed():
    recorded = recording("restart")
    asked = [call for call in recorded["plugin_rpc_log"] if call["rpc"] == "GetPreferredAllocation"]
    recorded["plugin_rpc_log"] = [call for call in recorded["plugin_rpc_log"] if call not in asked]
    run = Run("changed")

    replay(recorded, run)

    assert asked
    assert "plugin requests" in run.failures[0]


def test_steps_without_effect_on_a_host_are_skipped_by_name():
    recorded = recording("prefer-closest-cpu")
    recorded["steps"][1:1] = [{"op": "wait"}, {"op": "kill_container", "name": "a2"}]
    for call in recorded["plugin_rpc_log"]:
        call["step"] += 2 * (call["step"] > 0)
    run = Run("changed")

    replay(recorded, run)

    assert not run.failures
    assert run.skipped == {"wait: a host has no clock": 1, "kill_container: containers are processes": 1}


@pytest.mark.parametrize("calls", [[], [STOPS], [says(device("x", 2)), CLOSED, STOPS]])
def test_plugins_that_stay_away_after_a_restart_have_no_devices(calls):
    made = course(*calls)
    admit(made, "holder", **{GPU: "1"})
    made.follow(1, RESTART)

    rejected = admit(made, **{GPU: "1"})

    assert made.host.ledger.devices.owned("holder", GPU)
    assert rejected.rejection.message == NO_HEALTHY_DEVICES


def late_plugin_run():
    """A made-up run: plugins that stop before a restart of the kubelet register again two steps later."""
    recorded = recording("restart")
    (number,) = [index for index, step in enumerate(recorded["steps"][:5]) if step["op"] == "restart"]
    restart = recorded["steps"][number] | {"plugin": "late"}
    registered = {part: restart[part] for part in SNAPSHOT}
    restart["podresources_allocatable"] = restart["podresources_allocatable"] | {"devices": []}
    restart["log"] = [line for line in restart["log"] if "Device plugin connected" not in line and UPDATED not in line]
    verdict = {
        "verdict": "rejected",
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": f"Pod was rejected: {NO_HEALTHY_DEVICES}",
        "qosClass": "Guaranteed",
    }
    added = [
        {part: restart[part] for part in SNAPSHOT}
        | {"op": "pod", "manifest": manifest_of("early", **{GPU: "1"})}
        | verdict,
        registered | {"op": "plugin_start", "verdict": "started"},
        registered | {"op": "delete", "name": "early", "verdict": "deleted"},
    ]
    recorded["steps"][number : number + 1] = [restart, *added]

    for call in recorded["plugin_rpc_log"]:
        call["step"] += len(added) * (call["step"] > number)
    calls = [call for call in recorded["plugin_rpc_log"] if call["step"] == number]
    lists = [call for call in calls if call["rpc"] == "ListAndWatch" and call["direction"] == "plugin->kubelet"]
    stopping = [call for call in calls if call["rpc"] in ("ListAndWatch-closed", "stopped")]
    starting = [call | {"step": number + 2} for call in calls if call not in stopping]
    position = recorded["plugin_rpc_log"].index(calls[0])
    recorded["plugin_rpc_log"][position : position + len(calls)] = [*lists, *stopping, *starting]
    return recorded, number


def test_a_run_with_late_plugins_is_followed_to_its_end():
    recorded, _ = late_plugin_run()
    run = Run("late plugins")

    replay(recorded, run)

    assert not run.failures
    assert run.steps == len(recorded["steps"]) + 1


@pytest.mark.parametrize(
    ("step", "part", "value", "message"),
    [
        pytest.param(0, "podresources_allocatable", 2, "allocatable", id="devices before their plugin"),
        pytest.param(1, "reason", None, "rejected", id="a pod with a device before its plugin"),
        pytest.param(2, "podresources_allocatable", 0, "allocatable", id="no devices after their plugin"),
    ],
)
def test_a_kubelet_that_does_not_wait_for_late_plugins_is_noticed(step, part, value, message):
    recorded, first = late_plugin_run()
    recorded["steps"][first + step][part] = value if value is None else recorded["steps"][first + value][part]
    run = Run("late plugins")

    replay(recorded, run)

    assert len(run.failures) == 1
    assert run.failures[0].startswith(f"step {first + step} ")
    assert message in run.failures[0]


@pytest.mark.parametrize("plugin_first", [True, False])
def test_pods_and_plugins_come_back_in_the_order_of_the_log(plugin_first):
    made = course(REGISTERS, says(*(device(id_, 2) for id_ in "xyz")))
    admit(made, "first", **{GPU: "3"})
    assert not made.host.ledger.pods
    events = [
        f'"{UPDATED}" resourceName="{GPU}" totalCount=3',
        'pod="default/first-vm" containerName="c" operation="add"',
    ]
    old = [f'"{UPDATED}" resourceName="{GPU}" totalCount=4', 'I1115 manager.go:367] "Starting Device Plugin manager"']

    made.follow(1, RESTART | {"log": old + (events if plugin_first else events[::-1])})

    assert ("first" in made.host.ledger.pods) is plugin_first
    assert made.host.ledger.devices.free[GPU].bit_count() == (0 if plugin_first else 3)


@pytest.mark.parametrize(
    ("op", "calls", "policy", "free"),
    [
        pytest.param("plugin_stop", [STOPS], "none", [], id="a plugin stops"),
        pytest.param("plugin_stop", [STOPS], "single-numa-node", [], id="a plugin stops, and its devices stay known"),
        pytest.param("plugin_start", [REGISTERS, says(device("x", 2))], "none", ["x"], id="a plugin comes back"),
        pytest.param("plugin_stop", [says(device("x", 2)), CLOSED, STOPS], "none", [], id="it repeats its devices"),
        pytest.param("plugin_stop", [STOPS, says(device("x", 2))], "none", [], id="it is known no longer"),
        pytest.param("health", [says(device("x", 2), device("y", 1, "Unhealthy"))], "none", ["x"], id="one is ill"),
    ],
)
def test_devices_come_and_go(op, calls, policy, free):
    made = course(*calls, policy=policy)

    made.follow(1, {"op": op})

    ledger = made.host.ledger.devices
    assert list(ledger.inventories[GPU].names(ledger.free[GPU])) == free
    assert admit(made, **{GPU: "1"}).admitted is bool(free)


def test_a_rejected_pod_is_tried_again_after_a_restart():
    made = course(REGISTERS, says(device("x", 2)))
    admit(made, "first", **{GPU: "3"})
    made.follow(1, RESTART)
    assert not made.host.ledger.pods

    made.recording["plugin_rpc_log"][1]["message"]["devices"] += [device("y", 2), device("z", 2)]
    made.follow(1, RESTART)

    assert made.host.ledger.pods.keys() == {"first"}


def test_a_static_pod_is_critical_and_rejected_with_the_message_for_such():
    made = course()
    admit(made, "first", cpu="6500m")

    rejected = admit(made, cpu="900m")

    assert rejected.rejection.reason == "UnexpectedAdmissionError"
    assert rejected.rejection.message.endswith(
        "no set of running pods found to reclaim resources: [(res: cpu, q: 400), ]"
    )
