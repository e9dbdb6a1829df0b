"""Every optional package that Phlox imports stands in an extra, and the error where it is missing names that extra.

Serves: pyproject.toml
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools.environments import EXTRAS, ROOT, name_of, of_extra, project

SOURCE = ROOT / "src" / "phlox"
NEEDED = {"numpy", "ml_dtypes", "typing_extensions", "msgspec"}
FOR_USERS = [extra for extra in project()["optional-dependencies"] if extra not in ("test", "lint", "docs")]

OF_THEIR_USERS = {
    "IPython": "is there where a notebook runs",
    "equinox": "its layers are wrapped for its users",
    "flax": "a tracked class of its modules is recognized, and its layers are wrapped for its users",
    "hypothesis": "strategies for the tests of those who write backends",
    "mlflow": "a tracker of its users",
    "onnxruntime": "an exported file is run by it if it is there, else by the onnx package",
    "optax": "its users give its transformations",
    "orbax.checkpoint": "checkpoints of its users",
    "tensorstore": "comes with Orbax",
    "wandb": "a tracker of its users",
}
"""Imported if they are there, or for those who use them anyhow, so that no extra has them."""

PACKAGES = {"PIL": "pillow", "backports.zstd": "backports.zstd", "huggingface_hub": "huggingface-hub"}
"""What is called otherwise in the package index than when it is imported."""

BY_A_NAME_THAT_IS_COMPUTED = {
    "backend/jax/compat.py": [], "backend/registry.py": ["jax", "torch"], "backend/torch/compat.py": ["torch"],
    "cli/command.py": [], "cli/info.py": ["jax", "torch"], "host/text.py": [], "interop/onnx/operators/__init__.py": [],
    "interop/orbax/bridge.py": ["tensorstore"], "lazy.py": [], "models/loading.py": [], "module/architecture.py": [],
    "record/io/compression.py": ["backports.zstd"], "testing/conformance/row.py": [],
    "testing/conformance/rows/__init__.py": [],
    "train/observers/loggers/trackers.py": ["mlflow", "wandb"],
}  # fmt: skip
"""Where `import_module` is given more than a text, and which packages that means; Phlox's own modules are not named."""


@cache
def trees() -> dict[str, ast.Module]:
    return {
        path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
    }


def called(node: ast.AST, *names: str) -> ast.expr | None:
    """The first argument of a call of one of these functions."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return node.args[0] if name in names else None


def imports(tree: ast.AST) -> Iterator[str]:
    """The modules that are imported by their name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(found := called(node, "import_module", "find_spec", "__import__"), ast.Constant):
            yield str(found.value)


def foreign(modules: Iterator[str] | list[str]) -> set[str]:
    """The packages of others among modules, those that are always there left out."""
    found: set[str] = set()
    for module in modules:
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names or top in NEEDED or top in ("phlox", "compression"):
            continue
        found.add(next((one for one in (*PACKAGES, *OF_THEIR_USERS) if f"{module}.".startswith(f"{one}.")), top))
    return found


@cache
def extras_of(package: str) -> set[str]:
    """The extras, but for `all`, that have a package."""
    name = PACKAGES.get(package, package)
    return {extra for extra in FOR_USERS if extra != "all" and name in map(name_of, of_extra(extra))}


@pytest.mark.full
def test_every_optional_package_stands_in_an_extra() -> None:
    for file, tree in trees().items():
        for package in foreign(list(imports(tree))) | set(BY_A_NAME_THAT_IS_COMPUTED.get(file, [])):
            assert package in OF_THEIR_USERS or extras_of(package), f"{file} imports {package}, which no extra has"


@pytest.mark.full
def test_names_that_are_computed_are_known() -> None:
    found = {
        file
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if (name := called(node, "import_module")) is not None and not isinstance(name, ast.Constant)
    }
    assert found == set(BY_A_NAME_THAT_IS_COMPUTED)


def test_an_error_names_the_extra_of_the_package_that_is_missing() -> None:
    checked: set[str] = set()
    for file, tree in trees().items():
        for attempt in ast.walk(tree):
            if not isinstance(attempt, ast.Try):
                continue
            packages = foreign([name for node in attempt.body for name in imports(node)]) - OF_THEIR_USERS.keys()
            text = "".join(
                str(node.value)
                for handler in attempt.handlers
                for raised in ast.walk(handler)
                if isinstance(raised, ast.Raise)
                for node in ast.walk(raised)
                if isinstance(node, ast.Constant)
            )
            for package in packages if text else ():
                checked.add(package)
                assert any(f"Phlox with the extra '{extra}'" in text for extra in extras_of(package)), f"{file}: {text}"
    assert checked == {
        "PIL", "fsspec", "huggingface_hub", "jax", "jinja2", "llguidance", "matplotlib", "onnx", "pyarrow", "rich",
        "starlette", "tokenizers", "torch", "uvicorn",
    }  # fmt: skip


def test_what_is_to_be_installed_is_there() -> None:
    others = {"orbax-checkpoint", "equinox", "flax", "mlflow", "wandb", "hypothesis", "{package}"}
    for path in SOURCE.rglob("*.py"):
        for wanted in re.findall(r"pip install '?([\w\[\]{}-]+)", path.read_text(encoding="utf-8")):
            extra = re.fullmatch(r"phlox\[(\w+)\]", wanted)
            assert extra[1] in FOR_USERS if extra else wanted in others, f"{path}: pip install {wanted}"


def test_all_is_all_of_them() -> None:
    together = {one for extra in FOR_USERS if extra != "all" for one in of_extra(extra)}
    assert set(of_extra("all")) == together
    assert {*EXTRAS, "torch", "all"} == set(FOR_USERS), "an extra's lowest versions are not tried"


@pytest.mark.parametrize("page", ["README.md", *(str(one.relative_to(ROOT)) for one in (ROOT / "docs").rglob("*.md"))])
def test_pages_name_extras_that_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for names in re.findall(r"pip\s+install\s+(?:--editable\s+)?'?(?:phlox|\.)\[([\w,]+)\]", text):
        assert set(names.split(",")) <= set(project()["optional-dependencies"]), Path(page).name
