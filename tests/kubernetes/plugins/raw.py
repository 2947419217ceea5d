"""Calls with raw bytes, which need not be valid messages."""

import grpc.aio


async def send(channel: grpc.aio.Channel, method: str, request: bytes, *, seconds: float = 60.0) -> bytes:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
    return await call(request, timeout=seconds)
