"""Growth: a split copies rows and moments and changes nothing else; runs that grow resume bit for bit."""

import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sepkit import config as c
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.storage.checkpoints import load_checkpoint
from sepkit.models.storage.folders import read_description
from sepkit.objectives.assignment import MCL
from sepkit.objectives.costs import pairwise_neg_si_sdr
from sepkit.training.growth import Growth, grown, hand_over, hypothesis_to_split
from sepkit.training.run import train
from sepkit.training.separation import SeparationTask
from sepkit.types import Batch
from tests.training.runs import assert_same_run, epochs, run_process, train_interrupted, with_data

MASKERS = {
    "conv_tasnet": c.ConvTasNetConfig(bottleneck_channels=4, hidden_channels=6, skip_channels=4, blocks=2, repeats=1),
    "gated_recurrence": c.GatedRecurrenceConfig(model_dim=4, hidden_size=4, feedforward_dim=4, num_layers=1, bands=2),
    "recurrent": c.RecurrentConfig(hidden_size=4, num_layers=1),
    "dual_path_rnn": c.DualPathRNNConfig(4, hidden_channels=4, chunk_size=10, hop_size=5, repeats=1),
    "sudormrf": c.SuDoRMRFConfig(bottleneck_channels=6, hidden_channels=6, blocks=1, upsampling_depth=2),
    "improved_sudormrf": c.ImprovedSuDoRMRFConfig(6, hidden_channels=6, blocks=1, upsampling_depth=2),
}


def build(masker: str, hypotheses: int = 3) -> EncoderMaskerDecoder:
    torch.manual_seed(0)
    bank = c.FreeFilterbankConfig(num_filters=8, kernel_size=16, stride=8)
    parts = {"filterbank": bank, "masker": MASKERS[masker], "masks": c.DeterministicConfig(activation="sigmoid")}
    return EncoderMaskerDecoder.from_config(c.ModelConfig(hypotheses=hypotheses, **parts))


def rows_of(value: torch.Tensor, model: EncoderMaskerDecoder, hypotheses: int = 4) -> torch.Tensor:
    """The parts of the hypotheses, along a new first axis."""
    return value.movedim(model.masker.hypothesis_axis, 0).unflatten(0, (hypotheses, -1))


