"""The names that PEFT has for the parameters of our models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from phlox.errors import ConfigError, RecordError
from phlox.interop.adapter import Adapter, rename
from phlox.interop.huggingface.family import Family
from phlox.interop.huggingface.folder import cleaned, family_of
from phlox.module.reparameterization import Site
from phlox.nn import Embedding, Linear
from phlox.nn.conv import Conv
from phlox.record import LazyTensor, Record

PREFIX = "base_model.model."
"""Every name in a file of PEFT begins with it."""


class Names:
    """The modules of a model by their names in PEFT, and the layouts of whole parameters.

    Models with a counterpart in `transformers` have the names of that; for others a module is a path of ours without
    `.weight`.
    """

    def __init__(self, sites: dict[str, Site], family: Family | None = None, config: Any = None, prefix: str = ""):
        self._family, self._config, self._prefix = family, config, prefix
        adapter = Adapter([rename(path, path) for path in sites]) if family is None else family.adapter(config, prefix)
        self.adapter = adapter
        shapes = {
            path: LazyTensor.from_function(site.param.shape, "float32", _never, path) for path, site in sites.items()
        }
        record = adapter.write(Record(shapes))
        self.has_transposed = getattr(family, "model_type", "") == "gpt2"
        """Whether weights of theirs are [inputs, outputs], as ours."""
        self.theirs: dict[str, str] = {ours: theirs[0] for ours, theirs in adapter.names(record).items()}
        """Path of ours -> name of the parameter in theirs."""
        self.modules: dict[str, list[str]] = {}
        """Module of theirs -> the paths of our weights in it, in the order of its outputs: several if it is fused."""
        for path, name in self.theirs.items():
            module, _, end = name.rpartition(".")
            if end == "weight" or (family is None and len(sites[path].param.shape) > 1):
                self.modules.setdefault(module if end == "weight" else name, []).append(path)
        tied = () if family is None else family.ties(config, prefix)
        self.heads = {a.removesuffix(".weight"): b.removesuffix(".weight") for a, b in tied if a.endswith(".weight")}
        """Heads whose weight is that of an embedding, with the embedding."""

    def whole(self, record: Record, folder: Path) -> Record:
        """Whole parameters of theirs, with our names and in our layouts."""
        if self._family is not None:
            record = cleaned(self._family, self._config, record, self._prefix, folder)
        return self.adapter.read(record)


def names_of(model: Any, sites: dict[str, Site]) -> list[Names]:
    """The names of a model in PEFT: first those that are saved, then those that files may have too."""
    config = getattr(model, "config", None)
    names: list[Names] = []
    try:
        family = family_of(config, "")
        family.settings_of(config)
        prefixes = dict.fromkeys((family.saved_prefix(config), family.prefix, ""))
        names += [Names(sites, family, config, prefix) for prefix in prefixes]
    except (ConfigError, RecordError):  # no counterpart, or this model has parts that its counterpart lacks
        names.clear()
    return [*names, Names(sites)]


def fitting(names: list[Names], modules: Iterable[str]) -> Names:
    """The ones that know most of these modules."""
    return max(names, key=lambda candidate: sum(module in candidate.modules for module in modules))


def is_table(site: Site) -> bool:
    """Is it the table of an embedding? A matrix that is no layer's weight is one: learned positions."""
    return len(site.param.shape) == 2 and (issubclass(site.layer, Embedding) or site.name != "weight")


def is_layer(site: Site) -> bool:
    """Is it the weight of a layer that PEFT adapts?"""
    return is_table(site) or (site.name == "weight" and issubclass(site.layer, (Linear, Conv)))


def _never() -> NoReturn:
    raise AssertionError("only its shape is used")
