"""Take bodies out of source text: signature, decorators, annotations and docstring stay, a failing statement remains.

It is an edit of bytes: all outside the removed body stays as it was (line ends, tabs, encoding, byte order mark).
Languages are entries of `GRAMMARS`; a file whose extension has no entry is refused, never guessed. It reads no files,
knows no tasks, and does not say whether the tests notice (judge does).
"""

from __future__ import annotations

import functools
import importlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final, NamedTuple

import tree_sitter

from benchmarks.lab.errors import UsageError
from benchmarks.lab.model import Record
from benchmarks.lab.text import listing, suggest

MODULE: Final = "*"  # the symbol that stands for every function of a file


class Span(NamedTuple):
    """Bytes `start:end` of a source, replaced by `text`."""

    start: int
    end: int
    text: bytes


class Grammar(Record, frozen=True, kw_only=True):
    """How one language is read. `body` finds the span to replace in a function node; None: nothing to take."""

    wheel: str  # the installed package that holds the grammar
    extensions: tuple[str, ...]
    functions: tuple[str, ...]  # node types
    classes: tuple[str, ...]
    body: Callable[[tree_sitter.Node, bytes], Span | None]


class Excised(Record, frozen=True, kw_only=True):
    """`text` with the bodies gone, the number of lines that went, and each body as it was."""

    text: bytes
    removed_lines: int
    bodies: tuple[bytes, ...]


def language_of(path: str) -> str:
    """Name of the language of `path` by its extension; UsageError when no grammar is listed for it."""
    extension = PurePosixPath(path).suffix
    for name, grammar in GRAMMARS.items():
        if extension in grammar.extensions:
            return name
    known = listing(sorted(e for g in GRAMMARS.values() for e in g.extensions))
    raise UsageError(f'path "{path}": no grammar for "{extension}" files; bodies can be excised from {known}')


def excise(source: bytes, language: str, symbols: Sequence[str], path: str) -> Excised:
    """Replace the body of every symbol in `source` and return what is left and what was taken.

    A symbol is dotted (`Class.method`, `outer.inner`); a class stands for all its methods, `*` for the whole file.
    Raises UsageError, naming `path` and the symbol, for an unknown language or extension, an unknown or ambiguous
    symbol, overlapping symbols, and a function without a body to take.
    """
    grammar = _grammar(language, path)
    tree = _parser(grammar.wheel).parse(source)
    spans = sorted({span for symbol in symbols for span in _spans(tree.root_node, source, grammar, symbol, path)})
    for before, after in itertools.pairwise(spans):
        if after.start < before.end:
            raise UsageError(f"{path}: the symbols {listing(symbols)} overlap; name each body once")
    text = _replace(source, spans)
    if not tree.root_node.has_error and _parser(grammar.wheel).parse(text).root_node.has_error:
        raise UsageError(f"{path}: without {listing(symbols)} the rest does not parse; choose another symbol")
    bodies = tuple(source[span.start : span.end] for span in spans)
    return Excised(text=text, removed_lines=sum(len(body.splitlines()) for body in bodies), bodies=bodies)


def candidate_lines(bodies: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the lines of the bodies that could identify them: stripped, long and wordy enough, each once."""
    lines = (line.strip() for body in bodies for line in body.splitlines())
    return tuple(dict.fromkeys(line for line in lines if _wordy(line)))


def distinctive_lines(bodies: Iterable[bytes], rest_of_tree: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the candidate lines that stand nowhere in `rest_of_tree` (the contents of the excised tree's files)."""
    left = dict.fromkeys(candidate_lines(bodies))
    for content in rest_of_tree:
        for line in [line for line in left if line in content]:
            del left[line]
    return tuple(left)


def _wordy(line: bytes) -> bool:
    """Long enough, with enough different words, that it hardly stands anywhere by chance."""
    return len(line) >= 24 and len(set(re.findall(rb"[A-Za-z_]\w+", line))) >= 3


def _grammar(language: str, path: str) -> Grammar:
    if language not in GRAMMARS:
        raise UsageError(
            f'language "{language}" has no grammar{suggest(language, GRAMMARS)}; there is {", ".join(GRAMMARS)}'
        )
    if (found := language_of(path)) != language:
        raise UsageError(f'path "{path}" is {found}, but the target\'s language is {language}')
    return GRAMMARS[language]


@functools.cache
def _parser(wheel: str) -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(importlib.import_module(wheel).language()))


def _spans(root: tree_sitter.Node, source: bytes, grammar: Grammar, symbol: str, path: str) -> list[Span]:
    if symbol == MODULE:
        nodes = _outermost_functions(root, grammar)
    else:
        node = _find(root, grammar, symbol, path)
        nodes = [node] if node.type in grammar.functions else _outermost_functions(node, grammar)
    spans = [span for node in nodes if (span := grammar.body(node, source)) is not None]
    if not spans:
        raise UsageError(f'{path}: symbol "{symbol}" has no body to take out')
    return spans


