"""From what a program did in its recorded world to a verdict, in this process: real recordings, real replays."""

from __future__ import annotations

import time

import pytest

from replay.engine.failure import FailureKind
from replay.targets.app.conclude import conclude
from replay.targets.app.sought import Conclusion, Sought
from replay.targets.expected import own_signature
from tests.loopback import Script
from tests.small_programs import play, says, state_of

FAILING = """
import asyncio, contextlib

def main(url):
    get(url + "/a")
    return parse(get(url + "/b"))

def parse(text):
    raise ValueError(f"no number: {text!r}")

def mended(url):
    return get(url + "/a"), get(url + "/b")

def lives_on(url):
    mended(url)
    return get(url + "/c")

def lives_on_and_breaks(url):
    try:
        lives_on(url)
    except Exception:
        pass
    return None.nothing

def lives_on_and_fails_alike(url):
    with contextlib.suppress(Exception):
        lives_on(url)
    return parse("B")

def hides_a_file(url):
    get(url + "/a")
    text = get(url + "/b")
    try:
        open("/nowhere/at/all").close()
    except Exception:
        pass
    return parse(text)

def parts(url):
    get(url + "/a")
    return get(url + "/c")

def parts_and_swallows(url):
    with contextlib.suppress(Exception):
        parts(url)
    return "fine"

def elsewhere(url):
    get(url + "/a")
    raise ValueError("no number: 'B'")

def early(url):
    return None

def early_after_one(url):
    return get(url + "/a")

def leaves_at_once(url):
    sys.exit(2)

def leaves(url):
    mended(url)
    sys.exit(1)

def interrupted(url):
    mended(url)
    raise KeyboardInterrupt

def grouped(url):
    async def main():
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(time.sleep, 1))
    asyncio.run(main())

def in_a_group(url):
    async def asks():
        get(url + "/a"), get(url + "/c")
    async def main():
        async with asyncio.TaskGroup() as group:
            group.create_task(asks())
    asyncio.run(main())

def deadlocks(url):
    mended(url)
    async def main():
        await asyncio.Event().wait()
    asyncio.run(main())
"""

HANGING = """
import anyio._backends._asyncio, httpx, httpcore  # all of it now: the deadline is for asking
from dumps.record.program import active

async def main(url, limit):
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=limit) as client:
        return (await client.get(url + "/a")).text

async def looked_at(url, limit):
    async def look():
        await asyncio.sleep(0.5)
        if active():
            active().dump()
            os.environ["LOOKED"] = "yes"
    looking = asyncio.create_task(look())
    await main(url, 0.9)

async def mended(url, limit):
    try:
        await main(url, 0.1)
    except httpx.TimeoutException:
        return "nothing"

async def sleeps(url, limit):
    await asyncio.sleep(3600)

def sleeps_plainly(url, limit):
    time.sleep(3600)

async def stands_still(url, limit):
    await asyncio.Event().wait()
"""


@pytest.fixture(scope="module")
def failing(programs):
    """Replays a variant of a program that raised ValueError in ``parse`` after two requests."""
    name = programs.write(FAILING)
    dump, url = programs.record_served(name, says("A"), says("B"))
    return concluding(programs, name, dump, url=url)


@pytest.fixture(scope="module")
def hanging(programs):
    """Replays a variant of a program whose only request was never answered, and whose deadline was 1 s."""
    name = programs.write(HANGING)
    dump, url = programs.record_served(name, Script([], "silence"), timeout=1.0, limit=1.4)
    return concluding(programs, name, dump, url=url, limit=None)


def concluding(programs, name, dump, **arguments):
    def replay(variant: str = "main", **options) -> Conclusion:
        state = state_of(dump)
        with programs.importable():
            env, outcome = play(dump, getattr(programs.module(name), variant), **arguments)
            sought = Sought(state=state, signature=own_signature(state), **options)
            return conclude(sought, env, outcome, asked_nothing=env.asked_nothing)

    return replay


def said(conclusion: Conclusion) -> tuple[str, str]:
    return conclusion.decision.verdict.value, conclusion.decision.reason.value


def found(conclusion: Conclusion) -> list[str]:
    return [finding["code"] for finding in conclusion.findings]


def test_the_same_failure(failing):
    conclusion = failing()
    assert said(conclusion) == ("reproduced", "")
    assert conclusion.findings == []
    assert conclusion.failure.step == 2
    assert conclusion.failure.frame.endswith(":parse")
    assert all(conclusion.decision.match.values())


@pytest.mark.parametrize(
    ("variant", "verdict", "findings"),
    [
        ("mended", "not-reproduced", []),
        ("lives_on", "not-reproduced", ["beyond-the-record"]),
        ("lives_on_and_breaks", "not-reproduced", ["beyond-the-record"]),
        ("lives_on_and_fails_alike", "diverged", ["failed-alike"]),
        ("hides_a_file", "reproduced", ["beyond-the-record"]),
        ("parts", "diverged", []),
        ("parts_and_swallows", "diverged", []),
        ("in_a_group", "diverged", []),
        ("elsewhere", "different-failure", []),
        ("early_after_one", "not-reproduced", ["ended-early"]),
        ("early", "inconclusive", ["ended-early"]),
        ("leaves_at_once", "inconclusive", ["ended-early"]),
        ("leaves", "different-failure", []),
        ("interrupted", "not-reproduced", []),
        ("grouped", "inconclusive", ["program-unsupported"]),
        ("deadlocks", "different-failure", ["stalled"]),
    ],
)
def test_variants_of_a_failing_program(failing, variant, verdict, findings):
    conclusion = failing(variant)
    assert (conclusion.decision.verdict.value, found(conclusion)) == (verdict, findings)
    if verdict == "diverged":
        assert conclusion.divergence.step == (3 if variant == "lives_on_and_fails_alike" else 2)
        assert "/c" in conclusion.divergence.replayed
    else:
        assert conclusion.divergence is None


