"""`save_adapter`: an adapter of a model of ours in the files of PEFT."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from phlox.config.storage import format_json, write_text
from phlox.errors import ConfigError, ModuleError
from phlox.interop.peft.names import PREFIX, Names, is_table, names_of
from phlox.interop.peft.settings import NAME
from phlox.module import Module, Param
from phlox.module.records import lazy
from phlox.module.reparameterization import Site, Sites, origin_of
from phlox.module.select import Selector
from phlox.nn.reparameterizations.adapters import adapted_in, adapter_names
from phlox.nn.reparameterizations.dora import DoraFactors
from phlox.nn.reparameterizations.ia3 import Ia3
from phlox.nn.reparameterizations.lora import LoraFactors
from phlox.nn.reparameterizations.weight_norm import norm_of
from phlox.record import FULL, PrecisionLike, Record, SafetensorsRecorder

Array = np.ndarray[Any, Any]


def save_adapter(
    model: Module,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    further: Selector | None = None,
    precision: PrecisionLike = FULL,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Save an adapter as `adapter_config.json` and `adapter_model.safetensors`, which PEFT can load.

    Names and layouts are those of the same model in `transformers`, if it has one; then `PeftModel.from_pretrained`
    loads the folder for that model, and the results are the same. For other models the names are our own, and
    `load_adapter` reads them.

    Args:
        model: with adapters, see `lora`, `dora` and `ia3`. The base itself is not saved.
        folder: created if it does not exist. Files of these names are replaced, each completely or not at all.
        name: the adapter; it may be omitted if there is one.
        further: parameters to save with it, as a whole; by default those that are trained too.
        precision: the precision of the numbers.
        config: further entries of `adapter_config.json`, such as `{"base_model_name_or_path": "gpt2"}`.

    Raises `ModuleError` for a name that the model does not have, and `ConfigError` for what PEFT cannot express.
    """
    names = adapter_names(model)
    if name not in names and not (name is None and len(names) == 1):
        raise ModuleError(
            f"save_adapter: {'choose an adapter by name' if name is None else f'the model has no adapter {name!r}'}; "
            f"it has {', '.join(names) or 'none'}"
        )
    saved = _Saved(model, name or names[0], further)
    try:
        text = format_json({**saved.settings, **(config or {})})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"save_adapter: config has a value that JSON cannot express: {error}") from error
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    record = Record({PREFIX + key: value for key, value in saved.entries.items()}, {"format": "pt"})
    SafetensorsRecorder(precision).save(record, path / "adapter_model.safetensors")
    write_text(path / NAME, text + "\n")


