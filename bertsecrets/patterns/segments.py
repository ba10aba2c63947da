"""Find the end of the first of two segments in a batch of inputs."""

import torch
from torch import Tensor

ONE, UNKNOWN = 0, -1
"""Values of ``first_segment`` for inputs of one segment and for inputs with unknown segments."""


def first_segments(special_BS: Tensor, real_BS: Tensor) -> Tensor:
    """Number of tokens in the first of two segments, [CLS] and separator included, ``[B]`` int64.

    The second segment begins after the first special token that does not begin the sequence. ``ONE`` for inputs of one
    segment, ``UNKNOWN`` for inputs without a separator.

    Args:
        special_BS: Which tokens the tokenizer added, bool.
        real_BS: Which tokens are not padding, bool; a contiguous run in each example.
    """
    position_BS = real_BS.cumsum(-1)
    separator_BS = special_BS & real_BS & (position_BS > 1)
    # argmax of 0 and 1 is the first 1.
    size_B = position_BS.gather(-1, separator_BS.int().argmax(-1, keepdim=True))[:, 0]
    second_B = (real_BS & ~special_BS & (position_BS > size_B[:, None])).any(-1)
    first_B = torch.where(second_B, size_B, ONE)
    return first_B.masked_fill(~separator_BS.any(-1), UNKNOWN)
