"""A server with an int8 KV cache: its dump replays bit for bit, and says what int8 cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dumps.errors import InvalidState
from dumps.schema.reader import open_dump
from dumps.schema.writer import SectionData, write_dump
from dumps.tensors import from_le32
from dumps.validate import validate
from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from replay.errors import UsageError
from replay.targets.job import run_job
from tests.mixing import random_tokens
from tests.recordings import Recording, record
from tests.reports import findings

ENDLESS = SamplingParams(temperature=0.7, seed=11, ignore_eos=True)
PER_BLOCK = 2 * 2 * 4 * 2 * (16 + 4)  # layers, key and value, tokens, heads, values and a scale


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def recording(request, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Preempted, computed again in other chunks, and cut in the end."""
    return record(
        tiny,
        tmp_path_factory.mktemp("int8"),
        [random_tokens(9 + index, 256, seed=index) for index in range(3)],
        arrivals=(0, 1, 3),
        sampling=ENDLESS,
        kv_blocks=24,
        block_size=4,
        max_model_len=60,
        max_num_batched_tokens=7,
        on_kv_exhausted=OnExhausted.PREEMPT,
        kv_quant_bits=8,
        record_kv="live",
        debug_level=2,
        dtype=request.param,
    )


def replay(dump: Path, tiny: Path, **options: Any) -> dict[str, Any]:
    return run_job({"dump": str(dump), "model": str(tiny), **options}, lambda _: None)


def with_sections(dump: Path, path: Path, **tensors: np.ndarray | None) -> Path:
    """A copy of a dump with some of its tensors exchanged, or left out."""
    changed = {f"kv-{name}": tensor for name, tensor in tensors.items()}
    with open_dump(dump) as opened:
        kept = [(s.kind, s.dtype, changed.get(s.kind, opened.tensor(s.kind))) for s in opened.sections]
        sections = [
            SectionData(kind=kind, data=tensor.tobytes(), dtype=dtype, shape=tensor.shape)
            for kind, dtype, tensor in kept
            if tensor is not None
        ]
        write_dump(path, opened.state, sections)
    return path


def test_the_dump_says_what_the_cache_was(recording):
    with open_dump(recording.dumps[0]) as dump:
        state = dump.state
        blocks = len(from_le32(state.kv.contents_blocks))
        contents, scales = dump.tensor("kv-contents"), dump.tensor("kv-scales")
    assert (state.engine.kv_quant_bits, state.kv.quant_bits) == (8, 8)
    assert state.kv.max_bytes == 24 * PER_BLOCK
    assert (contents.dtype.name, contents.shape) == ("int8", (blocks, 2, 2, 4, 2, 16))
    assert (scales.dtype.name, scales.shape) == ("float32", (blocks, 2, 2, 4, 2))
    assert [finding for finding in validate(state) if finding.severity == "error"] == []


def test_it_replays_bit_for_bit_and_reports_the_distortion(recording, tiny):
    report = replay(recording.dumps[0], tiny, window=5)
    assert (report["verdict"], report["mode"]) == ("reproduced", "strict")
    assert report["compared"]["digests"] == report["compared"]["tokens"] > 60
    assert report["compared"]["fast_forwarded_tokens"] > 0
    assert findings(report, "kv-differs") == []
    assert report["kv"]["max_kv_cache_bytes"] == 24 * PER_BLOCK
    (distortion,) = findings(report, "kv-distortion")
    assert [(layer["layer"], layer["tensor"]) for layer in distortion["layers"]] == [
        (0, "key"),
        (0, "value"),
        (1, "key"),
        (1, "value"),
    ]
    assert all(0.001 < layer["largest"] < 0.008 for layer in distortion["layers"])
    assert all(0.001 < layer["rms"] < 0.02 for layer in distortion["layers"])
    assert distortion["non_finite"] == 0


def test_the_schedule_target_knows_its_bytes(recording):
    report = run_job({"dump": str(recording.dumps[0]), "target": "schedule"}, lambda _: None)
    assert report["verdict"] == "reproduced"
    assert report["kv"]["max_kv_cache_bytes"] == 24 * PER_BLOCK


@pytest.mark.parametrize("section", ["contents", "scales"])
def test_an_altered_number_in_the_contents_is_found_where_it_is(recording, tiny, tmp_path, section):
    with open_dump(recording.dumps[0]) as dump:
        blocks = from_le32(dump.state.kv.contents_blocks)
        tensor = np.array(dump.tensor("kv-" + section))
    place = (1, 1, 1, 2, 0)
    if section == "contents":
        tensor[(*place, 5)] ^= 1
    else:
        tensor[place] *= 2
    path = with_sections(recording.dumps[0], tmp_path / "altered.pplx", **{section: tensor})
    (found,) = findings(replay(path, tiny), "kv-differs")
    assert (found["count"], found["layer"], found["block"], found["slot"]) == (1, 1, blocks[1], 2)
    assert (found["tensor"], found["position"] % 4) == ("value" if section == "contents" else "value scale", 2)


def test_without_quantisation_it_is_a_modified_run_and_says_so(recording, tiny):
    with pytest.raises(UsageError, match="int8 blocks"):
        replay(recording.dumps[0], tiny, set={"kv.quant_bits": 0})
    report = replay(recording.dumps[0], tiny, set={"kv.quant_bits": 0}, kv="recompute")
    assert report["settings"] == {"kv.quant_bits": 0}
    assert (report["compared"]["tokens"], findings(report, "kv-distortion")) == (0, [])
    assert report["kv"]["max_kv_cache_bytes"] > 24 * PER_BLOCK
    same = replay(recording.dumps[0], tiny)
    ours, theirs = ([request["logits_digest"] for request in each["requests"]] for each in (report, same))
    assert ours != theirs


def test_scales_that_are_missing_or_too_few_are_refused(recording, tiny, tmp_path):
    with open_dump(recording.dumps[0]) as dump:
        scales = dump.tensor("kv-scales")
    for index, changed in enumerate((None, scales[1:])):
        path = with_sections(recording.dumps[0], tmp_path / f"{index}.pplx", scales=changed)
        with pytest.raises(InvalidState, match="section kv-scales"):
            replay(path, tiny)


def test_other_bits_are_not_taken_for_eight(recording, tiny, tmp_path):
    with open_dump(recording.dumps[0]) as dump:
        state = dump.state
    state.engine.kv_quant_bits = state.kv.quant_bits = 4
    write_dump(tmp_path / "four.pplx", state)
    report = replay(tmp_path / "four.pplx", tiny)
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "model-unsupported")
    assert "4 bits" in report["findings"][-1]["message"]
