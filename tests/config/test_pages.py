"""Configs in notebooks: a table of fields, nested configs below.

Serves: phlox/config/pages.py
"""

from __future__ import annotations

import phlox as px
from phlox import nn, optim
from tests.markup import read


class HeadConfig(px.Config):
    classes: int
    name: str = "<script>alert(1)</script>\u202e"


class WholeConfig(px.Config):
    width: int
    head: HeadConfig
    heads: list[HeadConfig]
    by_name: dict[str, HeadConfig]
    rates: list[float]
    other: HeadConfig | None = None


def test_a_config() -> None:
    head = HeadConfig(10)
    found = read(WholeConfig(3, head, [head, HeadConfig(2)], {"a": HeadConfig(7)}, [0.1, 0.2]))
    assert found.texts[0] == "WholeConfig" and ["width", "3"] in found.rows and ["rates", "[0.1, 0.2]"] in found.rows
    assert ["classes", "10"] in found.rows and ["classes", "2"] in found.rows and ["classes", "7"] in found.rows
    assert {"head", "heads[0]", "heads[1]", "by_name['a']"} <= set(found.texts) and ["other", "None"] in found.rows
    assert ["name", "'<script>alert(1)</script>\\u202e'"] in found.rows


def test_configs_of_layers_and_optimizers() -> None:
    assert ["d_input", "3"] in read(nn.LinearConfig(3, 4)).rows
    assert ["momentum", "0.9"] in read(optim.SgdConfig(momentum=0.9)).rows
