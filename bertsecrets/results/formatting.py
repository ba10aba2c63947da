"""Format numbers and heads for pages, figures, tables and W&B."""

import math
import re
from collections.abc import Iterable, Sequence

MISSING = "\N{EN DASH}"
"""Text for an undefined number."""

_SMALLEST_P = 0.001

_LONGEST_MESSAGE = 2000
"""Most characters of a message on the terminal."""

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control a terminal, reverse text direction, or cannot be encoded."""


def visible(text: str) -> str:
    """A text with escaped control characters, so that it cannot control a terminal or rearrange a page.

    >>> visible("label \\x1b[31m, \\u202egnp")
    'label \\\\x1b[31m, \\\\u202egnp'
    """
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def markdown_text(text: str) -> str:
    """A text escaped so that Markdown shows it verbatim, in one line.

    >>> print(markdown_text("a|b <c>"))
    a\\|b &lt;c>
    """
    line = visible(" ".join(text.split()))
    return re.sub(r"([|<`])", lambda match: {"<": "&lt;"}.get(match[0], "\\" + match[0]), line)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose cells are shown verbatim."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(markdown_text(cell) for cell in line)} |" for line in lines)


def message(text: str) -> str:
    """A message as one line of bounded length for the terminal.

    >>> message("two\\nlines"), len(message("x" * 10**6)) < 2100
    ('two lines', True)
    """
    if len(text) > _LONGEST_MESSAGE:
        part = _LONGEST_MESSAGE // 2
        text = f"{text[:part]} … ({len(text) - 2 * part:,} characters left out) … {text[-part:]}"
    return visible(re.sub(r"[ \t]*[\r\n]+[ \t]*", " ", text.strip()))


def number(value: float, digits: int = 3, *, signed: bool = False) -> str:
    """A number with fixed digits and a true minus sign, without a sign if it rounds to zero; a dash for NaN.

    Args:
        value: The number.
        digits: Digits after the decimal point.
        signed: Whether positive numbers get a plus sign, e.g. for changes.

    >>> number(-0.0004), number(-1.5, 2), number(0.25, 1, signed=True), number(float("nan"))
    ('0.000', '−1.50', '+0.2', '–')
    """
    if not math.isfinite(value):
        return MISSING
    text = f"{value:{'+' if signed else ''}.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", "\N{MINUS SIGN}")


def points(loss: float, unit: str = "points") -> str:
    """A difference of scores in hundredths: percentage points, or those of another unit.

    >>> points(0.01), points(0.023), points(0.01, "hundredths of a nat")
    ('1.0 point', '2.3 points', '1.0 hundredth of a nat')
    """
    text, (first, *rest) = number(100 * loss, 1), unit.split(" ")
    return " ".join((text, first.removesuffix("s") if text == "1.0" else first, *rest))


def rounded_up(loss: float) -> float:
    """An upper bound of a loss in percentage points, rounded up to a tenth so that it never excludes a possible loss.

    >>> rounded_up(0.0134), rounded_up(0.018), rounded_up(-0.0134)
    (1.4, 1.8, -1.3)
    """
    return math.ceil(1000 * loss - 1e-6) / 10 if math.isfinite(loss) else loss


def percent(share: float, *, signed: bool = False) -> str:
    """A share, or a change in a share, as a percentage with one digit.

    >>> percent(0.5), percent(-0.012, signed=True)
    ('50.0', '−1.2')
    """
    return number(100 * share, 1, signed=signed)


def percentage(share: float, digits: int = 0) -> str:
    """A share as a percentage with its sign.

    >>> percentage(0.95), percentage(0.125, 1), percentage(float("nan"))
    ('95 %', '12.5 %', '–')
    """
    return f"{number(100 * share, digits)} %" if math.isfinite(share) else MISSING


def level_text(level: float) -> str:
    """The level of an interval or a test, with as many digits as it has.

    >>> level_text(0.95), level_text(0.975), level_text(1 - 0.05 / 3)
    ('95 %', '97.5 %', '98.33 %')
    """
    return f"{100 * level:.4g} %"


def with_error(value: float, stderr: float, digits: int = 3) -> str:
    """A value with its standard error, or only the value if the error is undefined.

    >>> with_error(0.5, 0.01), with_error(0.5, float("nan"))
    ('0.500 ± 0.010', '0.500')
    """
    if math.isfinite(value) and math.isfinite(stderr):
        return f"{number(value, digits)} ± {number(stderr, digits)}"
    return number(value, digits)


def low_to_high(low: float, high: float, digits: int = 3, *, signed: bool = False) -> str:
    """The limits of an interval; a dash if they are undefined.

    >>> low_to_high(-0.1, 0.25, 2, signed=True), low_to_high(float("nan"), float("nan"))
    ('−0.10 to +0.25', '–')
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        return MISSING
    return f"{number(low, digits, signed=signed)} to {number(high, digits, signed=signed)}"


