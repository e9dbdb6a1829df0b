"""Does Phlox work with the lowest versions of its dependencies that pyproject.toml allows?

    make floors

They are installed into an environment of their own, once, and a part of the tests and both of the engines that come
without PyTorch are run with them. Where the packages cannot be had, it says so, and that is no failure.
"""

from __future__ import annotations

import tempfile

from tools.environments import EXTRAS, Environment, Skipped, lowest

TESTS = (
    "src/phlox",  # the examples in the docstrings: a little of everything
    *("--ignore=src/phlox/testing", "--ignore=src/phlox/backend/torch", "--ignore=src/phlox/optim/optax/adaptor.py"),
    "--ignore=src/phlox/export/to_torch.py",
    *(f"--ignore=src/phlox/interop/{name}.py" for name in ("equinox", "flax", "pytorch/wrapping")),
    *(f"tests/record/formats/test_{name}.py" for name in ("binary", "json", "message_pack")),
    *("tests/config/test_base.py", "tests/train/observers/views/test_view.py"),
    *("tests/data/test_image_folder.py", "tests/data/test_sources.py"),  # Pillow, Arrow
)
DEMOS = (("--device", "numpy"), ("--device", "jax", "--compile"))


def main() -> None:
    """Install and try."""
    environment = Environment("lowest", lowest(*EXTRAS))
    try:
        environment.make()
    except Skipped as reason:
        print(f"floors: skipped: the lowest versions cannot be installed here: {reason}")
        return
    print(f"floors: {', '.join(environment.pins)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        commands = [["pytest", "-q", "-W", "default", "-p", "no:cacheprovider", *TESTS]]
        commands += [
            ["phlox", "demo", "--epochs", "1", "--out", f"{folder}/{i}", *demo] for i, demo in enumerate(DEMOS)
        ]
        for command in commands:
            if not environment.run(*command):
                raise SystemExit(f"floors: failed with the lowest versions: {' '.join(command)}")


if __name__ == "__main__":
    main()
