"""What the paper says and what the runs say, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

from bertsecrets.results.report.content import Table


@dataclass(frozen=True)
class Claim:
    """One statement of the paper, tested.

    Args:
        statement: The paper's, in our words.
        here: What the runs show.
        holds: Whether they agree; None where the runs cannot tell.
    """

    statement: str
    here: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        """``agrees``, ``does not agree`` or ``cannot be told``."""
        return {True: "agrees", False: "does not agree", None: "cannot be told"}[self.holds]


def claims_table(claims: Sequence[Claim]) -> Table:
    """The statements, one a row."""
    rows = [[claim.statement, claim.here, claim.verdict] for claim in claims]
    return Table(["the paper says", "here", ""], rows, "What agrees and what does not")


def held(names: Sequence[str], of: Sequence[str]) -> str:
    """For how many of some conditions a statement holds, and for which it does not."""
    missing = [name for name in of if name not in names]
    if len(missing) == len(of):
        return "nowhere"
    if not missing:
        return f"in all {len(of)}" if len(of) > 1 else f"for {of[0]}"
    return f"in {len(names)} of {len(of)} (not for {', '.join(missing)})"
