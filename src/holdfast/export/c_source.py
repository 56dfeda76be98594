"""The text of a C file and of its header, from a network and the code of its cells' steps."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from holdfast.engine.targets.c import Code, Quantised, Step, Table, counted, emit, helper_text, number
from holdfast.export.c_header import counts_steps, doc, header_text, step_head
from holdfast.export.network import Network
from holdfast.export.quantise import Matrices

__all__ = ["Sources", "sources"]


@dataclasses.dataclass(frozen=True)
class Sources:
    """Both files, and what they take: bytes of flash for constants, bytes of RAM, multiply-adds of one step."""

    source: str
    header: str
    flash: int
    ram: int
    multiply_adds: int


def sources(network: Network, steps: list[Step], name: str, header: Path, matrices: Matrices) -> Sources:
    """The C file and its ``header``, of a network whose rows are ``steps``. All names start with ``name``."""
    return _Writer(network, steps, name, header, matrices).sources()


class _Writer:
    def __init__(self, network: Network, steps: list[Step], name: str, header: Path, matrices: Matrices):
        self.network, self.steps, self.name, self.header, self.matrices = network, steps, name, header, matrices
        self.tables: list[Table] = []
        self.helpers: set[str] = set()
        self.multiply_adds = 0
        self.codes: list[Code] = []
        for layer, rows in enumerate(network.layers):
            for place in range(len(rows)):
                row = len(self.codes)
                own = f"{name}_l{layer}" if len(rows) == 1 else f"{name}_l{layer}_{place}"
                self.codes.append(emit(steps[row], name, own, matrices.rows[row]))
        self.fields = self._fields()  # name, entries, comment

    # -- the state ----------------------------------------------------------------------------------------------------

    @property
    def pooled(self) -> bool:
        """A reservoir, whose readout reads a summary over time."""
        return self.network.change is not None

    @property
    def averaged(self) -> bool:
        """A readout of the mean, the last and the largest output."""
        return counts_steps(self.network) and not self.pooled

    @property
    def output_width(self) -> int:
        """Entries of the last layer's output."""
        return sum(row.cell.state_sizes[0] for row in self.network.layers[-1])

    @property
    def input_width(self) -> int:
        """Entries of what the first layer reads, if that is not x itself; else 0."""
        network = self.network
        if network.embedding is not None:
            return network.embedding.shape[1]
        return network.input_size * (2 if self.pooled else 1) if network.mean is not None or self.pooled else 0

    @property
    def features(self) -> int:
        """What the readout reads of the last layer."""
        if self.pooled:
            return sum(sum(row.cell.state_sizes) for row in self.network.layers[-1])
        return self.output_width * (3 if self.averaged else 1)

    def _fields(self) -> list[tuple[str, int, str]]:
        fields, row = [], 0
        for layer, rows in enumerate(self.network.layers):
            sizes = [step.state_sizes for step in self.steps[row : row + len(rows)]]
            row += len(rows)
            for entry in range(len(sizes[0])):
                count = sum(one[entry] for one in sizes)
                fields.append((f"l{layer}_s{entry}", count, f"layer {layer}, entry {entry} of the state"))
        if self.input_width:
            fields.append(("input", self.input_width, "what the first layer reads"))
        if self.pooled:
            fields.append(("previous", self.network.input_size, "the step before"))
        work = max(code.work for code in self.codes)
        if self.averaged:
            fields.append(("total", self.output_width, "the sum of the outputs since the last reset"))
            fields.append(("largest", self.output_width, "the largest of them"))
        if counts_steps(self.network) and self.network.readout is not None:
            work = max(work, self.features)
        if work:
            fields.append(("work", work, "scratch memory; holds nothing between steps"))
        return fields

    # -- the files ----------------------------------------------------------------------------------------------------

    def sources(self) -> Sources:
        functions = [self._reset(), self._step(), *self._answers()]
        every = [*(t for code in self.codes for t in code.tables), *self.tables]
        tables = list({table.name: table for table in every}.values())  # layers may share one
        helpers = self.helpers | {name for code in self.codes for name in code.helpers}
        labels = self._labels()
        body = [helper_text(helpers, self.name), *(code.text for code in self.codes), *functions]
        state = 4 * sum(count for _, count, _ in self.fields) + (4 if counts_steps(self.network) else 0)
        upper = self.name.upper()
        source = [
            doc(f"{self.network.provenance.sentence} See {self.header.name}."),
            f'#include <math.h>\n#include <stddef.h>\n#include <stdint.h>\n\n#include "{self.header.name}"',
            "/* Fails to compile where a float does not have 4 bytes. */\n"
            f"typedef char {self.name}_state_bytes_check[sizeof({self.name}_state) == {upper}_STATE_BYTES ? 1 : -1];",
            *([labels] if labels else []),
            *(table.text for table in tables),
            *(text for text in body if text),
        ]
        flash = sum(table.bytes for table in tables) + sum(len(one.encode()) + 1 for one in self.network.labels)
        multiply_adds = self.multiply_adds + sum(code.multiply_adds for code in self.codes)
        return Sources(
            "\n\n".join(source) + "\n",
            header_text(self.network, self.name, self.header, self.fields, state),
            flash,
            state,
            multiply_adds,
        )

    def _labels(self) -> str:
        if not self.network.labels:
            return ""
        upper = self.name.upper()
        texts = "\n".join(f"    {_string(label)}," for label in self.network.labels)
        return f"const char *const {self.name}_labels[{upper}_CLASSES] = {{\n{texts}\n}};"

    # -- functions ----------------------------------------------------------------------------------------------------

    def _table(self, name: str, values: np.ndarray | Tensor, comment: str) -> str:
        array = values if isinstance(values, np.ndarray) else values.detach().float().numpy()
        kind = array.dtype if array.dtype == np.int8 else np.dtype(np.float32)
        self.tables.append(Table(f"{self.name}_{name}", np.ascontiguousarray(array, kind), comment))
        return self.tables[-1].name

    def _reset(self) -> str:
        lines, row = [], 0
        for layer, rows in enumerate(self.network.layers):
            for entry in range(len(rows[0].start)):
                start = torch.cat([one.start[entry].reshape(-1) for one in rows])
                lines += self._set(f"l{layer}_s{entry}", start)
            row += len(rows)
        if self.averaged:
            lines += self._set("total", torch.zeros(self.output_width))
            lines += self._set("largest", torch.full((self.output_width,), -torch.inf))
        if counts_steps(self.network):
            lines.append("state->steps = 0;")
        init = f"void {self.name}_init({self.name}_state *state)\n{{\n    {self.name}_reset(state);\n}}"
        return _function(f"void {self.name}_reset({self.name}_state *state)", lines) + "\n\n" + init

    def _set(self, field: str, start: Tensor) -> list[str]:
        head = f"for (int i = 0; i < {len(start)}; i++)"
        if bool((start == start[0]).all()):
            return [head, f"    state->{field}[i] = {number(start[0].item())};"]
        table = self._table(f"{field}_start", start, f"{field} before the first step")
        return [head, f"    state->{field}[i] = {table}[i];"]

    def _step(self) -> str:
        lines, x = self._input()
        code = iter(self.codes)
        for layer, rows in enumerate(self.network.layers):
            offsets = [0] * len(rows[0].start)
            for row in rows:
                one = next(code)
                places = [f"state->l{layer}_s{i}{f' + {at}' if at else ''}" for i, at in enumerate(offsets)]
                arguments = [x, *places, *(["state->work"] if one.work else [])]
                lines.append(f"{one.name}({', '.join(arguments)});")
                offsets = [at + size for at, size in zip(offsets, row.cell.state_sizes, strict=True)]
            x = f"state->l{layer}_s0"
        if self.averaged:
            self.helpers.add("maximum")
            lines += [
                f"for (int i = 0; i < {self.output_width}; i++) {{",
                f"    state->total[i] += {x}[i];",
                f"    state->largest[i] = {self.name}_maximum(state->largest[i], {x}[i]);",
                "}",
                "state->steps++;",
            ]
        lines += ["if (y != NULL) {", *(f"    {line}" for line in self._output()), "}"]
        if self.network.embedding is not None:
            lines.append("return 0;")
        return _function(step_head(self.network, self.name), lines)

    def _input(self) -> tuple[list[str], str]:
        """(1) and (2) of network.py, and the name of what the first layer reads."""
        network, count = self.network, self.network.input_size
        if network.embedding is not None:
            return self._token(), "state->input"
        lines = []
        if network.mean is not None:
            assert network.scale is not None
            mean = self._table("mean", network.mean, f"the inputs' means, {counted(count, 'number')}")
            scale = self._table("scale", network.scale, f"the inputs' deviations, {counted(count, 'number')}")
            lines = [f"for (int i = 0; i < {count}; i++)", f"    state->input[i] = (x[i] - {mean}[i]) / {scale}[i];"]
        if self.pooled:
            assert network.change is not None
            change = self._table(
                "change", network.change, f"the size of the inputs' changes, {counted(count, 'number')}"
            )
            lines += [
                f"for (int i = 0; i < {count}; i++) {{",
                "    const float before = state->steps == 0 ? x[i] : state->previous[i];",
                f"    state->input[i + {count}] = (x[i] - before) / {change}[i];",
                "    state->previous[i] = x[i];",
                "}",
                "state->steps++;",
            ]
        return lines, "state->input" if lines else "x"

    def _token(self) -> list[str]:
        assert self.network.embedding is not None
        tokens, width = self.network.embedding.shape
        lines = [f"if (token < 0 || token >= {tokens})", "    return -1;"]
        each = f"for (int i = 0; i < {width}; i++)"
        if tokens == width and torch.equal(self.network.embedding, torch.eye(width)):  # one-hot: no table
            return [*lines, each, "    state->input[i] = i == token ? 1.0f : 0.0f;"]
        comment, known = f"the embedding, {tokens} rows of {width}", self.matrices.embedding
        if known is None:
            table = self._table("embedding", self.network.embedding, comment)
            return [*lines, each, f"    state->input[i] = {table}[token * {width} + i];"]
        table = self._table("embedding_int8", known.values, f"{comment}, in int8")
        scale = self._table("embedding_scale", known.scale, "the embedding, the scale of each row")
        return [*lines, each, f"    state->input[i] = {scale}[token] * (float){table}[token * {width} + i];"]

    def _output(self) -> list[str]:
        network, outputs = self.network, self.network.output_size
        last = f"state->l{len(network.layers) - 1}_s0"
        if self.pooled:
            lines = self._summary("y" if network.readout is None else "state->work")
            if network.readout is None:
                return lines
            return [*lines, *self._product("readout", "state->work"), *self._affine()]
        if network.readout is None:
            return [f"for (int i = 0; i < {outputs}; i++)", f"    y[i] = {last}[i];"]
        if self.averaged:
            parts = ["state->total[i] / count", f"{last}[i]", "state->largest[i]"]
            lines = ["const float count = (float)state->steps;", f"for (int i = 0; i < {self.output_width}; i++) {{"]
            places = [f"i{f' + {at * self.output_width}' * bool(at)}" for at in range(3)]
            lines += [f"    state->work[{at}] = {part};" for at, part in zip(places, parts, strict=True)]
            lines, last = [*lines, "}"], "state->work"
        else:
            lines = []
        return [*lines, *self._product("readout", last), *self._direct(), *self._affine()]

    def _summary(self, target: str) -> list[str]:
        """(3) of layers/reservoir.py, row after row, standardised for the readout."""
        lines, at, offsets = ["const float count = (float)state->steps;"], 0, [0] * len(self.network.layers[0][0].start)
        for row in self.network.layers[0]:
            h, total, highest, *above = row.cell.state_sizes
            order = [(1, total, True), (0, h, False), (2, highest, False)]
            order += [(3 + k, size, True) for k, size in enumerate(above)]
            for entry, size, is_share in order:
                value = f"state->l0_s{entry}[i{f' + {offsets[entry]}' if offsets[entry] else ''}]"
                where = f"{target}[i{f' + {at}' if at else ''}]"
                lines += [f"for (int i = 0; i < {size}; i++)", f"    {where} = {value}{' / count' * is_share};"]
                at, offsets[entry] = at + size, offsets[entry] + size
        readout = self.network.readout
        if readout is not None and readout.mean is not None:
            assert readout.scale is not None
            mean = self._table("features_mean", readout.mean, f"the features' means, {at} numbers")
            scale = self._table("features_scale", readout.scale, f"the features' standard deviations, {at} numbers")
            lines += [f"for (int i = 0; i < {at}; i++)", f"    {target}[i] = ({target}[i] - {mean}[i]) / {scale}[i];"]
        return lines

    def _product(self, which: str, source: str) -> list[str]:
        """Y = W · source."""
        assert self.network.readout is not None
        weight = self.network.readout.weight[:, : self.features]
        outputs, columns = weight.shape
        comment = f"the readout, {counted(outputs, 'row')} of {columns}"
        self.multiply_adds += outputs * columns
        if self.matrices.readout is None:
            table = self._table(which, weight, comment)
            self.helpers.add("multiply")
            return [f"{self.name}_multiply(y, {table}, {source}, {outputs}, {columns});"]
        table, scale = self._rounded(which, self.matrices.readout, comment)
        self.helpers.add("multiply_int8")
        return [f"{self.name}_multiply_int8(y, {table}, {scale}, {source}, {outputs}, {columns});"]

    def _rounded(self, which: str, known: Quantised, comment: str) -> tuple[str, str]:
        table = self._table(f"{which}_int8", known.values, f"{comment}, in int8")
        return table, self._table(f"{which}_scale", known.scale, f"{which}, the scale of each row")

    def _direct(self) -> list[str]:
        """Y += D u, for a readout that reads the input too."""
        readout = self.network.readout
        assert readout is not None
        if not readout.direct:
            return []
        weight = readout.weight[:, self.features :]
        outputs, columns = weight.shape
        source = "state->input" if self.input_width else "x"
        comment = f"the readout's weights of the input, {counted(outputs, 'row')} of {columns}"
        self.multiply_adds += outputs * columns
        head = f"for (int i = 0; i < {outputs}; i++)"
        if self.matrices.direct is None:
            table = self._table("direct", weight, comment)
            self.helpers.add("dot")
            return [head, f"    y[i] += {self.name}_dot({table} + {columns} * i, {source}, {columns});"]
        table, scale = self._rounded("direct", self.matrices.direct, comment)
        self.helpers.add("dot_int8")
        dot = f"{self.name}_dot_int8({table} + {columns} * i, {source}, {columns})"
        return [head, f"    y[i] += {scale}[i] * {dot};"]

    def _affine(self) -> list[str]:
        """The readout's bias, and (5) of network.py."""
        readout, network = self.network.readout, self.network
        assert readout is not None
        value = "y[i]"
        if readout.bias is not None:
            bias = self._table(
                "readout_bias", readout.bias, f"the readout's bias, {counted(len(readout.bias), 'number')}"
            )
            value = f"y[i] + {bias}[i]"
        if network.target_mean is not None:
            assert network.target_scale is not None
            scale = self._table("target_scale", network.target_scale, "the outputs' standard deviations")
            mean = self._table("target_mean", network.target_mean, "the outputs' means")
            value = f"({value}) * {scale}[i] + {mean}[i]"
        return [] if value == "y[i]" else [f"for (int i = 0; i < {network.output_size}; i++)", f"    y[i] = {value};"]

    def _answers(self) -> list[str]:
        """From scores to a class and to probabilities."""
        name, count = self.name, self.network.output_size
        if self.network.answer == "binary":
            one = _function(f"int {name}_class(const float *y)", ["return y[0] > 0.0f;"])
            lines = ["p[1] = 1.0f / (1.0f + expf(-y[0]));", "p[0] = 1.0f - p[1];"]
        elif self.network.answer == "classes":
            lines = ["int best = 0;", f"for (int i = 1; i < {count}; i++)", "    if (y[i] > y[best])"]
            one = _function(f"int {name}_class(const float *y)", [*lines, "        best = i;", "return best;"])
            lines = [f"const float highest = y[{name}_class(y)];", "float sum = 0.0f;"]
            lines += [f"for (int i = 0; i < {count}; i++)", "    sum += p[i] = expf(y[i] - highest);"]
            lines += [f"for (int i = 0; i < {count}; i++)", "    p[i] /= sum;"]
        else:
            return []
        return [one, _function(f"void {name}_probabilities(const float *y, float *p)", lines)]


def _function(head: str, lines: list[str]) -> str:
    return "\n".join([head, "{", *(f"    {line}" for line in lines), "}"])


def _string(text: str) -> str:
    """A C string: plain characters as they are, all else as octal bytes."""
    plain = {*range(32, 127)} - {*b'"\\?'}
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'
