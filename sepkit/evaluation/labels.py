"""What columns of scores are called on axes and in tables."""

from __future__ import annotations

__all__ = ["LABELS", "label_of", "short_label_of"]

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
    "attenuation_db": "attenuation of silent sources [dB]",
    "blr_nats_per_sample": "log evidence [nats per sample]",
    "stoi": "STOI",
    "estoi": "extended STOI",
    "pesq": "PESQ",
    "pesq_nb": "PESQ, narrow band",
    "pesq_wb": "PESQ, wide band",
    "word_accuracy": "word accuracy",
    "speaker_count_accuracy": "speaker count accuracy",
    "sex_pair": "sexes",
    "overlap_ratio": "overlap",
    "level_difference_db": "level difference [dB]",
    "input_si_sdr_db": "SI-SDR of the mixture [dB]",
}


def label_of(column: str) -> str:
    """What a column of scores is called on an axis: its name in the field's words, and its unit."""
    if column in LABELS:
        return LABELS[column]
    for ending, unit in (("_db", "dB"), ("_nats", "nats"), ("_seconds", "s"), ("_bits", "bits"), ("_hz", "Hz")):
        if column.endswith(ending):
            return f"{column[: -len(ending)].replace('_', ' ')} [{unit}]"
    return column.replace("_", " ")


def short_label_of(column: str) -> str:
    """What a column of scores is called in the heading of a table."""
    short = {
        "si_sdri_db": "SI-SDRi [dB]",
        "sdri_db": "SDRi [dB]",
        "snri_db": "SNRi [dB]",
        "mcl_si_sdr_db": "MCL SI-SDR [dB]",
    }
    return short.get(column) or label_of(column)
