import pytest

from alignup.schedule.live_cluster import LiveCluster
from tests.kubernetes.api.conftest import client, follow, server, timing
from tests.schedule.nodes import SimulatedNodes

__all__ = ["client", "follow", "live", "nodes", "server", "timing"]


@pytest.fixture
def nodes(server):
    """Two empty nodes, ``a`` and ``b``, of SimulatedKubelet's machine."""
    made = SimulatedNodes(server)
    for name in "ab":
        made.add(name)
    return made


@pytest.fixture
async def live(nodes, client, follow):
    """A cluster that follows the nodes, and has read them."""
    made = LiveCluster(client)
    follow(made.run())
    await made.ready.wait()
    return made
