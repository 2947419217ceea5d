"""The sockets of device plugins and of PodResources, and what comes and goes there."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from alignup.agent import hardware
from alignup.agent.desk import Desk
from alignup.agent.errands import Errands
from alignup.align.machine import Device
from alignup.plugins.exchange import Exchange
from alignup.plugins.holdings import HostBooks
from alignup.plugins.pod_resources import pod_resources
from alignup.serve.metrics import Metrics


class Ears:
    """Hears what plugins say of their devices, and has the desk write it down."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def announced(self, resource: str, devices: tuple[Device, ...], *, preferred_allocation: bool) -> None:
        """These are the devices there are."""
        await self._desk.announce(resource, devices, preferred_allocation=preferred_allocation)

    async def stopped(self, resource: str) -> None:
        """The plugin is gone."""
        await self._desk.stop(resource)

    async def gone(self, resource: str) -> None:
        """And did not come back in time."""
        await self._desk.give_up(resource)


@asynccontextmanager
async def plugged(
    desk: Desk, *, directory: Path, lister: Path, metrics: Metrics, log: FilteringBoundLogger
) -> AsyncIterator[Errands]:
    """Take device plugins in *directory*, and tell at *lister* who has what; ``ListenError`` where that cannot be.

    A desk at which nothing may be decided takes no plugins.
    """
    exchange = Exchange(directory, Ears(desk))
    errands = Errands(desk, exchange, log=log)
    metrics.join(exchange.tally.collect)
    async with AsyncExitStack() as stack:
        if not desk.barred:
            await stack.enter_async_context(exchange)
            exchange.expect(expected(desk))
        books = HostBooks(lambda: desk.settled)
        await stack.enter_async_context(pod_resources(lister, books, tally=exchange.tally))
        stack.push_async_callback(errands.close)
        yield errands


def expected(desk: Desk) -> tuple[str, ...]:
    """The resources whose plugins were there before a restart."""
    known = hardware.book(desk.host).inventories
    return tuple(name for name in sorted(desk.standing.plugins) if name in known and known[name].registered)
