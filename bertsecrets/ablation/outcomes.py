"""The outcomes of a sweep: logits of every variant for every example."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bertsecrets.ablation.plan import Plan, Variant
from bertsecrets.ablation.predictions import PairedPredictions, Unseen
from bertsecrets.data.batch import Batch, whole_set
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.results.files import atomic_write
from bertsecrets.task_heads.base import TaskHead
from bertsecrets.task_heads.sequence import SEQUENCE

_TENSORS = ("index", "label", "clean", "logits")
_SCREENED = ("weight", "estimate")


@dataclass(frozen=True)
class Outcomes:
    """A finished sweep over N examples, ordered by index.

    Args:
        plan: The plan, with V variants.
        index_N: Index of each example in its split, int64.
        label_N: Class indices or scores, float32.
        clean_NC: Logits of the unedited model, float32; a single column holds the predictions themselves.
        logits_NVC: Logits of each variant, float32; estimated where ``weight_NV`` is 0.
        weight_NV: In a screened sweep, the number of pairs that each pair represents: 1 if the rule selected it for
            evaluation, the inverse of the audit's share if it was audited, 0 if its logits are an estimate. None in an
            exact sweep.
        estimate_NVC: In a screened sweep, the estimated logits of every pair.
        group_N: Group of each example, int64; None if examples are independent.
    """

    plan: Plan
    index_N: Tensor
    label_N: Tensor
    clean_NC: Tensor
    logits_NVC: Tensor
    weight_NV: Tensor | None = None
    estimate_NVC: Tensor | None = None
    group_N: Tensor | None = None

    def losses(self, task: Task) -> tuple[Tensor, Tensor]:
        """Loss of each example, unedited ``[N]`` and for each variant ``[N, V]``: cross-entropy, or squared error.

        In a screened sweep, a variant's values are e + w (l - e), with the exact loss l, the loss e of the estimated
        logits, and the weight w: over audits that find no miss, their mean is an unbiased estimate of the mean loss,
        with the estimate as control variate. Single values may be negative.
        """
        clean_N = variant_losses(self.clean_NC[:, None], self.label_N, task.head)[:, 0]
        loss_NV = variant_losses(self.logits_NVC, self.label_N, task.head)
        if self.estimate_NVC is None:
            return clean_N, loss_NV
        return clean_N, self._corrected(loss_NV, variant_losses(self.estimate_NVC, self.label_N, task.head))

    def logit_margins(self) -> tuple[Tensor, Tensor]:
        """Logit of each example's gold class minus the largest other logit, unedited ``[N]`` and for each variant ``[N,
        V]``.

        For a screened sweep, values are as in :meth:`losses`. For classification tasks.
        """
        class_N = self.label_N.long()
        margin_NV = margins(self.logits_NVC, class_N)
        if self.estimate_NVC is not None:
            margin_NV = self._corrected(margin_NV, margins(self.estimate_NVC, class_N))
        return margins(self.clean_NC[:, None], class_N)[:, 0], margin_NV

    def _corrected(self, value_NV: Tensor, estimate_NV: Tensor) -> Tensor:
        """Estimates, corrected by the weighted errors of the evaluated pairs."""
        assert self.weight_NV is not None
        return estimate_NV + self.weight_NV * (value_NV - estimate_NV)

    def predictions(self, task: Task) -> PairedPredictions:
        """Labels and predictions, and the number of pairs that a screened sweep left out."""
        unseen = None
        if self.weight_NV is not None:
            # Audited pairs represent others; a variant with a miss among them was evaluated on all examples.
            unseen = Unseen((self.weight_NV == 0).sum(0).numpy(), (self.weight_NV > 1).sum(0).numpy())
        prediction_VN = torch.stack([task.head.predictions(logits_NC) for logits_NC in self.logits_NVC.unbind(1)])
        numbers = (self.label_N, task.head.predictions(self.clean_NC), prediction_VN)
        group_N = None if self.group_N is None else self.group_N.numpy()
        return PairedPredictions(*(tensor.double().numpy() for tensor in numbers), unseen=unseen, group_N=group_N)

    def write(self, path: Path, task: Task) -> None:
        """Write the plan, the tensors and the losses to one safetensors file.

        In a screened sweep, ``loss`` is NaN for pairs that were not evaluated, ``loss_estimate`` is the estimate for
        every pair, and the mean loss of a variant is the mean of ``loss_estimate + weight * (loss - loss_estimate)``
        for evaluated pairs and of ``loss_estimate`` for the others.
        """
        tensors = {
            "index": self.index_N,
            "label": self.label_N,
            "clean": self.clean_NC,
            "logits": self.logits_NVC.contiguous(),
        }
        if self.group_N is not None:
            tensors["group"] = self.group_N
        if task.head.has_losses(self.clean_NC):
            loss_NV = variant_losses(self.logits_NVC, self.label_N, task.head)
            clean_N = variant_losses(self.clean_NC[:, None], self.label_N, task.head)[:, 0]
            # Not a view of the answers, which have them as a statistic.
            tensors |= {"clean_loss": clean_N.contiguous(), "loss": loss_NV.contiguous()}
        if self.weight_NV is not None and self.estimate_NVC is not None:
            tensors |= {
                "weight": self.weight_NV,
                "estimate": self.estimate_NVC.contiguous(),
                "loss": torch.where(self.weight_NV > 0, loss_NV, math.nan),
                "loss_estimate": variant_losses(self.estimate_NVC, self.label_N, task.head),
            }
        plan = {name: getattr(self.plan, name) for name in ("mode", "num_layers", "num_heads")}
        # A variant without parts is written as before parts existed, so that its files can still be read.
        plan["variants"] = [
            [one.name, one.kind, one.heads, one.layer, one.head, *([one.parts] if one.parts else [])]
            for one in self.plan.variants
        ]
        with atomic_write(path) as temporary:
            save_file(tensors, temporary, metadata={"plan": json.dumps(plan)})

    @classmethod
    def read(cls, path: Path) -> "Outcomes":
        """Read a file written by ``write``; raise UserError if it is missing or is not such a file."""
        try:
            with safe_open(path, "pt") as file:
                plan = _plan_from_dict(json.loads(file.metadata()["plan"]))
                there = set(file.keys())
                if "taken" in there:
                    raise UserError("it was stopped early by ablation.looks of an earlier version")
                optional = [file.get_tensor(name) if name in there else None for name in (*_SCREENED, "group")]
                outcomes = cls(plan, *(file.get_tensor(name) for name in _TENSORS), *optional)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, UserError) as error:
            raise UserError(
                f"{path} cannot be read as the outcomes of a sweep ({error}); give a file written by bertsecrets."
            ) from error
        shapes = [list(tensor.shape) for tensor in (outcomes.label_N, outcomes.clean_NC, outcomes.logits_NVC)]
        count, classes = len(outcomes.index_N), outcomes.clean_NC.shape[-1]
        if shapes != [[count], [count, classes], [count, len(plan.variants), classes]] or not count:
            raise UserError(
                f"{path} contains tensors of shapes {shapes}, which do not match {count} examples and "
                f"{len(plan.variants)} variants; run that sweep again."
            )
        return outcomes


def margins(logits_XVC: Tensor, class_X: Tensor) -> Tensor:
    """Logit of a class minus the largest other logit, ``[X, V]``."""
    index_XV1 = class_X[:, None, None].expand(-1, logits_XVC.shape[1], 1)
    of_class_XV = logits_XVC.gather(-1, index_XV1)[..., 0]
    return of_class_XV - logits_XVC.scatter(-1, index_XV1, -torch.inf).amax(-1)


def check_finite(logits_BC: Tensor, whose: str) -> None:
    """Raise UserError for logits that are not finite, because their argmax would look like a valid class."""
    if not logits_BC.isfinite().all():
        raise UserError(
            f"The logits of {whose} are not all finite; load or train the model again, or compute in float32 "
            "(trainer.precision=32-true)."
        )


def variant_losses(logits_NVC: Tensor, label_N: Tensor, head: TaskHead = SEQUENCE) -> Tensor:
    """Loss of each example for each variant, ``[N, V]``, from logits or other answers."""
    label_X = label_N.repeat_interleave(logits_NVC.shape[1])
    # A file stores class indices and scores in the same type.
    label_X = label_X if logits_NVC.shape[-1] == 1 else label_X.long()
    loss_NV: Tensor = head.answer_losses(logits_NVC.flatten(0, 1), label_X).unflatten(0, logits_NVC.shape[:2])
    return loss_NV


class Collected:
    """Collect the outcomes of a sweep over batches and processes, each example once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.head: TaskHead = SEQUENCE
        self.parts: list[tuple[Tensor, ...]] = []

    def update(self, batch: Batch, label_B: Tensor, *answers: Tensor) -> None:
        """Add a batch: labels, clean logits and variants' logits; also weights and estimates in a screened sweep."""
        self.head = batch.head
        # An example without a group forms its own group.
        group_B = batch.index_B if batch.group_B is None else batch.group_B
        self.parts.append((batch.index_B, group_B, label_B, *(answer.float() for answer in answers)))

    def outcomes(self) -> Outcomes:
        """All outcomes, from all processes, one for each example."""
        index_N, group_N, label_N, clean_NC, logits_NVC, *screened = whole_set(self.parts)
        row_M, label_M, clean_M1C = self.head.merged(label_N, clean_NC[:, None])
        _, _, logits_MVC = self.head.merged(label_N, logits_NVC)
        weight_NV, estimate_NVC = screened or (None, None)
        group_M = group_N[row_M]
        return Outcomes(
            self.plan,
            index_N[row_M],
            label_M.float(),
            clean_M1C[:, 0],
            logits_MVC,
            weight_NV,
            estimate_NVC,
            None if len(group_M.unique()) == len(group_M) else group_M,
        )


def _plan_from_dict(content: dict[str, object]) -> Plan:
    rows = content["variants"]
    if not isinstance(rows, list):
        raise TypeError("the plan's variants are not a list")
    variants = tuple(
        Variant(name, kind, tuple(map(tuple, heads)), layer, head, *(tuple(map(tuple, parts)) for parts in rest))
        for name, kind, heads, layer, head, *rest in rows
    )
    return Plan(str(content["mode"]), int(str(content["num_layers"])), int(str(content["num_heads"])), variants)
