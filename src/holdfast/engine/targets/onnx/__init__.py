"""The ONNX target: a cell over time as nodes of an ONNX graph.

    graph.py      nodes and constants, with arithmetic on their names
    operators.py  elementwise operators, one line each
    tiles.py      a tile program to nodes
    native.py     RNN, LSTM and GRU as ONNX's own operators
    rows.py       a cell over time: a native operator, or Scan with the step as its body

It needs the package onnx: the extra ``export``.
"""
