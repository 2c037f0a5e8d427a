"""Names of threads as the system shows them."""

from __future__ import annotations

import threading
from pathlib import Path

from klamm.controller.controller_runner import THREAD_NAME
from klamm.server import thread_names


def system_name(thread: threading.Thread) -> str:
    return Path(f"/proc/self/task/{thread.native_id}/comm").read_text().rstrip("\n")


def test_the_system_shows_the_names() -> None:
    done = threading.Event()
    before = system_name(threading.main_thread())
    thread = threading.Thread(target=done.wait, name=THREAD_NAME)
    thread.start()
    try:
        thread_names.publish()
        assert system_name(thread) == THREAD_NAME[:15] == "controller-even"
        assert system_name(threading.main_thread()) == before
    finally:
        done.set()
        thread.join()
    thread_names.publish()
