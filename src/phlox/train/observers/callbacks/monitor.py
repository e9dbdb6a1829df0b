"""`Watch` and `Monitor`, the bases of callbacks that watch a value; `better_mode`, the direction of improvement."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from phlox.errors import RunError
from phlox.record.names import nearest
from phlox.train.observers.callback import AnyLearner, Callback

Mode: TypeAlias = Literal["min", "max"]

_LESS = """
    loss losses error errors err perplexity ppl nll bce crossentropy logloss mae mse rmse msle rmsle mape smape mase wer
    cer ter eer der ece mce brier fid kid lpips hamming distance divergence kl kld hinge huber deviance cost regret bpb
    bpc bpd bpw penalty residual emd wasserstein falsepositive falsenegative fpr fnr perbyte perdim percharacter
"""
_MORE = """
    accuracy acc f1 f2 fbeta auc auroc auprc roc aucroc aucpr prauc rocauc precision recall sensitivity specificity iou
    miou jaccard dice map ap bleu sacrebleu rouge meteor chrf comet bertscore psnr ssim msssim r2 kappa mcc matthews
    pearson spearman kendall correlation corr similarity ndcg dcg mrr hits hit exactmatch likelihood loglikelihood elbo
    reward returns success explained tpr tnr truepositive truenegative passed throughput
