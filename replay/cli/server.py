"""``pplx-server``: the reference server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from replay.cli import console
from replay.engine.quirks import help_text
from replay.engine.schedule import OnExhausted

HELP = """Serve a model over the OpenAI API. A failure leaves a dump in --dump-dir, and serving goes on.

Prints where the ring and the dumps are, then "ready URL". Ends on SIGTERM or Ctrl-C; SIGUSR2 writes a dump on demand.

\b
Examples:
  pplx-server --model smollm2-135m
  pplx-server --model smollm2-135m --port 0 --kv-blocks 40 --on-kv-exhausted truncate --record tokens
  pplx-server --model smollm2-135m --record tokens --quirk kv-bit-flip:request=0,layer=5,position=20,after_step=40
"""

QUIRKS = "\b\nDefects that --quirk imitates, off unless named:\n" + "\n".join(
    f"  {line}" for line in help_text().splitlines()
)


@console.command(help=HELP, epilog=QUIRKS)
@click.option("--model", required=True, metavar="NAME|PATH", help="Name of weights on this machine, or their folder.")
@click.option("--served-model-name", default="", metavar="NAME", help="What clients call it. Default: its own name.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16"]), default="auto", help="Of the computation.")
@click.option("--kv-blocks", type=click.IntRange(1, 2**24), default=512, show_default=True, help="Blocks in the pool.")
@click.option("--block-size", type=click.IntRange(1, 1024), default=16, show_default=True, help="Tokens in a block.")
@click.option("--max-model-len", type=click.IntRange(2, 2**24), help="Prompt and answer. Default: the model's.")
@click.option("--max-num-seqs", type=click.IntRange(1, 4096), default=64, show_default=True, help="Sequences at once.")
@click.option("--max-num-batched-tokens", type=click.IntRange(1, 2**20), default=256, help="Tokens in a step.")
@click.option(
    "--on-kv-exhausted",
    type=click.Choice([policy.value for policy in OnExhausted]),
    default=OnExhausted.PREEMPT.value,
    show_default=True,
    help="What becomes of a running request for which there is no block.",
)
@click.option(
    "--kv-quant-bits",
    type=click.Choice(["0", "8"]),
    default="0",
    show_default=True,
    help="Bits of a value in the KV cache: 8 is int8 with a scale per token and head, 0 the computation's own dtype.",
)
@click.option("--prefix-cache", is_flag=True, help="Requests with equal prefixes share their KV blocks.")
@click.option(
    "--request-timeout", type=click.FloatRange(0.001), default=600.0, metavar="SECONDS", help="Most for a request."
)
@click.option("--threads", type=click.IntRange(0, 1024), default=0, help="Of torch. Default: what torch finds.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where to run the model. auto is cuda where that is usable; a dump is best replayed on the same.",
)
@click.option(
    "--dump-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("pplx-dumps"),
    help="Folder of dumps and ring.",
)
@click.option(
    "--record",
    type=click.Choice(["shape", "tokens", "full"]),
    default="shape",
    show_default=True,
    help="What is kept of people's text: lengths, token ids, or ids and text. Only the last two replay inference.",
)
@click.option(
    "--record-kv",
    type=click.Choice(["none", "faulty", "live"]),
    default="faulty",
    show_default=True,
    help="KV contents in dumps: none, blocks with a non-finite value, all in use (for a replay with --kv restore). "
    "Always none with --record shape.",
)
@click.option(
    "--ring-size",
    type=click.IntRange(16, 2**20),
    default=2048,
    show_default=True,
    metavar="KIB",
    help="History of steps.",
)
@click.option("--dumps-per-minute", type=click.IntRange(1, 10_000), default=10, help="Most dumps written.")
@click.option("--quirk", "quirks", multiple=True, metavar="SPEC", help="Imitate a known defect, see below. Repeatable.")
@click.option("--checks", is_flag=True, help="Check what every step reads, and fill freed KV blocks with NaN.")
@console.json_option
def server(
    *,
    model: str,
    served_model_name: str,
    host: str,
    port: int,
    dtype: str,
    kv_blocks: int,
    block_size: int,
    max_model_len: int | None,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    on_kv_exhausted: str,
    kv_quant_bits: str,
    prefix_cache: bool,
    request_timeout: float,
    threads: int,
    device: str,
    dump_dir: Path,
    record: str,
    record_kv: str,
    ring_size: int,
    dumps_per_minute: int,
    quirks: tuple[str, ...],
    checks: bool,
    as_json: bool,
) -> None:
    # Idle OpenMP threads would spin and take cores that the event loop needs. Read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from replay.serving.main import run
    from replay.serving.options import ServerOptions

    options = ServerOptions(
        model=model,
        served_model_name=served_model_name,
        host=host,
        port=port,
        dtype=dtype,  # type: ignore[arg-type]
        kv_blocks=kv_blocks,
        block_size=block_size,
        max_model_len=max_model_len or 0,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        on_kv_exhausted=OnExhausted(on_kv_exhausted),
        kv_quant_bits=8 if kv_quant_bits == "8" else 0,
        prefix_cache=prefix_cache,
        request_timeout_s=request_timeout,
        threads=threads,
        device=device,  # type: ignore[arg-type]
        dump_dir=dump_dir,
        record=record,
        record_kv=record_kv,
        ring_bytes=ring_size * 1024,
        dumps_per_minute=dumps_per_minute,
        quirks=quirks,
        checks=checks,
        debug_level=console.debug_level(),
        launch_arguments=tuple(sys.argv[1:]),
    )
    run(options, as_json=as_json)
