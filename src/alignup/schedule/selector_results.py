"""Results of selectors: each is computed once for equal devices, in slices, and within budgets.

An API server accepts selectors that take milliseconds for one device, and a claim can have dozens of them. No namespace
waits for the selectors of others: a slice ends early, the rest is computed in the background, and a claim or namespace
that has used up its time counts as unknown. All budgets fill up again.

Searching devices for claims is limited, too. Claims for which a search tries many combinations, on each of thousands of
nodes, would keep all others waiting for minutes. Most claims need less than ``FREE_SECONDS`` on a node, which does not
count.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from alignup.align.claims.resource_claims import SliceDevice
from alignup.kubernetes.manifests.device_selectors import SelectorError, relevant_values, select

SLICE_SECONDS = 0.05  #: of computing at once; it takes twice as long until the next whole slice
CLAIM_SECONDS, NAMESPACE_SECONDS, PERIOD = 10.0, 60.0, 600.0  #: of computing in a period
SEARCH_SECONDS = 1.0  #: of searching devices in a period, for the claims of a namespace
#: Of a search on a node, and for each of its devices: ten times what one takes for most claims.
FREE_SECONDS, FREE_DEVICE_SECONDS = 0.0005, 0.000_01
MAX_RESULTS = 100_000  #: that are kept
MAX_PAYERS = 4_096  #: claims and namespaces whose budgets are remembered
MAX_PENDING = 10_000  #: selectors on devices of nodes that wait for their slice

Payer = tuple[str, Hashable]  #: the namespace, and the claims of a pod
_Result = TypeVar("_Result")
SEARCHES = "searches"  #: instead of claims, for the budget of a namespace for searches


class PendingSelectorError(SelectorError):
    """A selector is still being evaluated."""


class SelectorBudgetError(SelectorError):
    """The claims, or their namespace, have used up their time."""


@dataclass(slots=True)
class _Budget:
    size: float
    rate: float  #: seconds that are added in a second
    remaining: float
    updated: float
    reported: bool = False  #: since it was last full

    def has_time(self, now: float) -> bool:
        self.remaining = min(self.size, self.remaining + (now - self.updated) * self.rate)
        self.updated = now
        self.reported = self.reported and self.remaining < self.size
        return self.remaining > 0


class SelectorResults:
    """*report* is called with a payer that has used up its time, once until it has all of it again.

    With *pended*, computing is in slices; it is called when something is to be computed in the background.
    """

    def __init__(self, report: Callable[[Payer], object], *, pended: Callable[[], object] | None = None) -> None:
        self.clock: Callable[[], float] = time.monotonic
        self.cpu_clock: Callable[[], float] = time.thread_time  #: for searches, which are too short for another clock
        self._report = report
        self._pended = pended
        self._results: OrderedDict[Hashable, bool | str] = OrderedDict()
        self._budgets: OrderedDict[Payer, _Budget] = OrderedDict()
        size = inf if pended is None else SLICE_SECONDS
        self._slice = _Budget(size, 0.5, size, 0.0)
        self._computed = 0.0  #: seconds of evaluating selectors, which do not count as searching
        self._search_end = inf  #: of the present search, by ``cpu_clock``
        #: payer, selectors and a node → its devices, and how many of them are done
        self._pending: OrderedDict[tuple[Payer, tuple[str, ...], str], tuple[tuple[SliceDevice, ...], int]]
        self._pending = OrderedDict()

    def match(
        self,
        payer: Payer,
        selectors: tuple[str, ...],
        device: SliceDevice,
        *,
        node: str = "",
        devices: tuple[SliceDevice, ...] = (),
    ) -> bool:
        """Return whether all *selectors* match; ``SelectorError`` if that is not known.

        When a slice has ended, the results for all *devices* of a *node* are computed in the background.
        """
        if self._search_end < inf and self.cpu_clock() > self._search_end:
            raise SelectorBudgetError(f"searching devices for its claims takes more than {SEARCH_SECONDS:g} s")
        try:
            return all(self._result(payer, selector, device) for selector in selectors)
        except PendingSelectorError:
            if len(self._pending) < MAX_PENDING and self._pended is not None:
                self._pending.setdefault((payer, selectors, node), (devices, 0))
                self._pended()
            raise

    def search(self, namespace: str, devices: int, find: Callable[[], _Result]) -> _Result:
        """Return what *find* finds among so many *devices*; ``SelectorBudgetError`` if the namespace has no time left.

        Without *pended*, a search takes as long as it takes.
        """
        if self._pended is None:
            return find()
        payer = (namespace, SEARCHES)
        budget = self._budget(payer, SEARCH_SECONDS, now := self.clock())
        self._check(budget, payer, f"searching devices for the claims of namespace {namespace} takes", now)
        start, computed_before = self.cpu_clock(), self._computed
        self._search_end = start + SEARCH_SECONDS
        try:
            return find()
        finally:
            self._search_end = inf
            seconds = self.cpu_clock() - start - (self._computed - computed_before)
            budget.remaining -= max(0.0, seconds - FREE_SECONDS - FREE_DEVICE_SECONDS * devices)

    def compute(self) -> bool:
        """Compute one slice of what is pending; return whether all is done."""
        end = self.clock() + SLICE_SECONDS
        while self._pending:
            key, (devices, done_count) = next(iter(self._pending.items()))
            for index in range(done_count, len(devices)):
                try:
                    all(self._result(key[0], selector, devices[index]) for selector in key[1])
                except SelectorBudgetError:
                    break
                except PendingSelectorError:
                    end = -inf
                except Exception:  # noqa: BLE001, S112 - the next decision gets the reason, whatever it is
                    continue
                if self.clock() > end:  # results that are there take time, too
                    self._pending[key] = (devices, index)
                    return False
            del self._pending[key]
        return True

    def _result(self, payer: Payer, selector: str, device: SliceDevice) -> bool:
        key = (selector, relevant_values(selector, device))
        result = self._results.get(key)
        if result is None:
            start = self.clock()
            budgets = self._budgets_with_time(payer, start)
            try:
                result = select(selector, device)
            except SelectorError as error:  # it takes a millisecond to fail, on thousands of nodes
                result = str(error)
            end = self.clock()
            for budget in budgets:
                budget.remaining -= end - start
                budget.updated = end
            self._computed += end - start
            if len(self._results) >= MAX_RESULTS:
                self._results.popitem(last=False)
            self._results[key] = result
        if isinstance(result, str):
            raise SelectorError(result)
        return result

    def _budgets_with_time(self, payer: Payer, now: float) -> tuple[_Budget, ...]:
        claim, namespace = (
            self._budget(payer, CLAIM_SECONDS, now),
            self._budget((payer[0], None), NAMESPACE_SECONDS, now),
        )
        self._check(claim, payer, "the selectors of these claims take", now)
        self._check(namespace, payer, f"the selectors of the claims of namespace {payer[0]} take", now)
        if not self._slice.has_time(now):
            raise PendingSelectorError("the selectors of its claims are still being evaluated")
        return claim, namespace, self._slice

    def _check(self, budget: _Budget, payer: Payer, subject: str, now: float) -> None:
        if budget.has_time(now):
            return
        if not budget.reported:
            budget.reported = True
            self._report(payer)
        limit = f"{budget.size:g} s of computing in {PERIOD / 60:g} minutes"
        raise SelectorBudgetError(f"{subject} more than {limit}; only the scheduler can tell")

    def _budget(self, payer: Payer, size: float, now: float) -> _Budget:
        if payer not in self._budgets:
            self._budgets[payer] = _Budget(size, size / PERIOD, size, now)
            if len(self._budgets) > MAX_PAYERS:
                self._budgets.popitem(last=False)
        self._budgets.move_to_end(payer)
        return self._budgets[payer]
