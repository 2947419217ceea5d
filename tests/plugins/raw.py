"""Calls with bytes, which need not be messages."""

import grpc.aio


async def send(line: grpc.aio.Channel, method: str, request: bytes, *, seconds: float = 5.0) -> bytes:
    """What is answered to *request*."""
    ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = line.unary_unary(method)
    return await ask(request, timeout=seconds)
