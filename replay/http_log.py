"""What aiohttp says of requests that came to nothing, in one line each.

A client that hangs up in the middle of a stream, or sends headers that are too long, is no fault of ours, and a
traceback for each would bury what is. Our own errors are logged, with theirs, by the handlers.
"""

from __future__ import annotations

import logging

from aiohttp.web import RequestPayloadError

from dumps.text import printable

THEIRS = (ConnectionError, RequestPayloadError)
"""Errors that a client causes: it has gone, or its body is not in the encoding that it names."""


class OneLine(logging.Filter):
    """Turns a record with a traceback into its message and the error's class and text.

    What a client caused is let through only at level DEBUG.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        if isinstance(error, THEIRS):
            if not self._logger.isEnabledFor(logging.DEBUG):
                return False
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        said = printable(record.getMessage())
        record.msg, record.args = "%s: %s: %s", (said, type(error).__name__, printable(str(error)))
        record.exc_info = record.exc_text = None
        return True


def make_http_logger(parent: logging.Logger) -> logging.Logger:
    """A logger below ``parent`` for `aiohttp.web.AppRunner`."""
    logger = parent.getChild("http")
    if not logger.filters:
        logger.addFilter(OneLine(logger))
    return logger
