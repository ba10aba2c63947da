"""Settings of a disabling sweep: what is disabled, how, and how the effects are tested."""

from dataclasses import fields
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from bertsecrets.ablation.plan import as_groups, groups
from bertsecrets.ablation.verdicts import Correction, Judging
from bertsecrets.attention.modes import check_sweep_mode, find_mode, keep_mode, loaded_mode
from bertsecrets.errors import UserError
from bertsecrets.settings import Meaning, Settings, shown

Precision = Literal["32-true", "bf16-mixed"]
FP32: Precision = "32-true"
BF16: Precision = "bf16-mixed"
MEASURED: Literal["measured"] = "measured"

Component = Literal["heads", "attention", "ffn", "neurons", "layers"]
"""Names of kinds in :data:`bertsecrets.results.components.COMPONENTS`."""

_Layer = Annotated[int, Field(ge=0)]
_Head = Annotated[str, Field(pattern=r"^\d{1,4}\.\d{1,4}$")]
_COUNT = "a whole number from 1"
_COMMANDS_ONLY = Meaning(notebook=False)
"""Options that refer to runs and files, or to plans and kinds of sweeps that notebooks do not support."""


class AblationSettings(Settings):
    """The ``ablation`` section of the configuration.

    Args:
        mode: ``uniform`` (Kovaleva et al. 2019), ``zero`` (Michel et al. 2019), ``mean``, ``peak`` (Pochinkov et al.
            2024), ``resample``, ``optimal`` (Li and Janson 2024), ``identity``, a mode of an installed package, or the
            ``module:Class`` or ``file.py:Class`` of one.
        components: What is disabled or left out one at a time, instead of the plans: ``heads``, ``attention`` (the
            attention sublayer of a layer), ``ffn`` (its feed-forward sublayer), ``neurons`` (groups of its neurons, as
            many as heads) and ``layers`` (both sublayers: its input passes on). None: what the plans define. In any
            mode, a part of a layer that is left out has output 0 before the residual connection.
        layer: Layer or layers to which plans and components that cover all layers are restricted; None for all.
        head: One head, ``"5.1"`` (layer and head), or heads disabled together, ``["5.1", "5.9"]``: nothing else is
            disabled, regardless of the plans.
        heads: One group, ``[[3, 1], [7, 10]]``, or a list of such groups, for plan ``groups``.
        layers: Layers to disable together, as an additional group of plan ``groups``.
        group_size, group_count: Largest size of groups of similar heads, and number of random groups of the same layers
            as controls for each: at least 19 are needed to call a group redundant.
        similarity_examples: Number of examples from which the similarity of maps is computed.
        reference_examples: Number of training examples from which modes ``mean``, ``peak`` and ``optimal`` compute a
            head's output, and from which mode ``resample`` draws.
        draws: Number of other examples that mode ``resample`` draws for each example.
        optimal_steps: Number of steps of the fit in mode ``optimal``.
        evaluation: Evaluation set; None for the task's first.
        max_examples: Size of a random sample of the set's examples; None for all.
        max_tokens: See :class:`bertsecrets.ablation.engine.Engine`.
        sweep: ``exact``, ``screened`` (see :func:`bertsecrets.ablation.screening.screened_sweep`), or None for screened
            if there are at least 4,000 examples and they take more than ten seconds at nominal speed, else exact.
            ``measured`` decides by measured seconds.
        audit: Share of the inactive pairs that a screened sweep evaluates as well, chosen at random.
        precision: Precision of a screened sweep: ``bf16-mixed``, with pairs far from a change of prediction in bf16
            (this makes the sweep a screened one); ``32-true``, all pairs in the trainer's precision; None to choose by
            processor (:func:`bertsecrets.ablation.arithmetic.prefers_bf16`).
        budget: Sweep as many random examples as fit into this time, such as ``10min``; None for all.
        plan_only: Only print what the sweep would cost and could show.
        margin: The largest acceptable loss, in points (hundredths of the score): a head, layer or group is dispensable
            if a loss of the margin or more is ruled out. None for no such verdict: intervals and needed heads remain.
        level: Level of the confidence intervals.
        correction: Error rate that *needed* controls over all heads: ``family_wise``, a probability of at most 1 -
            ``level`` that any head is falsely needed; ``false_discovery``, the false discovery rate.
        false_discovery_rate: False discovery rate of significant effects, and of dispensable variants.
        resamples, permutations: Number of bootstrap resamples, and of permutations of the test.
        seed: Seed for both, for the random groups, the draws and the fit.
    """

    conf = ("ablation/default",)

    mode: str = Field(description="the name of an override mode, e.g. uniform or zero")
    components: list[Component] | None = Field(
        min_length=1, description=f"a list of {', '.join(get_args(Component))}, or null"
    )
    layer: Annotated[_Layer | Annotated[list[_Layer], Field(min_length=1)] | None, _COMMANDS_ONLY] = Field(
        description="a layer, a list of layers, or null for all"
    )
    head: Annotated[_Head | Annotated[list[_Head], Field(min_length=1)] | None, _COMMANDS_ONLY] = Field(
        description="a layer and a head in quotes, e.g. '5.1', a list of them, or null"
    )
    heads: Annotated[list[Any] | None, _COMMANDS_ONLY] = Field(
        min_length=1, description="a group of heads [[layer, head], ...], a list of groups, or null"
    )
    layers: Annotated[list[_Layer] | None, _COMMANDS_ONLY] = Field(
        min_length=1, description="a list of layers, or null"
    )
    group_size: Annotated[int, _COMMANDS_ONLY] = Field(ge=1, description=_COUNT)
    group_count: Annotated[int, _COMMANDS_ONLY] = Field(ge=1, description=_COUNT)
    similarity_examples: Annotated[int, _COMMANDS_ONLY] = Field(ge=1, description=_COUNT)
    reference_examples: int = Field(ge=1, description=_COUNT)
    draws: int = Field(ge=1, description=_COUNT)
    optimal_steps: int = Field(ge=1, description=_COUNT)
    evaluation: Annotated[str | None, _COMMANDS_ONLY] = Field(
        description="the name of an evaluation set, or null for the first"
    )
    max_examples: Annotated[int | None, _COMMANDS_ONLY] = Field(ge=1, description=f"{_COUNT}, or null for all")
    max_tokens: Annotated[int | None, Meaning(conditions="alone")] = Field(
        ge=1, description=f"{_COUNT}, or null for the device's default"
    )
    sweep: Annotated[Literal["exact", "screened", "measured"] | None, Meaning(conditions="alone", notebook=False)] = (
        Field(description="exact, screened, measured, or null to choose by the size of model and task")
    )
    audit: Annotated[float, _COMMANDS_ONLY] = Field(gt=0, le=1, description="a share above 0 and at most 1")
    precision: Annotated[Precision | None, _COMMANDS_ONLY] = Field(
        description="bf16-mixed, 32-true, or null to choose by processor"
    )
    budget: Annotated[str | None, _COMMANDS_ONLY] = Field(
        pattern=r"^(0*[1-9]\d*\.?\d*|0*\.0*[1-9]\d*)(s|min|h)$",
        description="a time such as 90s, 10min or 1h, or null",
    )
    plan_only: Annotated[bool, Meaning(conditions="alone", notebook=False)] = Field(description="true or false")
    margin: float | None = Field(
        gt=0,
        allow_inf_nan=False,
        description="a positive number of points (hundredths of the score), or null to judge no head as expendable",
    )
    level: float = Field(gt=0, lt=1, description="a number between 0 and 1")
    correction: Correction = Field(description="family_wise or false_discovery")
    false_discovery_rate: float = Field(gt=0, lt=1, description="a number between 0 and 1")
    resamples: int = Field(ge=100, description="a whole number from 100")
    permutations: int = Field(ge=100, description="a whole number from 100")
    seed: int = Field(ge=0, lt=2**32, description=f"a whole number from 0 to {2**32 - 1}")

    @field_validator("mode")
    @classmethod
    def _check_mode(cls, mode: str) -> str:
        # Tables, files and pages use the name that the class defines.
        name = find_mode(mode).name if ":" in mode else mode
        check_sweep_mode(name, "ablation.mode")
        return name

    @model_validator(mode="after")
    def _check_heads(self) -> "AblationSettings":
        try:
            groups(as_groups(self.heads))
        except UserError as error:
            raise UserError(f"ablation.heads is {shown(self.heads)}: {error}") from error
        names = ("components", "layer", "heads", "layers")
        other = next((name for name in names if getattr(self, name) is not None), None)
        if self.head is not None and other is not None:
            raise UserError(
                f"ablation.head is {shown(self.head)}, with which nothing else is disabled, but ablation.{other} is "
                "given too; remove one of them."
            )
        if self.precision == BF16 and self.sweep == "exact":
            raise UserError(
                f"ablation.precision is {self.precision}, but ablation.sweep is exact; bf16 is for screened sweeps "
                "only, and an exact sweep uses trainer.precision."
            )
        return self

    @property
    def named_heads(self) -> list[tuple[int, int]]:
        """Layer and head of each head listed in ``head``; empty without one."""
        names = [self.head] if isinstance(self.head, str) else self.head or []
        return sorted((int(layer), int(head)) for layer, _, head in (name.partition(".") for name in names))

    def __getstate__(self) -> dict[Any, Any]:
        # A process that receives the settings knows the mode only by name.
        return {**super().__getstate__(), "mode": loaded_mode(self.mode)}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        mode = state.pop("mode")
        if mode is not None:
            keep_mode(mode)
        super().__setstate__(state)

    def judging(self) -> Judging:
        """How effects are tested."""
        settings = {field.name: getattr(self, field.name) for field in fields(Judging)}
        return Judging(**{**settings, "margin": None if self.margin is None else self.margin / 100})
