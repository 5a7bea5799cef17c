"""Configurations of models with some hundred parameters. Tests share them, and change copies of them alone."""

from dataclasses import replace

from sepkit import config as c

FREE = c.FreeFilterbankConfig(num_filters=8)
RECURRENT = c.ModelConfig(filterbank=FREE, masker=c.RecurrentConfig(hidden_size=4, num_layers=1))
VARIATIONAL = replace(RECURRENT, encoding=c.GaussianConfig("linear"), masks=c.LogNormalConfig())
# Long steps: calibration hears minutes, and a recurrent masker takes its time for each step.
LONG_STEPS = replace(VARIATIONAL, filterbank=c.STFTFilterbankConfig(512, 256))
ONE_WAY = c.ConvTasNetConfig(6, 8, 6, blocks=3, repeats=1, norm="cumulative_layer_norm", causal=True)
CAUSAL = c.ModelConfig(filterbank=FREE, masker=ONE_WAY)
