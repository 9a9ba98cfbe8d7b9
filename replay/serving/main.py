"""Starts the reference server, tells where it is, and ends it: model, engine thread, HTTP, signals."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from aiohttp import web

from dumps.record.recorder import FlightRecorder, RecordLevel
from dumps.text import printable
from replay.engine.detokenize import Vocabulary
from replay.engine.quirks import Quirk, activate, defects_of, parse_quirk
from replay.engine.runner import ModelRunner
from replay.engine.schedule import EngineConfig
from replay.engine.stop_strings import StopStrings
from replay.engine.weights import LoadedModel, load_model
from replay.errors import UsageError
from replay.http_log import make_http_logger
from replay.models.fingerprint import examine, weights_fingerprint
from replay.models.locate import locate
from replay.serving.app import Serving, make_app
from replay.serving.contents import RecordKv
from replay.serving.dumping import Dumper
from replay.serving.engine_thread import TRACE, EngineThread
from replay.serving.fingerprint import SystemFingerprint
from replay.serving.identity import identity
from replay.serving.leftovers import recover_leftovers
from replay.serving.metrics import Metrics
from replay.serving.options import ServerOptions
from replay.serving.prompts import PromptEncoder
from replay.serving.session import Parts, Sessions

log = logging.getLogger("pplx.server")

JOIN_S = 10.0

# A finished request's tokens stay in the recorder until its slot is needed. This many slots for each sequence that
# may be in flight keep the requests of the recorded steps whole.
SLOTS_PER_SEQUENCE = 2
SHUTTING_DOWN = "The server is shutting down."


def run(options: ServerOptions, *, as_json: bool = False) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        ReplayError: the model cannot be found or served, or an option does not fit it.
        UsageError: the address cannot be listened on.
        OSError: the dump folder cannot be written.
    """
    _set_up_logging(options.debug_level)
    if options.threads:
        torch.set_num_threads(options.threads)
    _say(f"loading {options.model} ...")
    server = Server(options)
    _say(server.description)
    asyncio.run(server.serve(as_json=as_json))


