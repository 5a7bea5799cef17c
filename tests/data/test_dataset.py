import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from sepkit.config import DynamicMixingConfig
from sepkit.data import audio
from sepkit.data.dataset import EpochSampler, Example, MixtureDataset, collate
from sepkit.data.manifest import Manifest, MixtureEntry, SourceEntry
from sepkit.data.mixing import mix_entry
from sepkit.errors import UserError
from tests.complaint import complaint

RATE = 8000
DYNAMIC = DynamicMixingConfig(enabled=True, speed_range=0.05, overlap_probability=0.5)


def test_whole_mixtures(corpus: Manifest) -> None:
    dataset = MixtureDataset(corpus.path)
    assert len(dataset) == 6 and dataset.sample_rate == RATE and dataset.num_sources == 2
    for index, entry in enumerate(corpus):
        example, mixed = dataset[index], mix_entry(entry)
        assert example.id == entry.id and example.active.tolist() == [True, True]
        np.testing.assert_array_equal(example.mixture.numpy(), mixed.mixture)
        np.testing.assert_array_equal(example.sources.numpy(), mixed.sources)
        assert example.mixture.dtype == example.sources.dtype == torch.float32
    with pytest.raises(IndexError):
        dataset[6]
    assert len(list(dataset)) == 6


def test_segments_are_parts_of_the_mixture_and_vary_with_epoch_and_seed(corpus: Manifest) -> None:
    dataset = MixtureDataset(corpus, segment_seconds=0.25)
    whole = mix_entry(corpus[2]).mixture
    windows = np.lib.stride_tricks.sliding_window_view(whole, 2000)
    starts = []
    for epoch in range(20):
        segment = dataset[epoch, 2].mixture.numpy()
        (match,) = np.flatnonzero((windows == segment).all(axis=1))
        starts.append(match)
    assert len(set(starts)) > 15 and max(starts) - min(starts) > 3000
    assert torch.equal(dataset[2].mixture, dataset[0, 2].mixture)
    assert not torch.equal(MixtureDataset(corpus, segment_seconds=0.25, seed=1)[0, 2].mixture, dataset[0, 2].mixture)
    fixed = MixtureDataset(corpus, segment_seconds=0.25, random_crop=False)
    np.testing.assert_array_equal(fixed[7, 2].mixture.numpy(), whole[:2000])


def test_sources_are_played_at_drawn_speeds(corpus: Manifest) -> None:
    """Each source is the whole one at one of the speeds, cut to the shorter; all pairs of speeds occur."""
    dataset, seen = MixtureDataset(corpus, speeds=[0.8, 1.0]), set()
    for epoch in range(20):
        example, sources = dataset[epoch, 2], mix_entry(corpus[2]).sources
        np.testing.assert_allclose(example.mixture, example.sources.sum(0), atol=1e-6)
        length = len(example.mixture)
        played = [[audio.resample(source, 1000, rate)[:length] for rate in (1250, 1000)] for source in sources]
        pairs = zip(example.sources.numpy(), played, strict=True)
        near = [[np.allclose(found, one, atol=1e-4) for one in both] for found, both in pairs]
        assert all(sum(one) == 1 for one in near)
        seen.add(tuple(one.index(True) for one in near))
    assert len(seen) == 4
    assert torch.equal(dataset[3, 2].mixture, dataset[3, 2].mixture)


def test_short_mixtures_stay_short(corpus: Manifest) -> None:
    dataset = MixtureDataset(corpus, segment_seconds=100)
    assert [len(dataset[i].mixture) for i in range(6)] == [entry.num_samples for entry in corpus]


