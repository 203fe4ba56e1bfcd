"""The changes that can be made to a Python source, found in its syntax tree."""

from __future__ import annotations

import ast

from mutation.change import Change

FLIPPED = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
SWAPPED_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
SIGNS = {ast.Add: (b"+", b"-"), ast.Sub: (b"-", b"+")}


def changes(path: str, source: bytes) -> list[Change]:
    """All of them, in the order of the source."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return sorted(finder.found, key=lambda change: (change.start, change.end, change.becomes))


class _Finder(ast.NodeVisitor):
    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.found: list[Change] = []
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    # ---- places in the source ------------------------------------------------------------------

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr | ast.stmt) -> bytes:
        return self.source[self._start(node) : self._end(node)]

    def _change(self, start: int, end: int, becomes: bytes, operator: str) -> None:
        self.found.append(Change(self.path, start, end, becomes, operator))

    def _replace(self, node: ast.expr | ast.stmt, becomes: bytes, operator: str) -> None:
        self._change(self._start(node), self._end(node), becomes, operator)

    def _parenthesised(self, whole: ast.expr, opening: bytes, part: ast.expr) -> bytes:
        """`part` in parentheses, with as many lines as `whole`."""
        text = self._text(part)
        return opening + text + b"\n" * (self._text(whole).count(b"\n") - text.count(b"\n")) + b")"

    def _between(self, left: ast.expr, right: ast.expr, token: bytes, becomes: bytes, operator: str) -> None:
        """Replace a token that stands between two expressions, beside parentheses and comments."""
        start, end = self._end(left), self._start(right)
        at = self.source.find(token, start, end)
        if at >= 0 and b"#" not in self.source[start:at]:
            self._change(at, at + len(token), becomes, operator)

    # ---- what is never changed -----------------------------------------------------------------

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name.lstrip("_").startswith("validate"):
            return  # a check itself: the state's invariants
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self._body(node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._body(node.body)

    def visit_Assert(self, node: ast.Assert) -> None:
        """An assertion is a check itself."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Python 3.11 knows no positions inside f-strings."""

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        if isinstance(node.slice, (ast.Slice, ast.Constant, ast.UnaryOp, ast.BinOp)):
            self.visit(node.slice)

    # ---- statements ----------------------------------------------------------------------------

    def _body(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue  # a docstring
            self.visit(statement)

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Call):
            self._replace(node, b"pass", "call dropped")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets):
            self._replace(node, b"pass", "assignment dropped")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in SIGNS:
            before, after = SIGNS[type(node.op)]
            self._between(node.target, node.value, before + b"=", after + b"=", "sign")
        self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negate(node.test)
        last = node.body[-1]
        if isinstance(last, (ast.Return, ast.Continue, ast.Break, ast.Raise)):
            self._replace(last, b"pass", "early exit dropped")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)
        self.generic_visit(node)

    # ---- expressions ---------------------------------------------------------------------------

    def _negate(self, test: ast.expr) -> None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self._replace(test, self._text(test.operand), "branches swapped")
        elif not (isinstance(test, ast.Compare) and len(test.ops) == 1):  # else it is the flipped comparison
            self._replace(test, self._parenthesised(test, b"not (", test), "branches swapped")

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            token, others = FLIPPED[type(operator)]
            for other in others:
                self._between(left, right, token.encode(), other.encode(), "comparison")
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for index, value in enumerate(node.values):
            rest = [*node.values[:index], *node.values[index + 1 :]]
            if len(rest) == 1:
                self._replace(node, self._parenthesised(node, b"(", rest[0]), "operand dropped")
            elif index + 1 < len(node.values):
                self._change(self._start(value), self._start(node.values[index + 1]), b"", "operand dropped")
            else:
                self._change(self._end(node.values[index - 1]), self._end(value), b"", "operand dropped")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            self._replace(node, self._text(node.operand), "sign")
        else:
            self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = any(isinstance(part, (ast.JoinedStr, ast.List, ast.Tuple)) for part in (node.left, node.right))
        if type(node.op) in SIGNS and not text:
            self._between(node.left, node.right, *SIGNS[type(node.op)], "sign")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in SWAPPED_CALLS:
            self._replace(node.func, SWAPPED_CALLS[node.func.id].encode(), "min, max, any, all")
        node.keywords = [one for one in node.keywords if one.arg != "strict"]  # of zip(): an assertion
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value).encode(), "boolean")
        elif isinstance(node.value, int):
            self._replace(node, str(node.value + 1).encode(), "constant")
        elif isinstance(node.value, float):
            self._replace(node, repr(node.value * 2 or 1.0).encode(), "constant")
