"""What the name of a measure's column says of it, where readers lay models side by side."""

_P_VALUE = "p_"
_UNIFORM = "uniform"


def is_p_value(column: str) -> bool:
    """Whether a column holds p-values, whose means over heads or seeds mean nothing."""
    return column.startswith(_P_VALUE)


def is_comparable(column: str) -> bool:
    """Whether a column can tell models apart.

    p-values do not, nor does what uniform attention gives, which is every model's; ``<column>_over_uniform`` differs
    between models by what ``<column>`` does.
    """
    return not is_p_value(column) and column != _UNIFORM and not column.endswith(f"_{_UNIFORM}")
