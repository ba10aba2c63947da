"""Random drawings of a place for every link, as a sparse matrix that averages over the drawn places."""

import warnings
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from bertsecrets.measures.frame_relations.links import Link, Places


def drawings(links: Sequence[Link], places: Places, index_B: Tensor, permutations: int, seed: int) -> Tensor:
    """Draw one place of every link, R times; return the weight of each of the M places, sparse ``[R, M]`` float64.

    Its product with numbers of the places, ``[M, H]``, is the sum over examples of the mean over the example's links.

    Args:
        links, places: Links of one batch, at least one, and their places.
        index_B: Index of each example; part of its seed, so results do not depend on batches and processes.
        permutations: Number of drawings, R.
        seed: Seed of all drawings.
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
    # In sparse rows of equal length: a dense matrix would be nearly all zeros.
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
