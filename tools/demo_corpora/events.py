"""Events and their participants, apart from their wording, and how they are drawn at random."""

from dataclasses import dataclass, replace
from random import Random

from tools.demo_corpora.frames import BY_VERB, FRAMES, VerbFrame
from tools.demo_corpora.lexicon import (
    ADJECTIVES_FOR,
    ADVERBS_FOR,
    BY_CATEGORY,
    NAMES,
    NUMERALS,
    PRONOUNS,
    Modifier,
    Noun,
)

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
# Plausible next actions on the same person or thing.
SEQUELS = {
    "buy": "sell lend donate hide damage wear play drive repair",
    "find": "sell hide donate lend read wear",
    "repair": "sell lend donate drive play",
    "wash": "wear sell lend drive",
    "inspect": "sign buy sell open repair",
    "borrow": "lose damage repair wear read play",
    "choose": "buy wear",
    "read": "publish translate sign send",
    "write": "publish send",
    "open": "close",
    "close": "lock",
    "unlock": "open",
    "design": "build sell wear",
    "steal": "hide sell lose",
    "prepare": "eat deliver",
    "catch": "free feed",
    "plant": "water draw",
    "hire": "fire praise scold",
    "interview": "hire praise criticize",
    "warn": "attack help",
    "chase": "attack catch",
    "teach": "reward praise hire",
    "watch": "call photograph draw",
    "notice": "call help chase",
}
_GAINING = frozenset(
    ("Commerce_buy", "Theft", "Borrowing", "Renting", "Receiving", "Refusing", "Taking_captive", "Choosing")
)
_BACKGROUND = tuple(BY_VERB[verb] for verb in ("hire", "help", "teach", "visit", "rescue", "deceive", "warn", "invite"))


