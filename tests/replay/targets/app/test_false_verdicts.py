"""Programs that fail nearly alike, fail where nobody looks, or go on without what they were refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumps.schema.writer import write_dump
from tests.small_programs import SmallPrograms, codes, says, state_of

WRAPPED = """
class AgentError(Exception):
    pass

def parse():
    raise ValueError("no number: 7")

def fetch():
    raise ConnectionError("gone")

def look_up():
    return {}["answer"]

def wrap(step):
    try:
        step()
    except Exception as error:
        raise AgentError("the agent failed") from error

async def fails(step):
    await asyncio.sleep(0.01)
    step()

async def together(*steps):
    async with asyncio.TaskGroup() as group:
        for step in steps:
            group.create_task(fails(step))

def wrapped(): wrap(parse)
def wrapped_other(): wrap(fetch)
def hidden():
    try:
        parse()
    except ValueError:
        raise AgentError("the agent failed")
def hidden_other():
    try:
        look_up()
    except KeyError:
        raise AgentError("the agent failed")
async def grouped(): await together(parse, fetch)
async def grouped_other(): await together(parse, look_up)
async def grouped_turned(): await together(fetch, parse)
"""

LOST = """
import gc, threading

def boom(text="in a thread"):
    raise ValueError(text)

def in_thread(*names):
    thread = threading.Thread(target=boom, args=names)
    thread.start()
    thread.join()

def of_a_thread(): in_thread()
def of_a_thread_other(): in_thread("another thing")
def fine(): pass

async def spoil(): boom("in a task")

async def of_a_task():
    task = asyncio.create_task(spoil())
    await asyncio.sleep(0.05)
    del task

async def of_a_task_in_a_circle():
    task = asyncio.create_task(spoil())
    circle = [task]
    circle.append(circle)
    await asyncio.sleep(0.05)
    del task, circle
    gc.collect()
"""

REFUSED = """
import subprocess

def version():
    try:
        return subprocess.run(["echo", "7"], capture_output=True, text=True).stdout.strip()
    except Exception:
        return ""

def fails_by_it():
    if version() == "7":
        raise ValueError("seven")

def fails_beside_it():
    version()
    raise ValueError("seven")

def asks_before_it(url):
    get(url + "/a")
    if version() == "7":
        raise ValueError("seven")
    get(url + "/b")
"""

READING = """
from pathlib import Path

def main(folder):
    json.loads(Path(folder + "/a.json").read_text())
    json.loads(Path(folder + "/b.json").read_text())

def reads_more(folder):
    json.loads(Path(folder + "/a.json").read_text())
    json.loads(Path(folder + "/c.json").read_text())
    json.loads(Path(folder + "/b.json").read_text())

def mended(folder):
    for name in "abc":
        Path(f"{folder}/{name}.json").read_text()

def reads_what_is_there(folder):
    Path(folder + "/a.json").read_text()
"""


@pytest.fixture
def programs(tmp_path: Path) -> SmallPrograms:
    return SmallPrograms(tmp_path)


NATIVE = """
import mmap, sqlite3

def database(folder):
    connection = sqlite3.connect(folder + "/db.sqlite")
    connection.execute("create table t(a)")
    connection.close()
    raise ValueError("after the database")

def mapped(folder):
    with open(folder + "/mapped", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        raise ValueError(view[:4].decode())

def of_its_own():
    connection = sqlite3.connect(":memory:")
    connection.execute("create table t(a)")
    connection.close()
    with mmap.mmap(-1, 10) as view:
        assert isinstance(view, mmap.mmap)
    raise ValueError("in memory")
"""


def other_body(programs: SmallPrograms, name: str, entry: str, other: str) -> list[str]:
    """A folder in which the module's ``entry`` does what ``other`` does, from a frame of the same name."""
    folder = programs.folder / other
    folder.mkdir(exist_ok=True)
    source = (programs.folder / f"{name}.py").read_text()
    source = source.replace(f"def {entry}()", f"def former_{entry}()").replace(f"def {other}()", f"def {entry}()")
    (folder / f"{name}.py").write_text(source)
    return [str(folder)]


@pytest.mark.parametrize(
    ("entry", "other"), [("wrapped", "wrapped_other"), ("hidden", "hidden_other"), ("grouped", "grouped_other")]
)
def test_the_same_exception_that_came_from_another_is_another_failure(programs, entry, other):
    name = programs.write(WRAPPED)
    dump = programs.record(name, entry)
    same = programs.replay(dump, f"{name}:{entry}").report
    assert same["verdict"] == "reproduced"
    assert same["match"]["identity.origin"]
    assert "other-origin" not in codes(same)

    report = programs.replay(dump, f"{name}:{entry}", app_path=other_body(programs, name, entry, other)).report
    assert report["verdict"] == "different-failure"
    assert not report["match"]["identity.origin"]
    (told,) = [one["message"] for one in report["findings"] if one["code"] == "other-origin"]
    replayed, recorded = told.split(" in the replay, and from ")
    assert ("look_up" in replayed) or ("fetch" in replayed)
    assert "fetch" in recorded if entry == "grouped" else "parse" in recorded


def test_the_order_of_a_groups_exceptions_is_no_difference(programs):
    name = programs.write(WRAPPED)
    dump = programs.record(name, "grouped")
    folder = other_body(programs, name, "grouped", "grouped_turned")
    assert programs.replay(dump, f"{name}:grouped", app_path=folder).report["verdict"] == "reproduced"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_ends_a_thread_is_seen_in_the_replay(programs):
    name = programs.write(LOST)
    dump = programs.record(name, "of_a_thread")
    same = programs.replay(dump, f"{name}:of_a_thread").report
    assert same["verdict"] == "reproduced"
    assert same["world"]["ended"] == "returned"

    other = programs.replay(dump, f"{name}:of_a_thread_other").report
    assert other["verdict"] == "different-failure"
    assert "failed-elsewhere" in codes(other)
    assert programs.replay(dump, f"{name}:fine").report["verdict"] == "not-reproduced"


@pytest.mark.parametrize("entry", ["of_a_task", "of_a_task_in_a_circle"])
def test_what_ends_a_task_that_nobody_awaits_is_seen_in_the_replay(programs, entry):
    name = programs.write(LOST)
    dump = programs.record(name, entry)
    assert programs.replay(dump, f"{name}:{entry}").report["verdict"] == "reproduced"
    assert programs.replay(dump, f"{name}:fine").report["verdict"] == "not-reproduced"


def test_a_program_that_goes_on_without_what_the_guard_refused_is_not_judged(programs):
    name = programs.write(REFUSED)
    dump = programs.record(name, "fails_by_it")
    report = programs.replay(dump, f"{name}:fails_by_it").report
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "program-unsupported")
    assert "subprocess.Popen" in report["findings"][0]["message"]

    dump = programs.record(name, "fails_beside_it")
    report = programs.replay(dump, f"{name}:fails_beside_it").report
    assert report["verdict"] == "reproduced"
    told = [one["message"] for one in report["findings"] if one["code"] == "refused"]
    assert ["subprocess.Popen" in one for one in told] == [True]


