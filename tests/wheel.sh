#!/bin/sh
# Install a wheel into a new environment and use it there: sh tests/wheel.sh dist/holdfast-0.1.0-py3-none-any.whl constraints.txt
set -eu

wheel=$(realpath "$1")
constraints=$(realpath "$2")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place" # outside the clone
unset PYTHONPATH

"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet -c "$constraints" "$wheel[train]"

env/bin/python - <<'PROGRAM'
import torch

import holdfast

assert holdfast.__file__.startswith(__import__("os").getcwd()), holdfast.__file__
cell, xs = holdfast.SGORNNCell(3, 16), torch.randn(20, 8, 3)
fused, reference = (holdfast.scan(cell, xs, backend=backend)[0] for backend in ("fused", "reference"))
torch.testing.assert_close(fused, reference)
print("fused scan: equal to the reference")
PROGRAM
env/bin/holdfast train addition --set task.steps=20 --updates 5 --hidden 8 --run run --quiet
env/bin/holdfast study list --json | env/bin/python -c "import json, sys; found = json.load(sys.stdin); assert len(found) > 20, found; print(len(found), 'studies')"
env/bin/holdfast study report | grep -q '| met |'
env/bin/holdfast study run s3/addition --scale smoke --quiet | head -1
echo "The wheel works: $(basename "$wheel")"
