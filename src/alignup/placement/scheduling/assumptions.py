"""Pods that nodes count on although their bindings were not observed yet.

    assume → (a binding is written, and observed) → stop
           → (it is certainly not written)        → forget

A node whose state becomes unknown is dropped. When it is known again, it counts on the same pods.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster, RankedHost
from alignup.placement.gang import GangBinding
from alignup.placement.host_record import HostRecord
from alignup.placement.scheduling.facts import ClusterFacts, GangFacts
from alignup.placement.verdict import Verdict

#: Called with a pod and the nodes that count on it from now on; none: it is not placed any more.
PlacedListener = Callable[[Pod, Collection[str]], object]
#: Called with nodes that changed, and whether nothing happened but that pods were assumed there.
ChangedListener = Callable[[Iterable[str], bool], object]


class Assumptions:
    def __init__(
        self, cluster: Cluster, facts: ClusterFacts, *, placed: PlacedListener, changed: ChangedListener
    ) -> None:
        self._cluster = cluster
        self._facts = facts
        self._placed = placed
        self._changed = changed
        self.nodes: dict[str, tuple[str, ...]] = {}  #: uid → node, or several of which it will get one
        self._pods: dict[str, dict[str, Pod]] = {}  #: node → uid → pod
        #: uid → node whose state is unknown → what was known about it last
        self._dropped: dict[str, dict[str, HostRecord]] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self.nodes

    @property
    def hosts(self) -> Collection[str]:
        """The nodes where pods are assumed."""
        return self._pods.keys()

    def on(self, node: str) -> Sequence[Pod]:
        """Return the pods that are assumed on a node."""
        return tuple(self._pods.get(node, {}).values())

    # Questions

    def has_room(self, node: str, pod: Pod) -> bool:
        """Return whether enough is left on a node by its Node object."""
        return not self._facts.insufficient(node, pod, beside=self.on(node))

    def verdict(self, pod: Pod, node: str) -> Verdict:
        """Predict what the kubelet of *node* decides about *pod*."""
        if self._cluster.record(node):
            return self._cluster.verdict(pod, node)
        return self._facts.verdict_without_report(pod, node)

    def rank(self, pod: Pod, nodes: Collection[str], *, limit: int | None = None) -> list[RankedHost]:
        """Return the nodes of *nodes* that admit *pod*, best first, and nodes without a report last."""
        ranked = self._cluster.rank(pod, nodes, limit=limit)
        others = [node for node in self._facts.approximate_nodes if node in nodes]
        verdicts = ((node, self._facts.verdict_without_report(pod, node)) for node in others)
        fitting = [RankedHost(node, verdict.score) for node, verdict in verdicts if verdict.admits and verdict.score]
        return [*ranked, *sorted(fitting, key=lambda ranked: (-ranked.score.total, ranked.host))][:limit]

    def beside(self, gang: GangFacts, *, without: Collection[str] = ()) -> dict[str, GangBinding]:
        """Return the pods of a gang by uid that are bound, or assumed on one node, and that no report contains yet."""
        bindings: dict[str, GangBinding] = {}
        nodes = {uid: self.nodes.get(uid, ()) for uid in gang.waiting}
        nodes |= {uid: (node,) for uid, node in gang.bound.items()}
        for uid, places in nodes.items():
            record = self._cluster.record(places[0]) if len(places) == 1 and uid not in without else None
            binding = record.binding(uid) if record else None
            if binding is not None:
                bindings[uid] = GangBinding(binding.pod, places[0])
        return bindings

    # Changes

    def assume(self, pod: Pod, node: str) -> Verdict:
        """Count on *pod* on *node* from now on, if its kubelet will admit it."""
        has_report = self._cluster.record(node) is not None
        verdict = self._cluster.assume(pod, node) if has_report else self._facts.verdict_without_report(pod, node)
        if verdict.admits:
            with self._all_or_none(pod.uid):
                self._put(pod, (node,))
        return verdict

    def expect(self, pod: Pod, node: str) -> None:
        """Count on *pod*, whatever the kubelet of *node* will decide; if its state is not known, as soon as it is."""
        with self._all_or_none(pod.uid):
            self._cluster.expect(pod, node)
            self._put(pod, (node,))

    def assume_any(self, pod: Pod, nodes: Collection[str]) -> tuple[str, ...]:
        """Count on *pod* on any of *nodes*, and return the nodes that admit the pod; see :meth:`assume`."""
        if len(nodes) == 1:
            return tuple(node for node in nodes if self.assume(pod, node).admits)
        admitting = tuple(node for node in nodes if self._cluster.assume(pod, node, or_elsewhere=True).admits)
        if admitting:
            with self._all_or_none(pod.uid):
                self._put(pod, admitting)
        return admitting

    def adopt(self, pod: Pod, nodes: Collection[str], *, gang: AbstractSet[str]) -> tuple[str, ...]:
        """Count on a pod that was released to *nodes* before, and return the nodes that count on it.

        Its scheduler will bind it there, whatever is predicted now. So every node counts on it unless its state is not
        known, or its kubelet will reject the pod. The pod does not wait until reports contain those of its *gang*.
        """
        several = len(nodes) > 1
        with self._all_or_none(pod.uid):
            counted = tuple(node for node in nodes if self._adopt_on(pod, node, gang=gang, several=several))
            if counted:
                self._put(pod, counted)
        return counted

    def _adopt_on(self, pod: Pod, node: str, *, gang: AbstractSet[str], several: bool) -> bool:
        if self._cluster.record(node) is None:
            return self._facts.verdict_without_report(pod, node).admits
        verdict = self._cluster.assume(pod, node, beside=gang, or_elsewhere=several)
        if not verdict.admits and not verdict.is_rejection:
            self._cluster.expect(pod, node, or_elsewhere=several)
        return not verdict.is_rejection

    @contextmanager
    def _all_or_none(self, *uids: str) -> Iterator[None]:
        """Count on none of these pods if something unexpected happens."""
        try:
            yield
        except Exception:
            for uid in uids:
                self._cluster.forget(uid)
                self.stop(uid)
            raise

    def assume_gang(
        self, bindings: Sequence[GangBinding], *, beside: Sequence[GangBinding] = ()
    ) -> tuple[Verdict, ...]:
        """Count on all pods of a gang from now on, in this order, or on none of them; see ``Cluster.assume_gang``.

        Pods that were assumed before are decided again; the pods *beside* them stay as they are. The
        verdicts of these are the first. All nodes must have reports.
        """
        nodes_before = {pod.uid: nodes for pod, _ in bindings if (nodes := self.stop(pod.uid))}
        for uid in nodes_before:
            self._cluster.forget(uid)
        verdicts = self._cluster.assume_gang([*beside, *bindings])
        admitted = bool(verdicts) and verdicts[-1].admits
        hosts = {host for _, host in bindings}
        given_back = [node for nodes in nodes_before.values() for node in nodes if not admitted or node not in hosts]
        with self._all_or_none(*(pod.uid for pod, _ in bindings)):
            for pod, host in bindings:
                if admitted:
                    self._put(pod, (host,))
                else:
                    self._placed(pod, ())
            self._changed(given_back, False)  # noqa: FBT003 - see ChangedListener
        return verdicts

    def withdraw(self, pods: Iterable[Pod]) -> None:
        """Let no node count on *pods* while a gang is decided again; :meth:`assume_gang` must follow."""
        for pod in pods:
            self._cluster.forget(pod.uid)
            self._placed(pod, ())

    def _put(self, pod: Pod, nodes: tuple[str, ...]) -> None:
        if self.nodes.get(pod.uid) != nodes:  # else its place in the order stays
            self.stop(pod.uid)
        self.nodes[pod.uid] = nodes
        for node in nodes:
            self._pods.setdefault(node, {})[pod.uid] = pod
        self._placed(pod, nodes)
        self._changed(nodes, True)  # noqa: FBT003

    def forget(self, uid: str) -> None:
        """Forget an assumed pod that was not bound; do nothing if its binding was observed."""
        self._cluster.forget(uid)  # first, and always: an earlier try may have failed
        pod = next((pods[uid] for node in self.nodes.get(uid, ()) if uid in (pods := self._pods[node])), None)
        if pod is not None:
            nodes = self.stop(uid)
            self._placed(pod, ())
            self._changed(nodes, False)  # noqa: FBT003

    def stop(self, uid: str) -> tuple[str, ...]:
        """Note that the binding of a pod was observed; return the nodes where it was assumed until now."""
        self._dropped.pop(uid, None)
        nodes = self.nodes.pop(uid, ())
        for node in nodes:
            del self._pods[node][uid]
            if not self._pods[node]:
                del self._pods[node]
        return nodes

    # Nodes whose state is unknown for a while

    def drop_host(self, record: HostRecord) -> None:
        """Remember the pods that are assumed on a host whose state is no longer known."""
        self.remember_host(record, [binding.uid for binding in record.bindings if binding.uid in self.nodes])

    def remember_host(self, record: HostRecord, uids: Iterable[str]) -> None:
        for uid in uids:
            self._dropped.setdefault(uid, {})[record.name] = record

    def dropped(self) -> list[tuple[HostRecord, tuple[str, ...]]]:
        """Return what was known of hosts whose state is unknown, with the uids of pods that are assumed there."""
        records = {record.name: record for records in self._dropped.values() for record in records.values()}
        return [
            (record, tuple(uid for uid, records in self._dropped.items() if name in records))
            for name, record in records.items()
        ]

    def restore_host(self, name: str) -> None:
        """Count again on the pods that were assumed on a host before its state was known."""
        dropped_records = {uid: records.pop(name) for uid, records in self._dropped.items() if name in records}
        self._dropped = {uid: records for uid, records in self._dropped.items() if records}
        if dropped_records:
            uids = [uid for uid in dropped_records if name in self.nodes[uid]]
            self._cluster.restore(next(iter(dropped_records.values())), uids)
        record = self._cluster.record(name)
        for pod in [pod for pod in self.on(name) if record and not record.holds(pod.uid)]:
            several = len(self.nodes[pod.uid]) > 1
            if not self._cluster.assume(pod, name, or_elsewhere=several).admits and not several:
                self._cluster.expect(pod, name)
