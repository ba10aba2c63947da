"""What a sentence says, apart from how it says it: participants and events."""

from dataclasses import dataclass

from bertsecrets.data.demo.frames import VerbFrame
from bertsecrets.data.demo.lexicon import Noun
from bertsecrets.data.demo.modifiers import Modifier

PRONOUNS = {
    "f": ("she", "her", "her"),
    "m": ("he", "him", "his"),
    "n": ("it", "it", "its"),
    "plural": ("they", "them", "their"),
}


@dataclass(frozen=True, slots=True)
class Participant:
    """Who or what takes part in an event.

    ``key`` identifies the individual, so that a pronoun or a second mention corefers. ``gender`` is "f", "m" or "n"
    (decided here where the noun leaves it open). ``count`` is 1, or more for a plural with a numeral. ``owner`` is
    the participant who possesses this one.
    """

    noun: Noun
    key: int
    gender: str
    definite: bool = True
    count: int = 1
    adjective: Modifier | None = None
    owner: "Participant | None" = None

    @property
    def pronouns(self) -> tuple[str, str, str]:
        """The nominative, accusative and possessive pronoun that agree with this participant."""
        return PRONOUNS["plural" if self.count > 1 else self.gender]


@dataclass(frozen=True, slots=True)
class Companion:
    """A second event of the same agent, joined by "and", "but", "before" or "after"."""

    connective: str
    event: "Event"


@dataclass(frozen=True, slots=True)
class Event:
    """One use of a verb frame.

    ``negation`` is "", "not", "never", or "any" (the indefinite patient is denied: "no guitar"). ``time`` is a day of
    the week, "yesterday" or "tomorrow". ``background`` is an event told of the agent in a relative clause.
    """

    frame: VerbFrame
    agent: Participant
    patient: Participant
    third: Participant | None = None
    negation: str = ""
    future: bool = False
    manner: Modifier | None = None
    time: str = ""
    place: Noun | None = None
    companion: Companion | None = None
    background: "Event | None" = None