def signals(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def no_noise() -> torch.Generator:
    return torch.Generator().manual_seed(2)


@pytest.mark.parametrize("masker", MASKERS)
def test_a_split_changes_nothing_before_its_jitter(masker: str) -> None:
    model = build(masker)
    larger = grown(model, 1, 0.0, no_noise())
    assert larger.hypotheses == 4 and larger.config is not None and larger.config.hypotheses == 4
    assert model.hypotheses == 3
    mixture, sources = signals(2, 400), signals(2, 2, 400)
    with torch.no_grad():
        before, after = model(mixture).estimates, larger(mixture).estimates
        torch.testing.assert_close(after[:, :3], before, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(after[:, 3], before[:, 1], rtol=1e-5, atol=1e-6)
        costs = [MCL()(pairwise_neg_si_sdr(estimates, sources)) for estimates in (before, after)]
    torch.testing.assert_close(*costs, rtol=0, atol=1e-4)
    jittered = grown(model, 1, 0.01, no_noise()).state_dict()
    for name, value in larger.state_dict().items():
        if value.shape == model.state_dict()[name].shape:
            assert torch.equal(jittered[name], value)
        else:
            rows = rows_of(value, model)[3]
            change = rows_of(jittered[name], model)[3] - rows
            deviation = change.square().mean().sqrt() / rows.square().mean().sqrt()
            assert 0.002 < float(deviation) < 0.03 or (not rows.any() and not change.any())


@pytest.mark.parametrize(
    ("kind", "masker"), [("adam", "recurrent"), ("sgd", "recurrent"), ("adam", "gated_recurrence")]
)
def test_moments_go_with_the_rows(kind: str, masker: str) -> None:
    model = build(masker)
    made = torch.optim.Adam if kind == "adam" else lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)
    optimizer = made(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(signals(2, 200)).estimates.square().sum().backward()
        optimizer.step()
    before = {name: optimizer.state[p] for name, p in model.named_parameters()}
    larger = grown(model, 2, 0.01, no_noise())
    hand_over(optimizer, model, larger, 2)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in larger.parameters()]
    moments = ("exp_avg", "exp_avg_sq") if kind == "adam" else ("momentum_buffer",)
    for name, parameter in larger.named_parameters():
        for moment in moments:
            found, old = optimizer.state[parameter][moment], before[name][moment]
            if name.startswith("masker.output."):
                rows = rows_of(found, model)
                assert torch.equal(rows[:3], rows_of(old, model, 3)) and torch.equal(rows[3], rows[2])
            else:
                assert torch.equal(found, old)
    larger(signals(2, 200)).estimates.square().sum().backward()
    optimizer.step()


def test_the_split_hypothesis_has_the_largest_share() -> None:
    """Of the distortion or of the sources; nobody looks at those that do not speak."""

    class Fixed(EncoderMaskerDecoder):
        def forward(self, mixture: torch.Tensor, *_: Any, **__: Any) -> Any:
            return type("Found", (), {"estimates": estimates})

    model = build("recurrent")
    model.__class__ = Fixed
    sources = signals(3, 2, 4000)
    noise = torch.randn(3, 2, 4000, generator=no_noise())
    # Hypothesis 1 is the best of three sources and close to them, hypothesis 3 of two and far from them.
    estimates = torch.zeros(3, 3, 4000)
    estimates[:, 0] = sources[:, 0] + 0.1 * noise[:, 0]
    estimates[:, 2] = sources[:, 1] + 2.0 * noise[:, 1]
    active = torch.tensor([[True, True], [True, True], [True, False]])
    batch = Batch(sources.sum(1), sources, active, torch.full((3,), 4000))
    assert hypothesis_to_split(model, [batch], "distortion") == 2
    assert hypothesis_to_split(model, [batch], "sources") == 0


def growing(config: c.TrainConfig, **changes: Any) -> c.TrainConfig:
    trainer = replace(config.trainer, growth=replace(c.GrowthConfig(epochs=[1, 2]), **changes), max_epochs=3, ema=0.9)
    return replace(config, objective=replace(config.objective, assignment=c.MCLConfig()), trainer=trainer)


@pytest.fixture(scope="module")
def whole(session_config: c.TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    train(growing(session_config), out)
    return out


def test_checkpoints_and_records_follow(whole: Path) -> None:
    lines = epochs(whole)
    assert [line["hypotheses"] for line in lines] == [2, 3, 4]
    assert ["train_usage_4" in line for line in lines] == [False, False, True]
    assert all(lines[-1][f"dev_usage_{k}"] >= 0 for k in range(1, 5))
    for name in ("model", "last_model"):
        description = read_description(whole / name)
        assert description["model"]["hypotheses"] == 4 and description["info"]["hypotheses"] == 4
        # MCL with more hypotheses than sources is watched by MCL, whatever the number at the start.
        assert description["info"]["monitor"] == "dev_mcl_si_sdr_db"
    model = load_checkpoint(whole / "model")
    with torch.no_grad():
        assert model(signals(1, 800)).estimates.shape == (1, 4, 800)


def test_a_killed_run_grows_as_if_it_had_not_been_killed(config: c.TrainConfig, whole: Path, tmp_path: Path) -> None:
    """Killed after the second split but before a step: the state has three hypotheses, and the third is split again."""
    assert run_process(train_interrupted, growing(config), tmp_path, 14) == -signal.SIGKILL
    train(growing(config), tmp_path)
    assert_same_run(tmp_path, whole)


def test_a_hypothesis_is_chosen_on_each_mixture_once(config: c.TrainConfig) -> None:
    """64 of 70 mixtures, in batches of 24, 24 and 16."""
    task = SimpleNamespace(
        train_data=_Numbers(), config=with_data(config, batch_size=24), device="cpu",
        collate=lambda examples: SimpleNamespace(to=lambda device: examples),
    )  # fmt: skip
    batches = list(SeparationTask._fixed_batches(task))
    assert list(map(len, batches)) == [24, 24, 16]
    assert [number for batch in batches for number in batch] == sorted({number * 70 // 64 for number in range(64)})


class _Numbers:
    """A data set of 70 mixtures, each of which is its number."""

    def __len__(self) -> int:
        return 70

    def __getitem__(self, place: tuple[int, int]) -> int:
        return place[1]


def test_several_at_once() -> None:
    growth = Growth(c.GrowthConfig(epochs=[1, 2], hypotheses=[4, 8]), start=2, seed=0)
    assert [growth.hypotheses_at(epoch) for epoch in range(4)] == [2, 4, 8, 8] and growth.final == 8
