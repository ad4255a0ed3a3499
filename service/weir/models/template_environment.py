"""The sandbox that chat templates run in: jinja2's own, and every operation that takes time or memory is metered."""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import BuiltinMethodType
from typing import Any

from jinja2 import nodes, pass_context, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter

from weir.models.template_meter import Meter, TemplateLimitError
from weir.models.template_nodes import MeteredCode, MeteredNodes

# They make much of little by rules of their own, and no chat template wants them.
_LEFT_OUT = ("urlize", "wordwrap", "xmlattr", "pprint")
_FORBIDDEN_METHODS = frozenset({"translate", "maketrans", "to_bytes"})
_PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill"})
_CHECKED_METHODS = _FORBIDDEN_METHODS | _PADDING_METHODS | {"join", "replace", "expandtabs"}
_PADDING_FILTERS = frozenset({"batch", "center", "indent", "round", "slice", "truncate"})
_CHECKED_FILTERS = _PADDING_FILTERS | {"replace", "groupby", "sum", "format"}
# They look at each entry, of a text at each character.
_ITERATING_FILTERS = frozenset({"sort", "groupby", "unique", "min", "max", "sum", "list", "dictsort", "batch", "slice"})
_MOST_PADDING = 9999
_MOST_INDENT = 64
# A width or precision above the padding in `str.format`, and in `%`, where it may also come from an argument.
_WIDE_FIELD = re.compile(r"\d{5}")
_WIDE_PERCENT = re.compile(r"%(\([^)]{0,100}\))?[-#0 +]*(\*|\d{5}|\d*\.(\*|\d{5}))")


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """Renders under the meter of the thread that renders, which `using` sets."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})
    code_generator_class = MeteredCode

    def __init__(self, **options: Any) -> None:
        # Unoptimised: jinja2 would compute constant expressions while it compiles.
        super().__init__(optimized=False, finalize=_finalize, **options)
        self._threads = threading.local()
        self.add_extension(loopcontrols)
        self.globals.pop("lipsum")
        filters = {name: function for name, function in self.filters.items() if name not in _LEFT_OUT}
        filters |= {"join": _join, "tojson": _to_json}
        self.filters = {name: self._metered(name, function) for name, function in filters.items()}

    @property
    def meter(self) -> Meter:
        """Of the render that this thread is in."""
        meter: Meter = self._threads.meter
        return meter

    def using(self, meter: Meter) -> None:
        """Render under this meter from now on, in this thread."""
        self._threads.meter = meter

    def _generate(self, source: nodes.Template, *args: Any, **options: Any) -> str:
        return super()._generate(MeteredNodes(self).visit(source), *args, **options)

    def concat(self, pieces: Iterable[str]) -> str:
        """Join what a template, a macro or a block has written."""
        return self.meter.joined(pieces)

    def joined(self, *values: Any) -> str:
        """`a ~ b ~ c`."""
        meter: Meter = self._threads.meter
        return meter.joined([value if isinstance(value, str) else meter.text(value) for value in values])

    def spend(self, steps: int) -> None:
        """Count a turn of a loop."""
        self._threads.meter.spend(steps)

    def made(self, value: Any) -> Any:
        """Count a list, or the copy that a slice makes."""
        return self._threads.meter.made(value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # as in jinja2
        """Call a function, macro or method."""
        if isinstance(__obj, BuiltinMethodType) and __obj.__name__ in _CHECKED_METHODS:
            __self._check_method(__obj.__self__, __obj.__name__, [*args, *kwargs.values()])
            if isinstance(__obj.__self__, str) and __obj.__name__ == "join" and len(args) == 1:
                # What is iterated over may be far longer than what it is made from.
                return __self._threads.meter.joined(args[0], __obj.__self__)
        return __self._threads.meter.made(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`left * right`, `left ** right`, `left + right`, `left % right`."""
        if operator == "+":
            if _is_sized(left) and _is_sized(right):
                self.meter.fits(len(left) + len(right))
        elif isinstance(left, int) and isinstance(right, int):
            if operator == "*":
                self.meter.number(left.bit_length() + right.bit_length())
            elif operator == "**":
                self.meter.number(left.bit_length() * max(1, right))
        elif operator == "*":
            for repeated, times in ((left, right), (right, left)):
                if isinstance(times, int):
                    self.meter.fits(self.meter.size(repeated) * max(0, times) if _is_sized(repeated) else 0)
        elif operator == "%" and isinstance(left, str | bytes):
            self._check_format(str(left), right)
        return self._threads.meter.made(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` within the meter; None for anything else."""
        name, owner = getattr(value, "__name__", ""), getattr(value, "__self__", None)
        if name not in ("format", "format_map") or not isinstance(owner, str):
            return None
        formatter = _MeteredFormatter(self)

        def format_within(*args: Any, **kwargs: Any) -> str:
            if name == "format_map":
                (kwargs,) = args
                args = ()
            return formatter.vformat(owner, args, kwargs)

        return format_within

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        # Some filters get the context or the environment before the value.
        place = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            before, value, others = args[:place], args[place], args[place + 1 :]
            if name in _CHECKED_FILTERS:
                self._check_filter(name, value, [*others, *kwargs.values()])
            if isinstance(value, Iterator):
                # It may yield one long text many times, of which a filter may make as many copies.
                value = self.meter.passing(value)
            elif name in _ITERATING_FILTERS and _is_sized(value):
                self.meter.spend(len(value))
            return self._threads.meter.made(function(*before, value, *others, **kwargs))

        return metered

    def _check_filter(self, name: str, value: Any, args: list[Any]) -> None:
        if name in _PADDING_FILTERS:
            _check_padding(name, args)
        match name:
            case "replace":
                self._check_replace(*map(self.meter.text, (value, *args[:2])))
            case "groupby" if any(isinstance(arg, str) and len(arg) > _MOST_PADDING for arg in args):
                raise TemplateLimitError(f"it groups by a text of more than {_MOST_PADDING} characters")
            case "sum" if any(_is_sized(arg) and not isinstance(arg, str) for arg in args):
                raise TemplateLimitError("it adds up lists")
            case "indent":
                widths = [len(arg) if isinstance(arg, str) else int(arg) for arg in args]
                self.meter.fits(len(self.meter.text(value).splitlines()) * max(widths, default=4))
            case "format":
                self._check_format(self.meter.text(value), tuple(args))

    def _check_method(self, owner: Any, name: str, args: list[Any]) -> None:
        if name in _FORBIDDEN_METHODS or (isinstance(owner, bytes) and name == "join"):
            raise SecurityError(f"{name} is not for chat templates")
        if name in _PADDING_METHODS:
            _check_padding(name, args)
        if isinstance(owner, str | bytes) and name == "replace":
            self._check_replace(owner, *args[:2])
        if isinstance(owner, str | bytes) and name == "expandtabs":
            self.meter.fits(len(owner) * max([8, *(arg for arg in args if isinstance(arg, int))]))

    def _check_replace(self, text: Any, old: Any = "", new: Any = "") -> None:
        places = text.count(old) if old else len(text) + 1
        self.meter.fits(len(text) + places * len(new))

    def _check_format(self, pattern: str, values: Any) -> None:
        if _WIDE_PERCENT.search(pattern):
            raise TemplateLimitError(f"it formats with a width above {_MOST_PADDING}")
        self.meter.fits(len(pattern) + pattern.count("%") * (self.meter.size(values) + _MOST_PADDING))


class _MeteredFormatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        if _WIDE_FIELD.search(format_spec):
            raise TemplateLimitError(f"it formats with a width above {_MOST_PADDING}")
        return self._meter.made(super().format_field(value, format_spec))

    @property
    def _meter(self) -> Meter:
        assert isinstance(self._env, MeteredEnvironment)
        return self._env.meter


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    """What `{{ value }}` writes. It gets the context so that jinja2 writes nothing while it compiles."""
    if isinstance(value, str):
        return value
    assert isinstance(context.environment, MeteredEnvironment)
    return context.environment.meter.text(value)


@pass_environment
def _join(
    environment: MeteredEnvironment, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    """jinja2's filter of this name, which counts what it joins."""
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return environment.meter.joined(map(environment.meter.text, value), str(d))


@pass_environment
def _to_json(
    environment: MeteredEnvironment,
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: jinja2's own escapes HTML characters, which a prompt must not."""
    if isinstance(indent, str):
        indent = indent[: _MOST_INDENT + 1]
    if (len(indent) if isinstance(indent, str) else indent or 0) > _MOST_INDENT:
        raise TemplateLimitError(f"it calls tojson with an indent above {_MOST_INDENT}")
    if any(len(separator) > _MOST_INDENT for separator in separators or ()):
        raise TemplateLimitError(f"it calls tojson with a separator of more than {_MOST_INDENT} characters")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    # Without an indent, one call in C that is bounded by the size of the value.
    return encoder.encode(value) if indent is None else environment.meter.joined(encoder.iterencode(value))


def _check_padding(name: str, args: Iterable[Any]) -> None:
    if any(isinstance(arg, int) and abs(arg) > _MOST_PADDING for arg in args):
        raise TemplateLimitError(f"it calls {name} with a number above {_MOST_PADDING}")


def _is_sized(value: Any) -> bool:
    return isinstance(value, str | bytes | list | tuple | Mapping)
