"""Predict what a kubelet decides, with everything that it or its device plugins choose at random.

A :class:`Decision` names one choice of devices. The prediction adds all others (``Decision.possible``). Where the next
container of the pod goes can depend on the choice, so the pod is decided on once for each number of devices by NUMA
node that a container may get. If only some of these admit the pod, it may be rejected.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any

from alignup.align.admit import AdmissionRules, decide, effective_policy
from alignup.align.decision import Decision, PossibleDevices, Rejection
from alignup.align.devices.choices import DeviceChoices, Pool
from alignup.align.devices.hints import natural_sort_key
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.devices.provider import CRASHED
from alignup.align.errors import ProviderError
from alignup.align.hint import Provider
from alignup.align.ledger import Ledger
from alignup.align.settings import Policy
from alignup.align.workload import Pod

MAX_DECISIONS = 32  #: on one pod

_Chosen = dict[str, tuple[str, ...]]  #: resource → devices


def predict(pod: Pod, ledger: Ledger, *, providers: Sequence[Provider[Any]], rules: AdmissionRules) -> Decision:
    """Decide on *pod* as its kubelet does; the first of *providers* is the provider of devices."""
    matters = effective_policy(pod, rules)[0] is not Policy.NONE
    search = _Search(ledger.devices, pod.all_containers[-1].name if matters else None)
    providers_with_chooser = (replace(providers[0], chooser=search.choose), *providers[1:])  # type: ignore[type-var]
    decisions = [decide(pod, ledger, providers=providers_with_chooser, rules=rules)]
    if not search.choices:
        return decisions[0]
    while len(decisions) < MAX_DECISIONS and search.start_next():
        decisions.append(decide(pod, ledger, providers=providers_with_chooser, rules=rules))
    admissions = [decision for decision in decisions if decision.admitted]
    rejections = [decision.rejection for decision in decisions if decision.rejection]
    rejections += [_crash(choices) for choices in search.choices.values() if choices.crashes]
    possible = PossibleDevices(
        rejection=rejections[0] if rejections and admissions else None,
        variants=tuple([decision.placements for decision in admissions[1:]]),
        complete=not search.start_next(),
    )
    decision, choices = (admissions or decisions)[0], search.possible_choices()
    placements = [
        replace(
            placement,
            choices={choice.resource: choice for choice in choices if choice.container == placement.container},
        )
        for placement in decision.placements
    ]
    return replace(decision, placements=tuple(placements), possible=possible)


@dataclass(eq=False)
class _Search:
    """A depth-first search: each decision repeats the choices before the last choice that has another alternative."""

    devices: DeviceLedger
    last: str | None  #: the last container, whose choice changes nothing; ``None``: no choice changes anything
    choices: dict[tuple[str, str], DeviceChoices] = field(default_factory=dict)  #: by container and resource
    _path: list[int] = field(default_factory=list)  #: the alternative of each container
    _widths: list[int] = field(default_factory=list)  #: how many there are
    _step: int = 0  #: the number of containers that have been chosen for in this decision

    def start_next(self) -> bool:
        """Begin the next decision; return whether there is one."""
        while self._path and self._path[-1] + 1 >= self._widths[-1]:
            self._path.pop()
            self._widths.pop()
        if self._path:
            self._path[-1] += 1
        self._step = 0
        return bool(self._path)

    def choose(self, _uid: str, choices: Sequence[DeviceChoices]) -> _Chosen:
        for choice in choices:
            key = choice.container, choice.resource
            earlier = self.choices.get(key)
            self.choices[key] = choice if earlier is None else _merge(earlier, choice)
        if self.last is None or choices[0].container == self.last:
            return {choice.resource: choice.first() for choice in choices}
        alternatives = self._alternatives(choices)
        if self._step == len(self._path):
            self._path.append(0)
            self._widths.append(len(alternatives))
        alternative = alternatives[self._path[self._step]]
        self._step += 1
        return alternative

    def _alternatives(self, choices: Sequence[DeviceChoices]) -> list[_Chosen]:
        most = MAX_DECISIONS + 1  # one more than is tried, so that it is known to be left out
        by_resource = []
        for choice in choices:
            inventory = self.devices.inventories[choice.resource]
            nodes = {device.id: device.nodes for device in inventory.devices}
            by_resource.append(choice.representatives(nodes.__getitem__, most))
        resources = [choice.resource for choice in choices]
        entries = islice(product(*by_resource), most)
        return [dict(zip(resources, entry, strict=True)) for entry in entries]

    def possible_choices(self) -> tuple[DeviceChoices, ...]:
        """Return the choices of all containers. A later container may get whatever an earlier one leaves."""
        result: list[DeviceChoices] = []
        for choice in self.choices.values():
            earlier = [other for other in result if other.resource == choice.resource and not other.is_certain]
            if earlier:
                every = sorted({id_ for other in (*earlier, choice) for id_ in other.ids}, key=natural_sort_key)
                size = sum(pool.take for pool in choice.options[0])
                note = f"depends on the devices of {' and '.join(other.container for other in earlier)}"
                result.append(replace(choice, options=((Pool(size, tuple(every)),),), notes=(*choice.notes, note)))
            else:
                result.append(choice)
        return tuple(result)


def _merge(first: DeviceChoices, second: DeviceChoices) -> DeviceChoices:
    return replace(
        first,
        options=tuple(dict.fromkeys((*first.options, *second.options))),
        crashes=first.crashes or second.crashes,
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
    )


def _crash(choices: DeviceChoices) -> Rejection:
    error = ProviderError(f"device plugin GetPreferredAllocation rpc failed with err: {CRASHED}")
    return Rejection(error.reason, error.message, container=choices.container, provider=DeviceLedger.PROVIDER)
