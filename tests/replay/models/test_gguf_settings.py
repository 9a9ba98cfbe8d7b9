"""A GGUF file whose settings transformers drops is refused, and one that says nothing special is not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest

from replay.models.gguf_settings import lost_settings

DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}


def write(path: Path, architecture: str = "llama", tensor: str = "token_embd.weight", **said) -> Path:
    """A file with one tensor and the metadata `said`, with dots for double underscores."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in said.items():
        name = f"{architecture}.{key.replace('__', '.')}"
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)
    writer.add_tensor(tensor, np.zeros((2, 2), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def config(**changes) -> SimpleNamespace:
    facts = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "rope_parameters": DEFAULT}
    return SimpleNamespace(**(facts | changes))


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ({"rope__dimension_count": 16, "attention__key_length": 16, "rope__scaling__type": "none"}, {}),
        ({"rope__dimension_count": 12}, {"rope_parameters": DEFAULT | {"partial_rotary_factor": 0.75}}),
        ({"attention__sliding_window": 512}, {"sliding_window": 512}),
        ({"rope__scaling__type": "yarn"}, {"rope_parameters": DEFAULT | {"rope_type": "yarn"}}),
        ({"attention__key_length": 16}, {"rope_parameters": None, "query_pre_attn_scalar": 16}),
        ({}, {"rope_parameters": {"full_attention": DEFAULT, "sliding_attention": DEFAULT}}),
    ],
)
def test_nothing_is_lost_where_the_config_says_the_same(tmp_path, said, kept):
    assert lost_settings(write(tmp_path / "x.gguf", **said), config(**kept)) == []


@pytest.mark.parametrize(
    ("said", "changes", "word"),
    [
        ({"rope__scaling__type": "linear"}, {}, "scaling of rotary"),
        ({"rope__scaling__factor": 8.0}, {"rope_parameters": {"full_attention": DEFAULT}}, "scaling of rotary"),
        ({"tensor": "rope_freqs.weight"}, {}, "scaling of rotary"),
        ({"attention__sliding_window": 512}, {}, "window of 512"),
        ({"rope__dimension_count": 12}, {}, "12 dimensions of a head of 16"),
        ({"attention__key_length": 32}, {"head_dim": None}, "head size of 32"),
        ({}, {"query_pre_attn_scalar": 168}, "scale of its attention"),
    ],
)
def test_each_setting_that_would_be_lost_is_named(tmp_path, said, changes, word):
    (lost,) = lost_settings(write(tmp_path / "x.gguf", **said), config(**changes))
    assert word in lost
