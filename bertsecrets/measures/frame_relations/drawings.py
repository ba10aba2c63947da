"""Random drawings of a place for every link, and the p-values of heads from them."""

import warnings
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsecrets.measures.frame_relations.links import Link, Places


def drawn_places(links: Sequence[Link], places: Places, index_B: Tensor, permutations: int, seed: int) -> Tensor:
    """Draw one place of every link, R times, each place equally likely; int32 ``[N, R]``, 0 for its own.

    Args:
        links, places: Links of one batch, at least one, and their places.
        index_B: Index of each example; part of its seed, so results do not depend on batches and processes.
        permutations: Number of drawings, R.
        seed: Seed of all drawings.
    """
    generators = {
        row: torch.Generator().manual_seed((seed << 32) + int(index_B[row])) for row in {link.row for link in links}
    }
    return torch.stack(
        [
            torch.randint(count, (permutations,), generator=generators[link.row], dtype=torch.int32)
            for link, count in zip(links, places.count_N.tolist(), strict=True)
        ]
    )


def averages(links: Sequence[Link], places: Places, drawn_NR: Tensor) -> Tensor:
    """The weight of each of the M places in each drawing, sparse ``[R, M]`` float64.

    Its product with numbers of the places, ``[M, H]``, is the sum over examples of the mean over the example's links.

    Args:
        links, places: Links of one batch, at least one, and their places.
        drawn_NR: The drawn place of each link, 0 for its own.
    """
    rows = Counter(link.row for link in links)
    device = places.link_M.device
    place_RN = drawn_NR.T.to(device) + places.first_N.int()
    share_N = torch.tensor([1 / rows[link.row] for link in links], dtype=torch.float64, device=device)
    # In sparse rows of equal length: a dense matrix would be nearly all zeros.
    start_R = torch.arange(0, place_RN.numel() + 1, len(links), dtype=torch.int32, device=device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            start_R,
            place_RN.flatten(),
            share_N.repeat(len(place_RN)),
            (len(place_RN), len(places.link_M)),
            check_invariants=False,
        )


def p_values(
    observed_N: NDArray[np.float64], drawn_RN: NDArray[np.float64], tolerance: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One-sided p-values of N heads, and those corrected over the heads by the step-down max-T method.

    p = (1 + number of drawings that reach the observed value) / (1 + R). The corrected p-value (Westfall and Young 1993,
    algorithm 4.1) compares with the largest of the heads' standardised drawn values instead, so that its smallest value is
    1 / (1 + R) for any number of heads. The drawings must be the same for all heads.

    Args:
        observed_N: The observed values.
        drawn_RN: The drawn values.
        tolerance: Difference that counts as rounding.
    """
    least_N = observed_N - tolerance
    raw_N = (1 + (drawn_RN >= least_N).sum(0)) / (1 + len(drawn_RN))
    all_RN = np.concatenate((observed_N[None], drawn_RN))
    mean_N, spread_N = all_RN.mean(0), all_RN.std(0)
    # Where nothing varies, nothing can be shown: no drawing is below the observed value.
    scale_N = np.where(spread_N > tolerance, 1 / np.maximum(spread_N, tolerance), 0.0)
    order = np.argsort(-(observed_N - mean_N) * scale_N, kind="stable")
    standard_RN = ((drawn_RN - mean_N) * scale_N)[:, order]
    largest_RN = np.maximum.accumulate(standard_RN[:, ::-1], axis=1)[:, ::-1]
    reached_N = (largest_RN >= ((least_N - mean_N) * scale_N)[order]).sum(0)
    corrected_N = np.empty_like(raw_N)
    corrected_N[order] = np.maximum.accumulate((1 + reached_N) / (1 + len(drawn_RN)))
    return raw_N, corrected_N
