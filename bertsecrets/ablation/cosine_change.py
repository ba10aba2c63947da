"""How much disabling a head changes the cosine similarity of sentence pairs."""

import math

import torch

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.results.components import HEAD
from bertsecrets.results.experiment import Experiment


class CosineChange(Experiment):
    """Mean absolute change of the cosine of two sentences' embeddings when a head is disabled in both."""

    name = "cosine_change"
    title = "How much disabling a head changes the cosine similarity"
    shown = Shown(
        about="Each sentence is embedded separately, and the prediction for a pair is the cosine of the two "
        "embeddings; a head is disabled in both sentences. Gold similarities are scaled to 0..1, which affects "
        "only the loss.",
    )
    columns = (Column("mean_change", "mean absolute change of the cosine", "change of cosine", keep="high"),)


def cosine_change(outcomes: Outcomes) -> HeadGrid | None:
    """Mean absolute change over pairs, with its standard error, for each head disabled alone; None without such heads.

    Args:
        outcomes: A sweep over pairs, with cosines as logits.
    """
    plan = outcomes.plan
    value_LHC = torch.full((plan.num_layers, plan.num_heads, 1), math.nan, dtype=torch.float64)
    stderr_LHC, count_LHC = value_LHC.clone(), torch.zeros(value_LHC.shape, dtype=torch.int64)
    # float64, as changes of a cosine are small differences of numbers near 1.
    clean_N = outcomes.clean_NC[:, 0].double()
    for index in plan.of_kind(HEAD):
        change_N = (outcomes.logits_NVC[:, index, 0].double() - clean_N).abs()
        at = (plan.variants[index].layer, plan.variants[index].head, 0)
        value_LHC[at], count_LHC[at] = change_N.mean(), len(change_N)
        stderr_LHC[at] = change_N.std() / math.sqrt(len(change_N)) if len(change_N) > 1 else math.nan
    if not bool(count_LHC.any()):
        return None
    return HeadGrid(CosineChange.name, CosineChange.columns, value_LHC, stderr_LHC, count_LHC)