"""
_IS_LESS = dict.fromkeys(_LESS.split(), True) | dict.fromkeys(_MORE.split(), False)
"""By word of a name: is less of the value better? Two words (`true_positive`) are one key without the underscore."""
_OPPOSITE = frozenset({"neg", "negative", "minus"})


def better_mode(name: str) -> Mode:
    """The mode that the name of a value implies: "min" if less of it is better, "max" if more is.

    The last known word of the name decides; the parts between slashes are read from the last to the first:
    `validation/top_5_accuracy`, `validation/recall/0`, `valLoss`. `negative_...` reverses the mode.

    Raises `RunError`, which asks for a mode, if the name has no known word.

    >>> better_mode("validation/loss"), better_mode("validation/macro_f1"), better_mode("negative_log_likelihood")
    ('min', 'max', 'min')
    """
    for part in reversed(name.split("/")):
        words = _words(part)
        for end in range(len(words), 0, -1):
            pair = "".join(words[max(end - 2, 0) : end])
            for word in (pair, words[end - 1]):
                if word in _IS_LESS:
                    before = words[: end - 2 if word == pair else end - 1]
                    less = _IS_LESS[word] != bool(_OPPOSITE.intersection(before))
                    return "min" if less else "max"
    raise RunError(
        f'{name!r}: its name does not say whether less or more of it is better; give mode="min" or mode="max"'
    )


def _words(part: str) -> list[str]:
    words: list[str] = []
    for word in re.findall(r"[A-Za-z]+[0-9]*", part):
        lower = word.lower()
        for key in (lower, lower.rstrip("0123456789")):  # IoU, mAP, f1; bleu4
            if key in _IS_LESS:
                words.append(key)
                break
        else:
            words += [piece.lower() for piece in re.findall(r"[A-Z]?[a-z]+[0-9]*|[A-Z]+(?![a-z])[0-9]*", word)]
    return words


def check_value_name(learner: AnyLearner, name: str, asking: str) -> None:
    """Raise `RunError` if it is known before the first step that no report will have a value of this name.

    Args:
        learner: the learner.
        name: the name of the value.
        asking: the class and its argument, for error messages, such as `EarlyStopping: monitor`.
    """
    kind = name.partition("/")[0]
    if kind == "validation" and learner.validation_data is None:
        raise RunError(
            f"{asking}={name!r} is a value of the validation, and there are no validation data; give fit(..., "
            'validation=...), or a value such as "train/loss"'
        )
    names, has_more = learner.value_names(kind)
    if has_more or any(name == n or name.startswith(f"{n}/") for n in names):
        return
    offered = [n for each in ("train", "validation") for n in learner.value_names(each)[0]]
    raise RunError(
        f"{asking}: there will be no value {name!r}; there will be: {', '.join(offered)}{did_you_mean(name, offered)}"
    )


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """A hint at the most similar name, also for a name without its kind, or with the prefix of another library.

    >>> did_you_mean("val_loss", ["train/loss", "validation/loss"]), did_you_mean("accuracy", ["train/accuracy"])
    ("; did you mean 'validation/loss'?", "; did you mean 'train/accuracy'?")
    """
    bare = name.rpartition("/")[2]
    short = bare.removeprefix("valid_").removeprefix("val_").removeprefix("train_")
    kinds = ("train", "validation") if bare.startswith("train") else ("validation", "train")
    likely = [f"{kind}/{text}" for text in dict.fromkeys((bare, short)) for kind in kinds]
    near = next((text for text in likely if text in names and text != name), None) or nearest(name, names)
    return f"; did you mean {near!r}?" if near else ""


def value_of(learner: AnyLearner, name: str, asking: str) -> float:
    """The newest value of this name; `RunError`, which names the callback, if there is none."""
    try:
        return float(learner.value(name))
    except RunError as error:
        raise RunError(f"{asking}: {error}") from None


class Watch(Callback):
    """The base of callbacks that look at one value of a training. Implement `look`.

    A validation value (`validation/...`) is looked at after each validation, also in the middle of an epoch; any other
    (`train/...`) at the end of each epoch.

    Args:
        monitor: the name of the value, as `learner.value` takes it.

    Raises `RunError` if `monitor` is not a string or is empty and, when the training begins, for a validation value
    without validation data and for a name that no value will have. Scalars that a step of your own returns are known
    only when it has been called: for those the error comes at the end of the first epoch.

    >>> class Show(Watch):
    ...     def look(self, learner, value):
    ...         print(f"{self.monitor}: {value:.3f}")
    >>> Show("train/loss")
    Show('train/loss')
    """

    def __init__(self, monitor: str) -> None:
        if not isinstance(cast("Any", monitor), str) or not monitor:
            raise RunError(
                f'{type(self).__name__}: monitor is the name of a value, such as "validation/loss", got {monitor!r}'
            )
        self.monitor = monitor

    def look(self, learner: AnyLearner, value: float) -> None:
        """Called with each new value."""
        raise NotImplementedError(f"{type(self).__name__}: implement look(learner, value)")

    @property
    def is_of_validation(self) -> bool:
        """Is it a validation value (`validation/...`)?"""
        return self.monitor.startswith("validation/")

    def on_fit_start(self, learner: AnyLearner) -> None:
        if self.monitor:
            check_value_name(learner, self.monitor, self._asking)

    def on_validation_end(self, learner: AnyLearner) -> None:
        if self.is_of_validation:
            self.look(learner, value_of(learner, self.monitor, self._asking))

    def on_epoch_end(self, learner: AnyLearner) -> None:
        if not self.is_of_validation:
            self.look(learner, value_of(learner, self.monitor, self._asking))

    @property
    def _asking(self) -> str:
        return f"{type(self).__name__}: monitor"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.monitor!r})"


class Monitor(Watch):
    """The base of callbacks that keep track of the best value, see `Watch`. Implement `observe`.

    The best value is forgotten when a training begins at step 0; another `fit` of the same learner keeps it.

    Args:
        monitor: the name of the value, as `learner.value` takes it.
        mode: whether less ("min") or more ("max") of it is better; "auto" derives that from its name, see
            `better_mode`.
        min_delta: a value counts as better if it is better than the best one by more than this.

    Attributes:
        best: the best value so far; None before the first. It is never NaN, nor the infinity on the worse side.
        best_epoch, best_step: the epoch (from 1) and the step of the best value.

    Raises `RunError` for any other mode, and with "auto" for a name that does not imply a mode.

    >>> class Tell(Monitor):
    ...     def observe(self, learner, value, improved):
    ...         print(f"{value:.3f} is", "the best so far" if improved else f"no better than {self.best:.3f}")
    >>> Tell("validation/accuracy")
    Tell('validation/accuracy', mode='max')
    """

    def __init__(self, monitor: str, *, mode: Literal["auto", "min", "max"] = "auto", min_delta: float = 0.0) -> None:
        super().__init__(monitor)
        owner = type(self).__name__
        self.mode = mode_of(monitor, mode, owner)
        if not is_number(min_delta) or not 0.0 <= min_delta < math.inf:
            raise RunError(f"{owner}: min_delta must be a finite number of at least zero, got {min_delta!r}")
        self.min_delta = float(min_delta)
        self.reset()

    def observe(self, learner: AnyLearner, value: float, improved: bool) -> None:
        """Called with each new value; `best` is already up to date.

        Args:
            learner: the learner.
            value: the value.
            improved: whether it is better than all before.
        """
        raise NotImplementedError(f"{type(self).__name__}: implement observe(learner, value, improved)")

    def reset(self) -> None:
        """Forget the best value."""
        self.best: float | None = None
        self.best_epoch = self.best_step = 0

    def is_better(self, value: float, than: float | None) -> bool:
        """Is `value` better than `than` by more than `min_delta`? None is the worst possible value."""
        worst = math.inf if self.mode == "min" else -math.inf
        bar = worst if than is None else than
        return value < bar - self.min_delta if self.mode == "min" else value > bar + self.min_delta

    def on_fit_start(self, learner: AnyLearner) -> None:
        super().on_fit_start(learner)
        if learner.step == 0:
            self.reset()

    def look(self, learner: AnyLearner, value: float) -> None:
        improved = self.is_better(value, self.best)
        if improved:
            epoch = learner.epoch + 1 if self.is_of_validation else learner.history[-1].epoch
            self.best, self.best_epoch, self.best_step = value, epoch, learner.step
        self.observe(learner, value, improved)

    def state(self) -> Mapping[str, Any]:
        return {"monitor": self.monitor, "best": self.best, "best_epoch": self.best_epoch, "best_step": self.best_step}

    def restore(self, state: Mapping[str, Any], /) -> None:
        if state.get("monitor", self.monitor) != self.monitor:
            return  # the best value of another monitor means nothing here
        best = state.get("best")
        self.best = None if best is None else float(best)
        self.best_epoch, self.best_step = int(state.get("best_epoch", 0)), int(state.get("best_step", 0))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.monitor!r}, mode={self.mode!r})"


def mode_of(name: str, mode: str, owner: str) -> Mode:
    """The given mode; for "auto", the one that the value's name implies. `RunError`, naming `place`, for any other."""
    if mode == "min" or mode == "max":
        return mode
    if mode != "auto":
        raise RunError(f'{owner}: mode must be "auto", "min" or "max", got {mode!r}')
    try:
        return better_mode(name)
    except RunError as error:
        raise RunError(f"{owner}: {error}") from None


def is_number(value: object) -> bool:
    """Is it an int or a float?"""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_count(value: object) -> bool:
    """Is it a whole number of at least one?"""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
