"""Attention of a few tokens against a loop over rows, heads and tokens."""

import math

import pytest
import torch
from torch import Tensor, nn

from bertsecrets.ablation.partial_passes import read_output

HEADS, WIDTH = 2, 3


def by_hand(
    linears: tuple[nn.Linear, ...], hidden_SD: Tensor, place: int, real: int, head: int, bias_HQK: Tensor | None
) -> Tensor:
    """Output of a head at a token, from the real tokens alone."""
    own = slice(WIDTH * head, WIDTH * (head + 1))
    query_Sd, key_Sd, value_Sd = (linear(hidden_SD)[:, own] for linear in linears)
    scores = [float(query_Sd[place] @ key_Sd[token]) / math.sqrt(WIDTH) for token in range(real)]
    if bias_HQK is not None:
        scores = [score + float(bias_HQK[head, place, token]) for token, score in enumerate(scores)]
    weight_S = torch.tensor([math.exp(score) for score in scores])
    return weight_S @ value_Sd[:real] / weight_S.sum()


@torch.no_grad()
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("places", [[[0], [2]], [[0, 3, 1], [2, 0, 1]], [[4, 3, 2, 1, 0], [0, 1, 2, 2, 0]]])
def test_few_and_many_tokens_attend_to_the_real_ones(places: list[list[int]], biased: bool) -> None:
    """One token of a row is mapped back to hidden states; with three or more, all tokens are mapped to keys."""
    torch.manual_seed(0)
    tokens, real_R = 5, (5, 3)
    linears = tuple(nn.Linear(HEADS * WIDTH, HEADS * WIDTH) for _ in range(3))
    hidden_RSD = torch.randn(2, tokens, HEADS * WIDTH)
    real_RS = torch.arange(tokens) < torch.tensor(real_R)[:, None]
    bias_HQK = torch.randn(HEADS, tokens, tokens) if biased else None
    output_RWD = read_output(linears, hidden_RSD, torch.tensor(places), real_RS, HEADS, bias_HQK)
    for row, of_row in enumerate(places):
        for word, place in enumerate(of_row):
            expected_D = torch.cat(
                [by_hand(linears, hidden_RSD[row], place, real_R[row], head, bias_HQK) for head in range(HEADS)]
            )
            torch.testing.assert_close(output_RWD[row, word], expected_D, rtol=1e-5, atol=1e-6)
