"""Drawings of a place for every link, as a matrix that sums up what stands in the places drawn."""

import warnings
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from bertsecrets.measures.links import Link, Places


def drawings(links: Sequence[Link], places: Places, index_B: Tensor, permutations: int, seed: int) -> Tensor:
    """One place of every link, drawn R times: what each of the M places counts in a drawing, sparse ``[R, M]`` float64.

    Its product with numbers of the places, ``[M, H]``, is the sum over examples of the mean over each one's links.

    Args:
        links, places: Of one batch; at least one link.
        index_B: Each example's index, with which it draws, so that batches and processes change nothing.
        permutations: How many drawings, R.
        seed: Of all drawings.
    """
    rows = Counter(link.row for link in links)
    generators = {row: torch.Generator().manual_seed((seed << 32) + int(index_B[row])) for row in rows}
    drawn_NR = torch.stack(
        [
            torch.randint(count, (permutations,), generator=generators[link.row], dtype=torch.int32)
            for link, count in zip(links, places.count_N.tolist(), strict=True)
        ]
    )
    device = places.link_M.device
    place_RN = drawn_NR.T.to(device) + places.first_N.int()
    share_N = torch.tensor([1 / rows[link.row] for link in links], dtype=torch.float64, device=device)
    # The matrix by rows, each as long as the other. Every other place counts 0: dense, nearly all of it would be zeros.
    start_R = torch.arange(0, place_RN.numel() + 1, len(links), dtype=torch.int32, device=device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            start_R,
            place_RN.flatten(),
            share_N.repeat(permutations),
            (permutations, len(places.link_M)),
            check_invariants=False,
        )
