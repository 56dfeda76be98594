"""What a step is, for any target: from PyTorch to a tile program.

trace.py     a cell's step and its gradient as one graph (graph.py) of ATen operators
settings.py  what the step reads from Python: how long a trace holds
lower.py     the graph to tile programs (tiles.py), operator by operator (rules/, complex.py, values.py)
schedule.py  what lives in memory, and which loop writes it; render.py prints it
"""