@dataclass(frozen=True, slots=True)
class Participant:
    """A person or thing in an event.

    ``key`` identifies the individual: mentions with the same key corefer. ``gender`` is "f", "m" or "n" (drawn if the
    noun leaves it open). ``count`` is 1, or more for a plural with a numeral. ``owner`` possesses this participant.
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
    the week, "yesterday" or "tomorrow". ``background`` is another event of the agent, in a relative clause.
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


class Sampler:
    """Draws participants and events with one random generator; keys of participants are never reused."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._last_key = -1

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def participant(self, categories: tuple[str, ...], other: Participant | None = None) -> Participant:
        """A bare participant of one of the classes, named differently from ``other``."""
        while True:
            noun = self._noun(self.rng.choice(categories))
            if other is None or noun != other.noun:
                return self.individual(noun)

    def individual(self, noun: Noun) -> Participant:
        """A new definite participant that the noun names."""
        self._last_key += 1
        gender = self.rng.choice("fm") if noun.gender == "any" else noun.gender
        return Participant(noun, self._last_key, gender)

    def owner(self, event: Event) -> Participant:
        """A person without another role in the event, to own its patient."""
        while True:
            owner = self.participant(("person",))
            if owner.noun not in (event.agent.noun, event.patient.noun):
                return owner

    def event(self) -> Event:
        """A single event with its modifiers."""
        frame = self.rng.choice(FRAMES)
        agent = self.participant(frame.agent.categories)
        patient = self.participant(frame.patient.categories, agent)
        event = Event(frame, self._described(agent, 0.15), self._described(patient, 0.4))
        event = replace(event, patient=self._determined(event))
        if self.chance(0.25):
            event = replace(event, negation=self.negation(event.patient))
        if frame.places:
            event = self._circumstances(event)
        if self.chance(0.3):
            event = self.with_companion(event) or event
        if event.companion is None and self.chance(0.12):
            event = self._with_background(event)
        return event

    def negation(self, patient: Participant) -> str:
        """A way to negate an event that has this patient."""
        if patient.definite or patient.count > 1 or patient.owner is not None:
            return self.rng.choice(("not", "not", "never"))
        return self.rng.choice(("any", "any", "not")) if patient.noun.countable else "any"

    def third(self, event: Event) -> Participant | None:
        """A participant for the third role of the event's frame; None if the frame has no such role."""
        if event.frame.third is None:
            return None
        while True:
            third = self.participant(event.frame.third.categories, event.patient)
            if third.noun != event.agent.noun:
                return replace(third, definite=event.frame.third.preposition != "with" or third.noun.proper)

    def time(self, event: Event) -> str:
        """A day other than the event's."""
        near = "tomorrow" if event.future else "yesterday"
        return self.rng.choice([day for day in (*DAYS, near) if day != event.time])

    def place(self, frame: VerbFrame) -> Noun:
        return self.rng.choice(BY_CATEGORY[frame.places])

    def with_companion(self, event: Event) -> Event | None:
        """The event with a second event of the same agent and patient; None if it would be ambiguous or no verb
        fits.
        """
        unambiguous = not event.negation and not event.future and event.agent.pronouns != event.patient.pronouns
        if not unambiguous:
            return None
        base = event.frame.verbs[0].base
        later = [BY_VERB[verb] for verb in SEQUELS.get(base, "").split()]
        earlier = [BY_VERB[verb] for verb, sequels in SEQUELS.items() if base in sequels.split()]
        options = [(frame, "later") for frame in later] + [(frame, "earlier") for frame in earlier]
        options = [(frame, order) for frame, order in options if accepts(frame, event.agent, event.patient)]
        if not options:
            return None
        frame, order = self.rng.choice(options)
        connective = self.rng.choice(("and", "but", "before", "before")) if order == "later" else "after"
        other = Event(frame, event.agent, event.patient, negation="not" if connective == "but" else "")
        return replace(event, time="", companion=Companion(connective, other))

    def _noun(self, category: str) -> Noun:
        if category == "person" and self.chance(0.35):
            return self.rng.choice(NAMES)
        return self.rng.choice(BY_CATEGORY[category])

    def _described(self, participant: Participant, probability: float) -> Participant:
        adjectives = ADJECTIVES_FOR.get(participant.noun.category, ())
        if participant.noun.proper or not adjectives or not self.chance(probability):
            return participant
        return replace(participant, adjective=self.rng.choice(adjectives))

    def _determined(self, event: Event) -> Participant:
        patient = event.patient
        if patient.noun.proper:
            return patient
        choice = self.rng.random()
        person = patient.noun.category in ("person", "police")
        if choice < 0.3:
            return replace(patient, definite=False)
        if choice < 0.45 and patient.noun.countable:
            return replace(patient, definite=False, count=self.rng.choice(tuple(NUMERALS)))
        if choice < 0.7 and not person and patient.noun.category not in ("building", "drink", "produce", "plant"):
            own = replace(patient, owner=event.agent)
            if self.chance(0.4) and event.agent.noun.category != "animal" and accepts(event.frame, event.agent, own):
                return own
            return replace(patient, owner=self.owner(event))
        return patient

    def _circumstances(self, event: Event) -> Event:
        frame = event.frame
        if self.chance(0.4):
            event = replace(event, third=self.third(event))
        if self.chance(0.15):
            event = replace(event, future=True)
        if self.chance(0.3) and event.negation != "never":
            event = replace(event, time=self.time(event))
        if self.chance(0.4) and frame.manner and not event.negation:
            event = replace(event, manner=self.rng.choice(ADVERBS_FOR[self.rng.choice(frame.manner)]))
        if self.chance(0.2) and event.third is None and event.patient.noun.category != "building":
            event = replace(event, place=self.place(frame))
        return event

    def _with_background(self, event: Event) -> Event:
        agent = event.agent
        if agent.noun.proper or agent.noun.category != "person" or event.patient.owner == agent:
            return event
        # "Opened by the man who hired Anna in the park": the place would seem to belong to the relative clause.
        if event.place or event.third:
            return event
        frame = self.rng.choice(_BACKGROUND)
        taken = (event.patient.noun, event.patient.owner.noun if event.patient.owner else None)
        known = self.individual(self.rng.choice([name for name in NAMES if name not in taken]))
        return replace(event, background=Event(frame, agent, known)) if frame.name != event.frame.name else event


def accepts(frame: VerbFrame, agent: Participant, patient: Participant) -> bool:
    """Whether the frame allows this agent and patient; nobody gains what they already own."""
    if frame.name in _GAINING and patient.owner is not None and patient.owner.key == agent.key:
        return False
    return agent.noun.category in frame.agent.categories and patient.noun.category in frame.patient.categories
