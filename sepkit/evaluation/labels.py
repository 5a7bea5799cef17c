"""Names of columns on axes and in tables, and the columns that are no scores."""

RATES = ("encoding_rate_nats_per_frame", "mask_rate_nats_per_frame", "rate_nats_per_dimension")
"""Columns of an utterance that a model with variational latents fills."""

ALIVE_SHARES = ("encoding_alive_share", "mask_alive_share")
"""Columns of an utterance: the shares of its latent dimensions that a variational model uses."""

MIXTURE_ELBO = "mixture_elbo_nats_per_sample"
"""Column of an utterance that a model with variational encodings fills: the bound on the mixture's evidence."""

FROM_LATENTS = (*RATES, *ALIVE_SHARES, MIXTURE_ELBO)
"""All columns of an utterance that follow from latents; its sources do not have them."""

BY_DEPTH = "by_depth_steps"
"""Key of summary.json: number of steps of a model of continuous depth -> its metrics."""

PREDICTED = "predicted_si_sdr_db"
"""Column of a source that a model fills which predicts how good its estimates are."""

WEIGHTED = ("weighted_si_sdr_db", "drawn_si_sdr_db")
"""Columns of a source that a model with scores fills: SI-SDR of the sum of all hypotheses, weighted by their scores,
and the expected SI-SDR of one drawn with these weights."""

BOUNDS = ("predicted_low_db", "predicted_high_db")
"""Columns of a source: the ends of the interval about the prediction."""

PROPERTIES = ("sex_pair", "overlap_ratio", "level_difference_db", "duration_seconds", "input_si_sdr_db")
"""Columns of utterances.csv that describe the mixture."""

NO_SCORES = frozenset({*FROM_LATENTS, PREDICTED})
"""Columns that are not scores: higher is neither better nor worse."""

LABELS = {
    "si_sdr_db": "SI-SDR [dB]",
    "si_sdri_db": "SI-SDR improvement [dB]",
    "sdr_db": "SDR [dB]",
    "sdri_db": "SDR improvement [dB]",
    "sir_db": "SIR [dB]",
    "sar_db": "SAR [dB]",
    "snr_db": "SNR [dB]",
    "snri_db": "SNR improvement [dB]",
    "mcl_si_sdr_db": "SI-SDR of best hypothesis [dB]",
    "weighted_si_sdr_db": "SI-SDR of the weighted sum of hypotheses [dB]",
    "drawn_si_sdr_db": "SI-SDR of a hypothesis drawn by its score [dB]",
    "emd_si_sdr_db": "SI-SDR of hypotheses moved to sources [dB]",
    "attenuation_db": "attenuation of silent sources [dB]",
    "blr_nats_per_sample": "log evidence [nats per sample]",
    "stoi": "STOI",
    "estoi": "extended STOI",
    "pesq": "PESQ",
    "word_accuracy": "word accuracy",
    "speaker_count_accuracy": "correct speaker count [share of all mixtures]",
    "sex_pair": "sexes",
    "overlap_ratio": "overlap",
    "level_difference_db": "level difference [dB]",
    "input_si_sdr_db": "SI-SDR of the mixture [dB]",
    "encoding_rate_nats_per_frame": "encoding rate [nats per frame]",
    "mask_rate_nats_per_frame": "mask rate [nats per frame]",
    "encoding_alive_share": "share of alive dimensions, encoding",
    "mask_alive_share": "share of alive dimensions, masks",
    "rate_nats_per_frame": "rate [nats per frame]",
    "rate_nats_per_dimension": "rate [nats per dimension]",
    "mixture_elbo_nats_per_sample": "bound on the mixture's evidence [nats per sample]",
    "blr_nll_nats_per_sample": "distortion [nats per sample]",
    "predicted_si_sdr_db": "predicted SI-SDR [dB]",
    "hard_cost": "cost of the best hypotheses",
}


def label_of(column: str) -> str:
    """Return the name on an axis of a column of utterances.csv or metrics.jsonl: the field's term, and its unit."""
    if column in LABELS:
        return LABELS[column]
    for ending, unit in (("_db", "dB"), ("_nats", "nats"), ("_seconds", "s"), ("_bits", "bits"), ("_hz", "Hz")):
        if column.endswith(ending):
            return f"{column[: -len(ending)].replace('_', ' ')} [{unit}]"
    return column.replace("_", " ")


def short_label_of(column: str) -> str:
    """Return a column's name in the heading of a table."""
    short = {
        "si_sdri_db": "SI-SDRi [dB]",
        "sdri_db": "SDRi [dB]",
        "snri_db": "SNRi [dB]",
        "mcl_si_sdr_db": "MCL SI-SDR [dB]",
    }
    return short.get(column) or label_of(column)
