import asyncio

import pytest

from alignup.nri.coalesced import Coalesced

pytestmark = pytest.mark.anyio


async def test_callers_that_come_during_a_run_share_the_next_one():
    runs, gate = 0, asyncio.Event()

    async def function():
        nonlocal runs
        runs += 1
        number = runs
        await gate.wait()
        return number

    call = Coalesced(function)
    first = asyncio.ensure_future(call())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = [asyncio.ensure_future(call()) for _ in range(5)]
    await asyncio.sleep(0)
    gate.set()
    assert await first == 1
    assert await asyncio.gather(*later) == [2] * 5


async def test_a_failure_reaches_all_callers_of_its_run_and_no_others():
    results = iter((ValueError("full"), 7))

    async def function():
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    call = Coalesced(function)
    failed = await asyncio.gather(call(), call(), return_exceptions=True)
    assert [str(error) for error in failed] == ["full", "full"]
    assert await call() == 7


async def test_a_caller_that_is_cancelled_does_not_stop_the_others():
    gate = asyncio.Event()
    call = Coalesced(gate.wait)
    first, second = asyncio.ensure_future(call()), asyncio.ensure_future(call())
    await asyncio.sleep(0)
    first.cancel()
    gate.set()
    assert await second is True
    with pytest.raises(asyncio.CancelledError):
        await first
