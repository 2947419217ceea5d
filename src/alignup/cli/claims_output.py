"""Claims of pods in ``why``, ``cluster why`` and ``simulate``: their devices, and whether CPUs are beside them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from alignup.align import bits
from alignup.align.claims.alignment import ExplainedClaim, HostClaims, place_devices
from alignup.align.claims.resource_claims import ClaimRequest, Slice, SliceDevice, usable_devices
from alignup.align.machine import Machine
from alignup.cli import inputs, terminal
from alignup.cli.app import NOWHERE, InputError
from alignup.cli.layout import paragraph, section
from alignup.kubernetes.manifests.claims import read_objects
from alignup.kubernetes.manifests.device_selectors import FailingSelectorError, FileSelectors, LongSelectorError
from alignup.kubernetes.manifests.workloads import LoadedWorkloads
from alignup.picture.text_format import Line
from alignup.simulate.cluster_hosts import HostGroup

_GIVE_OBJECTS = "Give the objects as kubectl get -o yaml prints them."
_MAX_DEVICES = 8  #: devices of one claim that are listed
_MAX_ATTRIBUTES = 4  #: attributes of a device that are listed


def read_claims(manifests: LoadedWorkloads, machine: Machine) -> HostClaims:
    """Return the claims, classes and slices of *manifests*, whose slices belong to one node."""
    with inputs.input_errors(NOWHERE, advice=_GIVE_OBJECTS):
        claim_objects = read_objects(manifests.claims)
    hosts = sorted({slice_.host for slice_ in claim_objects.slices if slice_.host})
    if len(hosts) > 1:
        advice = "Give those of one node: kubectl get resourceslices --field-selector spec.nodeName=NODE"
        raise InputError(f"the ResourceSlices belong to several nodes: {', '.join(hosts)}", advice=advice)
    notes = list(claim_objects.notes)
    devices = _usable(claim_objects.slices, machine, notes)
    terminal.print_notes(notes)
    return HostClaims(claim_objects.objects, devices, FileSelectors(claim_objects.objects))


def with_valid_selectors(claims: HostClaims) -> HostClaims:
    """Return *claims* where a selector that fails or takes too long is an error: in a file it can be changed."""

    def match(request: ClaimRequest, device: SliceDevice) -> bool:
        try:
            return claims.matches(request, device)
        except (FailingSelectorError, LongSelectorError) as error:
            change = "Shorten" if isinstance(error, LongSelectorError) else "Correct"
            subject = f"the selectors of request {request.name}, or those of DeviceClass {request.device_class}"
            raise InputError(str(error), advice=f"{change} {subject}.") from None

    return claims._replace(matches=match)


def claims_of_groups(manifests: LoadedWorkloads, groups: Sequence[HostGroup]) -> tuple[HostGroup, ...]:
    """Return *groups* with the devices of the slices of *manifests*.

    A slice is for the group that its nodeName names, and for every group without one. Of a single group, the slices of
    any one node describe each node.
    """
    with inputs.input_errors(NOWHERE, advice=_GIVE_OBJECTS):
        claim_objects = read_objects(manifests.claims)
    hosts = {slice_.host for slice_ in claim_objects.slices if slice_.host}
    names = {group.name for group in groups}
    if (unknown_hosts := sorted(hosts - names)) and (len(groups) > 1 or len(hosts) > 1):
        group_names = ", ".join(unknown_hosts)
        advice = f"Name a group of the cluster in nodeName: {', '.join(sorted(names))}."
        raise InputError(f"the ResourceSlices belong to nodes that are no groups: {group_names}", advice=advice)
    notes = list(claim_objects.notes)
    described_groups = []
    for group in groups:
        node_names = {"", group.name, *(hosts if len(groups) == 1 else ())}
        devices = _usable(
            tuple(slice_ for slice_ in claim_objects.slices if slice_.host in node_names), group.machine, notes
        )
        described_groups.append(
            replace(group, claims=HostClaims(claim_objects.objects, devices, FileSelectors(claim_objects.objects)))
        )
    terminal.print_notes(tuple(dict.fromkeys(notes)))
    return tuple(described_groups)


def _usable(slices: Sequence[Slice], machine: Machine, notes: list[str]) -> tuple[SliceDevice, ...]:
    """Return the devices of *slices* on a machine; what is wrong with them is added to *notes*."""
    usable, problems = usable_devices(slices)
    devices, wrong = place_devices(usable, machine)
    notes += (*problems, *wrong)
    return devices


def claim_lines(claims: Sequence[ExplainedClaim]) -> Iterator[Line]:
    """Yield a section on the claims of a pod."""
    yield from section("Claims", caption="The kubelet aligns nothing with the devices of claims.")
    for claim in claims:
        state = claim.state
        title = f"claim {state.claim.title}" if state.claim else "unknown claim"
        status = "" if state.claim is None else ", allocated" if state.allocated else ", not allocated yet"
        yield from paragraph(f"{state.name}: {title}{status}", prefix="  - ")
        for request, device in state.devices[:_MAX_DEVICES]:
            yield from paragraph(f"{request}: {_describe_device(device)}", prefix="      ")
        if (more := len(state.devices) - _MAX_DEVICES) > 0:
            yield from paragraph(f"and {more} more", prefix="      ")
        if state.problem:
            yield from paragraph(state.problem, prefix="    ! ", style="warn")
        if sentence := claim.sentence():
            yield from paragraph(sentence, prefix="    → ", style="warn" if claim.aligned is False else "")
        if remedy := claim.remedy():
            yield from paragraph(f"To align it: {remedy} (tried)", prefix="      ")


def _describe_device(device: SliceDevice) -> str:
    location = "NUMA node unknown" if device.nodes is None else f"NUMA node {bits.show(device.nodes)}"
    attributes = [
        f"{name.rpartition('/')[2]}={value}"
        for name, value in sorted(device.attributes.items())
        if name.startswith(f"{device.id.driver}/")
    ]
    parts = [
        device.id.device,
        location,
        f"driver {device.id.driver}",
        f"pool {device.id.pool}",
        *attributes[:_MAX_ATTRIBUTES],
    ]
    return " · ".join(parts)
