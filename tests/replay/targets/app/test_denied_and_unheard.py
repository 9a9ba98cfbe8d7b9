"""Programs that fail in a replay for want of what is not faked, or because computing takes no time there."""

from __future__ import annotations

from tests.small_programs import codes

DENIED = """
import ctypes

def main():
    library = ctypes.CDLL(None, use_errno=True)
    if library.mkdir(os.fsencode(os.getcwd() + "/made"), 0o700):
        number = ctypes.get_errno()
        raise PermissionError(number, os.strerror(number))
    library.rmdir(os.fsencode(os.getcwd() + "/made"))
    raise LookupError("made")

def locks():
    import multiprocessing
    with multiprocessing.Lock():
        raise LookupError("in the lock")

def breaks_off():
    import signal

    def ring(number, frame):
        raise TimeoutError("too long")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    for _ in range(100):
        sum(range(100_000))
    signal.setitimer(signal.ITIMER_REAL, 0)

def sleeps_too_long():
    import signal

    def ring(number, frame):
        raise TimeoutError("too long")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    time.sleep(1)
"""


def replayed(programs, entry):
    name = programs.write(DENIED)
    return programs.replay(programs.record(name, entry), f"{name}:{entry}").report


def test_what_the_system_denies_native_code_is_not_the_programs_failure(programs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = replayed(programs, "main")
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "program-unsupported")
    assert "the system denied the program" in report["findings"][0]["message"]


def test_a_semaphore_of_multiprocessing_is_named(programs):
    report = replayed(programs, "locks")
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "program-unsupported")
    assert "multiprocessing.Lock()" in report["findings"][0]["message"]


def test_an_alarm_that_broke_off_a_computation_does_not_come_again(programs):
    report = replayed(programs, "breaks_off")
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "program-unsupported")
    assert "came from an alarm" in report["findings"][0]["message"]


def test_an_alarm_that_broke_off_a_wait_comes_again(programs):
    report = replayed(programs, "sleeps_too_long")
    assert report["verdict"] == "reproduced"
    assert "program-unsupported" not in codes(report)
