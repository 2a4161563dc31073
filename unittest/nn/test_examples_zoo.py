"""Networks of public libraries: one list for the example and for the zoo of layers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the examples need torch, which is not installed")

from benchmarks.zoo.layers import read_zoo  # noqa: E402
from examples.models import zoo  # noqa: E402
from examples.models.entries import Output  # noqa: E402
from examples.models.library import EXAMPLES, networks  # noqa: E402


def test_the_recorded_layers_are_those_of_the_listed_networks():
    records = {record.name: record for record in read_zoo()}
    listed = networks()
    assert records.keys() <= listed.keys()
    assert len(records) >= 0.98 * len(listed)
    for name, record in records.items():
        network = listed[name]
        assert record.library == network.entry.library
        assert (record.inference, record.training) == (network.inference, network.training)
        assert (record.dtypes, record.format) == (network.dtypes, network.format)


def test_every_network_can_be_named(capsys):
    assert zoo.main(["--list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in (*EXAMPLES, *networks()))
    assert zoo.main(["resnet-50"]) == 2
    assert "unknown: resnet-50" in capsys.readouterr().out


def test_a_network_has_one_tensor_as_its_output():
    model = Output(torch.nn.Identity(), lambda m, x: {"none": None, "all": [(m(x), x + 1)]})
    assert model(torch.ones(2)).tolist() == [1.0, 1.0]
