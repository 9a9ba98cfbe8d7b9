"""Programs that ask for what nobody recorded once everything recorded was asked: has the failing line been passed?"""

from __future__ import annotations

import pytest

from replay.targets.app.conclude import conclude
from replay.targets.app.sought import Conclusion, Sought
from replay.targets.expected import own_signature
from tests.loopback import Script
from tests.small_programs import codes, play, says, state_of

AGENT = """
import contextlib
from dumps.record.seams.tools import tool

class Agent:
    def run(self, url):
        texts = [self.ask(url, "/a"), self.ask(url, "/b")]
        self.check(texts[-1])
        return get(url + "/next")

    def ask(self, url, path):
        return get(url + path)

    def check(self, text):
        raise RuntimeError(f"upstream answered {text}")

class Mended(Agent):
    def check(self, text):
        pass

class Audits(Agent):
    def ask(self, url, path):
        text = super().ask(url, path)
        if path == "/b":
            get(url + "/audit")
        return text

class AuditsAndSwallows(Audits):
    def ask(self, url, path):
        with contextlib.suppress(Exception):
            super().ask(url, path)
        return "503"

class ReadsAFile(Agent):
    def ask(self, url, path):
        text = super().ask(url, path)
        if path == "/b":
            open("/nowhere/at/all").close()
        return text

class Tells(Agent):
    def run(self, url):
        try:
            super().run(url)
        except RuntimeError as error:
            get(url + "/tell")
            raise

class Fewer(Agent):
    def ask(self, url, path):
        return get(url + path) if path == "/a" else "503"

class Other(Agent):
    def check(self, text):
        super().check(str(int(text) - 99))

class Leaves(Agent):
    def check(self, text):
        sys.exit(f"no: {text}")

def main(url, kind="Agent"):
    return globals()[kind]().run(url)

@tool
async def slow():
    await asyncio.sleep(0.05)

async def both(url, more):
    task = asyncio.create_task(slow())
    await asyncio.sleep(0)
    get(url + "/a")
    if more:
        get(url + "/more")
    await task
    raise ValueError("no number")
"""


@pytest.fixture(scope="module")
def agent(programs):
    """Replays the agent, which failed in ``check`` after two requests, with some of it changed."""
    name = programs.write(AGENT)
    dump, url = programs.record_served(name, says("200"), says("503"))

    def replay(kind: str) -> Conclusion:
        return concluded(programs, name, dump, "main", url=url, kind=kind)

    return replay


def concluded(programs, name, dump, entry, **arguments) -> Conclusion:
    state = state_of(dump)
    with programs.importable():
        env, outcome = play(dump, getattr(programs.module(name), entry), **arguments)
        sought = Sought(state=state, signature=own_signature(state))
        return conclude(sought, env, outcome, asked_nothing=env.asked_nothing)


def said(conclusion: Conclusion) -> tuple[str, str, list[str]]:
    found = [finding["code"] for finding in conclusion.findings]
    return conclusion.decision.verdict.value, conclusion.decision.reason.value, found


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("Agent", ("reproduced", "", [])),
        ("Mended", ("not-reproduced", "", ["beyond-the-record"])),
        ("Audits", ("inconclusive", "beyond-the-record", ["beyond-the-record"])),
        ("ReadsAFile", ("inconclusive", "beyond-the-record", ["beyond-the-record"])),
        ("AuditsAndSwallows", ("diverged", "", ["failed-alike"])),
        ("Tells", ("diverged", "", ["failed-alike"])),
        ("Fewer", ("reproduced", "", ["calls-differ"])),
        ("Other", ("reproduced", "", ["message-differs"])),
        ("Leaves", ("different-failure", "", [])),
    ],
)
def test_variants_of_an_agent_whose_check_failed(agent, kind, expected):
    assert said(agent(kind)) == expected


def test_a_bug_that_is_still_there_is_shown_though_another_call_came_before_it(agent):
    found = agent("AuditsAndSwallows")
    assert found.failure.message == "upstream answered 503"
    assert found.divergence.step == 3
    assert "/audit" in found.divergence.replayed


def test_another_number_in_a_message_is_told(agent):
    (told,) = agent("Other").findings
    assert told["message"] == (
        "the message differs: recorded (dump) 'upstream answered 503', replayed (your code) 'upstream answered 404'"
    )


def test_a_failing_exit_is_a_failure_and_says_what_it_said(agent):
    failure = agent("Leaves").failure
    assert (failure.exception_type, failure.message) == ("SystemExit", "no: 503")
    assert failure.frame.endswith(":Leaves.check")


def test_a_call_put_in_while_a_tool_runs_that_had_ended_by_the_failure_parts_from_the_record(programs):
    name = programs.write(AGENT)
    dump, url = programs.record_served(name, says("A"), entry="both", more=False)
    assert concluded(programs, name, dump, "both", url=url, more=False).decision.verdict == "reproduced"
    found = concluded(programs, name, dump, "both", url=url, more=True)
    assert said(found) == ("diverged", "", ["asked-early"])
    assert "tool call tool-1 (slow)" in found.findings[0]["message"]


def test_what_fails_in_the_replay_of_a_dump_without_a_failure_is_told_and_not_judged(programs):
    name = programs.write("""
        def main(fails):
            if fails:
                raise TimeoutError("too slow")
    """)
    dump = programs.record(name, fails=False)
    found = concluded(programs, name, dump, "main", fails=True)
    assert said(found) == ("inconclusive", "no-failure-recorded", ["failed-later"])
    assert "TimeoutError in " in found.findings[0]["message"]
    assert found.failure is not None
    assert found.failure.message == "too slow"


GATHERED = """
import httpx
from dumps.record.seams.tools import tool

@tool
async def price(url, symbol):
    async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
        while (answer := await http.get(f"{url}/{symbol}")).status_code == 503:
            await asyncio.sleep(0.5)
        return answer.json()

async def quote(url, symbol, mended):
    answer = await price(url, symbol)
    if symbol == "B" and mended == "slow":
        await asyncio.sleep(9)
    return answer.get("price") if mended else answer["price"]

async def main(url, mended=""):
    return await asyncio.gather(*(quote(url, symbol, mended) for symbol in "AB"))

async def alike(url, mended=""):
    return await asyncio.gather(*(quote(url, symbol, mended) for symbol in "BB"))

async def main_yes(url): return await main(url, "yes")
async def main_slow(url): return await main(url, "slow")
async def alike_yes(url): return await alike(url, "yes")
"""
BUSY = Script([b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"])


@pytest.mark.parametrize(
    ("entry", "mended", "expected"),
    [
        ("main", "yes", ("not-reproduced", "", ["beyond-the-record"])),
        ("main", "slow", ("inconclusive", "beyond-the-record", ["beyond-the-record"])),
        ("alike", "yes", ("not-reproduced", "", ["beyond-the-record"])),
    ],
    ids=["over", "still-there", "alike"],
)
def test_a_sibling_that_did_not_fail_is_of_no_account_once_the_failing_task_is_over(programs, entry, mended, expected):
    """B fails while A, refused once, sleeps before it asks again."""
    name = programs.write(GATHERED)
    dump, _ = programs.record_served(name, BUSY, says('{"a": 1}'), entry=entry)
    assert programs.replay(dump, f"{name}:{entry}").report["verdict"] == "reproduced"
    report = programs.replay(dump, f"{name}:{entry}_{mended}").report
    assert (report["verdict"], report["reason_code"], codes(report)[:1]) == expected
