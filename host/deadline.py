"""Calls that may never come back, with a deadline."""

import queue
import threading
from collections.abc import Callable
from typing import Any


class Overdue(Exception):
    """A call did not come back in time; it may still be under way."""


class Courier:
    """Makes calls on a thread of its own, one after the other, so that the caller can stop waiting for one.

    A driver that hangs inside the kernel cannot be called off: the thread is then given up, and every later call is
    overdue at once. It is a daemon, so that it does not keep the program from ending.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        self._answers: queue.SimpleQueue = queue.SimpleQueue()
        self._number = 0
        self._stuck = False
        threading.Thread(target=self._work, daemon=True).start()

    def call(self, seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(*arguments)``, its exceptions included. Raises :exc:`Overdue` after ``seconds``."""
        if self._stuck:
            raise Overdue("an earlier access never came back")
        self._number += 1
        self._calls.put((self._number, function, arguments))
        while True:
            try:
                number, value, error = self._answers.get(timeout=seconds)
            except queue.Empty:
                self._stuck = True
                raise Overdue(f"no answer within {seconds:g} s") from None
            # Ctrl-C may have kept an earlier caller from taking its answer.
            if number == self._number:
                break
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """End the thread, once a call under way has come back."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            number, function, arguments = call
            value, failure = None, None
            try:
                value = function(*arguments)
            except BaseException as error:
                failure = error
            self._answers.put((number, value, failure))
