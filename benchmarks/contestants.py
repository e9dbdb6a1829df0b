"""The contestants: libraries, the variants of their use, and the environment of each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from benchmarks.workloads import STEPS, Kind, Workload

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Contestant:
    """A library of `benchmarks.libraries`, and one of its variants."""

    name: str
    library: str
    variant: str = ""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    several: bool = False
    """It takes `STEPS` steps per call, which helps only in training, and only if steps are short."""
    by_operation: bool = False
    """It calls kernels one by one. With tiny arrays it is faster on one thread, so there it gets one."""
    eager: bool = False
    """It compiles nothing. It predicts, and trains only tiny models or if the time to the first step is measured."""
    kinds: tuple[Kind, ...] = ("tiny", "long", "accelerated")
    """The kinds of workloads in which it takes part."""
    like: str = ""
    """The contestant from which it differs only in its environment: it only trains, and is compared for fewer steps."""
    random: bool = False
    """Its environment concerns random numbers: it takes part only if a step draws some."""

    @property
    def ours(self) -> bool:
        """Whether it is Phlox."""
        return self.library == "with_phlox"

    def takes_part(self, workload: Workload) -> bool:
        """Whether it takes part in the workload at all."""
        return workload.kind in self.kinds and (workload.dropout or not self.random)

    def trains(self, workload: Workload) -> bool:
        """Whether it takes part in the training."""
        if not self.takes_part(workload) or (self.several and not workload.several):
            return False
        return not self.eager or workload.kind == "tiny" or workload.starts > 1

    def predicts(self, workload: Workload) -> bool:
        """Whether it takes part in the inference."""
        return self.takes_part(workload) and workload.predicts and not self.several and not self.like

    def environment_for(self, workload: Workload) -> dict[str, str]:
        """The environment variables of its process."""
        return self.environment | (ONE_THREAD if workload.kind == "tiny" and self.by_operation else {})


_ON_JAX, _ON_TORCH = {"KERAS_BACKEND": "jax"}, {"KERAS_BACKEND": "torch"}
_KEEP = {"PHLOX_ALLOCATOR": "keep"}
"""The setting that `phlox tune` finds for steps that allocate much memory; see docs/tuning.md."""
KEPT = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=2147483647:"
    "glibc.malloc.arena_max=1:glibc.malloc.top_pad=67108864"
}
"""The same setting of the C library for the peers, which have no option for it."""
_RBG = {"JAX_DEFAULT_PRNG_IMPL": "rbg"}
"""JAX's faster random generator."""


def _like(
    contestant: Contestant, how: str, environment: dict[str, str], *, kinds: tuple[Kind, ...], random: bool = False
) -> Contestant:
    """The same contestant in another environment."""
    return replace(
        contestant,
        name=f"{contestant.name}, {how}",
        environment=contestant.environment | environment,
        kinds=kinds,
        like=contestant.name,
        random=random,
    )


_PHLOX_JAX = Contestant("Phlox on JAX", "with_phlox", "jax")
_PHLOX_TORCH = Contestant("Phlox on PyTorch", "with_phlox", "torch", by_operation=True)
_TORCH = Contestant("PyTorch", "with_torch", "eager", by_operation=True)
_COMPILED = Contestant("torch.compile", "with_torch", "compiled", by_operation=True)
_JAX = Contestant("JAX and Optax", "with_jax")
_NNX = Contestant("Flax NNX (split)", "with_nnx", "split")

CONTESTANTS = (
    _PHLOX_JAX,
    _like(_PHLOX_JAX, "memory kept", _KEEP, kinds=("long",)),
    Contestant(f"Phlox on JAX, {STEPS} steps a call", "with_phlox", f"jax {STEPS}", several=True),
    _PHLOX_TORCH,
    _like(_PHLOX_TORCH, "memory kept", _KEEP, kinds=("long",)),
    Contestant("Phlox on PyTorch, eager", "with_phlox", "torch eager", by_operation=True, eager=True),
    Contestant("Phlox on NumPy", "with_phlox", "numpy eager", by_operation=True, eager=True, kinds=("tiny", "long")),
    _TORCH,
    _like(_TORCH, "memory kept", KEPT, kinds=("long",)),
    _COMPILED,
    _like(_COMPILED, "memory kept", KEPT, kinds=("long",)),
    _JAX,
    _like(_JAX, "memory kept", KEPT, kinds=("long",)),
    _like(_JAX, "memory kept, rbg", _RBG | KEPT, kinds=("long",), random=True),
    Contestant(f"JAX and Optax, lax.scan of {STEPS}", "with_jax", str(STEPS), several=True),
    _NNX,
    _like(_NNX, "memory kept", KEPT, kinds=("long",)),
    _like(_NNX, "memory kept, rbg", _RBG | KEPT, kinds=("long",), random=True),
    # On other workloads it runs the same program as the one above, with more dispatch.
    Contestant("Flax NNX (nnx.jit)", "with_nnx", "jit", kinds=("tiny",)),
    Contestant("Equinox", "with_equinox"),
    Contestant("Keras on JAX", "with_keras", environment=_ON_JAX),
    Contestant(
        f"Keras on JAX, steps_per_execution={STEPS}", "with_keras", str(STEPS), environment=_ON_JAX, several=True
    ),
    Contestant("Keras on PyTorch", "with_keras", environment=_ON_TORCH, by_operation=True),
)
