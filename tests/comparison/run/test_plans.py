"""Initializations are planned before a comparison, also on attention that only a forward pass finds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from comparison.run.arms import parse_arms
from comparison.run.plan import Comparison
from comparison.run.plans import Plans
from lightning_modules.cli.show import Runner
from structured_init import Mimetic, StructuredInitError


class EinMixer(nn.Module):
    """Attention of 12 numbers in 3 heads, of a class that no word gives away."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(3, 12, 4) / 4 for _ in range(4))

    def forward(self, x):
        q, k, v = (torch.einsum("bnd,hdk->bhnk", x, w) for w in self.weights[:3])
        return torch.einsum("bhij,bhjk,hdk->bid", (q @ k.mT).softmax(-1), v, self.weights[3])


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(EinMixer())

    def forward(self, x):
        return self.network(x)


class Data(pl.LightningDataModule):
    def setup(self, stage):
        self.numbers = TensorDataset(torch.randn(6, 5, 12), torch.zeros(6))

    def train_dataloader(self):
        return DataLoader(self.numbers, batch_size=3)


class NoData(pl.LightningDataModule):
    def setup(self, stage):
        raise StructuredInitError("no data here")


def planned(datamodule):
    comparison = Comparison(
        folder=Path("nowhere"),
        experiment=["own"],
        arms=parse_arms("mimetic"),
        seeds=[0],
        arguments=[],
        changes={"mimetic": {}},
    )
    built = SimpleNamespace(model=Module(), datamodule=datamodule)
    return Plans(comparison, built, []).plan(comparison, "mimetic", Mimetic(positions="keep"))


def test_attention_without_a_name_is_planned_on_samples_of_the_data():
    assert planned(Data()).attention == {"network.0.weights": True}


@pytest.mark.parametrize("datamodule", [None, NoData()])
def test_without_data_here_the_plan_is_left_to_the_runs(datamodule):
    assert planned(datamodule) is None


def test_show_finds_attention_without_a_name_too(capsys):
    Runner.show(None, Module(), Data(), Mimetic(positions="keep"), figures=pytest, plan=True)
    assert "network.0" in capsys.readouterr().out
