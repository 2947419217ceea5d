"""The gauges of a kubelet's CPU manager: added up to 1.37, and read from the state since 1.38."""

from alignup.align import bits
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.release import Release


class KubeletGauges:
    """The gauges after a start on a ledger; tell it about each allocation and release."""

    def __init__(self, release: Release, ledger: CpuLedger) -> None:
        self.release, self.ledger = release, ledger
        self.totals = (0, 0)  #: exclusive_cpu_allocation_count and shared_pool_size_millicores
        self.per_node: dict[int, int] = {}
        self._read_state()

    def allocated(self, ledger: CpuLedger, uid: str, container: str) -> None:
        """Count what a container has got; up to 1.37, reused CPUs count again."""
        count = (ledger.holds(uid, container) or 0).bit_count()
        self._change(ledger, count)

    def released(self, ledger: CpuLedger) -> None:
        self._change(ledger, self.ledger.shared.bit_count() - ledger.shared.bit_count())

    def _change(self, ledger: CpuLedger, count: int) -> None:
        exclusive, shared = self.totals
        self.ledger = ledger
        self._read_state()
        if not self.release.gauges_show_state:
            self.totals = (exclusive + count, shared - 1000 * count)

    def _read_state(self) -> None:
        ledger = self.ledger
        taken = bits.union(map(ledger.owned, {*ledger.held, *ledger.pod_held}))
        self.totals = (taken.bit_count(), 1000 * ledger.available.bit_count())
        for node, cpus in ledger.node_cpus.items():
            if count := (cpus & taken).bit_count():
                self.per_node[node] = count
            elif self.release.gauges_show_state:
                self.per_node[node] = 0
