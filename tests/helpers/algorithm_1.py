"""Algorithm 1 for one sample, line by line: every candidate rebuilt and scored in every round. For the tests alone."""

import torch

from holdfast.rrnn import ACTIVATIONS, OPERATORS, tolerance


@torch.no_grad()
def algorithm_1(leaves, matrices, sets, score):
    """Lines 6 to 18. ``leaves`` is a list of vectors; ``score`` from vectors to numbers.

    Returns the choices, (i, j, r, o, u) a round, the runners-up, and the vectors. The order of the candidates, what a
    tie is and what "not in the pool" means are those of Note [Ties and duplicates] in search.py.
    """
    pool, choices, runners = [], [], []  # line 6
    for _ in range(sets.rounds):  # line 7
        nodes, found = [*leaves, *pool], []
        for j in range(len(nodes)):  # lines 8 to 13
            for i in range(j):
                for r in range(len(matrices.left)):
                    for o, operator in enumerate(sets.operators):
                        for u, activation in enumerate(sets.activations):
                            z = OPERATORS[operator].apply(matrices.left[r] @ nodes[i], matrices.right[r] @ nodes[j])
                            v = ACTIVATIONS[activation].apply(z + matrices.bias[r])
                            found.append(((i, j, r, o, u), v))
        scores = score(torch.stack([v for _, v in found])).tolist()
        found = [(value, *entry) for value, entry in zip(scores, found, strict=True)]
        new = [entry for entry in found if not any(same(entry[2], node) for node in pool)]
        best = first_best(new or found)  # line 14
        others = [entry for entry in new if not same(entry[2], best[2])]
        choices.append(best[1])
        runners.append(first_best(others)[1] if others else (-1,) * 5)
        pool.append(best[2])  # line 15
    return choices, runners, pool  # line 17: the last is h_t


def same(v, w):
    return bool((v - w).abs().max() <= tolerance(v.dtype) * max(1.0, float(v.abs().max())))


def first_best(entries):
    """The first of those that have the highest score, up to rounding."""
    best = max(entry[0] for entry in entries)
    near = best - tolerance(torch.get_default_dtype()) * max(1.0, abs(best))
    return next(entry for entry in entries if entry[0] >= near)


def unstacked(leaves, sample):
    return list(torch.unbind(leaves[:, sample]))
