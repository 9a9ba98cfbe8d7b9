"""Computing takes no time in a replay: deadlines that begin when it is over, that it uses up, and that it misses.

`blocks` is computing of which a replay sees nothing, as where an import finds its files in memory: a wait for an event
is real, and no time of the program's.
"""

from __future__ import annotations

import pytest

from tests.loopback import Script
from tests.small_programs import codes, says, state_of

COMPUTING = """
import aiohttp, contextlib, httpx, signal, threading

def computes(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def blocks(seconds):
    threading.Event().wait(seconds)

async def by_aiohttp(url):
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()

async def by_httpx(url):
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(url, timeout=None)).text

def parsed(text):
    raise ValueError(f"no number: {text}")

def measures(url):
    computes(0.4)
    began = time.perf_counter()
    text = get(url)
    if time.perf_counter() - began > 0.3:
        raise TimeoutError("the tool is slow")
    return parsed(text)

def measures_both(url):
    began = time.monotonic()
    computes(0.2)
    get(url)
    if time.monotonic() - began > 0.2:
        raise TimeoutError("budget spent")

def rings(url):
    def over(*_):
        raise TimeoutError("too slow")
    signal.signal(signal.SIGALRM, over)
    blocks(0.4)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        text = get(url)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return parsed(text)

async def asks_in_time(url, ask, work):
    globals()[work](0.4)
    async with asyncio.timeout(0.3):
        text = await globals()[ask](url)
    return parsed(text)

async def waits_in_time(url, ask, work):
    globals()[work](0.4)
    return parsed(await asyncio.wait_for(globals()[ask](url), 0.3))

async def together_in_time(url, ask, work):
    globals()[work](0.4)
    async with asyncio.timeout(0.4):
        texts = await asyncio.gather(*[globals()[ask](url) for _ in range(3)])
    return parsed(texts)

async def too_late(url, ask, work):
    async with asyncio.timeout(0.2):
        globals()[work](0.4)
        return await globals()[ask](url)

async def hangs_later(url, ask, work):
    globals()[work](0.4)
    async with asyncio.timeout(0.3):
        return await globals()[ask](url)

async def older(url, ask, work):
    came = []
    async def watch():
        await asyncio.sleep(0.2)
        came.append("the watcher")
    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0.01)
    globals()[work](0.4)
    await globals()[ask](url)
    raise ValueError(f"{came} came first")
"""


@pytest.fixture(scope="module")
def module(programs):
    return programs.write(COMPUTING)


def recorded_undisturbed(programs, module, entry):
    """On a loaded machine computing waits for a processor for longer than it computes, which no replay can know."""
    for _ in range(8):
        dump, _ = programs.record_served(module, says("none"), entry=entry)
        state = state_of(dump)
        asked = next(one for one in state.exchanges if one.direction == "out")
        if asked.started_ns - state.program.started_ns < 0.8e9:
            return dump
        dump.unlink()
    pytest.fail("the machine is too busy")


@pytest.mark.parametrize("entry", ["measures", "measures_both", "rings"])
def test_a_blocking_client_is_in_time_after_computing(programs, module, entry):
    dump = recorded_undisturbed(programs, module, entry)
    assert_again(programs.replay(dump, f"{module}:{entry}").report)


@pytest.mark.parametrize(
    ("entry", "work", "ask"),
    [
        ("asks_in_time", "computes", "by_httpx"),
        ("asks_in_time", "blocks", "by_aiohttp"),
        ("asks_in_time", "blocks", "by_httpx"),
        ("waits_in_time", "blocks", "by_aiohttp"),
        ("together_in_time", "blocks", "by_httpx"),
        ("too_late", "computes", "by_httpx"),
        ("too_late", "blocks", "by_aiohttp"),
        ("too_late", "blocks", "by_httpx"),
        ("older", "blocks", "by_aiohttp"),
    ],
)
def test_a_deadline_begins_when_the_program_set_it(programs, module, entry, ask, work):
    dump, _ = programs.record_served(module, says("none"), entry=entry, ask=ask, work=work)
    assert_again(programs.replay(dump, f"{module}:{entry}").report)


@pytest.mark.parametrize("ask", ["by_aiohttp"])
def test_a_deadline_after_computing_waits_as_long_as_it_did(programs, module, ask):
    dump, _ = programs.record_served(module, Script([], end="silence"), entry="hangs_later", ask=ask, work="blocks")
    report = programs.replay(dump, f"{module}:hangs_later").report
    assert_again(report)
    recorded = state_of(dump)
    took = (recorded.failures[-1].time_ns - recorded.program.started_ns) / 1e9
    assert report["timings"]["virtual_s"] == pytest.approx(took, abs=0.1)


def assert_again(report):
    assert report["verdict"] == "reproduced", report
    assert not {"message-differs", "left-over", "unrecorded"} & set(codes(report)), report


MISSED = """
def computes(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def plan(url):
    get(url)
    began = time.monotonic()
    computes(0.25)
    if time.monotonic() - began > 0.1:
        raise TimeoutError("planning took too long")

def plans_and_fails(url):
    plan(url)
    raise KeyError("plan")

def asks_otherwise(url):
    get(url + "/other")
    plan(url)

def polls(url):
    end = time.time() + 1
    while True:
        if get(url) == "yes":
            return
        if time.time() > end:
            raise TimeoutError("it did not come up")
        time.sleep(1.5)

def polls_once(url):
    return get(url)
"""


def test_a_deadline_that_computing_missed_is_not_called_mended(programs):
    name = programs.write(MISSED)
    dump, _ = programs.record_served(name, says("text"), entry="plan")
    report = programs.replay(dump, f"{name}:plan").report
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "computing-takes-no-time")
    assert codes(report)[0] == "computing-takes-no-time"
    assert programs.replay(dump, f"{name}:plans_and_fails").report["verdict"] == "different-failure"
    assert programs.replay(dump, f"{name}:asks_otherwise").report["verdict"] == "diverged"


def test_a_deadline_that_came_while_polling_can_be_called_mended(programs):
    name = programs.write(MISSED)
    dump, _ = programs.record_served(name, says("no"), entry="polls")
    assert_again(programs.replay(dump, f"{name}:polls").report)
    assert programs.replay(dump, f"{name}:polls_once").report["verdict"] == "not-reproduced"
