"""Text to syntax tree.

    spec       := choice (';' choice)*
    choice     := ensured ('or' ensured)*
    ensured    := base ('ensuring' predicate)*
    base       := 'achieve' predicate | '(' spec ')'

    predicate  := both (('|' | '||' | '∨') both)*
    both       := literal (('and' | '&' | '&&' | '∧') literal)*
    literal    := ('not' | '!' | '¬') literal | '(' predicate ')' | ('reach' | 'avoid') '(' region ')'

Precedence, tightest first: `ensuring`, `or`, `;` in specifications (the paper writes "achieve … or
achieve …; achieve …" for a choice followed by a goal) and `!`, `&`, `|` in predicates. All binary
operators associate to the left. `ensuring` covers only the `achieve` or the parentheses before it: to
constrain a whole sequence write `(achieve reach(a); achieve reach(b)) ensuring avoid(o)`.

The word `or` is the choice between specifications. Inside the parentheses of a predicate, where no
specification can stand, it is read as `|`: `achieve (reach(a) or reach(b))`.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import NoReturn

from dibs.errors import DibsError
from dibs.spectrl.syntax import (
    KEYWORDS,
    WORD,
    Achieve,
    And,
    Avoid,
    Choice,
    Ensuring,
    Not,
    Or,
    Predicate,
    Reach,
    Sequence,
    Spec,
)

_TOKEN = re.compile(rf"\s*(?:(?P<word>{WORD})|(?P<symbol>&&|\|\||[&|!();∧∨¬]))")
_AND = ("and", "&", "&&", "∧")
_OR = ("|", "||", "∨")
_NOT = ("not", "!", "¬")
_MAX_DEPTH = 100

_A_SPEC = "a specification ('achieve' or '(')"
_A_PREDICATE = "a predicate ('reach(…)', 'avoid(…)', '!' or '(')"


class SpectrlSyntaxError(DibsError):
    """Text that is not SPECTRL; the message shows the line with a caret under the culprit."""

    def __init__(self, message: str, *, position: int = 0) -> None:
        """Keep the message and the offset of the culprit in the text."""
        super().__init__(message)
        self.position = position


def parse(text: str) -> Spec:
    """Return the specification that `text` describes."""
    parser = _Parser(text)
    spec = parser.spec()
    parser.end("'ensuring', 'or', ';' or the end")
    return spec


def parse_predicate(text: str) -> Predicate:
    """Return the predicate that `text` describes; `or` is read as `|`, there being no specification."""
    parser = _Parser(text)
    predicate = parser.predicate(words=True)
    parser.end("the end")
    return predicate


@dataclass(frozen=True)
class _Token:
    text: str
    start: int


class _Parser:
    """Recursive descent with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = self._tokens()
        self.at = 0
        self.depth = 0
        self.predicate_end = -1  # where the last predicate ended, so might have gone on

    def _tokens(self) -> list[_Token]:
        found, position, end = [], 0, len(self.text.rstrip())
        while position < end:
            match = _TOKEN.match(self.text, position)
            if match is None:
                blank = re.compile(r"\s*").match(self.text, position)
                start = blank.end() if blank else position
                self.fail(start, "a word, '(', ')', ';', '&', '|' or '!'", self.text[start])
            kind = match.lastgroup or "word"
            found.append(_Token(match[kind], match.start(kind)))
            position = match.end()
        return [*found, _Token("", end)]

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def accept(self, *texts: str) -> bool:
        if self.token.text in texts:
            self.at += 1
            return True
        return False

    def expect(self, text: str, expected: str) -> None:
        if not self.accept(text):
            self.fail_here(expected)

    def end(self, expected: str) -> None:
        if self.token.text:
            self.fail_here(expected)

    def spec(self) -> Spec:
        spec = self.choice()
        while self.accept(";"):
            spec = Sequence(spec, self.choice())
        return spec

    def choice(self) -> Spec:
        spec = self.ensured()
        while self.accept("or"):
            if self.token.text in ("reach", "avoid", *_NOT):
                self.fail_here(_A_SPEC, hint="Between predicates write '|' instead of 'or'.")
            spec = Choice(spec, self.ensured())
        return spec

    def ensured(self) -> Spec:
        spec = self.base()
        while self.accept("ensuring"):
            spec = Ensuring(spec, self.predicate(words=False))
        return spec

    def base(self) -> Spec:
        if self.accept("achieve"):
            return Achieve(self.predicate(words=False))
        if self.token.text != "(":
            self.fail_here(_A_SPEC)
        self.open()
        spec = self.spec()
        self.close("'ensuring', 'or', ';' or ')'")
        return spec

    def predicate(self, *, words: bool) -> Predicate:
        """Parse a predicate; with `words`, `or` between its parts is a disjunction."""
        predicate = self.both(words)
        while self.accept(*_OR, *(("or",) if words else ())):
            predicate = Or(predicate, self.both(words))
        self.predicate_end = self.at
        return predicate

    def both(self, words: bool) -> Predicate:
        predicate = self.literal(words)
        while self.accept(*_AND):
            predicate = And(predicate, self.literal(words))
        return predicate

    def literal(self, words: bool) -> Predicate:
        if self.token.text in _NOT:
            self.open()
            inner = self.literal(words)
            self.depth -= 1
            return Not(inner)
        if self.token.text == "(":
            self.open()
            predicate = self.predicate(words=True)
            self.close("')'")
            return predicate
        if self.accept("reach"):
            return Reach(self.region("reach"))
        if self.accept("avoid"):
            return Avoid(self.region("avoid"))
        self.fail_here(_A_PREDICATE)

    def region(self, atom: str) -> str:
        self.expect("(", f"'(' after '{atom}'")
        name = self.token.text
        if name in KEYWORDS or not re.fullmatch(WORD, name):
            self.fail_here("the name of a region")
        self.at += 1
        self.expect(")", f"')' after '{name}'")
        return name

    def open(self) -> None:
        """Enter one level of nesting; deeper than this is a mistake, and would exhaust the stack."""
        if self.depth == _MAX_DEPTH:
            self.fail_here(f"at most {_MAX_DEPTH} levels of nesting")
        self.depth += 1
        self.at += 1

    def close(self, expected: str) -> None:
        self.expect(")", expected)
        self.depth -= 1

    def fail_here(self, expected: str, hint: str = "") -> NoReturn:
        token = self.token
        if self.at == self.predicate_end:
            expected = f"'&', '|'{',' if ',' in expected else ' or'} {expected}"
        known = [word for word in sorted(KEYWORDS) if f"'{word}" in expected]
        near = difflib.get_close_matches(token.text, known, n=1, cutoff=0.7)
        if near and not hint:
            hint = f"Did you mean '{near[0]}'?"
        self.fail(token.start, expected, token.text, hint)

    def fail(self, position: int, expected: str, found: str, hint: str = "") -> NoReturn:
        start = self.text.rfind("\n", 0, position) + 1
        line = self.text[start:].split("\n", 1)[0].rstrip("\r")
        # Tabs are kept so that the caret stands under the culprit however wide the terminal shows them.
        indent = "".join(c if c == "\t" else " " for c in self.text[start:position])
        number = self.text.count("\n", 0, position) + 1
        raise SpectrlSyntaxError(
            f"specification, line {number}, column {position - start + 1}: expected {expected}, "
            f"found {repr(found) if found else 'the end'}.{f' {hint}' if hint else ''}\n"
            f"    {line}\n    {indent}^",
            position=position,
        )
