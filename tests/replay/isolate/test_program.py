"""The two workers of a replayed program: the program's own, and the model's behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from replay.isolate import program
from replay.isolate.limits import Limits
from replay.isolate.program import ModelWorker, run_program
from replay.isolate.result import Result
from replay.isolate.supervisor import supervise
from tests.loopback import Loopback
from tests.processes import is_gone
from tests.small_programs import SmallPrograms, codes, says
from tests.tiny import make_tiny_model

HERE = "tests.replay.isolate.model_jobs"
LIMIT_S = 20.0


def workers() -> set[str]:
    """The workers that this process has right now."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid() and b"replay.isolate.worker" in (entry / "cmdline").read_bytes():
                found.add(entry.name)
    return found


async def asked(job: str, questions: int, **options: Any) -> tuple[list[dict[str, Any]], float]:
    """What a model's worker answers to so many questions, and how long it took in all."""
    began = time.monotonic()
    async with ModelWorker({}, job_function=f"{HERE}:{job}", **options) as model:
        answers = [dict(await model.ask({"number": number})) for number in range(questions)]
    return answers, time.monotonic() - began


async def test_one_worker_answers_one_after_another() -> None:
    answers, _ = await asked("echo", 3)
    assert [answer["chunks"] for answer in answers] == [["0"], ["1"], ["2"]]
    assert [answer["question"] for answer in answers] == [{"number": number} for number in range(3)]
    assert len({answer["pid"] for answer in answers}) == 1
    assert is_gone(answers[0]["pid"])


async def test_without_a_question_there_is_no_worker() -> None:
    before = workers()
    async with ModelWorker({}) as model:
        assert workers() == before
    assert model.seconds == 0


@pytest.mark.parametrize(
    ("job", "options", "kind", "says_", "good"),
    [
        ("dies_at_the_second", {}, "WorkerDied", "SIGKILL", 1),
        (
            "hangs",
            {"answer_timeout_s": 0.3, "limits": Limits(load_timeout_s=3.0)},
            "BudgetSpent",
            "did not answer within 3.3 s",
            0,
        ),
        ("never_loads", {"limits": Limits(load_timeout_s=1.5)}, "BudgetSpent", "loading took longer than 1.5 s", 0),
        ("raises", {}, "InternalError", "ZeroDivisionError: in the engine", 0),
        ("gives_up", {}, "WorkerDied", "ended without an answer", 0),
        ("no_such_job", {}, "InternalError", "no_such_job", 0),
    ],
)
async def test_a_model_that_fails_is_asked_once_and_says_why(job, options, kind, says_, good) -> None:
    """The first error ends the worker; what comes after it gets the same word at once, and never a late answer."""
    before = workers()
    answers, took = await asked(job, 4, **options)
    assert took < LIMIT_S
    assert all("error" not in answer for answer in answers[:good])
    errors = [answer["error"] for answer in answers[good:]]
    assert errors == [errors[0]] * (4 - good)
    assert errors[0]["class"] == kind
    assert says_ in errors[0]["message"]
    assert workers() == before


async def test_a_cancelled_replay_takes_the_models_worker_with_it() -> None:
    before = workers()

    async def work() -> None:
        async with ModelWorker({}, job_function=f"{HERE}:hangs") as model:
            await model.ask({})

    task = asyncio.create_task(work())
    while len(workers()) == len(before):
        await asyncio.sleep(0.02)
    task.cancel()
    began = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < program.CLOSE_S
    assert workers() == before


CHAT = """
def main(url, asks):
    said = []
    for ask in asks:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **ask}
        request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            said.append(json.load(answer)["choices"][0]["message"]["content"])
    print(json.dumps(said))
    raise ValueError(said[-1])
"""
OTHER_WEIGHTS = "pplx-0123456789abcdef-float32-exact-kv0"


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return SmallPrograms(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def chat(programs: SmallPrograms, *asks: dict[str, Any], fingerprints: tuple[str, ...] = ("",)) -> Any:
    """Replays a program that asks its model so, and fails with the last answer. ``fingerprints`` came with answers."""
    name = programs.write(CHAT)
    choice = {"index": 0, "message": {"content": "as recorded"}, "finish_reason": "length"}
    answers = [
        json.dumps({"id": "c-1", "choices": [choice]} | ({"system_fingerprint": one} if one else {}))
        for one in fingerprints
    ]
    with Loopback(*map(says, answers)) as server:
        dump = programs.record(name, url=server.url, asks=list(asks))

    def replay(**job: Any) -> dict[str, Any]:
        result = programs.replay(dump, f"{name}:main", answers="replayed", **job)
        assert result.report is not None, result.error
        return result.report

    return replay


def test_the_model_answers_what_it_can_and_the_record_the_rest_and_that_is_told(programs, tiny) -> None:
    """The weights here never said "as recorded": nothing of the record is copied into what is computed."""
    certain = {"temperature": 0}
    replay = chat(
        programs,
        {},
        {**certain, "tools": [{"type": "function"}]},
        {**certain, "seed": 1},
        certain,
        fingerprints=("", "", OTHER_WEIGHTS, ""),
    )
    report = replay(model=str(tiny))
    said = json.loads(report["output"])
    assert said[:3] == ["as recorded"] * 3
    assert said[3] != "as recorded"
    assert report["world"]["model_answers"] == 1
    assert report["verdict"] == "different-failure"
    differs, *kept = [finding["message"] for finding in report["findings"]]
    assert "choices[0].text: recorded (dump) 'as recorded'" in differs
    assert all(one.startswith("an answer of the model is the recorded one, not computed: ") for one in kept)
    for message, why in zip(kept, ("names no seed", "our server refuses", "holds other weights"), strict=True):
        assert why in message


def test_where_there_is_no_torch_the_recorded_answers_are_played(programs, tmp_path, monkeypatch) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], str(tmp_path)]))
    report = chat(programs, {"temperature": 0})()
    assert (report["verdict"], report["world"]["model_answers"]) == ("reproduced", 0)
    (problem,) = report["findings"]
    assert "needs torch, which is not installed" in problem["message"]
    assert "--answers recorded" in problem["remedy"]