def test_mixtures_below_the_least_length_are_left_out(corpus: Manifest, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = sorted({entry.duration_seconds for entry in corpus})
    assert len(lengths) > 1
    kept = MixtureDataset(corpus, min_seconds=lengths[1])
    assert [kept[i].id for i in range(len(kept))] == [e.id for e in corpus if e.duration_seconds > lengths[0]]
    assert f"left out {6 - len(kept)} of 6 mixtures" in capsys.readouterr().err
    dynamic = MixtureDataset(corpus, min_seconds=lengths[1], dynamic_mixing=DYNAMIC)
    assert dynamic.manifest.entries == kept.manifest.entries
    capsys.readouterr()
    assert len(MixtureDataset(corpus, min_seconds=lengths[0])) == 6 and capsys.readouterr().err == ""
    with pytest.raises(UserError, match=r"longest mixture has .* s, but data.min_seconds is 1000; lower"):
        MixtureDataset(corpus, min_seconds=1000)


@pytest.mark.parametrize("dynamic", [None, DYNAMIC], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("workers", [1, 2])
def test_items_do_not_depend_on_workers_or_history(corpus, dynamic, workers) -> None:
    def load(num_workers: int, epoch: int) -> list[tuple[list[str], bytes]]:
        dataset = MixtureDataset(corpus, segment_seconds=0.3, dynamic_mixing=dynamic)
        sampler = EpochSampler(len(dataset), seed=3, batch_size=2)
        sampler.set_epoch(epoch)
        loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate, num_workers=num_workers)
        return [(batch.ids, batch.sources.numpy().tobytes() + batch.mixture.numpy().tobytes()) for batch in loader]

    assert load(workers, 4) == load(0, 4)
    assert load(0, 4) != load(0, 5)


def test_it_survives_being_sent_to_another_process(corpus: Manifest) -> None:
    dataset = MixtureDataset(corpus, segment_seconds=0.3, dynamic_mixing=DYNAMIC)
    assert torch.equal(pickle.loads(pickle.dumps(dataset))[2, 3].sources, dataset[2, 3].sources)


def test_global_random_state_neither_matters_nor_changes(corpus: Manifest) -> None:
    dataset = MixtureDataset(corpus, segment_seconds=0.3, dynamic_mixing=DYNAMIC)
    np.random.seed(1)
    torch.manual_seed(1)
    first = dataset[3, 1]
    np.random.seed(2)
    torch.manual_seed(2)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    assert torch.equal(first.mixture, dataset[3, 1].mixture)
    assert (np.random.get_state()[1] == before[0]).all() and torch.equal(torch.get_rng_state(), before[1])


def test_dynamic_mixing_sets_the_length_of_an_epoch(corpus: Manifest) -> None:
    dataset = MixtureDataset(corpus, segment_seconds=0.25, dynamic_mixing=DYNAMIC, mixtures_per_epoch=50)
    assert len(dataset) == 50
    assert len({dataset[epoch, index].mixture.numpy().tobytes() for epoch in range(2) for index in range(50)}) == 100
    assert len({dataset[epoch, index].id for epoch in range(2) for index in range(50)}) == 100
    off = MixtureDataset(corpus, dynamic_mixing=DynamicMixingConfig(enabled=False), mixtures_per_epoch=50)
    assert len(off) == 6 and off[0].id == "0-1"


@pytest.fixture
def uneven(tmp_path: Path) -> Manifest:
    """Mixtures of one, two and three sources, one of which is silent."""
    for name, value in {"a": 0.1, "b": 0.2, "c": 0.0}.items():
        audio.write(tmp_path / f"{name}.wav", np.full(100, value, np.float32), RATE)
    sources = [SourceEntry(f"{name}.wav", name) for name in "abc"]
    return Manifest(tmp_path / "m.jsonl", [MixtureEntry(f"m{n}", RATE, 40 + 20 * n, sources[:n]) for n in (1, 2, 3)])


def test_batches_are_padded_and_inactive_sources_marked(uneven: Manifest) -> None:
    dataset = MixtureDataset(uneven)
    batch = collate([dataset[i] for i in range(3)])
    assert batch.mixture.shape == (3, 100) and batch.sources.shape == (3, 3, 100)
    assert batch.active.tolist() == [[True, False, False], [True, True, False], [True, True, False]]
    assert batch.lengths.tolist() == [60, 80, 100] and batch.lengths.dtype == torch.int64
    assert batch.ids == ["m1", "m2", "m3"]
    assert torch.allclose(batch.mixture, batch.sources.sum(dim=1))
    assert not batch.mixture[0, 60:].any() and not batch.sources[~batch.active].any()


def test_collate_takes_examples_of_different_numbers_of_sources() -> None:
    examples = [Example(str(m), torch.ones(5), torch.ones(m, 5), torch.ones(m, dtype=torch.bool)) for m in (0, 1, 2)]
    assert collate(examples).active.tolist() == [[False, False], [True, False], [True, True]]


def test_the_sample_rate_is_checked(uneven: Manifest) -> None:
    with pytest.raises(UserError, match=r"sample_rate is 8000 Hz, but the model works at 16000 Hz"):
        MixtureDataset(uneven, sample_rate=16000)
    uneven[0].sample_rate = 16000
    complaint(lambda: MixtureDataset(uneven), "mixtures at 8000 and 16000 Hz")


def items_of(sampler: EpochSampler) -> list[list[int]]:
    return [[index for _, index in batch] for batch in sampler]


@given(
    num_items=st.integers(1, 60),
    world=st.integers(1, 5),
    batch_size=st.integers(1, 5),
    epoch=st.integers(0, 3),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_ranks_share_the_global_batches_of_one_process(num_items, world, batch_size, epoch, shuffle, drop_last) -> None:
    def batches(rank: int, of: int, size: int) -> list[list[int]]:
        share = {"rank": rank, "world": of, "batch_size": size}
        sampler = EpochSampler(num_items, seed=7, shuffle=shuffle, drop_last=drop_last, **share)
        sampler.set_epoch(epoch)
        result = items_of(sampler)
        assert len(result) == len(sampler)
        return result

    alone = batches(0, 1, world * batch_size)
    ranks = [batches(rank, world, batch_size) for rank in range(world)]
    for number, together in enumerate(alone):
        shares = [rank[number] for rank in ranks]
        assert all(shares)
        repeats = max(0, world - len(together))
        assert sorted(index for share in shares for index in share) == sorted(together + together[:1] * repeats)
        assert [shares[i % world][i // world] for i in range(len(together))] == together
    seen = [index for batch in alone for index in batch]
    assert len(set(seen)) == len(seen)
    assert len(seen) == num_items - (num_items % (world * batch_size) if drop_last else 0)


def test_epochs_differ_and_seeds_differ() -> None:
    sampler = EpochSampler(30, seed=0, batch_size=30)
    orders = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        orders.append(items_of(sampler)[0])
        assert items_of(sampler)[0] == orders[-1]
        assert all(key[0] == epoch for key in next(iter(sampler)))
    assert len({tuple(order) for order in orders}) == 3
    assert items_of(EpochSampler(30, seed=1, batch_size=30))[0] != orders[0]
    assert items_of(EpochSampler(4, shuffle=False, batch_size=2)) == [[0, 1], [2, 3]]


@given(done=st.integers(0, 10), epoch=st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_an_interrupted_epoch_goes_on_where_it_stopped(done: int, epoch: int) -> None:
    whole = EpochSampler(20, seed=2, batch_size=2)
    whole.set_epoch(epoch)
    expected = list(whole)
    resumed = EpochSampler(20, seed=2, batch_size=2)
    resumed.load_state_dict({"epoch": epoch, "batches_done": done})
    assert resumed.state_dict() == {"epoch": epoch, "batches_done": done}
    resumed.set_epoch(epoch)
    assert len(resumed) == 10
    assert list(resumed) == expected[done:]
    assert list(resumed) == expected
    resumed.load_state_dict({"epoch": epoch, "batches_done": done})
    resumed.set_epoch(epoch + 1)
    assert len(list(resumed)) == 10
