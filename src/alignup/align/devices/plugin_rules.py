"""Which devices a device plugin prefers (GetPreferredAllocation), by the rule of its vendor.

A rule is known by the resource name, or by the configuration. Where a rule needs links between devices that are not
known of the machine, any choice is possible. Plugins without a rule may prefer anything.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations, product
from types import MappingProxyType
from typing import NamedTuple

from alignup.align.bits import quote
from alignup.align.devices import amd_rule, nvidia_rule
from alignup.align.devices.choices import Option, Pool
from alignup.align.errors import SettingsError
from alignup.align.locality import Level, LinkKind, Locality
from alignup.align.machine import Machine

REPLICA = "::"  #: between the id of a shared GPU and the number of the replica, in ids of NVIDIA's plugin
MIG = "MIG-"  #: how the ids of NVIDIA's partitions begin
MAX_OPTIONS = 10_000  #: with more, any choice counts as possible

UNKNOWN_LINKS = "the links between the devices are not known, so any choice counts as possible"
NO_NVSWITCH = "NVIDIA's device plugin does not see NVSwitch: it compares PCIe levels only"
MAY_CRASH = "NVIDIA's device plugin may crash here: a rest of fewer GPUs than requested can win"
OVERWRITTEN = "NVIDIA's device plugin chooses wrongly with so many free GPUs: it overwrites the best sets it found"
TOO_MANY = f"more than {MAX_OPTIONS} ways to choose"
_SLOW = 1.0  #: seconds
_MAX_ANSWERS = 1024  #: that are kept: pods ask the same again and again


class PluginRule(StrEnum):
    ANY = "any"
    NVIDIA = "nvidia"
    NVIDIA_PACKED = "nvidia-packed"
    AMD = "amd"
    INTEL = "intel"
    INTEL_BALANCED = "intel-balanced"
    INTEL_PACKED = "intel-packed"

    @classmethod
    def _missing_(cls, value: object) -> None:
        rules = ", ".join(cls)
        raise SettingsError(f"unknown rule of a device plugin: {quote(str(value))}; known rules: {rules}")


#: Rules that depend on where devices are, and on the links between them.
NEEDS_LINKS = frozenset({PluginRule.NVIDIA, PluginRule.NVIDIA_PACKED, PluginRule.AMD})

#: How the names of resources begin, and the rule of their plugin.
KNOWN_RULES: Mapping[str, PluginRule] = MappingProxyType(
    {
        "nvidia.com/gpu": PluginRule.NVIDIA,
        "nvidia.com/mig-": PluginRule.NVIDIA,
        "amd.com/gpu": PluginRule.AMD,
        "gpu.intel.com/": PluginRule.INTEL,
    }
)


class PreferredSets(NamedTuple):
    """What a plugin may answer."""

    options: tuple[Option, ...]  #: each with the devices that must be included; none: it only crashes, or all may be
    crashes: bool = False
    notes: tuple[str, ...] = ()


class _Question(NamedTuple):
    every: tuple[str, ...]  #: all devices of the resource
    available: tuple[str, ...]
    required: tuple[str, ...]
    size: int


@dataclass(frozen=True, eq=False)
class PluginRules:
    """The rules of a host's device plugins."""

    rules: Mapping[str, PluginRule] = field(default_factory=dict)  #: by resource
    by_name: bool = True  #: whether other resources have the rule that their name tells
    machine: Machine | None = None  #: with the links between its devices; ``None``: unknown
    _answers: dict[tuple[PluginRule, _Question], PreferredSets | None] = field(default_factory=dict)

    def rule(self, resource: str) -> PluginRule:
        rule = self.rules.get(resource)
        if rule is None and self.by_name:
            rule = next((rule for prefix, rule in KNOWN_RULES.items() if resource.startswith(prefix)), None)
        return rule or PluginRule.ANY

    def preferred(
        self, rule: PluginRule, *, every: Sequence[str], available: Sequence[str], required: Sequence[str], size: int
    ) -> PreferredSets | None:
        """Return what the plugin may answer; without options: anything."""
        question = _Question(tuple(every), tuple(available), tuple(required), size)
        key = (rule, question)
        if key not in self._answers:
            if len(self._answers) >= _MAX_ANSWERS:
                self._answers.clear()
            self._answers[key] = self._ask(rule, question)
        return self._answers[key]

    def _ask(self, rule: PluginRule, question: _Question) -> PreferredSets | None:
        match rule:
            case PluginRule.NVIDIA | PluginRule.NVIDIA_PACKED:
                if any(REPLICA in id_ for id_ in question.available) or question.every[0].startswith(MIG):
                    return _limited(_replicas(question, packed=rule is PluginRule.NVIDIA_PACKED))
                return self._nvidia(question)
            case PluginRule.AMD:
                return self._amd(question)
            case PluginRule.INTEL:
                return _limited(_spread_over_cards(question))
            case PluginRule.INTEL_BALANCED:
                return PreferredSets(_certain(_balanced(question)))
            case PluginRule.INTEL_PACKED:
                return PreferredSets(_certain(sorted(question.available)[: question.size]))
        return None

    def _addresses(self, ids: Sequence[str]) -> tuple[Locality, dict[str, str]] | None:
        """Return the PCI address of each device; ``None`` if one is unknown, or whether there are links beside PCIe."""
        machine = self.machine
        if machine is None or not machine.pci:
            return None
        entries = {id_: address for id_ in ids if (address := machine.locality.find(id_))}
        stated_pairs = {frozenset(level.devices) for level in machine.stated_levels}
        pairs = combinations(entries.values(), 2)
        if len(entries) < len(ids) or not (machine.links or all(frozenset(pair) in stated_pairs for pair in pairs)):
            return None
        return machine.locality, entries

    def _nvidia(self, question: _Question) -> PreferredSets:
        """Return the best-effort policy's answers; for one GPU it needs no links."""
        ids, size = question.available, question.size
        notes = []
        seconds = nvidia_rule.count_partitions(len(ids), size) / nvidia_rule.PARTITIONS_PER_SECOND if size > 1 else 0.0
        if seconds >= _SLOW:
            notes.append(f"NVIDIA's device plugin needs about {seconds:.0f} s for this choice")
        start, end = nvidia_rule.overwritten_sets(len(ids), size)
        scores: nvidia_rule.PairScores | None = [] if size == 1 else None
        known_addresses = self._addresses(ids) if size > 1 else None
        if known_addresses:
            locality, addresses = known_addresses
            if any(
                (link := locality.link(addresses[a], addresses[b])) and link.kind is LinkKind.NVSWITCH
                for a, b in combinations(ids, 2)
            ):
                notes.append(NO_NVSWITCH)
            scores = _nvidia_scores(locality, [addresses[id_] for id_ in ids])
        if start < end and size > 1:
            return PreferredSets((), notes=(*notes, OVERWRITTEN))
        if scores is not None and not nvidia_rule.is_comparable(len(ids), size):
            return PreferredSets((), notes=(*notes, TOO_MANY))
        required_indexes = [ids.index(id_) for id_ in question.required]
        answers = (
            None
            if scores is None
            else nvidia_rule.possible_answers(scores, range(len(ids)), required=required_indexes, size=size)
        )
        if answers is None:
            return PreferredSets((), notes=(*notes, UNKNOWN_LINKS))
        options = [
            tuple([Pool(count, tuple([ids[gpu] for gpu in gpus])) for count, gpus in picks]) for picks in answers.picks
        ]
        crash_notes = (MAY_CRASH,) if answers.crashes else ()
        if len(options) > MAX_OPTIONS:
            return PreferredSets((), notes=(*notes, *crash_notes, TOO_MANY))
        return PreferredSets(tuple(options), answers.crashes, (*notes, *crash_notes))

    def _amd(self, question: _Question) -> PreferredSets:
        """Return the one answer; it does not depend on the order. Links of partitions are not known."""
        known_addresses = self._addresses(question.every)
        if len(question.available) == question.size:
            return PreferredSets(_certain(question.available))
        if known_addresses is None:
            return PreferredSets((), notes=(UNKNOWN_LINKS,))
        locality, addresses = known_addresses
        links = _amd_links(locality, [addresses[id_] for id_ in question.every])
        numa_nodes = [locality.pci[addresses[id_]].node for id_ in question.every]
        if None in numa_nodes:
            return PreferredSets((), notes=(UNKNOWN_LINKS,))
        devices = [
            amd_rule.AmdDevice(id_, number, numa_nodes[number] or 0, addresses[id_])
            for number, id_ in enumerate(question.every)
        ]
        weights = amd_rule.pair_weights(devices, links)
        ids = amd_rule.answer(devices, weights, question.available, required=question.required, size=question.size)
        return PreferredSets(_certain(ids))


