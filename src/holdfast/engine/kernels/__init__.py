"""Loops written by hand for the scan's compiler, as plain functions of tensors.

flow.py      x_t = x_{t-1} M + d_t for a small M, for Path-SGD (holdfast.optim)
scores.py    scores of many candidates, for the RRNN search (holdfast.rrnn)
values.py    the candidates themselves

Callers have the same in PyTorch, for machines without the compiler and for what a kernel does not take; tests hold
each kernel to that form.
"""
