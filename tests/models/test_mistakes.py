"""Models that cannot be meant are refused in one line that names the field."""

from dataclasses import replace
from functools import partial

import pytest

from sepkit import config as c
from sepkit.models import build_model
from sepkit.models.filterbanks import FreeFilterbank
from sepkit.models.norms import build_norm
from sepkit.models.stft_filterbank import STFTFilterbank
from sepkit.registry import build
from tests.complaint import complaint

FREE = c.FreeFilterbankConfig(5, 4, 2, mapping=True)
STFT = c.STFTFilterbankConfig(32, 8)
COMPLEX = c.STFTFilterbankConfig(64, 32, complex_masks=True)
TINY = c.RecurrentConfig(hidden_size=6, num_layers=1)
LINEAR = c.DeterministicConfig(activation="linear")
FLOW = c.FlowPriorConfig()
PARTS = {"features": "real_imaginary", "complex_masks": True, "mapping": True, "compression": 1.0}
SEPREFORMER = c.SepReformerConfig(6, 2, 2, kernel_size=3, max_distance=4)
LOCOFORMER = c.TFLocoformerConfig(4, 1, 2, 8, 5, kernel_size=3, norm_groups=2)
SR_CORRNET = c.SRCorrNetConfig(8, num_heads=2)
TIGER = c.TIGERConfig(16000, 6, 4, num_heads=2)
SMALL = {
    c.ConvTasNetConfig: (8, c.ConvTasNetConfig()),
    c.DualPathRNNConfig: (9, c.DualPathRNNConfig(chunk_size=8, hop_size=4)),
    c.GatedRecurrenceConfig: (9, c.GatedRecurrenceConfig()),
    c.SepFormerConfig: (9, c.SepFormerConfig(8, num_heads=2)),
    c.SepReformerConfig: (5, SEPREFORMER),
    c.TFLocoformerConfig: (18, LOCOFORMER),
    c.SRCorrNetConfig: (18, SR_CORRNET),
    c.TIGERConfig: (642, TIGER),
}
MASKERS = [
    (c.ConvTasNetConfig, {"causal": True}, "norm: found global_layer_norm"),
    (c.DualPathRNNConfig, {"hop_size": 9}, "hop_size: found 9, expected at most chunk_size 8"),
    (c.DualPathRNNConfig, {"norm": "cumulative_layer_norm"}, "norm: cumulative_layer_norm needs an order in time"),
    (c.DualPathRNNConfig, {"dropout": 0.1}, "dropout: found 0.1 with num_layers 1"),
    (c.DualPathRNNConfig, {"rnn": "rnn"}, "rnn: found 'rnn'"),
    (c.GatedRecurrenceConfig, {"bands": 10}, "bands: found 10, expected at most 9"),
    (c.SepFormerConfig, {"num_heads": 3}, "model_dim: found 8, expected an even multiple of num_heads 3"),
    (c.SepFormerConfig, {"model_dim": 7, "num_heads": 1}, "model_dim: found 7"),
    (c.SepReformerConfig, {"channels": 7}, "channels: found 7, expected a multiple of num_heads 2"),
    (c.SepReformerConfig, {"kernel_size": 4}, "kernel_size: found 4"),
    (c.TFLocoformerConfig, {"channels": 5}, "channels: found 5, expected a multiple of norm_groups 2"),
    (c.TFLocoformerConfig, {"attention_dim": 6}, "attention_dim: found 6"),
    (c.SRCorrNetConfig, {"channels": 10}, "channels: found 10, expected an even multiple of num_heads 2"),
    (c.TIGERConfig, {"channels": 7}, "channels: found 7, expected a multiple of num_heads, 2"),
    (c.TIGERConfig, {"sample_rate": 8000}, "sample_rate: found 8000 with 321 bins"),
]


@pytest.mark.parametrize(("kind", "changes", "words"), MASKERS)
def test_maskers(kind, changes, words):
    dim, config = SMALL[kind]
    structure = {"encoding_dim": dim, "hypotheses": 2, "values_per_dimension": 1}
    assert complaint(lambda: build(replace(config, **changes), **structure)).startswith(f"model.masker.{words}")


def variational(**fields) -> c.ModelConfig:
    free = c.FreeFilterbankConfig(num_filters=8)
    latents = {"encoding": c.GaussianConfig(), "masks": c.LogNormalConfig()}
    return c.ModelConfig(**({"filterbank": free, "masker": TINY} | latents | fields))


