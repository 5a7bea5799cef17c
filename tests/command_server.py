"""A `sepkit` for recipes in tests that starts at once: a command is a fork of a process that has imported everything.

A recipe runs a dozen commands, and each would spend seconds on the imports of torch and lightning. `serving(folder)`
starts the process and writes FOLDER/sepkit. That script hands its arguments, environment, folder and standard streams
over a socket, and ends when the command ends. The command is still `sepkit.cli.main` in its own process.
"""

import array
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

IN_SEPKIT = ("evaluation.evaluate", "inference.batch.files", "inference.calibration", "reporting.page", "training.run")
IMPORTED = ("lightning.pytorch", "scipy.signal", "scipy.stats", *(f"sepkit.{name}" for name in IN_SEPKIT))

CLIENT = """#!{python} -SE
import array, json, os, socket, sys
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({socket!r})
    streams = array.array("i", [0, 1, 2])
    connection.sendmsg([len(request).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    connection.sendall(request)
    answer = connection.recv(1)
sys.exit(answer[0] if answer else 70)
"""


@contextlib.contextmanager
def serving(folder: Path, environment: dict[str, str]) -> Iterator[Path]:
    """Serve commands, and give the path of the `sepkit` that asks for them; `environment` is that of the imports."""
    path, program = folder / "socket", folder / "sepkit"
    server = subprocess.Popen([sys.executable, __file__, str(path)], env=environment, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        program.write_text(CLIENT.format(python=sys.executable, socket=str(path)))
        program.chmod(0o755)
        yield program
    finally:
        server.kill()
        server.wait()


def _serve(path: str) -> None:
    for module in IMPORTED:
        __import__(module)
    # Calibration separates further recordings of this many mixtures, which takes most of its time.
    sys.modules["sepkit.inference.calibration"].MOST_HEARD = 3
    # Only a process of one thread may fork and continue.
    assert threading.active_count() == 1, threading.enumerate()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            # The grandchild has no parent, so no command has to be waited for here.
            child = os.fork()
            if child == 0:
                if os.fork() == 0:
                    listener.close()
                    _run(connection)
                os._exit(0)
            os.waitpid(child, 0)
            connection.close()


def _run(connection: socket.socket) -> None:
    streams = array.array("i")
    head, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(3 * streams.itemsize))
    for _, _, data in ancillary:
        streams.frombytes(data)
    length, request = int.from_bytes(head, "big"), b""
    while len(request) < length:
        request += connection.recv(length - len(request))
    arguments, folder, environment = json.loads(request)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # As a new process opens them: those of before remember what they stood for.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    code = 70
    try:
        from sepkit.cli.main import main

        code = main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        connection.sendall(bytes([code]))
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
