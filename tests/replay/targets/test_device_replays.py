"""Recording and replaying on each device, one way for all; and dumps of a device that is not here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from replay.isolate.supervisor import run as run_isolated
from replay.isolate.worker import error_event
from replay.targets.batch import run_batch
from replay.targets.job import run_job
from tests.devices import DEVICES
from tests.mixing import random_tokens
from tests.recordings import Recording, record

SAMPLED = SamplingParams(temperature=0.8, seed=3, ignore_eos=True)

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens on a machine without a GPU")


def recorded(model: Path, folder: Path, device: str, **options: Any) -> Recording:
    """Three requests share a pool that is too small for them; the first one that asks in vain is cut."""
    return record(
        model,
        folder,
        [random_tokens(9 + index, 256, seed=index) for index in range(3)],
        arrivals=(0, 1, 3),
        sampling=SAMPLED,
        kv_blocks=24,
        block_size=4,
        on_kv_exhausted=OnExhausted.TRUNCATE,
        device=device,
        dtype="bfloat16",
        debug_level=2,
        **options,
    )


@pytest.fixture(scope="module", params=DEVICES)
def recording(request, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The device, and the dump that was recorded on it."""
    done = recorded(tiny, tmp_path_factory.mktemp(request.param), request.param, record_kv="live")
    return request.param, done.dumps[0]


def replay(dump: Path, model: Path, **options: Any) -> dict[str, Any]:
    return run_job({"dump": str(dump), "model": str(model), **options}, lambda _: None)


def found(report: dict[str, Any], code: str) -> list[dict[str, Any]]:
    return [item for item in report["findings"] if item["code"] == code]


def test_a_recording_is_reproduced_in_bits_where_it_was_made(recording, tiny):
    device, dump = recording
    for options in ({}, {"kv": "recompute", "window": 1000}, {"kv": "restore"}):
        report = replay(dump, tiny, **options)
        assert (report["verdict"], report["mode"]) == ("reproduced", "strict"), report["findings"]
        assert report["environment"]["device"] == device
        assert found(report, "kv-differs") == found(report, "platform-differs") == []
    assert report["environment"]["row_tile"] in (("64", "128") if device == "cuda" else ("4", "16"))


@pytest.mark.gpu
def test_a_guarded_child_replays_a_recording_of_a_gpu(tiny, tmp_path):
    """The test of the system call filter: CUDA's driver starts under it."""
    dump = recorded(tiny, tmp_path, "cuda").dumps[0]
    result = run_isolated({"dump": str(dump), "model": str(tiny)})
    assert result.report is not None, result.error
    assert (result.report["verdict"], result.report["mode"]) == ("reproduced", "strict"), result.report["findings"]
    assert result.report["environment"]["device"] == "cuda"
    assert result.report["environment"]["isolation"]["grade"].startswith("audit-hook+seccomp-gpu")
    assert result.guard["refused"] == []


def test_a_batch_gives_each_dump_what_it_gives_alone(recording, tiny):
    _, dump = recording
    events: list[dict[str, Any]] = []
    job = {"dumps": [str(dump)] * 3, "model": str(tiny), "full": True}
    run_batch(job, events.append, error_event=error_event)
    reports = [event["report"] for event in events if event.get("state") == "report"]
    alone = replay(dump, tiny, full=True)
    assert len(reports) == 3
    for report in reports:
        assert {**report, "timings": None} == {**alone, "timings": None}


@pytest.mark.gpu
def test_a_recording_of_a_gpu_is_forced_on_the_cpu(tiny, tmp_path):
    dump = recorded(tiny, tmp_path, "cuda").dumps[0]
    report = replay(dump, tiny, device="cpu")
    assert report["mode"] == "forced"
    assert "device" in found(report, "platform-differs")[0]["keys"]
    # Rounding may part the two, which the verdict then says; it is never taken for another failure.
    assert report["verdict"] == "reproduced" or report["reason_code"] == "rounding-noise"


@without_gpu
def test_cuda_that_is_not_there_is_inconclusive_and_says_what_to_do(tiny, tmp_path):
    dump = recorded(tiny, tmp_path, "cpu").dumps[0]
    report = replay(dump, tiny, device="cuda")
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "device-unavailable")
    assert report["environment"]["device"] == "none"
    assert "--device cpu" in report["findings"][0]["remedy"]


@without_gpu
def test_a_dump_of_a_gpu_runs_on_the_cpu_and_the_report_says_why(tiny, tmp_path):
    with open_dump(recorded(tiny, tmp_path, "cpu").dumps[0]) as dump:
        state = dump.state
    for pair in state.manifest.platform:
        if pair.key == "device":
            pair.value = "cuda"
    state.manifest.platform_fingerprint = "0" * 64
    write_dump(tmp_path / "gpu.pplx", state)
    report = replay(tmp_path / "gpu.pplx", tiny)
    assert (report["verdict"], report["mode"]) == ("reproduced", "forced")
    assert report["environment"]["device"] == "cpu"
    assert "recorded on cuda, replayed on cpu" in found(report, "device-unavailable")[0]["message"]
    assert found(report, "platform-differs")[0]["keys"] == ["device"]
    asked = replay(tmp_path / "gpu.pplx", tiny, device="cpu")
    assert found(asked, "device-unavailable") == []