def with_limits(value: float, low: float, high: float, digits: int = 3, *, signed: bool = False) -> str:
    """A value with its interval, or only the value if the interval is undefined.

    >>> with_limits(0.5, 0.4, 0.6, 1), with_limits(0.5, float("nan"), float("nan"), 1)
    ('0.5 (0.4 to 0.6)', '0.5')
    """
    limits = low_to_high(low, high, digits, signed=signed)
    return number(value, digits, signed=signed) + (f" ({limits})" if limits != MISSING else "")


def p_value(p: float) -> str:
    """A p-value with three digits.

    >>> p_value(0.0312), p_value(0.0000004), p_value(float("nan"))
    ('0.031', '< 0.001', '–')
    """
    return f"< {_SMALLEST_P}" if p < _SMALLEST_P else number(p)


def head_label(layer: int, head: int | None) -> str:
    """A head's label on pages; without ``head``, a whole layer's.

    >>> head_label(5, 1), head_label(5, None)
    ('layer 5 · head 1', 'layer 5')
    """
    return f"layer {layer}" if head is None else f"layer {layer} · head {head}"


def head_code(layer: int, head: int | None) -> str:
    """A head's name in tables and W&B, sortable by layer and head; without ``head``, a whole layer's name.

    >>> head_code(11, 3), head_code(0, None)
    ('l11h03', 'l00')
    """
    return f"l{layer:02d}" if head is None else f"l{layer:02d}h{head:02d}"


def metric_label(name: str) -> str:
    """A metric's name on pages.

    >>> metric_label("f1"), metric_label("token_accuracy")
    ('F1', 'token accuracy')
    """
    return {
        "f1": "F1",
        "macro_f1": "macro-F1",
        "entity_f1": "entity F1",
        "answer_f1": "answer F1",
        "auc": "AUC",
        "matthews": "Matthews correlation",
        "pearson": "Pearson r",
        "spearman": "Spearman rho",
        "pseudo_log_likelihood": "pseudo-log-likelihood",
    }.get(name, name.replace("_", " "))


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun.

    >>> counted(1, "relation"), counted(1200, "relation"), counted(0, "head"), counted(2, "class", "classes")
    ('1 relation', '1,200 relations', 'no head', '2 classes')
    """
    return f"no {noun}" if count == 0 else f"1 {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"


def each_of(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun, as the subject of a sentence about each.

    >>> each_of(6, "head"), each_of(1, "head")
    ('each of 6 heads', '1 head')
    """
    return f"{'each of ' * (count > 1)}{counted(count, noun, plural)}"


def are(count: int) -> str:
    """ "is" or "are" for a count."""
    return "is" if count == 1 else "are"


def have(count: int) -> str:
    """ "has" or "have" for a count."""
    return "has" if count == 1 else "have"


def listed(names: Sequence[str], word: str = "and") -> str:
    """Names joined for a sentence.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"], "or")
    ('a', 'a and b', 'a, b or c')
    """
    return f" {word} ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else "none"


def heads_label(heads: Iterable[tuple[int, int]]) -> str:
    """The label of several heads on pages, ordered by layer and head.

    >>> heads_label([(7, 10), (3, 2), (3, 1)])
    'layer 3 · heads 1, 2; layer 7 · head 10'
    """
    layers: dict[int, list[int]] = {}
    for layer, head in sorted(heads):
        layers.setdefault(layer, []).append(head)
    return "; ".join(
        f"layer {layer} · head{'s' * (len(members) > 1)} {', '.join(map(str, members))}"
        for layer, members in layers.items()
    )


def shortened(text: str, longest: int) -> str:
    """A text cut to this many characters, with an ellipsis.

    >>> shortened("attention", 5)
    'atte…'
    """
    return text if len(text) <= longest else text[: longest - 1] + "…"


def upper_first(text: str) -> str:
    """A text capitalised to start a sentence."""
    return f"{text[:1].upper()}{text[1:]}"


def lower_first(title: str) -> str:
    """A title for use inside a sentence.

    >>> lower_first("Attention to words"), lower_first("[CLS] first")
    ('attention to words', '[CLS] first')
    """
    return f"{title[:1].lower()}{title[1:]}"