def _find(root: tree_sitter.Node, grammar: Grammar, symbol: str, path: str) -> tree_sitter.Node:
    definitions = list(_definitions(root, grammar))
    found = [node for name, node in definitions if name == symbol]
    if not found:
        hint = suggest(symbol, [name for name, _ in definitions])
        raise UsageError(f'{path}: symbol "{symbol}" is not defined there{hint}')
    if len(found) > 1:
        lines = listing(str(node.start_point[0] + 1) for node in found)
        raise UsageError(f'{path}: symbol "{symbol}" is ambiguous, it is defined on lines {lines}; choose another')
    return found[0]


def _definitions(root: tree_sitter.Node, grammar: Grammar) -> Iterator[tuple[str, tree_sitter.Node]]:
    stack: list[tuple[str, tree_sitter.Node]] = [("", root)]
    while stack:
        prefix, node = stack.pop()
        if node.type in grammar.functions + grammar.classes:
            name = node.child_by_field_name("name")
            if name is None or name.text is None:
                continue
            dotted = prefix + name.text.decode("utf-8", "replace")
            yield dotted, node
            prefix = dotted + "."
        stack.extend((prefix, child) for child in reversed(node.named_children))


def _outermost_functions(root: tree_sitter.Node, grammar: Grammar) -> list[tree_sitter.Node]:
    found: list[tree_sitter.Node] = []
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type in grammar.functions:
            found.append(node)
        else:
            stack.extend(reversed(node.named_children))
    return found


def _replace(source: bytes, spans: Sequence[Span]) -> bytes:
    parts: list[bytes] = []
    position = 0
    for span in spans:
        parts += [source[position : span.start], span.text]
        position = span.end
    return b"".join([*parts, source[position:]])


# ---- Python ----

_FAIL: Final = b"raise NotImplementedError"


def _python_body(function: tree_sitter.Node, source: bytes) -> Span | None:
    """Span of a Python body after its docstring, with the comments before, between and after its statements."""
    block = function.child_by_field_name("body")
    if block is None:
        return None
    statements = [child for child in block.named_children if child.type != "comment"]
    documented = bool(statements) and _is_docstring(statements[0])
    rest = statements[1:] if documented else statements
    if not rest or (len(rest) == 1 and _is_stub(rest[0])):
        return None
    colon = next(child for child in function.children if child.type == ":")
    start = _python_start(source, statements[0].end_byte if documented else colon.end_byte, rest[0].start_byte)
    column = len(source[_line_start(source, function.start_byte) : function.start_byte].expandtabs(8))
    own_lines = start == _line_start(source, start)
    indent = source[_line_start(source, rest[0].start_byte) : rest[0].start_byte] if own_lines else b""
    end = len(source[: rest[-1].end_byte].rstrip())
    return Span(start, _python_end(source, end, column if own_lines else None), indent + _FAIL)


def _is_docstring(statement: tree_sitter.Node) -> bool:
    if statement.type != "expression_statement" or len(statement.named_children) != 1:
        return False
    is_text = statement.named_children[0].type in ("string", "concatenated_string")
    return is_text and re.match(rb"[rRuU]?[\"']", statement.text or b"") is not None


def _is_stub(statement: tree_sitter.Node) -> bool:
    text = statement.text or b""
    return text in (b"pass", b"...") or text.startswith(_FAIL)


def _python_start(source: bytes, after: int, first: int) -> int:
    """Start of the line after `after` (end of the docstring or of the colon), or `first` when they share a line."""
    line_end = _line_end(source, after)
    if line_end >= first:
        return first
    return line_end + (2 if source[line_end : line_end + 2] == b"\r\n" else 1)


def _python_end(source: bytes, end: int, column: int | None) -> int:
    """Extend `end` over the comment on its line and, with a `column`, the deeper indented comment lines below."""
    line_end = _line_end(source, end)
    if re.fullmatch(rb"[ \t;]*(#.*)?", source[end:line_end], re.DOTALL):
        end = line_end
    if column is None:
        return end
    for line in re.compile(rb"(?:\r\n|\r|\n)(?P<indent>[ \t\f]*)(?P<text>[^\r\n]*)").finditer(source, line_end):
        if not line["text"]:
            continue
        if not line["text"].startswith(b"#") or len(line["indent"].expandtabs(8)) <= column:
            break
        end = line.end()
    return end


def _line_start(source: bytes, position: int) -> int:
    return max(source.rfind(b"\n", 0, position), source.rfind(b"\r", 0, position)) + 1


def _line_end(source: bytes, position: int) -> int:
    found = re.compile(rb"[\r\n]").search(source, position)
    return found.start() if found else len(source)


GRAMMARS: Final[dict[str, Grammar]] = {
    "python": Grammar(
        wheel="tree_sitter_python",
        extensions=(".py", ".pyi"),
        functions=("function_definition",),
        classes=("class_definition",),
        body=_python_body,
    ),
}
