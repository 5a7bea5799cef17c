"""A local web server that drops connections, returns errors and serves corrupt files."""

import contextlib
import io
import socket
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """A file and the server's behavior for it.

    Args:
        content: of the file.
        drop_after: bytes after which every connection breaks; None: none does.
        statuses: returned to the first requests instead of the file.
        corrupt: number of answers with a wrong byte in the middle.
        ranges: whether parts are served.
        length: whether Content-Length is sent, or the text to send as such.
    """

    content: bytes
    drop_after: int | None = None
    statuses: list[int] = field(default_factory=list)
    corrupt: int = 0
    ranges: bool = True
    length: bool | str = True
    seen: list[str | None] = field(default_factory=list)
    """The Range header of each request."""
    sent: int = 0
    """Bytes that went out."""


class Server:
    """Files by name at `url`."""

    def __init__(self) -> None:
        self.files: dict[str, Served] = {}
        files = self.files

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                served = files.get(self.path.lstrip("/"))
                if served is None:
                    self.send_error(404)
                    return
                asked = self.headers.get("Range")
                served.seen.append(asked)
                if served.statuses:
                    self.send_error(served.statuses.pop(0))
                    return
                _answer(self, served, asked)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def put(self, name: str, content: bytes, **ways: object) -> Served:
        """Serves `content` from now on."""
        served = Served(content, **ways)  # type: ignore[arg-type]
        self.files[name] = served
        return served

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


def _answer(handler: BaseHTTPRequestHandler, served: Served, asked: str | None) -> None:
    content, first = served.content, 0
    if asked is not None and served.ranges:
        first = int(asked.removeprefix("bytes=").rstrip("-"))
    if first >= len(content) and first:
        handler.send_response(416)
        handler.send_header("Content-Range", f"bytes */{len(content)}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    if served.corrupt:
        served.corrupt -= 1
        middle = len(content) // 2
        content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    body = content[first:]
    handler.send_response(206 if first else 200)
    if first:
        handler.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
    if served.length is not False:
        handler.send_header("Content-Length", str(len(body)) if served.length is True else served.length)
    handler.end_headers()
    body = body if served.drop_after is None else body[: served.drop_after]
    served.sent += len(body)
    handler.wfile.write(body)
    handler.close_connection = True


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Yield the address of a server that gives the same bytes as its answer to everything."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(65536)
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            # Ends the thread, which waits for a connection.
            server.shutdown(socket.SHUT_RDWR)


def tar_of(files: dict[str, bytes], *more: tarfile.TarInfo) -> bytes:
    """Return a tar.gz of files by name, and of further members, which are empty."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in more:
            archive.addfile(member)
    return buffer.getvalue()
