"""Which devices claims can get, as the scheduler allocates them.

The scheduler visits pools in random order, so only it knows which of several suitable devices a claim will get.
"""

from collections.abc import Callable, Collection, Hashable, Sequence

from alignup.align.claims.resource_claims import AllocatedDevice, Claim, ClaimRequest, DeviceId, SliceDevice
from alignup.align.errors import AlignError, WorkLimitError

MAX_STEPS = 100_000  #: devices that an allocation tries
MAX_RESULTS = 32  #: devices of a claim, as in Kubernetes
MAX_DEVICES = 150  #: of all claims together; the search needs some levels of Python's stack for each

#: Whether a device matches the selectors of a request and its class.
Matches = Callable[[ClaimRequest, SliceDevice], bool]


def allocate(
    claims: Sequence[Claim],
    devices: Sequence[SliceDevice],
    *,
    matches: Matches,
    taken_ids: Collection[DeviceId] = (),
) -> tuple[tuple[AllocatedDevice, ...], ...] | None:
    """Return devices for each of *claims*, as the scheduler could allocate them; ``None``: there are none.

    *devices* are the devices that the host can use. ``WorkLimitError`` if too many combinations would have to be tried.
    """
    search = _Search(claims, devices, matches, set(taken_ids))
    return search.result() if search.allocate(0, 0) else None


def is_available(device: SliceDevice, request: ClaimRequest, taken_ids: Collection[DeviceId]) -> bool:
    """Return whether *request* can get *device*, if the device matches, while other claims have *taken_ids*."""
    free = device.id not in taken_ids or device.shared or request.admin_access
    return free and all(any(toleration.covers(taint) for toleration in request.tolerations) for taint in device.taints)


class _Search:
    """A depth-first search for devices: claim by claim, request by request, device by device.

    Where a device has not led to a result, devices that match the same requests, and agree with it in everything that
    constraints compare, are not tried: they would not either.
    """

    def __init__(
        self, claims: Sequence[Claim], devices: Sequence[SliceDevice], matches: Matches, taken_ids: set[DeviceId]
    ) -> None:
        self._claims = claims
        self._devices = devices
        self._matches = matches
        self._taken_ids = taken_ids
        self._chosen: list[list[tuple[str, SliceDevice]]] = [[] for _ in claims]
        self._candidates: dict[tuple[int, int, int], tuple[SliceDevice, ...]] = {}
        self._requests = [alternative for claim in claims for request in claim.requests for alternative in request]
        self._compared = sorted({attribute for claim in claims for attribute, _ in claim.constraints})
        self._kinds: dict[DeviceId, Hashable] = {}
        self._steps = 0

    def result(self) -> tuple[tuple[AllocatedDevice, ...], ...]:
        return tuple(tuple(AllocatedDevice(request, device.id) for request, device in pairs) for pairs in self._chosen)

    def allocate(self, claim: int, request: int) -> bool:
        """Allocate devices for the requests of the claims from this one on."""
        if claim == len(self._claims):
            return True
        if request == len(self._claims[claim].requests):
            return self.allocate(claim + 1, 0)
        return any(
            self._allocate_alternative(claim, request, alternative, 0, 0)
            for alternative in range(len(self._claims[claim].requests[request]))
        )

    def _allocate_alternative(self, claim: int, request: int, alternative: int, start: int, count: int) -> bool:
        choice = self._claims[claim].requests[request][alternative]
        candidates = self._candidates_of(claim, request, alternative)
        needed_count = len(candidates) if choice.count is None else choice.count
        if not candidates:
            return needed_count == 0 and choice.count is not None and self.allocate(claim, request + 1)
        if count == needed_count:
            return self.allocate(claim, request + 1)
        if len(self._chosen[claim]) + needed_count - count > MAX_RESULTS:
            return False
        last = start + 1 if choice.count is None else len(candidates)  # all devices: each must be free
        tried_kinds: set[Hashable] = set()
        for index in range(start, last):
            device = candidates[index]
            self._count_step()
            if not is_available(device, choice, self._taken_ids) or (kind := self._kind_of(device)) in tried_kinds:
                continue
            tried_kinds.add(kind)
            if not self._satisfies(claim, choice.name, device):
                continue
            self._chosen[claim].append((choice.name, device))
            if exclusive := not choice.admin_access and not device.shared:
                self._taken_ids.add(device.id)
            if self._allocate_alternative(claim, request, alternative, index + 1, count + 1):
                return True
            self._chosen[claim].pop()
            if exclusive:
                self._taken_ids.discard(device.id)
        return False

    def _count_step(self) -> None:
        self._steps += 1
        problem = ""
        if self._steps > MAX_STEPS:
            problem = f"no devices for the claims were found within {MAX_STEPS} steps"
        elif sum(map(len, self._chosen)) >= MAX_DEVICES:
            problem = f"more than {MAX_DEVICES} devices of a pod are not decided"
        if problem:
            raise WorkLimitError(problem, sources=[claim.title for claim in self._claims])

    def _candidates_of(self, claim: int, request: int, alternative: int) -> tuple[SliceDevice, ...]:
        key = (claim, request, alternative)
        if key not in self._candidates:
            choice = self._claims[claim].requests[request][alternative]
            self._candidates[key] = tuple([device for device in self._devices if self._matches(choice, device)])
        return self._candidates[key]

    def _kind_of(self, device: SliceDevice) -> Hashable:
        """Return what a device and all that can take its place have in common."""
        if device.id not in self._kinds:
            attributes = tuple([device.attributes.get(attribute) for attribute in self._compared])
            try:
                suits = [
                    is_available(device, alternative, ()) and self._matches(alternative, device)
                    for alternative in self._requests
                ]
                self._kinds[device.id] = tuple(suits), attributes, device.shared
            except AlignError:  # of a selector that may never be needed
                self._kinds[device.id] = device.id
        return self._kinds[device.id]

    def _satisfies(self, claim: int, request: str, device: SliceDevice) -> bool:
        for attribute, requests in self._claims[claim].constraints:
            if not applies(requests, request):
                continue
            if attribute not in device.attributes:
                return False
            for other_request, other in self._chosen[claim]:
                if applies(requests, other_request) and other.attributes[attribute] != device.attributes[attribute]:
                    return False
        return True


def applies(requests: frozenset[str], request: str) -> bool:
    """Return whether a constraint on *requests* is about *request*, or about an alternative of a request."""
    return not requests or request in requests or request.partition("/")[0] in requests
