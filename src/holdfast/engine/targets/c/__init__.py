"""C99 for devices: one step of a cell as plain loops over features.

step.py         a cell's step traced, lowered and scheduled for one sample, with its weights and their names
emit.py         that schedule as the text of one C function, its tables and how much scratch memory it needs
emitter.py      arrays, tables and loops; statements.py writes them, memory.py lets arrays share memory
expressions.py  what is evaluated inside a loop; operators.py has one line of C per elementwise operator
text.py         numbers, tables and names as C
"""

from holdfast.engine.program.graph import Unsupported
from holdfast.engine.targets.c.emit import Code, emit
from holdfast.engine.targets.c.emitter import Angles8, Quantised, Rounded
from holdfast.engine.targets.c.operators import helper_text
from holdfast.engine.targets.c.step import Step, step_of
from holdfast.engine.targets.c.text import Table, counted, in_comment, number

__all__ = [
    "Angles8",
    "Code",
    "Quantised",
    "Rounded",
    "Step",
    "Table",
    "Unsupported",
    "counted",
    "emit",
    "helper_text",
    "in_comment",
    "number",
    "step_of",
]
