from __future__ import annotations

import zlib

from dumps.exchanges.match_key import match_key
from dumps.redact import redact
from dumps.schema import state_pb2 as pb

SECRET = b"sk-aaaaBBBBccccDDDDeeee1111"


def make_exchange(*pieces: bytes, **fields: object) -> pb.RuntimeState:
    state = pb.RuntimeState()
    state.manifest.record_level = "full"
    state.program.kind = "block"
    exchange = state.exchanges.add(id="x0", direction="out", framing="wire", method="POST", url="http://a.test/b?q=1")
    exchange.sent_ns = 1
    for piece in pieces:
        exchange.chunks.add(data=piece, size=len(piece), delay_ns=1)
    for name, value in fields.items():
        setattr(exchange, name, value)
    return state


def test_what_a_system_call_gave_stays_unless_it_is_text_of_somebody():
    """A replay needs the numbers of a stat; its own words for a result are few."""
    state = make_exchange()
    status = "st_mode=33188 st_ino=7 st_size=812 st_mtime_ns=1700000000000000000"
    given = ["0", "-1", "0x7f", "?", "None", status, "Dear Ann, st_size=3", f"st_size={SECRET.decode()}"]
    for one in given:
        state.syscalls.add(name="stat", args=["notes.txt"], ret=one)
    redacted = redact(state)
    assert [one.ret for one in redacted.state.syscalls] == [*given[:6], "REMOVED", "REMOVED"]
    strict = redact(state, prompt=True).state
    assert [one.ret for one in strict.syscalls] == [*given[:3], "REMOVED", "None", "REMOVED", "REMOVED", "REMOVED"]


def test_a_secret_that_chunks_cut_is_masked_at_its_length():
    body = b'{"token": "' + SECRET + b'", "rest": 1}'
    wire = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    at = wire.index(SECRET) + 5
    state = make_exchange(wire[:at], wire[at:])
    after = redact(state).state.exchanges[0]
    joined = b"".join(chunk.data for chunk in after.chunks)
    assert joined == wire.replace(SECRET, b"x" * len(SECRET))
    assert [chunk.size for chunk in after.chunks] == [at, len(wire) - at]


def test_a_cookie_in_a_head_that_no_parser_takes_is_masked():
    wire = b"HTTP/1.1 200 OK\r\nset-cookie: id=hunter2; Path=/\r\ncontent-length: 0\r\n\r\nmore than it said"
    after = redact(make_exchange(wire)).state.exchanges[0]
    assert after.chunks[0].data == wire.replace(b"hunter2", b"xxxxxxx")


def test_a_compressed_body_with_a_secret_is_not_kept():
    body = zlib.compress(b'{"token": "' + SECRET + b'"}', wbits=31)
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body)
    after = redact(make_exchange(head + body)).state.exchanges[0]
    assert after.chunks[0].data == b""
    assert after.chunks[0].size == len(head + body)


def test_requests_that_only_a_secret_told_apart_are_counted_anew():
    state = make_exchange(request_body=b'{"api_key": "one"}', task="Task-1")
    other = state.exchanges.add()
    other.CopyFrom(state.exchanges[0])
    other.id, other.request_body = "x1", b'{"api_key": "two"}'
    after = redact(state).state.exchanges
    assert match_key(after[0]) == match_key(after[1])
    assert [one.occurrence for one in after] == [0, 1]


def test_with_prompt_equal_requests_stay_equal_and_others_different():
    state = make_exchange(request_body=b'{"a": 1, "b": 2}')
    state.exchanges[0].request_headers.add(key="content-type", value="application/json")
    for number, body in enumerate([b'{"b": 2, "a": 1}', b'{"a": 3}'], 1):
        one = state.exchanges.add()
        one.CopyFrom(state.exchanges[0])
        one.id, one.request_body, one.occurrence = f"x{number}", body, number
    after = redact(state, prompt=True).state.exchanges
    keys = [match_key(one) for one in after]
    assert keys[0] == keys[1] != keys[2]
    assert all("a.test" not in one.url and not one.request_body for one in after)
    assert [header.value for header in after[0].request_headers] == ["application/json"]
