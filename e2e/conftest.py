import pytest

from tests.time_limits import prepare_limits, start_limit

_SECONDS = 7200  #: of a test; guests are slow


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_configure(config: pytest.Config) -> None:
    prepare_limits(config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    start_limit(item, _SECONDS)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    start_limit(item, _SECONDS, again=True)
