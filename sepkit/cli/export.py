"""`sepkit export`: a model as an ONNX file."""

from pathlib import Path


def main(model: str, *, out: str) -> Path:
    """Write a model as an ONNX graph, once ONNX Runtime agrees with torch and a recording is separated with it.

    The comparison is at batches of 1, 2 and 3 and at six lengths.

    The graph takes `mixture` (batch, samples) of any size at the model's rate, and gives `estimates` (batch, speakers,
    samples); that of a causal model takes and returns a state, too. `sepkit separate --model FILE.onnx` takes it.

    Example:
        sepkit export exp/tasnet --out tasnet.onnx

    Args:
        model: MODEL to write
        out: file to write, FILE.onnx
    """
    import shutil
    import tempfile

    from sepkit.errors import UserError
    from sepkit.files import atomic_output, check_writable
    from sepkit.inference.batch.files import check_separates
    from sepkit.models import load_pretrained
    from sepkit.models.export.onnx_export import export_onnx
    from sepkit.models.storage.folders import SUFFIX

    if (kept := Path(out)).suffix.lower() != SUFFIX:
        raise UserError(f"--out {out}: expected a file that ends in {SUFFIX}")
    loaded = load_pretrained(model)
    check_writable(kept.parent)
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / f"whole{kept.suffix}"
        report = export_onnx(loaded, whole)
        for length, difference in report.differences.items():
            print(f"{length} samples: differs from torch by {difference:.1e} of the largest sample")
        print(f"{report.num_bytes / 1e6:.2f} MB")
        check_separates(whole)
        with atomic_output(kept) as draft:
            shutil.copyfile(whole, draft)
    return kept
