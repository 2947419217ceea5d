from tests.kubeapi.conftest import anyio_backend, client, server, timing

__all__ = ["anyio_backend", "client", "server", "timing"]