class _Saved:
    """The entries and the settings of an adapter."""

    def __init__(self, model: Module, name: str, further: Selector | None) -> None:
        self._sites = Sites(model).found
        self._names: Names = names_of(model, self._sites)[0]
        self.entries: dict[str, Any] = {}
        own = {path: _adapter_of(site, name) for path, site in self._sites.items()}
        self._adapters = {path: adapter for path, adapter in own.items() if adapter is not None}
        kinds = {type(adapter) for adapter in self._adapters.values()}
        if len(kinds) > 1:
            raise ConfigError(
                f"save_adapter: the parts of {name!r} are of several kinds, and PEFT has one kind for an adapter; give "
                "them different names"
            )
        self._modules = {
            module: paths
            for module, paths in self._names.modules.items()
            if any(path in self._adapters for path in paths)
        }
        self._check_all_named()
        self._feedforward: list[str] = []
        self.settings = self._ia3() if kinds == {_Scale} else self._lora()
        feedforward = self._shortened(self._feedforward)
        targets = [*self._shortened(set(self._modules) - set(self._feedforward)), *feedforward]
        if kinds == {_Scale}:
            self.settings["feedforward_modules"] = feedforward
        elif self.settings.get("ensure_weight_tying"):
            targets += self._names.heads
        self.settings |= {"target_modules": targets, **self._whole(model, further)}

    def _check_all_named(self) -> None:
        weights = {path for paths in self._modules.values() for path in paths}
        for path, adapter in self._adapters.items():
            if path not in weights and not (isinstance(adapter, _Scale) and path.endswith("bias")):
                raise ConfigError(f"save_adapter: {path}: PEFT adapts weights of layers, and this is none")

    def _shortened(self, modules: Iterable[str]) -> list[str]:
        """These modules, by the ends of their names where they are all that have this end."""
        ends = Counter(module.rpartition(".")[2] for module in self._names.modules)
        own = Counter(module.rpartition(".")[2] for module in modules)
        short = {module: module.rpartition(".")[2] for module in modules}
        return sorted({end if end and ends[end] == own[end] else module for module, end in short.items()})

    def _ia3(self) -> dict[str, Any]:
        for module, paths in self._modules.items():
            scales: list[Any] = [self._adapters.get(path) for path in paths]
            of_inputs = {
                scale.axis != self._sites[p].output_axis for scale, p in zip(scales, paths, strict=True) if scale
            }
            values = [
                np.ones(self._sites[path].param.shape[self._sites[path].output_axis], np.float32)
                if scale is None
                else scale.param.val().numpy()
                for scale, path in zip(scales, paths, strict=True)
            ]
            if len(of_inputs) > 1 or any(scale is not None and scale.both for scale in scales):
                raise ConfigError(f"save_adapter: {module}: PEFT scales either inputs or outputs of a layer, not both")
            if of_inputs == {False}:
                vector = np.concatenate(values)
                self._check_biases(module, paths)
            else:
                vector = values[0]
                if any(scale is None for scale in scales) or any(not np.array_equal(vector, v) for v in values):
                    raise ConfigError(
                        f"save_adapter: {module} is one layer in PEFT with one vector for its inputs, and in this "
                        f"model {', '.join(paths)} have different ones"
                    )
                self._feedforward.append(module)
            ndim = len(self._sites[paths[0]].param.shape)
            column = (-1, 1) if ndim == 2 and of_inputs == {False} else (1, -1, *(1 for _ in range(ndim - 2)))
            self.entries[_joined(module, "ia3_l")] = np.ascontiguousarray(vector.reshape(column))
        return {
            "peft_type": "IA3", "task_type": None, "base_model_name_or_path": None, "inference_mode": True,
            "fan_in_fan_out": self._names.has_transposed,
        }  # fmt: skip

    def _check_biases(self, module: str, paths: Iterable[str]) -> None:
        for path in paths:
            bias = f"{path.rpartition('.')[0]}.bias".removeprefix(".")
            if bias in self._sites and path in self._adapters and bias not in self._adapters:
                raise ConfigError(
                    f"save_adapter: {module}: PEFT scales the bias with the outputs, and here {bias} is not"
                )

    def _lora(self) -> dict[str, Any]:
        factors: dict[str, LoraFactors] = {
            path: adapter for path, adapter in self._adapters.items() if isinstance(adapter, LoraFactors)
        }
        is_dora = any(isinstance(each, DoraFactors) for each in factors.values())
        rates = {0.0 if each.dropout is None else each.dropout.rate for each in factors.values()}
        if len(rates) > 1:
            raise ConfigError(
                f"save_adapter: PEFT has one rate of dropout for an adapter, and this has {sorted(rates)}"
            )
        stabilized = all(each.rank_stabilized for each in factors.values())
        ranks: dict[str, int] = {}
        alphas: dict[str, float] = {}
        tied = False
        for module, paths in self._modules.items():
            a, b, magnitude, scale = _joint([(self._sites[path], factors.get(path)) for path in paths], is_dora)
            ranks[module] = rank = len(a)
            first = next(factors[path] for path in paths if path in factors)  # the scale is its own
            if (first.rank, first.rank_stabilized) == (rank, stabilized):
                alphas[module] = first.alpha
            else:
                alphas[module] = scale * (math.sqrt(rank) if stabilized else rank)
            is_embedding = is_table(self._sites[paths[0]])
            ends = ("lora_embedding_A", "lora_embedding_B") if is_embedding else ("lora_A.weight", "lora_B.weight")
            self.entries[_joined(module, ends[0])], self.entries[_joined(module, ends[1])] = a, b
            if magnitude is not None:
                shape = (1, -1, *(1 for _ in a.shape[2:])) if a.ndim > 2 else (-1,)
                self.entries[_joined(module, "lora_magnitude_vector")] = np.ascontiguousarray(magnitude.reshape(shape))
            for head in self._heads(module, paths[0], factors):
                tied = True
                ranks[head], alphas[head] = ranks[module], alphas[module]
                self.entries[f"{head}.lora_A.weight"] = np.ascontiguousarray(b.T)
                self.entries[f"{head}.lora_B.weight"] = np.ascontiguousarray(a.T)
        rank, alpha = (Counter(values.values()).most_common(1)[0][0] for values in (ranks, alphas))
        return {
            "peft_type": "LORA", "task_type": None, "base_model_name_or_path": None, "inference_mode": True,
            "r": rank, "lora_alpha": _plain(alpha), "lora_dropout": rates.pop(), "use_rslora": stabilized,
            "use_dora": is_dora, "bias": "none", "init_lora_weights": True,
            "fan_in_fan_out": self._names.has_transposed,
            "rank_pattern": {module: value for module, value in ranks.items() if value != rank},
            "alpha_pattern": {module: _plain(value) for module, value in alphas.items() if value != alpha},
            **({"ensure_weight_tying": True} if tied else {}),
        }  # fmt: skip

    def _heads(self, module: str, path: str, factors: dict[str, LoraFactors]) -> list[str]:
        """The heads that share the weight of an embedding, and its adapter."""
        own = factors.get(path)
        if own is None or not is_table(self._sites[path]):
            return []
        heads = [head for head, embedding in self._names.heads.items() if embedding == module]
        if not own.head and not heads:
            raise ConfigError(f"save_adapter: {path}: only in models of transformers may an adapter leave out the head")
        if not own.head:
            return []
        if heads and isinstance(own, DoraFactors):
            raise ConfigError(
                f"save_adapter: {path} is the weight of the head too, and PEFT cannot express DoRA for both; use LoRA"
            )
        return heads

    def _whole(self, model: Module, further: Selector | None) -> dict[str, Any]:
        """Adds the parameters that are saved as a whole."""
        sites, theirs = self._sites, self._names.theirs
        if further is None:
            chosen = {path for path, site in sites.items() if origin_of(site.param).trained and path in theirs}
        else:
            chosen = set(Sites(model).select(further))
        if not chosen:
            return {"modules_to_save": None}
        names = {theirs[path] for path in chosen}
        biases = {name for name in theirs.values() if name.endswith("bias")}
        of_adapted = {name for name in biases if name.removesuffix(".bias") in self._modules}
        if self.settings["peft_type"] == "LORA" and names in (biases, of_adapted):
            bias: Literal["all", "lora_only"] = "all" if names == biases else "lora_only"
            self._add_whole(names)
            return {"bias": bias, "modules_to_save": None}
        modules = {name.rpartition(".")[0] for name in names}
        if clash := sorted(modules & set(self._modules)):
            raise ConfigError(
                f"save_adapter: {', '.join(clash)}: PEFT saves a layer either with an adapter or as a whole; freeze "
                "its other parameters or choose others with further="
            )
        self._add_whole({name for name in theirs.values() if name.rpartition(".")[0] in modules})
        return {"modules_to_save": sorted(modules)}

    def _add_whole(self, names: set[str]) -> None:
        paths = [path for path, name in self._names.theirs.items() if name in names]
        values = {path: origin_of(self._sites[path].param).val() for path in paths}
        ours = Record({path: lazy(path, value) for path, value in values.items()})
        for name, entry in self._names.adapter.write(ours, strict=False).tensors.items():
            module, _, end = name.rpartition(".")
            self.entries[f"{module}.base_layer.{end}" if module in self._modules else name] = entry.tensor


