from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import browser
from e2e.api import Api
from e2e.browser import Browser
from e2e.control_plane import ControlPlane
from e2e.simulated_cluster import FLAGS
from tests.time_limits import prepare_limits, start_limit

_SECONDS = 7200  #: of a test; guests are slow


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """The control plane of a cluster with simulated nodes."""
    with ControlPlane(tmp_path, nodes=("none",), flags=FLAGS) as control:
        yield control


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """An API server without nodes."""
    with ControlPlane(tmp_path_factory.mktemp("plane")) as plane:
        yield Api(plane)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser.chromium() as running:
        yield running


def pytest_configure(config: pytest.Config) -> None:
    prepare_limits(config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    start_limit(item, _SECONDS)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    start_limit(item, _SECONDS, again=True)
