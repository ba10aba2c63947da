"""Linguistic features, as a user defines them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from bertsecrets.data.example import Annotation, Example, Word
from bertsecrets.errors import UserError, choices
from bertsecrets.settings import shown

SPECIAL = ("first", "separator")

Pool = Literal["max", "sum"]


@dataclass(frozen=True)
class Feature:
    """A feature of tokens: tokens of words that fit all its kinds, or special tokens.

    Args:
        pos: Universal POS tags.
        relation: Universal Dependencies labels.
        tag: The annotator's finer tags.
        lexicon: Word forms, ignoring case.
        negation: Only negation words.
        shared: Only words that occur in both sentences of an example, ignoring case (Kovaleva et al. 2019, section 5).
        contains: Strings to find anywhere in a sentence (case-sensitive), as the original code does for negation; only
            with ``matching=kovaleva``, and without other kinds.
        special: ``first`` (the classification token) or ``separator`` (every other special token); without other kinds.
        pool: How several tokens with the feature are combined: ``max`` or ``sum``.

    Raises:
        UserError: If there is no kind, ``special`` or ``contains`` is combined with another kind, or the special token
            or the pool does not exist.
    """

    pos: tuple[str, ...] = ()
    relation: tuple[str, ...] = ()
    tag: tuple[str, ...] = ()
    lexicon: tuple[str, ...] = ()
    negation: bool = False
    shared: bool = False
    contains: tuple[str, ...] = ()
    special: str | None = None
    pool: str = "max"

    def __post_init__(self) -> None:
        of_words = bool(self.pos or self.relation or self.tag or self.lexicon or self.negation or self.shared)
        if self.special is not None and self.special not in SPECIAL:
            names = choices(str(self.special), SPECIAL)
            raise UserError(f"Unknown special token {shown(self.special)} of a feature; {names}.")
        if self.pool not in get_args(Pool):
            raise UserError(f"Unknown pool {shown(self.pool)} of a feature; {choices(str(self.pool), get_args(Pool))}.")
        if of_words + bool(self.contains) + (self.special is not None) != 1:
            raise UserError(
                "A feature is defined by exactly one of: special tokens, strings (contains), or words (pos, "
                "relation, tag, lexicon, negation, shared)."
            )

    @classmethod
    def from_config(cls, name: str, section: Mapping[str, Any]) -> "Feature":
        """Read a feature from a section of ``conf/feature``.

        Raises:
            UserError: If a kind does not exist, or the feature is not valid.
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
                example = f", e.g. [{value:.40}]" if isinstance(value, str) else ""
                raise UserError(f"Kind '{key}' of feature '{name}' is {shown(value)}; expected a list{example}.")
            for text in value:
                if not isinstance(text, str):
                    raise UserError(
                        f"Kind '{key}' of feature '{name}' contains {shown(text)}; expected texts, quoted where YAML "
                        "would read something else."
                    )
            lists[key] = tuple(value)
        flags = {key: section.get(key, False) for key in ("negation", "shared")}
        for key, flag in flags.items():
            if not isinstance(flag, bool):
                raise UserError(f"Kind '{key}' of feature '{name}' is {shown(flag)}; expected true or false.")
        return cls(
            **lists,
            negation=flags["negation"],
            shared=flags["shared"],
            special=section.get("special"),
            pool=section.get("pool", "max"),
        )

    @property
    def needs_annotation(self) -> bool:
        """Whether the feature needs annotated words."""
        return self.special is None and not self.contains

    def fits(self, word: Word, shared: Collection[str] = ()) -> bool:
        """Whether a word has the feature; False for features of special tokens or contained strings.

        Args:
            word: A word of an example.
            shared: The example's :func:`shared_forms`.
        """
        return (
            self.needs_annotation
            and (not self.pos or word.pos in self.pos)
            and (not self.relation or word.relation in self.relation)
            and (not self.tag or word.tag in self.tag)
            and (not self.lexicon or word.form.lower() in {form.lower() for form in self.lexicon})
            and (not self.negation or word.negation)
            and (not self.shared or word.form.lower() in shared)
        )

    def occurs(self, example: Example) -> bool:
        """Whether an example has the feature before truncation."""
        if self.contains:
            return any(part in text for part in self.contains for text in example.texts)
        if self.special is not None:
            return True
        shared = shared_forms(example.annotations)
        return any(self.fits(word, shared) for sentence in example.annotations for word in sentence.words)


def shared_forms(annotations: Sequence[Annotation]) -> frozenset[str]:
    """The lower-case forms common to both sentences of an example; none if it has one sentence."""
    if len(annotations) < 2:
        return frozenset()
    one, other = ({word.form.lower() for word in annotation.words} for annotation in annotations)
    return frozenset(one & other)


def features_from_config(sections: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Feature]:
    """Name -> feature; a name without a section (``nouns: null``) is ignored."""
    return {
        str(name): Feature.from_config(str(name), section) for name, section in sections.items() if section is not None
    }


def check_occurs(measure: str, features: Mapping[str, Feature], examples: Sequence[Example]) -> None:
    """Check that every feature is in at least one example.

    Args:
        measure: Name of the measure with the features.
        features: By name.
        examples: All examples.

    Raises:
        UserError: If a feature is in no example.
    """
    for name, feature in features.items():
        if not any(feature.occurs(example) for example in examples):
            if feature.tag and not any(
                word.tag for example in examples for sentence in example.annotations for word in sentence.words
            ):
                raise UserError(
                    f"Feature '{name}' is defined by Penn Treebank tags ({', '.join(feature.tag)}), which this "
                    "annotation lacks; use annotation=spacy, or the features of conf/feature/default.yaml."
                )
            raise UserError(
                f"Feature '{name}' matches nothing in the {len(examples):,} examples; correct its definition "
                f"({', '.join(_kinds(feature))}) or remove it with measure.{measure}.features.{name}=null."
            )


def _kinds(feature: Feature) -> list[str]:
    kinds = [(field.name, getattr(feature, field.name)) for field in fields(feature) if field.name != "pool"]
    return [
        f"{name} {'|'.join(value) if isinstance(value, tuple) else str(value).lower()}"
        for name, value in kinds
        if value
    ]
