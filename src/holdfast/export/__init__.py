"""Trained models for other machines. See docs/usage/deploy.md."""

from holdfast.export.network import Network, Provenance, Readout, Row, network_of
from holdfast.export.program import program
from holdfast.export.report import Report
from holdfast.export.to_c import CReport, c
from holdfast.export.to_onnx import onnx, onnx_model
from holdfast.export.to_torch import torch_program

__all__ = [
    "CReport",
    "Network",
    "Provenance",
    "Readout",
    "Report",
    "Row",
    "c",
    "network_of",
    "onnx",
    "onnx_model",
    "program",
    "torch_program",
]
