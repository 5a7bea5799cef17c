"""`sepkit stream`: sound from standard input, estimates out at once."""

import os
from typing import TYPE_CHECKING, cast

from sepkit.cli._parser import DEVICE
from sepkit.inference.options import Levels, Precision, SampleFormat

if TYPE_CHECKING:
    from io import BufferedIOBase


def main(
    source: str = "-",
    *,
    model: str | None = None,
    sample_rate: int | None = None,
    sample_format: SampleFormat | None = None,
    levels: Levels = "mixture",
    device: str = DEVICE,
    precision: Precision = "float32",
) -> None:
    """Separate standard input, wav or raw PCM, as it comes in; write the estimates to standard output, interleaved.

    Example:
        sepkit stream < recording.wav > estimates.pcm

    Args:
        source: input, -: standard input, a wav (its channels are averaged) or mono PCM
        model: MODEL, which must be causal (default: boxed_8k_causal, which ships with sepkit)
        sample_rate: sample rate in Hz (default: that of the wav; for PCM that of the model, which has the least
            latency)
        sample_format: sample format of PCM: 16-bit integers, or floats with full scale 1 (default: that of the wav; for
            PCM: s16le, if the first bytes look like it)
        levels: level of the estimates. mixture: each at its level in the mixture so far; model: as the model outputs it
        precision: number format; bfloat16 is faster for dual_path_rnn on processors that support it
    """
    import sys

    from sepkit.cli._threads import limit_small_models_to_one_thread
    from sepkit.errors import UserError

    if source != "-":
        raise UserError(f"{source}: expected -, standard input (sepkit stream - < {source}); files: sepkit separate")
    if sys.stdin.isatty():
        raise UserError("standard input is a terminal, expected wav or raw PCM; pipe a recording into it")
    from sepkit.inference.live.pipe import open_pipe, separate_pipe
    from sepkit.inference.loading import load_model
    from sepkit.models.published.shipped import DEFAULT_CAUSAL_MODEL

    model = model or DEFAULT_CAUSAL_MODEL
    separator = load_model(model, device, predict=False, precision=precision)
    limit_small_models_to_one_thread(separator)
    # Its type hides that it is buffered.
    pipe = open_pipe(cast("BufferedIOBase", sys.stdin.buffer), sample_rate, sample_format)
    with separator.streaming(pipe.sample_rate, levels) as stream:
        print(
            f"sepkit stream: {stream.hypotheses} channels of {pipe.sample_format} at {stream.sample_rate} Hz, latency "
            f"{1000 * stream.latency_seconds:.2f} ms",
            file=sys.stderr,
            flush=True,
        )
        try:
            report = separate_pipe(stream, pipe, sys.stdout.buffer)
        except BrokenPipeError:
            # The reader is gone. Standard output must not be flushed again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
    print(f"sepkit stream: {report}", file=sys.stderr)