def of_16_khz() -> c.ModelConfig:
    return c.ModelConfig(8000, filterbank=c.STFTFilterbankConfig(640, 160, **PARTS), masker=TIGER, masks=LINEAR)


def mapped(**bank) -> c.ModelConfig:
    return c.ModelConfig(8000, filterbank=c.STFTFilterbankConfig(16, 8, **bank), masker=SR_CORRNET, masks=LINEAR)


def tiny(**fields) -> c.ModelConfig:
    return c.ModelConfig(**({"masker": TINY} | fields))


def sepreformer(**fields) -> c.ModelConfig:
    gelu = c.DeterministicConfig(activation="gelu")
    return c.ModelConfig(**({"filterbank": FREE, "encoding": gelu, "masker": SEPREFORMER, "masks": LINEAR} | fields))


NEVER_NEGATIVE = [c.DeterministicConfig(a) for a in ("relu", "sigmoid", "softmax", "softplus", "exp")]
NEVER_NEGATIVE += [c.GaussianConfig("softplus"), c.LogNormalConfig(), c.GammaConfig(), c.BetaConfig()]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (tiny(encoding=c.DeterministicConfig("softmax")), "model.encoding.activation"),
        (tiny(filterbank=STFT, encoding=c.DeterministicConfig("relu")), "model.encoding.activation"),
        (tiny(filterbank=STFT, encoding=c.GammaConfig()), "model.encoding.activation: found softplus"),
        (tiny(filterbank=STFT, encoding=c.LogNormalConfig()), "model.encoding.activation: found exp"),
        (tiny(encoding=c.GaussianConfig("softmax")), "model.encoding.activation: found softmax"),
        *[(tiny(filterbank=COMPLEX, masks=masks), "model.masks: found ") for masks in NEVER_NEGATIVE],
        (of_16_khz(), "found bands for 16000 Hz, but model.sample_rate is 8000"),
        (mapped(**(PARTS | {"mapping": False})), "set model.filterbank.mapping to true"),
        (mapped(**(PARTS | {"compression": 0.3})), "compression to 1"),
        (sepreformer(masks=c.DeterministicConfig("relu")), "model.masks: found "),
        (tiny(filterbank=STFT, masker=LOCOFORMER), "masker tf_locoformer: found features of 17 values a frame"),
        (variational(encoding_prior=FLOW, encoding=c.GammaConfig()), "flow is a density of real numbers"),
        (variational(mask_prior=FLOW), "model.mask_prior: found flow"),
        (variational(mask_prior=c.AdaptivePriorConfig()), "model.mask_prior: found adaptive"),
    ],
)
def test_models(config, words):
    assert words in complaint(lambda: build_model(config))


HALF, QUARTER = (partial(STFTFilterbank, 64, stride) for stride in (32, 16))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (partial(FreeFilterbank, kernel_size=8, stride=9), "stride"),
        (partial(FreeFilterbank, kernel_size=8, stride=4, padding=5), "padding"),
        (partial(FreeFilterbank, output_padding=8, stride=8), "output_padding"),
        (partial(STFTFilterbank, kernel_size=255), "kernel_size"),
        (partial(STFTFilterbank, kernel_size=256, stride=129), "stride"),
        (partial(STFTFilterbank, values_per_dimension=3), "model.encoding"),
        (partial(HALF, features="real_imaginary"), "'real_imaginary', expected magnitude, or with complex_masks: true"),
        (partial(HALF, features="phase", complex_masks=True), "features: found 'phase'"),
        (partial(HALF, mapping=True, complex_masks=True), "found True, expected false, or features: real_imaginary"),
        (partial(HALF, mapping=True), "mapping: found True"),
        *(
            (partial(QUARTER, synthesis_size=size), f"synthesis_size: found {size}, expected 0, or 17 to 32")
            for size in (16, 33)
        ),
        (partial(HALF, synthesis_size=64), "found 64, expected 0, or 33 to 63"),
        (partial(QUARTER, synthesis_size=32, like_torch=True), "like_torch: found True, expected false"),
        (partial(build_norm, "gLN", 5), "norm: found 'gLN'"),
    ],
)
def test_parts(make, words):
    assert words in complaint(make)
