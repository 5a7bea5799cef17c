"""Pickled modules of SuDoRM-RF's authors, built here under their names, without their code."""

import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sepkit.models import load_pretrained
from sepkit.models.bridges import from_sudormrf
from tests.complaint import complaint

PLACE = "sudo_rm_rf.dnn.models.improved_sudormrf"


def named(name: str, **children: nn.Module) -> nn.Module:
    module = vars(sys.modules[PLACE]).setdefault(name, type(name, (nn.Module,), {"__module__": PLACE}))()
    for child, part in children.items():
        setattr(module, child, part)
    return module


def norm(channels: int) -> nn.Module:
    module = named("GlobLN")
    module.gamma, module.beta = nn.Parameter(torch.randn(channels)), nn.Parameter(torch.randn(channels))
    return module


def block() -> nn.Module:
    levels = [(nn.Conv1d(6, 6, 5, stride, 2, groups=6), norm(6)) for stride in (1, 2)]
    return named(
        "UConvBlock",
        proj_1x1=named("ConvNormAct", conv=nn.Conv1d(4, 6, 1), norm=norm(6), act=nn.PReLU()),
        spp_dw=nn.ModuleList(named("DilatedConvNorm", conv=conv, norm=after) for conv, after in levels),
        upsampler=nn.Upsample(scale_factor=2),
        final_norm=named("NormAct", norm=norm(6), act=nn.PReLU()),
        res_conv=nn.Conv1d(6, 4, 1),
    )


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    for name in ("sudo_rm_rf", PLACE):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    return named(
        "SuDORMRF",
        encoder=nn.Conv1d(1, 8, 5, 2, 2, bias=False),
        ln=norm(8),
        bottleneck=nn.Conv1d(8, 4, 1),
        sm=nn.Sequential(block(), block()),
        mask_net=nn.Sequential(nn.PReLU(), nn.Conv1d(4, 16, 1)),
        decoder=nn.ConvTranspose1d(16, 2, 5, 2, 2, 1, bias=False),
        mask_nl_class=nn.ReLU(),
    )


def normed(layer: nn.Module, x: Tensor) -> Tensor:
    return layer.gamma[:, None] * functional.group_norm(x, 1, eps=1e-8) + layer.beta[:, None]


def separated(net: nn.Module, mixture: Tensor) -> Tensor:
    """The published computation (Tzinis et al. 2022), the input padded to 2 * 2^2 samples."""
    encoding = net.encoder(functional.pad(mixture, (0, -mixture.shape[-1] % 8))[:, None])
    x = net.bottleneck(normed(net.ln, encoding))
    for part in net.sm:
        wide = part.proj_1x1.act(normed(part.proj_1x1.norm, part.proj_1x1.conv(x)))
        fine = normed(part.spp_dw[0].norm, part.spp_dw[0].conv(wide))
        coarse = normed(part.spp_dw[1].norm, part.spp_dw[1].conv(fine))
        x = part.res_conv(part.final_norm.act(normed(part.final_norm.norm, fine + part.upsampler(coarse)))) + x
    masks = net.mask_net(x).relu().unflatten(1, (2, 8))
    return net.decoder((masks * encoding[:, None]).flatten(1, 2))[..., : mixture.shape[-1]]


def test_estimates_are_those_of_the_published_computation(theirs, tmp_path, monkeypatch):
    torch.save(theirs, tmp_path / "u2.pt")
    mixture = torch.randn(3, 501)
    deviation = mixture.std(-1, correction=0, keepdim=True)
    with torch.no_grad():
        expected = separated(theirs, mixture / deviation) * deviation[:, None]
    monkeypatch.undo()  # their classes are gone
    model = load_pretrained(f"sudormrf:{tmp_path / 'u2.pt'}")
    for found in (model(mixture).estimates, model.estimates(mixture)):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (model.sample_rate, model.hypotheses) == (8000, 2) and PLACE not in sys.modules


def test_other_pickles_are_refused(theirs, tmp_path):
    def said(module: nn.Module) -> str:
        torch.save(module, tmp_path / "net.pt")
        return complaint(lambda: from_sudormrf(tmp_path / "net.pt"))

    assert f"names {PLACE}.GC_UConvBlock, which could run code" in said(named("GC_UConvBlock"))
    assert "no encoder.weight of an improved SuDoRM-RF" in said(nn.Sequential(nn.Conv1d(1, 2, 3)))
    theirs.sm[1] = theirs.sm[0]
    assert "no complete module" in said(theirs)
    theirs.sm[1] = block()
    theirs.ln.gamma = nn.Parameter(torch.ones(7))
    assert "ln.gamma has shape (7,), expected (8,)" in said(theirs)
