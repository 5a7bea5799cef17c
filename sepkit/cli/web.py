"""`sepkit web`: a page that separates in the browser."""

from pathlib import Path


def main(model: str, *, out: str, serve: bool = False, port: int = 8000, runtime: str | None = None) -> Path:
    """Make a web page that separates recordings in the browser with a model; they never leave the machine.

    Any file server can serve the folder. The page takes wav, mp3, flac and what else the browser plays, or records,
    and gives estimates at the model's rate.

    Example:
        sepkit web exp/tasnet --out page --serve

    Args:
        model: MODEL that `sepkit export` can export, or FILE.onnx
        out: folder for the page
        serve: serve it to this machine until Ctrl+C
        port: port of --serve; 0: any free one
        runtime: folder with the files of ONNX Runtime Web (default: fetched once (33 MB) into the user's cache)
    """
    import time

    from sepkit.reporting.web import serving, write_web_page

    folder = write_web_page(model, out, runtime)
    if serve:
        with serving(folder, port) as address:
            print(f"{address} shows the page; end with Ctrl+C", flush=True)
            while True:
                time.sleep(3600)
    return folder
