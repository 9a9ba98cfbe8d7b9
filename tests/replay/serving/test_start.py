"""How a start that cannot succeed ends, and what a plain one tells."""

from __future__ import annotations

import json
import logging
import shutil
import socket

import pytest
from click.testing import CliRunner

from replay.cli.server import server
from replay.engine.defects import Defects
from replay.engine.schedule import OnExhausted
from replay.errors import UsageError
from replay.serving import main
from replay.serving.options import ServerOptions


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    log = logging.getLogger("pplx.server")
    before = log.handlers, log.propagate, log.level
    yield
    log.handlers, log.propagate = before[0], before[1]
    log.setLevel(before[2])


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        (["--model", "no-such-model"], 20, "no-such-model"),
        (["--max-model-len", "257"], 2, "256 positions"),
        (["--quirk", "kv-bit-flop:request=0"], 2, "kv-bit-flip"),
        (["--quirk", "prefix-leak"], 2, "--prefix-cache"),
        (["--on-kv-exhausted", "hope"], 2, "hope"),
        (["--kv-quant-bits", "4"], 2, "'4'"),
        (["--port", "70000"], 2, "65535"),
    ],
)
def test_a_start_that_cannot_succeed_says_why(tiny_model, tmp_path, changes, code, words):
    arguments = ["--model", str(tiny_model), "--dump-dir", str(tmp_path / "dumps"), "--port", "0", *changes]
    result = CliRunner().invoke(server, arguments, prog_name="pplx-server")
    assert (result.exit_code, result.stdout) == (code, "")
    assert words in result.stderr
    assert list((tmp_path / "dumps").glob("*.ring")) == []


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", None),
        ("tokenizer.json", b"\xff junk"),
        ("tokenizer.json", b'{"version": "1.0", "model": {}}'),
        ("tokenizer_config.json", b"[1, 2"),
        ("tokenizer_config.json", b'{"auto_map": {"AutoTokenizer": ["x.X", null]}, "tokenizer_class": "X"}'),
        ("config.json", b'{"architectures": ["LlamaForCausalLM"], "vocab_size": "many"}'),
        ("config.json", b'{"architectures": ["LlamaForCausalLM"], "num_attention_heads": 0}'),
        ("config.json", b'{"architectures": ["LlamaForCausalLM"], "hidden_size": 63}'),
    ],
)
def test_a_model_folder_with_a_bad_file_is_named_and_not_our_bug(tiny_model, tmp_path, file, content):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    arguments = ["--model", str(folder), "--dump-dir", str(tmp_path / "dumps"), "--port", "0"]
    result = CliRunner().invoke(server, arguments, prog_name="pplx-server")
    assert (result.exit_code, result.stdout) == (20, "")
    assert str(folder) in result.stderr


def test_an_address_that_cannot_be_had_is_no_bug_of_ours(tiny_model, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for address in (["--port", port], ["--port", "0", "--host", "no-such-host.invalid"]):
            arguments = ["--model", str(tiny_model), "--dump-dir", str(tmp_path / "dumps"), *address]
            result = CliRunner().invoke(server, arguments, prog_name="pplx-server")
            assert (result.exit_code, result.stdout) == (2, "")
            assert "cannot listen" in result.stderr
            assert "--port" in result.stderr
    assert list((tmp_path / "dumps").iterdir()) == []


@pytest.mark.parametrize("quirk", ["kv-bit-flop:request=0", "prefix-leak", "multinomial:x=1"])
def test_a_quirk_that_cannot_be_is_refused_before_the_model_is_loaded(tiny_model, tmp_path, monkeypatch, quirk):
    monkeypatch.setattr(main, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    with pytest.raises(UsageError, match="quirk"):
        main.Server(ServerOptions(model=str(tiny_model), dump_dir=tmp_path, quirks=(quirk,)))


def test_before_and_after_loading_a_line_says_what_is_going_on_and_what_is_switched_on(
    tiny_model, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(main.Server, "serve", nothing)
    flip = "kv-bit-flip:request=0,layer=1,position=2,after_step=3"
    plain = {"model": str(tiny_model), "dump_dir": tmp_path, "threads": 1, "device": "cpu"}
    main.run(ServerOptions(**plain))
    main.run(
        ServerOptions(
            **plain, prefix_cache=True, checks=True, kv_quant_bits=8, record="tokens", quirks=(flip, "prefix-leak")
        )
    )
    out, err = capsys.readouterr()
    assert out == ""
    loading, off, again, on = err.splitlines()
    assert loading == again == f"loading {tiny_model} ..."
    assert off.endswith("record shape; prefix cache off; checks off; quirks none")
    assert "blocks of 16 tokens (int8), when exhausted: preempt" in on
    assert on.endswith(f"record tokens; prefix cache on; checks on; quirks {flip}, prefix-leak")


async def nothing(self, *, as_json) -> None:
    """In place of `Server.serve`."""


def test_options_make_an_engine_configuration(tmp_path):
    options = ServerOptions(model="m", dump_dir=tmp_path, kv_blocks=7, on_kv_exhausted=OnExhausted.RAISE)
    config = options.engine_config(100)
    assert (config.num_blocks, config.max_model_len, config.on_kv_exhausted) == (7, 100, OnExhausted.RAISE)
    with pytest.raises(UsageError):
        ServerOptions(model="m", dump_dir=tmp_path, max_model_len=101).engine_config(100)
    unchecked = ServerOptions(model="m", dump_dir=tmp_path, max_model_len=101)
    assert unchecked.engine_config(100, defects=Defects(positions_unchecked=True)).max_model_len == 101


@pytest.mark.parametrize(
    ("address", "url"), [(("127.0.0.1", 5), "http://127.0.0.1:5"), (("::1", 5, 0, 0), "http://[::1]:5")]
)
def test_the_ready_line(tmp_path, capsys, address, url):
    options = ServerOptions(model="m", dump_dir=tmp_path)
    main._announce(address, tmp_path / "a.ring", options, as_json=False)
    assert capsys.readouterr().out.splitlines() == [f"ring {tmp_path}/a.ring", f"dumps {tmp_path}", f"ready {url}"]
    main._announce(address, tmp_path / "a.ring", options, as_json=True)
    assert json.loads(capsys.readouterr().out)["ready"] == url
