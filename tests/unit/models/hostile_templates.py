"""Chat templates that take time or memory without end; and a run of them in a process that may take little of either.

Run as a program it renders every one under a limit of memory that the system holds, and prints what came of each.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from weir.models.chat_template import ChatTemplate
from weir.models.errors import PromptError, TokenizerError
from weir.models.template_environment import MeteredEnvironment

_LAUGHS = "{% set a = ['lol'] * 1000 %}{% set b = [a, a, a, a, a, a, a, a, a, a] * 100 %}{% set c = [b] * 1000 %}"
_LONG = "{% set s = 'a' * 900000 %}"
_STORE = "{% set ns = namespace(s='ab', l=[1], x=3) %}"

TEMPLATES = {
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a loop that writes": "{% for i in range(99999) %}{{ 'a' * 90000 }}{% endfor %}",
    "a loop that keeps": _LONG + _STORE + "{% for i in range(99999) %}{% set ns.l = [ns.l, s[1:]] %}{% endfor %}",
    "a loop that keeps lists": _STORE
    + "{% for i in range(99999) %}{% set ns.l = [ns.l, range(99999) | list] %}{% endfor %}",
    "a loop that searches": _LONG + "{% for i in range(99999) %}{% if s[1:] ~ 'b' in s %}{% endif %}{% endfor %}",
    "a loop that sorts": "{% for i in range(99999) %}{% set x = range(99999) | sort %}{% endfor %}",
    "a loop that splits": "{% set s = 'a ' * 450000 %}{% for i in range(99999) %}{% set x = s.split() %}{% endfor %}",
    "a loop that squares": _STORE + "{% for i in range(99999) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "a loop that doubles by ~": _STORE + "{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "a loop that doubles by +": _STORE + "{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "a loop that doubles a list": _STORE + "{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "a loop that nests a list": _STORE + "{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}",
    "blocks that double": "{% set s %}abcd{% endset %}" + "{% set s %}{{ s }}{{ s }}{% endset %}" * 40,
    "a macro that doubles": "{% macro m(n) %}{{ m(n - 1) ~ m(n - 1) if n else 'a' }}{% endmacro %}{{ m(60) }}",
    "a block that is called": (
        "{% macro m() %}{% for i in range(99999) %}{{ caller() }}{% endfor %}{% endmacro %}"
        "{% call m() %}{{ 'a' * 90000 }}{% endcall %}"
    ),
    "text times a number": "{{ 'a' * 3000000000 }}",
    "a number times text": "{% set x = 3000000000 * 'a' %}",
    "a list times a number": "{% set x = [0] * 1000000000 %}",
    "a power": "{{ 2 ** 4000000000 }}",
    "a percent width": "{{ '%3000000000d' % 1 }}",
    "a percent width of an argument": "{{ '%*d' % (3000000000, 1) }}",
    "a percent precision": "{{ '%.3000000000f' % 1 }}",
    "a width in format": "{{ '{:>3000000000}'.format(1) }}",
    "a width of an argument in format": "{{ '{:>{w}}'.format(1, w=3000000000) }}",
    "a width in format_map": "{{ '{x:>3000000000}'.format_map({'x': 1}) }}",
    "a replacement": "{{ ('a' * 900000).replace('', 'b' * 900000) }}",
    "a replacement by a filter": "{{ ('a' * 900000) | replace('a', 'b' * 900000) }}",
    "an indent of many lines": "{{ ('\n' * 900000) | indent(9999) }}",
    "an indent by a text": "{{ ('\n' * 900000) | indent('x' * 9000) }}",
    "tabs": "{{ ('\t' * 900000).expandtabs(tabsize=1000000) }}",
    "a long separator": "{{ range(99999) | join('x' * 900000) }}",
    "many references": _LONG + "{{ ''.join(range(99999) | map(attribute='x', default=s)) }}",
    "many references by a filter": _LONG + "{{ range(99999) | map(attribute='x', default=s) | join }}",
    "many references sorted": _LONG + "{{ range(99999) | map(attribute='x', default=s) | sort | length }}",
    "many groups": "{{ range(99999) | groupby('x', default='a' * 900000) | length }}",
    "lists added up": "{{ ([range(99999) | list] * 9) | sum(start=[]) }}",
    "a thousand thousand thousand": _LAUGHS + "{{ c }}",
    "compared": _LAUGHS + _LAUGHS.replace("lol", "lo2") + "{{ c == [] }}",
    "as JSON": _LAUGHS + "{{ c | tojson }}",
    "in a replacement": _LAUGHS + "{{ 'x' | replace('x', c) }}",
    "within a namespace": "{% set ns = namespace() %}{% set l = [ns] * 1000 %}{% set ns.l = ['lol'] * 1000 %}{{ l }}",
    "JSON that is indented": "{{ [[[1]]] | tojson(indent=3000000000) }}",
    "a filter on a block": "{% filter center(3000000000) %}a{% endfilter %}",
    "text that grows in capitals": "{{ ('ŉ' * 990000) | upper }}",
    "text that grows when it is escaped": "{{ ('\"' * 990000) | e }}",
    "a date": "{{ strftime_now('%c' * 450000) }}",
}


def every_operation() -> Iterator[tuple[str, str]]:
    """Each filter, and each method of a text and of a number, with numbers and texts that are far too large."""
    values = {"text": "('\n' * 900000)", "list": "(range(9999) | list)", "number": "7"}
    args = {"a number": "3000000000", "two numbers": "1, 3000000000", "a text": "'\n', 'b' * 900000"}
    for what, value in values.items():
        for how, arg in args.items():
            for name in MeteredEnvironment().filters:
                yield f"{name} of a {what} with {how}", f"{{{{ {value} | {name}({arg}) }}}}"
            for name in dir({"text": str, "list": list, "number": int}[what]):
                if not name.startswith("_"):
                    yield f"{name}() of a {what} with {how}", f"{{{{ {value}.{name}({arg}) }}}}"


def outcome(source: str) -> str:
    """What compiling and rendering a template comes to."""
    try:
        rendered = ChatTemplate(source, {}).render([{"role": "user", "content": "Hi"}])
    except (TokenizerError, PromptError) as error:
        return str(error)
    return f"{len(rendered)} characters"


def main() -> None:
    """Print {name: outcome}, and the peak of memory in bytes."""
    resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
    resource.setrlimit(resource.RLIMIT_CPU, (300, 300))
    found = {name: outcome(source) for name, source in TEMPLATES.items()}
    operations = {name: outcome(source) for name, source in every_operation()}
    # Not ru_maxrss, which also counts the process that started this one.
    status = Path("/proc/self/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]
    json.dump({"templates": found, "operations": operations, "peak": peak}, sys.stdout)


if __name__ == "__main__":
    main()
