"""Time passes for tests only while nothing else can happen."""

import asyncio
import hashlib
import sys

import pytest

pytestmark = pytest.mark.anyio


async def test_a_wait_for_nothing_is_skipped_and_timers_keep_their_order():
    loop = asyncio.get_running_loop()
    fired: list[int] = []
    start = loop.time()
    for hours in (2, 1, 3):
        loop.call_later(3600.0 * hours, fired.append, hours)

    await asyncio.sleep(2.5 * 3600)

    assert fired == [1, 2]
    assert 2.5 * 3600 <= loop.time() - start < 3 * 3600


async def test_an_answer_over_a_socket_comes_before_the_limit_on_its_time():
    async def answer(reader, writer):
        await asyncio.sleep(59.0)
        writer.write(await reader.readline())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\n")
        async with asyncio.timeout(60.0):
            assert await reader.readline() == b"hello\n"
        writer.close()


async def test_no_time_is_skipped_while_a_thread_works():
    async with asyncio.timeout(3600.0):
        digest = await asyncio.to_thread(hashlib.sha256, bytes(1 << 26))  # without Python's lock
    assert digest.hexdigest().startswith("3b6a07d0")


async def test_no_time_is_skipped_while_a_process_works():
    program = "import sys, time; time.sleep(0.2); sys.stdout.write('done')"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)

    async with asyncio.timeout(3600.0):
        assert (await process.communicate())[0] == b"done"
