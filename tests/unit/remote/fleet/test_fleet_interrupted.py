"""Ctrl-C while a fleet waits for its workers: it waits until each has stopped its job."""

import _thread
import threading

import pytest

from remote.fleet.fleet import Fleet


@pytest.mark.usefixtures("restored_signals")
def test_a_worker_that_still_works_when_ctrl_c_comes_is_waited_for() -> None:
    may_end, done = threading.Event(), threading.Event()

    def work() -> None:
        may_end.wait(60.0)
        done.set()

    threading.Thread(target=work, daemon=True).start()
    threading.Timer(0.05, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        Fleet._wait_all([done])
    assert not done.is_set()
    threading.Timer(0.05, may_end.set).start()
    Fleet._wait_all([done])
    assert done.is_set()
