"""A small, valid dump made by hand: two requests, three steps, one of the requests cut short by the KV pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dumps.schema import state_pb2 as pb
from dumps.schema.writer import SectionData, write_dump
from dumps.tensors import le32

BLOCK_BYTES = 2 * 1 * 2 * 1 * 2 * 4  # key and value, layers, block size, heads, head dim, float32


def small_state() -> pb.RuntimeState:
    """Pool of 3 blocks of 2 tokens; request 0 (3 + 1 tokens) runs, request 1 (2 + 1 tokens) was truncated."""
    state = pb.RuntimeState(active_model="smollm2-135m")
    state.manifest.CopyFrom(
        pb.Manifest(
            id="0123456789abcdef",
            reason="silent-truncation",
            created_ns=1_700_000_000_000_000_000,
            tool_version="0.1.0",
            record_level="tokens",
            pid=42,
        )
    )
    state.model.CopyFrom(
        pb.Model(name="tiny", dtype="float32", vocab_size=10, num_layers=1, num_kv_heads=1, head_dim=2)
    )
    state.engine.CopyFrom(
        pb.EngineConfig(
            engine="pplx",
            block_size=2,
            num_blocks=3,
            max_model_len=16,
            max_num_seqs=4,
            max_num_batched_tokens=8,
            on_kv_exhausted="truncate",
            kernels="exact",
        )
    )
    sampling = pb.SamplingParams(max_tokens=4, top_p=1.0, repetition_penalty=1.0, seed=7)
    state.requests.add(
        id="req-a",
        status="running",
        arrival_step=0,
        num_prompt_tokens=3,
        num_output_tokens=1,
        prompt_token_ids=le32([1, 2, 3]),
        output_token_ids=le32([5]),
        output_digests=bytes(range(8)),
        sampling=sampling,
    )
    state.requests.add(
        id="req-b",
        status="finished",
        finish_reason="length",
        finish_cause="kv-pool-exhausted",
        arrival_step=0,
        finish_step=2,
        num_prompt_tokens=2,
        num_output_tokens=1,
        prompt_token_ids=le32([4, 4]),
        output_token_ids=le32([6]),
        sampling=sampling,
    )
    _steps(state)
    state.kv.CopyFrom(
        pb.KvCache(
            block_size=2,
            num_blocks=3,
            num_layers=1,
            num_kv_heads=1,
            head_dim=2,
            dtype="float32",
            used_bytes=2 * BLOCK_BYTES,
            max_bytes=3 * BLOCK_BYTES,
            free_blocks=le32([2]),
            ref_counts=le32([1, 1, 0]),
            contents_blocks=le32([1]),
            contents_selection="live",
        )
    )
    state.kv.tables.add(request=0, blocks=le32([0, 1]), num_tokens=4)
    state.failures.add(
        kind="silent-truncation",
        invariant="kv-pool-exhausted",
        message="no block left",
        request=1,
        step=2,
        time_ns=3000,
        kv_cache_used_bytes=3 * BLOCK_BYTES,
        max_kv_cache_bytes=3 * BLOCK_BYTES,
        seq_len_exceeded_at=3,
    )
    state.ledger.add(path="requests[].output_text", grade=pb.ABSENT, note="record level tokens")
    return state


def failing_with(kind: str, **fields: Any) -> pb.RuntimeState:
    """`small_state` with another failure, that of its first request after half a second."""
    state = small_state()
    del state.failures[:]
    state.failures.add(kind=kind, request=0, step=2, time_ns=500_000_000, **fields)
    return state


def _steps(state: pb.RuntimeState) -> None:
    first = state.steps.add(index=0, start_ns=1000, completed=True, arrived=[0, 1], admitted=[0, 1])
    first.scheduled.add(request=0, start=0, num_tokens=2, new_blocks=le32([0]))
    first.scheduled.add(request=1, start=0, num_tokens=2, new_blocks=le32([2]), sampled=True, sampled_token=6)
    second = state.steps.add(index=1, start_ns=2000, completed=True)
    second.scheduled.add(request=0, start=2, num_tokens=1, new_blocks=le32([1]), sampled=True, sampled_token=5)
    third = state.steps.add(index=2, start_ns=3000, completed=True)
    third.scheduled.add(request=0, start=3, num_tokens=1)
    third.exhausted.add(request=1, blocks_needed=1, blocks_free=0, outcome="truncate", before_scheduled=1)
    third.finished.add(request=1, reason="length", cause="kv-pool-exhausted")
    state.scheduler.running.append(0)
    state.scheduler.next_step = 3


def small_sections() -> list[SectionData]:
    """The KV contents of block 1, a log that compresses, and an empty section."""
    contents = np.arange(BLOCK_BYTES // 4, dtype=np.float32)
    return [
        SectionData(kind="kv-contents", data=contents.tobytes(), dtype="float32", shape=(1, 1, 2, 2, 1, 2)),
        SectionData(kind="log", data=b"token " * 60),
        SectionData(kind="empty", data=b""),
    ]


def write_small(path: Path) -> bytes:
    """Write the small dump to ``path`` and return its bytes."""
    write_dump(path, small_state(), small_sections())
    return path.read_bytes()
