from tests.grpc_fixtures import anyio_backend, one_loop
from tests.kubernetes.plugins.conftest import directory, listener, manager, metrics

__all__ = ["anyio_backend", "directory", "listener", "manager", "metrics", "one_loop"]
