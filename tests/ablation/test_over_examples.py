"""The share of the variance of effects that is over examples, against sums of squares in loops and a simulation."""

import numpy as np
import pytest
import torch
from scipy import stats

from bertsecrets.ablation.judging import over_examples, share_over_examples
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.data.task import Task

TASK = Task(name="toy", metrics=("accuracy",), texts=1, labels=("a", "b", "c"))


def in_loops(effect_HN: np.ndarray) -> float:
    """Components of a two-way analysis of variance without replication, one square at a time."""
    heads, count = effect_HN.shape
    grand = sum(effect_HN.ravel()) / effect_HN.size
    of_head = [sum(row) / count for row in effect_HN]
    of_example = [sum(column) / heads for column in effect_HN.T]
    between_heads = count * sum((mean - grand) ** 2 for mean in of_head) / (heads - 1)
    between_examples = heads * sum((mean - grand) ** 2 for mean in of_example) / (count - 1)
    rest = 0.0
    for head in range(heads):
        for example in range(count):
            rest += (effect_HN[head, example] - of_head[head] - of_example[example] + grand) ** 2
    rest /= (heads - 1) * (count - 1)
    head, example = (between_heads - rest) / count, (between_examples - rest) / heads
    return (example + rest) / (head + example + rest)


def effects(generator: np.random.Generator, heads: int = 40, examples: int = 200) -> np.ndarray:
    """Standard deviations 2 between heads, 1 between examples, 3 of the rest: 10 of 14 parts of the variance are over
    examples.
    """
    head_H1, example_N = generator.normal(size=(heads, 1)), generator.normal(size=examples)
    return 2 * head_H1 + example_N + 3 * generator.normal(size=(heads, examples))


def test_the_share_is_that_of_a_two_way_analysis_of_variance() -> None:
    effect_HN = effects(np.random.default_rng(0), 6, 40)
    assert share_over_examples(effect_HN)[0] == pytest.approx(in_loops(effect_HN))


def test_the_share_of_known_components_is_found_and_its_error_is_that_over_samples_of_examples() -> None:
    generator = np.random.default_rng(1)
    whole_HN = effects(generator, examples=40_000)
    found = [share_over_examples(part_HN) for part_HN in np.split(whole_HN, 100, axis=1)]
    shares, errors = np.array(found).T
    # The heads are the same in all samples.
    assert shares.mean() == pytest.approx(share_over_examples(whole_HN)[0], abs=0.005)
    assert errors.mean() == pytest.approx(shares.std(ddof=1), rel=0.25)
    many = effects(generator, heads=3000, examples=60)
    assert share_over_examples(many)[0] == pytest.approx(10 / 14, abs=0.03)


def outcomes_of(count: int) -> Outcomes:
    generator = torch.Generator().manual_seed(0)
    plan = Plan("zero", 3, 4, tuple(every_head(3, 4)))
    label_N = torch.arange(count) % 3
    clean_NC, logits_NVC = (torch.randn(*shape, 3, generator=generator) for shape in ((count,), (count, 12)))
    return Outcomes(plan, torch.arange(count), label_N.float(), clean_NC, logits_NVC)


def test_the_record_is_of_rises_of_the_loss() -> None:
    outcomes = outcomes_of(60)
    (row,) = over_examples(outcomes, TASK, 0.9)
    assert (row.mode, row.level) == ("zero", 0.9)
    label_N = outcomes.label_N.long()
    effect_HN = np.array(
        [
            [
                stats.entropy(np.eye(3)[label], torch.softmax(logits_C, -1).numpy())
                - stats.entropy(np.eye(3)[label], torch.softmax(clean_C, -1).numpy())
                for label, logits_C, clean_C in zip(
                    label_N, outcomes.logits_NVC[:, head], outcomes.clean_NC, strict=True
                )
            ]
            for head in range(12)
        ]
    )
    share, stderr = share_over_examples(effect_HN)
    reach = stats.t.ppf(0.95, 19) * stderr
    assert row.share.value == pytest.approx(share, abs=1e-6)
    assert (row.share.low, row.share.high) == pytest.approx((share - reach, min(1, share + reach)), abs=1e-5)
    assert (row.heads, row.examples) == (12, 60)


def test_there_is_no_record_of_too_few_examples_or_of_estimated_losses() -> None:
    assert over_examples(outcomes_of(39), TASK, 0.95) == []
    outcomes = outcomes_of(60)
    weighted = Outcomes(**{**vars(outcomes), "weight_NV": torch.ones(60, 12), "estimate_NVC": outcomes.logits_NVC})
    assert over_examples(weighted, TASK, 0.95) == []
