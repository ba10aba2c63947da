"""The adapters of families of models; a new family of this package is a class in one of these files."""

import inspect
from typing import Any

from transformers import PreTrainedModel

from bertsecrets.doors import free_names, load_named, load_offer, offers
from bertsecrets.errors import UserError, choices
from bertsecrets.models.families import bert, rotary
from bertsecrets.models.families.base import Family

_OWN = [
    kind()
    for module in (bert, rotary)
    for kind in vars(module).values()
    if inspect.isclass(kind) and issubclass(kind, Family) and kind.__module__ == module.__name__
]

FAMILIES: dict[str, Family] = {model_type: family for family in _OWN for model_type in family.model_types}
"""The adapters of this package by model type: the classes of these two files."""

_OF_MODEL = "bertsecrets_family"
"""Attribute of a model with an explicit family."""


def family_of(model: PreTrainedModel) -> Family | None:
    """The family set by :func:`set_family`, else the family of the model's type; None if there is none.

    Raises:
        UserError: If a package provides something other than a subclass of :class:`Family` for the model type.
    """
    named: Family | None = getattr(model, _OF_MODEL, None)
    return find_family(model.config.model_type) if named is None else named


def set_family(model: PreTrainedModel, name: str) -> None:
    """Use the family with this name, see :func:`load_family`, instead of the model type's."""
    family = load_family(name)
    base: Any = model.base_model
    # Set it on the encoder too, which is also described on its own.
    for module in (model, base):
        setattr(module, _OF_MODEL, family)


def load_family(name: str) -> Family:
    """A family by its name.

    Args:
        name: A model type that has a family, or the ``module:Class`` or ``file.py:Class`` of one.

    Raises:
        UserError: If the name is unknown, cannot be imported, or is not a subclass of :class:`Family`.
    """
    if ":" in name:
        return _checked(load_named("model.family", name), f"model.family is '{name}'")
    family = find_family(name)
    if family is None:
        raise UserError(f"Unknown model.family '{name}'; {choices(name, {*FAMILIES, *offers('families')})}.")
    return family


def find_family(model_type: str) -> Family | None:
    """The adapter for a model type, from this package or an installed package's entry point; None if there is none.

    Raises:
        UserError: If a package provides something other than a subclass of :class:`Family` under this name.
    """
    if model_type not in offers("families"):
        return FAMILIES.get(model_type)
    if model_type in FAMILIES:
        # Warns, once.
        free_names("families", (model_type,))
        return FAMILIES[model_type]
    kind = load_offer("families", model_type)
    point = offers("families")[model_type]
    return None if kind is None else _checked(kind, f"The entry point {point.group} '{model_type}' names {point.value}")


def _checked(kind: Any, origin: str) -> Family:
    if not (inspect.isclass(kind) and issubclass(kind, Family)):
        raise UserError(f"{origin}, which is not a subclass of bertsecrets.models.families.base.Family; correct it.")
    return kind()