def test_a_program_that_asks_for_nothing_recorded_may_be_another_one(failing):
    assert said(failing("early")) == ("inconclusive", "nothing-asked")


def test_asking_for_a_recorded_file_is_asking_for_something(programs, tmp_path):
    (tmp_path / "config").write_text("x")
    name = programs.write("""
        def main(path):
            with open(path) as file:
                raise ValueError(file.read())

        def mended(path):
            return os.path.exists(path)

        def another(path):
            return "fine"
    """)
    dump = programs.record(name, path=str(tmp_path / "config"))
    replay = concluding(programs, name, dump, path=str(tmp_path / "config"))
    assert said(replay("mended")) == ("not-reproduced", "")
    assert said(replay("another")) == ("inconclusive", "nothing-asked")


def test_a_program_that_never_asked_for_anything_can_be_mended(programs):
    name = programs.write("""
        def main():
            raise ValueError("at once")

        def mended():
            return "fine"
    """)
    assert said(concluding(programs, name, programs.record(name))("mended")) == ("not-reproduced", "")


def test_a_changed_run_that_parts_before_the_failure_has_not_lived(failing):
    """Would it have lived? Our own refusal before that point is no answer."""
    assert failing("parts", modified=True).decision.verdict == "diverged"


def test_a_tool_with_a_given_answer_need_not_ask_what_it_asked_then(failing):
    """ "parts" asks for what is not recorded at the step of the failure: what the tool itself asked is left over."""
    assert said(failing("parts", modified=True, tools_given=True)) == ("not-reproduced", "")


def test_a_recorded_deadline_passes_again_where_nothing_can_go_on(hanging):
    conclusion = hanging()
    assert said(conclusion) == ("reproduced", "")
    assert conclusion.failure.kind is FailureKind.TIMEOUT
    assert conclusion.failure.frame.endswith(":main")
    assert conclusion.failure.message == "the program took longer than 1 s"  # what was asked, not what it came to
    assert found(conclusion) == ["stalled"]


@pytest.mark.parametrize("variant", ["sleeps", "sleeps_plainly"])
def test_a_recorded_deadline_passes_on_the_programs_own_clock(hanging, variant):
    began = time.monotonic()
    conclusion = hanging(variant)
    assert said(conclusion) == ("reproduced", "")
    assert time.monotonic() - began < 5


def test_a_program_that_is_done_before_its_deadline_has_not_missed_it(hanging):
    assert said(hanging("mended")) == ("not-reproduced", "")


def test_a_program_that_computed_when_its_deadline_came_may_still_be_too_slow(programs):
    """Computing takes no time on a virtual clock."""
    name = programs.write("""
        def main(url, number):
            get(url + "/a")
            until = time.perf_counter() + 3
            while number and time.perf_counter() < until:
                number += 1
            return get(url + "/b")
    """)
    dump, url = programs.record_served(name, says("A"), says("B"), timeout=1, number=1)
    conclusion = concluding(programs, name, dump, url=url, number=0)()
    assert said(conclusion) == ("inconclusive", "beyond-the-record")
    assert found(conclusion) == ["computing-takes-no-time", "beyond-the-record"]


def test_a_stall_in_another_place_is_no_such_failure(hanging):
    conclusion = hanging("stands_still")
    assert said(conclusion) == ("different-failure", "")
    assert not conclusion.decision.match["identity.frame"]


def test_a_program_that_waits_when_the_record_ends_has_not_failed(programs):
    """The dump is that of another task's failure, and the answer was still on its way then."""
    name = programs.write("""
        import httpx
        async def main(url, fails):
            async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
                asking = asyncio.create_task(client.get(url + "/slow"))
                await asyncio.sleep(0.2)
                if fails:
                    active().failed(ValueError("while it waits"))
                    asking.cancel()
                await asking
        from dumps.record.program import active
    """)
    dump, url = programs.record_served(name, Script([], "silence"), fails=True)
    conclusion = concluding(programs, name, dump, url=url, fails=False)()
    assert said(conclusion) == ("not-reproduced", "")
    assert found(conclusion) == ["beyond-the-record", "stalled"]
    assert "/slow" in conclusion.findings[0]["message"]


def test_a_dump_on_demand_records_no_failure_and_shows_where_it_stands(programs):
    name = programs.write(HANGING)
    dump, url = programs.record_served(name, Script([], "silence"), entry="looked_at", limit=None)
    assert state_of(dump).manifest.reason == "demand"
    conclusion = concluding(programs, name, dump, url=url, limit=None)("main")
    assert said(conclusion) == ("inconclusive", "no-failure-recorded")
    assert "/a" in conclusion.findings[0]["message"]
