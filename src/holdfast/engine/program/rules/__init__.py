"""What each ATen operator becomes: one rule per operator, found by its name.

A rule is called with the lowering, the node, and the node's arguments as values (values.py). A keyword argument that a
rule does not name is refused, so nothing that changes a result is dropped.
"""

from holdfast.engine.program.rules import elementwise, features, products, shapes  # noqa: F401 - they enter their rules
from holdfast.engine.program.rules.table import RULES

__all__ = ["RULES"]
