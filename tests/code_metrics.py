"""Print how big src/ is and how its functions are named: `python tests/code_metrics.py [FOLDER] [--list KIND]`.

The numbers are a report. No test enforces them. KIND is participles, no-verb or single-use, and prints those names
with the lengths of the functions.

How it counts:

- lines: all lines of all .py files. Lines of code are without blank lines, comments and docstrings.
- functions: every `def`, methods and nested functions included, without those named `__x__`.
- length: from the `def` line to the last line, docstring included, without decorators.
- words: a name split at underscores. Leading underscores do not count.
- verb: the first word is in VERBS, or is a prefix of a question (is, has, can, ...). A property is expected to be a
  noun, and is counted with all others.
- participle: the first or the last word is a past participle: it ends with -ed and is not in NOT_PARTICIPLES, or it is
  in IRREGULAR, and the name does not start with a verb. A name such as `is_closed` is a question, not a participle.
- single-use private helpers: functions and methods with a leading underscore whose name is referred to once in their
  own file (as a name or as an attribute).

Commit 742a0ca had 353 files, 39,804 lines, 28,077 lines of code, functions of 6 lines (median),
14.5 % participles, 22.4 % verbs, and 735 of 1,113 private helpers that were used once. By the same count, click
8 has 1.3 % participles and 62.4 % verbs.
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = {
    "is",
    "has",
    "can",
    "should",
    "was",
    "are",
    "may",
    "needs",
    "must",
    "does",
    "accepts",
    "allows",
    "contains",
    "supports",
}
VERBS = QUESTIONS | set(
    """
    abort accept acknowledge acquire add adjust advance aggregate align allocate allow answer append apply archive
    arrange ask assemble assert assign attach augment average await backup begin bind block build bump calculate
    call cancel carry cast catch change check choose chunk claim classify clean clear clip clone close collect
    combine commit compare compile complete compose compress compute configure confirm connect consume convert copy
    correct count cover create crop cut damage decide declare decode decompress decrypt delete deliver derive
    describe deserialize destroy detach detect determine dial digest disable discard disconnect discover dispatch
    display divide download draw drop dump emit enable encode encrypt end enforce enqueue ensure enter enumerate
    erase escape establish estimate evaluate examine exclude execute exit expand expect expire explain export extend
    extract fail fetch fill filter find finish fire fit fix flatten flip flush fold forget fork format forward free
    freeze gather generate get give go grant greet group guard handle hash hide hold identify ignore import include
    increment infer inherit init initialize insert inspect install interpolate interpret interrupt invalidate invert
    invoke issue iterate join judge keep kill launch lay learn leave lend let list listen load locate lock log loop
    make map mark match measure memoize merge minimise minimize mix mock modify monitor mount move multiply
    negotiate normalise normalize note notice notify observe obtain offer omit open override pack pad paint parse
    pass patch pause perform permute pick pin plot poll pop populate post predict prepare prevent print probe
    process produce protect prove provide prune publish pull push put query quote raise randomize read reap receive
    recompute reconnect record recover redirect reduce refill refresh refuse register reject release reload relay
    remember remove rename render renew repeat replace reply report request require reserve reset resize resolve
    respond restart restore resume retrieve retry return reuse reveal revoke rewrite roll rotate run sanitize save
    scan schedule seal search select send separate serialize serve set settle setup shift shorten show shuffle shut
    sign simulate skip sleep slice solve sort spawn spend split spread start stop store stream strip submit
    subscribe subtract sum summarise summarize suspend swap switch synchronize tag take tell terminate test throw
    tokenize touch trace track train transfer transform translate traverse trigger trim truncate try tune unlink
    unlock unpack unregister unseal unwrap update upload use validate verify wait wake walk warn watch wrap write
    yield
    """.split()  # noqa: SIM905
)
IRREGULAR = set(
    """
    begun bound bought broken brought built caught chosen dealt done drawn driven fallen felt forgotten found frozen
    given gone grown heard held hidden hung kept known laid learnt left lent lost made meant met paid said seen sent
    shown spent spoilt spoken stolen struck sunk taken taught thought thrown told understood undone unknown
    withdrawn woken won worn written
    """.split()  # noqa: SIM905
)
NOT_PARTICIPLES = {
    "bed",
    "embed",
    "exceed",
    "fed",
    "feed",
    "hundred",
    "need",
    "proceed",
    "red",
    "seed",
    "shed",
    "speed",
}


@dataclass(frozen=True)
class Function:
    """One function: its name, where it is, how many lines it has, and how often its own file refers to it."""

    name: str
    where: str
    lines: int
    uses: int


def split_name(name: str) -> list[str]:
    """Return the words of a name."""
    return [word for word in name.lower().split("_") if word]


def starts_with_verb(name: str) -> bool:
    """Tell whether the first word of a name is a verb."""
    words = split_name(name)
    return bool(words) and words[0] in VERBS


def is_participle(word: str) -> bool:
    """Tell whether a word is a past participle."""
    return word in IRREGULAR or (word.endswith("ed") and len(word) > 3 and word not in NOT_PARTICIPLES)


def is_named_by_participle(name: str) -> bool:
    """Tell whether a name that starts with no verb starts or ends with a participle."""
    words = split_name(name)
    return bool(words) and not starts_with_verb(name) and (is_participle(words[0]) or is_participle(words[-1]))


def get_docstring_lines(node: ast.AST) -> int:
    """Return the number of lines of the docstring of a module, class or function."""
    body = getattr(node, "body", [])
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return int(first.end_lineno or 0) - first.lineno + 1
    return 0


def count_code_lines(text: str, tree: ast.Module) -> int:
    """Return the number of lines with code: no blank lines, comments or docstrings."""
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in ignored:
            lines.update(range(token.start[0], token.end[0] + 1))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return len(lines) - sum(get_docstring_lines(node) for node in ast.walk(tree) if isinstance(node, kinds))


def find_functions(tree: ast.Module, where: str) -> Iterator[Function]:
    """Yield every function of a file."""
    uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    uses += Counter(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.endswith("__"):
            lines = int(node.end_lineno or 0) - node.lineno + 1
            yield Function(node.name, f"{where}:{node.lineno}", lines, uses[node.name])


def main(arguments: list[str]) -> int:
    """Print the numbers, or the names of one kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "src")
    parser.add_argument("--list", choices=("participles", "no-verb", "single-use"), dest="kind")
    given = parser.parse_args(arguments)
    sizes, functions = [], list[Function]()
    for path in sorted(given.folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        sizes.append((len(text.splitlines()), count_code_lines(text, tree)))
        functions += find_functions(tree, str(path.relative_to(given.folder)))
    private = [each for each in functions if each.name.startswith("_")]
    kinds = {
        "participles": [each for each in functions if is_named_by_participle(each.name)],
        "no-verb": [each for each in functions if not starts_with_verb(each.name)],
        "single-use": [each for each in private if each.uses == 1],
    }
    if given.kind is not None:
        for each in kinds[given.kind]:
            print(f"{each.where}: {each.name} ({each.lines} lines)")
        return 0
    participles, verbs = len(kinds["participles"]), len(functions) - len(kinds["no-verb"])
    rows = {
        "files": f"{len(sizes):,}",
        "lines": f"{sum(lines for lines, _ in sizes):,}",
        "lines of code": f"{sum(code for _, code in sizes):,}",
        "functions": f"{len(functions):,}",
        "median function length": f"{statistics.median(each.lines for each in functions):g} lines",
        "named by a participle": f"{participles:,} ({participles / len(functions):.1%})",
        "start with a verb": f"{verbs:,} ({verbs / len(functions):.1%})",
        "single-use private helpers": f"{len(kinds['single-use']):,} of {len(private):,}",
    }
    for what, value in rows.items():
        print(f"{what:<28}{value:>16}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
