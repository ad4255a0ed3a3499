"""Puts a meter into a parsed template where jinja2's sandbox has no hook: loops, `~`, slices and literal lists."""

from __future__ import annotations

from jinja2 import Environment, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.visitor import NodeTransformer


class MeteredNodes(NodeTransformer):
    """Rewrites a template to call `spend`, `joined` and `made` of its environment.

    The methods are found by the names of jinja2's nodes.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        """Each turn of a loop spends a step for each node in its body."""
        size = 1 + sum(1 for child in node.body for _ in child.find_all(nodes.Node))
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(self._call("spend", [nodes.Const(size)], node), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """`a ~ b` is joined within the meter."""
        self.generic_visit(node)
        return self._call("joined", node.nodes, node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        """A slice is a copy."""
        self.generic_visit(node)
        return self._call("made", [node], node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        """`[a, a]` may be far larger than it looks; what is written out is as large as it looks."""
        return self._made(node, node.items)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        """As a list."""
        return self._made(node, [pair.value for pair in node.items])

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        """As a list, unless it is what values are assigned to."""
        return self._made(node, node.items) if node.ctx == "load" else node

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier) -> nodes.Node:  # noqa: N802
        """`{% autoescape %}` would change what `~` means."""
        raise SecurityError("a block that changes how text is escaped is not for chat templates")

    def _made(self, node: nodes.Expr, entries: list[nodes.Expr]) -> nodes.Node:
        constant = all(isinstance(entry, nodes.Const) for entry in entries)
        self.generic_visit(node)
        return node if constant else self._call("made", [node], node)

    def _call(self, name: str, args: list[nodes.Expr], place: nodes.Node) -> nodes.Call:
        call = nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None, lineno=place.lineno)
        call.set_environment(self._environment)
        return call


class MeteredCode(CodeGenerator):
    """Calls the environment's own functions directly: they are no business of the sandbox's, and are called often."""

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: N802
        """`environment.made(value)`, or what jinja2 writes."""
        if not isinstance(node.node, nodes.EnvironmentAttribute):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write(f"environment.{node.node.name}(")
        for arg in node.args:
            self.visit(arg, frame)
            self.write(", ")
        self.write(")")