PROGRAM = """
SEEN = os.environ.get("SMALL_SETTING"), os.environ.get("SMALL_EMPTY"), os.environ.get("SMALL_TOKEN", "").strip("*")

def main(url):
    raise ValueError(get(url + "/a"))

again = main

def tells(url):
    get(url + "/a")
    print(json.dumps({"seen": SEEN, "hash": hash("x"), "argv": sys.argv, "cwd": os.getcwd()}))

def changes_folder(url):
    os.chdir("/")
    return main(url)

def spins(url):
    get(url + "/a")
    while True:
        pass

def exits_hard(url):
    os._exit(3)

def forks(url):
    import multiprocessing
    multiprocessing.get_context("fork").Process(target=print).start()

def runs_a_command(url):
    import subprocess
    subprocess.run(["true"], check=True)

def in_threads(url):
    import contextvars, logging, threading
    found, name = [], contextvars.ContextVar("name")
    name.set("main")
    thread = threading.Thread(target=contextvars.copy_context().run, args=(lambda: found.append(name.get()),))
    thread.start()
    thread.join()
    logging.warning("from %s", found[0])
    return main(url)
"""


@pytest.fixture(scope="module")
def recorded(programs: SmallPrograms) -> Any:
    name = programs.write(PROGRAM)
    with Loopback(says("A")) as server:
        dump = programs.record(name, url=server.url)
        own = {"SMALL_SETTING": "as recorded", "SMALL_EMPTY": "", "SMALL_TOKEN": "sk-very-secret"}
        with mock.patch.object(sys, "argv", ["agent.py", "--fast"]):
            with_own = programs.record(name, "again", url=server.url, variables={**own, "PYTHONHASHSEED": "random"})

    def replay(entry: str, *, own: bool = False, **job: Any) -> Result:
        return programs.replay(with_own if own else dump, f"{name}:{entry}", **job)

    return replay


def test_a_program_finds_its_own_environment_and_none_of_ours(recorded, monkeypatch) -> None:
    monkeypatch.setenv("SMALL_SETTING", "of today")
    reports = [recorded("tells", own=True).report for _ in range(2)]
    said = [json.loads(report["output"]) for report in reports]
    assert said[0]["seen"][:2] == ["as recorded", ""]
    assert said[0]["seen"][2] != "sk-very-secret"
    assert said[0]["seen"][2] is not None
    assert "sk-very" not in json.dumps(reports[0])
    assert said[0]["hash"] == said[1]["hash"]
    assert said[0]["argv"] == ["agent.py", "--fast"]
    assert [one["code"] for one in reports[0]["findings"]][:2] == ["another-entry", "recorded-answers"]


def test_a_worker_is_started_anew_once_and_never_for_ever(recorded, monkeypatch) -> None:
    """Variables that no worker is given differ for good."""
    begun = []
    original = supervise

    async def counted(*arguments: Any, **options: Any) -> Result:
        begun.append(options["environment"])
        return await original(*arguments, **{**options, "environment": {"SMALL_SETTING": "wrong"}})

    monkeypatch.setattr(program, "supervise", counted)
    assert recorded("main", own=True).report["verdict"] == "reproduced"
    assert [bool(environment) for environment in begun] == [False, True]


@pytest.mark.parametrize("entry", ["main", "changes_folder", "in_threads"])
def test_what_programs_do_and_may(recorded, entry) -> None:
    report = recorded(entry).report
    assert report["verdict"] == "reproduced", report["findings"]
    if entry == "in_threads":
        assert report["output"].endswith("from main\n")


@pytest.mark.parametrize(("entry", "says_"), [("forks", "os.fork"), ("runs_a_command", "subprocess.Popen")])
def test_other_processes_are_refused_in_words(recorded, entry, says_) -> None:
    report = recorded(entry).report
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "program-unsupported")
    assert report["world"]["ended"] == "stopped"
    assert says_ in report["findings"][0]["message"]


def test_a_program_that_spins_ends_at_its_budget_with_where_it_stood(recorded) -> None:
    began = time.monotonic()
    error = recorded("spins", timeout_s=0.5).error
    assert time.monotonic() - began < LIMIT_S
    assert (error.kind, error.exit_code) == ("BudgetSpent", 21)
    assert error.message.startswith("the program took longer than 0.5 s")
    assert "--scope" not in error.remedy
    assert "spins" in error.evidence


def test_a_program_that_ends_its_process_is_a_result(recorded) -> None:
    failure = recorded("exits_hard").report["failure"]
    assert failure["kind"] == "process-death"
    assert "os._exit with status 3" in failure["message"]


def test_replays_that_disagree_say_so(recorded, monkeypatch) -> None:
    verdicts = iter(["not-reproduced", "reproduced", "not-reproduced"])

    async def decided(*_: Any, **__: Any) -> Result:
        return Result(report={"verdict": next(verdicts), "findings": [], "timings": {}})

    monkeypatch.setattr(program, "supervise", decided)
    report = run_program({"repeat": 3, "target": "app=a:b"}).report
    assert report is not None
    assert (report["verdict"], report["repeat"]) == ("reproduced", {"n": 3, "reproduced": 1})
    assert "2 x not-reproduced, 1 x reproduced" in report["findings"][0]["message"]
    assert codes(report) == ["not-deterministic"]
