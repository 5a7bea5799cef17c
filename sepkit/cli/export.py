"""`sepkit export`: a model as an ONNX file."""

from __future__ import annotations

from pathlib import Path


def main(
    model: str,
    *,
    out: str,
    int8: bool = False,
    manifest: str | None = None,
    first: int | None = None,
) -> Path:
    """Write a model as an ONNX graph, once ONNX Runtime agrees with torch and a recording is separated with it.

    The comparison is at batches of 1, 2 and 3 and at six lengths.

    The graph takes `mixture` (batch, samples) of any size at the model's rate, and gives `estimates` (batch, speakers,
    samples); `sepkit separate --model FILE.onnx` takes it.

    Args:
        model: MODEL to write
        out: file to write, FILE.onnx
        int8: quantize weights and activations to 8 bits (matrix products, LSTMs, convolutions), and measure what it
            costs
        manifest: mixtures to measure the cost of --int8 on; default: noise
        first: how many of them, from the beginning of the manifest; default: all

    Returns:
        The file.

    Raises:
        UserError: no such model, one that has no graph or differs from it, or a file that cannot be written.
    """
    import shutil
    import tempfile

    from sepkit.errors import UserError
    from sepkit.files import atomic_output, check_writable
    from sepkit.inference.exported import check_separates
    from sepkit.models import load_pretrained
    from sepkit.models.export.onnx_export import export_onnx, quantize_onnx

    if not int8 and (manifest is not None or first is not None):
        raise UserError("--manifest, --first: measure what --int8 costs; give them with it")
    loaded, kept = load_pretrained(model), Path(out)
    check_writable(kept.parent)
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / f"whole{kept.suffix}"
        report = export_onnx(loaded, whole)
        for length, difference in report.differences.items():
            print(f"{length} samples: differs from torch by {difference:.1e} of the largest sample")
        print(f"{report.num_bytes / 1e6:.2f} MB")
        check_separates(whole)
        final = whole
        if int8:
            from sepkit.inference.int8_cost import quantization_cost

            final = Path(temporary) / f"small{kept.suffix}"
            count = quantize_onnx(whole, final)
            print(f"int8: {count} operations, {final.stat().st_size / 1e6:.2f} MB")
            print(quantization_cost(whole, final, manifest, first=first))
            check_separates(final)
        with atomic_output(kept) as draft:
            shutil.copyfile(final, draft)
    return kept
