"""`load_adapter`: an adapter that PEFT has saved, in a model of ours."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from phlox.errors import ModuleError, RecordError
from phlox.host.text import shown
from phlox.interop.huggingface.settings import read_settings
from phlox.interop.peft.names import PREFIX, fitting, is_layer, is_table, names_of
from phlox.interop.peft.settings import NAME, AdapterSettings, read_adapter_settings
from phlox.module import Module, Param
from phlox.module.reparameterization import Site, Sites, origin_of
from phlox.nn.reparameterizations.adapters import Adapted, adapted, adapter_names
from phlox.nn.reparameterizations.dora import DoraFactors
from phlox.nn.reparameterizations.ia3 import bias_of, scaled
from phlox.nn.reparameterizations.lora import LoraFactors, attached
from phlox.record import LazyTensor, Record, TensorEntry
from phlox.record import load as load_any
from phlox.record.names import nearest
from phlox.tensor import Tensor, tensor

M = TypeVar("M", bound=Module)
Make = Callable[[Site], Adapted]

FILES = ("adapter_model.safetensors", "adapter_model.bin")
_KIND = re.compile(
    r"(?:(.+)\.)?(lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector|ia3_l)(?:\.weight)?"
)
_SHOWN = 20


def load_adapter(model: M, folder: str | os.PathLike[str], *, name: str = "default") -> M:
    """A view of a model with an adapter from a folder that `save_pretrained` of PEFT or `save_adapter` wrote.

    LoRA, rank-stabilized LoRA, DoRA and IA3 are supported, see docs/fine-tuning.md. The adapter is the one that is used
    and trained; everything else is frozen, but modules that were trained with it (`modules_to_save`, biases), which
    replace those of the model.

    Args:
        model: the model that the adapter is for; it is unchanged, and the view shares its arrays. A `Gpt`, `Llama` or
            `Bert`, with or without a head, for adapters of the same model in `transformers`.
        folder: with `adapter_config.json`, and `adapter_model.safetensors` or `adapter_model.bin`.
        name: the adapter's name in the model.

    Raises `ConfigError` for a config that is missing, damaged or not supported. Raises `RecordError` for an adapter
    that does not fit the model, with all names and shapes. Raises `ModuleError` if the model has an adapter of this
    name.

    >>> import tempfile
    >>> import phlox as px
    >>> model = px.nn.Linear(4, 3).init(0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     px.save_adapter(px.lora(model, "weight", rank=2), folder)
    ...     px.adapter_names(px.load_adapter(model, folder, name="french"))
    ['french']
    """
    path = Path(folder)
    settings = read_adapter_settings(read_settings(path, NAME))
    if name in adapter_names(model):
        raise ModuleError(f"load_adapter: the model has an adapter {name!r} already; give this one another name")
    file = next((path / file for file in FILES if (path / file).is_file()), None)
    if file is None:
        raise RecordError(f"{path}: there is no adapter; looked for {', '.join(FILES)}")
    loaded = _Loaded(load_any(file), settings, Sites(model).found, model, path, name)
    loaded.raise_problems(type(model).__name__)
    view = adapted(model, list(loaded.makes), name, lambda site: loaded.makes[site.path](site))
    if not loaded.whole:
        return view
    sites = Sites(view)
    for own_path, value in loaded.whole.items():
        param = origin_of(sites.found[own_path].param)
        param.set(_on(param, value))
        param.set_trained(own_path in loaded.trained)
    return sites.replace({})


class _Loaded:
    """An adapter's file, compared with a model."""

    def __init__(
        self, record: Record, settings: AdapterSettings, sites: dict[str, Site], model: Module, folder: Path, name: str
    ) -> None:
        self._settings, self._sites, self._name = settings, sites, name
        self._folder = folder
        self.problems: list[str] = []
        self.makes: dict[str, Make] = {}
        """Path of ours -> what makes the adapter there."""
        self.whole: dict[str, np.ndarray[Any, Any]] = {}
        """Path of ours -> value, for parameters that are saved as a whole."""
        self.trained: set[str] = set()
        modules, whole = self._sorted(record)
        self._names = fitting(names_of(model, sites), modules)
        self._add_whole(whole)
        for module, entries in modules.items():
            self._add(module, entries, modules)
        self._check_missing(modules)

    def raise_problems(self, model: str) -> None:
        """`RecordError` with everything that does not fit."""
        if self.problems:
            count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
            more = len(self.problems) - _SHOWN
            lines = [*self.problems[:_SHOWN], *([f"... and {more} more"] if more > 0 else [])]
            raise RecordError(f"{self._folder}: the adapter does not fit {model}, {count}:\n  " + "\n  ".join(lines))

    def _sorted(self, record: Record) -> tuple[dict[str, dict[str, LazyTensor]], dict[str, TensorEntry]]:
        """The tensors of adapters, by module and kind, and those of whole parameters, by name."""
        modules: dict[str, dict[str, LazyTensor]] = {}
        whole: dict[str, TensorEntry] = {}
        for name in (*record, *record.aliases, *record.unreadable):
            entry = record.unreadable.get(name) or record[name]
            short = name.removeprefix(PREFIX)
            if not isinstance(entry, TensorEntry):
                self.problems.append(f"{shown(name)}: it is no tensor")
            elif (match := _KIND.fullmatch(short)) is not None:
                modules.setdefault(match[1] or "", {})[match[2]] = entry.tensor
            else:
                whole[short.replace(".base_layer.", ".")] = entry
        return modules, whole

    def _add_whole(self, entries: dict[str, TensorEntry]) -> None:
        if not entries:
            return
        try:
            record = self._names.whole(Record(entries), self._folder)
        except RecordError as error:
            self.problems.append(str(error))
            return
        for path, entry in record.tensors.items():
            shape = self._sites[path].param.shape if path in self._sites else None
            if shape != entry.tensor.shape:
                self.problems.append(
                    f"{shown(self._names.theirs.get(path, path))}: {path} of the model has the shape {shape}, and the "
                    f"file has {entry.tensor.shape}"
                )
                continue
            self.whole[path] = _array(entry.tensor)
            name = self._names.theirs[path]
            if self._settings.is_further(name.rpartition(".")[0]) or name.endswith("bias"):
                self.trained.add(path)

    def _add(self, module: str, entries: dict[str, LazyTensor], all_modules: dict[str, dict[str, LazyTensor]]) -> None:
        if (embedding := self._names.heads.get(module)) is not None:
            if not _is_transposed(entries, all_modules.get(embedding, {})):
                self.problems.append(
                    f"{shown(module)}: its weight is that of {embedding}, and the adapter is not; in this model both "
                    "can only have the same one"
                )
            return
        paths = self._names.modules.get(module)
        if paths is None:
            near = nearest(module, self._names.modules)
            hint = f"; did you mean {near!r}?" if near else ""
            self.problems.append(f"{shown(module)}: the model has no such module{hint}")
        elif not self._settings.is_target(module):
            self.problems.append(f"{shown(module)}: it is in the file, but target_modules do not select it")
        elif self._settings.kind == "IA3":
            self._add_ia3(module, entries, paths)
        else:
            self._add_lora(module, entries, paths, all_modules)

    def _fits(self, module: str, entries: dict[str, LazyTensor], expected: dict[str, tuple[int, ...]]) -> bool:
        """Whether a module has just these tensors, with these shapes; -1 is any size."""
        before = len(self.problems)
        for kind in {**entries, **expected}:
            if kind not in entries:
                self.problems.append(f"{shown(module)}: {kind} is missing")
            elif kind not in expected:
                self.problems.append(f"{shown(module)}: {kind} does not belong to this kind of adapter and of layer")
            else:
                shape = entries[kind].shape
                like = expected[kind]
                if len(like) == 1 and math.prod(shape) == like[0]:
                    continue
                if len(shape) != len(like) or any(m not in (n, -1) for n, m in zip(shape, like, strict=True)):
                    text = ", ".join("rank" if m == -1 else f"{m}" for m in like)
                    self.problems.append(f"{shown(module)}: {kind} has the shape {shape}, and the model needs ({text})")
        return len(self.problems) == before

    def _add_lora(
        self,
        module: str,
        entries: dict[str, LazyTensor],
        paths: list[str],
        all_modules: dict[str, dict[str, LazyTensor]],
    ) -> None:
        sites = [self._sites[path] for path in paths]
        shape, settings = sites[0].param.shape, self._settings
        if len(shape) < 2:
            self.problems.append(f"{shown(module)}: {paths[0]} has the shape {shape}, and LoRA is for matrices")
            return
        is_kernel = len(shape) > 2
        ends = ("lora_embedding_A", "lora_embedding_B") if is_table(sites[0]) else ("lora_A", "lora_B")
        outputs = [site.param.shape[0 if is_kernel else 1] for site in sites]
        rank = settings.rank_of(module)
        expected: dict[str, tuple[int, ...]] = {
            ends[0]: (rank, *shape[1:]) if is_kernel else (rank, shape[0]),
            ends[1]: (sum(outputs), rank, *(1 for _ in shape[2:])),
        }
        if settings.is_dora:
            expected["lora_magnitude_vector"] = (sum(outputs),)
        if not self._fits(module, entries, expected):
            return
        a, b = (_array(entries[end]) for end in ends)
        magnitude = _array(entries["lora_magnitude_vector"]).reshape(-1) if settings.is_dora else None
        tied = module in self._names.heads.values()
        head = not tied or any(other in all_modules for other, own in self._names.heads.items() if own == module)
        scale = settings.alpha_of(module) / (math.sqrt(rank) if settings.rank_stabilized else rank)
        starts = np.cumsum([0, *outputs])
        used = _blocks(b, starts)
        for n, path in enumerate(paths):
            rows = slice(starts[n], starts[n + 1])
            a_part, b_part = a[used[n]], b[rows][:, used[n]]
            values = {"A": a_part, "B": b_part} if is_kernel else {"A": a_part.T, "B": b_part.T}
            if magnitude is not None:
                values["magnitude"] = magnitude[rows]
            own_rank = len(a_part)
            options = {
                "rank": own_rank,
                "alpha": scale * (math.sqrt(own_rank) if settings.rank_stabilized else own_rank),
                "dropout": settings.dropout,
                "rank_stabilized": settings.rank_stabilized,
                "head": head,
            }
            if own_rank == rank:
                options["alpha"] = settings.alpha_of(module)
            self.makes[path] = self._lora(options, values)

    def _lora(self, options: dict[str, Any], values: dict[str, np.ndarray[Any, Any]]) -> Make:
        cls = DoraFactors if self._settings.is_dora else LoraFactors

        def make(site: Site) -> LoraFactors:
            tensors = {key: _on(site.param, value) for key, value in values.items()}
            return cls(site, values=tensors, **options)

        return lambda site: attached(site, self._name, make)

    def _add_ia3(self, module: str, entries: dict[str, LazyTensor], paths: list[str]) -> None:
        sites = [self._sites[path] for path in paths]
        of_inputs = self._settings.is_feedforward(module)
        axes = [1 - site.output_axis if of_inputs else site.output_axis for site in sites]
        if len(sites[0].param.shape) < 2:
            self.problems.append(f"{shown(module)}: {paths[0]} has the shape {sites[0].param.shape}, and is no weight")
            return
        sizes = [site.param.shape[axis] for site, axis in zip(sites, axes, strict=True)]
        if not self._fits(module, entries, {"ia3_l": (sizes[0] if of_inputs else sum(sizes),)}):
            return
        whole = _array(entries["ia3_l"]).reshape(-1)
        starts = np.cumsum([0, *sizes])
        for n, path in enumerate(paths):
            part = whole if of_inputs else whole[starts[n] : starts[n + 1]]
            scale = Param(_on(sites[n].param, part))
            self.makes[path] = self._ia3(axes[n], scale)
            if not of_inputs and (bias := bias_of(path)) in self._sites:
                self.makes[bias] = self._ia3(0, scale)

    def _ia3(self, axis: int, scale: Param) -> Make:
        return lambda site: scaled(site, self._name, axis, scale)

    def _check_missing(self, modules: dict[str, dict[str, LazyTensor]]) -> None:
        """Modules that `target_modules` select and that the file lacks; only the file knows what "all-linear" left."""
        targets = self._settings.targets
        if targets is None or isinstance(targets, str):
            return
        for module, paths in self._names.modules.items():
            if module not in modules and is_layer(self._sites[paths[0]]) and self._settings.is_target(module):
                self.problems.append(f"{shown(module)}: target_modules select it, and the file has nothing for it")


def _is_transposed(head: dict[str, LazyTensor], embedding: dict[str, LazyTensor]) -> bool:
    """Is an adapter of a head the one of the embedding whose weight it has?"""
    pairs = [("lora_A", "lora_embedding_B"), ("lora_B", "lora_embedding_A")]
    return set(head) == {"lora_A", "lora_B"} and all(
        theirs in embedding and np.array_equal(_array(head[ours]), _array(embedding[theirs]).T)
        for ours, theirs in pairs
    )


def _blocks(b: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]) -> list[Any]:
    """For each part of the outputs, the rows of A that it uses: all, or its own if all have rows of their own.

    So is a joint adapter of several layers written, see `save_adapter`; zeros are left out, and the results are equal.
    """
    every = [slice(None)] * (len(starts) - 1)
    if len(every) == 1:
        return every
    uses = [(b[start:stop] != 0.0).any(axis=0) for start, stop in pairwise(starts)]
    counts = np.sum(uses, axis=0)
    return uses if (counts == 1).all() and all(use.any() for use in uses) else every


def _array(tensor: LazyTensor) -> np.ndarray[Any, Any]:
    array = np.asarray(tensor.read())
    return array if array.dtype == np.float32 or array.dtype == np.float64 else array.astype(np.float32)


def _on(param: Any, value: np.ndarray[Any, Any]) -> Tensor:
    return tensor(np.ascontiguousarray(value), device=param.device)
