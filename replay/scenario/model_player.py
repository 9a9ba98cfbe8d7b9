"""Computes scenarios with a model: loaded once, played many times, each time with an empty KV cache.

The parts are the reference server's: the exact kernels, its sampler and stop strings, the watch that finds the first
non-finite value, and damage to the cache where a quirk does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dumps.errors import LimitExceeded
from dumps.fingerprint import fingerprint, platform_pairs
from dumps.schema import state_pb2 as pb
from replay.engine.kv_store import QUANT_BITS
from replay.engine.quirks import activate, defects_of
from replay.engine.request import Request
from replay.engine.runner import ModelRunner
from replay.engine.stop_strings import StopStrings
from replay.errors import UnsupportedModel, UsageError
from replay.scenario.door import sampling_problem
from replay.scenario.played import Parts
from replay.scenario.scenario import Scenario
from replay.serving.contents import KvWatch, RecordKv
from replay.targets.load import Loaded, load_weights


class ModelPlayer:
    """A `Player`. Not thread-safe.

    ``digests`` makes digests of logits, as a server does at debug level 2. ``record_kv`` says whose contents a
    recorded play's dump holds.
    """

    def __init__(self, loaded: Loaded, *, digests: bool = False, record_kv: RecordKv = RecordKv.FAULTY) -> None:
        self.model, self._vocabulary = loaded
        self.digests = digests
        self._record_kv = record_kv

    @classmethod
    def load(cls, folder: Path, like: pb.RuntimeState, *, device: str = "cpu") -> ModelPlayer:
        """The weights in ``folder``, computed as the process that wrote the dump ``like`` did.

        Raises `ModelUnavailable`, `UnsupportedModel` and `DeviceUnavailable`.
        """
        selection = like.kv.contents_selection
        loaded = load_weights(
            folder,
            dtype=like.model.dtype,
            kernels="stock" if like.engine.kernels == "stock" else "exact",
            device=device,
            threads=like.engine.num_threads,
        )
        return cls(
            loaded,
            digests=like.manifest.debug_level >= 2,
            record_kv=RecordKv.LIVE if selection == RecordKv.LIVE.value else RecordKv.FAULTY,
        )

    def describe(self, state: pb.RuntimeState) -> None:
        """The platform is that of this process and model: equality with it allows a strict replay."""
        pairs = platform_pairs(self.model.numerics)
        del state.manifest.platform[:]
        state.manifest.platform.extend(pb.KeyValue(key=key, value=pairs[key]) for key in sorted(pairs))
        state.manifest.platform_fingerprint = fingerprint(pairs)
        state.model.attention_backend = state.engine.kernels = self.model.kernels
        state.engine.num_threads = self.model.threads

    def parts(self, scenario: Scenario) -> Parts:
        """Raises:
        UsageError: token ids are not known, sampling parameters are out of range, or a quirk does not fit the model.
        UnsupportedModel: the cache's quantisation. LimitExceeded: this machine has no room for the pool.
        """
        self._check(scenario)
        config = scenario.config
        try:
            kv = self.model.kv_store(
                num_blocks=config.num_blocks, block_size=config.block_size, quant_bits=config.kv_quant_bits
            )
        except (RuntimeError, MemoryError) as error:
            raise LimitExceeded(
                f"a KV pool of {config.num_blocks} blocks of {config.block_size} tokens does not fit into this machine",
                remedy="play without a model, or with a smaller pool",
            ) from error

        def watching(running: Sequence[Request]) -> KvWatch:
            return KvWatch(kv, running, self._record_kv)

        return Parts(
            executor=ModelRunner(self.model, kv, digests=self.digests, defects=defects_of(scenario.quirks)),
            stop_check=StopStrings(self._vocabulary),
            bytes_per_block=kv.bytes_per_block,
            kv=kv,
            watching=watching,
            damage=tuple(activate(quirk, kv) for quirk in scenario.quirks if quirk.kind.damages_data),
        )

    def _check(self, scenario: Scenario) -> None:
        if scenario.config.kv_quant_bits not in QUANT_BITS:
            raise UnsupportedModel(
                f"the KV cache was quantised to {scenario.config.kv_quant_bits} bits, which is not supported",
                remedy="play without a model",
            )
        for visit in scenario.visits:
            if not visit.has_prompt_ids:
                raise UsageError(
                    f"the token ids of {visit.id} are not in the dump, and a model needs them",
                    remedy="play without a model, or record with --record tokens",
                )
            if max(visit.prompt) >= self.model.vocab_size:
                raise UsageError(f"the prompt of {visit.id} has a token that the model does not have")
            if problem := sampling_problem(visit.sampling, self.model.vocab_size, defects_of(scenario.quirks)):
                raise UsageError(f"{visit.id}: {problem}")
