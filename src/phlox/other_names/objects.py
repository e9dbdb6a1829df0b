"""Methods and fields of objects of other libraries, and names of devices -> their equivalents in Phlox."""

from __future__ import annotations

from collections.abc import Mapping

from phlox.other_names.modules import METHODS

_MODE = "model.train() and model.valid() return views for training and for inference; nothing is switched in place"
_PARAMETERS = "model.params() or model.named_params(); an optimizer takes the model: optimizer.step(lr, model, grads)"

TENSOR: dict[str, str] = {
    **{f"{name}_": f"x.{name}(...), which returns a new tensor" for name in sorted(METHODS)},
    "absolute": "x.abs()", "add": "x + y", "add_": "x + y: tensors never change in place", "add_scalar": "x + y",
    "addmm": "x @ y + b", "all_close": "x.allclose(y)", "amax": "x.max(axis)", "amin": "x.min(axis)",
    "astype": "x.float(), x.int(), x.bool()",
    "autodiff": "x.to_device(Autodiff(x.backend)), or phlox.Tensor.from_inner(x)",
    "bernoulli_": "phlox.random.bernoulli(...)",
    "bfloat16": "the backend chooses the precision: x.to_device(Torch(float='bf16'))", "bitwise_and": "x & y",
    "bitwise_or": "x | y", "block_until_ready": "x.numpy() or x.item(), which wait", "bmm": "x @ y",
    "bool_and": "x & y", "bool_not": "~x", "bool_or": "x | y",
    "cast": "the backend chooses the precision: x.to_device(Torch(float='bf16'))", "cat": "phlox.concat([x, y], axis)",
    "clamp": "x.clip(low, high)", "clamp_max": "x.clip(high=...)", "clamp_min": "x.clip(low=...)",
    "clone": "tensors are immutable: use x itself", "conj": "nothing: tensors are real", "contains_nan": "x.isnan()",
    "contiguous": "not needed: leave it out", "copy": "tensors are immutable: use x itself",
    "copy_": "tensors never change in place: use the new tensor",
    "cpu": "x.numpy() reads the values; x.to_device('torch:cpu') moves it", "cuda": "x.to_device('torch:gpu:0')",
    "data": "x.detach()", "detach_": "x.detach(), which returns a new tensor", "devices": "x.device", "dim": "x.ndim",
    "dims": "x.shape", "div": "x / y", "div_scalar": "x / y",
    "double": "the backend chooses the precision: x.to_device(NumPy(float='f64'))",
    "dtype": "x.kind, and x.backend for its precision", "element_size": "x.numpy().nbytes", "eq": "x == y",
    "equal": "x == y", "equal_elem": "x == y", "equal_scalar": "x == y", "expand": "x.broadcast_to(shape)",
    "expand_as": "x.broadcast_to(y.shape)", "exponential_": "phlox.random.exponential(shape)",
    "fill_": "phlox.full_like(x, value): tensors never change in place",
    "float16": "the backend chooses the precision: x.to_device(Torch(float='bf16'))", "float_power": "x ** y",
    "floor_divide": "x // y", "ge": "x >= y", "grad_fn": "x.is_require_grad()", "greater": "x > y",
    "greater_elem": "x > y", "greater_equal": "x >= y", "greater_equal_elem": "x >= y",
    "greater_equal_scalar": "x >= y", "greater_scalar": "x > y", "gt": "x > y", "H": "x.mT",
    "half": "the backend chooses the precision: x.to_device(Torch(float='f16'))", "imag": "nothing: tensors are real",
    "index_add": "x.at[index].add(values)", "index_add_": "x.at[index].add(values)",
    "index_copy_": "x.at[index].set(values)", "index_put": "x.at[index].set(values)",
    "index_put_": "x.at[index].set(values)", "index_select": "x.take(indices, axis)", "into_data": "x.numpy()",
    "into_scalar": "x.item()", "is_close": "x.isclose(y)",
    "is_contiguous": "nothing: how an array is laid out is the backend's own business", "is_cuda": "x.device",
    "is_finite": "x.isfinite()", "is_floating_point": "x.kind is phlox.Float", "is_inf": "x.isinf()",
    "is_leaf": "x.is_require_grad()", "is_nan": "x.isnan()", "le": "x <= y", "logical_and": "x & y",
    "logical_not": "~x", "logical_or": "x | y", "long": "x.int()", "lower": "x < y", "lower_elem": "x < y",
    "lower_equal": "x <= y", "lower_equal_elem": "x <= y", "lower_equal_scalar": "x <= y", "lower_scalar": "x < y",
    "lt": "x < y", "mask_fill": "x.masked_fill(mask, value)", "mask_select": "x.masked_select(mask)",
    "mask_where": "phlox.where(mask, value, x)", "masked_scatter_": "x.at[index].set(values)", "max_dim": "x.max(axis)",
    "max_dim_with_indices": "x.max(axis) and x.argmax(axis)", "max_pair": "phlox.maximum(x, y)",
    "mean_dim": "x.mean(axis, keepdims=True)", "mean_dims": "x.mean(axes, keepdims=True)", "min_dim": "x.min(axis)",
    "min_pair": "phlox.minimum(x, y)", "mm": "x @ y", "movedim": "x.moveaxis(source, destination)", "mul": "x * y",
    "mul_": "x * y: tensors never change in place", "mul_scalar": "x * y", "narrow": "x[start:stop], on any axis",
    "nbytes": "x.numpy().nbytes", "ndimension": "x.ndim", "ne": "x != y", "neg": "-x", "negative": "-x",
    "nelement": "x.size", "new_full": "phlox.full(shape, value, device=x.device)",
    "new_ones": "phlox.ones(shape, device=x.device)", "new_tensor": "phlox.tensor(values, device=x.device)",
    "new_zeros": "phlox.zeros(shape, device=x.device)", "no_grad": "x.detach()",
    "normal_": "phlox.random.normal(shape)", "not_equal": "x != y", "not_equal_elem": "x != y",
    "not_equal_scalar": "x != y", "numel": "x.size", "ones": "phlox.ones(shape), or phlox.ones_like(x)",
    "permute": "x.permute_dims(*axes)", "pin_memory": "nothing: leave it out", "pow": "x ** y", "powf": "x ** y",
    "powf_scalar": "x ** y", "powi": "x ** y", "powi_scalar": "x ** y", "random_": "phlox.random.uniform(shape)",
    "ravel": "x.flatten()", "real": "nothing: tensors are real", "recip": "1.0 / x",
    "register_hook": "phlox.custom_gradient can change a gradient", "rem": "x % y", "remainder": "x % y",
    "repeat_dim": "x.tile(...)", "repeat_interleave": "x.repeat(...)", "requires_grad": "x.is_require_grad()",
    "requires_grad_": "x.require_grad(), which returns the leaf",
    "retain_grad": "phlox.grad, with respect to that tensor", "scatter_": "x.at[index].set(values)",
    "scatter_add": "x.at[index].add(values)", "scatter_add_": "x.at[index].add(values)",
    "select": "x.take(indices, axis)", "select_assign": "x.at[start:stop].set(values)",
    "select_dim": "x[index], on any axis", "set_require_grad": "x.require_grad()", "sharding": "x.device.sharding",
    "slice": "x[start:stop], on any axis", "slice_assign": "x.at[start:stop].set(values)",
    "slice_dim": "x[start:stop], on any axis", "slice_fill": "x.at[start:stop].set(value)",
    "squeeze_dim": "x.squeeze(axis)", "squeeze_dims": "x.squeeze(axes)",
    "stride": "nothing: how an array is laid out is the backend's own business",
    "strides": "nothing: how an array is laid out is the backend's own business", "sub": "x - y", "sub_scalar": "x - y",
    "sum_dim": "x.sum(axis, keepdims=True)", "sum_dims": "x.sum(axes, keepdims=True)", "swap_dims": "x.swapaxes(a, b)",
    "swapdims": "x.swapaxes(a, b)", "t": "x.T",
    "to": "x.to_device(device) for another device; x.float(), x.int(), x.bool() for another kind",
    "to_data": "x.numpy()", "transpose": "x.swapaxes(a, b), x.mT or x.permute_dims(*axes)", "true_divide": "x / y",
    "type": "x.float(), x.int(), x.bool()", "type_as": "x.to_device(y.device)", "unbind": "x.unstack()",
    "uniform_": "phlox.random.uniform(shape)", "unsqueeze": "x.expand_dims(axis)", "unsqueeze_": "x.expand_dims(axis)",
    "unsqueeze_dim": "x.expand_dims(axis)", "unsqueeze_dims": "x.expand_dims(axes)",
    "var_bias": "x.var(axis), which divides by n", "view": "x.reshape(shape)", "where": "phlox.where(condition, x, y)",
    "without_autodiff": "x.inner()", "zero_": "phlox.zeros_like(x): tensors never change in place",
    "zero_grad": "gradients are returned by backward(), and not stored: there is nothing to zero",
    "zeros": "phlox.zeros(shape), or phlox.zeros_like(x)",
}  # fmt: skip
"""Array methods of other libraries -> the equivalent in Phlox."""

