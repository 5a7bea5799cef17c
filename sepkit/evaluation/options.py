"""Options of an evaluation, as `sepkit evaluate` and `sepkit.evaluate` take them."""

from dataclasses import dataclass
from typing import Annotated

from sepkit.errors import Bounds
from sepkit.inference.options import MOST_VIEWS
from sepkit.limits import DEPTH_STEPS
from sepkit.numbers import Positive, Workers


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation.

    Args:
        metrics: Metrics to measure: si_sdr, sdr, snr, bss_eval (SIR, SAR), stoi, estoi, pesq, blr, words, emd (of
            scored hypotheses) (default: si_sdr, sdr, stoi, pesq, blr if the training deviation is known, words with
            --asr-command, and the SI-SDR that the model predicts).
        signal_std: Deviation that blr divides references by (default: the model's).
        asr_command: Command that prints the transcript of a wav ('CMD {wav}'), for word errors against the manifest's
            text; with --meeting its inputs are whole tracks, and tcpWER needs lines '[START --> END] TEXT'.
        count_speakers: Measure with an unknown number of speakers: match only the hypotheses that the model reports as
            speakers, and count missed sources and extra speakers.
        calibration: Also measure how well the model predicts its own SI-SDR (a model that sepkit calibrate has fitted
            the predictor of): correlation, interval, mean SI-SDR of the best x %.
        compare: Folder of another evaluation of the same mixtures: adds paired differences from it.
        device: Device of a model that is given by its name: cpu, cuda, cuda:1 ..., or auto: an accelerator if there
            is one.
        depth_steps: Steps of a continuous-depth model. With several, there is one evaluation for each in DIR/steps_N,
            and "by_depth_steps" in summary.json, whose other figures are those of the model's own number, else of the
            middle one (default: the model's own).
        views: Number of views of a mixture that estimates are averaged over. Two also predict the SI-SDR of a model
            without a predictor (default: the model's own).
        whole_seconds: Length of mixtures up to which they are separated as a whole, seconds, as in `sepkit separate`;
            inf: all, as benchmarks measure.
        processes: Number of processes that compute metrics beside the model (default: for 100 mixtures or more, one per
            CPU if the model leaves the CPUs free, else half of that).
    """

    metrics: list[str] | None = None
    signal_std: Positive | None = None
    asr_command: str | None = None
    count_speakers: bool = False
    calibration: bool = False
    compare: str | None = None
    device: str = "auto"
    depth_steps: Annotated[list[int] | None, Bounds(ge=1, le=DEPTH_STEPS)] = None
    views: Annotated[int, Bounds(ge=1, le=MOST_VIEWS)] | None = None
    whole_seconds: Annotated[float, Bounds(ge=0)] | None = None
    processes: Workers | None = None
