"""English pronouns with the person, number and gender that they agree in."""

from typing import Literal, NamedTuple

Number = Literal["singular", "plural"]
Gender = Literal["masculine", "feminine", "neuter"]


class Agreement(NamedTuple):
    """Person (1 to 3), number and gender; None where a word leaves it open."""

    person: int | None
    number: Number | None
    gender: Gender | None


_FORMS: dict[Agreement, str] = {
    Agreement(1, "singular", None): "i me my mine myself",
    Agreement(1, "plural", None): "we us our ours ourselves",
    Agreement(2, None, None): "you your yours ye thou thee thy thine",
    Agreement(2, "singular", None): "yourself thyself",
    Agreement(2, "plural", None): "yourselves",
    Agreement(3, "singular", "masculine"): "he him his himself",
    Agreement(3, "singular", "feminine"): "she her hers herself",
    Agreement(3, "singular", "neuter"): "it its itself",
    Agreement(3, "plural", None): "they them their theirs themselves 'em these those",
    Agreement(3, "singular", None): "this that one oneself",
    Agreement(3, None, None): "who whom whose which what someone anyone everyone somebody anybody everybody",
}

PRONOUNS = {form: agreement for agreement, forms in _FORMS.items() for form in forms.split()}
"""Pronoun, in lower case -> its agreement."""