MODULE: dict[str, str] = {
    "add": "children are its fields; phlox.nn.Sequential takes a list of layers",
    "add_module": "children are its fields; phlox.nn.Sequential takes a list of layers",
    "apply": "model(x); for PyTorch's apply model.map(lambda path, param: ...)",
    "bfloat16": "model.to_device(Torch(float='bf16'))", "bind": "nothing: a module has its parameters",
    "buffers": "model.named_params(), those that are not trained",
    "build": "nothing: layers are given their sizes, and model.init() makes the parameters",
    "call": "model(x): a module is called by its __call__", "cast": "model.to_device(Torch(float='bf16'))",
    "children": "children are its fields", "collect_devices": "model.params()[0].device",
    "compile": "phlox.compile(step)", "count_params": "model.num_params()", "cpu": "model.to_device('torch:cpu')",
    "cuda": "model.to_device('torch:gpu:0')", "devices": "model.params()[0].device",
    "double": "model.to_device(Torch(float='f64'))", "evaluate": "phlox.train.Learner(model, ...).evaluate(...)",
    "fit": "phlox.train.Learner(model, ...).fit(...)", "float": "model.to_device(Torch()), whose floats are f32",
    "fork": "model.to_device(device)", "forward": "model(x): a module is called by its __call__",
    "freeze_group": "model.freeze(patterns)", "from_pretrained": "phlox.interop.huggingface.load(folder)",
    "get_config": "its config: config.save(path)", "get_layer": "children are its fields",
    "get_parameter": "model.named_params(), or its field", "get_submodule": "children are its fields",
    "get_weights": "model.into_record()", "half": "model.to_device(Torch(float='f16'))",
    "load_file": "model.load(path)",
    "load_state_dict": "model.load_record(record), model.load(path); for PyTorch's files phlox.interop.pytorch.load",
    "load_weights": "model.load(path)", "modules": "model.named_params() walks parameters; children are its fields",
    "named_buffers": "model.named_params(), those that are not trained", "named_children": "children are its fields",
    "named_modules": "model.named_params() walks parameters", "named_parameters": "model.named_params()",
    "no_grad": "model.freeze(), or model.valid() for no tape",
    "non_trainable_weights": "model.params(), whose `trained` says which", "param": "self.name = phlox.Param(value)",
    "predict": "model.valid()(x)", "register_backward_hook": "phlox.custom_gradient can change a gradient",
    "register_buffer": "self.name = phlox.Param(value, trained=False)",
    "register_forward_hook": "phlox.debug.capture(model, path), or phlox.module.calls.observed(model, fn)",
    "register_forward_pre_hook": "phlox.debug.capture(model, path), or phlox.module.calls.observed(model, fn)",
    "register_full_backward_hook": "phlox.custom_gradient can change a gradient",
    "register_parameter": "self.name = phlox.Param(value)", "requires_grad_": "model.freeze() and model.unfreeze()",
    "save_file": "model.save(path)", "save_pretrained": "phlox.interop.huggingface.save(model, folder)",
    "save_weights": "model.save(path)", "set_weights": "model.load_record(record)",
    "sow": "phlox.debug.capture(model, path), or phlox.module.calls.observed(model, fn)",
    "state_dict": "model.into_record(), model.save(path)", "tabulate": "model.summary(x)",
    "test_step": "phlox.train.Learner(model, ..., step=...)", "to": "model.to_device(device)",
    "to_json": "its config: config.save(path)", "train_on_batch": "phlox.train.Learner(model, ...).fit(data, steps=1)",
    "train_step": "phlox.train.Learner(model, ..., step=...)", "trainable": "model.freeze() and model.unfreeze()",
    "trainable_weights": "model.params(), whose `trained` says which",
    "try_load_file": "model.load(path, strict=False), which returns a report",
    "try_load_record": "model.load(path, strict=False), which returns a report",
    "unfreeze_group": "model.unfreeze(patterns)", "variable": "self.name = phlox.Param(value)",
    "variables": "model.params()", "weights": "model.params()",
    "zero_grad": "gradients are returned by backward(), and not stored: there is nothing to zero",
    "eval": _MODE, "parameters": _PARAMETERS, "trainable_variables": _PARAMETERS,
}  # fmt: skip
"""Module methods of other libraries -> the equivalent in Phlox."""