def _nvidia_scores(locality: Locality, addresses: Sequence[str]) -> nvidia_rule.PairScores | None:
    """Return the scores of all pairs; ``None`` if a level is unknown."""
    scores = [[0] * len(addresses) for _ in addresses]
    for (i, a), (j, b) in combinations(enumerate(addresses), 2):
        level = locality.level(a, b)
        if level is None or level is Level.PHB_OR_NODE:
            return None
        links = [level.value]
        if (link := locality.link(a, b)) and link.kind is LinkKind.NVLINK:
            links.append(str(link))
        scores[i][j] = scores[j][i] = nvidia_rule.pair_score(links)
    return scores


def _amd_links(locality: Locality, addresses: Sequence[str]) -> dict[amd_rule.Pair, int]:
    links = {}
    for (i, a), (j, b) in combinations(enumerate(addresses), 2):
        link = locality.link(a, b)
        is_xgmi = link is not None and link.kind is LinkKind.XGMI
        links[frozenset((i, j))] = amd_rule.XGMI if is_xgmi else amd_rule.PCIE
    return links


def _certain(ids: Sequence[str]) -> tuple[Option, ...]:
    return ((Pool(len(ids), tuple(ids)),),)


def _limited(options: Iterator[Option]) -> PreferredSets:
    """Return *options*; if there are too many, anything counts as possible."""
    entries: list[Option] = []
    for option in options:
        entries.append(option)
        if len(entries) > MAX_OPTIONS:
            return PreferredSets((), notes=(TOO_MANY,))
    return PreferredSets(tuple(entries))