class Server:
    """One server. The model is loaded when it is made."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.folder = _find(options.model)
        self.name = options.served_model_name or _name_of(options.model)
        options.dump_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.quirks = _quirks(options)
        recover_leftovers(options.dump_dir)
        self.model = _load(self.folder, options.dtype, options.device)
        self.config = options.engine_config(self.model.max_position_embeddings, defects=defects_of(self.quirks))
        self.metrics = Metrics()
        self.encoder = PromptEncoder(self.folder)
        self.vocabulary = Vocabulary(self.encoder.tokenizer)

    async def serve(self, *, as_json: bool) -> None:
        """Run until a signal says otherwise."""
        loop = asyncio.get_running_loop()
        engine = EngineThread(open_session=self.sessions().open, metrics=self.metrics, loop=loop)
        serving = self._serving(engine)
        runner = web.AppRunner(
            make_app(serving),
            handler_cancellation=True,
            shutdown_timeout=5.0,
            access_log=None,
            logger=make_http_logger(log),
        )
        await runner.setup()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGUSR2, _dump_on_demand, engine)
        engine.start()
        try:
            await self._listen(runner)
            _announce(runner.addresses[0], engine.session.ring, self.options, as_json)
            await stop.wait()
            log.info("stopping, %d sequences in flight", serving.in_flight)
        finally:
            await _shut_down(engine, serving, runner)

    async def _listen(self, runner: web.AppRunner) -> None:
        host, port = self.options.host, self.options.port
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:  # the port is taken or not ours to take, the name is unknown, the address elsewhere
            raise UsageError(
                f"cannot listen on {host} port {port}: {os.strerror(error.errno) if error.errno else error}",
                remedy="Choose another with --port, where 0 takes a free one, or another --host.",
            ) from error

    def sessions(self) -> Sessions:
        """Opens sessions on this model, each with a ring in the dump folder."""
        options, model = self.options, self.model
        config = self.config
        kv = model.kv_store(num_blocks=config.num_blocks, block_size=config.block_size, quant_bits=config.kv_quant_bits)
        quirks = self.quirks
        facts = identity(
            options, name=self.name, folder=self.folder, model=model, kv=kv, config=self.config, quirks=quirks
        )
        parts = Parts(
            config=self.config,
            executor=ModelRunner(model, kv, digests=options.debug_level >= 2, defects=defects_of(quirks)),
            kv=kv,
            eos_token_ids=model.eos_token_ids,
            stop_strings=StopStrings(self.vocabulary),
            open_recorder=lambda path: _recorder(path, facts, options, self.config),
            dumper=Dumper(
                options.dump_dir,
                metrics=self.metrics,
                per_minute=options.dumps_per_minute,
                text_of=self.encoder.tokenizer.decode if options.record == RecordLevel.FULL.value else None,
            ),
            record_kv=_record_kv(options),
            keep_text=options.record == RecordLevel.FULL.value,
            damage=tuple(activate(quirk, kv) for quirk in quirks if quirk.kind.damages_data),
            quirks=quirks,
            checks=options.checks,
        )
        return Sessions(parts, options.dump_dir)

    @property
    def description(self) -> str:
        """One line on what was loaded, and what is in force that is not by default."""
        config, options, model = self.config, self.options, self.model
        kv = f"int{config.kv_quant_bits}" if config.kv_quant_bits else model.dtype
        parts = [
            f"loaded {self.name} ({model.dtype} on {model.device})",
            f"KV pool {config.num_blocks} blocks of {config.block_size} tokens ({kv}), when exhausted: "
            f"{config.on_kv_exhausted.value}",
            f"record {options.record}",
            f"prefix cache {'on' if config.prefix_cache else 'off'}",
            f"checks {'on' if options.checks else 'off'}",
            f"quirks {', '.join(map(str, self.quirks)) or 'none'}",
        ]
        return "; ".join(parts)

    def _serving(self, engine: EngineThread) -> Serving:
        return Serving(
            engine=engine,
            encoder=self.encoder,
            vocabulary=self.vocabulary,
            metrics=self.metrics,
            config=self.config,
            vocab_size=self.model.vocab_size,
            defects=defects_of(self.quirks),
            model_names=(self.name,),
            fingerprint=str(
                SystemFingerprint(
                    weights=weights_fingerprint(self.folder)[:16],
                    dtype=self.model.dtype,
                    kernels=self.model.kernels,
                    kv_quant_bits=self.config.kv_quant_bits,
                )
            ),
            created=int(time.time()),
            request_timeout_s=self.options.request_timeout_s,
            capacity=self.options.capacity,
        )


def _dump_on_demand(engine: EngineThread) -> None:
    if engine.alive:
        engine.dump("demand")
    else:
        log.error("no dump: the engine's thread died; its ring %s is left for pplx-state recover", engine.session.ring)


async def _shut_down(engine: EngineThread, serving: Serving, runner: web.AppRunner) -> None:
    """Dump if anything is in flight, end it with an error, and close. A step that hangs is left behind."""
    serving.closing = True
    dump_id = None
    if serving.in_flight and engine.alive:
        try:
            dump_id = await asyncio.wait_for(asyncio.wrap_future(engine.dump("signal")), JOIN_S)
        except TimeoutError:
            dump_id = await asyncio.to_thread(engine.session.dump_from_outside, "signal")
    engine.stop(SHUTTING_DOWN, dump_id)
    if not await asyncio.to_thread(engine.join, JOIN_S):
        log.error("a step has not ended after %.0f s and is left behind", JOIN_S)
    await runner.cleanup()


def _find(model: str) -> Path:
    """A path if there is one by that name, else a name to look up."""
    path = Path(model).expanduser()
    return locate(explicit=path) if path.exists() else locate(model)


def _name_of(model: str) -> str:
    return Path(model).name if Path(model).expanduser().exists() else model


def _quirks(options: ServerOptions) -> tuple[Quirk, ...]:
    """Raises `UsageError` for one that cannot be read, or that nothing could make happen."""
    quirks = tuple(parse_quirk(spec) for spec in options.quirks)
    if defects_of(quirks).register_early and not options.prefix_cache:
        raise UsageError(
            "quirk prefix-leak is a defect of the prefix cache, and there is none",
            remedy="Serve with --prefix-cache.",
        )
    return quirks


def _say(line: str) -> None:
    """For people, on stderr: what waits for stdout waits for the ready line."""
    sys.stderr.write(printable(line, 1000) + "\n")
    sys.stderr.flush()


def _load(folder: Path, dtype: str, device: str) -> LoadedModel:
    started = time.perf_counter()
    if dtype == "auto":
        dtype = "bfloat16" if examine(folder).dtype == "BF16" else "float32"
    model = load_model(folder, dtype=dtype, device=device)
    seconds = time.perf_counter() - started
    log.info("loaded %s (%s on %s) in %.1f s", folder.name, model.dtype, model.device, seconds)
    return model


def _record_kv(options: ServerOptions) -> RecordKv:
    """KV contents can be turned back into text, so the level that keeps no text keeps no contents either."""
    if options.record == RecordLevel.SHAPE.value:
        return RecordKv.NONE
    return RecordKv(options.record_kv)


def _recorder(path: Path, facts: dict[str, Any], options: ServerOptions, config: EngineConfig) -> FlightRecorder:
    return FlightRecorder(
        path,
        facts,
        level=RecordLevel(options.record),
        slots=SLOTS_PER_SEQUENCE * options.capacity,
        slot_tokens=config.max_model_len,
        ring_bytes=options.ring_bytes,
        slot_blocks=-(-config.max_model_len // config.block_size),
    )


def _announce(address: Any, ring: Path, options: ServerOptions, as_json: bool) -> None:
    """The ready line comes last, so that whoever waits for it has read the others."""
    host, port = str(address[0]), int(address[1])
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    dumps = options.dump_dir.resolve()
    if as_json:
        lines = [json.dumps({"ready": url, "ring": str(ring.resolve()), "dumps": str(dumps), "pid": os.getpid()})]
    else:
        lines = [f"ring {ring.resolve()}", f"dumps {dumps}", f"ready {url}"]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _set_up_logging(debug_level: int) -> None:
    """PPLX_DEBUG 0 leaves warnings: a dump that nobody hears of helps nobody."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.handlers = [handler]
    log.propagate = False
    log.setLevel((logging.WARNING, logging.INFO, logging.DEBUG, TRACE)[debug_level])