OPTIMIZER: dict[str, str] = {
    "add_param_group": "groups of the config: init(groups=[...])",
    "apply": "optimizer.step(lr, model, grads), which returns the new model",
    "apply_gradients": "optimizer.step(lr, model, grads), which returns the new model",
    "apply_updates": "optimizer.step(lr, model, grads), which returns the new model",
    "init": "nothing: the state is made with the first step, optimizer.step(lr, model, grads)",
    "iterations": "optimizer.states",
    "learning_rate": "the learning rate is given to each step: optimizer.step(lr, model, grads)",
    "load_state_dict": "optimizer.load_record(record), or phlox.record.restore",
    "lr": "the learning rate is given to each step: optimizer.step(lr, model, grads)",
    "minimize": "optimizer.step(lr, model, grads); only Lbfgs has minimize",
    "param_groups": "groups of the config, OptimizerAdaptor(..., groups=[...])",
    "state_dict": "optimizer.into_record(), or phlox.record.gather(model=model, optimizer=optimizer)",
    "to_record": "optimizer.into_record()", "update": "optimizer.step(lr, model, grads), which returns the new model",
    "with_grad_clipping": "init(grad_clipping=phlox.optim.GradientClipping.norm(1.0))",
    "zero_grad": "gradients are returned by backward(), and not stored: there is nothing to zero",
}  # fmt: skip
"""Optimizer methods and fields of other libraries -> the equivalent in Phlox."""

