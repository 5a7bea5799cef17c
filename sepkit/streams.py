"""Standard streams of the command: always there, with names of any file and nothing that a terminal would obey."""

from __future__ import annotations

import io
import os
import sys

from sepkit.cleaning import plain


class _Output(io.TextIOWrapper):
    """Standard output or standard error; if its reader is gone (`| head`), the work goes on unseen."""

    def write(self, text: str) -> int:
        """Write text; progress bars return to the beginning of a line and move up, strings of others do not."""
        start = "\r" if text.startswith("\r") else ""
        try:
            super().write(text if not text.strip("\n\x1b[A") else start + plain(text.removeprefix("\r")))
        except BrokenPipeError:
            self._discard()
        return len(text)

    def flush(self) -> None:
        """Write the buffered text."""
        try:
            super().flush()
        except OSError as error:
            self._discard()
            if not isinstance(error, BrokenPipeError):
                raise

    def _discard(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())


def open_streams() -> None:
    """Open streams that the caller has closed (`>&-`), for this process and its children, and sanitize printed text."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest descriptor that is free, which is that of the stream.
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            is_line_wise = stream.line_buffering or name == "stderr"
            encoding = stream.encoding
            output = _Output(stream.detach(), encoding, "backslashreplace", line_buffering=is_line_wise)
            setattr(sys, name, output)
