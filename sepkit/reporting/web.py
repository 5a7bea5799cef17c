"""A page that separates in the browser: the model as an ONNX graph, ONNX Runtime Web, and a few files of our own.

A plain file server is enough, and recordings never leave the machine that shows the page.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from threading import Thread
from typing import Any

from sepkit.choices import to_dict
from sepkit.corpora.archives import WEB_RUNTIME, WEB_RUNTIME_FILES
from sepkit.corpora.download import download
from sepkit.corpora.options import DownloadOptions
from sepkit.errors import UserError
from sepkit.extras import require
from sepkit.files import atomic_output, cache_folder, check_writable, write_json, write_text
from sepkit.inference.quality.predictor import read_quality
from sepkit.inference.runners.level import ModelLevel
from sepkit.inference.runners.views import SPEEDS
from sepkit.inference.separated import GOOD_DB, USABLE_DB
from sepkit.models import model_folder
from sepkit.models.export.graph_description import FEATURES
from sepkit.models.export.graph_file import Graph
from sepkit.models.published.shipped import ENCODERS, PREDICTION_ENCODER
from sepkit.models.storage.folders import GRAPH, is_onnx
from sepkit.version import __version__

ENCODER = "encoder.onnx"

MOST_SECONDS = 60
"""Longest recording that a page takes, because it is separated as a whole."""


def write_web_page(
    model: str, out: str | os.PathLike[str], runtime: str | os.PathLike[str] | None = None, home: str | None = None
) -> Path:
    """Write the page of a model into a folder, and return that; its `index.html` has to be served, not opened.

    Args:
        model: MODEL that can be exported, or what `sepkit export` wrote.
        out: the folder; files of a page that is there are replaced.
        runtime: folder with the files of ONNX Runtime Web; None: it is fetched once into the user's cache.
        home: address of the page that it links back to; None: no link.

    Raises:
        UserError: no such model, one that has no graph, a folder that cannot be written, or no runtime.
    """
    out = Path(out)
    check_writable(out)
    graph, folder = out / GRAPH, model_folder(model)
    source = find_runtime(runtime)
    name = Path(model).stem if is_onnx(model) else Path(model).name
    if folder is not None and (folder / GRAPH).is_file():
        model = str(folder / GRAPH)
    if is_onnx(model):
        loaded = Graph(model)
        with atomic_output(graph) as draft:
            shutil.copyfile(model, draft)
    else:
        require("torch", "onnx", what=f"the graph of {model}")
        from sepkit.models import load_pretrained
        from sepkit.models.export.onnx_export import export_onnx

        export_onnx(load_pretrained(folder or model), graph)
        loaded = Graph(graph)
    quality = None if folder is None else read_quality(folder, loaded.fingerprint, loaded.hypotheses)
    if quality is not None and not quality.fits_depth(loaded.steps):
        quality = None
    level = ModelLevel(loaded.sample_rate, loaded.signal_std, loaded.causal)
    description = {
        "name": name,
        "file": GRAPH,
        "bytes": graph.stat().st_size,
        "sample_rate": loaded.sample_rate,
        "hypotheses": loaded.hypotheses,
        "causal": _causal(loaded),
        "running_level": level.causal,
        "deviation": level.deviation,
        "good_db": GOOD_DB,
        "usable_db": USABLE_DB,
        "scored": "scores" in loaded.outputs,
        "features": {name: FEATURES[name] if loaded.state else name for name in loaded.features},
        "speeds": SPEEDS[: quality.views - 1] if quality is not None else [],
        "quality": None if quality is None else to_dict(quality),
        "encoder": None if quality is None else _write_encoder(out / ENCODER),
        "most_seconds": MOST_SECONDS,
        "version": __version__,
        "home": home,
    }
    write_json(out / "model.json", description)
    (out / "runtime").mkdir(exist_ok=True)
    for name in WEB_RUNTIME_FILES:
        with atomic_output(out / "runtime" / name) as draft:
            shutil.copyfile(source / name, draft)
    for asset in (resources.files("sepkit.reporting") / "assets" / "web").iterdir():
        write_text(out / asset.name, asset.read_text(encoding="utf-8"))
    return out


def _write_encoder(path: Path) -> dict[str, Any]:
    """Write the speaker encoder that decides whether predictions apply; return the settings of the page."""
    source = ENCODERS / PREDICTION_ENCODER / GRAPH
    encoder = Graph(source)
    with atomic_output(path) as draft:
        shutil.copyfile(source, draft)
    about = {"sample_rate": encoder.sample_rate, "fingerprint": encoder.fingerprint}
    return {"file": path.name, "bytes": path.stat().st_size, **about}


def _causal(graph: Graph) -> dict[str, Any] | None:
    """Return the settings with which a page runs a causal graph on a whole recording; None: another graph."""
    if not graph.state:
        return None
    state = [
        {"name": name, "shape": values.shape, "type": values.dtype.name} for name, values in graph.first_state().items()
    ]
    sizes = {"stride": graph.stride, "kernel_size": graph.kernel_size}
    return sizes | {"signal_mean": graph.signal_mean, "state": state}


def find_runtime(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder with the files of ONNX Runtime Web.

    Args:
        folder: one that has them; None: they are fetched into the user's cache.

    Raises:
        UserError: a file is missing from `folder`, or nothing can be fetched.
    """
    if folder is None:
        cache = cache_folder("web")
        folder = cache / WEB_RUNTIME
        if not folder.is_dir():
            download(DownloadOptions(name="onnxruntime-web", cache=cache, remove_archives=True))
    folder = Path(folder)
    if absent := sorted(name for name in WEB_RUNTIME_FILES if not (folder / name).is_file()):
        raise UserError(f"{folder}: has no {absent[0]}; give the folder that `sepkit download onnxruntime-web` makes")
    return folder


def page_files() -> frozenset[str]:
    """Return the names of all files that a page may have."""
    assets = (asset.name for asset in (resources.files("sepkit.reporting") / "assets" / "web").iterdir())
    return frozenset({GRAPH, ENCODER, "model.json", *assets, *(f"runtime/{name}" for name in WEB_RUNTIME_FILES)})


@contextmanager
def serving(folder: Path, port: int) -> Iterator[str]:
    """Inside the block, serve the page in a folder, and nothing else in it, to this machine alone; yield the address.

    Raises:
        UserError: a port that another program uses, or that may not be used.
    """
    handler = partial(_Handler, directory=str(folder))
    try:
        server = _Server(("127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        raise UserError(f"--port {port}: cannot be used ({error}); choose another, or 0 for a free one") from error
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing for clients that break off."""


class _Handler(SimpleHTTPRequestHandler):
    # Seconds that a client may be silent.
    timeout = 30
    # What the system's tables say of these differs, and browsers refuse modules and WebAssembly of other types.
    extensions_map = {  # noqa: RUF012  # as in the base class
        **SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".js": "text/javascript",
        ".wasm": "application/wasm",
        ".json": "application/json",
    }

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing for each request."""

    def send_head(self) -> Any:
        """Answer for files of the page, asked for under a name of this machine."""
        # Another site whose name leads here (DNS rebinding) must not read the model.
        if self.headers.get("Host", "").partition(":")[0] not in ("127.0.0.1", "localhost"):
            return self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        name = self.path.partition("?")[0].lstrip("/") or "index.html"
        if name not in page_files() or Path(self.directory, name).is_symlink():
            return self.send_error(HTTPStatus.NOT_FOUND)
        return super().send_head()

    def end_headers(self) -> None:
        """Add what keeps other sites from showing or reading the page."""
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        super().end_headers()