def _by_card(ids: Sequence[str], separator: str) -> dict[str, list[str]]:
    cards: dict[str, list[str]] = {}
    for id_ in ids:
        cards.setdefault(id_.split(separator)[0], []).append(id_)
    return cards


def _replicas(question: _Question, *, packed: bool) -> Iterator[Option]:
    """Yield the ways to take replicas one by one: of the GPU with the fewest in use, or if *packed*, with the most.

    Among equals the GPU that this request has taken the least of comes first; ties are decided at random.
    """
    candidates = _by_card([id_ for id_ in question.available if id_ not in question.required], REPLICA)
    total = {gpu: len(ids) for gpu, ids in _by_card(question.every, REPLICA).items()}
    required_replicas = _by_card(question.required, REPLICA)
    gpus = sorted(candidates)
    sign = -1 if packed else 1
    counts = {(0,) * len(gpus)}
    for _ in range(question.size - len(question.required)):
        next_sets = set()
        for replicas in counts:
            ranks = {}
            for index, gpu in enumerate(gpus):
                if replicas[index] < len(candidates[gpu]):
                    in_use = total[gpu] - len(candidates[gpu]) + replicas[index]
                    ranks[index] = (sign * in_use, replicas[index] + len(required_replicas.get(gpu, ())))
            best = min(ranks.values(), default=None)
            for index, rank in ranks.items():
                if rank == best:
                    next_sets.add((*replicas[:index], replicas[index] + 1, *replicas[index + 1 :]))
        counts = next_sets
        if len(counts) > MAX_OPTIONS:
            break
    must = tuple([Pool(1, (id_,)) for id_ in question.required])
    for replicas in sorted(counts, reverse=True):
        pools = [Pool(count, tuple(candidates[gpu])) for gpu, count in zip(gpus, replicas, strict=True) if count]
        yield (*must, *pools)


def _spread_over_cards(question: _Question) -> Iterator[Option]:
    """Yield what Intel's plugin may take without a policy: as many different cards as possible, in random order."""
    cards = list(_by_card(question.available, "-").values())
    if all(len(card) == 1 for card in cards):
        yield (Pool(question.size, question.available),)
        return
    if question.size <= len(cards):
        for combination in combinations(cards, question.size):
            yield tuple([Pool(1, tuple(card)) for card in combination])
        return
    for counts in product(*[range(1, len(card) + 1) for card in cards]):
        if sum(counts) == question.size:
            yield tuple([Pool(count, tuple(card)) for count, card in zip(counts, cards, strict=True)])


def _balanced(question: _Question) -> list[str]:
    """Return what Intel's plugin takes if balanced: each time of the card with the most free shares."""
    cards = {name: sorted(card) for name, card in sorted(_by_card(question.available, "-").items())}
    ids = []
    for _ in range(question.size):
        card = max(cards.values(), key=len)
        ids.append(card.pop(0))
    return ids
