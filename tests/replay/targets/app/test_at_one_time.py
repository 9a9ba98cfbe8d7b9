"""What came in one turn of the recorded loop comes in one turn of the replay's, so tasks that failed together do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.small_programs import SmallPrograms, codes, says, state_of

TOGETHER_NS = 100_000
"""Answers of one turn of the loop are this close on record, and those of two turns are not while one is busy."""

TOGETHER = """
import aiohttp, httpx

class Asking:
    def __init__(self, library):
        self.library = library
    async def __aenter__(self):
        if self.library == "aiohttp":
            self.client = aiohttp.ClientSession()
        elif self.library == "httpx":
            self.client = httpx.AsyncClient(trust_env=False)
        else:
            import httpx2
            self.client = httpx2.AsyncClient(trust_env=False)
        return self
    async def __aexit__(self, *error):
        await (self.client.close() if self.library == "aiohttp" else self.client.aclose())
    async def text(self, url):
        if self.library == "aiohttp":
            async with self.client.get(url) as answer:
                return await answer.text()
        return (await self.client.get(url)).text

async def busy():
    await asyncio.sleep(0.02)
    time.sleep(0.3)

async def group(url, library):
    async with Asking(library) as asking:
        async def one(number):
            text = await asking.text(f"{url}/{number}")
            if number:
                raise ValueError(f"{number}: {text}")
        async with asyncio.TaskGroup() as tasks:
            for number in range(4):
                tasks.create_task(one(number))
            tasks.create_task(busy())

async def first(url, library):
    async with Asking(library) as asking:
        tasks = [asyncio.create_task(asking.text(f"{url}/{number}"), name=str(number)) for number in range(4)]
        blocking = asyncio.create_task(busy())
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        raise ValueError("done at once: " + " ".join(sorted(task.get_name() for task in done)))

async def gathered(url, library):
    async with Asking(library) as asking:
        came = []
        async def one(number):
            await asking.text(f"{url}/{number}")
            came.append(number)
            if number % 2:
                raise ValueError(f"{number} failed, and there were {came}")
        await asyncio.gather(busy(), *[one(number) for number in range(4)])
"""


def recorded_together(programs: SmallPrograms, name: str, entry: str, library: str) -> Path:
    """A recording whose answers all came while the loop was busy: on a loaded machine some are asked for later."""
    for _ in range(8):
        dump, _ = programs.record_served(name, says("alike"), entry=entry, library=library)
        asked = [one for one in state_of(dump).exchanges if one.direction == "out"]
        came = [one.sent_ns + one.chunks[0].delay_ns for one in asked if one.chunks]
        if len(came) == 4 and max(came) - min(came) < TOGETHER_NS:
            return dump
        dump.unlink()
    pytest.fail("the answers never came together")


@pytest.mark.parametrize(
    ("entry", "library"),
    [
        ("group", "aiohttp"),
        ("group", "httpx"),
        ("group", "httpx2"),
        ("first", "aiohttp"),
        ("first", "httpx"),
        ("gathered", "httpx"),
    ],
)
def test_what_came_together_comes_together(programs, entry, library):
    name = programs.write(TOGETHER)
    dump = recorded_together(programs, name, entry, library)
    report = programs.replay(dump, f"{name}:{entry}").report
    assert report["verdict"] == "reproduced", report
    assert "message-differs" not in codes(report)
