"""Phlox: a deep-learning framework with interchangeable backends (NumPy, JAX, PyTorch) and PyTree modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox import backend as backend
from phlox import errors as errors
from phlox.backend import Bool as Bool
from phlox.backend import Device as Device
from phlox.backend import Float as Float
from phlox.backend import Int as Int
from phlox.backend import default_device as default_device
from phlox.backend.reproducible import reproducible as reproducible
from phlox.lazy import lazily
from phlox.tensor import tensor as tensor
from phlox.version import __version__ as __version__

if TYPE_CHECKING:
    from phlox import autodiff as autodiff
    from phlox import config as config
    from phlox import data as data
    from phlox import debug as debug
    from phlox import distributed as distributed
    from phlox import export as export
    from phlox import interop as interop
    from phlox import metrics as metrics
    from phlox import models as models
    from phlox import module as module
    from phlox import nn as nn
    from phlox import optim as optim
    from phlox import quantization as quantization
    from phlox import random as random
    from phlox import record as record
    from phlox import serve as serve
    from phlox import text as text
    from phlox import train as train
    from phlox import transform as transform
    from phlox.config import Config as Config
    from phlox.config import config_of as config_of
    from phlox.interop.peft import load_adapter as load_adapter
    from phlox.interop.peft import save_adapter as save_adapter
    from phlox.module import Buffer as Buffer
    from phlox.module import GradientsParams as GradientsParams
    from phlox.module import Module as Module
    from phlox.module import Param as Param
    from phlox.module import Reparameterization as Reparameterization
    from phlox.module import combine as combine
    from phlox.module import merge as merge
    from phlox.module import partition as partition
    from phlox.module import reference as reference
    from phlox.module import reparameterize as reparameterize
    from phlox.module import stack_modules as stack_modules
    from phlox.module import unstack_modules as unstack_modules
    from phlox.nn import adapter_names as adapter_names
    from phlox.nn import dora as dora
    from phlox.nn import ia3 as ia3
    from phlox.nn import lora as lora
    from phlox.nn import use_adapters as use_adapters
    from phlox.nn import without_adapters as without_adapters
    from phlox.quantization import fake_quantize as fake_quantize
    from phlox.quantization import load_quantized as load_quantized
    from phlox.quantization import quantize as quantize
    from phlox.tensor import *
    from phlox.transform import *

__getattr__, __dir__ = lazily(
    __name__,
    {
        "autodiff": "",
        "config": "Config config_of",
        "data": "",
        "debug": "",
        "distributed": "",
        "export": "",
        "interop": "load_adapter save_adapter",
        "metrics": "",
        "models": "",
        "module": "Buffer GradientsParams Module Param Reparameterization combine merge partition reference "
        "reparameterize stack_modules unstack_modules",
        "nn": "adapter_names dora ia3 lora use_adapters without_adapters",
        "optim": "",
        "quantization": "fake_quantize load_quantized quantize",
        "random": "",
        "record": "",
        "tensor": "*",
        "serve": "",
        "text": "",
        "train": "",
        "transform": "TensorSpec checkpoint compile custom_gradient eval_shape grad hessian hvp jacobian jvp "
        "scan value_and_grad vjp vmap",
    },
    here="Bool Device Float Int __version__ backend config default_device errors interop module nn quantization "
    "reproducible transform",
)