EVENTS: dict[str, str] = {
    "on_batch_begin": "on_step_end, of the step before", "on_batch_end": "on_step_end",
    "on_epoch_begin": "on_epoch_start", "on_evaluate": "on_validation_end",
    "on_load_checkpoint": "restore(state), or load_record(record)", "on_log": "a phlox.train.Logger, with write(row)",
    "on_save": "on_checkpoint", "on_save_checkpoint": "state(), or into_record()",
    "on_step_begin": "on_step_end, of the step before", "on_step_start": "on_step_end, of the step before",
    "on_test_begin": "on_validation_start", "on_test_end": "on_validation_end",
    "on_train_batch_begin": "on_step_end, of the step before", "on_train_batch_end": "on_step_end",
    "on_train_batch_start": "on_step_end, of the step before", "on_train_begin": "on_fit_start",
    "on_train_end": "on_fit_end", "on_train_epoch_end": "on_epoch_end", "on_train_epoch_start": "on_epoch_start",
    "on_train_start": "on_fit_start", "on_validation_begin": "on_validation_start",
    "on_validation_epoch_end": "on_validation_end", "on_validation_epoch_start": "on_validation_start",
}  # fmt: skip
"""Methods of callbacks of other libraries -> those of `phlox.train.Callback`."""

PARAM: dict[str, str] = {
    "assign": "param.set(value)", "copy_": "param.set(value)", "cpu": "model.to_device(device)",
    "cuda": "model.to_device(device)", "data": "param.val()",
    "dtype": "param.kind, and param.backend for its precision", "fill_": "param.set(value)", "get_value": "param.val()",
    "grad": "grads.get(param.id), of the gradients that loss.backward() or phlox.grad gave", "is_leaf": "param.trained",
    "numel": "param.val().size", "raw_value": "param.val()",
    "requires_grad": "param.trained; model.freeze() and model.unfreeze() change it",
    "requires_grad_": "param.trained; model.freeze() and model.unfreeze() change it", "set_value": "param.set(value)",
    "to": "model.to_device(device)", "value": "param.val()", "zero_": "param.set(value)",
}  # fmt: skip
"""Methods of parameters and variables of other libraries -> the equivalent in Phlox."""