def test_a_library_that_asks_the_system_who_it_is_is_not_cut(programs):
    name = programs.write(
        """
        import platform
        def fails():
            raise ValueError("seven")
        def mended():
            platform._uname_cache = None
            platform.uname().processor
        """
    )
    dump = programs.record(name, "fails")
    report = programs.replay(dump, f"{name}:mended").report
    assert report["environment"]["isolation"]["refused"] == ["subprocess.Popen('uname', ['uname', '-p'])"]
    assert report["verdict"] == "not-reproduced"


@pytest.mark.parametrize("entry", ["database", "mapped"])
def test_a_file_that_is_read_past_the_record_is_refused(programs, entry):
    (programs.folder / "mapped").write_text("text")
    name = programs.write(NATIVE)
    dump = programs.record(name, entry, folder=str(programs.folder))
    report = programs.replay(dump, f"{name}:{entry}").report
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "program-unsupported")
    assert ("sqlite3.connect" if entry == "database" else "mmap") in report["findings"][0]["message"]


def test_what_lies_in_memory_only_is_the_programs_own_affair(programs):
    name = programs.write(NATIVE)
    dump = programs.record(name, "of_its_own")
    assert programs.replay(dump, f"{name}:of_its_own").report["verdict"] == "reproduced"


def test_what_it_asks_after_the_guard_refused_something_is_no_divergence(programs):
    name = programs.write(REFUSED)
    dump, _ = programs.record_served(name, says("A"), entry="asks_before_it")
    report = programs.replay(dump, f"{name}:asks_before_it").report
    assert report["verdict"] == "inconclusive"
    assert "subprocess.Popen" in report["findings"][0]["message"]


def test_a_timeout_that_computing_took_is_not_called_mended_without_a_word(programs):
    name = programs.write(
        """
        async def main(url):
            async with asyncio.timeout(0.05):
                end = time.thread_time() + 0.2
                while time.thread_time() < end:
                    pass
                await asyncio.sleep(0.001)
            get(url)
        async def hangs(url):
            async with asyncio.timeout(0.05):
                await asyncio.sleep(10)
        """
    )
    dump = programs.record(name, url="http://nowhere.invalid/")
    report = programs.replay(dump, f"{name}:main").report
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "beyond-the-record")
    assert "computing-takes-no-time" in codes(report)
    assert programs.replay(dump, f"{name}:hangs").report["verdict"] == "different-failure"


def test_a_file_that_was_never_read_asked_for_before_the_failure(programs):
    for file, text in {"a": "{}", "b": "no json", "c": "{}"}.items():
        (programs.folder / f"{file}.json").write_text(text)
    name = programs.write(READING)
    dump = programs.record(name, folder=str(programs.folder))
    assert programs.replay(dump, f"{name}:main").report["verdict"] == "reproduced"
    report = programs.replay(dump, f"{name}:reads_more").report
    assert report["verdict"] == "diverged"
    assert "c.json" in report["divergence"]["replayed"]
    report = programs.replay(dump, f"{name}:mended").report
    assert report["verdict"] == "not-reproduced"
    assert "beyond-the-record" in codes(report)
    assert programs.replay(dump, f"{name}:reads_what_is_there").report["verdict"] == "not-reproduced"


@pytest.mark.parametrize("arguments", ["[" * 100_000 + "]" * 100_000, '{"a": ' + "[" * 800 + "]" * 800 + "}", "[1]"])
def test_arguments_that_no_recording_writes_are_missing_ones(programs, arguments):
    name = programs.write(REFUSED)
    dump = programs.record(name, "fails_beside_it")
    state = state_of(dump)
    state.program.arguments_json = arguments
    write_dump(dump.with_name("altered.pplx"), state)
    report = programs.replay(dump.with_name("altered.pplx"), f"{name}:fails_beside_it").report
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "program-without-text")
