from tests.plugins.conftest import anyio_backend, directory, ears, exchange, one_loop

__all__ = ["anyio_backend", "directory", "ears", "exchange", "one_loop"]
