"""What a reader is willing to spend on one dump. Each limit is checked before the memory it guards is allocated."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

MAX_PART_BYTES = 512 * MIB
"""Raw bytes of one section part. A rule of the format, not only a limit of this reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes are bytes. A dump of one crash is far below all of these; raise one by name for a larger deployment."""

    file_bytes: int = 64 * GIB
    head_bytes: int = 256 * MIB
    """Everything before the first section. It is parsed as a whole."""

    head_memory: int = 2 * GIB
    """Memory that the parsed head may take; estimated from the number of messages in it before it is parsed."""

    head_fields: int = 4_000_000
    """Top-level fields before the first section."""

    string_bytes: int = 4 * MIB
    """One string of the head.

    Depth needs no limit here: the schema is a tree, and upb stops unknown groups at a depth of 100.
    """

    sections: int = 4096
    """Section parts in a file. Seals are at most twice as many."""

    label_bytes: int = 64
    """Kind, encoding or dtype of a section."""

    tensor_dims: int = 16
    part_bytes: int = MAX_PART_BYTES
    total_raw_bytes: int = 16 * GIB
    """All sections together after decompression."""

    compression_ratio: int = 1000
    """Raw over compressed bytes of one part. Writers store a part raw when it would compress better than this."""

    zstd_window_bytes: int = 128 * MIB
