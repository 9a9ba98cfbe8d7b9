"""Each golden incident against the signature of each other: only the diagonal says ``reproduced``.

A dump of an engine is replayed once for each signature, in this process and with its model loaded once. A program's is
replayed in a process of its own, as it is and for one other signature; what it showed is judged by all of them, and so
is what a large model showed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from replay.fixtures.check import check_replay
from replay.fixtures.document import Fixture, Replay
from replay.signature import Signature
from replay.targets.app.options import is_app
from replay.targets.host import Host
from replay.targets.job import run_job
from replay.targets.kept_model import KeptModel
from replay.verdict import Evidence, Verdict, decide
from tests.fixture_folders import FIXTURES, load, names
from tests.threads import torch_threads

PROGRAMS = [name for name in names() if is_app(load(name).replays[0].options.get("target"))]
ENGINES = [name for name in names() if name not in PROGRAMS]


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with torch_threads(1):
        yield Host(load=KeptModel().load)


def verdicts(fixture: Fixture, host: Host, **options: Any) -> dict[str, str]:
    """The verdict of its replay for the signature of each fixture."""

    def verdict(other: str) -> str:
        job = {"dump": str(fixture.dump), "signature": str(FIXTURES / other / "fixture.json"), **options}
        report = run_job(job, lambda event: None, host)
        return str(report["verdict"])

    return {other: verdict(other) for other in names()}


def judged(report: Mapping[str, Any], evidence: Evidence) -> dict[str, str]:
    """The verdict of what one replay showed, for the signature of each fixture."""
    evidence = replace(evidence, seen=[Signature.from_json(report["signature"])])
    return {other: decide(load(other).signature, evidence).verdict.value for other in names()}


def only_its_own(name: str, found: dict[str, str]) -> None:
    assert [other for other, verdict in found.items() if verdict == "reproduced"] == [name], found


@pytest.mark.parametrize("name", ENGINES)
def test_a_dump_of_an_engine_shows_its_own_failure_and_no_other(name, host):
    fixture = load(name)
    options = next(one.options for one in fixture.replays if one.verdict is Verdict.REPRODUCED)
    if name == "kv-overflow":  # its weights may not be here; without them it shows the same
        options = {"target": "schedule"}
    only_its_own(name, verdicts(fixture, host, **options))


@pytest.mark.model
def test_the_real_model_shows_its_own_failure_and_no_other(host):
    """Once, since it takes seconds, and judged by all signatures."""
    report = run_job({"dump": str(load("kv-overflow").dump)}, lambda event: None, host)
    only_its_own("kv-overflow", judged(report, Evidence(seen=[], foreign=True)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_dump_of_a_program_shows_its_own_failure_and_no_other(name):
    fixture = load(name)
    report = check_replay(fixture, fixture.replays[0]).report
    assert report is not None
    only_its_own(name, judged(report, Evidence(seen=[], foreign=True, on_a_virtual_clock=True)))
    other = names()[(names().index(name) + 1) % len(names())]
    options = {**fixture.replays[0].options, "signature": f"../{other}/fixture.json"}
    report = check_replay(fixture, Replay(options=options)).report
    assert report is not None
    assert report["verdict"] != "reproduced"
