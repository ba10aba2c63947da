"""Fit hard-concrete gates to a finished, frozen model."""

import logging
from collections.abc import Iterator, Sequence
from typing import Annotated

import torch
from pydantic import Field

from bertsecrets.analysis import Analysis, Context, Findings
from bertsecrets.data.sources import TRAIN
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.pruning.gates import HardConcrete, closed_heads, fit_gates
from bertsecrets.pruning.rows import CausalGates, GateFits, PathGate, PathPoint
from bertsecrets.pruning.sets import evaluate_sets
from bertsecrets.results.progress import progress_over

_log = logging.getLogger(__name__)

_Count = Annotated[int, Field(ge=1, description="a whole number from 1")]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, description="a number above 0")]
_LEVEL = 0.95


class FitGates(Analysis):
    """Fit gates to the frozen model: pushed shut, pushed open, and along a path of penalties.

    An interrupted analysis resumes from its finished fits.

    Args:
        penalty: Penalty per expected open gate for pushing gates shut; the negative pushes them open.
        path: Penalties of the path, in ascending order; each fit starts from the previous one. Empty for no path.
        steps: Steps of each fit.
        learning_rate: Learning rate of the gates.
        fits: Number of fits in each direction, with different random draws.
        examples: Number of training examples.
        evaluation: Evaluation set of the path; None for the task's first.
        seed: Seed of the draws.

    Raises:
        UserError: If a setting is out of range, or the path is not ascending.
    """

    without_labels = "gates have no loss to be fitted to"
    learns = "Fitting gates"

    def __init__(
        self,
        penalty: _Positive = 0.01,
        path: Annotated[Sequence[_Positive], Field(description="a list of numbers above 0 in ascending order")] = (
            0.003,
            0.01,
            0.03,
            0.1,
            0.3,
        ),
        steps: _Count = 150,
        learning_rate: _Positive = 0.1,
        fits: _Count = 3,
        examples: _Count = 512,
        evaluation: Annotated[
            str | None, Field(description="the name of an evaluation set, or null for the first")
        ] = None,
        seed: Annotated[int, Field(ge=0, description="a whole number from 0")] = 0,
    ) -> None:
        if list(path) != sorted(set(path)):
            raise UserError(f"The path of penalties is {list(path)}; give distinct numbers in ascending order.")
        super().__init__(evaluation)
        self.penalty = penalty
        self.path = tuple(path)
        self.steps = steps
        self.learning_rate = learning_rate
        self.fits = fits
        self.examples = examples
        self.seed = seed

    def run(self, context: Context) -> Iterator[Findings]:
        data, model = context.data, context.model
        store = context.store.of(model)
        fits = 2 * self.fits + len(self.path)
        with progress_over(fits * self.steps, "fitting gates", visible=context.progress, unit="step") as advance:

            def fit(penalty: float, seed: int, start: HardConcrete | None = None) -> HardConcrete:
                recipe = (penalty, seed, self.steps, self.learning_rate, self.examples)
                before = store.loaded
                log_alpha_LH = store.once(
                    lambda: {
                        "gates": fit_gates(
                            model,
                            lambda: data.training_sample(self.examples),
                            data.task,
                            penalty=penalty,
                            steps=self.steps,
                            learning_rate=self.learning_rate,
                            seed=seed,
                            context=context.autocast,
                            start=start,
                            progress=advance,
                        ).log_alpha_LH
                    },
                    *recipe,
                    None if start is None else start.log_alpha_LH,
                )["gates"].cpu()
                if store.loaded > before:
                    advance(self.steps)
                gates = HardConcrete(*log_alpha_LH.shape)
                gates.load(context.from_first(log_alpha_LH), "fit")
                return gates.eval()

            directions = [
                torch.stack(
                    [fit(sign * self.penalty, self.seed + number)().detach().cpu() for number in range(self.fits)]
                )
                for sign in (1, -1)
            ]
            path: list[HardConcrete] = []
            for penalty in self.path:
                path.append(fit(penalty, self.seed, path[-1] if path else None))
        sets = [closed_heads(gates) for gates in path] or [frozenset()]
        results = evaluate_sets(model, sets, context.batches(), data.task, context=context.autocast, store=store)
        if store.loaded:
            _log.info(f"Resumed interrupted fits: {store.loaded} steps were already finished.")
        metric = data.task.metric
        baseline, _ = results.scores(metric)
        count, choosing = len(results.label_N), min(self.examples, len(data.examples(TRAIN)))
        rows: list[object] = [
            GateFits(metric.name, baseline, results.clean_loss, _LEVEL, count, choosing, self.penalty, self.steps)
        ]
        changes = results.estimates(metric, _LEVEL)
        # Without a path, the only set is the intact model.
        for penalty, gates, change, loss in zip(self.path, path, changes, results.loss_V.tolist(), strict=False):
            rows.append(PathPoint(penalty, int(gates.kept().sum()), change, loss))
            rows += [
                PathGate(penalty, layer, head, gate)
                for layer, gate_H in enumerate(gates().detach().cpu().tolist())
                for head, gate in enumerate(gate_H)
            ]
        yield Findings(CausalGates(), [_grid(directions)], rows)


def _grid(directions: Sequence[torch.Tensor]) -> HeadGrid:
    """Mean gates of the fits, their standard errors, and the number of fits."""
    value_LHC = torch.stack([gate_FLH.mean(0) for gate_FLH in directions], -1)
    count = len(directions[0])
    stderr_LHC = torch.full_like(value_LHC, torch.nan)
    if count > 1:
        stderr_LHC = torch.stack([gate_FLH.std(0) / count**0.5 for gate_FLH in directions], -1)
    return HeadGrid(
        CausalGates.name,
        CausalGates.columns,
        value_LHC,
        stderr_LHC,
        torch.full_like(value_LHC, count, dtype=torch.int64),
    )
