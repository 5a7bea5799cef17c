"""Configurations of models with some hundred parameters. Tests share them, and change copies of them alone."""

from dataclasses import replace

from sepkit.config import FreeFilterbankConfig, GaussianConfig, LogNormalConfig, ModelConfig, RecurrentConfig

MASKER = RecurrentConfig(hidden_size=4, num_layers=1)
RECURRENT = ModelConfig(filterbank=FreeFilterbankConfig(num_filters=8), masker=MASKER)
VARIATIONAL = replace(RECURRENT, encoding=GaussianConfig("linear"), masks=LogNormalConfig())
