"""A thread that the replay refuses: whether the failure that came back is still the recorded one."""

from __future__ import annotations

import pytest

from tests.small_programs import codes, says

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

CHECKS = """
import threading
from concurrent.futures import ThreadPoolExecutor

def check(url):
    return json.loads(get(url + "/list"))["price"]

def unguarded(url):
    thread = threading.Thread(target=check, args=(url,), name="refresher")
    thread.start()
    thread.join()
    check(url)

def unnamed(url):
    thread = threading.Thread(target=check, args=(url,))
    thread.start()
    thread.join()
    check(url)

def falls_back(url):
    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(check, url).result()
        except Exception as error:
            if isinstance(error, KeyError):
                raise
        return check(url)

def nap():
    try:
        time.sleep(0.01)
    except Exception:
        pass

def late(url):
    text = get(url + "/list")
    def fails():
        nap()
        parse(text)
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()
    parse(text)

def parse(text): return json.loads(text)["price"]

def poll(url):
    try:
        get(url + "/news")
    except Exception:
        pass

def beside(url):
    thread = threading.Thread(target=poll, args=(url,), name="poller")
    thread.start()
    thread.join()
    check(url)

def sleeper(url):
    thread = threading.Thread(target=nap)
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(parse, get(url + "/list")).result()
"""


@pytest.mark.parametrize("entry", ["unguarded", "unnamed", "falls_back", "late"])
def test_what_a_refused_thread_had_been_told_is_not_failed_on_by_another(programs, entry):
    name = programs.write(CHECKS)
    dump, _ = programs.record_served(name, says('{"a": 1}'), says('{"a": 1}'), entry=entry)
    report = programs.replay(dump, f"{name}:{entry}").report
    assert report["verdict"] == "inconclusive"
    assert report["findings"][0]["code"] == "program-unsupported"
    assert "in the thread" in report["findings"][0]["message"]
    assert report["findings"][0]["remedy"]


@pytest.mark.parametrize(("entry", "answers"), [("beside", 2), ("sleeper", 1)])
def test_a_refused_thread_that_has_nothing_to_do_with_the_failure_is_told_only(programs, entry, answers):
    name = programs.write(CHECKS)
    dump, _ = programs.record_served(name, *[says('{"a": 1}')] * answers, entry=entry)
    report = programs.replay(dump, f"{name}:{entry}").report
    assert report["verdict"] == "reproduced"
    assert "unsupported" in codes(report)
