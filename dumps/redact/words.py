"""Text that our own code wrote, told from text of people.

A failure's message is part of what a verdict compares, and a ledger's notes say what a dump lacks; both can quote
anything. What is made of nothing but the words of our own messages, numbers and ids of requests is kept even where no
text may stay: nobody's text is in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_CHARACTERS = 1000

_WORD = re.compile(r"[A-Za-z]+")
_AROUND = ".,:;()'\"`"
_LONG_NUMBER = re.compile(r"[0-9]{10,}")
_ID_EDGE = "[A-Za-z0-9_-]"

WORDS = frozenset(
    """
a abort about adds admission admit after all allocate allocation allocator an and anew another answer answers
are arrival arrives as asked at be become becomes before began behind between bias bit block blocks by byte
bytes cache cached called came can cancelled cannot cause caused change changes choose client clock committed
compute computed confidence contains contents contradict copied copies cores could count counted counts cut
damage damaged deadline decisions derived did died differ disagree disk does done draw drawn dump each early
either element else end ended ends engine engines eos equal error event events every evict eviction exchanges
exhausted exit exited exponent fact failed failure fallback fault fewer fields fills finished finite first fit
float for foreign format forward found free freed fresh from full further gets give given gives go goes gone got
had handed happened happens has hash hashes have head headers here history hold holds host id ids if in
incomplete inf inference infinite infinity integer into is it its kb keeps kept kernel kernels key keyed
keyframes keys know known kv large larger last later layer leaves ledger len lengths less let level lies like
limit list live loading log logit logits look loss lost machine made make many mapped max may memory mib minute
missing mode model more moved ms multinomial multiplies must name names nan needed needs never new newest next
no non none not nothing num number numbers of often older on once one ones only or order other others out output
outran outside over overflow parameter parameters parts pass past people permutation place planned policy pool
position power pplx preempt prefill prefix pressure probabilities probability process program prompt pull put
quantised queue quirk quote raise raised raises ran reached read readers reads reason reciprocal record recorded
recorder recording records redact reference references registered release released removed replay request
requests rest restore reuse ring room row rows running s said salt salvaged same say says scale scaled scales
seam secret section sections segmentation self sent server set several shape share shows sigkill since size
skipped slot slots small so softmax some something soon stacks stand start state stay step steps still stop
stored stray string strings such synthesised table tables take taken tell tells temperature tensor text texts
than that the their them there they this threads threshold timeout to token tokens too top tracker turns twice
under unfinished uninitialised unknown unwritten up use value values verified wait waited waiting waits was were
what when where which while whole will with within without word would write writes writing written wrote yet
""".split()  # noqa: SIM905 - five hundred quotes say no more
)
"""Words of the messages of our engine and of the notes of our recorder. A test holds the list against them."""


def in_our_words(text: str, ids: Mapping[str, str]) -> str | None:
    """``text`` with the ids among its words replaced as ``ids`` says, None where it may hold text of people.

    A number of ten digits or more is not taken for ours.
    """
    if len(text) > MAX_CHARACTERS or not text.isascii():
        return None
    words, ours = text.split(" "), []
    for word in words:
        core = word.strip(_AROUND)
        ours.append(word.replace(core, ids[core]) if core in ids else word)
    rest = " ".join(word for word in words if word.strip(_AROUND) not in ids)
    if _LONG_NUMBER.search(rest) or not all(found.lower() in WORDS for found in _WORD.findall(rest)):
        return None
    return " ".join(ours)