class _Scale:
    """A vector of IA3, and the axis that it scales."""

    def __init__(self, param: Param, axis: int, *, both: bool) -> None:
        self.param, self.axis, self.both = param, axis, both


def _adapter_of(site: Site, name: str) -> LoraFactors | _Scale | None:
    """The adapter of this name at a site."""
    parts = [part for part in adapted_in(site.param) if name in part.adapters]
    if not parts:
        return None
    first = parts[0]
    if len(parts) > 1 and not all(isinstance(part, Ia3) for part in parts):
        raise ConfigError(f"save_adapter: {site.path} has two adapters of the name {name!r}; give them different names")
    if isinstance(first, Ia3):
        return _Scale(first.ia3[name], first.axis, both=len(parts) > 1)
    return first.adapters[name]


def _joint(parts: list[tuple[Site, LoraFactors | None]], is_dora: bool) -> tuple[Array, Array, Array | None, float]:
    """A, B and magnitudes of PEFT for layers that are one there, and the scale of their product.

    If all have the same A, it stays; otherwise each layer has rows of A of its own, and B is zero for the others'.
    """
    there = [(site, factors) for site, factors in parts if factors is not None]
    for site, factors in there:
        if isinstance(factors, DoraFactors) != is_dora:
            raise ConfigError(f"save_adapter: {site.path} has LoRA and other weights DoRA; give them different names")
    scale = there[0][1].scale
    pairs = [_factors(site, factors, scale) for site, factors in there]
    is_shared = all(np.array_equal(pairs[0][0], a) for a, _ in pairs)
    a = pairs[0][0] if is_shared else np.concatenate([a for a, _ in pairs])
    ends = np.cumsum([0, *(len(a) for a, _ in pairs)])
    blocks: list[Array] = []
    magnitudes: list[Array] = []
    n = 0
    for site, factors in parts:
        rows = site.param.shape[0 if len(site.param.shape) > 2 else 1]
        block = np.zeros((rows, len(a), *pairs[0][1].shape[2:]), a.dtype)
        if factors is not None:
            block[:, slice(None) if is_shared else slice(ends[n], ends[n + 1])] = pairs[n][1]
            n += 1
        blocks.append(block)
        if isinstance(factors, DoraFactors):
            magnitudes.append(factors.magnitude.val().numpy())
        elif is_dora:  # a length that leaves the weight as it is
            value: Any = site.param
            magnitudes.append(norm_of(value.val().detach(), 1).reshape(rows).numpy())
    return np.ascontiguousarray(a), np.concatenate(blocks), np.concatenate(magnitudes) if is_dora else None, scale


def _factors(site: Site, factors: LoraFactors, scale: float) -> tuple[Array, Array]:
    """A [rank, inputs, ...] and B [outputs, rank, ...], as if the scale were this one."""
    if site.is_stack:
        raise ConfigError(f"{site.path}: adapters of the weights of experts cannot be saved in the format of PEFT")
    a, b = factors.A.val().numpy(), factors.B.val().numpy()
    if a.ndim == 2:
        a, b = a.T, b.T
    return a, b if factors.scale == scale else b * np.asarray(factors.scale / scale, b.dtype)


def _joined(module: str, end: str) -> str:
    return f"{module}.{end}" if module else end


def _plain(number: float) -> float:
    return int(number) if number == int(number) else number
