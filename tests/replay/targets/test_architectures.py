"""Recordings of other architectures than Llama, replayed; and a model that no bits are promised for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from dumps.tensors import from_le32, le32
from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from replay.targets.job import run_job
from tests.mixing import random_tokens
from tests.recordings import Recording, record
from tests.tiny_models import make_model

GRANITE: dict[str, Any] = {
    "architectures": ["GraniteForCausalLM"],
    "model_type": "granite",
    "attention_multiplier": 0.25,
}
"""With heads of 16, the scale that Llama has."""

ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


def recorded(model: Path, folder: Path, **options: Any) -> Recording:
    """Three requests share a pool that is too small for them; the first one that asks in vain is cut."""
    prompts = [random_tokens(9 + index, 256, seed=index) for index in range(3)]
    return record(
        model,
        folder,
        prompts,
        arrivals=(0, 1, 3),
        sampling=ENDLESS,
        kv_blocks=24,
        block_size=4,
        on_kv_exhausted=OnExhausted.TRUNCATE,
        **options,
    )


def replay(dump: Path, model: Path, **options: Any) -> dict[str, Any]:
    return run_job({"dump": str(dump), "model": str(model), **options}, lambda _: None)


@pytest.mark.parametrize(
    ("kind", "dtype", "windows"),
    # In steps: 2 leaves most to the fast-forward, 1000 nothing.
    [("gemma3", "bfloat16", (2, 1000)), ("gpt2", "float32", (2,)), ("qwen3_moe", "float32", (2,))],
)
def test_a_recording_is_reproduced_in_bits_and_an_altered_token_diverges(tmp_path, kind, dtype, windows):
    model = make_model(tmp_path / "model", kind)
    recording = recorded(model, tmp_path / "dumps", dtype=dtype)
    assert len({t for request in recording.requests for t in request.output}) >= 8
    for window in windows:
        report = replay(recording.dumps[0], model, window=window)
        assert (report["verdict"], report["mode"], report["kernels"]) == ("reproduced", "strict", "exact")
        assert report["compared"]["tokens"] == sum(r.num_output for r in recording.requests)

    with open_dump(recording.dumps[0]) as dump:
        state = dump.state
    tokens = from_le32(state.requests[1].output_token_ids)
    tokens[5] = (tokens[5] + 1) % 256
    state.requests[1].output_token_ids = le32(tokens)
    write_dump(tmp_path / "altered.pplx", state)
    report = replay(tmp_path / "altered.pplx", model)
    assert report["verdict"] == "diverged"
    assert (report["divergence"]["request_id"], report["divergence"]["output_index"]) == ("r1", 5)


def test_an_untested_architecture_is_forced_and_the_report_says_so_first(tmp_path):
    """The same weights under a name that is not on the list, in a model that computes the same."""
    recording = recorded(make_model(tmp_path / "llama", "llama"), tmp_path / "dumps")
    granite = make_model(tmp_path / "granite", "llama", **GRANITE)
    refused = replay(recording.dumps[0], granite)
    assert refused["verdict"] == "inconclusive"
    assert any("GraniteForCausalLM is not on the tested list" in f["message"] for f in refused["findings"])
    for mode in ("auto", "strict"):
        report = replay(recording.dumps[0], granite, kernels="stock", mode=mode)
        assert (report["verdict"], report["mode"], report["kernels"]) == ("reproduced", "forced", "stock")
        assert report["findings"][0]["code"] == "architecture-untested"
        assert report["findings"][0]["architecture"] == "GraniteForCausalLM"
        assert report["compared"]["tokens"] > 0


@pytest.mark.parametrize(("kind", "word"), [("gpt2", "no learned position"), ("llama", "finite")])
def test_a_model_served_beyond_its_positions_is_told(tmp_path, kind, word):
    model = make_model(tmp_path / "model", kind)
    recording = recorded(model, tmp_path / "dumps")
    with open_dump(recording.dumps[0]) as dump:
        state = dump.state
    state.engine.max_model_len = 300
    write_dump(tmp_path / "altered.pplx", state)
    found = {f["code"]: f for f in replay(tmp_path / "altered.pplx", model)["findings"]}
    assert word in found["position-overflow"]["message"]
    assert (found["position-overflow"]["max_model_len"], found["position-overflow"]["limit"]) == (300, 256)
    assert "position-overflow" not in {f["code"] for f in replay(recording.dumps[0], model)["findings"]}
