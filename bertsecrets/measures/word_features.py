"""Linguistic features, as a user defines them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from bertsecrets.data.example import Example, Word
from bertsecrets.errors import UserError, choices

SPECIAL = ("first", "separator")

Pool = Literal["max", "sum"]


@dataclass(frozen=True)
class Feature:
    """Which tokens have a feature: those of a word that fits every kind that is given, or special tokens.

    Args:
        pos: Universal POS tags.
        relation: Universal Dependencies labels.
        tag: The annotator's own finer tags.
        lexicon: Word forms; case does not count.
        negation: Only words that negate.
        contains: Strings to find anywhere in a sentence, case counting, as the original code finds negation; alone, and
            with ``matching=kovaleva`` alone.
        special: ``first`` (the classification token) or ``separator`` (every other special token); alone.
        pool: Of several tokens with the feature, the ``max`` counts, or their ``sum``.

    Raises:
        UserError: If nothing is given, ``special`` or ``contains`` stands with another kind, or there is no such special
            token or pool.
    """

    pos: tuple[str, ...] = ()
    relation: tuple[str, ...] = ()
    tag: tuple[str, ...] = ()
    lexicon: tuple[str, ...] = ()
    negation: bool = False
    contains: tuple[str, ...] = ()
    special: str | None = None
    pool: str = "max"

    def __post_init__(self) -> None:
        of_words = bool(self.pos or self.relation or self.tag or self.lexicon or self.negation)
        if self.special is not None and self.special not in SPECIAL:
            raise UserError(f"Unknown special token '{self.special}' of a feature; {choices(self.special, SPECIAL)}.")
        if self.pool not in get_args(Pool):
            raise UserError(f"Unknown pool '{self.pool}' of a feature; {choices(self.pool, get_args(Pool))}.")
        if of_words + bool(self.contains) + (self.special is not None) != 1:
            raise UserError(
                "A feature names either special tokens, or strings that a sentence contains, or words by pos, relation, "
                "tag, lexicon or negation; give one of the three."
            )

    @classmethod
    def from_config(cls, name: str, section: Mapping[str, Any]) -> "Feature":
        """A feature as ``conf/feature`` writes it.

        Raises:
            UserError: If a kind does not exist, or the feature is not one.
        """
        valid = {field.name for field in fields(cls)}
        if not isinstance(section, Mapping):
            raise UserError(f"Feature '{name}' is {section!r}; expected kinds and their values, e.g. {{pos: [ADJ]}}.")
        for key in section:
            if key not in valid:
                raise UserError(f"Unknown kind '{key}' of feature '{name}'; {choices(str(key), valid)}.")
        lists = {}
        for key in ("pos", "relation", "tag", "lexicon", "contains"):
            value = section.get(key, ())
            if isinstance(value, str) or not isinstance(value, Sequence):
                raise UserError(f"Kind '{key}' of feature '{name}' is {value!r}; expected a list, e.g. [{value}].")
            lists[key] = tuple(map(str, value))
        return cls(
            **lists,
            negation=bool(section.get("negation", False)),
            special=section.get("special"),
            pool=section.get("pool", "max"),
        )

    @property
    def needs_annotation(self) -> bool:
        """Whether it takes annotated words to tell which tokens have the feature."""
        return self.special is None and not self.contains

    def fits(self, word: Word) -> bool:
        """Whether a word has the feature; none has one of special tokens or contained strings."""
        return (
            self.needs_annotation
            and (not self.pos or word.pos in self.pos)
            and (not self.relation or word.relation in self.relation)
            and (not self.tag or word.tag in self.tag)
            and (not self.lexicon or word.form.lower() in {form.lower() for form in self.lexicon})
            and (not self.negation or word.negation)
        )

    def occurs(self, example: Example) -> bool:
        """Whether an example has the feature, before it is truncated."""
        if self.contains:
            return any(part in text for part in self.contains for text in example.texts)
        if self.special is not None:
            return True
        return any(self.fits(word) for sentence in example.annotations for word in sentence.words)


def features_from_config(sections: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Feature]:
    """Name -> feature; a name without a section (``nouns: null``) is left out."""
    return {str(name): Feature.from_config(str(name), each) for name, each in sections.items() if each is not None}


def check_occurs(features: Mapping[str, Feature], examples: Sequence[Example]) -> None:
    """Raises UserError, naming the feature, if one is in none of the examples."""
    for name, feature in features.items():
        if not any(feature.occurs(example) for example in examples):
            if feature.tag and not any(
                word.tag for example in examples for sentence in example.annotations for word in sentence.words
            ):
                raise UserError(
                    f"Feature '{name}' is told by Penn Treebank tags ({', '.join(feature.tag)}), and the words of this "
                    "annotation have none; take annotation=spacy, or the features of conf/feature/default.yaml."
                )
            raise UserError(
                f"Feature '{name}' matches nothing in the {len(examples):,} examples; mend its definition "
                f"({', '.join(_kinds(feature))}) or leave it out with "
                f"analysis.features.measures.features.features.{name}=null (in train.py callbacks. instead of analysis.)."
            )


def _kinds(feature: Feature) -> list[str]:
    given = [(field.name, getattr(feature, field.name)) for field in fields(feature) if field.name != "pool"]
    return [
        f"{name} {'|'.join(value) if isinstance(value, tuple) else str(value).lower()}"
        for name, value in given
        if value
    ]