METRIC: dict[str, str] = {
    "clear": "state = metric.init(): a metric keeps nothing itself", "forward": "metric(predictions, targets)",
    "reset": "state = metric.init(): a metric keeps nothing itself",
    "reset_state": "state = metric.init(): a metric keeps nothing itself",
    "reset_states": "state = metric.init(): a metric keeps nothing itself",
    "update_state": "state = metric.update(state, predictions, targets), which returns the new state",
}  # fmt: skip
"""Methods of metrics of other libraries -> the equivalent in Phlox."""

LEARNER: dict[str, str] = {
    "compile": "nothing: Learner(model, optimizer, lr, loss, metrics=...) takes what Keras' compile takes",
    "launch": "learner.fit(data, epochs=...)", "learning_rate": "learner.schedule",
    "load_state_dict": "learner.load_record(record)", "load_weights": "learner.model.load(path)",
    "lr": "learner.schedule", "save_weights": "learner.model.save(path)", "state_dict": "learner.into_record()",
    "summary": "learner.model.summary(x)", "test": "learner.evaluate(data)", "train": "learner.fit(data, epochs=...)",
    "train_on_batch": "learner.fit(data, steps=1)",
}  # fmt: skip
"""Methods of trainers of other libraries -> those of `phlox.train.Learner`."""

PLACE: dict[str, str] = {
    "apply": "x.at[key].set(fn(x[key]))", "divide": "x.at[key].mul(1 / v)", "multiply": "x.at[key].mul(v)",
    "power": "x.at[key].set(x[key] ** v)",
}  # fmt: skip
"""What JAX has as `x.at[key]....` -> the equivalent in Phlox."""

DEVICES: Mapping[str, str] = {
    "cpu": "'numpy', 'jax:cpu' or 'torch:cpu'", "cuda": "'torch:gpu:0' or 'jax:gpu:0'",
    "gpu": "'torch:gpu:0' or 'jax:gpu:0'", "mps": "'torch:mps'", "np": "'numpy'", "pytorch": "'torch'",
    "rocm": "'torch:gpu:0'", "tensorflow": "'jax'", "tpu": "'jax:tpu:0'", "xla": "'jax'",
}  # fmt: skip
"""Device names of other libraries -> those of Phlox."""
